"""Measures what sets do.

`question.py` binds a setup to a model and examples; every other module here takes such a
`Question`, and says in its first line what it measures. `tracekit.results` stores and draws what
most of them return; those that explain a set have the tables that they return beside them.
"""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
