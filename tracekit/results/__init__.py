"""Stores and draws what was measured; nothing here runs a model.

`Comparison.cross_effects` alone measures, by the tracers that it is given.
"""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
