"""A model in memory as it was given: compiled, with adapters, or changed by hand.

What is traced is a copy of its modules around the same weights, with the same logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import repeat
from operator import methodcaller
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from tracekit._util.deferred import transformers
from tracekit.errors import UnknownModelError, UnsupportedModelError
from tracekit.models.hooked import HookedModel, is_exact
from tracekit.models.verification import Reference, get_logits, get_uncompiled, logit_gap

_MERGED = 3e-5
"""Share of the largest logit by which merging weights in float32 may change one."""


def find_hugging_face_model(given: Any) -> tuple[Any, Any]:
    """Finds the Hugging Face or hooked model inside of a model; returns both.

    Raises:
        UnknownModelError: There is no such model inside.
    """
    if not isinstance(given, torch.nn.Module):
        # What is compiled twice is a function around the forward of a compiled module.
        given = getattr(getattr(given, "_torchdynamo_orig_callable", None), "__self__", given)
    inside = given
    while not isinstance(inside, HookedModel | transformers.PreTrainedModel):
        within = _inner_model(inside) if isinstance(inside, torch.nn.Module) else None
        if within is None:
            raise UnknownModelError(
                f"Cannot trace a {type(inside).__name__}. Give a name, a directory, a Hugging Face "
                "model, a TransformerBridge or a HookedTransformer."
            )
        inside = within
    return given, inside


def _inner_model(model: Any) -> Any:
    """The model that torch.compile or PEFT wrapped in a module; None for other modules."""
    inside = get_uncompiled(model)
    if inside is None and hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model.model if inside is None and hasattr(model, "merge_and_unload") else inside


def unwrap(given: Any, reference: Reference | None, name: object) -> Any:
    """A plain Hugging Face model that computes what a compiled or adapted model computes.

    Raises:
        UnsupportedModelError: Without what is around it, it computes other logits.
    """
    model = given
    while not isinstance(model, transformers.PreTrainedModel):
        is_compiled = get_uncompiled(model) is not None
        copies = repeat(model) if is_compiled else map(deepcopy, repeat(model))
        model = unwrap_first(copies, reference, name)
    return model


def unwrap_first(copies: Iterator[Any], reference: Reference | None, name: object) -> Any:
    """The model inside of the first copy whose logits equal those of the wrapped model.

    Adapters are merged, or taken out if they are off, unless that changes the logits, as it does
    where weights have 16 bits or fewer: then they stay.
    """
    copy = next(copies)
    kind = type(copy).__name__
    if reference is None:
        return _inner_model(copy)
    has_adapters = hasattr(copy, "merge_and_unload") and get_uncompiled(copy) is None
    ways: list[Callable[[Any], Any]] = [_inner_model]
    if has_adapters and is_exact(copy):
        ways = [methodcaller("merge_and_unload"), methodcaller("unload"), _inner_model]
    for take in ways:
        with suppress(AttributeError, NotImplementedError, TypeError, ValueError):
            model = take(copy)
            difference, largest = logit_gap(reference, get_logits(model, reference.tokens))
            if difference <= _MERGED * largest:
                return model
        if take is not ways[-1]:
            copy = next(copies)
    raise UnsupportedModelError(
        f"{name} computes other logits without the {kind} around it, which adds something of its "
        "own, such as virtual tokens or a hook. TransformerLens would leave that out. Give the "
        "model inside, or put the change into its layers."
    )


def copy_around_weights(model: Any) -> Any:
    """A copy of a model's modules around the same weights, not compiled.

    The model itself where a function replaces the forward of a module, as accelerate's hooks do.
    """
    own = [vars(each).get("forward") for each in model.modules() if get_uncompiled(each) is None]
    if any(isinstance(forward, FunctionType | partial) for forward in own):
        return model
    tensors = [
        value
        for module in model.modules()
        for part in (module._parameters, module._buffers, vars(module))
        for value in part.values()
        if isinstance(value, Tensor)
    ]
    copy = deepcopy(model, {id(tensor): _share_memory(tensor) for tensor in tensors})
    for module in copy.modules():
        module._compiled_call_impl = None
        for name, part in module._modules.items():
            if part is not None:
                module._modules[name] = part._modules.get("_orig_mod", part)
    return copy


def computes_weights(model: Any) -> bool:
    """Whether a weight is computed from other tensors before each pass, as a pruned one is."""
    return any(
        isinstance(value, Tensor) for module in model.modules() for value in vars(module).values()
    )


def _share_memory(tensor: Tensor) -> Tensor:
    """Another tensor with the same memory; returns quantised weights, which have more state."""
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(tensor.detach(), requires_grad=False)
    return tensor.detach() if type(tensor) is Tensor else tensor
