"""What differs between architectures: names of hook points, and what single models do otherwise.

`tracekit.engine.checks` and `tracekit.engine.capabilities` prove it on the loaded model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

SCORED_HOOKS = ("unembed.hook_in", "ln_final.hook_normalized")
"""Hook points before the unembedding; the first that a model has is used."""
STREAM_PASSES_BY = ".hook_resid_mid"
"""Hook point of the residual stream that a `TransformerBridge` has at the entry of the second norm:
what a hook returns there reaches the MLP only. `checks` proves that a mask reaches the stream."""
ATTENTION, MLP = 0, 1
"""Parts of a block, in the order in which they run."""
PathInput = Literal["all", "query", "key", "value"]
"""What of a receiver's input a sender changes."""
INPUT_HOOKS: Mapping[PathInput, str] = {
    "query": "attn.hook_q",
    "key": "attn.hook_k",
    "value": "attn.hook_v",
}
READS: Mapping[str, Sequence[PathInput]] = {
    "attn.hook_pattern": ("query", "key"),
    "attn.hook_z": ("query", "key", "value"),
    "attn.hook_result": ("query", "key", "value"),
    "hook_attn_out": ("query", "key", "value"),
}
"""Hook points of receivers that read several of these."""
PROJECTIONS: Mapping[str, tuple[str, bool, str]] = {
    # Hook point within a block -> the projection, whether the hook is at its input, and the setting
    # of the configuration that gives it a bias.
    "attn.hook_z": ("attn.o", True, "attention_bias"),
    "mlp.hook_post": ("mlp.out", True, "mlp_bias"),
    "hook_attn_out": ("attn.o", False, "attention_bias"),
    "hook_mlp_out": ("mlp.out", False, "mlp_bias"),
}


def residual_hook(layer: int) -> str:
    """Hook point of the residual stream where a block begins."""
    return f"blocks.{layer}.hook_resid_pre"


def stream_hook(block: int) -> str:
    """Hook point of the residual stream that a block reads; after the last, the final norm."""
    return residual_hook(0) if block == 0 else f"blocks.{block - 1}.hook_resid_post"


def scores_hook(pattern_hook: str) -> str:
    """Hook point of the scores, with their mask, that an attention pattern is made of."""
    return pattern_hook.replace("hook_pattern", "hook_attn_scores")


def out_hook(layer: int, part: int) -> str:
    """Hook point of what the attention or the MLP of a block adds to the stream."""
    return f"blocks.{layer}.hook_{'mlp' if part else 'attn'}_out"


_WINDOWS = ("sliding_window", "window_size", "attention_window_size", "attention_chunk_size")


def shortest_window(model: Any) -> int:
    """Shortest attention window in the configuration."""
    config = getattr(getattr(model, "original_model", None), "config", None)
    configs = (getattr(config, "text_config", config), model.cfg)
    sizes = [getattr(each, name, None) for each in configs for name in _WINDOWS]
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=sys.maxsize)


def long_rope_limit(model: Any) -> int | None:
    """Tokens beyond which a model uses other rotary factors; None if it always uses the same.

    Such models (e.g. Phi-3 with 128k tokens) choose the factors by the longest row of a batch.
    """
    config = getattr(getattr(model, "original_model", None), "config", None)
    key = "original_max_position_embeddings"
    settings = _rotary_settings(model, "longrope")
    limits = [each.get(key) or getattr(config, key, None) for each in settings]
    numbers = [int(limit) for limit in limits if limit is not None]
    return min(numbers) if numbers else None


def has_dynamic_rope(model: Any) -> bool:
    """Whether the longest row of a batch decides the rotary factors of all rows, beyond n_ctx."""
    return bool(_rotary_settings(model, "dynamic"))


def _rotary_settings(model: Any, kind: str) -> list[Mapping[str, Any]]:
    config = getattr(getattr(model, "original_model", None), "config", None)
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(given, Mapping):
        return []
    # Some models have settings for each type of layer.
    nested = [value for value in given.values() if isinstance(value, Mapping)]
    settings = nested or [given]
    return [each for each in settings if each.get("rope_type", each.get("type")) == kind]


_SOFTMAX = (torch.nn.functional.softmax, torch.softmax, Tensor.softmax)
_WEIGHTS_NDIM = 4
"""Axes of attention weights: row, head, query, key."""
_FORWARD = "AttentionBridge.forward"
"""The forward of TransformerLens that leaves the computation to Hugging Face."""


class _SoftmaxMode(TorchFunctionMode):
    """Within the mode, attention scores and weights pass through functions around the softmax."""

    def __init__(self, before: Callable[..., Tensor], after: Callable[..., Tensor]) -> None:
        super().__init__()
        self._before, self._after = before, after

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _SOFTMAX or not args or args[0].ndim != _WEIGHTS_NDIM:
            return func(*args, **(kwargs or {}))
        return self._after(func(self._before(args[0]), *args[1:], **(kwargs or {})))


def make_patterns_editable(model: Any) -> AbstractContextManager[None]:
    """Within the block, edits at `attn.hook_pattern` act on every block of a bridge."""
    layers = [getattr(block, "attn", None) for block in getattr(model, "blocks", None) or ()]
    return patch_modules((each, _editable(each)) for each in layers if _ignores_edits(each))


@contextmanager
def patch_modules(modules: Iterable[tuple[Any, Mapping[str, Any]]]) -> Iterator[None]:
    """Replaces attributes of modules, by their names, within the block."""
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for module, others in modules:
            for name, value in others.items():
                # Not setattr: a bridge would hand it through to the module it wraps.
                replaced.append((vars(module), name, vars(module).get(name)))
                vars(module)[name] = value
        yield
    finally:
        for attributes, name, before in reversed(replaced):
            if before is None:
                attributes.pop(name, None)
            else:
                attributes[name] = before


def _ignores_edits(attention: Any) -> bool:
    forward = getattr(type(attention), "forward", None)
    fires_late = hasattr(type(attention), "_fire_post_hoc_hook")
    return fires_late and getattr(forward, "__qualname__", "") == _FORWARD


def _editable(attention: Any) -> dict[str, Callable[..., Any]]:
    kind = type(attention)

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _SoftmaxMode(attention.hook_attn_scores, attention.hook_pattern):
            return kind.forward(attention, *args, **kwargs)

    # Both hook points have fired by then.
    return {"forward": forward, "_fire_post_hoc_hook": lambda hook, value, name: value}


@dataclass(frozen=True)
class BlockParts:
    """The modules of a block that edges are followed through; `checks` proves that they act so."""

    norm: Callable[[Tensor], Tensor]
    """Norm of the stream, whose output queries, keys and values read."""
    mlp_norm: Callable[[Tensor], Tensor] | None
    """The same for the MLP; None: it reads the stream itself."""
    out_norm: Callable[[Tensor], Tensor] | None
    """Norm of what the attention adds to the stream."""
    between: str | None
    """Hook point of the stream that the MLP reads; None: that at the beginning of the block."""
    out: Callable[[Tensor], Tensor]
    """What the heads' outputs, side by side, add to the stream."""
    _projections: tuple[Any, Any, Any]

    def projection(
        self, number: int, n_heads: int
    ) -> tuple[Float[Tensor, "head d e"], Float[Tensor, "head 1 e"] | None]:
        """Weights and bias, by head, of queries (0), keys (1) or values (2)."""
        module = self._projections[number]
        weight = rearrange(_weight_matrix(module), "(head e) d -> head d e", head=n_heads)
        if module.bias is None:
            return weight, None
        return weight, rearrange(module.bias, "(head e) -> head 1 e", head=n_heads)

    def out_weights(self, n_heads: int) -> Float[Tensor, "head e d"]:
        """Weights of the output projection, by head."""
        return rearrange(_weight_matrix(self.out), "d (head e) -> head e d", head=n_heads)


def block_parts(model: Any, layer: int) -> BlockParts:
    """Finds the parts of a block of a bridge.

    Raises:
        AttributeError: The model is not a bridge.
        TypeError: A projection of the attention has no matrix of weights.
    """
    block = model.blocks[layer]

    def inner(part: Any, name: str) -> Any:
        module = getattr(part, "_modules", {}).get(name)
        return None if module is None else module.original_component

    first, second = inner(block, "ln1"), inner(block, "ln2")
    is_parallel = bool(getattr(model.cfg, "parallel_attn_mlp", False))
    # A parallel block may have one norm for both parts; one with norms of outputs only has none.
    mlp_norm = second if second is not None else first
    attention = block.attn
    names = {"query": attention.q, "key": attention.k, "value": attention.v, "output": attention.o}
    projections = {name: part.original_component for name, part in names.items()}
    for name, module in projections.items():
        weight = getattr(module, "weight", None)
        is_matrix = isinstance(weight, Tensor) and weight.ndim == 2 and weight.is_floating_point()
        if not is_matrix or not hasattr(module, "bias"):
            raise TypeError(
                f"its {name} projection is a {type(module).__name__}, which has no matrix of "
                "weights like that of a torch.nn.Linear"
            )
    return BlockParts(
        norm=first if first is not None else torch.nn.Identity(),
        mlp_norm=mlp_norm,
        out_norm=inner(block, "ln1_post"),
        between=None if is_parallel or mlp_norm is None else "hook_resid_mid",
        out=projections["output"],
        _projections=(projections["query"], projections["key"], projections["value"]),
    )


def post_attention_norm(model: Any, layer: int) -> Any:
    """The module that norms what the attention of a block adds to the stream, or None."""
    block = model.blocks[layer]
    # TransformerLens 3.9 has it at ln1 where a block has no norm before its attention (OLMo 2).
    whole = getattr(block, "original_component", None)
    is_first = hasattr(whole, "post_attention_layernorm") and not hasattr(whole, "input_layernorm")
    named = block._modules.get("ln1_post")
    return block._modules.get("ln1") if is_first and named is None else named


def _weight_matrix(module: Any) -> Float[Tensor, "out in"]:
    """The weights of a linear map; transformers keeps those of a Conv1D the other way round."""
    return module.weight.T if type(module).__name__ == "Conv1D" else module.weight


def residual_multiplier(model: Any) -> float:
    """Factor by which a model multiplies what its layers add to the stream."""
    config = getattr(getattr(model, "original_model", None), "config", None)
    return float(getattr(config, "residual_multiplier", 1.0) or 1.0)
