"""Recorded passes: on a card the work of a pass is recorded once for each shape, then played.

A pass of a small model is a thousand kernels of a few microseconds, and the card idles while Python
asks for them one by one. A recording (a CUDA graph) is asked for as a whole. It reads its inputs
where the first ones lay; those of a later pass are copied there.

Recordings last as long as one search, so a model that is changed later is not read as it was. They
share memory: nothing else may be played between a pass and its gradient, which is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tracekit._util.warn import warn
from tracekit.errors import ModelWarning
from tracekit.models.hooked import HookedModel, device_of, is_exact

_MOST = 32
"""Shapes that are recorded in a search; more of them would seldom come again."""
_ON = {"cuda"}
"""Types of devices whose work can be recorded."""


class Recorder:
    """The recordings of one data set."""

    def __init__(self, model: HookedModel) -> None:
        """Records nothing yet. A model on several devices cannot be recorded."""
        devices = {parameter.device for parameter in model.parameters()}
        self._device = device_of(model)
        self._is_possible = devices == {self._device} and self._device.type in _ON
        self._tolerance = 1e-4 if is_exact(model) else 0.05
        self._kept: dict[Hashable, _Recording | None] | None = None
        self._refused = False
        self.stream: Any = None
        """Where passes are recorded; a first run there lets libraries set themselves up."""
        self.pool: Any = None
        """Memory of all recordings."""
        self.turn = 0
        """Number of passes that were played."""

    @property
    def is_on(self) -> bool:
        """Whether passes are recorded; they then come in few shapes, padded."""
        return self._kept is not None and not self._refused

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within, passes of a shape that comes again are recorded and played."""
        if not self._is_possible or self._kept is not None:
            yield
            return
        self._kept, self._refused = {}, False
        if self._device.type == "cuda":
            self.stream, self.pool = torch.cuda.Stream(self._device), torch.cuda.graph_pool_handle()
        try:
            yield
        finally:
            self._kept = self.stream = self.pool = None

    def run(self, run: Callable[..., Any], name: Hashable, masks: Tensor, *inputs: Any) -> Any:
        """What `run(masks, *inputs)` gives, played where it can be.

        `name` tells runs apart that do something else with inputs of the same shapes.
        """
        if self._kept is None or self._refused:
            return run(masks, *inputs)
        has_gradient = torch.is_grad_enabled() and masks.requires_grad
        key = (name, has_gradient, *_shapes((masks, inputs), self._device))
        if key not in self._kept:
            if len(self._kept) < _MOST:
                self._kept[key] = None
            return run(masks, *inputs)
        recording = self._kept[key]
        if recording is None:
            recording = _Recording(self, run, masks, inputs, has_gradient)
            try:
                recording.record()
                recording.require_equal(masks, inputs, self._tolerance)
            except (RuntimeError, AssertionError) as error:
                self._refused = True
                warn(
                    "Passes are not recorded on this card, and small models take longer: "
                    f"{str(error).strip().splitlines()[0]} Results are the same.",
                    ModelWarning,
                )
                return run(masks, *inputs)
            self._kept[key] = recording
        return recording.play(masks, inputs)


@dataclass(eq=False)
class _Recording:
    """One shape of a pass, and of its gradient with respect to the masks."""

    recorder: Recorder
    run: Callable[..., Any]
    masks: Tensor
    inputs: Any
    has_gradient: bool
    outputs: Any = None

    def __post_init__(self) -> None:
        """Takes copies of the inputs, which lie where recordings read them."""
        self.masks = self.masks.detach().clone().requires_grad_(self.has_gradient)
        device = self.masks.device
        copies = iter([each.clone() for each in _tensors(self.inputs, device)])
        self.inputs = _with_tensors(self.inputs, copies, device)

    def record(self) -> None:
        """Runs the pass and its gradient, then records both."""
        with _on(self.recorder.stream):
            self._run()
            self.slopes = [torch.zeros_like(each) for each in self._differentiable()]
            if self.has_gradient:
                self._run_back()
        self.there = recorded(self._run, self.recorder)
        if self.has_gradient:
            self.back = recorded(self._run_back, self.recorder)

    def require_equal(self, masks: Tensor, inputs: Any, tolerance: float) -> None:
        """Refuses a recording that plays other outputs, or another gradient, than the plain way."""
        both = []
        for outputs in (self.play(masks, inputs), self.run(masks, *inputs)):
            values = _tensors(outputs)
            if self.has_gradient:
                ends = [each for each in values if each.requires_grad]
                slopes = [torch.ones_like(each) for each in ends]
                values += torch.autograd.grad(ends, masks, slopes)
            both.append([each.detach().float() for each in values])
        for played, plain in zip(*both, strict=True):
            # What is not finite is refused with its example, later.
            most = tolerance * plain.nan_to_num().abs().max().clamp(min=1.0)
            torch.testing.assert_close(played, plain, rtol=0.0, atol=most.item(), equal_nan=True)

    def play(self, masks: Tensor, inputs: Any) -> Any:
        """The outputs for other inputs."""
        device = self.masks.device
        given = [masks.detach(), *_tensors(inputs, device)]
        read = [self.masks.detach(), *_tensors(self.inputs, device)]
        for kept, each in zip(read, given, strict=True):
            kept.copy_(each)
        outputs = _Play.apply(masks, self) if self.has_gradient else self.played()
        return _with_tensors(self.outputs, iter(outputs), device)

    def played(self) -> tuple[Tensor, ...]:
        """The outputs for the inputs that lie there."""
        self.recorder.turn += 1
        self.there()
        return tuple(each.detach().clone() for each in _tensors(self.outputs))

    def _run(self) -> None:
        self.outputs = self.run(self.masks, *self.inputs)

    def _run_back(self) -> None:
        (self.of_masks,) = torch.autograd.grad(self._differentiable(), self.masks, self.slopes)

    def _differentiable(self) -> list[Tensor]:
        return [each for each in _tensors(self.outputs) if each.requires_grad]


class _Play(torch.autograd.Function):
    """A pass that is played, and its gradient."""

    @staticmethod
    def forward(ctx: Any, masks: Tensor, recording: _Recording) -> tuple[Tensor, ...]:
        outputs = recording.played()
        ctx.recording, ctx.turn = recording, recording.recorder.turn
        ctx.needs = [each.requires_grad for each in _tensors(recording.outputs)]
        others = [each for each, need in zip(outputs, ctx.needs, strict=True) if not need]
        ctx.mark_non_differentiable(*others)
        return outputs

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        recording = ctx.recording
        if ctx.turn != recording.recorder.turn:
            raise AssertionError("Another pass was played before the gradient of this one.")
        needed = [each for each, need in zip(slopes, ctx.needs, strict=True) if need]
        for kept, each in zip(recording.slopes, needed, strict=True):
            kept.copy_(each)
        recording.back()
        return recording.of_masks.clone(), None


def recorded(work: Callable[[], None], recorder: Recorder) -> Callable[[], None]:
    """Records work; what it gives does it again, with results where they lay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=recorder.pool, stream=recorder.stream):
        work()
    return graph.replay


@contextmanager
def _on(stream: Any) -> Iterator[None]:
    """Within, work runs on a stream, behind what was asked for before and ahead of what follows."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(stream.device).wait_stream(stream)


def _leaves(value: Any) -> Iterator[Any]:
    """Tensors and all else that an input consists of, in order."""
    if isinstance(value, Mapping):
        yield from value
        value = tuple(value.values())
    if is_dataclass(value):
        value = tuple(vars(value).values())
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _tensors(value: Any, device: torch.device | None = None) -> list[Tensor]:
    """Its tensors; with a device, those that lie on one of its type."""
    tensors = [each for each in _leaves(value) if isinstance(each, Tensor)]
    return [each for each in tensors if device is None or each.device.type == device.type]


def _shapes(value: Any, device: torch.device) -> Iterator[Hashable]:
    """What inputs must have in common; values of tensors that lie elsewhere do not count."""
    for each in _leaves(value):
        if not isinstance(each, Tensor):
            yield each
        elif each.device.type == device.type:
            yield each.shape, each.dtype


def _with_tensors(value: Any, tensors: Iterator[Tensor], device: torch.device) -> Any:
    """The value with other tensors in place of those on the device, in their order."""
    if isinstance(value, Tensor):
        return next(tensors) if value.device.type == device.type else value
    if isinstance(value, Mapping):
        return {name: _with_tensors(each, tensors, device) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_with_tensors(each, tensors, device) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {name: _with_tensors(each, tensors, device) for name, each in vars(value).items()}
        return replace(value, **parts)
    return value
