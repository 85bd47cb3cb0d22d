"""Results: what a search found and what it does, and how that is saved."""

from tracekit._util.stubs import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
