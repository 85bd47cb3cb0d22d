"""Verification of a loaded model: its weights are complete, and the bridge computes its numbers.

Two faults give wrong numbers without an error: weights that a checkpoint lacks are filled in at
random, and a bridge may compute something else than the model that was given, for example without
its adapters or hooks. So the logits of the model as it was given are recorded before anything is
copied, merged or wrapped, and whatever is traced in its place must have the same. A model
that would run code of its own, or have a package installed, is refused with an error.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain
from math import inf, log
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from tracekit._util.deferred import transformers
from tracekit._util.table import join_labels
from tracekit._util.warn import warn
from tracekit.errors import ModelWarning, UnsupportedModelError
from tracekit.models import hooked

_TOKENS = 8
_TEXT_TOKENS = 64
_LISTED = 5
"""Tensors that an error names at most."""
_EXACT, _ON_ACCELERATOR, _ROUNDED = 1e-4, 1e-3, 0.05
"""Share of the largest logit by which the bridge's logits may differ from those of the model as
given: in float32 on a CPU, in float32 elsewhere, and where 16 bits or kernels round more."""
_NARROW = (torch.bfloat16, torch.float16)
_FORBIDDEN = 1e4
"""Logits beyond this stand for tokens that the model never predicts."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Logits that a model computed as it was given, before it was copied, merged or wrapped."""

    tokens: Int[Tensor, "row pos"]
    logits: Float[Tensor, "pos d_vocab"]


@dataclass(eq=False)
class Loader:
    """Loads a model for a bridge by `from_pretrained`, and checks what its checkpoint held."""

    name: object
    device: torch.device | None = None
    """Of the model; None: where it is loaded to."""
    model_class: Any = None
    reference: Reference | None = None
    """Logits of the model as given; None if no model was loaded, or it could not run."""
    float32_reference: Reference | None = None
    """Logits in float32 of a model that was changed, and whose weights have 16 bits."""
    model: Any = None
    """The model that was loaded, or is in memory."""
    changes: list[str] = field(default_factory=list)
    """How a model in memory differs from what its class makes."""

    def from_pretrained(self, path: Any, **kwargs: Any) -> Any:
        """The model of a directory or file; refused if weights are missing or reshaped."""
        # Reshaped weights are refused here, by their names.
        kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = self._class_for(kwargs.get("config")).from_pretrained(path, **kwargs)
        _check_complete(model, info, self.name)
        self.model = model
        check_needs_no_package(model, path, self.name)
        # Weights of a GGUF file are no longer quantized, though the model says so.
        stays = getattr(model, "is_quantized", False) and "gguf_file" not in kwargs
        if self.device is not None and not stays:
            # Moved before it is wrapped, so that both use the same kernels. Those of mps are only
            # trusted if they agree with the CPU's.
            if self.device.type == "mps":
                self.reference = record_reference(model, self.name)
            model.to(self.device)
        self.reference = self.reference or record_reference(model, self.name)
        return model

    def from_config(self, config: Any, **kwargs: Any) -> Any:
        """A model without the weights of a checkpoint."""
        return self._class_for(config).from_config(config, **kwargs)

    def _class_for(self, config: Any) -> Any:
        from transformer_lens.model_bridge.sources import transformers as source

        if self.model_class is not None:
            return self.model_class
        architecture = source.determine_architecture_from_hf_config(config)
        return source.get_hf_model_class_for_architecture(architecture)


def _check_complete(model: Any, info: Mapping[str, Any], name: object) -> None:
    reshaped = sorted({name for name, *_ in info["mismatched_keys"]})
    # Buffers are computed; tied parameters are listed under one of their names.
    parameters = {name for name, _ in model.named_parameters()}
    missing = sorted(set(info["missing_keys"]) & parameters - set(reshaped))
    if missing:
        raise UnsupportedModelError(
            f"The weights of {name} lack {join_labels(missing, _LISTED)}, which transformers would "
            "fill in at random. Give a directory with all weights under the names of its "
            "architecture."
        )
    if reshaped:
        raise UnsupportedModelError(
            f"The weights of {name} do not have the shapes that its config.json says: "
            f"{join_labels(reshaped, _LISTED)}. Give weights and configuration of the same model."
        )


def record_reference(model: Any, name: object) -> Reference | None:
    """Logits on a few random tokens; None without weights or, with a warning, if it cannot run."""
    if next(model.parameters()).is_meta:
        return None
    try:
        config = model.config.get_text_config()
        context = getattr(config, "max_position_embeddings", None) or _TOKENS
        generator = torch.Generator().manual_seed(0)
        random = torch.randint(int(config.vocab_size), (_TOKENS,), generator=generator)
        tokens = torch.tensor([[*_tokens_of_adapters(model), *random.tolist()][: int(context)]])
        return Reference(tokens, get_logits(model, tokens))
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        warn(
            f"{name} cannot be run before it is wrapped ({first_line(error)}), so its logits are "
            "not compared with those that TransformerLens computes.",
            ModelWarning,
        )
        return None


def _tokens_of_adapters(model: Any) -> list[int]:
    """Tokens whose embeddings adapters of PEFT replace, which random tokens would miss."""
    by_adapter = [getattr(module, "token_indices", None) for module in model.modules()]
    lists = [each for layer in by_adapter if isinstance(layer, dict) for each in layer.values()]
    return list(dict.fromkeys(chain.from_iterable(lists)))[:_TOKENS]


@contextmanager
def use_float32(model: Any) -> Iterator[None]:
    """Within the block, weights and buffers of 16 bits are float32; they are put back after it."""
    everything = chain(model.parameters(), model.buffers())
    tensors = [tensor for tensor in everything if tensor.dtype in _NARROW]
    narrow = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, data in zip(tensors, narrow, strict=True):
            tensor.data = data


def record_float32_reference(model: Any, name: object) -> Reference | None:
    """Logits in float32 of a model with 16-bit weights; None for others, or if memory is short."""
    if hooked.dtype_of(model) not in _NARROW or hooked.is_quantized(model):
        return None
    try:
        with use_float32(model):
            return record_reference(model, name)
    except (MemoryError, torch.OutOfMemoryError):
        warn(
            f"The memory does not hold {name} in float32. In {hooked.dtype_of(model)} its logits "
            "show only large changes that TransformerLens leaves out, by hooks or parts of another "
            "class.",
            ModelWarning,
        )
        return None


def get_logits(model: Any, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "pos d_vocab"]:
    """Logits of the first row, in evaluation mode and not compiled; modes are put back."""
    modules = list(model.modules())
    for module in modules:
        # bitsandbytes' own kernel for 4-bit weights on a CPU has no gradient, and the first pass
        # without one packs the weights for it for good.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    was_training = {module: module.training for module in modules}
    # To compile a model for one pass takes minutes.
    is_compiled = any(
        get_uncompiled(each) is not None or vars(each).get("_compiled_call_impl")
        for each in modules
    )
    stance = torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
    model.eval()
    try:
        with torch.no_grad(), stance:
            output = model(tokens.to(next(model.parameters()).device))
    finally:
        for module, mode in was_training.items():
            module.training = mode
    logits = output[0] if isinstance(output, tuple) else output.logits
    return logits[0].float().cpu()


def get_uncompiled(module: Any) -> Any:
    """The module that `torch.compile` wrapped; None for other modules."""
    return module._modules.get("_orig_mod")


def cannot_wrap_error(loader: Loader, error: Exception) -> UnsupportedModelError:
    """The error for a model that transformers loads but TransformerLens cannot run."""
    kind = type(loader.model).__name__
    if loader.changes:
        reason = (
            f"parts of it are not those of a {kind}: {join_labels(loader.changes, _LISTED)}. Put "
            "those parts back, or give a model whose parts are of its class."
        )
    else:
        reason = (
            f"its bridge for a {kind} does not know a setting of the configuration"
            f"{_unusual_settings(loader.model)}. The checkpoint itself is all right; use one "
            "without that setting."
        )
    return UnsupportedModelError(
        f"TransformerLens cannot run {loader.name}, though transformers can: {reason} "
        f"TransformerLens says: {first_line(error)}"
    )


def find_changes(model: Any) -> list[str]:
    """Describes how a Hugging Face model, wrapped or not, differs from what its class makes."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            expected = dict(type(model)(deepcopy(model.config)).named_modules())
    except Exception:  # A class of somebody else that needs data, or more arguments.
        return []
    # Of several modules with one name, the one inside of what a bridge puts around it.
    modules = {hooked.plain_name(name): module for name, module in model.named_modules()}
    changes, replaced = [], ("",)
    for name, plain in expected.items():
        if name.startswith(replaced[1:]):
            continue
        where = name or "the model"
        if name not in modules:
            replaced += (f"{name}.",)
            changes.append(f"{where} is not there")
            continue
        module = modules[name]
        kind: Any = type(module).__mro__[1] if is_parametrized(module) else type(module)
        if kind is not type(plain):
            replaced += (f"{name}.",)
            changes.append(f"{where} is a {kind.__module__}.{kind.__qualname__}")
            continue
        if "forward" in vars(module) and not hasattr(module, "_old_forward"):
            changes.append(f"the forward of {where} was replaced")
        if kind.forward.__module__.partition(".")[0] != kind.__module__.partition(".")[0]:
            changes.append(f"the forward of {kind.__name__} was replaced")
        if hooked.has_foreign_hooks(module):
            changes.append(f"hooks were left at {where}")
    attention = getattr(model.config, "_attn_implementation", None)
    if hooked.is_foreign(transformers.AttentionInterface().get(attention, find_changes)):
        changes.append(f"its attention is {attention!r}, which was registered by other code")
    return list(dict.fromkeys(changes))


def _unusual_settings(model: Any) -> str:
    """Settings that are not the defaults of their class, in brackets; sizes are left out."""
    common = ("dropout", "pdrop", "initializer", "tie_word", "use_cache", "output_")
    usual = type(model.config)().to_dict()
    unusual = [
        f"{key} = {value}"
        for key, value in model.config.to_dict().items()
        if isinstance(value, (bool, float)) and value != usual.get(key)
        if not any(word in key for word in common)
    ]
    return f" (not the default: {join_labels(unusual, _LISTED)})" if unusual else ""


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def check_same_numbers(model: hooked.HookedModel, loader: Loader) -> None:
    """Refuses a bridge whose logits differ from those of the Hugging Face model as given."""
    is_exact, is_on_cpu = hooked.is_exact(model), hooked.device_of(model).type == "cpu"
    tolerance = _ROUNDED
    if is_exact and is_on_cpu:
        tolerance = _EXACT
    elif is_exact and loader.changes and torch.get_float32_matmul_precision() == "highest":
        tolerance = _ON_ACCELERATOR
    _compare_logits(model, loader, loader.reference, tolerance)
    if loader.float32_reference is not None:
        tolerance = _EXACT if is_on_cpu else _ON_ACCELERATOR
        with use_float32(getattr(model, "original_model", model)):
            _compare_logits(model, loader, loader.float32_reference, tolerance)


def _compare_logits(
    model: hooked.HookedModel, loader: Loader, reference: Reference | None, tolerance: float
) -> None:
    if reference is None:
        return
    with torch.no_grad():
        tokens = reference.tokens.to(hooked.device_of(model))
        try:
            bridged = model.run_with_hooks(tokens, fwd_hooks=[])[0].float().cpu()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise cannot_wrap_error(loader, error) from error
    difference, largest = logit_gap(reference, bridged)
    if not difference <= tolerance * largest:
        reason = (
            "TransformerLens computes attention and some other parts by its own code, which leaves "
            f"out how these were changed: {join_labels(loader.changes, _LISTED)}. Undo the change, "
            "or make it by hooks of the loaded model."
            if loader.changes
            else "Its configuration has a setting that TransformerLens ignores"
            f"{_unusual_settings(loader.model)}; use a checkpoint without it."
        )
        raise UnsupportedModelError(
            f"TransformerLens computes other logits than {loader.name} itself: they differ by up "
            f"to {difference:.3g}. {reason}"
        )


def logit_gap(reference: Reference, logits: Float[Tensor, "pos d_vocab"]) -> tuple[float, float]:
    """The largest difference from the logits of the model as given, and the largest of those."""
    expected = reference.logits[..., : logits.shape[-1]]
    if len(logits) != len(expected):
        return inf, 0.0
    is_read = expected.abs() < _FORBIDDEN
    if not is_read.any():
        return 0.0, 0.0
    differences = (logits[..., : expected.shape[-1]] - expected)[is_read].abs()
    return differences.max().item(), expected[is_read].abs().max().item()


_TEXT = (
    "Once there was an old man who lived with his dog in a small house by the sea. Every morning "
    "they went down to the beach to see what the water had brought. One day they found a little "
    "boat with no one in it, and the man said that it must have come from very far away."
)
_MOST = 0.6
"""Largest loss on a plain text, as a share of the logarithm of the size of the vocabulary."""


def warn_of_poor_text(model: hooked.HookedModel, tokenizer: Any, name: object) -> None:
    """Warns of a generating model that predicts plain English hardly better than by chance."""
    original: Any = getattr(model, "original_model", model)
    config = original.config.get_text_config()
    if tokenizer is None or config.is_encoder_decoder or not original.can_generate():
        return
    context = getattr(config, "max_position_embeddings", None) or _TEXT_TOKENS
    ids = list(tokenizer.encode(_TEXT))[: min(_TEXT_TOKENS, context)]
    written = _only_letters(tokenizer.decode(ids, skip_special_tokens=True))
    is_known = len(written) > _TEXT_TOKENS and _only_letters(_TEXT).startswith(written)
    if not is_known or max(ids) >= config.vocab_size:
        return
    with torch.no_grad():
        tokens = torch.tensor([ids], device=hooked.device_of(model))
        logits = model.run_with_hooks(tokens, fwd_hooks=[])[0, :-1].float()
    loss = torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).item()
    chance = log(logits.shape[-1])
    if not loss < _MOST * chance:
        warn(
            f"{name} hardly predicts plain English: {loss:.3g} nats a token, where chance among "
            f"its {logits.shape[-1]:,} tokens gives {chance:.3g}. Unless it is untrained or made "
            "for other texts, its weights, settings or tokenizer are wrong.",
            ModelWarning,
        )


def _only_letters(text: str) -> str:
    return "".join(filter(str.isalpha, text)).casefold()


def check_needs_no_package(model: Any, path: object, name: object) -> None:
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


def unsafe_code_error(name: object, error: BaseException) -> UnsupportedModelError | None:
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
