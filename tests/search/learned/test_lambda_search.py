"""The search for lambda, and the best set of several training runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.masks import from_indices
from tracekit.errors import TargetNotReachedError
from tracekit.search import make_target
from tracekit.search.learned.lambda_search import (
    Snapshot,
    TrainingRun,
    best_within_budgets,
    measured_sets,
    next_lambda,
    smallest_set_reaching,
)
from tracekit.search.learned.reward import LossGradient, make_loss


def test_lambda_brackets_close_in_on_a_threshold():
    tried = []
    while (guess := next_lambda(1.0, tried)) is not None:
        tried.append((guess, guess < 37.0))
    assert tried[:4] == [(1, True), (4, True), (16, True), (64, False)]
    assert 37 / 1.06 < tried[-1][0] < 37 * 1.06
    assert next_lambda(1.0, [(1.0, False)]) == 0.25


def test_sets_that_several_training_runs_propose_are_measured_once(model, monkeypatch):
    engine = tiny.engine(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    search = tk.search.PGBCT(epochs=6)
    runs = [
        search._train(make_target(engine), lambda1, 0, stop_at=0) for lambda1 in (1e-3, 3e-3, 1e-2)
    ]
    measured = measured_sets(runs)
    while_training = set(measured)
    asked, target = [], make_target(engine)
    original = target.effects
    monkeypatch.setattr(
        target, "effects", lambda mask: asked.append(tuple(mask.tolist())) or original(mask)
    )
    first = best_within_budgets(runs, target, [2, 4, 6], measured)
    assert len(asked) > 3
    assert len(set(asked)) == len(asked)
    assert not while_training & {tuple(i for i, on in enumerate(m) if on) for m in asked}
    asked.clear()
    again = best_within_budgets(runs, target, [2, 4, 6], measured)
    assert not asked
    assert [a.effect for a in again] == [a.effect for a in first]


def test_the_best_proposal_wins_and_of_equals_the_later(tracer):
    engine, trial = tracer.engine, TrainingRun(1.0)
    for soft, above in (([0, 1], 0.9), ([2, 5], 0.8), ([2, 5], 0.6), ([0, 3, 4], 0.7)):
        mask = torch.full((12,), 0.1)
        mask[soft] = above
        trial.add(engine, mask, torch.zeros(12), mask > 0.5)
    means = {size: [s.effect for s in trial.snapshots if s.size == size] for size in (2, 3)}
    two, three = best_within_budgets([trial], make_target(engine), [2, 3], measured_sets([trial]))
    proposals = [
        engine.effects(from_indices(s.order()[:2], 12)).mean().item() for s in trial.snapshots
    ]
    assert two.effects.mean().item() == pytest.approx(max(means[2] + proposals))
    assert three.effects.mean().item() >= max(two.effects.mean().item(), means[3][0]) - 1e-6
    only = TrainingRun(1.0, snapshots=trial.snapshots[1:3])
    (found,) = best_within_budgets([only], make_target(engine), [2], measured_sets([only]))
    assert found.soft_mask.max() == pytest.approx(0.6)


def test_mask_entries_that_tie_are_ranked_by_the_reward_gradient(tracer):
    search_ = tk.search.PGBCT(lambda1=0.0, epochs=1, batch_size=12)
    trial = search_._train(make_target(tracer.engine), 0.0, 0, stop_at=0)
    start = torch.full((12,), 0.5)
    gradient = LossGradient(
        make_target(tracer.engine),
        make_loss("dataset", make_target(tracer.engine)),
    ).step(start, torch.arange(12))
    torch.testing.assert_close(trial.last.reward_gradient_sum, -gradient, rtol=1e-3, atol=1e-7)
    tied = replace(trial.last, soft_mask=torch.ones(12))
    assert tied.order() == gradient.argsort(stable=True).tolist()


def test_an_earlier_epoch_that_reaches_the_target_answers_where_the_last_order_does_not(
    model, monkeypatch
):
    engine = tiny.engine(model, tiny.pairs(4))
    monkeypatch.setitem(vars(engine), "effects", lambda mask: torch.full((4,), 0.1))
    monkeypatch.setitem(vars(engine), "paths", None)
    mask = from_indices([2, 5], engine.n_components)
    soft, gradient = torch.linspace(1, 0, engine.n_components), torch.zeros(engine.n_components)
    none = from_indices([], engine.n_components)
    snapshots = [
        Snapshot(mask=each, effects=effects, soft_mask=soft, reward_gradient_sum=gradient)
        for each, effects in ((mask, torch.full((4,), 0.8)), (none, torch.zeros(4)))
    ]
    run = TrainingRun(1.0, snapshots=snapshots)
    chosen = smallest_set_reaching([run], engine, 0.5)
    assert torch.equal(chosen.mask, mask)
    assert chosen.effect == pytest.approx(0.8)
    with pytest.raises(TargetNotReachedError, match="of 0.9; the largest seen is 0.8"):
        smallest_set_reaching([run], engine, 0.9)
