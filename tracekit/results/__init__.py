"""Results: what a search found and what it does, and how that is saved."""

from tracekit._util.stubs import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
