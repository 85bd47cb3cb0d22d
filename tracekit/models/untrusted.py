"""Untrusted models: nothing that a model brings along is run, and nothing is installed for it.

transformers runs code of a model only where it is told to, and torch reads weights from a pickle
without its code. TransformerLens installs a package by pip where the processor of a model for
images or sound lacks it. Here each of these is one error that says what to do.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from tracekit.errors import UnsupportedModelError


def refuse_installation(model: Any, path: object, name: object) -> None:
    """Refuses a model whose bridge would install torchvision, to read its processor."""
    from transformer_lens.utilities.architectures import (
        AUDIO_TEXT_ARCHITECTURES,
        MULTIMODAL_ARCHITECTURES,
    )
    from transformers import AutoProcessor

    has_processor = type(model).__name__ in MULTIMODAL_ARCHITECTURES | AUDIO_TEXT_ARCHITECTURES
    if not has_processor or find_spec("torchvision") is not None:
        return
    with suppress(Exception):  # Whatever it is, the bridge takes it for a missing torchvision.
        AutoProcessor.from_pretrained(path, trust_remote_code=False)
        return
    raise UnsupportedModelError(
        f"The model {name} asks for torchvision to be installed, as models for images or sound do. "
        "Give a model of text alone, or install torchvision yourself."
    )


def refusal(name: object, error: BaseException) -> UnsupportedModelError | None:
    """The error for a model that would run code when it is loaded; None for other failures."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, pickle.UnpicklingError):
            return UnsupportedModelError(
                f"The weights of {name} hold Python objects, which could run code when they are "
                "read. Give weights in safetensors."
            )
        if "trust_remote_code" in str(cause) or "contains custom code" in str(cause):
            return UnsupportedModelError(
                f"The model {name} brings code of its own, which is not run. Give a model whose "
                "architecture transformers has itself, or pass trust_remote_code=True if you trust "
                "that code."
            )
        cause = cause.__cause__ or cause.__context__
    return None
