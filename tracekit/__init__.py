"""Which components of a language model act together? Multi-component causal tracing.

```python
import tracekit as tk

model = tk.load_model("demo")
pairs = tk.load_dataset("demo-bias", model)
tracer = tk.Tracer(model, pairs, components="heads", metric="odds-ratio")
result = tracer.run(budget=0.2)
tracer.heatmap()
```

Names are imported when first used: `import tracekit` itself loads neither torch nor plotly.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.components import Component, ComponentRegistry
    from tracekit.data.prompts import GaussianNoise, PromptPair, PromptPairs
    from tracekit.data.registry import load_dataset, load_pairs
    from tracekit.engine.engine import Cost
    from tracekit.engine.patching import MaskedPatch
    from tracekit.errors import TracekitError
    from tracekit.metrics import Metric, Scores
    from tracekit.models.loading import load_model
    from tracekit.results.interactions import InteractionGrid
    from tracekit.results.pareto_front import SizeStatistics, TracePath
    from tracekit.results.result import TraceCurve, TraceResult
    from tracekit.search import (
        DCM,
        PGBCT,
        Attribution,
        Exhaustive,
        Greedy,
        MaskIG,
        PathSearch,
        Random,
        TopK,
    )
    from tracekit.tracer import Tracer

_HOMES = {
    "Attribution": "search",
    "Component": "components",
    "ComponentRegistry": "components",
    "Cost": "engine",
    "DCM": "search",
    "Exhaustive": "search",
    "GaussianNoise": "data",
    "Greedy": "search",
    "InteractionGrid": "results",
    "MaskedPatch": "engine",
    "MaskIG": "search",
    "Metric": "metrics",
    "PGBCT": "search",
    "PathSearch": "search",
    "PromptPair": "data",
    "PromptPairs": "data",
    "Random": "search",
    "Scores": "metrics",
    "SizeStatistics": "results",
    "TopK": "search",
    "TraceCurve": "results",
    "TracePath": "results",
    "TraceResult": "results",
    "Tracer": "tracer",
    "TracekitError": "errors",
    "load_dataset": "data",
    "load_pairs": "data",
    "load_model": "models",
}

__all__ = [
    "DCM",
    "PGBCT",
    "Attribution",
    "Component",
    "ComponentRegistry",
    "Cost",
    "Exhaustive",
    "GaussianNoise",
    "Greedy",
    "InteractionGrid",
    "MaskIG",
    "MaskedPatch",
    "Metric",
    "PathSearch",
    "PromptPair",
    "PromptPairs",
    "Random",
    "Scores",
    "SizeStatistics",
    "TopK",
    "TraceCurve",
    "TracePath",
    "TraceResult",
    "TracekitError",
    "Tracer",
    "__version__",
    "load_dataset",
    "load_model",
    "load_pairs",
]

try:
    __version__ = version("tracekit")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "unknown"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    value = getattr(import_module(f"tracekit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
