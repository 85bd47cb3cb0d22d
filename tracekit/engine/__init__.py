"""The engine: masks in, effects and gradients out.

Capabilities are proven once per model; rows, sources, clean log-probabilities and counterfactual
activations are made once per data set; sets share the layers below the first one in which they
differ; and a mask takes a forward pass, and for a gradient a backward pass to the mask alone.
"""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
