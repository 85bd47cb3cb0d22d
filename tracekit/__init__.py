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

import tracekit._util.versions as _versions
from tracekit._util.deferred import lazy_exports as _attached

__version__ = _versions.__version__
__getattr__, __dir__, __all__ = _attached(__name__, __file__, more=("models", "runs", "tracer"))
__all__ += ["__version__"]
