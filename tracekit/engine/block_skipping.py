"""Block skipping: a pass can start at any block from a remembered residual stream, or stop at one.

Everything around the blocks (embeddings, rotary tables, masks, final norm, unembedding, soft caps)
stays the model's own code. Where state flows past the residual stream a resumed pass differs;
`BlockSkipper.reason_unsupported` finds this out by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from jaxtyping import Float
from torch import Tensor

from tracekit.models.architectures import patch_modules, residual_hook
from tracekit.models.hooked import HookedModel, is_close, recording_hooks

_K = TypeVar("_K", bound=Hashable)
_TOLERANCE = 1e-5
"""Share of the largest number by which a resumed pass may differ."""
ResidualStream = Float[Tensor, "row pos d_model"]
"""Input of a block."""


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
