# The public names: type checkers read them here, and `__init__.py` too.
from tracekit import components as components
from tracekit import data as data
from tracekit import engine as engine
from tracekit import errors as errors
from tracekit import figures as figures
from tracekit import measure as measure
from tracekit import metrics as metrics
from tracekit import results as results
from tracekit import search as search
from tracekit._util.versions import show_versions as show_versions
from tracekit.components import Component as Component
from tracekit.components.kinds import Kind as Kind
from tracekit.data import PromptPairs as PromptPairs
from tracekit.data import load_dataset as load_dataset
from tracekit.data import load_pairs as load_pairs
from tracekit.engine import Capabilities as Capabilities
from tracekit.engine import Mean as Mean
from tracekit.engine import Noise as Noise
from tracekit.engine import OtherModel as OtherModel
from tracekit.engine import Setup as Setup
from tracekit.metrics import Metric as Metric
from tracekit.models import load_model as load_model
from tracekit.reports import report as report
from tracekit.results import ParetoFront as ParetoFront
from tracekit.results import TraceResult as TraceResult
from tracekit.results import compare as compare
from tracekit.runs import load_runs as load_runs
from tracekit.runs import sweep as sweep
from tracekit.search import Constraint as Constraint
from tracekit.tracer import Tracer as Tracer

__version__: str
