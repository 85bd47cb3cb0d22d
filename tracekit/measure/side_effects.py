"""Side effects: what a set does to other data and by other metrics, against random sets.

The strength of a set on a data set is s = sum_i |l_i(set)| / sum_i |l_i(all)|, with l_i the effect
on example i. Absolute effects keep examples that move in opposite directions from cancelling. The
selectivity is (s_target - s_other) / (s_target + s_other), the index by which neuroscience says how
much more a cell responds to one stimulus (Niell and Stryker 2008).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util import progress
from tracekit._util.clusters import sum_by_cluster
from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells, clean_text, number_text
from tracekit._util.names import MetricName
from tracekit._util.options import check_int, check_seed, short_repr
from tracekit.components import ComponentSet
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.prompts import PromptPairs
from tracekit.engine.cost import Cost
from tracekit.engine.effects import check_metric
from tracekit.engine.engine import Engine
from tracekit.errors import PairsError
from tracekit.figures.charts import Strength, strengths
from tracekit.figures.style import plain
from tracekit.measure.controls import control_overlap, control_sets, n_controls, share_reaching
from tracekit.measure.evaluation import PlannedSets
from tracekit.measure.question import Question
from tracekit.metrics import Bounds, Effects, Metric, MetricFunction, bounds_of
from tracekit.results.display import Tabular
from tracekit.results.intervals import FEWEST, effect_interval, ratio_interval, resamples
from tracekit.results.on_examples import OverExamples, PatchedSet, examples_text
from tracekit.results.significance import q_values

Others = Mapping[str, PromptPairs | tuple[PromptPairs, MetricName | Metric | MetricFunction]]
"""Other data by name, each with a metric if it is another."""
TARGET = "target"
"""Name of the data and metric that a set was chosen for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EffectOn(OverExamples):
    """Effects of a set, all components and random sets on a data set, by a metric."""

    name: str
    """Name given by the caller; `target` for the data that the set was chosen for."""
    dataset: str
    dataset_fingerprint: str
    metric: str
    axis_label: str
    """Axis title for the effect, with its unit."""
    effects: Effects
    """Of the set on every example; this and all others times its weight, if it has one."""
    full_effects: Effects
    """Of all components together."""
    controls: Float[Tensor, "draw example"]
    """Of random sets; no draw if there is no other set of as many components per kind and layer."""

    @property
    def strength(self) -> float:
        """Mean absolute effect of the set, as a share of that of all components; 0 or more."""
        return (self.effects.abs().sum() / self.full_effects.abs().sum()).item()

    @property
    def control_strengths(self) -> Float[Tensor, " draw"]:
        """Strength of each random set."""
        return self.controls.abs().sum(1) / self.full_effects.abs().sum()

    @property
    def p(self) -> float:
        """Share of random sets that are at least as strong, the set itself counted as one of them.

        NaN if there are no random sets.
        """
        if not len(self.controls):
            return float("nan")
        return share_reaching(self.strength, self.control_strengths)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SideEffects(PatchedSet, Tabular):
    """Effects of a set on its own data and on other data, by one or several metrics."""

    FILE: ClassVar[str] = "side_effects.json"

    target: EffectOn
    """Effect on the data of the tracer, by its metric."""
    others: tuple[EffectOn, ...]
    """Effects on the others, in the order given."""
    seed: int
    """Drew the random sets, which are the same for all data."""

    @property
    def n_controls(self) -> int:
        """How many other sets have as many components of every kind in every layer.

        Some of them are drawn; all, if they are few.
        """
        return n_controls(self.registry, self.members)

    @property
    def control_overlap(self) -> float:
        """Share of the members that such a set has too, on average; NaN if there is none."""
        return control_overlap(self.registry, self.members)

    def selectivity(self, name: str) -> float:
        """How much more the set does to the target than to other data, in [-1, 1].

        NaN if it does nothing to either.

        Args:
            name: Of the other data.

        Raises:
            PairsError: There are no others of this name.
        """
        strengths = (self.target.strength, self._other(name).strength)
        return _indices(*map(torch.tensor, strengths)).item()

    def selectivity_interval(self, name: str) -> tuple[float, float]:
        """Its 95 % percentile bootstrap interval over the examples of both data sets.

        NaN with fewer than three independent examples of one. If both are the same examples, by
        two metrics, they are resampled together. `name` as in `selectivity`.
        """
        other = self._other(name)
        is_paired = other.dataset_fingerprint == self.target.dataset_fingerprint
        both = (self.target, other)
        if min(len(sum_by_cluster(each.effects, each.clusters)) for each in both) < FEWEST:
            return float("nan"), float("nan")
        values = _indices(_resampled(self.target, 0), _resampled(other, 0 if is_paired else 1))
        low, high = values.nanquantile(torch.tensor([0.025, 0.975], dtype=values.dtype)).tolist()
        return low, high

    def control_selectivity(self, name: str) -> Float[Tensor, " draw"]:
        """The `selectivity` of each random set."""
        return _indices(self.target.control_strengths, self._other(name).control_strengths)

    def _other(self, name: str) -> EffectOn:
        for other in self.others:
            if other.name == name:
                return other
        names = ", ".join(other.name for other in self.others)
        raise PairsError(f"Nothing was measured on {name!r}. Give one of {names}.")

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row for the target and one for each of the others.

        Columns: `name`, `dataset`, `metric`, `examples`; the mean `effect`, with its interval;
        `strength`, the mean absolute effect as a share of that of all components, with its
        interval; `control`, the mean strength of random sets, and the least and the greatest; `p`,
        the share of random sets at least as strong (NaN on the examples that the set was selected
        on), and `q`, its false discovery rate over the rows that have one; `selectivity` with its
        interval, and `control_selectivity`, the median selectivity of random sets. Intervals end in
        `_low` and `_high`; those of effects and strengths are 95 % studentised bootstrap intervals
        over examples (`tracekit.results.intervals`). The target has no selectivity (NaN).
        """
        frame = pd.DataFrame(map(self._row, (self.target, *self.others)))
        frame.insert(list(frame).index("p") + 1, "q", q_values(torch.tensor(frame["p"])))
        return frame

    def _row(self, each: EffectOn) -> dict[str, Any]:
        interval = effect_interval(
            each.effects, bounds=bounds_of(each.metric), **each.statistics_options
        )
        sizes, bounds = (each.effects.abs(), each.full_effects.abs()), Bounds(low=0.0)
        of_strength = ratio_interval(*sizes, clusters=each.clusters, bounds=bounds)
        controls, nan = each.control_strengths, float("nan")
        of_controls = (nan, nan) if not len(controls) else map(float, controls.aminmax())
        of_pair = as_cells("selectivity", nan, (nan, nan)) | {"control_selectivity": nan}
        if each is not self.target:
            ends = self.selectivity_interval(each.name)
            of_pair = as_cells("selectivity", self.selectivity(each.name), ends)
            control = self.control_selectivity(each.name).nanmedian()
            of_pair["control_selectivity"] = control.item()
        return {
            "name": each.name,
            "dataset": each.dataset,
            "metric": each.metric,
            "examples": each.n_examples,
            **as_cells("effect", each.effects.mean().item(), interval),
            **as_cells("strength", each.strength, of_strength),
            **as_cells("control", controls.mean().item(), of_controls),
            "p": nan if each.dataset_fingerprint == self.selected_on else each.p,
            **of_pair,
        }

    def _rows(self) -> Iterator[tuple[dict[Any, Any], EffectOn]]:
        return zip(self.table.to_dict("records"), (self.target, *self.others), strict=True)

    def figure(self) -> go.Figure:
        """The strength of the set on all data, with 95 % intervals; crosses are random sets.

        The column on the right is the selectivity. The numbers are those of `table`.
        """
        rows = []
        for row, each in self._rows():
            ends = f"({row['selectivity_low']:.2f} to {row['selectivity_high']:.2f})"
            selectivity = f"{row['selectivity']:.2f}<br>{ends}".replace("-", "\u2212")
            p = f"<br>p = {row['p']:.2g}" if row["p"] == row["p"] else ""
            strength = Strength(
                name=row["name"],
                metric=row["metric"],
                n=each.n_text,
                value=row["strength"],
                low=row["strength_low"],
                high=row["strength_high"],
                controls=each.control_strengths.tolist(),
                hover=f"mean effect: {row['effect']:.4g}{p}",
                beside="" if each is self.target else selectivity,
            )
            rows.append(strength)
        of_target = self.target.dataset_fingerprint, self.target.n_text
        return strengths(
            rows,
            beside="selectivity",
            value_title="strength (share of all components)",
            title=f"{len(self.members)} components of {plain(self.model)}",
            subtitle=f"{plain(self.intervention)}: mean absolute effect, as a share of all; bars "
            f"and brackets: 95 % intervals; target: {examples_text(self.selected_on, *of_target)}",
        )

    def __str__(self) -> str:
        """The findings, a line for each data set."""
        n = len(self.members)
        names = ", ".join(self.labels[:8]) + (", ..." if n > 8 else "")
        lines = [f"{n} component{'s' * (n != 1)} of {self.model}, {self.intervention}: {names}."]
        for row, each in self._rows():
            where = f"{row['name']} ({row['metric']} on {row['dataset']})"
            line = f"{where}: strength {number_text(row, 'strength')}"
            if row["control"] == row["control"]:
                line += f", random sets {number_text(row, 'control')}"
                line += f", p = {row['p']:.2g}" if row["p"] == row["p"] else ""
                measured = examples_text(self.selected_on, each.dataset_fingerprint, each.n_text)
                line += f", {measured}"
            if row["selectivity"] == row["selectivity"]:
                line += f"; selectivity {number_text(row, 'selectivity')}"
            if row["control_selectivity"] == row["control_selectivity"]:
                line += f", of random sets {row['control_selectivity']:.3g}"
            lines.append(f"{line}.")
        n_drawn = len(self.target.controls)
        if n_drawn:
            lines.append(
                f"Random sets, in brackets the least and greatest: {n_drawn} of "
                f"{self.n_controls:.4g} others of these layers; they share "
                f"{100 * self.control_overlap:.0f} % of the members on average."
            )
        strength = "Strength: mean absolute effect, as a share of that of all components."
        lines.append(f"{strength} Brackets: 95 % intervals.")
        return clean_text("\n".join(lines))

    def __repr__(self) -> str:
        others = ", ".join(
            f"{other.name}: {self.selectivity(other.name):.3g}" for other in self.others
        )
        return clean_text(
            f"SideEffects({len(self.members)} components of {self.model} on "
            f"{self.target.dataset}, {self.intervention}; selectivity {others})"
        )


def _indices(target: Float[Tensor, "*value"], other: Float[Tensor, "*value"]) -> Tensor:
    """Selectivity of strengths; NaN where both are 0."""
    return (target - other) / (target + other)


def _resampled(each: EffectOn, seed: int) -> Float[Tensor, " resample"]:
    effects = sum_by_cluster(each.effects.abs(), each.clusters)
    full = sum_by_cluster(each.full_effects.abs(), each.clusters)
    drawn = resamples(len(effects), seed)
    return torch.cat([effects[picks].sum(1) / full[picks].sum(1) for picks in drawn])


def side_effects(
    question: Question, members: ComponentsLike, others: Others, *, draws: int = 20, seed: int = 0
) -> SideEffects:
    """Effects of a set on other data and by other metrics, against random sets of its layers.

    ```python
    side = tracer.side_effects(result, {"neutral": (text, "kl"), "other task": pairs})
    print(side)
    side.to_frame(), side.figure()
    ```

    Each data set is measured with this tracer's components, source and direction; the target on the
    held-out examples, if it has some. On examples that selected the set there is no `p`.

    Args:
        question: The question.
        members: As in `explain`; one component is enough.
        others: By name, pairs, which are measured by the tracer's metric, or pairs with a
            metric. As the tracer was given its own: denoising reverses them.
        draws: Different random sets with as many components of every kind in every layer, the
            same for all data; all, if there are fewer. `p` cannot be below 1 / (draws + 1).
        seed: Draws them.

    Raises:
        PairsError: There are no others, or something else than pairs, or all components
            together change nothing on them.
        ConfigError: About the number of draws, or the seed.
        MissingContinuationError, PairsError: The others do not suit the metric, the
            model or the components.
        MaskError, ComponentError: About the set.
    """
    parts = planned_side_effects(question, members, others, draws=draws, seed=seed)
    engines = dict(zip([TARGET, *others], [engine for engine, _ in parts], strict=True))
    target, (chosen, *controls) = parts[0]
    before = {name: engine.cost for name, engine in engines.items()}
    n, shown = target.n_examples, target.config.progress
    with progress.open_bar("side effects", None, n, shown=shown):
        measured = [_measure(name, engine, chosen, controls) for name, engine in engines.items()]
    return SideEffects(
        members=chosen,
        target=measured[0],
        others=tuple(measured[1:]),
        seed=seed,
        selected_on=question.selected_on(members),
        cost=sum((engine.cost - before[name] for name, engine in engines.items()), Cost()),
        **question.facts_of_patch(target),
    )


def planned_side_effects(
    question: Question, members: ComponentsLike, others: Others, *, draws: int = 20, seed: int = 0
) -> PlannedSets:
    """What `side_effects` patches: a set and random sets; of other data all components, too."""
    check_seed(seed)
    chosen, registry = members_of(members, question.registry), question.registry
    check_int("draws", draws, 0)
    if not chosen:
        raise PairsError("An empty set has no side effects. Give at least one component.")
    if not isinstance(others, Mapping) or not others:
        raise PairsError(
            f"The others are {short_repr(others)}. Give a mapping from names to pairs, e.g. "
            "{'neutral': pairs} or {'neutral': (pairs, 'kl')}."
        )
    engines = []
    for name, given in others.items():
        pairs, metric = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if name == TARGET or not isinstance(name, str) or not isinstance(pairs, PromptPairs):
            raise PairsError(
                f"Under {name!r} stands {short_repr(given)}. Give pairs, or pairs with a "
                f"metric, under a name other than {TARGET!r}."
            )
        engines.append(question.engine_of(pairs, metric=metric))
    sets = [chosen, *control_sets(registry, chosen, draws, torch.Generator().manual_seed(seed))]
    of_others = [*sets, tuple(range(len(registry)))]
    return [(question.eval_engine, sets), *((engine, of_others) for engine in engines)]


def _measure(
    name: str, engine: Engine, members: ComponentSet, controls: Sequence[ComponentSet]
) -> EffectOn:
    check_metric(engine)
    full = engine.full_effects
    if not full.abs().sum() > 0:
        raise PairsError(
            f"All components together change nothing on {name!r} by {engine.metric.name}, so "
            "there is nothing to compare with. Give other pairs or another metric."
        )
    effects = engine.set_effects([members, *controls], f"side effects, {name}")
    return EffectOn(
        name=name,
        dataset=engine.pairs.name,
        dataset_fingerprint=engine.fingerprint,
        metric=engine.metric.name,
        axis_label=engine.metric.axis_label,
        effects=effects[0].clone(),
        full_effects=full,
        controls=effects[1:].clone(),
        **engine.pairs.statistics_options,
    )
