"""Figures: plain numbers and labels -> plotly Figure.

Results draw themselves with these (`result.heatmap()`, `front.curve()`); nothing here knows a
result. Every function returns its figure and shows nothing.
"""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
