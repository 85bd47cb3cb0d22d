"""Models: load or wrap one; the interface that every part of tracekit uses."""

from tracekit.models.hooked import (
    HookedModel,
    embedding_std,
    foreign_hooks,
    model_name,
    revision_of,
    weights_digest,
)
from tracekit.models.loading import load_model

__all__ = [
    "HookedModel",
    "embedding_std",
    "foreign_hooks",
    "load_model",
    "model_name",
    "revision_of",
    "weights_digest",
]
