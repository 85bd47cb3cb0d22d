"""Curves: effect against number of components."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log10
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from tracekit.figures.style import (
    CONTROL,
    OTHER_SETS,
    STYLES,
    TICK_SIZE,
    data_and_model,
    finish,
    place_title,
    plain,
    styles,
)
from tracekit.results.comparison import check_comparable
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult
from tracekit.search import title_of

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.results.faithfulness import Faithfulness


def curve_data(results: Sequence[TraceResult]) -> pd.DataFrame:
    """The table behind an effect curve: a row per method and number of components.

    Methods that record an effect for each of several sizes (see `TraceResult.records_every_size`)
    contribute all of them. Where two runs of a method measured the same size, the larger effect
    counts.

    Args:
        results: Of one or several methods.

    Returns:
        A DataFrame with the columns `method`, `n_selected` and `effect`.
    """
    import pandas as pd

    rows = []
    for result in results:
        rows.append((result.series, result.n_selected, result.effect))
        if result.records_every_size:
            rows += [
                (result.series, int(record["n_selected"]), float(record["effect"]))
                for record in result.history
            ]
    frame = pd.DataFrame(rows, columns=["method", "n_selected", "effect"])
    frame["method"] = pd.Categorical(frame["method"], categories=frame["method"].unique())
    groups = frame.groupby(["method", "n_selected"], observed=True, as_index=False)
    return groups.agg({"effect": "max"}).astype({"method": str})


def curve(
    results: Sequence[TraceResult], *, log_y: bool = False, spreads: bool = False
) -> go.Figure:
    """Effect against number of components: a line per method, and one at the full effect.

    Every line starts at no component and no effect, unless the axis is logarithmic.

    Args:
        results: Of one or several methods on the same data, components and metric.
        log_y: Whether the effect is logarithmic; effects that are not positive are then missing.
        spreads: Whether every result shows how far its effect moves when the examples are resampled
            (95 %).

    Raises:
        ComparisonError: The results are of different data, models, components or metrics.
    """
    check_comparable(results)
    frame = curve_data(results)
    first = results[0]
    n = first.n_components
    figure = go.Figure()
    styles_by_method = styles(frame["method"])
    names = {result.series: _name(result) for result in results}
    methods = list(dict.fromkeys(frame["method"]))
    # The method of the paper is drawn last: where lines coincide it lies on top.
    for method in sorted(methods, key=lambda method: method == "pgb-ct"):
        points = frame[frame["method"] == method]
        color, symbol, dash = styles_by_method[method]
        sizes, effects = list(points["n_selected"]), list(points["effect"])
        if not log_y:
            _start_at_origin(figure, sizes[0], effects[0], color, dash)
        figure.add_scatter(
            x=sizes,
            y=effects,
            name=names[method],
            legendrank=1000 + methods.index(method),
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={
                # Hollow: what lies below can be seen.
                "color": "white",
                "line": {"color": color, "width": 2},
                "symbol": symbol,
                "size": 9 if len(points) < 14 else 6,
            },
            error_y=_spread_bars(results, method, sizes, effects, color) if spreads else None,
            customdata=[[f"{100 * size / n:.1f} %"] for size in sizes],
            hovertemplate=(
                f"{names[method]}<br>%{{x}} of {n} components (%{{customdata[0]}})"
                f"<br>{first.axis_label}: %{{y:.4g}}<extra></extra>"
            ),
        )
    figure = _finish_curve(figure, first, largest=int(frame["n_selected"].max()))
    if log_y:
        figure.update_yaxes(type="log", rangemode="normal")
        # Annotations of logarithmic axes are positioned by the logarithm.
        figure.update_annotations(y=log10(first.full_effect) if first.full_effect > 0 else 0)
    return figure


def _start_at_origin(figure: go.Figure, size: int, effect: float, color: str, dash: str) -> None:
    """A line from no component and no effect to the first point."""
    figure.add_scatter(
        x=[0, size],
        y=[0, effect],
        mode="lines",
        line={"color": color, "dash": dash, "width": 2},
        hoverinfo="skip",
        showlegend=False,
    )


def _name(result: TraceResult) -> str:
    """What the legend calls a method."""
    title = plain(result.title)
    draws = result.config.get("draws") if result.method == "random" else None
    return f"best of {draws} random sets" if draws else title


def _spread_bars(
    results: Sequence[TraceResult],
    method: str,
    sizes: Sequence[int],
    effects: Sequence[float],
    color: str,
) -> dict[str, Any]:
    """Bars from the effect of each point to the ends of its spread; none where it has none."""
    ends = {(r.n_selected, r.effect): r.spread for r in results if r.series == method}
    ranges = [ends.get((s, e), (e, e)) for s, e in zip(sizes, effects, strict=True)]
    return _bars(effects, [low for low, _ in ranges], [high for _, high in ranges], color)


def _bars(
    values: Iterable[float], low: Iterable[float], high: Iterable[float], color: str
) -> dict[str, Any]:
    """Bars from values to the ends of their ranges."""
    middle = list(values)
    return {
        "array": [top - value for top, value in zip(high, middle, strict=True)],
        "arrayminus": [value - bottom for value, bottom in zip(middle, low, strict=True)],
        "color": color,
        "thickness": 1,
        "width": 3,
    }


def _finish_curve(figure: go.Figure, first: TraceResult, *, largest: int) -> go.Figure:
    """Adds axes, legend, title, and a line at the effect of all components."""
    n = first.n_components
    figure.add_hline(
        y=first.full_effect,
        line={"color": "black", "width": 1.5, "dash": "dot"},
        annotation_text=f"all {n} components",
        # On the right: the curves begin on the left.
        annotation_position="bottom right" if first.full_effect > 0 else "top right",
        annotation_font_size=TICK_SIZE,
    )
    figure.update_xaxes(title_text="number of components", rangemode="tozero")
    figure.update_yaxes(title_text=first.axis_label, exponentformat="power", rangemode="tozero")
    # A point without colour above the line keeps it off the upper axis.
    figure.add_scatter(
        x=[0],
        y=[1.08 * first.full_effect],
        mode="markers",
        marker_opacity=0,
        hoverinfo="skip",
        showlegend=False,
    )
    figure = finish(figure, data_and_model(first), first.registry.describe())
    return _add_share_axis(figure, n, largest)


def _add_share_axis(figure: go.Figure, n: int, largest: int) -> go.Figure:
    """A second axis on top, with the share of all components."""
    step = next((s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 25) if 100 * largest / n <= 6 * s), 20)
    shares = [step * k for k in range(1, int(100 * largest / n / step + 1e-9) + 1)]
    # An axis without a trace is not drawn.
    figure.add_scatter(
        x=[0],
        y=[0],
        xaxis="x2",
        mode="markers",
        marker_opacity=0,
        showlegend=False,
        hoverinfo="skip",
    )
    layout: Any = figure.layout
    figure.update_layout(
        xaxis2={
            "overlaying": "x",
            "matches": "x",
            "side": "top",
            "tickvals": [share * n / 100 for share in shares],
            "ticktext": [f"{share:g} %" for share in shares],
            "tickfont": {"size": TICK_SIZE},
            "ticks": "outside",
            "linecolor": "black",
            "showgrid": False,
            "zeroline": False,
        },
        margin_t=94,
        height=layout.height + 24,
    )
    return place_title(figure)


def pareto_curve(front: ParetoFront) -> go.Figure:
    """Effect of the best sets against their size, with held-out effects and random controls.

    Open triangles are sets of a walk from all components downwards; on hover, how similar they are
    to the best ones. The bars of held-out effects are 95 % confidence intervals, by a bootstrap
    over examples. The band is how far the effect of the best set moves when the examples that it
    was selected on are resampled (95 %). The bars of the control are the range of its draws. The
    numbers are those of `ParetoFront.to_frame`.
    """
    figure, frame, first = go.Figure(), front.to_frame(), front[0]
    for name, columns, (color, symbol, dash) in (
        ("best set", ("effect", "effect_low", "effect_high"), STYLES["local-search"]),
        ("held out", ("held_out", "held_out_low", "held_out_high"), STYLES["greedy"]),
        ("random, same layers", ("control", "control_low", "control_high"), CONTROL),
    ):
        middle, low, high = columns
        rows = frame.dropna(subset=[middle])
        if rows.empty:
            continue
        if middle == "effect":
            figure.add_scatter(
                x=[*rows["size"], *rows["size"][::-1]],
                y=[*rows[high], *rows[low][::-1]],
                fill="toself",
                fillcolor=color,
                opacity=0.2,
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                showlegend=False,
            )
        notes = [""] * len(rows)
        if middle == "effect":
            notes = [f"<br>set of {plain(title_of(method))}" for method in rows["method"]]
        elif middle == "held_out":
            notes = [
                f"<br>Jaccard similarity of the halves: {each:.2f}" for each in rows["stability"]
            ]
        figure.add_scatter(
            x=rows["size"],
            y=rows[middle],
            name=name,
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={"color": color, "symbol": symbol, "size": 8 if len(rows) < 14 else 5},
            error_y=None
            if middle == "effect"
            else _bars(rows[middle], rows[low], rows[high], color),
            customdata=[
                (
                    f"{100 * size / first.n_components:.1f} %",
                    f"{bottom:.4g} to {top:.4g}",
                    note,
                )
                for size, bottom, top, note in zip(
                    rows["size"], rows[low], rows[high], notes, strict=True
                )
            ],
            hovertemplate=(
                f"{name}<br>%{{x}} of {first.n_components} components (%{{customdata[0]}})"
                f"<br>{first.axis_label}: %{{y:.4g}} (%{{customdata[1]}})"
                "%{customdata[2]}<extra></extra>"
            ),
        )
    others = frame.dropna(subset=["from_all"])
    if len(others):
        figure.add_scatter(
            x=others["size"],
            y=others["from_all"],
            name="from all downwards",
            mode="markers",
            marker={"color": OTHER_SETS[0], "symbol": OTHER_SETS[1], "size": 8},
            customdata=others["from_all_similarity"],
            hovertemplate=(
                f"from all components downwards<br>%{{x}} of {first.n_components} components"
                f"<br>{first.axis_label}: %{{y:.4g}}<br>Jaccard similarity to the best set: "
                "%{customdata:.2f}<extra></extra>"
            ),
        )
    return _finish_curve(figure, first, largest=front.largest)


def faithfulness_curve(faithfulness: Faithfulness) -> go.Figure:
    """Faithfulness and completeness of sets against their size, with 95 % bootstrap intervals.

    The numbers are those of `Faithfulness.to_frame`.
    """
    figure, frame = go.Figure(), faithfulness.to_frame().sort_values("size")
    n = faithfulness.n_components
    for name, (color, symbol, dash) in (
        ("faithfulness", STYLES["local-search"]),
        ("completeness", STYLES["greedy"]),
    ):
        low, high = frame[f"{name}_low"], frame[f"{name}_high"]
        figure.add_scatter(
            x=frame["size"],
            y=frame[name],
            name=name,
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={"color": color, "symbol": symbol, "size": 8 if len(frame) < 14 else 5},
            error_y=_bars(frame[name], low, high, color),
            customdata=[
                (f"{100 * size / n:.1f} %", f"{bottom:.3g} to {top:.3g}")
                for size, bottom, top in zip(frame["size"], low, high, strict=True)
            ],
            hovertemplate=(
                f"{name}<br>%{{x}} of {n} components (%{{customdata[0]}})"
                "<br>%{y:.4g} (%{customdata[1]})<extra></extra>"
            ),
        )
    for height in (0, 1):
        figure.add_hline(y=height, line={"color": "black", "width": 1, "dash": "dot"})
    figure.update_xaxes(title_text="number of components", rangemode="tozero")
    figure.update_yaxes(title_text="share of the whole effect")
    title = f"{plain(faithfulness.method)}: faithfulness by {plain(faithfulness.metric)}"
    made = "given sets" if faithfulness.ranking == "sets" else f"{faithfulness.ranking} ranking"
    figure = finish(figure, title, f"{made} of {n} components")
    return _add_share_axis(figure, n, int(frame["size"].max()))
