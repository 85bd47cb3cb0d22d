"""The ledger of a search: everything measured so far, within limits, on disk if asked.

Nothing is measured twice. A search that is run again with the ledger of one that was cut short
takes the same decisions and reads what is written there instead of measuring it, so it goes on
where the first one stopped. What was read counts as spent, or the decisions would differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tracekit.engine.engine import Cost, Engine, FirstOrder
from tracekit.engine.prefix_tree import Set
from tracekit.errors import CheckpointError, ConfigError, NonFiniteMetricError
from tracekit.masks import Mask
from tracekit.metrics import Effects

Stop = Literal["max_forwards", "max_seconds", "interrupted"]

_SAVED_EVERY = 60.0
_TOGETHER = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a search may do."""

    max_forwards: float = float("inf")
    """Passes over the data, forward and backward alike."""
    max_seconds: float = float("inf")
    """Wall time."""

    def __post_init__(self) -> None:
        for name in ("max_forwards", "max_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}. It must be positive.")


class LimitReachedError(Exception):
    """A limit was reached; the search ends with the best so far."""

    def __init__(self, limit: Stop) -> None:
        """Says which."""
        super().__init__(limit)
        self.limit: Stop = limit


class Ledger:
    """Measures for a search and keeps what was measured."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        checkpoint: Path | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts empty, or with what the checkpoint holds.

        Args:
            engine: Measures.
            limits: Reaching one raises `LimitReachedError`.
            checkpoint: File to write to now and then, and at the end.
            config: What must be the same for the checkpoint to be of use, beside model and data.

        Raises:
            CheckpointError: The file belongs to another search, model or data set, or cannot be
                written.
        """
        self.engine = engine
        self.spent = 0.0
        """Passes so far, those that the checkpoint held included."""
        self.saved = Cost()
        """The part of it that the checkpoint saved."""
        self._limits = limits
        self._effects: dict[Set, Effects] = {(): torch.zeros(engine.n_examples)}
        self._ahead: dict[Set, FirstOrder] = {}
        self._soft: list[Mask] = []
        # Held by the checkpoint, not asked for yet.
        self._unread: dict[str, set[Set]] = {"effects": set(), "ahead": set()}
        self._checkpoint = checkpoint
        self._key = _key(engine, config or {})
        self._start = self._written = time.monotonic()
        if checkpoint is not None:
            _check_writable(checkpoint)
            if checkpoint.exists():
                self._load(checkpoint)

    # ---- measuring ------------------------------------------------------------------------

    def effects(self, one: Set) -> Effects:
        """Effects of a set that was measured, on every example."""
        return self._effects[one]

    def __contains__(self, one: object) -> bool:
        return one in self._effects and one not in self._unread["effects"]

    def adopt(self, known: Mapping[Set, Effects]) -> None:
        """Takes over what was measured elsewhere."""
        self._effects.update(known)

    def measure(self, sets: Iterable[Set], label: str) -> list[Set]:
        """Measures the sets that are new, as many as the limits allow, and returns those.

        Raises:
            LimitReachedError: Before the first one, if there is no room for any.
        """
        asked = [one for one in dict.fromkeys(sets) if one not in self]
        if not asked:
            return []
        self._allow(1)
        asked = asked[: int(self._limits.max_forwards - self.spent)] if self._bounded else asked
        # Measured together, sets share more; but the clock and the checkpoint want their turn.
        timed = self._limits.max_seconds < float("inf") or self._checkpoint is not None
        size = _TOGETHER if timed else len(asked)
        done: list[Set] = []
        for first in range(0, len(asked), size):
            if first and self._late:
                break
            some = asked[first : first + size]
            missing = [one for one in some if one not in self._effects]
            if missing:
                rows = self.engine.effects_of_sets(missing, label)
                self._effects.update(zip(missing, rows, strict=True))
            self._unread["effects"] -= set(some)
            self._count(Cost(len(missing), 0), Cost(len(some) - len(missing), 0))
            done += some
        return done

    def first_order(self, one: Set) -> FirstOrder:
        """What changing a component of a set would bring, to first order.

        Raises:
            LimitReachedError: There is no room for it.
            NonFiniteMetricError: The gradient is not finite.
        """
        if one in self._ahead and one not in self._unread["ahead"]:
            return self._ahead[one]
        self._allow(2)
        known = one in self._ahead
        if not known:
            ahead = self.engine.first_order(one)
            if not torch.isfinite(ahead.gradient).all():
                raise NonFiniteMetricError(
                    f"The gradient of the metric {self.engine.metric.name!r} is not finite at "
                    f"{len(one)} components. Use a bounded metric such as probability-drop."
                )
            # A prediction beyond the range of numbers is still the best one.
            self._ahead[one] = FirstOrder(ahead.gains.nan_to_num(), ahead.gradient)
        self._unread["ahead"].discard(one)
        self._count(*(Cost(), Cost(1, 1)) if known else (Cost(1, 1), Cost()))
        return self._ahead[one]

    def soft_gradient(self, step: int, compute: Callable[[], Mask]) -> Mask:
        """The gradient of a step on a soft mask; steps come in order.

        Raises:
            LimitReachedError: There is no room for it.
        """
        self._allow(2)
        known = step < len(self._soft)
        if not known:
            self._soft.append(compute())
        self._count(*(Cost(), Cost(1, 1)) if known else (Cost(1, 1), Cost()))
        return self._soft[step]

    # ---- limits ---------------------------------------------------------------------------

    @property
    def room(self) -> float:
        """Passes left."""
        return self._limits.max_forwards - self.spent

    @property
    def _bounded(self) -> bool:
        return self._limits.max_forwards < float("inf")

    def _allow(self, passes: int) -> None:
        if self.room < passes:
            raise LimitReachedError("max_forwards")
        if self._late:
            raise LimitReachedError("max_seconds")

    @property
    def _late(self) -> bool:
        return time.monotonic() - self._start > self._limits.max_seconds

    def cut_short(self) -> LimitReachedError:
        """The limit that keeps sets from being measured."""
        return LimitReachedError("max_seconds" if self._late else "max_forwards")

    def _count(self, done: Cost, read: Cost) -> None:
        self.spent += done.forward_equivalents + read.forward_equivalents
        self.saved += read
        if time.monotonic() - self._written > _SAVED_EVERY:
            self.save()

    # ---- on disk --------------------------------------------------------------------------

    def save(self) -> None:
        """Writes the checkpoint, if there is one; an old one stays whole until the new one is."""
        from safetensors.torch import save_file

        self._written = time.monotonic()
        if self._checkpoint is None:
            return
        measured, foretold = list(self._effects), list(self._ahead)
        tensors = {
            "proof": _proof(self.engine),
            **_ragged("measured", measured),
            **_ragged("foretold", foretold),
            "effects": _stack([self._effects[one] for one in measured]),
            "gains": _stack([self._ahead[one].gains for one in foretold]),
            "gradients": _stack([self._ahead[one].gradient for one in foretold]),
            "soft": _stack(self._soft),
        }
        draft = _draft(self._checkpoint)
        save_file(tensors, draft, metadata={"key": self._key})
        os.replace(draft, self._checkpoint)

    def _load(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                key = (file.metadata() or {}).get("key")
                held: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"The checkpoint {path} cannot be read. Delete it to start afresh."
            ) from error
        proof = _proof(self.engine)
        # Another machine may round differently; another model or metric differs by far more.
        if key != self._key or not torch.allclose(held["proof"], proof, rtol=1e-3, atol=1e-4):
            raise CheckpointError(
                f"The checkpoint {path} is of another search, model or data set. "
                "Name another file, or delete it to start afresh."
            )
        sets = _unragged("measured", held)
        self._effects.update(zip(sets, held["effects"], strict=True))
        for place, one in enumerate(_unragged("foretold", held)):
            self._ahead[one] = FirstOrder(held["gains"][place], held["gradients"][place])
        self._soft = list(held["soft"]) if held["soft"].numel() else []
        self._unread = {"effects": set(self._effects) - {()}, "ahead": set(self._ahead)}


def _draft(checkpoint: Path) -> Path:
    return checkpoint.with_name(checkpoint.name + ".part")


def _check_writable(checkpoint: Path) -> None:
    """Refuses a file that cannot be written, before hours are spent.

    Raises:
        CheckpointError: Its folder cannot be made, or nothing can be written there.
    """
    try:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        if checkpoint.is_dir():
            raise IsADirectoryError
        _draft(checkpoint).touch()
        _draft(checkpoint).unlink()
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint {checkpoint} cannot be written. Name a file in a folder of yours."
        ) from error


def _proof(engine: Engine) -> Tensor:
    """Numbers that tell models and metrics apart: clean scores, and effects of all components."""
    scores = [engine.clean.x] if engine.clean.y is None else [engine.clean.x, engine.clean.y]
    return torch.stack([*(one.cpu() for one in scores), engine.full_effects])


def _key(engine: Engine, config: Mapping[str, Any]) -> str:
    """Names a search on a data set."""
    described = {
        "data": engine.pairs.fingerprint,
        "components": engine.registry.spec(),
        "metric": engine.metric.name,
        "positions": engine.positions,
        "mean": engine.mean,
        "config": dict(config),
    }
    text = json.dumps(described, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _ragged(name: str, sets: list[Set]) -> dict[str, Tensor]:
    flat = [i for one in sets for i in one]
    return {
        f"{name}.members": torch.tensor(flat, dtype=torch.int32),
        f"{name}.sizes": torch.tensor([len(one) for one in sets], dtype=torch.int32),
    }


def _unragged(name: str, held: Mapping[str, Tensor]) -> list[Set]:
    sizes = held[f"{name}.sizes"].tolist()
    return [tuple(part.tolist()) for part in held[f"{name}.members"].split(sizes)]


def _stack(rows: list[Tensor]) -> Tensor:
    return torch.stack(rows) if rows else torch.zeros(0)
