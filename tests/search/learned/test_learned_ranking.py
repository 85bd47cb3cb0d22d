"""A ranking that is learned for all sizes, on values whose best set of every size is known."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.search import Goal, LearnedRanking, MaskIG, Target, make_target

SINGLES = torch.tensor([0.6, 0.5, 2.0, 1.9, 0.4, 0.3, 0.01, 0.005])
SAME = (2, 3)
"""Components of which one does the work of both: the second adds nothing."""


def value(mask):
    first, second = SAME
    return mask @ SINGLES - SINGLES[second] * mask[..., first] * mask[..., second]


class PlantedTarget(Target):
    """Scores by a known function of the mask, in other sizes on each example."""

    def __init__(self, n_examples=16):
        self.pairs_ = tiny.pairs(n_examples, seed=3)
        self.factors = torch.linspace(0.5, 1.5, n_examples)
        self.trained, self.measured = [], []

    engine = SimpleNamespace(device=torch.device("cpu"), cost=None, edge_paths=None)
    metric = SimpleNamespace(differentiable=True, name="planted", is_flat_at_clean=False)
    n_components = len(SINGLES)
    line_integral = None
    pairs = property(lambda self: self.pairs_)
    n_examples = property(lambda self: len(self.pairs_))

    def effects(self, mask):
        return value(torch.as_tensor(mask).float()) * self.factors

    def set_effects(self, sets, label="effects", *, examples=None):
        self.measured.append(examples)
        numbers = torch.arange(self.n_examples) if examples is None else examples
        masks = [torch.zeros(self.n_components).index_fill(0, torch.tensor(s), 1.0) for s in sets]
        return torch.stack([value(mask) * self.factors[numbers] for mask in masks])

    def gradient(self, mask, example_weights, examples=None):
        self.trained.append(examples)
        numbers = torch.arange(self.n_examples) if examples is None else examples
        leaf = mask.detach().requires_grad_(True)
        scores = value(leaf) * self.factors[numbers]
        (scores * example_weights(scores.detach())).sum().backward()
        return scores.detach(), leaf.grad


def members(selection):
    return tuple(selection.mask.nonzero().flatten().tolist())


def best_set(size):
    sets = list(combinations(range(len(SINGLES)), size))
    masks = [torch.zeros(len(SINGLES)).index_fill(0, torch.tensor(s), 1.0) for s in sets]
    return sets[int(torch.stack([value(mask) for mask in masks]).argmax())]


@pytest.mark.parametrize("seed", range(3))
def test_the_set_of_every_size_is_the_best_where_single_scores_mislead(seed):
    goal, best = Goal(budgets=(1, 2, 3, 4)), [best_set(size) for size in (1, 2, 3, 4)]
    learned = LearnedRanking(epochs=100).search(PlantedTarget(), goal, seed)
    assert [members(each) for each in learned] == best
    line = MaskIG().search(PlantedTarget(), goal, seed)
    assert [members(each) for each in line] != best


def test_equal_scores_are_told_apart_without_a_line_to_start_with():
    target, goal = PlantedTarget(), Goal(budgets=(3,))
    (learned,) = LearnedRanking(steps=0, epochs=100).search(target, goal, 0)
    assert members(learned) == best_set(3)


def test_examples_set_aside_are_not_trained_on():
    target = PlantedTarget()
    LearnedRanking(epochs=6).search(target, Goal(budgets=(2,)), 0)
    trained = set(torch.cat(target.trained).tolist())
    checked = {tuple(each.tolist()) for each in target.measured}
    assert len(checked) == 1
    (checked,) = checked
    assert len(checked) == 4
    assert trained == set(range(16)) - set(checked)


def test_a_ranking_that_gets_worse_is_not_the_answer(monkeypatch):
    goal, start = Goal(budgets=(1, 2, 3, 4)), LearnedRanking(epochs=1, learning_rate=1e-9)
    expected = [members(each) for each in start.search(PlantedTarget(), goal, 0)]

    def away(self, target, scores, size, examples, generator):
        return torch.where(SINGLES > 0.3, 1.0, -1.0)

    monkeypatch.setattr(LearnedRanking, "_gradient", away)
    selections = LearnedRanking(epochs=40).search(PlantedTarget(), goal, 0)
    assert [members(each) for each in selections] == expected


def test_a_smaller_set_is_the_answer_where_it_is_better():
    class Penalised(PlantedTarget):
        """More than two components do harm."""

        def set_effects(self, sets, label="effects", *, examples=None):
            harm = torch.tensor([[max(0, len(s) - 2) * 5.0] for s in sets])
            return super().set_effects(sets, label, examples=examples) - harm

    selections = LearnedRanking(epochs=4).search(Penalised(), Goal(budgets=(2, 5)), 0)
    assert [(each.size, each.budget) for each in selections] == [(2, 2), (2, 5)]


def test_all_of_few_examples_are_trained_on():
    target = PlantedTarget(3)
    LearnedRanking(epochs=2).search(target, Goal(budgets=(2,)), 0)
    assert set(torch.cat(target.trained).tolist()) == {0, 1, 2}
    assert not target.measured


@pytest.mark.parametrize("size", [1.0, 2.5, 7.0])
def test_a_soft_mask_has_its_size_and_the_derivatives_of_its_threshold(size):
    search, target = LearnedRanking(), PlantedTarget()
    scores = torch.randn(8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    examples = torch.tensor([0, 5])
    mask = search._soft_mask(scores, size)
    assert mask.sum().item() == pytest.approx(size)
    assert mask.argsort().tolist() == scores.argsort().tolist()

    def loss(scores):
        soft = search._soft_mask(scores, size)
        return -(value(soft.float()) * target.factors[examples]).sum().item()

    gradient = search._gradient(target, scores.float(), size, examples, torch.Generator())
    for index, step in enumerate(1e-2 * torch.eye(8, dtype=torch.float64)):
        slope = (loss(scores + step) - loss(scores - step)) / 2e-2
        assert gradient[index].item() == pytest.approx(slope, abs=2e-3)


@pytest.mark.slow
def test_a_seed_repeats_a_ranking_and_another_draws_others(tracer):
    search, target = LearnedRanking(epochs=3), make_target(tracer.engine)
    goal = Goal(budgets=(3,))
    first, again, other = (search.search(target, goal, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first.soft_mask, again.soft_mask)
    assert not torch.equal(first.soft_mask, other.soft_mask)
    # Scores only order components, so results name no effects of single ones.
    assert first.component_scores is None
    assert first.soft_mask.sum().item() == pytest.approx(first.size, rel=1e-4)


def test_ctrl_c_keeps_the_ranking_so_far(monkeypatch):
    gradient, calls = LearnedRanking._gradient, []

    def interrupted(self, *given):
        calls.append(given)
        if len(calls) == 40:
            raise KeyboardInterrupt
        return gradient(self, *given)

    goal = Goal(budgets=(2,))
    monkeypatch.setattr(LearnedRanking, "_gradient", interrupted)
    (selection,) = LearnedRanking(epochs=60).search(PlantedTarget(), goal, 0)
    assert selection.stopped == "interrupted"
    assert selection.effects.mean() > 0


@pytest.mark.slow
def test_edges_of_its_sets_are_on_paths():
    model = tk.load_model("demo")
    pairs = tk.load_dataset("demo-facts", model)[:8]
    tracer = tk.Tracer(model, pairs, "edges", "logit-difference", progress=False)
    search = LearnedRanking(epochs=2, steps=2)
    result = tracer.run(search, budget=30)
    assert result.run.objective == "faithful"
    members = [int(n) for n in result.binary_mask.nonzero()]
    assert 1 <= len(members) <= 30
    assert len(tracer.engine.edge_paths.edges_on_paths(members)) == len(members)


@pytest.mark.parametrize("epochs", [4, 9, 40, 200])
def test_planned_passes_bound_faithful_and_drawn_training(epochs):
    search, goal = LearnedRanking(epochs=epochs, steps=10), Goal(budgets=(20,))
    planned, gradients = search.planned_passes(1000, goal), epochs + 11
    n_sizes, n_first, n_trained = 6, 5, 4
    # A quarter of the examples is checked and the rest trained on, or all are trained on. A set is
    # checked with its complement; a gradient is two passes.
    checks = 2 * (n_first + n_trained) * n_sizes
    needed = 2 + max(2 * gradients, 0.75 * 2 * gradients + 0.25 * checks)
    total = 2 * (planned.cost.forward + planned.if_faithful.forward)
    assert needed <= total <= needed + 0.5 * 4 * n_sizes
    # Where pairs are drawn, all examples are checked, and each epoch runs pairs of its own.
    needed = 2 + 2 * gradients + checks + 3 * epochs
    total += planned.if_drawn.forward
    assert needed <= total <= 1.5 * needed
