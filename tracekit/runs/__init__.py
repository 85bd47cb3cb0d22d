"""Many runs: a grid of jobs, the store that keeps their runs, the workers that do them.

`sweep` runs a grid of one's own, `tracekit.paper.reproduce` the paper's; both on the same store.
`jobs.py` says what a run is, `store.py` keeps it, `worker.py` does it, `dispatch.py` says who does
which and when, `executors.py` where.
"""

from tracekit.runs.grid import Grid
from tracekit.runs.jobs import Job, ModelSource, RunEnvironment
from tracekit.runs.store import Run
from tracekit.runs.sweeps import Runs, load_runs, sweep
from tracekit.runs.worker import Failure

__all__ = [
    "Failure",
    "Grid",
    "Job",
    "ModelSource",
    "Run",
    "RunEnvironment",
    "Runs",
    "load_runs",
    "sweep",
]
