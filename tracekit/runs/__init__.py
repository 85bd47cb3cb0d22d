"""Many runs: a grid of jobs, the store that keeps their runs, the workers that do them.

`sweep` runs a grid; `run_jobs` runs any list of jobs. Both keep their runs in the same store.
"""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
