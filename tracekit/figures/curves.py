"""Curves: effect against number of components."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from tracekit.errors import ComparisonError
from tracekit.figures.style import BELOW, CONTROL, STYLES, finish, styles
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult

if TYPE_CHECKING:
    import pandas as pd


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
        rows.append((result.method, result.n_selected, result.effect))
        if result.records_every_size:
            rows += [
                (result.method, int(record["n_selected"]), float(record["effect"]))
                for record in result.history
            ]
    frame = pd.DataFrame(rows, columns=["method", "n_selected", "effect"])
    frame["method"] = pd.Categorical(frame["method"], categories=frame["method"].unique())
    groups = frame.groupby(["method", "n_selected"], observed=True, as_index=False)
    return groups.agg({"effect": "max"}).astype({"method": str})


def check_comparable(results: Sequence[TraceResult]) -> None:
    """Refuses results that answer different questions.

    Raises:
        ComparisonError: Names what differs.
    """
    for name, values in (
        ("models", [result.model for result in results]),
        ("data sets", [result.dataset for result in results]),
        ("examples", [result.dataset_fingerprint for result in results]),
        ("metrics", [result.metric for result in results]),
        ("continuation means", [result.continuation_mean for result in results]),
        ("positions", [result.positions for result in results]),
        ("components", [result.registry for result in results]),
    ):
        others = [value for value in values if value != values[0]]
        if others:
            shown = ""
            if name not in ("examples", "components"):
                shown = f" ({values[0]} and {others[0]})"
            raise ComparisonError(
                f"The results are of different {name}{shown}, so one curve would mix numbers that "
                "mean different things. Draw a curve for each."
            )


def curve(results: Sequence[TraceResult], *, log_y: bool = False) -> go.Figure:
    """Effect against number of components: a line per method, and one at the full effect.

    Args:
        results: Of one or several methods on the same data, components and metric.
        log_y: Whether the effect is logarithmic; effects that are not positive are then missing.

    Raises:
        ComparisonError: The results are of different data, models, components or metrics.
    """
    check_comparable(results)
    frame = curve_data(results)
    first = results[0]
    n = first.n_components
    figure = go.Figure()
    styles_by_method = styles(frame["method"])
    titles = {result.method: result.method_title or result.method for result in results}
    for method in dict.fromkeys(frame["method"]):
        points = frame[frame["method"] == method]
        color, symbol, dash = styles_by_method[method]
        figure.add_scatter(
            x=points["n_selected"],
            y=points["effect"],
            name=titles[method],
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={"color": color, "symbol": symbol, "size": 8 if len(points) < 12 else 5},
            customdata=[[f"{100 * size / n:.1f} %"] for size in points["n_selected"]],
            hovertemplate=(
                f"{titles[method]}<br>%{{x}} of {n} components (%{{customdata[0]}})"
                f"<br>{first.axis_label}: %{{y:.4g}}<extra></extra>"
            ),
        )
    figure = _finish_curve(figure, first)
    if log_y:
        figure.update_yaxes(type="log", rangemode="normal")
        # Annotations of logarithmic axes are positioned by the logarithm.
        figure.update_annotations(y=log10(first.full_effect) if first.full_effect > 0 else 0)
    return figure


def _finish_curve(figure: go.Figure, first: TraceResult) -> go.Figure:
    """Adds axes, legend, title, and a line at the effect of all components."""
    figure.add_hline(
        y=first.full_effect,
        line={"color": "black", "width": 1.5, "dash": "dot"},
        annotation_text=f"all {first.n_components} components",
        annotation_position="top left",
        annotation_font_size=13,
    )
    figure.update_xaxes(title_text="number of components", rangemode="tozero")
    figure.update_yaxes(title_text=first.axis_label, exponentformat="power", rangemode="tozero")
    figure.update_layout(legend=BELOW)
    return finish(figure, f"{first.dataset}, {first.model}", first.registry.describe())


def pareto_curve(front: ParetoFront) -> go.Figure:
    """Effect of the best sets against their size, with held-out effects and random controls.

    The band and the bars of held-out effects are 95 % bootstrap intervals over examples. The bars
    of the control are the range of its draws. The numbers are those of `ParetoFront.to_frame`.
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
        spread = {
            "array": rows[high] - rows[middle],
            "arrayminus": rows[middle] - rows[low],
            "color": color,
            "thickness": 1,
            "width": 3,
        }
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
        stable = rows["stability"] if middle == "held_out" else [None] * len(rows)
        figure.add_scatter(
            x=rows["size"],
            y=rows[middle],
            name=name,
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={"color": color, "symbol": symbol, "size": 8 if len(rows) < 14 else 5},
            error_y=None if middle == "effect" else spread,
            customdata=[
                (
                    f"{100 * size / first.n_components:.1f} %",
                    f"{bottom:.4g} to {top:.4g}",
                    ""
                    if jaccard is None
                    else f"<br>Jaccard similarity of the halves: {jaccard:.2f}",
                )
                for size, bottom, top, jaccard in zip(
                    rows["size"], rows[low], rows[high], stable, strict=True
                )
            ],
            hovertemplate=(
                f"{name}<br>%{{x}} of {first.n_components} components (%{{customdata[0]}})"
                f"<br>{first.axis_label}: %{{y:.4g}} (%{{customdata[1]}})"
                "%{customdata[2]}<extra></extra>"
            ),
        )
    return _finish_curve(figure, first)
