"""Verification of a loaded model: its weights are complete, and the bridge computes its numbers.

Two faults give wrong numbers without an error. Weights that a checkpoint lacks are filled in at
random by transformers, which says so in its log only. And a bridge may compute something else than
the Hugging Face model that it wraps (it ignores GPT-2's `scale_attn_weights`, say). Every check of
hooks compares the bridge with itself and cannot see that.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock, get_ident
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.errors import ModelWarning, UnsupportedModelError
from tracekit.models.hooked import HookedModel, device_of, is_exact

_TOKENS = 8
_LISTED = 5
"""Tensors that an error names at most."""
_FORBIDDEN = 1e4
"""Logits beyond this stand for tokens that the model never predicts."""
_LOCK = RLock()


@dataclass(frozen=True, eq=False)
class Reference:
    """Logits that a Hugging Face model computed before it was wrapped."""

    tokens: Int[Tensor, "row pos"]
    logits: Float[Tensor, "pos d_vocab"]


@dataclass
class LoadingRecord:
    """Logits recorded while transformers loaded a model."""

    reference: Reference | None = None
    """None if no model was loaded, or it could not be run alone."""


@contextmanager
def verified_loading(name: object, device: torch.device | None) -> Iterator[LoadingRecord]:
    """Within the block, loads of this thread are recorded, and refused if weights are missing.

    `device` is that of the model; None: where it is loaded to.
    """
    from transformers import PreTrainedModel

    record = LoadingRecord()
    original = vars(PreTrainedModel)["from_pretrained"]
    owner = get_ident()

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if get_ident() != owner:
            return original.__func__(cls, *args, **kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        # Reshaped weights are refused here, by their names.
        kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = original.__func__(cls, *args, **kwargs)
        _check_complete(model, info, name)
        if device is not None and not getattr(model, "is_quantized", False):
            # Where it will be wrapped, so that both are computed by the same kernels; but those of
            # mps are to be trusted only where they agree with the CPU's.
            if device.type == "mps":
                record.reference = reference_of(model, name)
            model.to(device)
        record.reference = record.reference or reference_of(model, name)
        return (model, info) if wants_info else model

    with _LOCK:
        PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # type: ignore[method-assign]
        try:
            yield record
        finally:
            PreTrainedModel.from_pretrained = original  # type: ignore[method-assign]


def _check_complete(model: Any, info: Mapping[str, Any], name: object) -> None:
    """Refuses a checkpoint that lacks weights, or holds them in other shapes."""
    # Releases of transformers list names, or tuples of a name and both shapes.
    mismatched = (
        entry if isinstance(entry, str) else entry[0] for entry in info["mismatched_keys"]
    )
    reshaped = sorted(set(mismatched))
    # Buffers are computed; tied parameters are listed under one of their names.
    parameters = {name for name, _ in model.named_parameters()}
    missing = sorted(set(info["missing_keys"]) & parameters - set(reshaped))
    if missing:
        raise UnsupportedModelError(
            f"The weights of {name} lack {_listed(missing)}, which transformers would fill in "
            "at random. Give a directory with all weights under the names of its architecture."
        )
    if reshaped:
        raise UnsupportedModelError(
            f"The weights of {name} do not have the shapes that its config.json says: "
            f"{_listed(reshaped)}. Give weights and configuration of the same model."
        )


def _listed(names: list[str]) -> str:
    n_more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {n_more} more" if n_more > 0 else "")


def reference_of(model: Any, name: object) -> Reference | None:
    """Logits on a few random tokens; None without weights or, with a warning, if it cannot run."""
    parameter = next(model.parameters())
    if parameter.is_meta:
        return None
    for module in model.modules():
        # bitsandbytes' own kernel for 4-bit weights on a CPU has no gradient, and the first pass
        # without one packs the weights for it for good.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        config = model.config.get_text_config()
        context = getattr(config, "max_position_embeddings", None) or _TOKENS
        generator = torch.Generator().manual_seed(0)
        shape = (1, min(_TOKENS, int(context)))
        tokens = torch.randint(int(config.vocab_size), shape, generator=generator)
        with torch.no_grad():
            logits = model(tokens.to(parameter.device)).logits[0].float().cpu()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"{name} cannot be run before it is wrapped ({first}), so its logits are not "
            "compared with those that TransformerLens computes.",
            ModelWarning,
            stacklevel=2,
        )
        return None
    finally:
        for module, mode in was_training.items():
            module.training = mode
    return Reference(tokens, logits)


def check_same_numbers(model: HookedModel, reference: Reference | None, name: object) -> None:
    """Refuses a bridge whose logits differ from those of the model that it wraps."""
    if reference is None:
        return
    with torch.no_grad():
        tokens = reference.tokens.to(device_of(model))
        bridged = model.run_with_hooks(tokens, fwd_hooks=[])[0].float().cpu()
    expected = reference.logits[..., : bridged.shape[-1]]
    bridged = bridged[..., : expected.shape[-1]]
    is_read = expected.abs() < _FORBIDDEN
    if not is_read.any():
        return
    tolerance = 1e-3 if is_exact(model) and device_of(model).type == "cpu" else 0.05
    difference = (bridged - expected)[is_read].abs().max()
    if not difference <= tolerance * expected[is_read].abs().max():
        raise UnsupportedModelError(
            f"TransformerLens computes other logits than {name} itself: they differ by up to "
            f"{difference:.3g}. Its configuration has a setting that TransformerLens ignores; use "
            "a checkpoint without it."
        )
