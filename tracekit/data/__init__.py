"""Data: prompt pairs, counterfactuals, and the data sets by name."""

from tracekit._util.stubs import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
