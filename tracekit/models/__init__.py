"""Models: load or wrap one; the interface that every part of tracekit uses."""

from tracekit._util.stubs import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
