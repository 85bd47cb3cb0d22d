"""Models: load or wrap one, and what every part of tracekit asks of it."""

from tracekit.models.hooked import HookedModel, embedding_std, model_name
from tracekit.models.loading import load_model

__all__ = ["HookedModel", "embedding_std", "load_model", "model_name"]
