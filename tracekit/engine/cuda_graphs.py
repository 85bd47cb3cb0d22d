"""CUDA graphs of passes: a pass is captured once for each shape of its inputs, then replayed.

A small model's pass is a thousand kernels of a few microseconds each, and the GPU idles while
Python launches them one by one. A CUDA graph is launched as a whole, and reads inputs at fixed
addresses, to which the inputs of a later pass are copied first. Graphs live as long as one search,
so that a model that is changed later is never run as it was. They share memory: no other pass may
be replayed between a pass and its gradient, which is checked.
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

_MAX_SHAPES = 32
"""Shapes that are captured in a search; further ones would seldom come again."""
_DEVICE_TYPES = {"cuda"}


class CudaGraphCache:
    """The CUDA graphs of passes over one data set."""

    def __init__(self, model: HookedModel) -> None:
        """Captures nothing yet. Passes of a model on several devices are never captured."""
        devices = {parameter.device for parameter in model.parameters()}
        self._device = device_of(model)
        self._is_possible = devices == {self._device} and self._device.type in _DEVICE_TYPES
        self._tolerance = 1e-4 if is_exact(model) else 0.05
        self._graphs: dict[Hashable, _CapturedPass | None] | None = None
        self._has_failed = False
        self.stream: Any = None
        """Where passes are captured, after a first run in which libraries set themselves up."""
        self.pool: Any = None
        """Memory of all graphs."""
        self.n_replays = 0

    @property
    def is_on(self) -> bool:
        """Whether passes are captured; batches are then padded to few shapes."""
        return self._graphs is not None and not self._has_failed

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within the block, passes of a shape that comes again are captured and replayed."""
        if not self._is_possible or self._graphs is not None:
            yield
            return
        self._graphs, self._has_failed = {}, False
        if self._device.type == "cuda":
            self.stream, self.pool = torch.cuda.Stream(self._device), torch.cuda.graph_pool_handle()
        try:
            yield
        finally:
            self._graphs = self.stream = self.pool = None

    def run(self, run: Callable[..., Any], name: Hashable, masks: Tensor, *inputs: Any) -> Any:
        """`run(masks, *inputs)`, replayed where possible; `name` tells functions apart."""
        if self._graphs is None or self._has_failed:
            return run(masks, *inputs)
        has_gradient = torch.is_grad_enabled() and masks.requires_grad
        key = (name, has_gradient, *_input_signature((masks, inputs), self._device))
        if key not in self._graphs:
            # Only a shape that comes again is captured.
            if len(self._graphs) < _MAX_SHAPES:
                self._graphs[key] = None
            return run(masks, *inputs)
        captured = self._graphs[key]
        if captured is None:
            captured = _CapturedPass(self, run, masks, inputs, has_gradient)
            try:
                captured.capture()
                captured.check_equal(masks, inputs, self._tolerance)
            except (RuntimeError, AssertionError) as error:
                self._has_failed = True
                warn(
                    "CUDA graphs cannot be used on this device, and small models take longer: "
                    f"{str(error).strip().splitlines()[0]} Results are the same.",
                    ModelWarning,
                )
                return run(masks, *inputs)
            self._graphs[key] = captured
        return captured.replay(masks, inputs)


@dataclass(eq=False)
class _CapturedPass:
    """A pass for inputs of one shape, and its gradient with respect to the masks."""

    cache: CudaGraphCache
    run: Callable[..., Any]
    masks: Tensor
    inputs: Any
    has_gradient: bool
    outputs: Any = None

    def __post_init__(self) -> None:
        """Copies the inputs; the graph reads these copies."""
        self.masks = self.masks.detach().clone().requires_grad_(self.has_gradient)
        device = self.masks.device
        copies = iter([each.clone() for each in _tensors_in(self.inputs, device)])
        self.inputs = _swap_tensors(self.inputs, copies, device)

    def capture(self) -> None:
        with _use_stream(self.cache.stream):
            self._forward()
            self.output_gradients = [torch.zeros_like(each) for each in self._differentiable()]
            if self.has_gradient:
                self._backward()
        self.replay_forward = capture_graph(self._forward, self.cache)
        if self.has_gradient:
            self.replay_backward = capture_graph(self._backward, self.cache)

    def check_equal(self, masks: Tensor, inputs: Any, tolerance: float) -> None:
        """Refuses a graph with other outputs, or another gradient, than the pass itself."""
        results = []
        for outputs in (self.replay(masks, inputs), self.run(masks, *inputs)):
            values = _tensors_in(outputs)
            if self.has_gradient:
                differentiable = [each for each in values if each.requires_grad]
                ones = [torch.ones_like(each) for each in differentiable]
                values += torch.autograd.grad(differentiable, masks, ones)
            results.append([each.detach().float() for each in values])
        for replayed, plain in zip(*results, strict=True):
            # Values that are not finite are refused later, with their example.
            most = tolerance * plain.nan_to_num().abs().max().clamp(min=1.0)
            torch.testing.assert_close(replayed, plain, rtol=0.0, atol=most.item(), equal_nan=True)

    def replay(self, masks: Tensor, inputs: Any) -> Any:
        device = self.masks.device
        sources = [masks.detach(), *_tensors_in(inputs, device)]
        targets = [self.masks.detach(), *_tensors_in(self.inputs, device)]
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
        outputs = _Replay.apply(masks, self) if self.has_gradient else self.replayed_outputs()
        return _swap_tensors(self.outputs, iter(outputs), device)

    def replayed_outputs(self) -> tuple[Tensor, ...]:
        """The outputs for the present content of the copied inputs."""
        self.cache.n_replays += 1
        self.replay_forward()
        return tuple(each.detach().clone() for each in _tensors_in(self.outputs))

    def _forward(self) -> None:
        self.outputs = self.run(self.masks, *self.inputs)

    def _backward(self) -> None:
        (self.mask_gradient,) = torch.autograd.grad(
            self._differentiable(), self.masks, self.output_gradients
        )

    def _differentiable(self) -> list[Tensor]:
        return [each for each in _tensors_in(self.outputs) if each.requires_grad]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, masks: Tensor, captured: _CapturedPass) -> tuple[Tensor, ...]:
        outputs = captured.replayed_outputs()
        ctx.captured, ctx.number = captured, captured.cache.n_replays
        ctx.needs = [each.requires_grad for each in _tensors_in(captured.outputs)]
        others = [each for each, need in zip(outputs, ctx.needs, strict=True) if not need]
        ctx.mark_non_differentiable(*others)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        captured = ctx.captured
        if ctx.number != captured.cache.n_replays:
            raise AssertionError("Another pass was replayed before the gradient of this one.")
        needed = [each for each, need in zip(gradients, ctx.needs, strict=True) if need]
        for target, gradient in zip(captured.output_gradients, needed, strict=True):
            target.copy_(gradient)
        captured.replay_backward()
        return captured.mask_gradient.clone(), None


def capture_graph(work: Callable[[], None], cache: CudaGraphCache) -> Callable[[], None]:
    """Captures work; the returned function repeats it, with results at the same addresses."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=cache.pool, stream=cache.stream):
        work()
    return graph.replay


@contextmanager
def _use_stream(stream: Any) -> Iterator[None]:
    """Within the block, work runs on a stream, after earlier work and before later work."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(stream.device).wait_stream(stream)


def _flatten_input(value: Any) -> Iterator[Any]:
    """Tensors and all else that an input consists of, in order."""
    if isinstance(value, Mapping):
        yield from value
        value = tuple(value.values())
    if is_dataclass(value):
        value = tuple(vars(value).values())
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _flatten_input(each)
    else:
        yield value


def _tensors_in(value: Any, device: torch.device | None = None) -> list[Tensor]:
    """Its tensors; with a device, those on a device of the same type."""
    tensors = [each for each in _flatten_input(value) if isinstance(each, Tensor)]
    return [each for each in tensors if device is None or each.device.type == device.type]


def _input_signature(value: Any, device: torch.device) -> Iterator[Hashable]:
    """What two inputs of one graph must share: values, and shapes of tensors on the device."""
    for each in _flatten_input(value):
        if not isinstance(each, Tensor):
            yield each
        elif each.device.type == device.type:
            yield each.shape, each.dtype


def _swap_tensors(value: Any, tensors: Iterator[Tensor], device: torch.device) -> Any:
    """The value with other tensors in place of those on the device, in their order."""
    if isinstance(value, Tensor):
        return next(tensors) if value.device.type == device.type else value
    if isinstance(value, Mapping):
        return {name: _swap_tensors(each, tensors, device) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_swap_tensors(each, tensors, device) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {name: _swap_tensors(each, tensors, device) for name, each in vars(value).items()}
        return replace(value, **parts)
    return value
