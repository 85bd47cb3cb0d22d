"""Models: load or wrap one; the interface that every part of tracekit uses."""

from tracekit.models.hooked import HookedModel, embedding_std, model_name
from tracekit.models.loading import load_model

__all__ = ["HookedModel", "embedding_std", "load_model", "model_name"]
