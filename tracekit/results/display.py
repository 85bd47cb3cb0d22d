"""How results show themselves in a notebook: HTML without scripts, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracekit._util.markup import html_table, html_text
from tracekit.results.picture import selection_svg

if TYPE_CHECKING:
    from tracekit.results.comparison import Comparison
    from tracekit.results.interactions import InteractionGrid
    from tracekit.results.pareto_front import ParetoFront
    from tracekit.results.result import TraceCurve, TraceResult

MOST_ROWS = 12
"""Rows that a table shows."""
_MOST_NAMES = 24


def card(title: str, *parts: str) -> str:
    """A title and parts of HTML below it."""
    return f'<div style="overflow-x:auto"><p><b>{html_text(title)}</b></p>{"".join(parts)}</div>'


def line(text: str) -> str:
    """A line of text."""
    return f"<p>{html_text(text)}</p>"


def result_html(result: TraceResult) -> str:
    """A result: effect, interval, held-out effect, the set and its picture."""
    low, high = result.spread
    facts = [
        f"effect {result.effect:.4g} [{low:.3g}, {high:.3g}]",
        f"{100 * result.share_of_full_effect:.0f} % of all ({result.full_effect:.4g})",
    ]
    if result.held_out_effect is not None and result.held_out_interval is not None:
        low, high = result.held_out_interval
        facts.append(f"held out {result.held_out_effect:.4g} [{low:.3g}, {high:.3g}]")
    facts += [f"{name} {effect:.4g}" for name, effect in result.also.items()]
    facts.append(f"{result.cost.forward_equivalents:.0f} passes, {result.seconds:.1f} s")
    if result.stopped:
        facts.append(f"stopped by {result.stopped}")
    selected = result.binary_mask.nonzero()[:, 0].tolist()
    return card(
        f"{result.title}: {result.n_selected} of {result.n_components} components",
        line(f"{result.dataset} data, {result.model} model, {result.metric}, {result.direction}"),
        line(" \u00b7 ".join(facts)),
        line(_names(result)),
        selection_svg(result.registry, selected),
    )


def curve_html(curve: TraceCurve) -> str:
    """A curve: a row per budget."""
    first = curve[0]
    rows = [[result.budget, *_cells(result)] for result in curve]
    return card(
        f"{first.title}: {first.dataset} data, {first.model} model, {first.metric}",
        _table(["budget", *_COLUMNS], rows),
    )


def front_html(front: ParetoFront) -> str:
    """A front: a row per size, with held-out effects where there are any."""
    last = front[-1]
    held_out = {row.size: row.held_out for row in front.statistics}
    columns = ["selected", "effect", "95 % spread", "of all"]
    columns += ["held out"] if held_out else []
    rows = []
    for result in front:
        value = held_out.get(result.n_selected)
        cells = _cells(result)[:4]
        if held_out:
            cells.append("" if value is None else f"{value:.4g}")
        rows.append(cells)
    stopped = f", stopped by {front.stopped}" if front.stopped else ""
    return card(
        f"Pareto front up to {front.largest} of {last.n_components} components: {last.dataset} "
        f"data, {last.model} model, {last.metric}{stopped}",
        _table(columns, rows),
    )


def comparison_html(comparison: Comparison) -> str:
    """A comparison: a row per result."""
    rows = [
        [label, *_cells(result)]
        for label, result in zip(comparison.labels, comparison.results, strict=True)
    ]
    first = comparison[0]
    title = f"{first.dataset} data, {first.model} model, {first.metric}"
    return card(title, _table(["result", *_COLUMNS], rows))


def grid_html(grid: InteractionGrid) -> str:
    """A grid: the pairs with the largest interactions."""
    columns = ["pair", "effect", "interaction"]
    frame = grid.to_frame().head(MOST_ROWS)
    rows: list[list[str]] = [
        [f"{row.first}, {row.second}", f"{row.effect:.4g}", f"{row.interaction:+.4g}"]
        for row in frame.itertuples()
    ]
    if "p" in frame:
        columns += ["95 % interval", "p"]
        for cells, row in zip(rows, frame.itertuples(), strict=True):
            cells += [f"{row.low:.3g} to {row.high:.3g}", f"{row.p:.2g}"]
    if "kind" in frame:
        columns += ["kind"]
        for cells, kind in zip(rows, frame["kind"], strict=True):
            cells.append(kind)
    n = len(grid.labels)
    return card(
        grid.title or "Interactions",
        line(f"{n * (n - 1) // 2} pairs of {n} components, largest interactions first"),
        html_table(columns, rows),
    )


def tracer_html(facts: Sequence[tuple[str, str]], results: Sequence[TraceResult]) -> str:
    """A tracer: what it traces, and the last dozen of its results.

    Args:
        facts: Names and values.
        results: All of its results.
    """
    rows = [[result.title, *_cells(result)] for result in results[-MOST_ROWS:]]
    table = html_table(["method", *_COLUMNS], rows) if rows else line("No results yet: run().")
    n_earlier = len(results) - len(rows)
    earlier = line(f"and {n_earlier} earlier results") if n_earlier else ""
    return card("Tracer", html_table(["traced", ""], facts), table, earlier)


_COLUMNS = ["selected", "effect", "95 % spread", "of all", "components"]


def _cells(result: TraceResult) -> list[Any]:
    low, high = result.spread
    return [
        result.n_selected,
        f"{result.effect:.4g}",
        f"{low:.3g} to {high:.3g}",
        f"{100 * result.share_of_full_effect:.0f} %",
        _names(result, 6),
    ]


def _names(result: TraceResult, most: int = _MOST_NAMES) -> str:
    labels = result.labels
    names = ", ".join(labels[:most])
    return names + (f", and {len(labels) - most} more" if len(labels) > most else "")


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of at most a dozen rows, from the first to the last."""
    n = len(rows)
    if n <= MOST_ROWS:
        return html_table(columns, rows)
    shown = [rows[round(step * (n - 1) / (MOST_ROWS - 1))] for step in range(MOST_ROWS)]
    return html_table(columns, shown) + line(f"{MOST_ROWS} of {n} rows; to_frame() has all")
