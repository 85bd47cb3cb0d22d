"""Figures: results -> data object -> plotly Figure.

Every function returns its figure and shows nothing. A figure is drawn from a data object that holds
all of its numbers, which tests and readers compare instead of pixels. Nothing else imports plotly.
"""

from tracekit.figures.anatomy import member_heatmap, member_network, waterfall
from tracekit.figures.charts import Chart, bars, lines, similarities
from tracekit.figures.curves import curve, curve_data, faithfulness_curve, pareto_curve
from tracekit.figures.export import for_print, write, write_all
from tracekit.figures.heatmap import (
    Color,
    SelectionPanel,
    comparison_heatmap,
    front_heatmap,
    heatmap,
    selection_data,
)
from tracekit.figures.interactions import interaction_heatmap
from tracekit.figures.side_effects import side_effects
from tracekit.figures.style import HEIGHT, WIDTH, data_and_model

__all__ = [
    "HEIGHT",
    "WIDTH",
    "Chart",
    "Color",
    "SelectionPanel",
    "bars",
    "comparison_heatmap",
    "curve",
    "curve_data",
    "data_and_model",
    "faithfulness_curve",
    "for_print",
    "front_heatmap",
    "heatmap",
    "interaction_heatmap",
    "lines",
    "member_heatmap",
    "member_network",
    "pareto_curve",
    "selection_data",
    "side_effects",
    "similarities",
    "waterfall",
    "write",
    "write_all",
]
