"""The engine: masks in, effects and gradients out.

What is computed when, and shared between what:

1. once per model: which optimisations it supports (`capabilities.py`);
2. once per data set: rows and sources (`layout.py`), the clean log-probabilities, and the
   counterfactual activations at the hook points and positions in use (`counterfactual_cache.py`);
3. once for many sets of components: the layers below the first in which they differ
   (`prefix_tree.py`, run by `set_effects.py`);
4. per mask: a forward pass over the rows (`forward.py`) with the mixed activations (`patching.py`),
   logits only where a token is scored (`batch.py`); and, for a gradient, a backward pass to the
   mask. Parameters are frozen.
"""

from tracekit._util.deferred import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
