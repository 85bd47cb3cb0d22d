"""Models: load or wrap one; the interface that every part of tracekit uses."""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
