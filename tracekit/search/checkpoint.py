"""The checkpoint of a local search: its measurements on disk, so that it can go on later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialised
from torch import Tensor

from tracekit._util.files import hold_lock, json_digest, tensors_digest, write_atomically
from tracekit._util.options import as_path
from tracekit._util.warn import warn
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices, members_of_mask
from tracekit.engine.cost import Cost
from tracekit.engine.gradients import FirstOrderPrediction
from tracekit.errors import RecordWarning, ResultFormatError
from tracekit.metrics import Effects
from tracekit.search.targets import Target

_FORMAT = 5
"""Of the tensors in the file; files of other formats belong to no search of this one."""
SET, GRADIENT = "set", "gradient"
"""Kinds of measurements."""


@dataclass(eq=False)
class MeasurementData:
    """The measurements of a search."""

    effects: dict[ComponentSet, Effects] = field(default_factory=dict)
    """Effects of sets on every example."""
    predictions: dict[ComponentSet, FirstOrderPrediction] = field(default_factory=dict)
    soft_gradients: dict[float, Mask] = field(default_factory=dict)
    """Gradients at soft masks whose entries are all equal, by that entry."""
    prices: dict[str, Cost] = field(
        default_factory=lambda: {SET: Cost(1.0, 0.0), GRADIENT: Cost(1.0, 1.0)}
    )
    """Passes for one measurement of a kind, with whatever an objective or a constraint adds."""


class SearchCheckpoint:
    """A file that holds the measurements of one search on one data set and model."""

    def __init__(self, path: Path, target: Target, config: Mapping[str, Any]) -> None:
        """Tries whether the file can be written; it is for this target and `config` only."""
        self._path = as_path("checkpoint", path)
        self._target = target
        settings = target.engine.config
        self._key = json_digest(
            {
                # With the values of the source: what was measured with others is of no use.
                "data": target.pairs.fingerprint,
                "components": target.registry.spec(),
                "metric": target.metric.name,
                "direction": target.metric.direction,
                "positions": settings.positions,
                "continuation_mean": settings.continuation_mean,
                "config": dict(config),
                "format": _FORMAT,
            }
        )
        # All ranks compute these here, together: later only one of them reads the file.
        clean = target.engine.clean
        log_probs = [clean.x] if clean.y is None else [clean.x, clean.y]
        # These tell models and metrics apart: the clean run, and effects of all components.
        self._proof = torch.stack([*(row.cpu() for row in log_probs), target.full_effects])
        target.engine.ranks.broadcast(self._check_writable)

    @contextmanager
    def in_use(self) -> Iterator[SearchCheckpoint]:
        """Keeps other searches, of this and of other processes, off the file."""
        with ExitStack() as lock:
            self._target.engine.ranks.broadcast(lambda: self._lock(lock))
            yield self

    def _lock(self, lock: ExitStack) -> None:
        try:
            lock.enter_context(hold_lock(self._path, wait=False))
        except BlockingIOError:
            raise self.error(
                "is in use by another search. Wait until that ends, or name another file."
            ) from None

    @property
    def exists(self) -> bool:
        """Whether there is such a file."""
        return self._target.engine.ranks.broadcast(self._path.exists)

    def save(self, measured: MeasurementData) -> None:
        """Writes the file, whole; one that cannot be written is a `RecordWarning` only."""
        if not self._target.engine.ranks.is_first:
            return
        n, predictions = self._target.n_components, measured.predictions.values()
        prices = [(price.forward, price.backward) for price in measured.prices.values()]
        tensors = {
            "proof": self._proof,
            "measured": _stack(from_indices(each, n) for each in measured.effects),
            "effects": _stack(measured.effects.values()),
            "predicted": _stack(from_indices(each, n) for each in measured.predictions),
            "gains": _stack(prediction.predicted_effects for prediction in predictions),
            "gradients": _stack(prediction.gradient for prediction in predictions),
            "soft_shares": torch.tensor(list(measured.soft_gradients), dtype=torch.float64),
            "soft_gradients": _stack(measured.soft_gradients.values()),
            "prices": torch.tensor(prices, dtype=torch.float64),
        }
        metadata = {"key": self._key, "sha256": tensors_digest(tensors)}
        try:
            write_atomically(self._path, serialised(tensors, metadata=metadata))
        except OSError as error:
            warn(
                f"The checkpoint {self._path} cannot be written ({error.strerror or error}). The "
                "search goes on without; if it is cut short, it starts from the last one written.",
                RecordWarning,
            )

    def load(self) -> MeasurementData:
        """Reads the file; refuses one of another search, model or data set."""
        unreadable = self.error("cannot be read. Delete it to start afresh.")
        try:
            with safe_open(self._path, framework="pt") as file:
                metadata = file.metadata() or {}
                names = file.keys()
                tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise unreadable from error
        if metadata.get("sha256") != tensors_digest(tensors):
            raise unreadable
        if metadata.get("key") == self._key:
            try:
                # Another machine may round differently; another model or metric differs by more.
                is_same = torch.allclose(tensors["proof"], self._proof, rtol=1e-3, atol=1e-4)
                measured = self._data_of(tensors)
            except (KeyError, ValueError, RuntimeError, TypeError) as error:
                raise unreadable from error
            if is_same:
                return measured
        raise self.error(
            "is of another search, model or data set. Name another file, or delete it to start "
            "afresh."
        )

    def error(self, text: str) -> ResultFormatError:
        """The error of this file that a text says of it."""
        return ResultFormatError(f"The checkpoint {self._path} {text}")

    def _data_of(self, tensors: Mapping[str, Tensor]) -> MeasurementData:
        """The measurements in the tensors of a file; any error where they are of another form."""
        n = self._target.n_components
        measured, predicted = (
            map(members_of_mask, _rows(tensors[name], n, torch.bool))
            for name in ("measured", "predicted")
        )
        effects = _rows(tensors["effects"], self._target.n_examples)
        gains, gradients, soft_gradients = (
            _rows(tensors[name], n) for name in ("gains", "gradients", "soft_gradients")
        )
        shares = tensors["soft_shares"].tolist()
        of_set, of_gradient = (Cost(*each) for each in tensors["prices"].tolist())
        predictions = zip(predicted, gains, gradients, strict=True)
        return MeasurementData(
            effects=dict(zip(measured, effects, strict=True)),
            predictions={each: FirstOrderPrediction(*rows) for each, *rows in predictions},
            soft_gradients=dict(zip(shares, soft_gradients, strict=True)),
            prices={SET: of_set, GRADIENT: of_gradient},
        )

    def _check_writable(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.is_dir():
                raise IsADirectoryError
            with TemporaryFile(dir=self._path.parent):
                pass
        except OSError as error:
            raise self.error("cannot be written. Name a file in a folder of yours.") from error


def _stack(rows: Iterable[Tensor]) -> Tensor:
    listed = list(rows)
    return torch.stack(listed) if listed else torch.zeros(0)


def _rows(values: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Sequence[Tensor]:
    if len(values) and (values.shape[1:] != (width,) or values.dtype != dtype):
        raise ValueError(f"The shape is {tuple(values.shape)}.")
    return values.unbind()
