"""The processes that share one trace: one for each device, each with its part of the examples.

`torchrun`, `accelerate launch` and Slurm start the same program once for each device; the processes
(*ranks*) do the same things in the same order, and in every pass each runs the model on its part of
the examples. `Ranks.sum_ranks` adds the parts up. Rank 0 decides for all ranks what they could
see differently (the clock, Ctrl-C, a file).
"""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor

from tracekit.errors import WorkerError

_T = TypeVar("_T")
_PATIENCE = timedelta(minutes=30)
"""Time that a rank waits for the others: as long as a single pass may take."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """The rank of this process among the processes that share a trace."""

    rank: int = 0
    """Its number; 0 reads the clock and writes."""
    count: int = 1
    """Number of processes."""
    _own: _CpuGroup | None = field(default=None, repr=False)
    """Their process group; None for a single process."""

    @classmethod
    def current(cls) -> Ranks:
        """The ranks of `torch.distributed`, or this process alone if that is not initialised."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return _ALONE
        world = dist.group.WORLD
        if world not in _RANKS_OF_GROUPS:
            _handle_interrupts()
            _RANKS_OF_GROUPS[world] = cls(dist.get_rank(), dist.get_world_size(), _CpuGroup())
        return _RANKS_OF_GROUPS[world]

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that prints and writes."""
        return self.rank == 0

    @property
    def _group(self) -> Any:
        return None if self._own is None else self._own.group

    def take_share(self, items: Int[Tensor, " item"]) -> Int[Tensor, " own"]:
        """This rank's part of some items; neighbours go to different ranks."""
        return items[self.rank :: self.count]

    def sum_ranks(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Sums tensors over all ranks, in one reduction; Ctrl-C in any of them raises in all."""
        if self.count == 1:
            return parts
        # Ranks get Ctrl-C at different points of the code; they react where all of them meet.
        message = torch.tensor([float(bool(_interrupts))], dtype=torch.float64)
        flat = torch.cat([message, *(part.detach().cpu().double().flatten() for part in parts)])
        with _translate_errors():
            dist.all_reduce(flat, group=self._group)
        if flat[0]:
            _interrupts.clear()
            raise KeyboardInterrupt
        sums = flat[1:].split([part.numel() for part in parts])
        return tuple(
            total.reshape(part.shape).to(part.device, part.dtype)
            for total, part in zip(sums, parts, strict=True)
        )

    def broadcast(self, make: Callable[[], _T]) -> _T:
        """Calls `make` on rank 0; returns its value, or raises its error, on all ranks."""
        if self.count == 1:
            return make()
        message: list[Any] = [None]
        if self.is_first:
            try:
                message = [(make(), None)]
            except Exception as error:  # The other ranks wait for a value or an error.
                message = [(None, error)]
        with _translate_errors():
            dist.broadcast_object_list(message, src=0, group=self._group)
        value, error = message[0]
        if error is not None:
            raise error
        return value

    def check_same(self, **named: object) -> None:
        """Raises a `WorkerError` for ranks whose named values differ, and names what differs."""
        if self.count == 1:
            return
        message: list[Any] = [None] * self.count
        with _translate_errors():
            dist.all_gather_object(message, named, group=self._group)
        for name in named:
            values = [each.get(name) for each in message]
            other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
            if other is not None:
                raise WorkerError(
                    f"The ranks of this trace differ in {name.replace('_', ' ')}: rank 0 has "
                    f"{values[0]}, rank {other} has {values[other]}. Start all of them with the "
                    "same command, data and version."
                )


class _CpuGroup:
    """A process group on the CPU that is released before Python ends.

    Otherwise a thread of the group that still holds a tensor aborts the process with exit code -6
    after all went well (pytorch/pytorch#179291). So nothing else may keep the group.
    """

    def __init__(self) -> None:
        self.group: Any = dist.new_group(backend="gloo", timeout=_PATIENCE)
        atexit.register(self._close)

    def _close(self) -> None:
        if dist.is_initialized():
            with suppress(ValueError):  # The caller has ended all groups and begun new ones.
                dist.destroy_process_group(self.group)
        self.group = None


_ALONE = Ranks()
_interrupts: list[int] = []
"""Ctrl-C that the ranks have not yet reacted to."""
_RANKS_OF_GROUPS: WeakKeyDictionary[Any, Ranks] = WeakKeyDictionary()
"""The ranks of each process group; all of them make theirs together, once."""


def join_launched() -> Ranks:
    """Joins the processes that a launcher has started, if its environment variables are set."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with _translate_errors():
            dist.init_process_group(backend, timeout=_PATIENCE)
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    return Ranks.current()


def launched_device() -> str | None:
    """The accelerator that a launcher assigned to this process, e.g. `cuda:1`, or None."""
    if "LOCAL_RANK" not in os.environ or not torch.cuda.is_available():
        return None
    return f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"


def _handle_interrupts() -> None:
    """Makes Ctrl-C wait until all ranks meet; a second Ctrl-C ends this process."""

    def note(number: int, frame: Any) -> None:
        if _interrupts:
            raise KeyboardInterrupt
        _interrupts.append(number)

    with suppress(ValueError):  # Only the main thread gets Ctrl-C.
        signal.signal(signal.SIGINT, note)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turns the errors of a lost rank into one clear error."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        raise WorkerError(
            "Another process of this trace has ended or cannot be reached. Look for its own "
            "message; the same command goes on from the checkpoint, if there is one."
        ) from error
