"""Curves of results: effect or faithfulness against the number of components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from tracekit._util.deferred import pd
from tracekit._util.markup import interval_text
from tracekit.figures import style
from tracekit.figures.charts import Line, size_lines
from tracekit.results.result import TraceResult
from tracekit.results.tables import check_comparable, curve_data
from tracekit.search import title_of


def effect_curve(
    results: Sequence[TraceResult], *, log_y: bool = False, spreads: bool = False
) -> go.Figure:
    """Effect against number of components: a line per method, and one at the full effect.

    Every line starts at no component and no effect, unless the axis is logarithmic; effects that
    are not positive are then missing. Filled marks are effects on held-out examples, with their
    95 % intervals. Where there are none, `spreads` shows how far every effect moves when the
    examples are resampled (95 %).
    """
    check_comparable(results)
    frame = curve_data(results)
    # The method of the paper is drawn last: where lines coincide it lies on top.
    ranked = enumerate(style.styles(frame["method"]).items())
    drawn = sorted(ranked, key=lambda each: each[1][0].startswith("pgb-ct"))
    draws = {r.series: r.config.get("draws") for r in results if r.method == "random"}
    names = {result.series: result.title for result in results}
    names |= {series: f"best of {n} random sets" for series, n in draws.items() if n}
    n_texts = dict.fromkeys(each.held_out.n_text for each in results if each.held_out)
    keys = {"held out, 95 % interval": "circle"} if n_texts else {}
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
            line = Line(
                name=f"{names[method]}, held out",
                sizes=[size for size, _ in fresh],
                values=[each.mean for _, each in fresh],
                style=look,
                low=[each.interval[0] for _, each in fresh],
                high=[each.interval[1] for _, each in fresh],
                hover=[
                    f"{label}: {each.mean:.4g} ({interval_text(*each.interval)})"
                    for _, each in fresh
                ],
                mode="markers",
                in_legend=False,
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
