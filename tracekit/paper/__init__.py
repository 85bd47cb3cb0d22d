"""Everything about one paper: its tables, figures and models, and published numbers."""

from tracekit.paper.experiment import Experiment, Report, Setting
from tracekit.paper.jobs import Job, ModelAt, Place
from tracekit.paper.reproduction import EXPERIMENTS, Written, chosen, plan, reproduce
from tracekit.paper.run_store import Run
from tracekit.paper.worker import Failure

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Failure",
    "Job",
    "ModelAt",
    "Place",
    "Report",
    "Run",
    "Setting",
    "Written",
    "chosen",
    "plan",
    "reproduce",
]
