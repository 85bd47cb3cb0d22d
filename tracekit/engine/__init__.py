"""The engine: masks in, effects and gradients out."""

from tracekit.engine.engine import Cost, Engine
from tracekit.engine.patching import MaskedPatch

__all__ = ["Cost", "Engine", "MaskedPatch"]
