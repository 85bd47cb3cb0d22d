"""Verification of a loaded model: its weights are complete, and the bridge computes its numbers.

Two faults give wrong numbers without an error. Weights that a checkpoint lacks are filled in at
random by transformers, which says so in its log only. And a bridge may compute something else than
the Hugging Face model that it wraps (it ignores GPT-2's `scale_attn_weights`, say). Every check of
hooks compares the bridge with itself and cannot see that.

Nothing that a model brings along is run, and nothing is installed for it. transformers runs code
of a model only where it is told to, and torch reads weights from a pickle without its code.
TransformerLens installs a package by pip where the processor of a model for images or sound lacks
it. Each of these is one error that says what to do.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from math import log
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.deferred import transformers
from tracekit._util.table import named
from tracekit._util.warn import warn
from tracekit.errors import ModelWarning, UnsupportedModelError
from tracekit.models.hooked import HookedModel, device_of, is_exact

_TOKENS = 8
_TEXT_TOKENS = 64
_LISTED = 5
"""Tensors that an error names at most."""
_FORBIDDEN = 1e4
"""Logits beyond this stand for tokens that the model never predicts."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Logits that a Hugging Face model computed before it was wrapped."""

    tokens: Int[Tensor, "row pos"]
    logits: Float[Tensor, "pos d_vocab"]


class Loader:
    """Loads a Hugging Face model by transformers' own report of what its checkpoint held.

    A bridge takes it in place of a class of models, which it has `from_pretrained` in common with.
    """

    def __init__(
        self, name: object, device: torch.device | None = None, model_class: Any = None
    ) -> None:
        """`device` is that of the model; None: where it is loaded to."""
        self.reference: Reference | None = None
        """None if no model was loaded, or it could not be run alone."""
        self.model: Any = None
        """The model that was loaded, or is in memory."""
        self._name, self._device, self._model_class = name, device, model_class

    def from_pretrained(self, path: Any, **kwargs: Any) -> Any:
        """The model of a directory or file; refused if weights are missing or reshaped."""
        # Reshaped weights are refused here, by their names.
        kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = self._class_for(kwargs.get("config")).from_pretrained(path, **kwargs)
        _check_complete(model, info, self._name)
        self.model = model
        refuse_installation(model, path, self._name)
        # Weights of a GGUF file are no longer quantized, though the model says so.
        stays = getattr(model, "is_quantized", False) and "gguf_file" not in kwargs
        if self._device is not None and not stays:
            # Where it will be wrapped, so that both are computed by the same kernels; but those of
            # mps are to be trusted only where they agree with the CPU's.
            if self._device.type == "mps":
                self.reference = reference_of(model, self._name)
            model.to(self._device)
        self.reference = self.reference or reference_of(model, self._name)
        return model

    def from_config(self, config: Any, **kwargs: Any) -> Any:
        """A model without the weights of a checkpoint."""
        return self._class_for(config).from_config(config, **kwargs)

    def _class_for(self, config: Any) -> Any:
        from transformer_lens.model_bridge.sources import transformers as source

        if self._model_class is not None:
            return self._model_class
        architecture = source.determine_architecture_from_hf_config(config)
        return source.get_hf_model_class_for_architecture(architecture)


def _check_complete(model: Any, info: Mapping[str, Any], name: object) -> None:
    """Refuses a checkpoint that lacks weights, or holds them in other shapes."""
    reshaped = sorted({name for name, *_ in info["mismatched_keys"]})
    # Buffers are computed; tied parameters are listed under one of their names.
    parameters = {name for name, _ in model.named_parameters()}
    missing = sorted(set(info["missing_keys"]) & parameters - set(reshaped))
    if missing:
        raise UnsupportedModelError(
            f"The weights of {name} lack {named(missing, _LISTED)}, which transformers would fill "
            "in at random. Give a directory with all weights under the names of its architecture."
        )
    if reshaped:
        raise UnsupportedModelError(
            f"The weights of {name} do not have the shapes that its config.json says: "
            f"{named(reshaped, _LISTED)}. Give weights and configuration of the same model."
        )


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
        warn(
            f"{name} cannot be run before it is wrapped ({first_line(error)}), so its logits are "
            "not compared with those that TransformerLens computes.",
            ModelWarning,
        )
        return None
    finally:
        for module, mode in was_training.items():
            module.training = mode
    return Reference(tokens, logits)


def cannot_wrap(model: Any, name: object, error: Exception) -> UnsupportedModelError:
    """The error for a model that transformers loads, and TransformerLens does not run."""
    return UnsupportedModelError(
        f"TransformerLens cannot run {name}, though transformers can: its bridge for a "
        f"{type(model).__name__} does not know a setting of the configuration"
        f"{_unusual(model)}. The checkpoint itself is all right; use one without that setting. "
        f"TransformerLens says: {first_line(error)}"
    )


def _unusual(model: Any) -> str:
    """Settings that are not the defaults of their class, in brackets; sizes are left out."""
    common = ("dropout", "pdrop", "initializer", "tie_word", "use_cache", "output_")
    usual = type(model.config)().to_dict()
    unusual = [
        f"{key} = {value}"
        for key, value in model.config.to_dict().items()
        if isinstance(value, (bool, float)) and value != usual.get(key)
        if not any(word in key for word in common)
    ]
    return f" (not the default: {named(unusual, _LISTED)})" if unusual else ""


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def check_same_numbers(model: HookedModel, reference: Reference | None, name: object) -> None:
    """Refuses a bridge whose logits differ from those of the model that it wraps."""
    if reference is None:
        return
    with torch.no_grad():
        tokens = reference.tokens.to(device_of(model))
        try:
            bridged = model.run_with_hooks(tokens, fwd_hooks=[])[0].float().cpu()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise cannot_wrap(getattr(model, "original_model", model), name, error) from error
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
            f"{difference:.3g}. Its configuration has a setting that TransformerLens ignores"
            f"{_unusual(getattr(model, 'original_model', model))}; use a checkpoint without it."
        )


_TEXT = (
    "Once there was an old man who lived with his dog in a small house by the sea. Every morning "
    "they went down to the beach to see what the water had brought. One day they found a little "
    "boat with no one in it, and the man said that it must have come from very far away."
)
_MOST = 0.6
"""Share of the logarithm of the vocabulary that the loss on a plain text may have."""


def warn_of_poor_text(model: HookedModel, tokenizer: Any, name: object) -> None:
    """Warns of a model that predicts plain English hardly better than by chance.

    Wrong weights or settings that nothing else finds do that. It says nothing about a model without
    a tokenizer, one that does not generate, or one whose tokenizer cannot write the text.
    """
    original: Any = getattr(model, "original_model", model)
    config = original.config.get_text_config()
    if tokenizer is None or config.is_encoder_decoder or not original.can_generate():
        return
    context = getattr(config, "max_position_embeddings", None) or _TEXT_TOKENS
    ids = list(tokenizer.encode(_TEXT))[: min(_TEXT_TOKENS, context)]
    written = _letters(tokenizer.decode(ids, skip_special_tokens=True))
    is_known = len(written) > _TEXT_TOKENS and _letters(_TEXT).startswith(written)
    if not is_known or max(ids) >= config.vocab_size:
        return
    with torch.no_grad():
        tokens = torch.tensor([ids], device=device_of(model))
        logits = model.run_with_hooks(tokens, fwd_hooks=[])[0, :-1].float()
    loss = torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).item()
    chance = log(logits.shape[-1])
    if not loss < _MOST * chance:
        warn(
            f"{name} hardly predicts plain English: {loss:.3g} nats a token, where chance among "
            f"its {logits.shape[-1]:,} tokens gives {chance:.3g}. Unless it is untrained or made "
            "for other texts, its weights, settings or tokenizer are not those that it was made "
            "with.",
            ModelWarning,
        )


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text)).casefold()


def refuse_installation(model: Any, path: object, name: object) -> None:
    """Refuses a model whose bridge would install torchvision, to read its processor."""
    from transformer_lens.utilities import architectures

    kinds = architectures.MULTIMODAL_ARCHITECTURES | architectures.AUDIO_TEXT_ARCHITECTURES
    if type(model).__name__ not in kinds or find_spec("torchvision") is not None:
        return
    with suppress(Exception):  # Whatever it is, the bridge takes it for a missing torchvision.
        transformers.AutoProcessor.from_pretrained(path, trust_remote_code=False)
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
