"""Curves: effect against number of components."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from tracekit.figures.style import BELOW, CONTROL, STYLES, finish, shown, styles
from tracekit.results.result import TraceResult

if TYPE_CHECKING:
    import pandas as pd

_AT_EVERY_SIZE = ("greedy", "path", "top-k")
"""Methods whose history is an effect for each of several sizes."""


def curve_data(results: Sequence[TraceResult]) -> pd.DataFrame:
    """What an effect curve shows: a row per method and number of components.

    Methods that record an effect at several sizes on their way (greedy, path, top-k) contribute
    each of them; where two runs of a method measured the same size, the larger effect counts.
    """
    import pandas as pd

    rows = []
    for result in results:
        rows.append((result.method, result.n_selected, result.effect))
        if result.method in _AT_EVERY_SIZE:
            rows += [
                (result.method, int(record["n_selected"]), float(record["effect"]))
                for record in result.history
            ]
    frame = pd.DataFrame(rows, columns=["method", "n_selected", "effect"])
    frame["method"] = pd.Categorical(frame["method"], categories=frame["method"].unique())
    groups = frame.groupby(["method", "n_selected"], observed=True, as_index=False)
    return groups.agg({"effect": "max"}).astype({"method": str})


def curve(results: Sequence[TraceResult], *, log_y: bool = False) -> go.Figure:
    """Effect against number of components, a line per method, and the all-components line.

    Args:
        results: Of one or several methods.
        log_y: Whether the effect is logarithmic; effects that are not positive are then missing.
    """
    frame = curve_data(results)
    first = results[0]
    n = first.n_components
    figure = go.Figure()
    looks = styles(frame["method"])
    for method in dict.fromkeys(frame["method"]):
        points = frame[frame["method"] == method]
        color, symbol, dash = looks[method]
        figure.add_scatter(
            x=points["n_selected"],
            y=points["effect"],
            name=shown(method),
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={"color": color, "symbol": symbol, "size": 8 if len(points) < 12 else 5},
            customdata=[[f"{100 * size / n:.1f} %"] for size in points["n_selected"]],
            hovertemplate=(
                f"{shown(method)}<br>%{{x}} of {n} components (%{{customdata[0]}})"
                f"<br>{first.metric_axis}: %{{y:.4g}}<extra></extra>"
            ),
        )
    _add_all_components_line(figure, first)
    if log_y:
        figure.update_yaxes(type="log", rangemode="normal")
        # Annotations of logarithmic axes are placed by the logarithm.
        figure.update_annotations(y=log10(first.full_effect) if first.full_effect > 0 else 0)
    figure.update_layout(legend=BELOW)
    return finish(figure, f"{first.dataset}, {first.model}", first.registry.describe())


def _add_all_components_line(figure: go.Figure, first: TraceResult) -> None:
    """The axes of an effect curve, and the effect of all components."""
    figure.add_hline(
        y=first.full_effect,
        line={"color": "black", "width": 1.5, "dash": "dot"},
        annotation_text=f"all {first.n_components} components",
        annotation_position="top left",
        annotation_font_size=13,
    )
    figure.update_xaxes(title_text="number of components", rangemode="tozero")
    figure.update_yaxes(title_text=first.metric_axis, exponentformat="power", rangemode="tozero")


def path_curve(frame: pd.DataFrame, first: TraceResult) -> go.Figure:
    """Effect of the best sets against their size, with what it takes to believe them.

    The band and the bars of held-out effects are 95 % bootstrap intervals over examples, the bars
    of the control the range of its draws.

    Args:
        frame: A row per size, as `TracePath.to_frame` gives it.
        first: Any result of the path, for titles and the effect of all components.
    """
    figure = go.Figure()
    for name, columns, (color, symbol, dash) in (
        ("best set", ("effect", "effect_low", "effect_high"), STYLES["path"]),
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
                    "" if same is None else f"<br>Jaccard similarity of the halves: {same:.2f}",
                )
                for size, bottom, top, same in zip(
                    rows["size"], rows[low], rows[high], stable, strict=True
                )
            ],
            hovertemplate=(
                f"{name}<br>%{{x}} of {first.n_components} components (%{{customdata[0]}})"
                f"<br>{first.metric_axis}: %{{y:.4g}} (%{{customdata[1]}})"
                "%{customdata[2]}<extra></extra>"
            ),
        )
    _add_all_components_line(figure, first)
    figure.update_layout(legend=BELOW)
    return finish(figure, f"{first.dataset}, {first.model}", first.registry.describe())
