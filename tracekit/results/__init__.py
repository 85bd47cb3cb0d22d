"""Stores and draws what was measured; nothing here runs a model."""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
