"""Faithful prefixes that do more than all components do, and what is sought of edges by default."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit._util import progress as _progress
from tracekit.components.masks import members_of_mask, ranking
from tracekit.engine.cost import Cost
from tracekit.errors import BudgetError, ConfigError
from tracekit.measure import evaluation
from tracekit.measure.controls import planned_controls
from tracekit.results import faithfulness as measures
from tracekit.search import Goal
from tracekit.search.base import Selection
from tracekit.search.constraint import make_target
from tracekit.search.objectives import Faithful
from tracekit.search.prefix import HALVINGS, best_prefixes, planned_prefixes


def traced(model, *, exchange, kinds="head-outputs", **options):
    """Eleven pairs, of which all components together have an effect of the other sign exchanged."""
    rows = tiny.rows(11, seed=3)
    for row in rows if exchange else ():
        row["x_ids"], row["y_ids"] = row["y_ids"], row["x_ids"]
    return tk.Tracer(model, tk.PromptPairs.from_ids(rows), kinds, "logit-difference", **options)


@pytest.fixture(scope="module")
def both(model):
    """Whether to exchange continuations for a full effect above 0, and below 0."""
    is_negative = traced(model, exchange=False).full_effect < 0
    return is_negative, not is_negative


@dataclass
class Counted:
    """Stands for a target of which a set overshoots with fewer than so many of the last."""

    n_components: int
    enough: int
    sign: int = 1
    has_complement: bool = True
    is_faithful: bool = True
    paths: None = None
    tried: list[int] = field(default_factory=list)

    def _last(self, mask):
        """Components beyond the first ones in a row, of an order from 0 on."""
        first = int(mask.long().cumprod(0).sum())
        return int(mask.sum()) - first

    def effects(self, mask):
        self.tried.append(self._last(mask))
        return -torch.tensor([abs(self.tried[-1] - self.enough) + 0.0])

    @property
    def faithful(self):
        return self

    def overshoots(self, mask):
        return self._last(mask) < self.enough

    def score_of_means(self, mask):
        return -abs(self._last(mask) - self.enough)


@pytest.mark.parametrize(
    ("n", "size", "n_below", "enough", "found"),
    [
        (100, 40, 0, 0, 0),  # does not overshoot
        (100, 40, 0, 1, 1),
        (100, 40, 0, 17, 17),
        (100, 40, 0, 39, 39),
        (100, 40, 0, 60, 39),  # never enough: as many as halving reaches
        (100, 90, 0, 4, 5),  # within a 64th
        (100, 90, 0, 40, 40),
        (100, 100, 0, 3, 0),
        (100, 1, 0, 1, 0),
        (10_000, 4_000, 0, 1_000, 1_000),
        (10_000, 4_000, 0, 1_234, 1_250),
        (100, 40, 50, 0, 0),
        (100, 40, 50, 7, 7),  # fewer than the 20 that are among the largest
        (100, 40, 50, 20, 20),
        (100, 40, 50, 31, 31),  # more than these
        (100, 40, 100, 40, 40),
    ],
)
def test_halving_finds_how_many_of_the_last_are_enough(n, size, n_below, enough, found):
    target = Counted(n, enough)
    scores = n - n_below - 0.5 - torch.arange(n)
    (chosen,) = best_prefixes(target, Goal(budgets=(size,)), scores, by_gradient=True)
    first = size - found
    assert members_of_mask(chosen.mask) == (*range(first), *range(n - found, n))
    assert len(target.tried) <= 2 + HALVINGS
    assert target.tried[0] == 0
    assert len(target.tried) <= 2 or enough > 0


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["noising", "denoising"])
@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("is_negative", [False, True])
def test_a_set_that_overshoots_is_balanced_and_another_is_the_plain_prefix(
    model, both, direction, weight, is_negative
):
    exchange = both[is_negative]
    engine = traced(model, exchange=exchange, direction=direction).engine
    sign = -1 if is_negative else 1
    target, seen = make_target(engine, Faithful(complement=weight), sign=sign), set()
    full, goal = engine.full_effects.mean().item(), Goal(budgets=tuple(range(1, 13)))
    assert full * sign > 0
    slopes = sum(target.mean_gradient(torch.full((12,), level)) for level in (0.0, 0.5, 1.0))
    for scores in (slopes, torch.randn(12, generator=torch.Generator().manual_seed(5))):
        order = ranking(scores)
        for found in best_prefixes(target, goal, scores, by_gradient=True):
            plain, size = Selection.measured(target, order[: found.budget]), found.budget
            sides = torch.stack([plain.mask, ~plain.mask]).float()
            own, others = engine.effects(sides).mean(1)
            faithful = {0.0: own / full, 1.0: 1 - others / full}
            looked_at = weight if weight != 0.5 else float(direction == "noising")
            does_too_much = faithful[looked_at].item() > 1 + 1e-6
            splits = [{*order[: size - n], *order[12 - n :]} for n in range(size + 1)]
            by_size = Selection.measured(target, ranking(scores.abs())[:size])
            assert found.size == size
            assert {*members_of_mask(found.mask)} in splits
            # What sets are chosen by: their scores on single examples, and that of their means.
            chosen, *others = (
                each.effect + target.score_of_means(each.mask) for each in (found, plain, by_size)
            )
            assert chosen >= max(others) - 1e-6
            if not does_too_much and not target.overshoots(by_size.mask):
                assert any(torch.equal(found.mask, each.mask) for each in (plain, by_size))
            seen.add((does_too_much, torch.equal(found.mask, plain.mask)))
    assert (False, True) in seen
    assert (True, False) in seen


@pytest.mark.pairwise
@pytest.mark.parametrize("kinds", ["head-outputs", "edges-by-block"])
@pytest.mark.parametrize("method", ["top-k", "empirical-bayes-top-k", "attribution", "mask-ig"])
def test_estimates_bound_the_passes_of_balancing(model, both, kinds, method):
    tracer = traced(model, exchange=both[0], kinds=kinds)
    n, options = len(tracer.registry), {"steps": 3} if method == "mask-ig" else {}
    asked = {"budgets": [n // 6, n // 3, n // 2], "objective": "faithful", **options}
    estimate, _ = tracer.estimate(method, **asked), tracer.full_effect
    with _progress.open_bar("counts", None, len(tracer.pairs), shown=False) as counted:
        curve = tracer.run(method, **asked)
    passes = curve[0].cost.forward_equivalents
    least = tracer.estimate(method, **asked | {"objective": "mean"}).passes
    assert least < passes <= estimate.passes <= 2 * least + 6 * (HALVINGS + 1) + 4
    assert counted.done <= estimate.passes + estimate.further
    assert not estimate.is_exact


def test_planned_sets_are_told_apart_from_those_of_balancing():
    planned = planned_prefixes(12, Goal(budgets=(1, 2)), Cost(3, 3))
    assert planned.cost == Cost(5, 3)
    assert planned.if_faithful == Cost(2 * (HALVINGS + 1))
    assert planned_prefixes(12, Goal(target=1.0), Cost(3)).if_faithful == Cost()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["attribution", "mask-ig"])
@pytest.mark.parametrize("is_negative", [False, True])
def test_scores_of_faithful_sets_are_of_the_mean_effect(model, both, method, is_negative, tmp_path):
    tracer = traced(model, exchange=both[is_negative], kinds="edges")
    by_effect = tracer.run(method, budget=9, objective="mean").component_scores
    found = tracer.run(method, budget=9)
    assert found.run.objective == "faithful"
    assert torch.allclose(found.component_scores, by_effect, atol=1e-5)
    assert torch.equal(
        tk.TraceResult.load(found.save(tmp_path / "found")).binary_mask, found.binary_mask
    )
    best = by_effect.argsort(descending=not is_negative)[:1].item()
    assert found.binary_mask[best]
    top = traced(model, exchange=both[0]).run("top-k", budget=3, objective="faithful")
    with pytest.raises(ConfigError, match="searched by faithful, has no scores"):
        _ = top.ranked_by


class TestOfEdges:
    """What is sought where nobody says."""

    @pytest.mark.parametrize(
        ("kinds", "asked", "objective", "sign"),
        [
            ("edges", {"budget": 9}, "faithful", "full"),
            ("edges-by-head", {"budget": 9}, "faithful", "full"),
            ("edges-by-block", {"budget": 2}, "faithful", "full"),
            ("edges-by-block", {"budget": 2, "objective": "mean"}, "mean", "positive"),
            ("edges-by-block", {"budget": 2, "objective": "median"}, "median", "positive"),
            ("edges-by-block", {"budget": 2, "sign": "full"}, "mean", "full"),
            ("edges-by-block", {"budget": 2, "sign": "positive"}, "mean", "positive"),
            ("edges-by-block", {"budget": 2, "sign": "negative"}, "mean", "negative"),
            ("edges-by-block", {"target_effect": 0.01}, "mean", "positive"),
            ("head-outputs", {"budget": 2}, "mean", "positive"),
        ],
    )
    @pytest.mark.parametrize("is_negative", [False, True])
    def test_runs(self, model, both, kinds, asked, objective, sign, is_negative):
        tracer = traced(model, exchange=both[is_negative], kinds=kinds)
        full = "negative" if is_negative else "positive"
        found = tracer.run("attribution", **asked)
        assert (found.run.objective, found.run.sign) == (
            objective,
            full if sign == "full" else sign,
        )

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kinds", "asked", "objective"),
        [
            ("edges-by-block", {}, "faithful"),
            ("edges-by-block", {"objective": "mean"}, "mean"),
            ("edges-by-block", {"sign": "full"}, "mean"),
            ("head-outputs", {}, "mean"),
        ],
    )
    def test_fronts(self, model, both, kinds, asked, objective):
        tracer = traced(model, exchange=both[0], kinds=kinds)
        options = {"max_budget": 3, "max_passes": 60, "statistics": False, **asked}
        estimate = tracer.estimate_pareto(**options)
        front = tracer.pareto(**options)
        assert front[0].run.objective == objective
        assert front[0].cost.forward_equivalents <= estimate.passes
        assert bool(front.trade_offs) == (objective == "faithful")

    @pytest.mark.parametrize(
        ("kinds", "asked", "objective"),
        [
            ("edges", {}, "faithful"),
            ("edges", {"objective": "mean"}, "mean"),
            ("edges", {"sign": "full"}, "mean"),
            ("head-outputs+mlp-blocks", {}, "mean"),
        ],
    )
    def test_sweeps(self, kinds, asked, objective, tmp_path):
        runs = tk.sweep(
            ["demo"],
            ["demo-facts"],
            ["attribution"],
            [2],
            components=[kinds],
            layers=[1],
            limit=4,
            output=tmp_path,
            **asked,
        )
        assert runs.to_frame()["objective"].tolist() == [objective]


def test_a_curve_at_the_shares_of_mib_has_its_areas(model, both, monkeypatch):
    tracer = traced(model, exchange=both[0])
    curve = tracer.run("attribution", budgets=[2, 6, 12], objective="faithful")
    with pytest.raises(BudgetError, match="CPR and CMD are areas"):
        _ = tracer.faithfulness(curve).cmd
    for module in (evaluation, measures):
        monkeypatch.setattr(module, "MIB_SHARES", (1 / 6, 0.5, 1.0))
    scores = tracer.faithfulness(curve)
    low, middle, _ = (abs(1 - value) for value in scores.faithfulness)
    assert scores.cmd == pytest.approx((low + middle) / 6 + middle / 4)


class TestConnected:
    """Faithful sets of edges consist of edges on paths from the embedding to the logits."""

    @pytest.mark.parametrize(
        ("method", "options"),
        [
            ("attribution", {}),
            ("mask-ig", {}),
            ("random", {"draws": 4}),
            ("local-search", {"max_passes": 60}),
            ("pgb-ct", {"trials": 2, "epochs": 4}),
            ("greedy", {}),
        ],
    )
    def test_every_selected_edge_is_on_a_path(self, model, method, options):
        tracer = connected_tracer(model)
        results = tracer.run(method, budgets=[3, 6], objective="faithful", **options)
        paths = tracer.engine.edge_paths
        for result, budget in zip(results, (3, 6), strict=True):
            members = tiny.members_of(result)
            assert paths.edges_on_paths(members) == members
            assert 0 < len(members) <= budget
            assert tracer.evaluate(result) == pytest.approx(result.effect, abs=1e-5)

    def test_a_ranking_fills_the_budget_and_counts_what_it_skipped(self, model):
        tracer = connected_tracer(model)
        result = tracer.run("attribution", budget=6)
        by_effect = ranking(tracer.run("attribution", budget=6, objective="mean").component_scores)
        best = tracer.engine.edge_paths.first(by_effect, 6)
        assert result.n_selected == 6
        assert result.run.n_skipped > 0
        assert f", {result.run.n_skipped} edges on no path left out," in repr(result)
        # More of the last edges may be taken instead, where that is more faithful.
        of_best = [tracer.registry[each] for each in best]
        scores = [tracer.faithfulness(each).faithfulness[0] for each in (result, of_best)]
        distances = [abs(1 - score) for score in scores]
        assert distances[0] <= distances[1] + 1e-6

    def test_by_effect_edges_need_no_path(self, model):
        result = connected_tracer(model).run("attribution", budget=6, objective="mean")
        assert result.run.n_skipped == 0

    def test_fronts_and_smallest_sets(self, model):
        tracer = connected_tracer(model)
        paths = tracer.engine.edge_paths
        front = tracer.pareto(max_budget=6, max_passes=80, statistics=False)
        sets = [tiny.members_of(each) for each in front.results]
        assert sets
        assert all(paths.edges_on_paths(each) == each for each in sets)

    def test_random_controls_of_a_connected_set_are_connected(self, model):
        tracer = connected_tracer(model)
        result = tracer.run("attribution", budget=6)
        controls = tracer.controls(result, draws=12)
        assert controls.like == "paths"
        parts = planned_controls(tracer.question, result, draws=12)
        paths, n = tracer.engine.edge_paths, tracer.engine.n_components
        ((_, both_ways),) = parts
        random_sets = both_ways[1 : len(both_ways) // 2]
        assert len(random_sets) == len(set(random_sets)) == 12
        assert all(paths.edges_on_paths(each) == each and len(each) == 6 for each in random_sets)
        assert n > 6
        idle = [index for index in range(n) if index not in paths.edges_on_paths(range(n - 1))][:1]
        unconnected = sorted({*tiny.members_of(result)[:1], *idle})
        assert tracer.controls([tracer.registry[i] for i in unconnected], draws=3).like == "layers"

    def test_minimality_drops_edges_with_the_edge_that_their_paths_need(self, model):
        tracer = connected_tracer(model)
        result = tracer.run("attribution", budget=8)
        minimal = tracer.minimality(result, tolerance=0.9)
        assert minimal.dropped
        assert tracer.engine.edge_paths.edges_on_paths(minimal.members) == minimal.members
        assert len(minimal.dropped) + len(minimal.members) == result.n_selected


def connected_tracer(model):
    pairs = tiny.pairs(5, seed=3, longest=1)
    return tk.Tracer(model, pairs, "edges-by-block", "logit-difference")
