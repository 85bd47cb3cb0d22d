"""Leaving blocks of a model out of a pass, or attentions and MLPs within blocks.

A pass can start at any block from a remembered residual stream, or stop at one. Everything around
the blocks (embeddings, rotary tables, masks, final norm, unembedding, soft caps) stays the model's
own code. Where state flows past the residual stream a resumed pass differs;
`BlockSkipper.reason_unsupported` finds this out by trying.

A part, an attention or an MLP, is known if a mask replaces all of it at every token. With almost
all edges patched, no kept edge leaves most parts: nothing reads what they write, and the
counterfactual values take its place.

    kept: E>L1Q0, L1H0>MLP2, MLP2>logits
    computed: the attention of layer 1, the MLP of layer 2, and the logits
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from jaxtyping import Bool, Float
from torch import Tensor

from tracekit.components import ComponentRegistry
from tracekit.engine.patching import Activations
from tracekit.models.architectures import ATTENTION, MLP, block_parts, patch_modules, residual_hook
from tracekit.models.hooked import HookedModel, is_close, recording_hooks

_K = TypeVar("_K", bound=Hashable)
_TOLERANCE = 1e-5
"""Share of the largest number by which a resumed pass may differ."""
ResidualStream = Float[Tensor, "row pos d_model"]
"""Input of a block."""
Part = tuple[int, int]
"""A layer, and `ATTENTION` or `MLP`."""
KnownOutputs = dict[Part, Callable[[Tensor], Tensor]]
"""Makes the output of each known part from its input, of which only the shape is read."""
_MODULES = {ATTENTION: "attn", MLP: "mlp"}
_PARTS = {"attn.hook_z": ATTENTION, "hook_attn_out": ATTENTION, "hook_mlp_out": MLP}
"""Hook points within a block through which all goes that a part writes."""


class StopPassError(Exception):
    """Ends a pass at a block or at a hook point; raised and caught within this package."""

    def __init__(self, residual: Tensor) -> None:
        """Holds the residual stream that the block would have read, or another activation."""
        super().__init__("The pass ends here.")
        self.residual = residual


class BlockSkipper:
    """The blocks of a model, of which a pass may run only some."""

    def __init__(self, model: HookedModel) -> None:
        """Finds the blocks; call `reason_unsupported` before `run_blocks`."""
        # The model itself is not kept: a cache of skippers must not keep it alive.
        self._blocks: list[Any] = list(getattr(model, "blocks", ()))
        self._returns_tuple: list[bool] = []

    @contextmanager
    def run_blocks(
        self, start: int = 0, stop: int | None = None, residual: ResidualStream | None = None
    ) -> Iterator[None]:
        """Within the block, only blocks `start` to `stop - 1` run, and `start` reads `residual`.

        At `stop` a pass raises a `StopPassError` that has the residual stream there.
        """
        replaced: dict[int, Callable[..., Any]] = {}
        for number in range(start):
            # The last skipped block hands the remembered stream to the first that runs.
            handed = residual if number == start - 1 else None
            in_tuple = self._returns_tuple[number]
            replaced[number] = partial(_skip_block, residual=handed, in_tuple=in_tuple)
        if stop is not None and stop < len(self._blocks):
            replaced[stop] = _stop_pass
        with patch_modules((self._blocks[n], {"forward": other}) for n, other in replaced.items()):
            yield

    def reason_unsupported(self, model: HookedModel, tokens: Tensor) -> str:
        """Why blocks cannot be skipped, found by trial runs on `tokens`; empty if they can."""
        if not self._blocks:
            return "it has no list of blocks"
        layers = range(len(self._blocks))
        hooks, recorded = recording_hooks([residual_hook(layer) for layer in layers])
        with record_calls(dict(enumerate(self._blocks))) as calls:
            whole = model.run_with_hooks(tokens, fwd_hooks=hooks)
        if any(isinstance(output, tuple) and len(output) > 1 for _, output in calls.values()):
            return "its blocks return more than the residual stream"
        self._returns_tuple = [isinstance(calls[layer][1], tuple) for layer in layers]
        for layer in layers[1:]:
            if not is_close(calls[layer][0], recorded[residual_hook(layer)][-1], _TOLERANCE):
                return f"block {layer} reads something else than the residual stream"
        # State that flows past the residual stream does so between neighbours (of which two in a
        # row show both parities), from early blocks to late ones, or to the last.
        n = len(layers)
        for layer in sorted({1, 2, n // 2, n - 1} & set(range(1, n))):
            with self.run_blocks(layer, residual=recorded[residual_hook(layer)][-1]):
                resumed = model.run_with_hooks(tokens, fwd_hooks=[])
            if not is_close(resumed, whole, _TOLERANCE):
                return f"a pass resumed at block {layer} differs"
            with suppress(StopPassError), self.run_blocks(stop=layer):
                model.run_with_hooks(tokens, fwd_hooks=[])
                return f"a pass does not stop at block {layer}"
        return ""


def _skip_block(*args: Any, residual: ResidualStream | None, in_tuple: bool, **kwargs: Any) -> Any:
    out = block_input(args, kwargs) if residual is None else residual
    return (out,) if in_tuple else out


def _stop_pass(*args: Any, **kwargs: Any) -> Any:
    raise StopPassError(block_input(args, kwargs))


def block_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """What a block, or a part of it, reads of the arguments that it is called with."""
    return args[0] if args else kwargs["hidden_states"]


@contextmanager
def record_calls(modules: Mapping[_K, Any]) -> Iterator[dict[_K, tuple[Tensor, Any]]]:
    """Records within the block what modules read and return, by their keys."""
    calls: dict[_K, tuple[Tensor, Any]] = {}

    def record(module: Any, args: Any, kwargs: Any, output: Any, *, key: _K) -> None:
        calls[key] = block_input(args, kwargs).detach().clone(), output

    with ExitStack() as handles:
        for key, module in modules.items():
            handle = module.register_forward_hook(partial(record, key=key), with_kwargs=True)
            handles.enter_context(handle)
        yield calls


class PartSkipper:
    """Leaves parts of a model out of a pass."""

    def __init__(self, model: Any, tokens: Tensor) -> None:
        """Runs the model once to see what its parts return."""
        modules = {
            (layer, part): getattr(block, name)
            for layer, block in enumerate(model.blocks)
            for part, name in _MODULES.items()
        }
        with record_calls(modules) as calls:
            model.run_with_hooks(tokens, fwd_hooks=[])
        self._lengths: dict[Part, int | None] = {
            part: len(output) if isinstance(output, tuple) else None
            for part, (_, output) in calls.items()
        }
        """Of the tuple that a part returns; None: it returns a tensor."""

    def skip(self, model: Any, outputs: KnownOutputs) -> AbstractContextManager[None]:
        """Within the block, known parts that the model calls as modules are not computed."""
        replaced = []
        for (layer, part), output in outputs.items():
            if (layer, part) in self._lengths:
                length = self._lengths[layer, part]
                forward = partial(_return_output, output=output, length=length)
                module = getattr(model.blocks[layer], _MODULES[part])
                replaced.append((module, {"forward": forward}))
        return patch_modules(replaced)


def _return_output(
    *args: Any, output: Callable[[Tensor], Tensor], length: int | None, **kwargs: Any
) -> Any:
    value = output(block_input(args, kwargs))
    return value if length is None else (value, *[None] * (length - 1))


def replaced_parts(
    model: Any,
    registry: ComponentRegistry,
    source: Activations,
    is_replaced: Bool[Tensor, " component"],
) -> KnownOutputs:
    """The parts of which all is replaced by counterfactual values, at all tokens."""
    outputs: KnownOutputs = {}
    for site in registry.sites:
        part = _PARTS.get(site.hook_name.split(".", 2)[2])
        is_whole = site.complete and len(site.hook_names) == 1
        if part is not None and is_whole and is_replaced[site.start : site.stop].all():
            values = partial(repeat_values, source[site.hook_name])
            if site.hook_name.endswith("hook_z"):
                out = partial(_project_out, model=model, layer=site.layer)
                values = partial(project_heads, heads=values, out=out)
            outputs[site.layer, part] = values
    return outputs


def _project_out(heads: Tensor, *, model: Any, layer: int) -> Tensor:
    # A model whose parts cannot be told apart is refused here, within the trial.
    return block_parts(model, layer).out(heads)


def project_heads(
    like: Tensor, *, heads: Callable[[Tensor], Tensor], out: Callable[[Tensor], Tensor]
) -> Tensor:
    """What an attention writes, from the values of its heads for the rows of an input."""
    return out(heads(like).flatten(2))


def repeat_values(values: Tensor, like: Tensor, first: int = 0) -> Tensor:
    """Values from position `first` on, repeated to the rows of `like`; 0 at other positions."""
    values = values.to(like.device, like.dtype)
    repeated = values.new_zeros(len(like), like.shape[1], *values.shape[2:])
    target = repeated[:, first : first + values.shape[1]].unflatten(0, (-1, len(values)))
    target.copy_(values.expand_as(target))
    return repeated
