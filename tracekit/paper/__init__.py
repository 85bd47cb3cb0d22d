"""Everything about one paper: its tables, figures and models, and published numbers."""

from tracekit._util.stubs import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
