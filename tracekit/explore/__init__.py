"""Exploring by hand: sets of components that are clicked together, and what they do, at once.

`exploration.py` holds the set and what is known of every set, without a browser. `explorer.py`,
which needs anywidget, turns that into plain data. The scripts, the one of the view first, draw it
in a notebook or on a page without a kernel.
"""

from tracekit.explore.exploration import Exploration, Measurement, Prediction

__all__ = ["Exploration", "Measurement", "Prediction"]
