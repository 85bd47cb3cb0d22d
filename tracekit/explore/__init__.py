"""Exploring by hand: sets of components that are clicked together, and what they do, at once."""

from tracekit.explore.exploration import Exploration, Measurement, Prediction

__all__ = ["Exploration", "Measurement", "Prediction"]
