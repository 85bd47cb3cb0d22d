"""Models: load or wrap one, and what every part of tracekit asks of it."""

from tracekit.models.loading import HookedModel, embedding_std, load_model, model_name

__all__ = ["HookedModel", "embedding_std", "load_model", "model_name"]
