"""Exploring by hand: sets of components that are clicked together, and what they do, at once.

`exploration.py` holds the sets and what is known of them; `explorer.py` is the widget.
"""

from tracekit.explore.exploration import Exploration, Measurement, Prediction

__all__ = ["Exploration", "Measurement", "Prediction"]
