"""Figures: results -> data object -> plotly Figure.

Every figure is returned, never shown, and drawn from a data object that holds all it shows, so
tests and readers can compare numbers instead of pixels. Nothing else imports plotly.
"""

from tracekit.figures.charts import bars, lines, similarities
from tracekit.figures.curves import curve, curve_data, path_curve
from tracekit.figures.export import write, write_all
from tracekit.figures.heatmap import SelectionPanel, heatmap, selection_data
from tracekit.figures.interactions import PairEffects, interaction_heatmap
from tracekit.figures.style import HEIGHT, WIDTH

__all__ = [
    "HEIGHT",
    "WIDTH",
    "PairEffects",
    "SelectionPanel",
    "bars",
    "curve",
    "curve_data",
    "heatmap",
    "interaction_heatmap",
    "lines",
    "path_curve",
    "selection_data",
    "similarities",
    "write",
    "write_all",
]
