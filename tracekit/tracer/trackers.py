"""Watching runs: records for any callable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tracekit._util.markup import clean_text
from tracekit._util.options import short_repr
from tracekit._util.warn import warn
from tracekit.errors import ConfigError, RecordWarning
from tracekit.results.result import TraceResult
from tracekit.search.base import config_of
from tracekit.tracer.request import ResolvedRequest

RecordKind = Literal["start", "step", "result", "end"]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Something that happened in a run."""

    kind: RecordKind
    """`start`, `step` (an epoch, a size, an expanded set), `result` or `end`."""
    setting: Mapping[str, Any]
    """Method, its options, model, data set, components, metric, seed; the same in all records."""
    seconds: float
    """Since the run started."""
    step: int = 0
    """Number of the step, from 1; 0 before the first one."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Of a step: `size` (number of components) and `effect`. Of a result also `full_effect`,
    `passes`, and where there are any `held_out_effect` and further metrics."""
    result: TraceResult | None = None
    """Of a record of a result, the result."""
    stopped: str | None = None
    """At the end: what cut the run short, if anything; the name of the error if it failed."""


Observer = Callable[[RunRecord], object]
"""A function of a record; its return value is not used."""


class Observed:
    """Tells an observer about one run. As a context it tells the start and the end."""

    def __init__(self, observe: Observer | None, request: ResolvedRequest) -> None:
        """Tells nothing yet, and nobody if `observe` is None; of several processes, one tells."""
        if observe is not None and not callable(observe):
            raise ConfigError(f"observe is {short_repr(observe)}. Give a callable of a RunRecord.")
        self._observe = observe if request.question.search_engine.ranks.is_first else None
        self._setting = _settings_of(request)
        self._start, self._n_steps = time.perf_counter(), 0
        self._stopped: str | None = None

    def __enter__(self) -> Observed:
        self._start = time.perf_counter()
        self._notify("start")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._notify("end", stopped=self._stopped if kind is None else kind.__name__)

    def step(self, **values: float) -> None:
        """Tells what a step reached."""
        self._n_steps += 1
        self._notify("step", values=values)

    def results(self, results: Sequence[TraceResult]) -> None:
        """Tells the results."""
        for result in results:
            self._stopped = self._stopped or result.stopped
            self._notify("result", values=_values_of(result), result=result)

    def _notify(self, kind: RecordKind, **fields: Any) -> None:
        if self._observe is None:
            return
        seconds = time.perf_counter() - self._start
        record = RunRecord(
            kind=kind, setting=self._setting, seconds=seconds, step=self._n_steps, **fields
        )
        try:
            self._observe(record)
        except Exception as error:
            # Whatever it is: a lost connection, a full disk, a mistake in somebody's callable.
            observer, self._observe = self._observe, None
            name = getattr(observer, "__name__", type(observer).__name__)
            warn(
                f"The tracker {clean_text(name)} failed ({type(error).__name__}: "
                f"{clean_text(str(error))}). It gets no further records of this run; the "
                "search goes on.",
                RecordWarning,
            )


def _settings_of(request: ResolvedRequest) -> dict[str, Any]:
    goal, question, engine = request.goal, request.question, request.question.search_engine
    config = config_of(request.searches[0])
    return {
        "model": question.model_name,
        "dataset": engine.pairs.name,
        "dataset_fingerprint": engine.fingerprint,
        "n_examples": len(engine.pairs),
        "components": question.registry.describe(),
        "n_components": len(question.registry),
        "metric": engine.metric.name,
        "source": question.source,
        "source_seed": question.setup.source_seed,
        "direction": question.direction,
        "method": request.search.name,
        "objective": request.objective_name,
        "sign": "positive" if request.sign > 0 else "negative",
        "budgets": list(goal.budgets),
        "target_effect": goal.target,
        "seed": request.seed,
        **{f"options.{name}": value for name, value in config.items()},
    }


def _values_of(result: TraceResult) -> dict[str, float]:
    values = {
        "size": result.n_selected,
        "effect": result.effect,
        "full_effect": result.full_effect,
        "passes": result.cost.forward_equivalents,
    }
    if result.held_out_effect is not None:
        values["held_out_effect"] = result.held_out_effect
    return {**values, **result.extra_effects}
