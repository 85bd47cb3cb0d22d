"""Lines and bars straight from a table: the table is what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from tracekit.figures.style import BELOW, finish, shown, styles

if TYPE_CHECKING:
    import pandas as pd


def lines(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    series: str,
    titles: tuple[str, str],
    title: str,
    subtitle: str = "",
    reference: tuple[float, str] | None = None,
    log_x: bool = False,
) -> go.Figure:
    """A line per series.

    Args:
        frame: A row per point.
        x: Column of the abscissa.
        y: Column of the ordinate; rows without a value are left out.
        series: Column that names the lines; methods have their usual colours.
        titles: Of the axes, with units.
        title: Above the figure.
        subtitle: Below the title.
        reference: Height and name of a horizontal line.
        log_x: Whether the abscissa is logarithmic.
    """
    import pandas as pd

    figure = go.Figure()
    for label, (color, symbol, dash) in styles(frame[series]).items():
        points = frame[(frame[series] == label) & frame[y].notna()]
        figure.add_scatter(
            x=points[x],
            y=points[y],
            name=shown(label),
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={"color": color, "symbol": symbol, "size": 8 if len(points) < 14 else 5},
            hovertemplate=(
                f"{shown(label)}<br>{titles[0]}: %{{x:.4g}}<br>{titles[1]}: %{{y:.4g}}"
                "<extra></extra>"
            ),
        )
    if reference is not None:
        figure.add_hline(
            y=reference[0],
            line={"color": "black", "width": 1.5, "dash": "dot"},
            annotation_text=reference[1],
            annotation_position="top left",
            annotation_font_size=13,
        )
    axis: dict[str, Any] = {"rangemode": "tozero"}
    if log_x:
        axis = {"type": "log", "dtick": 1}
    elif pd.api.types.is_integer_dtype(frame[x]) and len(frame) and frame[x].max() <= 16:
        axis["dtick"] = 1 if frame[x].max() <= 8 else 2
    figure.update_xaxes(title_text=titles[0], exponentformat="power", **axis)
    figure.update_yaxes(title_text=titles[1], exponentformat="power", rangemode="tozero")
    figure.update_layout(legend=BELOW, showlegend=True)
    return finish(figure, title, subtitle)


def bars(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    series: str,
    titles: tuple[str, str],
    title: str,
    subtitle: str = "",
    log_y: bool = False,
) -> go.Figure:
    """Groups of bars, one of each series in a group.

    Args:
        frame: A row per bar.
        x: Column that names the groups.
        y: Column of the heights.
        series: Column that names the bars of a group; methods have their usual colours.
        titles: Of the axes, with units.
        title: Above the figure.
        subtitle: Below the title.
        log_y: Whether heights are logarithmic, where they differ by more than a decade.
    """
    patterns = ["", "/", ".", "x", "-", "+"]
    figure = go.Figure()
    for place, (label, (color, _, _)) in enumerate(styles(frame[series]).items()):
        rows = frame[frame[series] == label]
        figure.add_bar(
            x=rows[x],
            y=rows[y],
            name=shown(label),
            marker={
                "color": color,
                "line": {"color": "black", "width": 1},
                "pattern": {
                    "shape": patterns[place % len(patterns)],
                    "bgcolor": color,
                    "fgcolor": "white",
                },
            },
            hovertemplate=(f"%{{x}}<br>{shown(label)}<br>{titles[1]}: %{{y:.4g}}<extra></extra>"),
        )
    figure.update_xaxes(title_text=titles[0], type="category", showgrid=False)
    wide = log_y and len(frame) and frame[y].max() > 10 * frame[y].min() > 0
    scale: dict[str, Any] = {"type": "log", "dtick": 1} if wide else {"rangemode": "tozero"}
    figure.update_yaxes(title_text=titles[1], exponentformat="power", **scale)
    figure.update_layout(legend=BELOW, showlegend=True, barmode="group")
    return finish(figure, title, subtitle)


def similarities(frame: pd.DataFrame, *, title: str, subtitle: str = "") -> go.Figure:
    """A square table of Jaccard similarities, in [0, 1], with the numbers in the cells."""
    labels = [shown(label) for label in frame.columns]
    figure = go.Figure(
        go.Heatmap(
            z=frame.to_numpy(),
            x=labels,
            y=labels,
            colorscale="Blues",
            zmin=0,
            zmax=1,
            texttemplate="%{z:.2f}",
            hovertemplate="%{y} and %{x}<br>Jaccard similarity: %{z:.3f}<extra></extra>",
            colorbar={"title": {"text": "Jaccard", "side": "top"}, "thickness": 14},
        )
    )
    figure.update_xaxes(constrain="domain", showgrid=False)
    figure.update_yaxes(autorange="reversed", scaleanchor="x", constrain="domain", showgrid=False)
    return finish(figure, title, subtitle)
