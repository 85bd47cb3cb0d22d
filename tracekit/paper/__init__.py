"""Everything about one paper: its tables, figures and models, and published numbers."""

from tracekit.paper.experiment import Experiment, Report, Setting
from tracekit.paper.jobs import ModelAt
from tracekit.paper.reproduction import (
    EXPERIMENTS,
    Reproduction,
    plan,
    reproduce,
    select_experiments,
)
from tracekit.runs.jobs import Job, RunEnvironment
from tracekit.runs.store import Run
from tracekit.runs.worker import Failure

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Failure",
    "Job",
    "ModelAt",
    "Report",
    "Reproduction",
    "Run",
    "RunEnvironment",
    "Setting",
    "plan",
    "reproduce",
    "select_experiments",
]
