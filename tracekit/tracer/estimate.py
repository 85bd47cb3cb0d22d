"""What a run will take, before it begins: passes, time and memory.

Searches say how many passes they take at most. What one pass takes is measured, once, on the
loaded model and the tracer's own data.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tracekit._util.markup import html_text, printable
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.errors import ConfigError
from tracekit.results.pareto_statistics import (
    MOST_CONTROLS,
    passes_from_all,
    sizes_of_statistics,
)
from tracekit.search import Goal, Search
from tracekit.search.base import Planned, planned_for
from tracekit.search.cross_fit import RANKED_ALONE, sizes_alone
from tracekit.search.objectives import Objective, ObjectiveName

_PROBED_SETS = 4
"""Sets that are measured to see what a pass takes."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run will take. Printed, it is one line."""

    method: str
    """Name of the search."""
    passes: float
    """Passes over the data, forward and backward alike: what the result's `cost` will say, or at
    most that."""
    is_exact: bool
    """Whether the run takes exactly these passes."""
    example_passes: float
    """Examples that are run in all, each way counted; further metrics, held-out examples and
    statistics included."""
    seconds: float
    """Wall time, from one timed probe. Where `is_exact` is false, at most about that."""
    memory: int | None
    """Bytes at the peak: of the accelerator during the probe, or of this process so far; None
    where the system does not say."""

    @property
    def total(self) -> str:
        """Passes and time as a phrase, such as `up to 250 passes, about 4 min`."""
        bound = "" if self.is_exact else "up to "
        return f"{bound}{self.passes:.0f} passes, about {duration(self.seconds)}"

    def __repr__(self) -> str:
        memory = "" if self.memory is None else f"; {self.memory / 2**20:.0f} MiB"
        return printable(
            f"Estimate({self.method}: {self.total}; {self.example_passes:.0f} examples are "
            f"run{memory})"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<p>{html_text(repr(self))}</p>"


def duration(seconds: float) -> str:
    """A time as people say it, e.g. `40 s`, `4 min` or `2.5 h`."""
    if seconds < 0.95:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a search is asked, as far as it decides how much is run."""

    search: Search
    goal: Goal
    objective: ObjectiveName | Objective = "mean"
    n_components: int
    n_examples: int
    n_kept: int | None = None
    """Examples on which something is to stay as it is; None: nothing is."""
    n_also: int = 0
    """Further metrics."""
    n_held_out: int = 0
    """Examples that no search sees."""
    statistics: bool | None = None
    """Of a front, whether held-out effects and controls are measured; None: this is no front."""

    def planned(self) -> Planned | None:
        """Passes as the result's `cost` counts them; None if the search does not say."""
        searched = self._searched(self.search, self._goal)
        if searched is None:
            return None
        cost, is_exact = searched.cost, searched.is_exact
        if self._has_objective:
            cost += Cost(1)
        if self._chooses:
            goal = self.goal
            if self.statistics is not None:
                last = goal.budgets[-1]
                sizes = sizes_alone(self.n_components, 1, last)
                sizes = {*sizes_of_statistics(range(1, last + 1)), *sizes}
                goal = Goal(budgets=tuple(sorted(sizes)))
            rival = planned_for(self._rival, self.n_components, goal)
            # Those of a front are counted with its statistics.
            is_front = self.statistics is not None
            halves = Cost() if is_front else self._of_halves([self.search, self._rival], goal)
            if halves is None or rival is None:
                return None
            return Planned(cost=cost + halves + rival.cost)
        return Planned(cost=cost, is_exact=is_exact and self.n_kept is None)

    def further_passes(self) -> float:
        """Passes that no `cost` of a result counts: measured besides, or for statistics."""
        n_results = max(1, len(self.goal.budgets))
        if self.statistics is not None:
            n_results = self.goal.budgets[-1]
        share = self.n_held_out / self.n_examples
        passes = n_results * ((self.n_also > 0) + share * (1 + (self.n_also > 0)))
        if self.statistics is None:
            return passes
        sizes = sizes_of_statistics(range(1, self.goal.budgets[-1] + 1))
        searches = [self.search, self._rival] if self._chooses else [self.search]
        if self.statistics or self._chooses:
            halves = self._of_halves(searches, Goal(budgets=tuple(sizes)))
            passes += 0 if halves is None else halves.forward_equivalents
        if self.statistics:
            from_all = Cost(passes_from_all(self.n_components, sizes))
            passes += MOST_CONTROLS * len(sizes)
            passes += self._as_asked(from_all, is_local=True).forward_equivalents
        return passes

    # ---- parts --------------------------------------------------------------------------------

    @property
    def _goal(self) -> Goal:
        if self.n_kept is not None and getattr(self.search, "records_every_size", False):
            return self.goal.with_smaller_sizes()
        return self.goal

    @property
    def _has_objective(self) -> bool:
        return self.objective not in ("mean", "auto")

    @property
    def _chooses(self) -> bool:
        return self.objective == "auto"

    @property
    def _rival(self) -> Search:
        return RANKED_ALONE

    def _searched(self, search: Search, goal: Goal) -> Planned | None:
        """A search by the objective, and within bounds."""
        planned = planned_for(search, self.n_components, goal)
        if planned is None:
            return None
        is_local = getattr(search, "name", "") == "local-search" or bool(
            getattr(search, "refine", False)
        )
        cost = planned.cost
        if getattr(search, "max_passes", None) is None:
            # A limit is on all that is run.
            cost = self._as_asked(cost, is_local=is_local)
        is_exact = planned.is_exact and self.n_kept is None
        if self._has_objective:
            is_exact = is_exact and planned.cost.backward == 0
        if self.n_kept is not None:
            cost += Cost(2 * max(1, len(goal.budgets)) * self.n_kept / self.n_examples)
        return Planned(cost=cost, is_exact=is_exact)

    def _as_asked(self, cost: Cost, *, is_local: bool) -> Cost:
        """What work takes by the objective, and within bounds.

        Args:
            cost: What it takes by the mean, without bounds.
            is_local: Whether `cost` counts gradients as two passes forward each.
        """
        if self._has_objective:
            # Slopes of the objective need effects before each gradient.
            cost += Cost(cost.forward_equivalents / 2 if is_local else cost.backward)
        if self.n_kept is not None:
            cost += Cost(cost.forward_equivalents * (0.5 + 1.5 * self.n_kept / self.n_examples))
        return cost

    def _of_halves(self, searches: Sequence[Search], goal: Goal) -> Cost | None:
        """What searches on both halves of the examples take, and measuring their sets."""
        cost = Cost()
        for search in searches:
            planned = self._searched(search, goal)
            if planned is None:
                return None
            cost += planned.cost + Cost(2 * len(goal.budgets))
        return cost


@dataclass(frozen=True)
class Probe:
    """What a pass over the data takes, measured."""

    forward: float
    """Seconds of a pass with one set of components."""
    gradient: float | None
    """Seconds of a gradient, there and back; None if none is taken."""
    memory: int | None
    """Bytes at the peak."""


def probe(engine: Engine, *, with_gradient: bool) -> Probe:
    """Measures what passes take; clean and counterfactual runs are done before.

    Args:
        engine: What will be searched.
        with_gradient: Whether to take a gradient too.
    """
    _ = engine.full_effects
    is_cuda = engine.device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(engine.device)
    n = engine.n_components
    # Spread over the layers: how much sets share depends on where they begin.
    sets = [(i * n // _PROBED_SETS,) for i in range(min(n, _PROBED_SETS))]
    start = _now(engine)
    engine.set_effects(sets)
    forward = (_now(engine) - start) / len(sets)
    gradient = None
    if with_gradient:
        start = _now(engine)
        engine.gradient(torch.full((n,), 0.5), torch.ones_like)
        gradient = _now(engine) - start
    memory = torch.cuda.max_memory_allocated(engine.device) if is_cuda else _peak_of_process()
    return Probe(forward, gradient, memory)


def _now(engine: Engine) -> float:
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    return time.perf_counter()


def _peak_of_process() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def estimate(question: Question, engine: Engine) -> Estimate:
    """What a run will take.

    Args:
        question: The run.
        engine: The data set; it is probed, and the probe is in its account of passes.

    Raises:
        ConfigError: The search does not say how many passes it takes.
    """
    planned = question.planned()
    if planned is None:
        raise ConfigError(
            f"The search {question.search.name!r} does not say how many passes it takes. Give it a "
            "method planned(n_components, goal) that returns tracekit.search.Planned."
        )
    return estimate_planned(
        question.search.name,
        planned,
        engine,
        further=question.further_passes(),
        max_seconds=getattr(question.search, "max_seconds", None),
    )


def estimate_planned(
    name: str,
    planned: Planned,
    engine: Engine,
    *,
    further: float = 0.0,
    max_seconds: float | None = None,
) -> Estimate:
    """What work takes whose passes are known.

    Args:
        name: What the estimate calls it.
        planned: Its passes.
        engine: The data set; it is probed, and the probe is in its account of passes.
        further: Passes that `planned` does not count.
        max_seconds: Time after which it stops by itself; None: it does not.
    """
    cost = planned.cost
    probed = probe(engine, with_gradient=cost.backward > 0)
    gradient = 2 * probed.forward if probed.gradient is None else probed.gradient
    seconds = (cost.forward - cost.backward + further) * probed.forward + cost.backward * gradient
    passes = cost.forward_equivalents
    return Estimate(
        method=name,
        passes=passes,
        is_exact=planned.is_exact,
        example_passes=(passes + further) * engine.n_examples,
        seconds=seconds if max_seconds is None else min(seconds, max_seconds),
        memory=probed.memory,
    )


def most_passes(question: Question) -> float | None:
    """Passes of a run in all, for its progress bar; None if the search does not say."""
    planned = question.planned()
    if planned is None:
        return None
    return planned.cost.forward_equivalents + question.further_passes()
