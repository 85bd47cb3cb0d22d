"""Passes of a model: the thread that runs it, and which tokens a pass reads.

Hooks see activations only. A pass of a generation goes on from a cache of keys and values: it may
read the prompt, a part of it, or one new token. The model's own call says which, shapes do not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import RLock, get_ident
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from tracekit.errors import ConfigError, UnsupportedModelError

_RUNS_ELSEWHERE = (
    "The model runs in another thread while it is traced, where hooks would act in its passes too. "
    "Let one end before the other begins, or give the other thread a copy of the model."
)
_CACHES = ("past_key_values", "past_kv_cache_entry", "cache_params")
"""Arguments that bring a cache to a pass; a block of a HookedTransformer gets its own part."""


@dataclass(frozen=True, eq=False)
class Pass:
    """The positions of the tokens of one call of a model."""

    n_before: int = 0
    """Tokens that the cache holds: the first token of the pass has this position."""
    position_ids: Int[Tensor, "row pos"] | None = None
    """Position ids that the model was given; None: the model counts."""

    def key_positions(self, n_queries: int, n_keys: int) -> Int[Tensor, "row key"]:
        """The position in its text, without padding, of every key that the pass attends to.

        The last keys are those of the pass itself; a static cache has room for more.
        """
        first = max(0, self.n_before + n_queries - n_keys)
        columns = torch.arange(first, first + n_keys)[None]
        if self.position_ids is None:
            return columns
        ids = self.position_ids
        cached = columns[:, columns[0] < self.n_before].to(ids) + (ids[:, :1] - self.n_before)
        later = columns[:, cached.shape[1] + n_queries :].expand(len(ids), -1).to(ids)
        return torch.cat([cached.clamp(min=0), ids, later], 1)


_RUNNING: ContextVar[Pass | None] = ContextVar("tracekit_pass", default=None)


class ModelUse:
    """Records which threads run a model, so that one thread at a time can have it alone."""

    def __init__(self) -> None:
        """Starts without a thread."""
        self._lock, self._owner = RLock(), 0
        self._running: set[int] = set()

    def __reduce__(self) -> tuple[type[ModelUse], tuple[()]]:
        # A copy of a model is used apart from it.
        return ModelUse, ()

    @contextmanager
    def run_alone(self) -> Iterator[None]:
        """Within the block, passes of other threads are refused; other blocks wait for its end."""
        with self._lock:
            before, self._owner = self._owner, get_ident()
            try:
                alive = {thread.ident for thread in threading.enumerate()}
                if self._running & alive - {self._owner}:
                    raise ConfigError(_RUNS_ELSEWHERE)
                yield
            finally:
                self._owner = before

    def begin_pass(self, _module: Any, _args: Any, arguments: Mapping[str, Any]) -> None:
        """Called before a pass of the model, or of a block, with these arguments."""
        # Recorded first, so that a thread that takes the model alone sees it.
        self._running.add(get_ident())
        if self._owner not in (0, get_ident()):
            raise ConfigError(_RUNS_ELSEWHERE)
        caches = [arguments[name] for name in _CACHES if arguments.get(name) is not None]
        ids = arguments.get("position_ids")
        if ids is not None:
            # If each token has several numbers (time, height, width), the first is its place in a
            # text.
            ids = ids[0] if ids.ndim == 3 else ids.reshape(-1, ids.shape[-1])
        n_before = _count_cached(caches[0], arguments) if caches else 0
        _RUNNING.set(None if n_before is None else Pass(n_before, ids))

    def end_pass(self, *_: Any) -> None:
        """Called after a pass, even if it failed."""
        self._running.discard(get_ident())
        _RUNNING.set(None)


def _count_cached(cache: Any, arguments: Mapping[str, Any]) -> int | None:
    if (position := arguments.get("cache_position")) is not None:
        return int(position[0])
    try:
        if hasattr(cache, "get_seq_length"):
            return int(cache.get_seq_length())
        return int(cache.past_keys.shape[1])
    except (AttributeError, TypeError, ValueError):
        return None


def running_pass(n_tokens: int) -> Pass:
    """The current pass, whose activations have `n_tokens` positions.

    Raises:
        UnsupportedModelError: Nothing says which tokens these are.
    """
    recorded = _RUNNING.get()
    if recorded is None and n_tokens == 1:
        raise UnsupportedModelError(
            "A hook sees one token, and nothing says whether it begins a text or goes on with one: "
            "tracekit did not load this model, or its cache does not count tokens. Pass the model "
            "through tk.load_model, or generate with use_cache=False."
        )
    return recorded or Pass()
