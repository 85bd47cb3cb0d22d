"""Searches: which small set of components moves the metric most?

`learned/` holds the searches that train a soft mask (PGB-CT, DCM), `local_search.py` the one for
the best set of every size, `baselines/` the rest. Each search is an immutable value with its
options as fields and one method, `search(target, goal, seed)`.
"""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
