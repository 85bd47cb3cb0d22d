"""Results: what a search found and what it does, and how that is saved."""

from tracekit.results.comparison import Comparison, compare
from tracekit.results.curve import TraceCurve
from tracekit.results.faithfulness import Faithfulness
from tracekit.results.generations import Generations
from tracekit.results.interactions import InteractionGrid
from tracekit.results.intervals import effect_interval
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.pareto_statistics import SizeStatistics
from tracekit.results.result import TraceResult
from tracekit.results.strongest_pairs import StrongestPairs
from tracekit.results.tables import curve_data
from tracekit.results.trade_offs import TradeOff

__all__ = [
    "Comparison",
    "Faithfulness",
    "Generations",
    "InteractionGrid",
    "ParetoFront",
    "SizeStatistics",
    "StrongestPairs",
    "TraceCurve",
    "TraceResult",
    "TradeOff",
    "compare",
    "curve_data",
    "effect_interval",
]
