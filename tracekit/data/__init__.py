"""Data: prompt pairs, counterfactuals, and the data sets by name."""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
