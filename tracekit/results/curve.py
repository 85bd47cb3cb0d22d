"""Several results: of one run at several budgets, their curves, and those in folders."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import plotly.graph_objects as go

from tracekit._util.arguments import check_arguments
from tracekit._util.deferred import pd
from tracekit._util.markup import clean_text, interval_text
from tracekit._util.options import as_path, short_repr
from tracekit.errors import BudgetError, ConfigError, TargetNotReachedError, TracekitError
from tracekit.figures import style
from tracekit.figures.charts import Line, size_lines
from tracekit.results import tables
from tracekit.results.display import html_card, line, table_html
from tracekit.results.faithfulness import check_level
from tracekit.results.mib import write_mib_circuits
from tracekit.results.result import TraceResult
from tracekit.results.storage import load_dataclass, save_dataclass
from tracekit.search import title_of
from tracekit.search.base import target_not_reached

CURVE = "curve.json"
"""Name of the list of runs in a folder of several."""
_RUN = "budget-"


class Results(Sequence[TraceResult]):
    """Several results, one after the other."""

    results: tuple[TraceResult, ...]

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, item: Any) -> Any:
        return self.results[item]

    def to_mib(self, folder: str | Path) -> Path:
        """Writes nine circuits of edges to a folder that the MIB benchmark reads, e.g. `ioi_gpt2`.

        For each share below 1, that is the largest set within it, where an edge into a key or
        value counts once for each head that reads it.

        Raises:
            DataFormatError: The sets are not of all edges of a model, none is small enough for a
                share, or the folder has other files that MIB would read.
        """
        return write_mib_circuits(as_path("folder", folder), self.results)

    def faithfulness_curve(self) -> go.Figure:
        """Faithfulness against number of components: a line per method, with 95 % intervals.

        On the held-out examples, if all results have some. The axis of sizes is logarithmic where
        they differ by more than a factor of 20. Nothing is measured.

        Raises:
            NoResultError: The effects of the complements were not measured.
            ComparisonError: The results are of different questions, data or models.
        """
        tables.check_comparable(self.results)
        ascending = sorted(self.results, key=lambda result: result.n_selected)
        if not all(result.held_out for result in ascending):
            ascending = [replace(result, held_out=None) for result in ascending]
        first, lines, settings = ascending[0], list[Line](), list[str]()
        for rank, (series, look) in enumerate(style.styles(r.series for r in self.results).items()):
            of_series = [result for result in ascending if result.series == series]
            scores = [result.faithfulness() for result in of_series]
            line = Line.with_intervals(
                of_series[0].title,
                [result.n_selected for result in of_series],
                [each.faithfulness[0] for each in scores],
                [each.faithfulness_intervals[0] for each in scores],
                label="faithfulness",
                style=look,
                rank=rank,
            )
            lines.append(line)
            settings += [each.setting for each in scores]
        largest = ascending[-1].n_selected
        return size_lines(
            lines,
            n_components=first.n_components,
            largest=largest,
            value_title="faithfulness, 95 % interval",
            title=style.data_and_model(first.dataset, first.model),
            subtitle=style.plain(
                f"{first.registry.describe()}; {' / '.join(dict.fromkeys(settings))}"
            ),
            log_x=0 < 20 * first.n_selected < largest,
        )

    def smallest(
        self, *, effect: float | None = None, faithfulness: float | None = None
    ) -> TraceResult:
        """The smallest set that reaches a mean effect, or that is faithful.

        Sets are chosen by the searched examples, so held-out ones say what the choice is worth.

        Args:
            effect: Mean effect to reach; if it is below 0, effects at most as large count.
            faithfulness: Level in (0, 1), e.g. 0.9: the faithfulness of the set differs from 1 by
                at most 1 - level, and all other components alone are less faithful than the level.

        Raises:
            TargetNotReachedError: None does.
            ConfigError: Not exactly one of both is given, or a level that cannot be.
            ComparisonError: The results are of different questions, data or models.
        """
        if (effect is None) == (faithfulness is None):
            raise ConfigError("Give either effect or faithfulness.")
        results = sorted(self.results, key=lambda result: result.n_selected)
        tables.check_comparable(results)
        if effect is not None:
            sign = -1 if effect < 0 else 1
            for result in results:
                if sign * result.effect >= sign * effect:
                    return replace(result, budget=None, target_effect=effect)
            raise target_not_reached(effect, sign * max(sign * each.effect for each in results))
        level, nearest = check_level(faithfulness), -inf
        for result in results:
            sizes = {"sizes": [result.n_selected], "n_components": result.n_components}
            scores = result.searched.faithfulness(**sizes)
            closeness = 1 - abs(1 - scores.faithfulness[0])
            if closeness >= level and scores.completeness[0] < level:
                return replace(result, run=replace(result.run, faithfulness=level))
            nearest = max(nearest, closeness)
        advice = []
        if not results[0].run.objective.startswith("faithful"):
            advice.append("objective='faithful'")
        if results[-1].n_selected < results[-1].n_components:
            advice.append("a larger budget")
        raise TargetNotReachedError(
            f"No set has a faithfulness within {1 - level:.3g} of 1 and a complement less faithful "
            f"than {level:g}; the nearest faithfulness differs from 1 by {1 - nearest:.3g}. "
            + (f"Search with {' or '.join(advice)}." if advice else "Ask for a lower level.")
        )


@check_arguments
@dataclass(frozen=True, eq=False, repr=False)
class TraceCurve(Results):
    """Results of one run at several budgets, ascending."""

    results: tuple[TraceResult, ...]

    def __repr__(self) -> str:
        first = self.results[0]
        by_budget = ", ".join(f"{r.budget}: {r.effect:.4g}" for r in self.results[:12])
        more = ", ..." if len(self) > 12 else ""
        return clean_text(
            f"TraceCurve({first.method} on {first.dataset}, {first.model_text}, "
            f"{first.setup.intervention}; {first.axis_label} on {first.searched.n_text} searched "
            f"examples by budget {by_budget}{more})"
        )

    def _repr_html_(self) -> str:
        first = self.results[0]
        traced = f"{first.dataset} data, {first.model_text} model, {first.setup.metric}"
        columns = ("budget", *tables.effect_columns(self.results), "components")
        shown = table_html(tables.result_table(self.results).only(*columns))
        return html_card(f"{first.title}: {traced}", shown, line(tables.legend(self.results)))

    def at(self, n_components: int) -> TraceResult:
        """The result for a budget of that many components, which the curve must have."""
        for result in self.results:
            if result.budget == n_components:
                return result
        budgets = ", ".join(str(result.budget) for result in self.results)
        raise BudgetError(f"The curve has no budget of {n_components}. It has {budgets}.")

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per budget, and the columns of `docs/statistics.md`."""
        return tables.result_table(self.results).frame()

    def curve(self) -> go.Figure:
        """Effect on the searched and held-out examples against number of components."""
        return effect_curve(self.results)

    def save(self, folder: str | Path) -> Path:
        """Writes one run folder per budget; returns the folder that holds them."""
        save_run_folders(self.results, Path(folder))
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> TraceCurve:
        """Reads what `save` wrote; errors as of `TraceResult.load`."""
        return cls(load_run_folders(Path(folder)))


def effect_curve(
    results: Sequence[TraceResult], *, log_y: bool = False, spreads: bool = False
) -> go.Figure:
    """Effect against number of components: a line per method, and one at the full effect.

    Every line starts at no component and no effect, unless the axis is logarithmic; effects that
    are not positive are then missing. Filled marks are effects on held-out examples, with their
    95 % intervals. Where there are none, `spreads` shows how far every effect moves when the
    examples are resampled (95 %).
    """
    tables.check_comparable(results)
    frame = tables.curve_data(results)
    # The method of the paper is drawn last: where lines coincide it lies on top.
    ranked = enumerate(style.styles(frame["method"]).items())
    drawn = sorted(ranked, key=lambda each: each[1][0].startswith("pgb-ct"))
    draws = {r.series: r.config.get("draws") for r in results if r.method == "random"}
    names = {result.series: result.title for result in results}
    names |= {series: f"best of {n} random sets" for series, n in draws.items() if n}
    n_texts = dict.fromkeys(each.held_out.n_text for each in results if each.held_out)
    # Of several methods, one entry of the legend stands for the filled marks of all.
    is_single = len(drawn) == 1
    keys = {"filled: held out, 95 % interval": "circle"} if n_texts and not is_single else {}
    if spreads and not n_texts:
        keys["95 % spread"] = "line-ns-open"
    lines, label = [], style.plain(results[0].axis_label)
    for rank, (method, look) in drawn:
        points = frame[frame["method"] == method]
        sizes, effects = list(points["n_selected"]), list(points["effect"])
        ends = {(r.n_selected, r.effect): r.spread for r in results if r.series == method}
        ranges = [ends.get((s, e), (e, e)) for s, e in zip(sizes, effects, strict=True)]
        line = Line(
            name=names[method],
            sizes=sizes,
            values=effects,
            style=look,
            low=[low for low, _ in ranges] if "95 % spread" in keys else None,
            high=[high for _, high in ranges] if "95 % spread" in keys else None,
            hover=[f"{label}: {effect:.4g}" for effect in effects],
            is_hollow=True,
            rank=rank,
        )
        lines.append(line)
        fresh = [(r.n_selected, r.held_out) for r in results if r.series == method and r.held_out]
        if fresh:
            line = Line.with_intervals(
                f"{names[method]}, held out{', 95 % interval' * is_single}",
                [size for size, _ in fresh],
                [each.mean for _, each in fresh],
                [each.interval for _, each in fresh],
                label=label,
                style=look,
                mode="markers",
                in_legend=is_single,
            )
            lines.append(line)
    largest = int(frame["n_selected"].max())
    held_out = f" (held out: {' and '.join(n_texts)})" if n_texts else ""
    return _of_results(lines, results[0], largest, held_out, log_y=log_y, keys=keys)


def _of_results(
    lines: Sequence[Line], first: TraceResult, largest: int, brackets: str = "", **options: Any
) -> go.Figure:
    return size_lines(
        lines,
        n_components=first.n_components,
        largest=largest,
        value_title=style.plain(first.axis_label),
        title=style.data_and_model(first.dataset, first.model),
        subtitle=style.plain(
            f"{first.registry.describe()}; {first.setup.intervention}; on "
            f"{first.searched.n_text} searched examples{brackets}"
        ),
        full=first.full_effect,
        **options,
    )


def pareto_curve(frame: pd.DataFrame, results: Sequence[TraceResult], largest: int) -> go.Figure:
    """Effect of the best sets against their size; see `ParetoFront.curve`, of which `frame` is."""
    lines, first = [], results[0]
    label = style.plain(first.axis_label)

    def add(
        name: str, rows: pd.DataFrame, column: str, look: Any, hover: list[str], **how: Any
    ) -> None:
        sizes, values = list(rows["size"]), list(rows[column])
        lines.append(Line(name=name, sizes=sizes, values=values, style=look, hover=hover, **how))

    for name, column, look in (
        ("best set, searched, 95 % spread", "effect", style.STYLES["local-search"]),
        ("held out, 95 % interval", "held_out", style.SPARE_STYLES[0]),
        ("cross-fitted, 95 % interval", "cross_fitted", style.STYLES["greedy"]),
        ("random, same layers, range", "control", style.CONTROL),
    ):
        rows = frame.dropna(subset=[column])
        if rows.empty:
            continue
        low, high = (list(rows[f"{column}_{end}"]) for end in ("low", "high"))
        hover = []
        for row, least, most in zip(rows.to_dict("records"), low, high, strict=True):
            text = f"{label}: {row[column]:.4g} ({least:.4g} to {most:.4g})"
            if column == "effect":
                text += f"<br>set of {style.plain(title_of(row['method']))}"
            elif column == "cross_fitted":
                text += f"<br>Jaccard similarity of the halves: {row['stability']:.2f}"
            hover.append(text)
        add(name, rows, column, look, hover, low=low, high=high, is_band=column == "effect")
    if "faithfulness" in frame and first.full_effect:
        columns = [frame[f"faithfulness{end}"] for end in ("", "_low", "_high")]
        hover = [
            f"faithfulness {value:.3g} ({interval_text(low, high)})"
            for value, low, high in zip(*columns, strict=True)
        ]
        # Its intervals would lie on those of held-out effects.
        alone = frame.assign(alone=columns[0] * first.full_effect)
        name = "alone" if first.held_out is None else "alone, held out"
        add(name, alone, "alone", style.STYLES["top-k"], hover)
    others = frame.dropna(subset=["from_all"])
    if len(others):
        hover = [
            f"{label}: {effect:.4g}<br>Jaccard similarity to the best set: {same:.2f}"
            for effect, same in zip(others["from_all"], others["from_all_similarity"], strict=True)
        ]
        look = (*style.OTHER_SETS, "solid")
        add("from all downwards", others, "from_all", look, hover, mode="markers")
    fresh = "" if first.held_out is None else f" (held out: {first.held_out.n_text})"
    return _of_results(lines, first, largest, fresh)


@dataclass(frozen=True, kw_only=True)
class CurveRuns:
    """The runs in a folder of several."""

    runs: Mapping[str, str]
    """Digest of each, by the name of its folder."""

    def __post_init__(self) -> None:
        # These are names of folders, so that a damaged file cannot point to another place.
        ends = [name.removeprefix(_RUN) for name in self.runs if name.startswith(_RUN)]
        if not ends or len(ends) < len(self.runs) or not all(map(str.isalnum, ends)):
            raise ValueError(f"the runs are {short_repr(list(self.runs))}, and not folders of runs")


def save_run_folders(results: Sequence[TraceResult], folder: Path) -> str:
    """Writes a run folder for each result and a list of them, whose digest is returned.

    Runs that an earlier list in the folder names, and this one does not, are removed.
    """
    earlier: set[str] = set()
    with suppress(TracekitError):
        earlier |= {*load_dataclass(CurveRuns, folder / CURVE).runs}
    digests: dict[str, str] = {}
    for result in results:
        name = f"{_RUN}{result.n_selected if result.budget is None else result.budget}"
        while name in digests:
            name += "b"
        digests[name] = save_dataclass(result, folder / name / result.FILE)
    digest = save_dataclass(CurveRuns(runs=digests), folder / CURVE)
    for name in earlier - set(digests):
        shutil.rmtree(folder / name, ignore_errors=True)
    return digest


def load_run_folders(folder: Path, digest: str | None = None) -> tuple[TraceResult, ...]:
    """Reads what `save_run_folders` wrote; `digest` is what it returned, where that is known."""
    runs = load_dataclass(CurveRuns, folder / CURVE, digest).runs.items()
    return tuple(load_dataclass(TraceResult, folder / n / TraceResult.FILE, run) for n, run in runs)


@runtime_checkable
class HasCurve(Protocol):
    """A run of a search, as `load_runs` gives them."""

    curve: Any
    """Its results."""


def load_saved(folder: str | Path) -> list[TraceResult]:
    """Reads every result that was saved to a folder, or to one below it.

    They come in the order of their paths, `budget-2` before `budget-10`.

    Raises:
        ConfigError: It is no path.
        ResultNotFoundError, ResultFormatError: As of `TraceResult.load`.
    """
    root = as_path("folder", folder)
    folders = [file.parent for file in root.rglob(TraceResult.FILE)]

    def pieces(path: Path) -> list[tuple[str, int]]:
        return [(text, int(n or 0)) for text, n in re.findall(r"(\D*)(\d*)", str(path))]

    # Without any, the error says what a folder must hold.
    return [TraceResult.load(each) for each in sorted(folders, key=pieces) or [root]]


def is_several(given: object) -> bool:
    """Whether it is a list, a tuple or an iterator, and no text, mapping, array or table."""
    is_one = isinstance(given, (str, bytes, os.PathLike, Mapping)) or hasattr(given, "shape")
    return isinstance(given, Iterable) and not is_one


def all_results(given: Any) -> list[TraceResult]:
    """The results in what a user gives: results, curves, fronts, runs and folders, in any nesting.

    Raises:
        ConfigError: Something else.
        ResultNotFoundError, ResultFormatError: As of `load_saved`.
    """
    if isinstance(given, TraceResult):
        return [given]
    if isinstance(given, (str, os.PathLike)):
        return load_saved(given)  # type: ignore[arg-type]
    for name in ("results", "curve"):
        # Curves, fronts, comparisons, tracers and `load_runs` have results; one run has a curve.
        if hasattr(given, name):
            return all_results(getattr(given, name))
    if is_several(given):
        return [result for each in given for result in all_results(each)]
    raise ConfigError(
        f"A {type(given).__name__} was given where results are wanted: {short_repr(given)}. Give "
        "results, curves, fronts, what tk.load_runs returns, folders that these were saved to, or "
        "a list of such. Scores of other kinds: result.compare_scores(single_effects)."
    )
