"""Tests for a search method of your own, as a pytest class; `docs/own-search.md` has an example.

The searches run on the heads of one layer of the embedded model, so nothing is downloaded. This
module needs pytest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import tracekit as tk
from tracekit.components.masks import members_of_mask
from tracekit.engine.prepared import PreparedData
from tracekit.engine.setup import Setup
from tracekit.errors import (
    BudgetError,
    ConfigError,
    NothingFoundError,
    SearchStoppedWarning,
    TargetNotReachedError,
    UnreliableResultWarning,
)
from tracekit.search import Goal, Search, Target, make_target

_TOLERANCE = 1e-4
"""Relative difference that rounding may make between two measurements of a set."""


class SearchCase:
    """Checks that a search keeps the rules of all search methods.

    A subclass overrides the fixture `search`. It may also override the fixture `tracer`, for a
    search that needs other components, e.g. edges; their effect together must be above 0.
    """

    @pytest.fixture
    def search(self) -> Search:
        """The search to check."""
        raise NotImplementedError("Override the fixture `search`: return the search to check.")

    @pytest.fixture
    def tracer(self) -> tk.Tracer:
        """The problem: the eight heads of one layer of the embedded model, on four examples."""
        return demo_tracer()

    def test_budgets(self, search: Search, tracer: tk.Tracer) -> None:
        """Each budget gets one set of 1 to so many components, with the effects of that set."""
        budgets = (1, 3, len(tracer.registry))
        results = _run(tracer, search, budgets=budgets)
        assert [result.budget for result in results] == [*budgets], (
            "A search returns one selection for each budget, ascending, with its `budget`."
        )
        for result in results:
            assert 1 <= result.n_selected <= (result.budget or 0), (
                f"The set for a budget of {result.budget} has {result.n_selected} components."
            )
            _check_effects(tracer, result)

    def test_target_effect(self, search: Search, tracer: tk.Tracer) -> None:
        """The set for a target effect reaches it; a target beyond all sets is an error."""
        target = 0.9 * tracer.full_effect
        try:
            (result,) = _run(tracer, search, target_effect=target)
        except BudgetError:
            pytest.skip("This search takes no target effect.")
        assert result.effect >= target, "The returned set does not reach the target effect."
        assert result.budget is None, "A selection for a target effect has no `budget`."
        _check_effects(tracer, result)
        with pytest.raises(TargetNotReachedError):
            _run(tracer, search, target_effect=1000 * tracer.full_effect)

    def test_no_goal(self, search: Search, tracer: tk.Tracer) -> None:
        """Without a budget or target the search raises `BudgetError`, or decides on one set."""
        try:
            selections = search.search(make_target(tracer.engine), Goal(), 0)
        except BudgetError:
            return
        assert len(selections) == 1, "Without a goal a search returns one set, or refuses."

    def test_seed(self, search: Search, tracer: tk.Tracer) -> None:
        """The same seed selects the same sets."""
        runs = [_run(tracer, search, budgets=(2, 4), seed=7) for _ in range(2)]
        first, second = ([result.labels for result in run] for run in runs)
        assert first == second, "The same seed selected different sets."

    def test_the_search_is_a_value(self, search: Search, tracer: tk.Tracer, tmp_path: Path) -> None:
        """A run leaves the search as it is, and its name and options are saved with the result."""
        options = deepcopy(vars(search))
        (result,) = _run(tracer, search, budget=2)
        assert vars(search) == options, "The search changed its own options in a run."
        saved = tk.TraceResult.load(result.save(tmp_path / "result"))
        assert saved.method == search.name
        assert saved.config == result.config

    @pytest.mark.parametrize("share", [0.25, 0.75])
    def test_ctrl_c(
        self, search: Search, tracer: tk.Tracer, monkeypatch: pytest.MonkeyPatch, share: float
    ) -> None:
        """Ctrl-C ends the search with the best set so far, marked as interrupted.

        Where no set within the budget was measured yet, the run raises `KeyboardInterrupt`. A
        search need not do anything for that, but it must not swallow the interrupt.
        """
        passes = _Passes(search, monkeypatch)
        _run(_copy(tracer, max_batch_size=8), search, budget=3)
        interrupted = _copy(tracer, max_batch_size=8)
        passes.interrupt_after(int(share * passes.count))
        try:
            (result,) = _run(interrupted, search, budget=3)
        except KeyboardInterrupt:
            sizes = interrupted.question.sets.by_size()
            assert min(sizes, default=4) > 3, "Ctrl-C lost the sets that were measured before."
            return
        assert result.stopped == "interrupted", "The result does not say that Ctrl-C stopped it."
        assert result.n_selected <= 3
        _check_effects(interrupted, result)

    def test_sign(self, search: Search, tracer: tk.Tracer) -> None:
        """With `sign="negative"` the search selects sets with effects below the positive ones."""
        _check_scores(search, make_target(tracer.engine, sign=-1))
        (positive,) = _run(tracer, search, budget=2, sign="positive")
        (negative,) = _run(tracer, search, budget=2, sign="negative")
        assert negative.effect < positive.effect, (
            "The search for negative effects selected a set with as large an effect as the search "
            "for positive ones. Maximise what the target measures, with its sign."
        )

    @pytest.mark.parametrize("objective", ["median", "faithful"])
    def test_objective(self, search: Search, tracer: tk.Tracer, objective: Any) -> None:
        """The search takes its scores from the target, and the result has the effects."""
        try:
            (result,) = _run(tracer, search, budget=3, objective=objective)
        except ConfigError:
            pytest.skip(f"This search refuses the objective {objective!r}.")
        assert 1 <= result.n_selected <= 3
        _check_effects(tracer, result)

    def test_constraint(self, search: Search, tracer: tk.Tracer) -> None:
        """The selected set stays within a constraint, if the search tries a set that does."""
        (free,) = _run(tracer, search, budget=3)
        by_kl = _copy(tracer, replace(tracer.setup, metric="kl"))
        constraint = tk.Constraint(metric="kl", at_most=0.8 * abs(by_kl.evaluate(free)))
        try:
            _check_scores(search, make_target(tracer.engine, constraint=(constraint, by_kl.engine)))
            (result,) = _run(tracer, search, budget=3, constraint=constraint)
        except NothingFoundError:
            return
        except ConfigError:
            pytest.skip("This search refuses constraints.")
        assert abs(by_kl.evaluate(result)) <= constraint.at_most * (1 + _TOLERANCE)

    @pytest.mark.parametrize("options", [{"budgets": (1, 4)}, {"budget": 3, "sign": "negative"}])
    def test_estimate(self, search: Search, tracer: tk.Tracer, options: dict[str, Any]) -> None:
        """A run takes no more passes than `planned_passes` says."""
        if not hasattr(search, "planned_passes"):
            pytest.skip("This search does not say how many passes it takes.")
        estimate = tracer.estimate(search, **options)
        passes = _run(tracer, search, **options)[0].cost.forward_equivalents
        text = f"The search took {passes:.1f} passes, and `planned_passes` said"
        assert passes <= estimate.passes + _TOLERANCE, f"{text} at most {estimate.passes:.1f}."
        if estimate.is_exact:
            is_same = passes == pytest.approx(estimate.passes)
            assert is_same, f"{text} exactly {estimate.passes:.1f}."

    def test_max_passes(self, search: Search, tracer: tk.Tracer) -> None:
        """A search with an option `max_passes` takes no more passes than that."""
        if not hasattr(search, "max_passes") or not is_dataclass(search):
            pytest.skip("This search has no option `max_passes`.")
        (free,) = _run(tracer, search, budget=4)
        limit = int(free.cost.forward_equivalents / 2)
        (limited,) = _run(tracer, replace(search, max_passes=limit), budget=4)
        passes = limited.cost.forward_equivalents
        assert passes <= limit + _TOLERANCE, f"max_passes={limit}, and it took {passes:.1f} passes."


class _Passes:
    """Counts the passes of the model that a search takes, and interrupts it in one of them."""

    def __init__(self, search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._interrupted: int | None = None
        run_search: Callable[..., Any] = type(search).search
        run_pass: Callable[..., Any] = PreparedData.log_probs

        def counted_pass(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self._interrupted:
                raise KeyboardInterrupt
            return run_pass(*args, **options)

        def counted_search(*args: Any) -> Any:
            with monkeypatch.context() as within:
                within.setattr(PreparedData, "log_probs", counted_pass)
                return run_search(*args)

        monkeypatch.setattr(type(search), "search", counted_search)

    def interrupt_after(self, n_passes: int) -> None:
        self.count = 0
        self._interrupted = n_passes + 1


def _run(tracer: tk.Tracer, search: Search, **options: Any) -> list[tk.TraceResult]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreliableResultWarning)
        warnings.simplefilter("ignore", SearchStoppedWarning)
        results = tracer.run(search, **options)
    return [results] if isinstance(results, tk.TraceResult) else list(results)


@cache
def demo_tracer() -> tk.Tracer:
    """A tracer of the eight heads of one layer of the embedded model, on four examples."""
    model = tk.load_model("demo")
    pairs = tk.load_dataset("demo-facts", model)[:4]
    return tk.Tracer(model, pairs, metric="logit-difference", layers=[1], progress=False)


def _copy(tracer: tk.Tracer, setup: Setup | None = None, **options: Any) -> tk.Tracer:
    """A tracer of the same data that has measured nothing yet but the effect of all components."""
    setup = tracer.setup if setup is None else setup
    copy = tk.Tracer(tracer.model, tracer.pairs, setup, progress=False, **options)
    copy.engine.prepare_full_effects()
    return copy


def _check_effects(tracer: tk.Tracer, result: tk.TraceResult) -> None:
    measured = tracer.engine.effects(result.binary_mask)
    assert torch.allclose(result.per_example, measured, rtol=_TOLERANCE, atol=_TOLERANCE), (
        f"The effects of {', '.join(result.labels)} are not those of the returned selection. "
        "`Selection.measured` measures a set."
    )


def _check_scores(search: Search, target: Target) -> None:
    for selection in search.search(target, Goal(budgets=(3,)), 0):
        members = members_of_mask(selection.mask)
        (scores,) = target.set_effects([members])
        assert torch.allclose(selection.effects, scores, rtol=_TOLERANCE, atol=_TOLERANCE), (
            f"The scores of the selection {members} are not those that the target measures. Take "
            "all effects from the target, which knows the sign and the constraint."
        )
