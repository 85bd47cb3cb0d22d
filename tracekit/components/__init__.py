"""Components: their kinds, the registry that numbers them, and masks over it."""

from tracekit._util.stubs import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
