"""Verification of a loaded model: its weights are complete, and the bridge computes its numbers.

Two faults give wrong numbers without an error. Weights that a checkpoint lacks are filled in at
random by transformers, which says so in its log only. And a bridge may compute something else than
the Hugging Face model that it wraps (it ignores GPT-2's `scale_attn_weights`, say). Every check of
hooks compares the bridge with itself and cannot see that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.errors import UnsupportedModelError
from tracekit.models.hooked import HookedModel, device_of, dtype_of

_TOKENS = 8
_LISTED = 5
"""Tensors that an error names at most."""
_LOCK = RLock()


@dataclass
class LoadingRecord:
    """What was seen while transformers loaded a model."""

    missing: list[str] = field(default_factory=list)
    """Names of weights that the checkpoint lacks."""
    reshaped: list[str] = field(default_factory=list)
    """Names of weights that have another shape there than the configuration says."""
    logits: Float[Tensor, "pos d_vocab"] | None = None
    """Logits of the Hugging Face model on a few random tokens; None if it was not loaded here."""


@contextmanager
def recorded_loading() -> Iterator[LoadingRecord]:
    """Within the block, loads by transformers are recorded; one block at a time in a process."""
    from transformers import PreTrainedModel

    record = LoadingRecord()
    original = vars(PreTrainedModel)["from_pretrained"]

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        wants_info = kwargs.pop("output_loading_info", False)
        # Reshaped weights are refused below, by their names.
        kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = original.__func__(cls, *args, **kwargs)
        record.reshaped += sorted(str(entry[0]) for entry in info["mismatched_keys"])
        record.missing += sorted({*map(str, info["missing_keys"])} - {*record.reshaped})
        record.logits = reference_logits(model)
        return (model, info) if wants_info else model

    with _LOCK:
        PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # type: ignore[method-assign]
        try:
            yield record
        finally:
            PreTrainedModel.from_pretrained = original  # type: ignore[method-assign]


def reference_logits(model: Any) -> Float[Tensor, "pos d_vocab"] | None:
    """Logits of a Hugging Face model on a few random tokens; None if it has no weights yet."""
    parameter = next(model.parameters())
    if parameter.is_meta:
        return None
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            vocabulary = int(model.config.get_text_config().vocab_size)
            return model(_tokens(vocabulary).to(parameter.device)).logits[0].float().cpu()
    finally:
        model.train(was_training)


def check_complete(record: LoadingRecord, source: object) -> None:
    """Refuses a checkpoint that lacks weights, or holds them in other shapes.

    Raises:
        UnsupportedModelError: Names the weights.
    """
    if record.missing:
        raise UnsupportedModelError(
            f"The weights of {source} lack {_listed(record.missing)}, which transformers would "
            "fill in at random. Give a directory with all weights under the names of its "
            "architecture."
        )
    if record.reshaped:
        raise UnsupportedModelError(
            f"The weights of {source} do not have the shapes that its config.json says: "
            f"{_listed(record.reshaped)}. Give weights and configuration of the same model."
        )


def _listed(names: list[str]) -> str:
    n_more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {n_more} more" if n_more > 0 else "")


def check_same_numbers(
    model: HookedModel, logits: Float[Tensor, "pos d_vocab"] | None, source: object
) -> None:
    """Refuses a bridge whose logits differ from those of the model that it wraps.

    Raises:
        UnsupportedModelError: They do; the message says by how much.
    """
    if logits is None:
        return
    tokens = _tokens(logits.shape[-1]).to(device_of(model))
    with torch.no_grad():
        bridged = model.run_with_hooks(tokens, fwd_hooks=[])[0].float().cpu()
    scale = logits.abs().max()
    tolerance = 1e-3 if dtype_of(model) in (torch.float32, torch.float64) else 0.05
    difference = (bridged - logits).abs().max()
    if not difference <= tolerance * scale:
        raise UnsupportedModelError(
            f"TransformerLens computes other logits than {source} itself: they differ by up to "
            f"{difference:.3g}. Its configuration has a setting that TransformerLens ignores; use "
            "a checkpoint without it."
        )


def _tokens(vocabulary: int) -> Int[Tensor, "row pos"]:
    """The same random tokens every time, on the CPU."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (1, _TOKENS), generator=generator)
