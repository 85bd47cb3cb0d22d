"""Blocks that need not run: a pass can start at any block from a remembered state, or stop at one.

TransformerLens has `start_at_layer`, which runs the earlier blocks all the same and throws their
output away. Here, for the length of a `with` block, the blocks below hand the remembered residual
stream on instead of computing, and the block to stop at raises. Everything around the blocks
(embeddings, rotary tables, masks, final norm, unembedding, soft caps) stays the model's own code.

Not every model can be cut like this: where state flows past the residual stream, a resumed pass
differs. `Blocks.refusal` tells, by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor

from tracekit.models.loading import HookedModel, residual_hook

States = Float[Tensor, "row pos d_model"]
"""Residual stream where a block begins."""


class StopPassError(Exception):
    """Ends a pass at a block; raised and caught within this package."""

    def __init__(self, states: States) -> None:
        """Holds the residual stream that the block would have read."""
        super().__init__("The pass ends here.")
        self.states = states


class Blocks:
    """The blocks of a model."""

    def __init__(self, model: HookedModel) -> None:
        """Finds the blocks; `refusal` must be asked before `leaving_out` is used."""
        # The model itself is not kept: what is known of it must not keep it alive.
        self._blocks: list[Any] = list(getattr(model, "blocks", ()))
        self._in_tuple: list[bool] = []

    @contextmanager
    def leaving_out(
        self, start: int = 0, stop: int | None = None, states: States | None = None
    ) -> Iterator[None]:
        """Within, only blocks `start` to `stop - 1` run, and `start` reads `states`.

        A pass that is to stop raises `StopPassError` there, with the states it got to.
        """
        replaced: dict[int, Callable[..., Any]] = {}
        for number in range(start):
            replaced[number] = self._hand_on(number, states if number == start - 1 else None)
        if stop is not None and stop < len(self._blocks):
            replaced[stop] = _stop
        before = {number: vars(self._blocks[number]).get("forward") for number in replaced}
        try:
            for number, forward in replaced.items():
                # Not setattr: a bridge would hand it through to the module it wraps.
                vars(self._blocks[number])["forward"] = forward
            yield
        finally:
            for number, forward in before.items():
                if forward is None:
                    vars(self._blocks[number]).pop("forward", None)
                else:
                    vars(self._blocks[number])["forward"] = forward

    def _hand_on(self, number: int, states: States | None) -> Callable[..., Any]:
        def hand_on(*args: Any, **kwargs: Any) -> Any:
            out = _residual(args, kwargs) if states is None else states
            return (out,) if self._in_tuple[number] else out

        return hand_on

    def refusal(self, model: HookedModel, tokens: Tensor) -> str:
        """Why passes over the model cannot be cut; empty if they can.

        Runs it on `tokens` as a whole, then from and up to every block, and compares.
        """
        if not self._blocks:
            return "it has no list of blocks"
        outputs: list[Any] = [None] * len(self._blocks)
        states: dict[int, Tensor] = {}

        def note(number: int) -> Callable[..., None]:
            def hook(module: Any, args: Any, output: Any) -> None:
                outputs[number] = output

            return hook

        handles = [
            block.register_forward_hook(note(number)) for number, block in enumerate(self._blocks)
        ]
        layers = range(len(self._blocks))
        try:
            hooks = [_catch(residual_hook(layer), layer, states) for layer in layers]
            whole = model.run_with_hooks(tokens, fwd_hooks=hooks)
        finally:
            for handle in handles:
                handle.remove()
        if any(isinstance(out, tuple) and len(out) > 1 for out in outputs):
            return "its blocks return more than the residual stream"
        self._in_tuple = [isinstance(output, tuple) for output in outputs]
        for layer in layers[1:]:
            with self.leaving_out(layer, states=states[layer]):
                again = model.run_with_hooks(tokens, fwd_hooks=[])
            if not _close(again, whole):
                return f"a pass resumed at block {layer} differs"
            try:
                with self.leaving_out(stop=layer):
                    model.run_with_hooks(tokens, fwd_hooks=[])
                return f"a pass does not stop at block {layer}"
            except StopPassError as stopped:
                if not _close(stopped.states, states[layer]):
                    return f"block {layer} reads something else than the residual stream"
        return ""


def _stop(*args: Any, **kwargs: Any) -> Any:
    raise StopPassError(_residual(args, kwargs))


def _residual(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """What a block is called with."""
    return args[0] if args else kwargs["hidden_states"]


def _close(value: Tensor, expected: Tensor) -> bool:
    difference = (value.float() - expected.float()).abs().max()
    return bool(difference <= 1e-5 * expected.float().abs().max())


def _catch(name: str, layer: int, into: dict[int, Tensor]) -> tuple[str, Callable[..., Tensor]]:
    def catch(activation: Tensor, hook: Any = None) -> Tensor:
        into[layer] = activation.detach()
        return activation

    return name, catch
