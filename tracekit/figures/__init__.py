"""Figures: plain numbers and labels -> plotly Figure.

Results draw themselves with these (`result.heatmap()`, `front.curve()`); nothing here knows a
result. Every function returns its figure and shows nothing.
"""

from tracekit.figures.cells import ColorScale, SelectionPanel, draw_panels
from tracekit.figures.charts import Chart, bars, lines, similarities
from tracekit.figures.export import for_print, write, write_all
from tracekit.figures.members import Edge, Members, network, waterfall
from tracekit.figures.pairs import PairMap, pair_map
from tracekit.figures.size_axis import Line, size_lines
from tracekit.figures.strengths import Strength, strengths
from tracekit.figures.style import HEIGHT, WIDTH, data_and_model

__all__ = [
    "HEIGHT",
    "WIDTH",
    "Chart",
    "ColorScale",
    "Edge",
    "Line",
    "Members",
    "PairMap",
    "SelectionPanel",
    "Strength",
    "bars",
    "data_and_model",
    "draw_panels",
    "for_print",
    "lines",
    "network",
    "pair_map",
    "similarities",
    "size_lines",
    "strengths",
    "waterfall",
    "write",
    "write_all",
]
