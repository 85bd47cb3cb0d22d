"""Results: what a search found and what it does, and how that is saved."""

from tracekit.results.interactions import InteractionGrid
from tracekit.results.pareto_front import SizeStatistics, TracePath
from tracekit.results.result import TraceCurve, TraceResult, effect_interval

__all__ = [
    "InteractionGrid",
    "SizeStatistics",
    "TraceCurve",
    "TracePath",
    "TraceResult",
    "effect_interval",
]
