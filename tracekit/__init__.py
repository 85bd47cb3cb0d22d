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

What most sessions use stands here; everything else in its namespace, such as `tk.search.PGBCT`,
`tk.engine.MaskedPatch` or `tk.results.Faithfulness`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import tracekit._util.version as _version

if TYPE_CHECKING:
    # Type checkers take `X as X` for a public name.
    from tracekit import anatomy as anatomy
    from tracekit import components as components
    from tracekit import data as data
    from tracekit import engine as engine
    from tracekit import errors as errors
    from tracekit import figures as figures
    from tracekit import metrics as metrics
    from tracekit import results as results
    from tracekit import search as search
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
    from tracekit.tracer.planted import planted_model as planted_model

_NAMES = {
    "components": ("Component",),
    "components.kinds": ("Kind",),
    "data": ("PromptPairs", "load_dataset", "load_pairs"),
    "engine": ("Capabilities", "Mean", "Noise", "OtherModel", "Setup"),
    "metrics": ("Metric",),
    "models": ("load_model",),
    "reports": ("report",),
    "results": ("ParetoFront", "TraceResult", "compare"),
    "runs": ("load_runs", "sweep"),
    "search": ("Constraint",),
    "tracer": ("Tracer",),
    "tracer.planted": ("planted_model",),
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
    "results",
    "search",
)
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__version__ = _version.__version__
__all__ = sorted([*_HOMES, *_MODULES, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES or (name.islower() and find_spec(f"tracekit.{name}") is not None):
        return import_module(f"tracekit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    value = getattr(import_module(f"tracekit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
