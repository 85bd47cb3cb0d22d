"""Why a set acts together: what each member brings, which interact, which can be replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb, nan
from typing import Any, ClassVar

import plotly.graph_objects as go
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from tracekit._util import progress
from tracekit._util.deferred import pd
from tracekit._util.markup import number_text, printable, with_ends
from tracekit._util.options import check_loss, check_seed, check_whole
from tracekit.components import Component, ComponentRegistry, ComponentSet
from tracekit.components.members import ComponentsLike, members_of
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.errors import ComponentError
from tracekit.measure.figures import member_heatmap, member_network, member_waterfall
from tracekit.measure.question import Question
from tracekit.measure.replacements import (
    MeasuredOutsider,
    Redundancy,
    measured_outsiders,
    n_sets_of_outsiders,
    redundant_members,
)
from tracekit.measure.set_game import SetGame
from tracekit.measure.shapley import MOST_EXACT, ShapleyValues, n_subsets_of_values, shapley_values
from tracekit.metrics import Effects, bounds_of
from tracekit.results.intervals import effect_interval
from tracekit.results.of_set import OfMembers
from tracekit.results.significance import RESOLUTION, PValues, p_values, without_rounding
from tracekit.search.base import PlannedPasses, require_gradient

EXPLANATION = "explanation.json"
"""Name of its document in a folder."""
_NAMED = 3
"""Pairs and backups that the text names."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation(OfMembers):
    """Why a set of components acts together.

    Every number comes from measured effects of binary masks, on every example. Intervals are 95 %
    studentised bootstrap intervals over the examples.
    """

    FILE: ClassVar[str] = EXPLANATION
    MEASURED: ClassVar[str] = "effect"

    effect: Effects
    """Of the set, on every example; this and all others times its weight, if it has one."""
    alone: Float[Tensor, "member example"]
    """Effect of each member alone."""
    last: Float[Tensor, "member example"]
    """Effect that each member adds to all others; it is lost if the member is left out."""
    shapley: ShapleyValues
    """Contribution of each, averaged over all orders in which members join."""
    pairs: PairInteractions
    """Interactions of all pairs of members, in three contexts."""
    redundancy: Redundancy
    """Members that can be left out together."""
    tolerance: float
    """Share of the effect that may be lost without them."""
    outsiders: tuple[MeasuredOutsider, ...] | None
    """Measured outsiders; None where they were not looked for."""
    proposed_on: str | None
    """Fingerprint of the examples whose gradients proposed outsiders; None without outsiders."""

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per member, the largest value first.

        Columns: `component`; `alone`, `last` (what leaving it out costs) and `value` (Shapley),
        each with its interval `..._low`, `..._high`; `sampling_error`, the standard error of the
        value because only some orders were drawn (0 if all subsets were measured); `verdict`:

        - `can be left out`: among the members that can be left out together;
        - `works against`: its value is below 0, interval and all;
        - `with others`: it brings more last than alone, intervals apart;
        - `overlaps`: it brings less last than alone, intervals apart;
        - `with some`: it brings more on average than both alone and last, intervals apart;
        - `by itself`: none of these.

        Differences below 1e-4 of the effects of subsets count as 0: they may be rounding.
        """
        rows = []
        for player, label in enumerate(self.labels):
            row: dict[str, Any] = {"component": label}
            for name, values in (
                ("alone", self.alone),
                ("last", self.last),
                ("value", self.shapley.per_example),
            ):
                row |= self._fields(name, values[player], n_subtracted=int(name != "alone"))
            row["sampling_error"] = self.shapley.sampling_error[player].item()
            row["verdict"] = self._verdict(player, row)
            rows.append(row)
        return pd.DataFrame(rows).sort_values("value", ascending=False, ignore_index=True)

    def _verdict(self, player: int, row: dict[str, Any]) -> str:
        if player in self.redundancy.players:
            return "can be left out"
        least = self._least
        if row["value_high"] < -least:
            return "works against"
        low, high = self._interval(self.last[player] - self.alone[player])
        if low > least or high < -least:
            return "with others" if low > least else "overlaps"
        value = self.shapley.per_example[player]
        low = min(self._interval(value - rest[player])[0] for rest in (self.alone, self.last))
        return "with some" if low > least else "by itself"

    @cached_property
    def _scale(self) -> Effects:
        """Size of the effects that everything here is a difference of, on each example."""
        parts = torch.cat([self.effect[None], self.alone, self.effect - self.last])
        return parts.abs().max(0).values

    @property
    def _least(self) -> float:
        """A mean below this may be rounding."""
        return RESOLUTION * self._scale.mean().item()

    def _p_values(self, effects: Float[Tensor, "row example"], scale: Tensor) -> PValues:
        """P values of rows that are differences of effects of subsets of a size."""
        differences = without_rounding(effects.double(), scale.expand_as(effects).double())
        return p_values(differences, weights=self.weights, clusters=self.clusters)

    @cached_property
    def interactions(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per pair of members, the strongest first.

        Columns: `first` and `second`; the interaction `alone`, `averaged` (over subsets; NaN with
        more than 12 members) and `within` (all other members patched), each with its interval;
        `p`, `q` and `p_family`, of the one in the context `tested_context`, the last two over all
        pairs (`tracekit.results.significance`; NaN on the examples that the set was selected on);
        `significant`, whether `p_family` is below 0.05.
        """
        labels, pairs = self.labels, self.pairs
        tested = pairs.within if pairs.averaged is None else pairs.averaged
        tests = self._p_values(tested, self._scale) if self.is_tested else PValues.none(len(tested))
        rows = []
        for rank, (first, second) in enumerate(pairs.pairs):
            averaged = None if pairs.averaged is None else pairs.averaged[rank]
            rows.append(
                {
                    "first": labels[first],
                    "second": labels[second],
                    **self._fields("alone", pairs.alone[rank], 1, 2),
                    **self._fields("averaged", averaged, 2, 2),
                    **self._fields("within", pairs.within[rank], 2, 2),
                }
            )
        frame = pd.DataFrame(rows).assign(**tests.columns("family"))
        return frame.sort_values(self.tested_context, key=abs, ascending=False, ignore_index=True)

    @property
    def tested_context(self) -> str:
        """Context of interactions that are tested: `averaged` up to 12 members, else `within`."""
        return "within" if self.pairs.averaged is None else "averaged"

    @property
    def context_text(self) -> str:
        """The tested context in words."""
        return _CONTEXTS[self.tested_context]

    @cached_property
    def additivity(self) -> pd.Series:
        """A pandas Series: the effect of the set against the sum of single effects.

        Entries: `effect`, `sum_of_singles`, and `interaction`, their difference, each with its
        interval.
        """
        singles, m = self.alone.sum(0), len(self.members)
        return pd.Series(
            {
                **self._fields("effect", self.effect),
                **self._fields("sum_of_singles", singles, m),
                **self._fields("interaction", self.effect - singles, 1, m),
            }
        )

    @property
    def redundant(self) -> list[Component]:
        """Members that can be left out together, the one that costs least first."""
        return [self.components[player] for player in self.redundancy.players]

    @cached_property
    def replacements(self) -> pd.DataFrame | None:
        """A pandas DataFrame: for each member the outsider that makes up most for it.

        Columns: `component`, `replacement`; `lost`, what leaving the member out costs; `recovered`
        of it with the outsider in its player, with its interval; `share` of the loss. None where
        outsiders were not looked for.
        """
        if self.outsiders is None:
            return None
        best: dict[int, MeasuredOutsider] = {}
        for each in sorted(self.outsiders, key=lambda each: each.recovered.mean().item()):
            best[each.player] = each
        rows = []
        for player, each in best.items():
            lost = self.last[player].mean().item()
            recovered = self._fields("recovered", each.recovered, 1, 1)
            share = recovered["recovered"] / lost if lost else float("nan")
            rows.append({**self._named(each, "replacement"), "lost": lost, **recovered})
            rows[-1]["share"] = share
        return _sorted(pd.DataFrame(rows), "recovered")

    @cached_property
    def backups(self) -> pd.DataFrame | None:
        """A pandas DataFrame: outsiders that do more once a member is patched.

        Columns: `component`, `backup`; `rise`, how much more the outsider brings to the set than
        to the set without the member, with its interval; `before`, what it brings to the latter;
        `p`, and over all outsiders that were measured `q` and `p_family`, where other examples
        proposed them; `significant`, whether q is below 0.05. Only those whose interval lies above
        0. None where outsiders were not looked for.
        """
        if self.outsiders is None:
            return None
        columns = ["component", "backup", "rise", "rise_low", "rise_high", "before"]
        columns += PValues.none(0).columns()
        if not self.outsiders:
            return pd.DataFrame(columns=columns)
        tests = self._tests_of_rises.columns()
        rows = [
            {
                **self._named(each, "backup"),
                **self._fields("rise", each.rise, 2, 2),
                "before": each.recovered.mean().item(),
                **{name: values[rank] for name, values in tests.items()},
            }
            for rank, each in enumerate(self.outsiders)
        ]
        rising = [row for row in rows if row["rise_low"] > self._least]
        return _sorted(pd.DataFrame(rising, columns=columns), "rise")

    @cached_property
    def _tests_of_rises(self) -> PValues:
        """P values of what outsiders do more; NaN on the examples that proposed them."""
        outsiders = self.outsiders or ()
        if not outsiders or self.proposed_on == self.dataset_fingerprint:
            return PValues.none(len(outsiders))
        rises = torch.stack([each.rise for each in outsiders])
        return self._p_values(rises, torch.stack([each.scale for each in outsiders]))

    def _named(self, outsider: MeasuredOutsider, role: str) -> dict[str, str]:
        names = self.labels[outsider.player], self.registry.label(outsider.outsider)
        return dict(zip(("component", role), names, strict=True))

    def _fields(
        self, name: str, values: Effects | None, n_added: int = 1, n_subtracted: int = 0
    ) -> dict[str, float]:
        """A mean of a sum of effects less others, and its interval."""
        if values is None:
            return with_ends(name, nan, (nan, nan))
        return with_ends(name, values.mean().item(), self._interval(values, n_added, n_subtracted))

    def _interval(
        self, values: Effects, n_added: int = 1, n_subtracted: int = 1
    ) -> tuple[float, float]:
        bounds = bounds_of(self.metric).of_sum(n_added, n_subtracted)
        return effect_interval(values, bounds=bounds, **self.over)

    def waterfall(self) -> go.Figure:
        """Shapley values from the clean run to the effect of the set, one bar after the other.

        Lines are 95 % intervals over examples. The numbers are those of `table`.
        """
        return member_waterfall(self)

    def heatmap(self) -> go.Figure:
        """Interactions of all pairs: alone above the diagonal, in the tested context below it.

        Below is the average over subsets, or with more than 12 members the interaction within the
        set. The sign of a pair that interacts significantly stands in its cell; a ring says that
        only the interval leaves out 0. The numbers are those of `interactions`.
        """
        return member_heatmap(self)

    def network(self) -> go.Figure:
        """Members by layer, joined where they interact in the tested context.

        The area of a node is its Shapley value, the width of a line the interaction: orange if the
        two do more together, blue if less. Nodes whose value is negative are blue. Dashed lines, of
        half the width, are not significant, but their intervals leave out 0.
        """
        return member_network(self)

    def __str__(self) -> str:
        """The findings in a few lines, ready for a paper."""
        added = self.additivity
        lines = [
            f"{len(self.members)} components of {self.model} on {self.dataset}: "
            f"{number_text(added, 'effect')}, {self.axis_label}, {self.examples}. Brackets: 95 % "
            "intervals.",
            f"Alone they sum to {number_text(added, 'sum_of_singles')}; interaction brings "
            f"{number_text(added, 'interaction')}.",
        ]
        orders = self.shapley.n_orders
        how = "all subsets" if orders is None else f"{orders} orders"
        values = zip(self.table["component"], self.table["value"], strict=True)
        shares = ", ".join(f"{label} {value:.3g}" for label, value in values)
        lines.append(f"Shapley values ({how}): {shares}.")
        for verdict, text in _VERDICTS.items():
            named = self.table["component"][self.table["verdict"] == verdict]
            if verdict == _LEFT_OUT:
                named = list(map(self._left_out, named))
            lines += [f"{text}: {', '.join(named)}."] if len(named) else []
        frame, name = self.interactions, self.tested_context
        is_apart = (frame[f"{name}_low"] > self._least) | (frame[f"{name}_high"] < -self._least)
        significant = frame[frame["significant"] if self.is_tested else is_apart]
        pairs = [
            f"{first} and {second} {value:+.3g}"
            for first, second, value in zip(
                *(significant[name] for name in ("first", "second", self.tested_context)),
                strict=True,
            )
        ]
        how = "p < .05" if self.is_tested else "interval apart from 0"
        lines.append(
            f"{len(pairs)} of {len(self.interactions)} pairs do more (+) or less (-) together than "
            f"each by itself, {self.context_text} ({how})"
            f"{': ' if pairs else ''}{', '.join(pairs[:_NAMED])}."
        )
        lines += self.said_of_p
        if self.backups is not None:
            columns = ["backup", "component", "rise"]
            backups, how = self.backups, "interval above 0, on the examples that proposed them"
            if self.proposed_on != self.dataset_fingerprint:
                backups, how = backups[backups["significant"].astype(bool)], "q < .05"
            rows = zip(*(backups.get(name, ()) for name in columns), strict=True)
            rows = list(rows)[:_NAMED]
            named = [f"{name} {rise:+.3g} once {member} is" for name, member, rise in rows]
            lines.append(
                "Backups, which are outside the set and do more once a member is patched "
                f"({how}): {', '.join(named) if named else 'none'}."
            )
            lines += filter(None, [self._tests_of_rises.caution if named else ""])
        return printable("\n".join(lines))

    def _left_out(self, label: str) -> str:
        """A member that can be left out: its effect alone, and who makes up for it."""
        name, alone = self.tested_context, self.table.set_index("component")["alone"]
        others = {*self.labels} - {str(each) for each in self.redundant}
        for row in self.interactions.to_dict("records"):
            pair = [row["first"], row["second"]]
            other = next((each for each in pair if each != label), "")
            if label in pair and other in others and row[f"{name}_high"] < -self._least:
                return f"{label} ({alone[label]:.3g} alone; {other} makes up for it)"
        return f"{label} ({alone[label]:.3g} alone)"

    def __repr__(self) -> str:
        return printable(
            f"Explanation({len(self.members)} components of {self.model} on {self.dataset}, "
            f"effect {self.effect.mean().item():.4g})"
        )


def _sorted(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """The largest values first; a frame without rows has no columns."""
    return frame if frame.empty else frame.sort_values(column, ascending=False, ignore_index=True)


_CONTEXTS = {
    "averaged": "averaged over subsets of the other members",
    "within": "all other members patched",
}
"""Contexts in words."""
_LEFT_OUT = "can be left out"
_VERDICTS = {
    "with others": "Bring more with all other members patched than alone",
    "overlaps": "Bring less with all other members patched than alone, as these do the same",
    "with some": "Bring more with some of the other members patched than alone or with all",
    "by itself": "Show no difference between alone and with the other members patched",
    _LEFT_OUT: "Can be left out together, as the set without them does as much",
    "works against": "Work against the others",
}


def explain(
    question: Question,
    members: ComponentsLike,
    *,
    max_sets: int = 2000,
    tolerance: float = 0.02,
    look_outside: bool | None = None,
    seed: int = 0,
) -> Explanation:
    """Why a set acts together: what each member brings, who interacts, who can be replaced.

    It is measured on the held-out examples, if the tracer has some. On the examples that the
    set was selected on there are no p values.

    Args:
        question: The question.
        members: A set as in `evaluate`, or a mask of zeros and ones; for a size of a front,
            `front.at(size)`.
        max_sets: Of more than 12 members, the subsets to measure at most for their values.
        tolerance: Share of the effect that may be lost without redundant members.
        look_outside: Whether to look for outsiders that replace or back up a member. By
            default where the metric has a gradient, which proposes them.
        seed: Draws the orders in which more than 12 members join.

    Raises:
        ComponentError: Fewer than two members, or others than of this tracer.
        MaskError: About the mask.
        ConfigError: About the options.
        NotDifferentiableError: Outsiders are asked for, and the metric has no gradient.
        NonFiniteMetricError: The metric is not finite on a subset; names both.
    """
    check_seed(seed)
    engine, chosen = question.eval_engine, members_of(members, question.registry)
    _check(engine.registry, chosen, max_sets, tolerance)
    planned = plan_explanation(engine, chosen, max_sets=max_sets, look_outside=look_outside)
    passes, n, before = planned.cost.forward_equivalents, engine.n_examples, engine.cost
    with progress.run("explain", passes, n, shown=engine.config.progress):
        game = SetGame(engine, chosen)
        everybody = game.everybody
        without = [tuple(p for p in everybody if p != player) for player in everybody]
        values = shapley_values(game, max_sets=max_sets, seed=seed)
        whole = game.effects([everybody])[0]
        singles = game.effects([(player,) for player in everybody])
        last = whole - game.effects(without)
        pairs = pair_interactions(game)
        redundancy = redundant_members(game, tolerance=tolerance)
        outsiders = None
        if _looks_outside(engine, look_outside):
            outsiders = tuple(measured_outsiders(engine, chosen, question.search_engine))
    return Explanation(
        members=chosen,
        effect=whole,
        alone=singles,
        last=last,
        shapley=values,
        pairs=pairs,
        redundancy=redundancy,
        tolerance=tolerance,
        outsiders=outsiders,
        selected_on=question.selected_on(members),
        proposed_on=None if outsiders is None else question.search_engine.fingerprint,
        **question.facts_of(engine, before),
    )


def _looks_outside(engine: Engine, asked: bool | None) -> bool:
    """Whether an explanation looks for outsiders, which takes a metric with a gradient."""
    if asked:
        require_gradient(engine.metric, "explain(look_outside=True)")
    return engine.metric.differentiable if asked is None else asked


def plan_explanation(
    engine: Engine, members: ComponentSet, *, max_sets: int, look_outside: bool | None
) -> PlannedPasses:
    """Passes of an explanation: exact for up to 12 members and without outsiders."""
    registry, is_outside = engine.registry, _looks_outside(engine, look_outside)
    _check(registry, members, max_sets, tolerance=0)
    n = len(members)
    is_exact = n <= MOST_EXACT
    subsets = n_subsets_of_values(n, max_sets)
    if not is_exact:
        # Pairs in two contexts; then, without redundant members, what is smaller than without two.
        subsets += n * (n + 1) + (n - 1) * (n - 2) // 2 - 1
    cost = Cost(subsets)
    if is_outside and len(registry) > n:
        cost += Cost(n_sets_of_outsiders(n, len(registry)) + n + 1, n + 1)
    return PlannedPasses(cost=cost, is_exact=is_exact and not is_outside)


def _check(
    registry: ComponentRegistry, members: Sequence[int], max_sets: int, tolerance: float
) -> None:
    if len(members) < 2:
        named = ", ".join(map(registry.label, members)) or "none"
        raise ComponentError(
            f"A set of {len(members)} components ({named}) has nothing to explain. Give at least "
            "two."
        )
    check_whole("max_sets", max_sets)
    check_loss("tolerance", tolerance)


@dataclass(frozen=True, kw_only=True, eq=False)
class PairInteractions:
    """The interaction of every pair of members, on every example."""

    pairs: tuple[tuple[int, int], ...]
    """Players of the members of each pair."""
    alone: Float[Tensor, "pair example"]
    """Nothing else is patched."""
    within: Float[Tensor, "pair example"]
    """All other members are patched too."""
    averaged: Float[Tensor, "pair example"] | None
    """Averaged over subsets of the others; None with more than 12 members."""


def pair_interactions(game: SetGame) -> PairInteractions:
    """Interactions of all pairs of members, of which there are at least two."""
    pairs = tuple(combinations(range(game.n_players), 2))
    everybody = game.everybody

    def without(*players: int) -> tuple[int, ...]:
        return tuple(player for player in everybody if player not in players)

    alone = [[(i, j), (i,), (j,), ()] for i, j in pairs]
    within = [[everybody, without(j), without(i), without(i, j)] for i, j in pairs]
    corners = game.effects([each for four in (*alone, *within) for each in four], "pairs")
    both, first, second, neither = rearrange(
        corners, "(where pair corner) example -> corner where pair example", where=2, corner=4
    )
    values = both - first - second + neither
    return PairInteractions(
        pairs=pairs,
        alone=values[0],
        within=values[1],
        averaged=_averaged(game, pairs) if game.n_players <= MOST_EXACT else None,
    )


def _averaged(game: SetGame, pairs: tuple[tuple[int, int], ...]) -> Float[Tensor, "pair example"]:
    """Shapley interaction indices, from all subsets."""
    n = game.n_players
    effects = game.every_effect().double()
    numbers = torch.arange(2**n)
    sizes = torch.stack([numbers >> player & 1 for player in range(n)]).sum(0)
    weights = [1 / ((n - 1) * comb(n - 2, size)) for size in range(n - 1)]
    by_size = torch.tensor(weights, dtype=effects.dtype)
    rows = []
    for i, j in pairs:
        both = 1 << i | 1 << j
        rest = numbers[(numbers & both) == 0]
        changes = effects[rest | both] - effects[rest | 1 << i] - effects[rest | 1 << j]
        rows.append(by_size[sizes[rest]] @ (changes + effects[rest]))
    return torch.stack(rows).to(torch.float32)
