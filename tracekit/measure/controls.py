"""Controls: random sets of the same form beside a set, and beside the sets of a Pareto front.

The p value is exact: if the set is one more such random set, p is at most a in at most a share a of
cases. `Controls.table` defines it. Of a front, `SizeStatistics` says what each number means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb, isnan, prod
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from tracekit._util import progress
from tracekit._util.clusters import count_text
from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells, clean_text, interval_text
from tracekit._util.names import choices_text
from tracekit._util.options import check_int, check_seed, short_repr
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components.connected import EdgePaths
from tracekit.components.members import ComponentsLike, members_of
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.errors import ComponentError, ConfigError
from tracekit.measure.evaluation import PlannedSets, both_ways
from tracekit.measure.question import Question, on_examples
from tracekit.results.comparison import jaccard
from tracekit.results.display import InWords, Tabular
from tracekit.results.faithfulness import Faithfulness, own_and_missing_effects
from tracekit.results.intervals import effect_interval, standard_error
from tracekit.results.pareto_front import SizeStatistics
from tracekit.results.significance import NO_P
from tracekit.search.auto import CrossFit
from tracekit.search.base import log_spaced_sizes
from tracekit.search.targets import Target, require_full_effect

ControlForm = Literal["layers", "kinds", "size", "paths"]
FORMS: dict[str, str] = {
    "layers": "with as many components of every kind in every layer",
    "kinds": "with as many components of every kind",
    "size": "with as many components",
    "paths": "with as many edges, all of them on paths",
}
"""What random sets have in common with a set."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Controls(InWords, Tabular):
    """A set beside random sets of the same form."""

    labels: tuple[str, ...]
    """Members of the set."""
    searched: Faithfulness
    """Of the set alone."""
    random: Float[Tensor, "quantity draw"]
    """Effect, faithfulness and completeness of the random sets."""
    like: str
    """What these have in common with the set; a key of `FORMS`."""
    are_all: bool = False
    """Whether no other sets of this form were found, so that more draws find none."""
    is_tested: bool
    """Whether the set was selected on other examples, or by nobody here. Else there is no p: a
    search finds sets that do more on its examples by chance."""
    metric: str
    """Metric of the effect."""
    cost: Cost
    """Passes over the data that this took."""

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row for each quantity.

        Columns: `quantity`; its `value` for the set, with its 95 % interval `value_low` and
        `value_high`; the mean of the random sets, `control`, their least and greatest,
        `control_low` and `control_high`; `draws`, their number; `p`, the share of these sets, the
        given one among them, with a faithfulness at least as high, or a completeness at most as
        high; of the effect it is two-sided, twice the smaller of the shares at least as high and at
        least as low. No p is below 1 / (draws + 1), of the effect 2 / (draws + 1). NaN on the
        examples that the set was selected on.
        """
        own, names = self.searched.table.iloc[0], ("effect", "faithfulness", "completeness")
        rows = [
            {
                "quantity": name,
                **as_cells("value", own[name], (own[f"{name}_low"], own[f"{name}_high"])),
                **as_cells("control", values.mean().item(), map(float, values.aminmax())),
                "draws": len(values),
                "p": _p_value(name, own[name], values) if self.is_tested else float("nan"),
            }
            for name, values in zip(names, self.random, strict=True)
        ]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        """The findings, a line for each quantity, and what p means."""
        n, draws = len(self.labels), self.random.shape[1]
        noun, least = "component" if n == 1 else "components", 1 / (1 + draws)
        lines = [f"{n} {noun} by {self.metric}, {self.setting}."]
        for row in self.table.to_dict("records"):
            ends = interval_text(row["value_low"], row["value_high"])
            others = interval_text(row["control_low"], row["control_high"])
            p = f", p = {row['p']:.2g}" if self.is_tested else ""
            lines.append(
                f"{row['quantity']}: {row['value']:.3g} (95 % interval {ends}); random sets: "
                f"{row['control']:.3g} (least to greatest: {others}){p}"
            )
        all_drawn = f"{draws}, all that were found (like= has other forms),"
        how_many = all_drawn if self.are_all else f"{draws} (draws=)"
        lines.append(f"Random sets: {how_many} {FORMS[self.like]}.")
        if self.is_tested:
            lines.append(
                "p: the share of all these sets, this one included, that are at least as extreme; "
                "for the effect twice that share, since either sign counts. The smallest p of "
                f"{draws} random sets is {least:.2g}, for the effect {2 * least:.2g}."
            )
        else:
            lines.append(NO_P)
        return clean_text("\n".join(lines))

    __repr__ = __str__


def _p_value(quantity: str, own: float, drawn: Float[Tensor, " draw"]) -> float:
    """P value of a set among random ones; on which side is known before it is measured."""
    above, below = share_reaching(own, drawn), share_reaching(-own, -drawn)
    two_sided = min(1.0, 2 * above, 2 * below)
    return {"faithfulness": above, "completeness": below, "effect": two_sided}[quantity]


def controls(
    question: Question,
    members: ComponentsLike,
    *,
    draws: int = 40,
    like: ControlForm | None = None,
    seed: int = 0,
) -> Controls:
    """A set beside random sets of the same form: is it better than any such set?

    It is measured on the held-out examples, if the tracer has some. On the examples that the set
    was selected on there is no p.

    Args:
        question: The question.
        members: A set as in `evaluate`, or a mask of zeros and ones.
        draws: Different random sets; all, if there are fewer. No p is below 1 / (draws + 1); the p
            of the effect, which is two-sided, not below 2 / (draws + 1).
        like: What the random sets have in common with the set: as many components of every kind in
            every layer (`layers`), as many of every kind (`kinds`) or as many in all (`size`); or
            as many edges, all on paths within their set (`paths`). None: `paths` for edges that all
            lie on paths within their set, else `layers`.
        seed: Draws them.

    Raises:
        ConfigError: About the number of draws, or the seed.
        ComponentError: The set is empty, or all components; or no other set has the form.
        MaskError, ComponentError: About the set.
        MetricError: All components together have no effect.
    """
    engine = question.eval_engine
    like = like or _usual_form(question, members)
    ((_, both),) = planned_controls(question, members, draws=draws, like=like, seed=seed)
    require_full_effect(engine, 1 if engine.full_effects.mean() > 0 else -1)
    before, n_sets = engine.cost, len(both) // 2
    sets, complements = both[:n_sets], both[n_sets:]
    with progress.open_bar("controls", len(both), engine.n_examples, shown=engine.config.progress):
        effects = engine.set_effects(sets, "controls")
        others = engine.set_effects(complements, "complements")
    full, data = engine.full_effects, engine.pairs
    faithful, complete = own_and_missing_effects(effects, others, full, question.direction)
    shares = torch.stack([faithful.mean(1), complete.mean(1)]) / full.mean()
    which = "all" if question.selection_fingerprint(members) is None else "searched"
    if question.held_out_engine is not None:
        which = "held-out"
    return Controls(
        labels=tuple(engine.registry.label(member) for member in sets[0]),
        searched=on_examples(engine, effects[0], others[0]).faithfulness(
            sizes=[len(sets[0])], n_components=len(engine.registry)
        ),
        random=torch.cat([effects.mean(1)[None], shares])[:, 1:],
        like=like,
        are_all=n_sets <= draws,
        is_tested=question.selected_on(members) != engine.fingerprint,
        intervention=question.setup.intervention,
        examples=f"{which} examples, n = {count_text(len(data), data.clusters)}",
        metric=engine.metric.name,
        cost=engine.cost - before,
    )


def planned_controls(
    question: Question,
    members: ComponentsLike,
    *,
    draws: int = 40,
    like: ControlForm | None = None,
    seed: int = 0,
) -> PlannedSets:
    """What `controls` patches: the set and the random sets, with their complements."""
    check_seed(seed)
    check_int("draws", draws)
    chosen, n = members_of(members, question.registry), len(question.registry)
    if not 0 < len(chosen) < n:
        raise ComponentError(
            f"A set of {len(chosen)} of {n} components cannot be compared with random sets of its "
            "size. Give at least one component, and not all."
        )
    engine, generator = question.eval_engine, torch.Generator().manual_seed(seed)
    paths, like = engine.edge_paths, like or _usual_form(question, members)
    if like not in FORMS or (like == "paths" and paths is None):
        raise ConfigError(
            f"like is {short_repr(like)}. Give one of {choices_text(ControlForm)}; paths are of "
            "edges."
        )
    if like == "paths":
        assert paths is not None
        random_sets = connected_control_sets(paths, chosen, draws, generator)
    else:
        random_sets = control_sets(question.registry, chosen, draws, generator, like)
    if not random_sets:
        raise ComponentError(
            f"No other set exists {FORMS[like]}. Compare with random sets of another form, e.g. "
            "like='size'."
        )
    return [(engine, both_ways([chosen, *random_sets], n))]


def _usual_form(question: Question, members: ComponentsLike) -> ControlForm:
    paths, chosen = question.eval_engine.edge_paths, members_of(members, question.registry)
    is_connected = paths is not None and len(paths.edges_on_paths(chosen)) == len(chosen)
    return "paths" if is_connected else "layers"


def control_sets(
    registry: ComponentRegistry,
    members: ComponentSet,
    draws: int,
    generator: torch.Generator,
    like: ControlForm = "layers",
) -> list[ComponentSet]:
    """Different random sets with as many components of every kind in every layer as a set has.

    With `like="kinds"` as many of every kind, with `size` as many in all. Each is ascending, and
    none is the set itself. There are fewer than `draws` if no more have this form: all of them.
    """
    groups, counts = _groups(registry, like), _counts(registry, members, like)
    count = min(draws, n_controls(registry, members, like))
    drawn = dict.fromkeys([tuple(sorted(members))])
    while len(drawn) <= count:
        picks = [
            group[pick]
            for group, (size, n_members) in zip(groups, counts, strict=True)
            for pick in torch.randperm(size, generator=generator)[:n_members].tolist()
        ]
        drawn[tuple(sorted(picks))] = None
    return list(drawn)[1:]


def connected_control_sets(
    paths: EdgePaths, members: ComponentSet, draws: int, generator: torch.Generator
) -> list[ComponentSet]:
    """Different random sets of as many edges as a set has, all of them on paths within their set.

    Fewer where ten times as many draws find no others.
    """
    drawn = dict.fromkeys([tuple(sorted(members))])
    for _ in range(10 * draws):
        order = torch.randperm(paths.n_edges, generator=generator).tolist()
        control = tuple(sorted(paths.first(order, len(members))))
        if len(control) == len(members):
            drawn[control] = None
        if len(drawn) > draws:
            break
    return list(drawn)[1:]


def n_controls(
    registry: ComponentRegistry, members: ComponentSet, like: ControlForm = "layers"
) -> int:
    """How many other sets have the form of `control_sets`; 10^15 if more."""
    return min(prod(comb(n, count) for n, count in _counts(registry, members, like)) - 1, 10**15)


def control_overlap(registry: ComponentRegistry, members: ComponentSet) -> float:
    """Share of the members that such another set has on average; NaN if there is none."""
    others = n_controls(registry, members)
    if not others:
        return float("nan")
    shared = sum(count * count / n for n, count in _counts(registry, members)) / len(members)
    # Of all such sets one is the set itself.
    return shared - (1 - shared) / others


def share_reaching(own: float, drawn: Float[Tensor, " draw"]) -> float:
    """Share of sets, the own one among them, of which a value is at least that of the own one."""
    # Sets that do the same differ by rounding.
    least = own - 1e-6 * max(abs(own), drawn.abs().max().item())
    return (1 + int((drawn >= least).sum())) / (1 + len(drawn))


def _groups(registry: ComponentRegistry, like: ControlForm) -> list[list[int]]:
    """Components among which members may be exchanged."""
    groups: dict[Any, list[int]] = {}
    for number, site in enumerate(registry.sites):
        key = {"layers": number, "kinds": site.kind.name, "size": None}[like]
        groups.setdefault(key, []).extend(range(site.start, site.stop))
    return list(groups.values())


def _counts(
    registry: ComponentRegistry, members: ComponentSet, like: ControlForm = "layers"
) -> list[tuple[int, int]]:
    chosen = {*members}
    return [(len(group), len(chosen.intersection(group))) for group in _groups(registry, like)]


_AT_MOST = 12
"""Sizes at which statistics are taken."""
MOST_CONTROLS = 5
"""Random sets of each size, at most."""


def sizes_of_statistics(sizes: Sequence[int]) -> list[int]:
    """Up to 12 of the sizes of a front, spread on a logarithmic scale."""
    wanted = log_spaced_sizes(sizes[0], sizes[-1], _AT_MOST)
    return sorted({min(sizes, key=lambda size: abs(size - at)) for at in wanted})


def measure_statistics(
    engine: Engine,
    sets: Mapping[int, ComponentSet],
    seed: int,
    *,
    maximised: Target,
    others: Mapping[int, ComponentSet],
    fit: CrossFit | None,
    names: Sequence[str],
) -> tuple[SizeStatistics, ...]:
    """Statistics of a front, whose set is given for each size that they are taken at.

    `maximised` is the engine's data as the search saw it. `others` are sets of a walk from all
    components downwards, at some sizes. `fit` says what the searches of these names do on halves of
    the examples; None with too few examples.
    """
    generator = torch.Generator().manual_seed(seed)
    cross_fitted = [{}] * len(sets) if fit is None else _cross_fitted(fit, names, engine)
    from_all = _from_all(engine, maximised, sets, others)
    statistics = []
    for (size, members), *parts in zip(sets.items(), cross_fitted, from_all, strict=True):
        fields = parts[0] | parts[1]
        drawn = control_sets(engine.registry, members, MOST_CONTROLS, generator)
        if drawn:
            controls = engine.set_effects(drawn, f"controls of {size}").mean(1)
            fields["controls"] = n_controls(engine.registry, members)
            fields["control_overlap"] = control_overlap(engine.registry, members)
            fields |= as_cells("control", controls.mean().item(), map(float, controls.aminmax()))
        statistics.append(SizeStatistics(size=size, **fields))
    return tuple(statistics)


def _cross_fitted(fit: CrossFit, names: Sequence[str], engine: Engine) -> list[dict[str, Any]]:
    rows, pairs = [], engine.pairs
    for rank, search in enumerate(fit.choice()):
        effects = fit.sign * fit.effects[search, rank]
        ends = effect_interval(effects, bounds=engine.metric.bounds, **pairs.statistics_options)
        ends = [None if isnan(end) else end for end in ends]
        first, second = fit.sets[search]
        by_search = (fit.sign * fit.effects[:, rank].mean(-1)).tolist()
        rows.append(
            {
                **as_cells("cross_fitted", effects.mean().item(), ends),
                "cross_fitted_error": standard_error(effects, pairs.weights, pairs.clusters),
                "cross_fitted_by": dict(zip(names, by_search, strict=True)),
                "stability": jaccard(first[rank], second[rank]),
            }
        )
    return rows


def _from_all(
    engine: Engine,
    maximised: Target,
    sets: Mapping[int, ComponentSet],
    others: Mapping[int, ComponentSet],
) -> list[dict[str, Any]]:
    """What sets of a walk from all components are beside those of a front; nothing without one."""
    sizes = [size for size in sets if size in others]
    pairs = [each for size in sizes for each in (sets[size], others[size])]
    means = maximised.set_effects(pairs, "from all").mean(1)
    values = rearrange(means, "(size side) -> size side", side=2).tolist()
    effects = engine.set_effects([others[size] for size in sizes], "from all").mean(1).tolist()
    rows = {
        size: {
            "from_all": effect,
            "from_all_similarity": jaccard(sets[size], others[size]),
            "from_all_gain": (other - own) / max(abs(own), 1e-12),
        }
        for size, (own, other), effect in zip(sizes, values, effects, strict=True)
    }
    return [rows.get(size, {}) for size in sets]
