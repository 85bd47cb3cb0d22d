"""Block skipping: a pass can start at any block from a remembered residual stream, or stop at one.

For the length of a `with` block, the blocks below hand the remembered residual stream on instead
of computing, and the block to stop at raises. Everything around the blocks (embeddings, rotary
tables, masks, final norm, unembedding, soft caps) stays the model's own code. Where state flows
past the residual stream a resumed pass differs; `BlockSkipper.refusal` finds out by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from tracekit.models.architectures import replaced_in, residual_hook
from tracekit.models.hooked import HookedModel, recording_hooks

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
        """Finds the blocks; `refusal` must be asked before `run_only` is used."""
        # The model itself is not kept: a cache of skippers must not keep it alive.
        self._blocks: list[Any] = list(getattr(model, "blocks", ()))
        self._returns_tuple: list[bool] = []

    @contextmanager
    def run_only(
        self, start: int = 0, stop: int | None = None, residual: ResidualStream | None = None
    ) -> Iterator[None]:
        """Within, only blocks `start` to `stop - 1` run, and `start` reads `residual`.

        At `stop` a pass raises `StopPassError`, with the residual stream it got to.
        """
        replaced: dict[int, Callable[..., Any]] = {}
        for number in range(start):
            # The last skipped block hands the remembered stream to the first that runs.
            handed = residual if number == start - 1 else None
            replaced[number] = partial(
                _hand_on, residual=handed, in_tuple=self._returns_tuple[number]
            )
        if stop is not None and stop < len(self._blocks):
            replaced[stop] = _stop
        with replaced_in((self._blocks[n], {"forward": other}) for n, other in replaced.items()):
            yield

    def refusal(self, model: HookedModel, tokens: Tensor) -> str:
        """Why blocks cannot be skipped, as trial runs on `tokens` tell; empty if they can."""
        if not self._blocks:
            return "it has no list of blocks"
        inputs: dict[int, Tensor] = {}
        outputs: dict[int, Any] = {}

        def record(number: int) -> Callable[..., None]:
            def both(module: Any, args: Any, kwargs: Any, output: Any) -> None:
                inputs[number], outputs[number] = _residual_of(args, kwargs), output

            return both

        handles = [
            block.register_forward_hook(record(number), with_kwargs=True)
            for number, block in enumerate(self._blocks)
        ]
        layers = range(len(self._blocks))
        hooks, recorded = recording_hooks([residual_hook(layer) for layer in layers])
        try:
            whole = model.run_with_hooks(tokens, fwd_hooks=hooks)
        finally:
            for handle in handles:
                handle.remove()
        if any(isinstance(output, tuple) and len(output) > 1 for output in outputs.values()):
            return "its blocks return more than the residual stream"
        self._returns_tuple = [isinstance(outputs[layer], tuple) for layer in layers]
        for layer in layers[1:]:
            if not _close(inputs[layer], recorded[residual_hook(layer)][-1]):
                return f"block {layer} reads something else than the residual stream"
        # State that flows past the residual stream does so between neighbours (of which two in a
        # row show both parities), from early blocks to late ones, or to the last.
        n = len(layers)
        for layer in sorted({1, 2, n // 2, n - 1} & set(range(1, n))):
            with self.run_only(layer, residual=recorded[residual_hook(layer)][-1]):
                resumed = model.run_with_hooks(tokens, fwd_hooks=[])
            if not _close(resumed, whole):
                return f"a pass resumed at block {layer} differs"
            try:
                with self.run_only(stop=layer):
                    model.run_with_hooks(tokens, fwd_hooks=[])
                return f"a pass does not stop at block {layer}"
            except StopPassError:
                pass
        return ""


def _hand_on(*args: Any, residual: ResidualStream | None, in_tuple: bool, **kwargs: Any) -> Any:
    out = _residual_of(args, kwargs) if residual is None else residual
    return (out,) if in_tuple else out


def _stop(*args: Any, **kwargs: Any) -> Any:
    raise StopPassError(_residual_of(args, kwargs))


def _residual_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["hidden_states"]


def _close(value: Tensor, expected: Tensor) -> bool:
    difference = (value.float() - expected.float()).abs().max()
    return bool(difference <= 1e-5 * expected.float().abs().max())
