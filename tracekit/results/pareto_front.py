"""The Pareto front: the best set found for every size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.arguments import check_arguments
from tracekit._util.deferred import pd
from tracekit._util.markup import clean_text
from tracekit._util.options import check_keywords
from tracekit._util.table import Table
from tracekit.components import ComponentSet
from tracekit.engine.cost import Cost
from tracekit.errors import BudgetError, NoResultError
from tracekit.figures.cells import BLUES, ColorScale, draw_panels
from tracekit.figures.style import data_and_model, plain
from tracekit.results.curve import Results, load_run_folders, pareto_curve, save_run_folders
from tracekit.results.display import html_card, line, table_html
from tracekit.results.faithfulness import own_and_missing_effects
from tracekit.results.panels import panels_of
from tracekit.results.result import TraceResult
from tracekit.results.storage import NOT_SAVED, load_dataclass, save_dataclass
from tracekit.results.tables import effect_columns, legend, result_table
from tracekit.search.base import as_count
from tracekit.search.targets import EffectAndComplement

_FRONT = "pareto.json"
_TICKS_OF_SIZES = 3
"""Steps between the sizes that a bar of sizes names, at most."""
_STATISTICS = (
    "Cross-fitted: sets that one half of the searched examples selects, measured on the other. "
    "Random: as many components of every kind in every layer, on the searched examples. Stability: "
    "Jaccard similarity of the sets that the halves select."
)
"""What the words for statistics mean."""


@dataclass(frozen=True, kw_only=True)
class SizeStatistics:
    """Statistics of the sets of one size."""

    size: int
    """Largest number of components."""
    cross_fitted: float | None = None
    """Mean effect of the sets that each half of the searched examples selects, on the other half;
    None with fewer than 4 examples."""
    cross_fitted_low: float | None = None
    cross_fitted_high: float | None = None
    """Its 95 % confidence interval, by a studentised bootstrap over examples; None with fewer than
    three independent ones."""
    cross_fitted_error: float | None = None
    """Its standard error over examples."""
    cross_fitted_by: Mapping[str, float] | None = None
    """Mean cross-fitted effect of each search that the front chose from, by name."""
    control: float | None = None
    """Mean effect of random sets with as many components of every kind in every layer; None if
    there is only one such set."""
    control_low: float | None = None
    control_high: float | None = None
    """Least and greatest of them."""
    controls: int = 0
    """Other sets of this form, of which up to five were drawn."""
    control_overlap: float | None = None
    """Share of the components of the front's set that such a set has too, on average."""
    stability: float | None = None
    """Jaccard similarity, in [0, 1], of the sets that the two halves selected."""
    from_all: float | None = None
    """Mean effect of the set found from all components downwards."""
    from_all_similarity: float | None = None
    """Jaccard similarity, in [0, 1], of this set and the front's."""
    from_all_gain: float | None = None
    """How much better this set is than the front's by what was maximised, as a share of the
    latter; below 0 where it is worse."""


@check_arguments
@dataclass(frozen=True, eq=False)
class ParetoFront(Results):
    """The best set found for every budget.

    As a sequence it holds a `TraceResult` for every size at which a set of the joint search does
    better than all smaller ones, ascending. By default (`objective="auto"`) each is that set, or
    the components that do most alone, whichever holds better on examples that had no part in the
    selection; its `method` says which. If the latter do, and of up to 384 components, every size at
    which all components do something alone has a result. `at` and `smallest` answer questions.
    """

    results: tuple[TraceResult, ...] = field(default=(), metadata=NOT_SAVED)
    largest: int = 0
    """Largest budget asked for."""
    ranking: tuple[int, ...] = ()
    """All components, as flat indices: those that are in the best sets of most sizes first."""
    statistics: tuple[SizeStatistics, ...] = ()
    """At some of the sizes, ascending; empty if they were not asked for."""
    statistics_cost: Cost = field(default_factory=Cost)
    """Passes that halves of the examples and the statistics took, in passes over all examples."""
    trade_offs: tuple[TradeOff, ...] = ()
    """With `objective="faithful"`, at every size of the front the sets from the largest effect to
    the most faithful one that no other measured set beats in both."""
    curve_sha256: str = ""
    """Digest of the list of its runs, where it was saved."""

    @classmethod
    def of(
        cls, results: Sequence[TraceResult], largest: int, *, order: Sequence[int]
    ) -> ParetoFront:
        """A front that ranks components by the share of budgets whose set holds them.

        Results ascend by size up to the `largest` budget; `order` ranks components that tie.
        """
        n_budgets = torch.zeros(results[0].n_components)
        sizes = [result.n_selected for result in results]
        # A set serves all budgets up to the next size.
        for result, following in zip(results, [*sizes[1:], largest + 1], strict=True):
            n_budgets[result.binary_mask.cpu()] += following - result.n_selected
        ranking = sorted(order, key=lambda i: -n_budgets[i].item())
        return cls(tuple(results), largest, tuple(ranking))

    def at(self, n_components: int | float) -> TraceResult:
        """The best set of at most so many components.

        The best is the set with the largest mean effect (the least where effects below 0 were
        sought); where another objective than the mean was maximised, the largest set, since the
        objective improves with every size of the front.

        Args:
            n_components: A count (int) or a share of all components (float), rounded down.

        Raises:
            BudgetError: Below one component, or beyond the front.
        """
        count = as_count(n_components, self.results[0].n_components)
        if count > self.largest:
            raise BudgetError(
                f"The front goes up to {self.largest} components, and {count} were asked for. "
                "Search it with a larger max_budget."
            )
        if count < self.sizes[0]:
            raise BudgetError(
                f"The smallest set of the front has {self.sizes[0]} components, and {count} were "
                "asked for. Ask for more."
            )
        fitting = [result for result in self.results if result.n_selected <= count]
        best = fitting[-1]
        if self.results[0].run.objective == "mean":
            best = max(fitting, key=lambda result: self.sign * result.effect)
        return replace(best, budget=count)

    @property
    def sign(self) -> int:
        """-1 where sets with effects below 0 were sought, else 1."""
        return -1 if self.results[0].run.sign == "negative" else 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of its sets, ascending."""
        return tuple(result.n_selected for result in self.results)

    @property
    def effects(self) -> Float[Tensor, " budget"]:
        """Mean effect of the set that answers 1, 2, ... components (see `at`).

        It falls only if another objective than the mean was maximised. Below the smallest set it is
        minus infinity.
        """
        effects = torch.full((self.largest,), -torch.inf)
        for size in self.sizes:
            effects[size - 1 :] = self.at(size).effect
        return effects

    @property
    def stopped(self) -> str | None:
        """Why the search ended early; None if it did not."""
        return self.results[0].stopped

    def best_size(self) -> int:
        """The smallest size that holds as well as any, by the rule of one standard error.

        Of the sizes at which cross-fitted effects were measured, the smallest whose own lies
        within one standard error of the largest.

        Raises:
            NoResultError: There are none.
        """
        rows = [row for row in self.statistics if row.cross_fitted is not None]
        if not rows:
            raise NoResultError(
                "The front has no cross-fitted effects to choose a size by. They need "
                "statistics=True and at least 4 examples."
            )
        strengths = [self.sign * (row.cross_fitted or 0.0) for row in rows]
        best = strengths.index(max(strengths))
        least = strengths[best] - (rows[best].cross_fitted_error or 0.0)
        sizes = zip(rows, strengths, strict=True)
        return min(row.size for row, strength in sizes if strength >= least)

    def curve(self) -> go.Figure:
        """Effect of the best sets against their size, with cross-fitted effects and controls.

        The line *alone* is what each set does by itself: its faithfulness times the effect of all
        components, on the held-out examples if there are some; its intervals are in `to_frame`.
        Where it lies below the effect, the set and all others overlap.

        Open triangles are sets of a walk from all components downwards; on hover, how similar they
        are to the best ones. Cross-fitted effects are of sets that one half of the examples chose,
        measured on the other; where the tracer has held-out examples, another line is of the best
        sets on these. The bars of both are 95 % confidence intervals, by a bootstrap over examples.
        The band is how far the effect of the best set moves when the examples that it was selected
        on are resampled (95 %). The bars of the control are the range of its draws.
        """
        return pareto_curve(self.to_frame(), self.results, self.largest)

    @check_keywords
    def heatmap(self, *, fold: bool = False) -> go.Figure:
        """From which size on each component is in the best sets.

        Colour is the smallest size whose best set holds the component; best sets are not nested, so
        it may be missing again from larger ones, which the hover text says. Kinds with many
        components a layer show the share of them in the largest set. With `fold`, a run of layers
        without such components is one row.
        """
        last, first = self.results[-1], self.sizes[0]
        members = torch.stack([result.binary_mask for result in self.results])
        sizes = torch.tensor(self.sizes)
        enters = torch.where(members, sizes[:, None], torch.iinfo(torch.long).max).amin(0).tolist()
        counts = members.sum(0).tolist()
        values = [float(size) if n else None for size, n in zip(enters, counts, strict=True)]
        texts = [
            f"in the best sets of {n} of {len(sizes)} sizes" + (f", from {size} on" if n else "")
            for n, size in zip(counts, enters, strict=True)
        ]
        span = last.n_selected - first
        steps = min(_TICKS_OF_SIZES, span)
        ticks = {round(first + span * step / max(1, steps)) for step in range(steps + 1)}
        scale = ColorScale(
            BLUES, first, first + max(span, 1), "enters<br>at size", ticks=tuple(sorted(ticks))
        )
        return draw_panels(
            panels_of(last.registry, last.binary_mask, values=values, texts=texts),
            scale=scale,
            outlines=False,
            title=f"Pareto front: {data_and_model(last.dataset, last.model)}",
            subtitle=f"sets of up to {self.largest} of {last.n_components} "
            f"{plain('+'.join(last.registry.kinds))}; {plain(last.setup.intervention)}; "
            f"{plain(last.searched.metric)}, {last.searched.n_text} searched examples",
            fold=fold,
            marks="in the largest set",
            blank="in no set",
        )

    def trade_off_frame(self) -> Any:
        """A pandas DataFrame with a row for each of `trade_offs`.

        Columns: `size`, `effect`, `faithfulness`, `completeness`, `components` (labels).
        """
        registry = self.results[0].registry
        names = ("size", "effect", "faithfulness", "completeness", "components")
        rows = []
        for each in self.trade_offs:
            labels = " ".join(map(registry.label, each.members))
            rows.append({**asdict(each), "size": len(each.members), "components": labels})
        return pd.DataFrame(rows, columns=names)

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per size; statistics where they were taken.

        Columns: those of `docs/statistics.md` and of `SizeStatistics`, `cross_fitted_by_METHOD` for
        each search that the front chose from; further metrics; `method`, whose set it is.
        """
        frame = self.table().frame()
        held_out = ("held_out", "held_out_low", "held_out_high", "held_out_share")
        names = [n for n in (*SizeStatistics.__annotations__, *held_out) if n in frame]
        return frame.astype({name: float for name in names if name != "size"})

    def rows(self) -> list[dict[str, Any]]:
        """The rows of `to_frame`, with the components in lists."""
        return self.table().entries()

    def table(self) -> Table:
        """A row per size; see `to_frame`."""
        by_size = {row.size: asdict(row) for row in self.statistics}
        rows = []
        for size in self.sizes:
            row = {**dict.fromkeys(SizeStatistics.__annotations__), **by_size.get(size, {})}
            by = row.pop("cross_fitted_by") or {}
            rows.append({**row, **{f"cross_fitted_by_{name}": value for name, value in by.items()}})
            rows[-1]["size"] = size
        titles = {"cross_fitted": "effect, cross-fitted", "control": "effect, random"}
        size, *statistics = Table.of_rows(rows, titles, {"stability": ".2f"}, joined=True).columns
        results = result_table(self.results).without("budget", "selected", "passes", "seconds")
        return Table([size, *results.columns, *statistics])

    def shown(self) -> Table:
        """The columns of `table` that readers see."""
        _, *effects = effect_columns(self.results)
        statistics = ("cross_fitted", "control", "stability") if self.statistics else ()
        further = self.results[0].extra_effects
        return self.table().only("size", *effects, *statistics, "method", *further, brief=True)

    @property
    def legend(self) -> str:
        """What the words of its columns mean."""
        return f"{legend(self.results)} {_STATISTICS}" if self.statistics else legend(self.results)

    def __repr__(self) -> str:
        last, stopped = self.results[-1], f", stopped by {self.stopped}" if self.stopped else ""
        return clean_text(
            f"ParetoFront({last.dataset}, {last.model_text}, {last.setup.intervention}: budgets up "
            f"to {self.largest} of {last.n_components} components, {last.axis_label} "
            f"{self.results[0].effect:.4g} to {last.effect:.4g} (all: {last.full_effect:.4g}), "
            f"{last.searched.n_text} searched{stopped})"
        )

    def _repr_html_(self) -> str:
        last, stopped = self.results[-1], f", stopped by {self.stopped}" if self.stopped else ""
        title = (
            f"Pareto front up to {self.largest} of {last.n_components} components: {last.dataset} "
            f"data, {last.model_text} model, {last.setup.metric}{stopped}"
        )
        return html_card(title, table_html(self.shown()), line(self.legend))

    def save(self, folder: str | Path) -> Path:
        """Writes one run folder per size, and what belongs to the front; returns the folder."""
        folder = Path(folder)
        digest = save_run_folders(self.results, folder)
        save_dataclass(replace(self, curve_sha256=digest), folder / _FRONT)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> ParetoFront:
        """Reads what `save` wrote; errors as of `TraceResult.load`."""
        folder = Path(folder)
        front = load_dataclass(cls, folder / _FRONT)
        return replace(front, results=load_run_folders(folder, front.curve_sha256))


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """A set that no measured set of its size beats in both; on the examples of the search."""

    members: ComponentSet
    """Flat indices of its components."""
    effect: float
    """Mean effect."""
    faithfulness: float
    completeness: float

    @property
    def distance(self) -> float:
        """How far it is from faithful."""
        return abs(1 - self.faithfulness)


def trade_offs(
    measured: Mapping[ComponentSet, EffectAndComplement],
    sizes: Iterable[int],
    *,
    full: float,
    is_denoising: bool,
    sign: int = 1,
) -> tuple[TradeOff, ...]:
    """The sets of each of some sizes that none beats in both, the strongest by a sign first."""
    by_size: dict[int, list[TradeOff]] = {size: [] for size in sorted(sizes)}
    direction = "denoising" if is_denoising else "noising"
    for members, means in measured.items():
        if len(members) in by_size:
            own, others = means.effect / full, means.complement / full
            faithful, complete = own_and_missing_effects(own, others, 1, direction)
            each = TradeOff(
                members=members, effect=means.effect, faithfulness=faithful, completeness=complete
            )
            by_size[len(members)].append(each)
    kept = []
    for of_size in by_size.values():
        nearest = float("inf")
        for each in sorted(of_size, key=lambda each: (-sign * each.effect, each.distance)):
            if each.distance < nearest:
                kept.append(each)
                nearest = each.distance
    return tuple(kept)
