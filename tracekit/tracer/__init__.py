"""The face people meet: binds a model, a data set, components and a metric, and runs searches."""

from tracekit.tracer import trackers
from tracekit.tracer.tracer import Tracer

__all__ = ["Tracer", "trackers"]
