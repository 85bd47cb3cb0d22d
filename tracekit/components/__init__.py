"""Components: their kinds, the registry that numbers them, and masks over it."""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
