"""Figures: plain numbers and labels -> plotly Figure.

Results draw themselves with these (`result.heatmap()`, `front.curve()`); nothing here knows a
result. Every function returns its figure and shows nothing.
"""

from tracekit._util.stubs import attached

# A function that has the name of its module takes its place.
from tracekit.figures.strengths import strengths  # noqa: F401

__getattr__, __dir__, __all__ = attached(__name__, __file__)
