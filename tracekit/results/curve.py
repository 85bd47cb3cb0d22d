"""Results of one run at several budgets, and folders of several results."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tracekit._util.arguments import check_arguments
from tracekit._util.markup import clean_text
from tracekit._util.options import short_repr
from tracekit.errors import BudgetError, TracekitError
from tracekit.results.curve_figures import effect_curve
from tracekit.results.display import html_card, line, table_html
from tracekit.results.result import Results, TraceResult
from tracekit.results.storage import load_dataclass, save_dataclass
from tracekit.results.tables import effect_columns, legend, result_table

CURVE = "curve.json"
"""Name of the list of runs in a folder of several."""
_RUN = "budget-"


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
        columns = ("budget", *effect_columns(self.results), "components")
        shown = table_html(result_table(self.results).only(*columns))
        return html_card(f"{first.title}: {traced}", shown, line(legend(self.results)))

    def at(self, n_components: int) -> TraceResult:
        """The result for a budget of that many components, which the curve must have."""
        for result in self.results:
            if result.budget == n_components:
                return result
        budgets = ", ".join(str(result.budget) for result in self.results)
        raise BudgetError(f"The curve has no budget of {n_components}. It has {budgets}.")

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per budget, and the columns of `docs/statistics.md`."""
        return result_table(self.results).frame()

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
