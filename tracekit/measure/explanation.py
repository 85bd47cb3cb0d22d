"""Why a set acts together: what each member brings, which interact, which can be replaced.

A *replacement* j of a member i makes up for it: the set with j in the place of i does about what
the set does. A *backup* j of i does more once i is patched than while i is not (self-repair, the
Hydra effect: McGrath et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import Any, ClassVar

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util import progress
from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells, clean_text, number_text
from tracekit._util.options import check_int, check_max_loss, check_seed
from tracekit.components import Component, ComponentSet
from tracekit.components.masks import Mask
from tracekit.components.members import ComponentsLike, members_of
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.errors import ComponentError
from tracekit.figures.cells import RING, Cell, PairMap, pair_map
from tracekit.figures.members import Edge, Members, network, waterfall
from tracekit.figures.style import data_and_model, plain
from tracekit.measure.question import Question
from tracekit.measure.shapley import (
    MOST_EXACT,
    PairInteractions,
    Redundancy,
    SetGame,
    ShapleyValues,
    exact_values,
    n_subsets_of_orders,
    pair_interactions,
    redundant_members,
    sampled_values,
)
from tracekit.metrics import Effects, bounds_of
from tracekit.results.intervals import effect_interval
from tracekit.results.on_examples import OfMembers
from tracekit.results.significance import (
    RESOLUTION,
    PValues,
    is_unsure,
    p_text,
    p_values,
    zero_below_rounding,
)
from tracekit.search.base import PlannedPasses
from tracekit.search.targets import require_gradient

EXPLANATION = "explanation.json"
"""Name of its document in a folder."""
_CONTEXTS = {
    "averaged": "averaged over subsets of the other members",
    "within": "all other members patched",
}
"""Contexts of interactions in words."""
_LEFT_OUT = "can be left out"
_VERDICTS = {
    "with others": "Bring more with all other members patched than alone",
    "overlaps": "Bring less with all other members patched than alone, as these do the same",
    "with some": "Bring more with some of the other members patched than alone or with all",
    "by itself": "Show no difference between alone and with the other members patched",
    _LEFT_OUT: "Can be left out together, as the set without them does as much",
    "works against": "Work against the others",
}
_MOST_NAMED = 3
"""Pairs and backups that the text names, at most."""
_PROPOSED = 5
"""Non-members that are measured for each member, by either prediction."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredNonMember:
    """A non-member beside a member, with measured effects on every example."""

    member: int
    """Number of the member in the set."""
    non_member: int
    """Flat index of the non-member."""
    without: Effects
    """Effects of the set without the member."""
    instead: Effects
    """Effects of the set with the non-member in the place of the member."""
    whole: Effects
    """Effects of the set."""
    joined: Effects
    """Effects of the set and the non-member together."""

    @property
    def recovered(self) -> Effects:
        """Effect of the non-member while the member is not patched."""
        return self.instead - self.without

    @property
    def scale(self) -> Effects:
        """Size of the effects that the rise is a difference of, on each example."""
        parts = (self.without, self.instead, self.whole, self.joined)
        return torch.stack(parts).abs().max(0).values

    @property
    def rise(self) -> Effects:
        """How much more it brings once the member is patched."""
        return (self.joined - self.whole) - self.recovered


def measured_non_members(
    engine: Engine, members: ComponentSet, proposing: Engine
) -> list[MeasuredNonMember]:
    """Non-members that may replace or back up each member, measured beside it.

    For every member, the five that the gradient of `proposing` ranks first at the set without it,
    and the five whose predicted gain rises most when it is patched.
    """
    outside = [index for index in range(engine.n_components) if index not in set(members)]
    if not outside:
        return []
    at_set = proposing.predict_changes(members).predicted_effects.nan_to_num()
    proposals: list[tuple[int, int, tuple[ComponentSet, ComponentSet, ComponentSet]]] = []
    for member, index in enumerate(members):
        without = tuple(other for other in members if other != index)
        gains = proposing.predict_changes(without).predicted_effects.nan_to_num()
        chosen = [*_highest_scored(outside, gains), *_highest_scored(outside, at_set - gains)]
        for non_member in dict.fromkeys(chosen):
            instead, joined = (tuple(sorted((*each, non_member))) for each in (without, members))
            proposals.append((member, non_member, (without, instead, joined)))
    sets = list(dict.fromkeys([members, *(each for *_, three in proposals for each in three)]))
    effects = dict(zip(sets, engine.set_effects(sets, "non-members"), strict=True))
    return [
        MeasuredNonMember(
            member=member,
            non_member=non_member,
            without=effects[without],
            instead=effects[instead],
            whole=effects[members],
            joined=effects[joined],
        )
        for member, non_member, (without, instead, joined) in proposals
    ]


def n_sets_of_non_members(n_members: int, n_components: int) -> int:
    """Sets that `measured_non_members` measures at most, after a gradient a member and one."""
    outside = n_components - n_members
    instead = n_members * min(2 * _PROPOSED, outside)
    # A non-member joins the whole set once, whoever it was proposed for.
    return 1 + n_members + instead + min(instead, outside) if outside else 0


def _highest_scored(outside: Sequence[int], scores: Mask) -> list[int]:
    return sorted(outside, key=lambda index: -scores[index].item())[:_PROPOSED]


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
    non_members: tuple[MeasuredNonMember, ...] | None
    """Measured non-members; None where they were not looked for."""
    proposed_on: str | None
    """Fingerprint of the examples whose gradients proposed non-members; None where none did."""

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
        columns = {"alone": self.alone, "last": self.last, "value": self.shapley.per_example}
        for member, label in enumerate(self.labels):
            row: dict[str, Any] = {"component": label}
            for name, values in columns.items():
                row |= self._fields(name, values[member], n_subtracted=int(name != "alone"))
            row["sampling_error"] = self.shapley.sampling_error[member].item()
            row["verdict"] = self._verdict(member, row)
            rows.append(row)
        return pd.DataFrame(rows).sort_values("value", ascending=False, ignore_index=True)

    def _verdict(self, member: int, row: dict[str, Any]) -> str:
        if member in self.redundancy.members:
            return "can be left out"
        least = self.rounding
        if row["value_high"] < -least:
            return "works against"
        low, high = self._interval(self.last[member] - self.alone[member])
        if low > least or high < -least:
            return "with others" if low > least else "overlaps"
        value = self.shapley.per_example[member]
        low = min(self._interval(value - rest[member])[0] for rest in (self.alone, self.last))
        return "with some" if low > least else "by itself"

    @cached_property
    def _scale(self) -> Effects:
        """Size of the effects that everything here is a difference of, on each example."""
        parts = torch.cat([self.effect[None], self.alone, self.effect - self.last])
        return parts.abs().max(0).values

    @property
    def rounding(self) -> float:
        """A mean below this may be rounding."""
        return RESOLUTION * self._scale.mean().item()

    def _p_values(self, effects: Float[Tensor, "row example"], scale: Tensor) -> PValues:
        """P values of rows that are differences of effects of subsets of a size."""
        differences = zero_below_rounding(effects.double(), scale.expand_as(effects).double())
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

        Entries: `effect`, `sum_of_singles`, and their difference `interaction`, with intervals.
        """
        singles, m = self.alone.sum(0), len(self.members)
        row = self._fields("effect", self.effect) | self._fields("sum_of_singles", singles, m)
        return pd.Series(row | self._fields("interaction", self.effect - singles, 1, m))

    @property
    def redundant(self) -> list[Component]:
        """Members that can be left out together, the one that costs least first."""
        return [self.components[member] for member in self.redundancy.members]

    @cached_property
    def replacements(self) -> pd.DataFrame | None:
        """A pandas DataFrame: for each member the non-member that makes up most for it.

        Columns: `component`, `replacement`; `lost`, what leaving the member out costs; `recovered`
        of it with the non-member in its place, with its interval; `share` of the loss. None where
        non-members were not looked for.
        """
        if self.non_members is None:
            return None
        order = sorted(self.non_members, key=lambda each: each.recovered.mean().item())
        rows = []
        for member, each in {each.member: each for each in order}.items():
            row = {**self._named(each, "replacement"), "lost": self.last[member].mean().item()}
            row |= self._fields("recovered", each.recovered, 1, 1)
            rows.append({**row, "share": row["recovered"] / (row["lost"] or nan)})
        columns = ["component", "replacement", "lost", "recovered"]
        columns += ["recovered_low", "recovered_high", "share"]
        frame = pd.DataFrame(rows, columns=columns)
        return frame.sort_values("recovered", ascending=False, ignore_index=True)

    @cached_property
    def backups(self) -> pd.DataFrame | None:
        """A pandas DataFrame: non-members that do more once a member is patched.

        Columns: `component`, `backup`; `rise`, how much more the non-member brings to the set than
        to the set without the member, with its interval; `before`, what it brings to the latter;
        `p`, and over all non-members that were measured `q` and `p_family`, where other examples
        proposed them; `significant`, whether q is below 0.05. Only those whose interval lies above
        0. None where non-members were not looked for.
        """
        if self.non_members is None:
            return None
        columns = ["component", "backup", "rise", "rise_low", "rise_high", "before"]
        columns += PValues.none(0).columns()
        tests = self.tests_of_backups.columns()
        rows = [
            {
                **self._named(each, "backup"),
                **self._fields("rise", each.rise, 2, 2),
                "before": each.recovered.mean().item(),
                **{name: values[rank] for name, values in tests.items()},
            }
            for rank, each in enumerate(self.non_members)
        ]
        rising = [row for row in rows if row["rise_low"] > self.rounding]
        frame = pd.DataFrame(rising, columns=columns)
        return frame.sort_values("rise", ascending=False, ignore_index=True)

    @cached_property
    def tests_of_backups(self) -> PValues:
        """P values of what non-members do more; NaN on the examples that proposed them."""
        non_members = self.non_members or ()
        if not non_members or self.proposed_on == self.dataset_fingerprint:
            return PValues.none(len(non_members))
        rises = torch.stack([each.rise for each in non_members])
        return self._p_values(rises, torch.stack([each.scale for each in non_members]))

    def _named(self, non_member: MeasuredNonMember, role: str) -> dict[str, str]:
        names = self.labels[non_member.member], self.registry.label(non_member.non_member)
        return dict(zip(("component", role), names, strict=True))

    def _fields(
        self, name: str, values: Effects | None, n_added: int = 1, n_subtracted: int = 0
    ) -> dict[str, float]:
        """A mean of a sum of effects less others, and its interval."""
        if values is None:
            return as_cells(name, nan, (nan, nan))
        return as_cells(name, values.mean().item(), self._interval(values, n_added, n_subtracted))

    def _interval(
        self, values: Effects, n_added: int = 1, n_subtracted: int = 1
    ) -> tuple[float, float]:
        bounds = bounds_of(self.metric).of_sum(n_added, n_subtracted)
        return effect_interval(values, bounds=bounds, **self.statistics_options)

    def waterfall(self) -> go.Figure:
        """Shapley values from the clean run to the effect of the set, one bar after the other.

        Lines are 95 % intervals over examples. The numbers are those of `table`.
        """
        return waterfall(
            _drawn_members(self.table),
            value_title=self.axis_label,
            title=data_and_model(self.dataset, self.model),
            subtitle=f"Shapley values, with 95 % intervals; {plain(self.setting)}",
        )

    def heatmap(self) -> go.Figure:
        """Interactions of all pairs: alone above the diagonal, in the tested context below it.

        Below is the average over subsets, or with more than 12 members the interaction within the
        set. A pair that interacts significantly has a dot; a ring says that only the interval
        leaves out 0. The numbers are those of `interactions`.
        """
        labels, tested, context = self.labels, self.tested_context, self.context_text
        n, rank_of = len(labels), {label: rank for rank, label in enumerate(labels)}
        cells: list[list[float | None]] = [[None] * n for _ in labels]
        hover = [[plain(label)] * n for label in labels]
        dotted: list[Cell] = []
        ringed: list[Cell] = []
        for row in self.interactions.to_dict("records"):
            i, j = sorted((rank_of[row["first"]], rank_of[row["second"]]))
            cells[i][j], cells[j][i] = row["alone"], row[tested]
            pair = f"{plain(row['first'])} and {plain(row['second'])}<br>"
            hover[i][j] = f"{pair}alone: {number_text(row, 'alone', '+.4g')}"
            below = f"{number_text(row, tested, '+.4g')}<br>{p_text(row)}"
            hover[j][i] = f"{pair}{context}: {below}"
            dotted += [(j, i)] if row["significant"] else []
            ringed += [(j, i)] if is_unsure(row, tested) else []
        sizes = [abs(value) for row in cells for value in row if value is not None]
        drawn = PairMap(
            labels=labels,
            values=cells,
            hover=hover,
            bound=max(sizes, default=1.0) or 1.0,
            dotted=dotted,
            ringed=ringed,
            note="<br>".join(["dot: p &lt; .05", *([RING] if ringed else [])]),
        )
        return pair_map(
            drawn,
            title=data_and_model(self.dataset, self.model),
            subtitle=f"{plain(self.axis_label)}; above: alone; below: {context}; "
            f"{plain(self.setting)}",
        )

    def network(self) -> go.Figure:
        """Members by layer, joined where they interact in the tested context.

        The area of a node is its Shapley value, the width of a line the interaction: orange if the
        two do more together, blue if less. Nodes whose value is negative are blue. Dashed lines, of
        half the width, are not significant, but their intervals leave out 0.
        """
        labels, tested = self.labels, self.tested_context
        rows = self.interactions.to_dict("records")
        joined = [row for row in rows if row["significant"] or is_unsure(row, tested)]
        edges = [
            Edge(
                first=labels.index(row["first"]),
                second=labels.index(row["second"]),
                value=row[tested],
                hover=f"{plain(row['first'])} and {plain(row['second'])}: "
                f"{number_text(row, tested, '+.4g')}, {p_text(row)}",
                is_sure=row["significant"],
            )
            for row in joined
        ]
        return network(
            _drawn_members(self.table.set_index("component").loc[labels].reset_index()),
            [component.layer for component in self.components],
            edges,
            title=data_and_model(self.dataset, self.model),
            subtitle=f"{plain(self.axis_label)}; area: Shapley value; lines: interaction; "
            f"{plain(self.setting)}{'' if joined else ' (no interval leaves out 0)'}",
        )

    def __str__(self) -> str:
        """The findings in a few lines, ready for a paper."""
        sums, n_orders = self.additivity, self.shapley.n_orders
        method = "all subsets" if n_orders is None else f"{n_orders} orders"
        values = zip(self.table["component"], self.table["value"], strict=True)
        shares = ", ".join(f"{label} {value:.3g}" for label, value in values)
        lines = [
            f"{len(self.members)} components of {self.model} on {self.dataset}: "
            f"{number_text(sums, 'effect')}, {self.axis_label}, {self.setting}. Brackets: 95 % "
            "intervals.",
            f"Alone they sum to {number_text(sums, 'sum_of_singles')}; interaction brings "
            f"{number_text(sums, 'interaction')}.",
            f"Shapley values ({method}): {shares}.",
            *_verdict_texts(self),
            _pairs_text(self),
            *self.notes_on_p,
        ]
        if self.backups is not None:
            lines += _backup_texts(self, self.backups)
        return clean_text("\n".join(lines))

    def __repr__(self) -> str:
        return clean_text(
            f"Explanation({len(self.members)} components of {self.model} on {self.dataset}, "
            f"{self.intervention}, effect {self.effect.mean().item():.4g})"
        )


def _drawn_members(table: pd.DataFrame) -> Members:
    return Members(
        names=table["component"].tolist(),
        values=table["value"].tolist(),
        low=table["value_low"].tolist(),
        high=table["value_high"].tolist(),
        hover=[
            f"alone: {row['alone']:.4g}<br>last: {row['last']:.4g}<br>{row['verdict']}"
            for row in table.to_dict("records")
        ],
    )


def _verdict_texts(why: Explanation) -> Iterator[str]:
    for verdict, text in _VERDICTS.items():
        labels = list(why.table["component"][why.table["verdict"] == verdict])
        if verdict == _LEFT_OUT:
            labels = [_left_out_text(why, label) for label in labels]
        if labels:
            yield f"{text}: {', '.join(labels)}."


def _left_out_text(why: Explanation, label: str) -> str:
    """A member that can be left out: its effect alone, and which member makes up for it."""
    alone = why.table.set_index("component")["alone"][label]
    staying = {*why.labels} - {str(member) for member in why.redundant}
    for row in why.interactions.to_dict("records"):
        pair = [row["first"], row["second"]]
        if label not in pair:
            continue
        other = pair[1] if pair[0] == label else pair[0]
        if other in staying and row[f"{why.tested_context}_high"] < -why.rounding:
            return f"{label} ({alone:.3g} alone; {other} makes up for it)"
    return f"{label} ({alone:.3g} alone)"


def _pairs_text(why: Explanation) -> str:
    """How many pairs interact, and the strongest of them."""
    frame: Any = why.interactions
    context = why.tested_context
    if why.is_tested:
        criterion, counts = "p < .05", frame["significant"]
    else:
        criterion = "interval apart from 0"
        low, high = frame[f"{context}_low"], frame[f"{context}_high"]
        counts = (low > why.rounding) | (high < -why.rounding)
    pairs = [
        f"{row['first']} and {row['second']} {row[context]:+.3g}"
        for row in frame[counts].to_dict("records")
    ]
    text = (
        f"{len(pairs)} of {len(frame)} pairs do more (+) or less (-) together than each by itself, "
        f"{why.context_text} ({criterion})"
    )
    return f"{text}: {', '.join(pairs[:_MOST_NAMED])}." if pairs else f"{text}."


def _backup_texts(why: Explanation, backups: Any) -> Iterator[str]:
    """The strongest backups, and a caution where their q is not reliable."""
    criterion = "interval above 0, on the examples that proposed them"
    if why.proposed_on != why.dataset_fingerprint:
        backups, criterion = backups[backups["significant"].astype(bool)], "q < .05"
    named = [
        f"{row['backup']} {row['rise']:+.3g} once {row['component']} is"
        for row in backups.head(_MOST_NAMED).to_dict("records")
    ]
    yield (
        "Backups, which are outside the set and do more once a member is patched "
        f"({criterion}): {', '.join(named) if named else 'none'}."
    )
    if named and why.tests_of_backups.caution:
        yield why.tests_of_backups.caution


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
        look_outside: Whether to look for non-members that replace or back up a member. By
            default where the metric has a gradient, which proposes them.
        seed: Draws the orders in which more than 12 members join.

    Raises:
        ComponentError: Fewer than two members, or others than of this tracer.
        MaskError: About the mask.
        ConfigError: About the options.
        NotDifferentiableError: Non-members are asked for, and the metric has no gradient.
        NonFiniteMetricError: The metric is not finite on a subset; names both.
    """
    check_seed(seed)
    check_max_loss("tolerance", tolerance)
    engine, chosen = question.eval_engine, members_of(members, question.registry)
    planned = plan_explanation(engine, chosen, max_sets=max_sets, look_outside=look_outside)
    proposing = question.search_engine if _looks_outside(engine, look_outside) else None
    passes, n, before = planned.cost.forward_equivalents, engine.n_examples, engine.cost
    with progress.open_bar("explain", passes, n, shown=engine.config.progress):
        game = SetGame(engine, chosen)
        everyone = game.all_members
        if len(chosen) <= MOST_EXACT:
            shapley = exact_values(game)
        else:
            shapley = sampled_values(game, max_sets=max_sets, seed=seed)
        without = [tuple(other for other in everyone if other != member) for member in everyone]
        effect = game.effects([everyone])[0]
        return Explanation(
            members=chosen,
            effect=effect,
            alone=game.effects([(member,) for member in everyone]),
            last=effect - game.effects(without),
            shapley=shapley,
            pairs=pair_interactions(game),
            redundancy=redundant_members(game, tolerance=tolerance),
            tolerance=tolerance,
            non_members=tuple(measured_non_members(engine, chosen, proposing))
            if proposing
            else None,
            proposed_on=proposing and proposing.fingerprint,
            selected_on=question.selected_on(members),
            **question.facts_of(engine, before),
        )


def _looks_outside(engine: Engine, asked: bool | None) -> bool:
    """Whether an explanation looks for non-members, which takes a metric with a gradient."""
    if asked:
        require_gradient(engine.metric, "explain(look_outside=True)")
    return engine.metric.differentiable if asked is None else asked


def plan_explanation(
    engine: Engine, members: ComponentSet, *, max_sets: int, look_outside: bool | None
) -> PlannedPasses:
    """Passes of an explanation: exact for up to 12 members and without non-members."""
    registry, n = engine.registry, len(members)
    if n < 2:
        named = ", ".join(map(registry.label, members)) or "none"
        raise ComponentError(
            f"A set of {n} components ({named}) has nothing to explain. Give at least two."
        )
    check_int("max_sets", max_sets)
    is_exact, is_outside = n <= MOST_EXACT, _looks_outside(engine, look_outside)
    subsets = 2**n - 1
    if not is_exact:
        # Pairs in two contexts; then, without redundant members, what is smaller than without two.
        subsets = n_subsets_of_orders(n, max_sets) + n * (n + 1) + (n - 1) * (n - 2) // 2 - 1
    cost = Cost(subsets)
    if is_outside and len(registry) > n:
        cost += Cost(n_sets_of_non_members(n, len(registry)) + n + 1, n + 1)
    return PlannedPasses(cost=cost, is_exact=is_exact and not is_outside)
