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

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import tracekit._util.version as _version

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""Module of each public name; `tracekit` for those that are modules themselves."""
_MORE = ("models", "paper", "runs", "tracer")
"""Further modules of the API."""

__version__ = _version.__version__
__all__ = sorted([*_HOMES, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MORE or _HOMES.get(name) == "tracekit":
        return import_module(f"tracekit.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
