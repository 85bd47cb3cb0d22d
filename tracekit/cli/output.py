"""What commands share: loading, tables in the terminal, files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from tracekit.cli.app import console
from tracekit.errors import FigureExportError

if TYPE_CHECKING:
    from tracekit.results.result import TraceCurve, TraceResult
    from tracekit.tracer import Tracer


def load(source: str, **options: Any) -> Any:
    """Loads a model without the progress bar of transformers, which ignores where it is shown."""
    from transformers.utils import logging

    from tracekit.models.loading import load_model

    logging.disable_progress_bar()
    return load_model(source, **options)


def bars(quiet: bool) -> bool:
    """Progress bars only where they can be redrawn in place."""
    return not quiet and sys.stderr.isatty()


def describe(tracer: Tracer) -> None:
    """What is traced, and what all of it does."""
    console.print(f"{tracer}", highlight=False, soft_wrap=True)
    console.print(f"Effect of all components together: {tracer.full_effect:.4g}")


def print_table(results: Sequence[TraceResult]) -> None:
    """One row per result; the best effect of each comparable group in bold."""

    def group(result: TraceResult) -> tuple[object, ...]:
        measured = (result.metric, result.mean, result.positions, result.registry.describe())
        return result.budget, result.model, result.dataset_fingerprint, *measured

    several = len({group(result)[1:] for result in results}) > 1
    outside = any(result.held_out is not None for result in results)
    names = ["method", "budget", "selected", "effect", "95 % interval"]
    names += ["held out", "95 % interval"] if outside else []
    names += ["passes", "seconds"]
    table = Table(*(["model", "data", "traced"] if several else []), *names)
    for column in table.columns[1 - len(names) :]:
        column.justify = "right"
    for result in results:
        low, high = result.interval
        traced = f"{result.registry.describe()}; {result.positions}; {result.metric}"
        rivals = [other.effect for other in results if group(other) == group(result)]
        leads = len(rivals) > 1 and result.effect == max(rivals)
        table.add_row(
            *([result.model, result.dataset, traced] if several else []),
            result.method,
            "-" if result.budget is None else str(result.budget),
            f"{result.n_selected} of {result.n_components}",
            f"[bold]{result.effect:.4g}[/]" if leads else f"{result.effect:.4g}",
            f"{low:.3g} to {high:.3g}",
            *(_held_out(result) if outside else []),
            f"{result.cost.forward_equivalents:.0f}",
            f"{result.seconds:.1f}",
        )
    console.print(table)
    console.print(
        "Effect: mean over examples, with a bootstrap interval over examples. Passes: forward and "
        "backward, over all data; the budgets of one run share them, and its seconds.",
        style="dim",
    )


def _held_out(result: TraceResult) -> tuple[str, str]:
    """Effect on the examples that were held out, and its interval."""
    if result.held_out_effect is None or result.held_out_interval is None:
        return "-", "-"
    low, high = result.held_out_interval
    return f"{result.held_out_effect:.4g}", f"{low:.3g} to {high:.3g}"


def save(run: TraceResult | TraceCurve, output: Path) -> None:
    """Each result of a run in its folder, as soon as the run is done."""
    from tracekit.results.result import TraceResult

    for result in [run] if isinstance(run, TraceResult) else run:
        size = result.n_selected if result.budget is None else result.budget
        result.save(output / f"{result.method}-{size}")


def write_all(tracer: Tracer, output: Path, shown: TraceResult, extra: dict[str, Any]) -> None:
    """Figures as HTML, and as PNG where a browser is at hand."""
    write_figures({"heatmap": tracer.heatmap(shown), "curve": tracer.curve(), **extra}, output)


def write_figures(drawn: dict[str, Any], output: Path) -> None:
    """Figures as HTML, and as PNG where a browser is at hand."""
    from tracekit import figures

    figures.write_all({output / f"{name}.html": figure for name, figure in drawn.items()})
    try:
        figures.write_all({output / f"{name}.png": figure for name, figure in drawn.items()})
    except FigureExportError as error:
        console.print(f"No PNG figures: {escape(str(error))}", style="dim", highlight=False)
    console.print(f"Figures and results are in {escape(str(output))}/.", highlight=False)
