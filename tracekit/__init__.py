"""Which components of a language model act together? Multi-component causal tracing.

```python
import tracekit as tk

model = tk.load_model("demo")
pairs = tk.load_dataset("demo-bias", model)
tracer = tk.Tracer(model, pairs, components="attention-patterns", metric="odds-ratio")
result = tracer.run(budget=0.2)
tracer.heatmap()
```

Names are imported when first used: `import tracekit` itself loads neither torch nor plotly.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Type checkers take `X as X` for a public name.
    from tracekit import anatomy as anatomy
    from tracekit import components as components
    from tracekit import data as data
    from tracekit import engine as engine
    from tracekit import errors as errors
    from tracekit import figures as figures
    from tracekit import metrics as metrics
    from tracekit import models as models
    from tracekit import paper as paper
    from tracekit import results as results
    from tracekit import runs as runs
    from tracekit import search as search
    from tracekit import tracer as tracer
    from tracekit.anatomy import Explanation as Explanation
    from tracekit.anatomy import SideEffects as SideEffects
    from tracekit.components import Component as Component
    from tracekit.components import ComponentRegistry as ComponentRegistry
    from tracekit.components.kinds import Kind as Kind
    from tracekit.data import GaussianNoise as GaussianNoise
    from tracekit.data import PromptPair as PromptPair
    from tracekit.data import PromptPairs as PromptPairs
    from tracekit.data import load_dataset as load_dataset
    from tracekit.data import load_pairs as load_pairs
    from tracekit.engine import Capabilities as Capabilities
    from tracekit.engine import Cost as Cost
    from tracekit.engine import Engine as Engine
    from tracekit.engine import EngineConfig as EngineConfig
    from tracekit.engine import MaskedPatch as MaskedPatch
    from tracekit.engine import Mean as Mean
    from tracekit.engine import Noise as Noise
    from tracekit.engine import Setup as Setup
    from tracekit.errors import TracekitError as TracekitError
    from tracekit.metrics import ContinuationLogProbs as ContinuationLogProbs
    from tracekit.metrics import Metric as Metric
    from tracekit.models import load_model as load_model
    from tracekit.reports import report as report
    from tracekit.results import Comparison as Comparison
    from tracekit.results import Faithfulness as Faithfulness
    from tracekit.results import InteractionGrid as InteractionGrid
    from tracekit.results import ParetoFront as ParetoFront
    from tracekit.results import SizeStatistics as SizeStatistics
    from tracekit.results import StrongestPairs as StrongestPairs
    from tracekit.results import TraceCurve as TraceCurve
    from tracekit.results import TraceResult as TraceResult
    from tracekit.results import compare as compare
    from tracekit.runs import Run as Run
    from tracekit.runs import Runs as Runs
    from tracekit.runs import load_runs as load_runs
    from tracekit.runs import sweep as sweep
    from tracekit.search import DCM as DCM
    from tracekit.search import PGBCT as PGBCT
    from tracekit.search import Attribution as Attribution
    from tracekit.search import Constraint as Constraint
    from tracekit.search import Exhaustive as Exhaustive
    from tracekit.search import Goal as Goal
    from tracekit.search import Greedy as Greedy
    from tracekit.search import LocalSearch as LocalSearch
    from tracekit.search import MaskIG as MaskIG
    from tracekit.search import PGBCTLocal as PGBCTLocal
    from tracekit.search import Random as Random
    from tracekit.search import Search as Search
    from tracekit.search import Selection as Selection
    from tracekit.search import ShrunkenTopK as ShrunkenTopK
    from tracekit.search import TopK as TopK
    from tracekit.tracer import Tracer as Tracer
    from tracekit.tracer.estimate import Estimate as Estimate
    from tracekit.tracer.planted import PlantedModel as PlantedModel
    from tracekit.tracer.planted import planted_model as planted_model
    from tracekit.tracer.trackers import RunRecord as RunRecord

_NAMES = {
    "anatomy": ("Explanation", "SideEffects"),
    "components": ("Component", "ComponentRegistry"),
    "data": ("GaussianNoise", "PromptPair", "PromptPairs", "load_dataset", "load_pairs"),
    "engine": (
        "Capabilities",
        "Cost",
        "Engine",
        "EngineConfig",
        "MaskedPatch",
        "Mean",
        "Noise",
        "Setup",
    ),
    "errors": ("TracekitError",),
    "tracer.estimate": ("Estimate",),
    "reports": ("report",),
    "components.kinds": ("Kind",),
    "metrics": ("ContinuationLogProbs", "Metric"),
    "models": ("load_model",),
    "tracer.planted": ("PlantedModel", "planted_model"),
    "results": (
        "Comparison",
        "Faithfulness",
        "InteractionGrid",
        "ParetoFront",
        "SizeStatistics",
        "StrongestPairs",
        "TraceCurve",
        "TraceResult",
        "compare",
    ),
    "runs": ("Run", "Runs", "load_runs", "sweep"),
    "search": (
        "Attribution",
        "DCM",
        "Exhaustive",
        "Goal",
        "Greedy",
        "Constraint",
        "LocalSearch",
        "MaskIG",
        "PGBCT",
        "PGBCTLocal",
        "Random",
        "Search",
        "Selection",
        "ShrunkenTopK",
        "TopK",
    ),
    "tracer": ("Tracer",),
    "tracer.trackers": ("RunRecord",),
}
"""Public names, by the module that has them; a test holds the imports above against it."""
_MODULES = (
    "anatomy",
    "components",
    "data",
    "engine",
    "errors",
    "figures",
    "metrics",
    "models",
    "paper",
    "results",
    "runs",
    "search",
    "tracer",
)
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, *_MODULES, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]

try:
    __version__ = version("tracekit")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "unknown"


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tracekit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    value = getattr(import_module(f"tracekit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
