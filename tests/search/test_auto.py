"""Cross-fitting: numbers by hand, the choice between searches, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.masks import from_indices
from tracekit.errors import BudgetError, ConfigError
from tracekit.search import make_target
from tracekit.search.auto import CrossFit, cross_fit
from tracekit.search.baselines.empirical_bayes_topk import sizes_ranked_alone
from tracekit.search.measurements import BestSets

HALVES = ((0, 1), (2, 3))


@pytest.fixture
def tracer(model):
    """One for each test: searches that stand in for others report effects of their own."""
    return tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")


def fit_of(effects, sizes=(1, 2), *, on_all=None):
    """A cross-fit with the given effects, by search, size and example; the same on all examples."""
    nothing = (((0,),) * len(sizes),) * 2
    return CrossFit(
        sizes=sizes,
        halves=HALVES,
        sets=(nothing,) * len(effects),
        effects=torch.tensor(effects),
        on_halves=tk.engine.Cost(),
        on_all_examples=tk.engine.Cost(),
        on_all=torch.tensor(effects if on_all is None else on_all),
    )


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A search that selects the first components of an order."""

    name = "fixed"
    order: tuple[int, ...]

    def search(self, engine, goal, seed):
        masks = [from_indices(self.order[:size], engine.n_components) for size in goal.budgets]
        return [
            tk.search.Selection(mask=mask, effects=engine.effects(mask), budget=size)
            for mask, size in zip(masks, goal.budgets, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class BestAlone:
    """Selects the component with the largest effect on the examples it is given."""

    name = "best-alone"

    def search(self, engine, goal, seed):
        singles = engine.set_effects([[i] for i in range(engine.n_components)]).mean(1)
        return Fixed(order=(int(singles.argmax()),)).search(engine, goal, seed)


def test_the_search_that_holds_better_is_chosen():
    joint, alone = [[1.0] * 4, [2.0] * 4], [[0.5] * 4, [1.9] * 4]
    assert fit_of([joint, alone]).choice() == [0, 0]
    assert fit_of([alone, joint]).choice() == [1, 1]
    # Of equals the first.
    assert fit_of([joint, joint]).choice() == [0, 0]


ALONE = [1.0] * 4


@pytest.mark.parametrize(
    ("on_own", "choice"),
    [
        # One example makes up the lead: one standard error, whatever it is.
        ([1.0, 1.0, 1.0, 100.0], 1),
        ([0.9, 1.0, 1.0, 100.0], 1),
        # Two do: 1.7 standard errors.
        ([1.0, 1.0, 3.0, 3.0], 0),
        # All do a little.
        ([1.1, 1.2, 1.1, 1.2], 0),
        # On average there is none.
        ([1.1, 1.1, 1.1, 0.5], 1),
        # The same set.
        (ALONE, 0),
    ],
)
def test_a_lead_of_few_examples_is_chance(on_own, choice):
    fit = fit_of([[[2.0, 2.1, 2.2, 2.3]], [ALONE]], sizes=(1,), on_all=[[on_own], [ALONE]])
    assert fit.choice() == [choice]


@pytest.mark.parametrize(
    ("on_others", "choice"),
    [
        ([1.5, 0.9, 1.0, 1.1], 0),
        # Behind by 0.3 standard errors: halves select worse than all examples.
        ([1.5, 0.5, 0.5, 1.3], 0),
        # Behind by 0.7.
        ([1.3, 0.5, 0.5, 1.2], 1),
        ([0.9, 0.9, 0.8, 0.9], 1),
    ],
)
def test_a_lead_that_others_do_not_share_is_none(on_others, choice):
    leading = [1.4, 1.2, 1.3, 1.2]
    fit = fit_of([[on_others], [ALONE]], sizes=(1,), on_all=[[leading], [ALONE]])
    assert fit.choice() == [choice]


def test_a_single_search_has_no_rival():
    assert fit_of([[ALONE, ALONE]]).choice() == [0, 0]


def test_near_sizes_have_their_say():
    sizes = (4, 5, 100)
    # At 5, the second search is ahead by less than it is behind at 4; at 100 it is ahead.
    first = [[1.0, 1.1, 1.0, 1.1], [0.95] * 4, [0.5] * 4]
    second = [[0.5] * 4, [1.0] * 4, [1.0] * 4]
    fit = fit_of([first, second], sizes)
    assert fit.choice() == [0, 0, 1]
    assert [fit.search_chosen_near(size) for size in (1, 5, 15, 40, 200)] == [0, 0, 0, 1, 1]


def test_effects_that_are_all_negative_or_zero():
    joint, alone = [[-1.0] * 4, [-2.0] * 4], [[-0.5] * 4, [-1.9] * 4]
    assert fit_of([joint, alone]).choice() == [1, 1]
    assert fit_of([[[0.0] * 4] * 2] * 2).choice() == [0, 0]


def test_effects_are_those_of_the_other_halfs_sets(tracer):
    """By hand: the best single component of each half, measured on the other."""
    engine = tracer.engine
    fit = cross_fit(make_target(engine), [Fixed(order=(3, 1, 2)), BestAlone()], [1], 5)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(5)).tolist()
    halves = (tuple(sorted(order[:6])), tuple(sorted(order[6:])))
    assert fit.halves == halves
    singles = engine.set_effects([[i] for i in range(12)])
    assert torch.allclose(fit.effects[0, 0], singles[3])
    for own, other, half in ((0, 1, list(halves[0])), (1, 0, list(halves[1]))):
        best = int(singles[:, half].mean(1).argmax())
        assert fit.sets[1][own] == ((best,),)
        rest = list(halves[other])
        assert torch.allclose(fit.effects[1, 0, rest], singles[best, rest], atol=1e-6)
    assert fit.cost.forward > 12


def test_weights_are_those_of_the_whole_data_set(model):
    rows = [{**row, "weight": 1 + 4 * (i % 2)} for i, row in enumerate(tiny.rows(8))]
    engine = tk.Tracer(model, tk.PromptPairs.from_ids(rows)).engine
    fit = cross_fit(make_target(engine), [Fixed(order=(3,))], [1], 0)
    assert torch.allclose(fit.effects[0, 0], engine.effects(from_indices([3], 12)))


def patched(monkeypatch, rival):
    monkeypatch.setattr("tracekit.search.auto.SINGLE_EFFECTS", rival)


def worst_first(tracer) -> tuple[int, ...]:
    """Components by their effect alone, on all examples."""
    singles = tracer.engine.set_effects([[i] for i in range(12)]).mean(1)
    return tuple(singles.argsort().tolist())


@pytest.mark.slow
def test_a_front_takes_the_sets_that_hold_better(tracer, monkeypatch):
    joint = tracer.pareto(max_budget=4, objective="mean", statistics=False)
    patched(monkeypatch, Fixed(order=worst_first(tracer)))
    front = tracer.pareto(max_budget=4)
    assert [result.method for result in front] == ["local-search"] * len(front)
    assert front.to_frame()["effect"].tolist() == joint.to_frame()["effect"].tolist()
    # The best sets of all examples, whatever half is given: nothing holds better.
    best = {result.n_selected: result for result in joint}

    class Oracle:
        name = "oracle"

        def search(self, engine, goal, seed):
            return [
                tk.search.Selection(
                    mask=best[size].binary_mask,
                    effects=engine.effects(best[size].binary_mask),
                    budget=size,
                )
                for size in goal.budgets
            ]

    patched(monkeypatch, Oracle())
    front = tracer.pareto(max_budget=4)
    selected = [tk.search.Selection(mask=r.binary_mask, effects=r.per_example) for r in joint]
    searches, target = [tk.search.LocalSearch(), Oracle()], make_target(tracer.engine)
    fit = cross_fit(target, searches, joint.sizes, 0, selected=[selected, selected])
    chosen = ["oracle" if search else "local-search" for search in fit.choice()]
    assert [result.method for result in front] == chosen
    assert "oracle" in chosen
    frame = front.to_frame()
    for name, rank in (("local-search", 0), ("oracle", 1)):
        held_out = fit.effects[rank].mean(-1).tolist()
        assert frame[f"cross_fitted_by_{name}"].tolist() == pytest.approx(held_out)
    assert frame["method"].tolist() == chosen
    kept = [fit.effects[search, size].mean() for size, search in enumerate(fit.choice())]
    assert frame["cross_fitted"].tolist() == pytest.approx(torch.stack(kept).tolist())
    for result in front:
        assert result.effect == pytest.approx(tracer.evaluate(result.components))


@pytest.mark.slow
def test_single_effects_that_hold_better_have_a_set_of_every_size(tracer, monkeypatch):
    """A larger set may have a smaller mean here; but not with components that do nothing alone."""
    monkeypatch.setattr(CrossFit, "search_chosen_near", lambda self, size: 1)
    n_positive = 5

    class Ranked:
        name = "ranked"

        def search(self, engine, goal, seed):
            scores = torch.arange(n_positive, n_positive - 12, -1.0)
            return [
                tk.search.Selection(
                    mask=from_indices(range(size), 12),
                    effects=torch.full((engine.n_examples,), 1 / size),
                    component_scores=scores,
                    budget=size,
                )
                for size in goal.budgets
            ]

    patched(monkeypatch, Ranked())
    # The joint search found sets of one and of seven components.
    monkeypatch.setattr(BestSets, "improving_sizes", [1, 7])
    front = tracer.pareto(max_budget=9, max_passes=60)
    assert front.sizes == (1, 2, 3, 4, 5, 7)
    assert {result.method for result in front} == {"ranked"}
    # Of at most so many components, the set with the largest mean.
    assert [front.at(size).n_selected for size in (3, 6, 9)] == [1, 1, 1]
    assert front.at(4).effect == 1.0
    # Where they do not hold better there are none between.
    monkeypatch.setattr(CrossFit, "search_chosen_near", lambda self, size: int(size > 3))
    front = tracer.pareto(max_budget=9, max_passes=60, statistics=False, objective="auto")
    assert front.sizes == (1, 4, 5, 7)
    assert [result.method for result in front] == ["local-search", *["ranked"] * 3]


@pytest.mark.slow
def test_a_set_that_lowers_the_effect_at_hand_is_not_taken(tracer, monkeypatch):
    """Where the joint search has one that raises it."""
    monkeypatch.setattr(CrossFit, "_leads", lambda self, effects: -torch.ones(len(self.sizes), 4))
    taken = {1: 0.5, 2: -0.5, 3: 0.25, 4: 0.0, 5: 0.2, 6: -1.0}

    class Ranked:
        name = "ranked"

        def search(self, engine, goal, seed):
            return [
                tk.search.Selection(
                    mask=from_indices(range(size), 12),
                    effects=torch.full((engine.n_examples,), taken[size]),
                    component_scores=torch.arange(12, 0, -1.0),
                    budget=size,
                )
                for size in goal.budgets
            ]

    patched(monkeypatch, Ranked())
    # The halves do not look at sizes 2 and 4; the joint search has no set of size 4.
    monkeypatch.setattr("tracekit.tracer.front.sizes_of_statistics", lambda sizes: [1, 3, 5, 6])
    monkeypatch.setattr(BestSets, "improving_sizes", [1, 2, 3, 5, 6])
    front = tracer.pareto(max_budget=6, max_passes=60)
    methods = {result.n_selected: result.method for result in front}
    joint, alone = "local-search", "ranked"
    assert methods == {1: alone, 2: joint, 3: alone, 5: alone, 6: joint}
    assert (front.effects > 0).all()
    frame = front.to_frame().set_index("size")
    for size, search in ((3, "ranked"), (6, "local-search")):
        assert frame["cross_fitted"][size] == frame[f"cross_fitted_by_{search}"][size]
    results = tracer.run("local-search", budgets=[1, 2], objective="auto", max_passes=60)
    assert [result.method for result in results] == [alone, joint]


@pytest.mark.slow
def test_many_components_ranked_alone_have_sets_of_some_sizes(tracer, monkeypatch):
    assert list(sizes_ranked_alone(384, 2, 5)) == [2, 3, 4, 5]
    sizes = sizes_ranked_alone(385, 2, 300)
    assert (sizes[0], sizes[-1]) == (2, 300)
    assert 50 <= len(sizes) <= 64
    # Where the joint search has a set between these, it is left out if the choice is the other one.
    monkeypatch.setattr("tracekit.search.baselines.empirical_bayes_topk.MOST_ALONE", 11)
    monkeypatch.setattr("tracekit.search.baselines.empirical_bayes_topk._SIZES_OF_MANY", 3)
    monkeypatch.setattr("tracekit.tracer.front.sizes_of_statistics", lambda sizes: [1, 6])
    monkeypatch.setattr(BestSets, "improving_sizes", [1, 2, 6])
    for choice, expected in ((1, (1, 3, 6, 9)), (0, (1, 2, 6))):
        chosen = lambda self, size, choice=choice: choice  # noqa: E731
        monkeypatch.setattr(CrossFit, "search_chosen_near", chosen)
        patched(monkeypatch, Fixed(order=tuple(range(12))))
        monkeypatch.setattr("tracekit.search.auto._replaces_joint", lambda alone, joint: True)
        front = tracer.pareto(max_budget=9, max_passes=60, statistics=False, objective="auto")
        assert front.sizes == expected
        assert {result.method for result in front} == {"fixed" if choice else "local-search"}


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["front", "run"])
def test_leads_are_those_of_the_sets_on_all_examples(tracer, monkeypatch, asked):
    """The effects that choose: of the joint search's sets first, size by size."""
    fits = []

    def kept(*args, **options):
        fits.append(cross_fit(*args, **options))
        return fits[-1]

    monkeypatch.setattr("tracekit.search.auto.cross_fit", kept)
    if asked == "front":
        options = {"max_budget": 4, "statistics": False, "max_passes": 30}
        joint = tracer.pareto(objective="mean", **options)
        tracer.pareto(objective="auto", **options)
    else:
        joint = tracer.run("greedy", budgets=[2, 5])
        tracer.run("greedy", budgets=[2, 5], objective="auto")
    (fit,) = fits
    alone = tracer.run("empirical-bayes-top-k", budgets=list(fit.sizes))
    assert len(fit.sizes) > 1
    by_hand = [
        [result.per_example for result in results if result.n_selected in fit.sizes]
        for results in (joint, alone)
    ]
    expected = torch.stack([torch.stack(rows) for rows in by_hand])
    assert torch.allclose(fit.on_all, expected, atol=1e-6)


@pytest.mark.slow
def test_a_run_takes_the_set_that_holds_better(tracer, monkeypatch):
    order = worst_first(tracer)
    for rival, method in ((Fixed(order=order), "greedy"), (Fixed(order=order[::-1]), "fixed")):
        patched(monkeypatch, rival)
        curve = tracer.run("greedy", budgets=[2, 5], objective="auto")
        greedy = tk.search.make("greedy", {})
        goal = tk.search.Goal(budgets=(2, 5))
        searches, target = [greedy, rival], make_target(tracer.engine)
        selected = [search.search(target, goal, 0) for search in searches]
        fit = cross_fit(target, searches, [2, 5], 0, selected=selected)
        for rank, result in enumerate(curve):
            chosen = ("greedy", "fixed")[fit.choice()[rank]]
            assert result.method == chosen
            by_hand = dict(zip(("greedy", "fixed"), fit.effects[:, rank].mean(-1), strict=True))
            assert result.run.held_out_by == pytest.approx(
                {k: v.item() for k, v in by_hand.items()}
            )
            assert result.effect == pytest.approx(tracer.evaluate(result.components))
        assert method in {result.method for result in curve}


@pytest.mark.slow
def test_what_was_chosen_from_is_saved(tracer, tmp_path):
    result = tracer.run("local-search", budget=3, objective="auto", max_passes=60)
    loaded = tk.TraceResult.load(result.save(tmp_path / "run"))
    assert loaded.run.held_out_by == result.run.held_out_by
    assert set(result.run.held_out_by) == {"local-search", "empirical-bayes-top-k"}
    plain = tracer.run("local-search", budget=3, max_passes=60)
    assert result.cost.forward_equivalents > 2 * plain.cost.forward_equivalents


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"budget": 2, "constraint": tk.Constraint(at_most=0.1, metric="logit-difference")},
            ConfigError,
            "objective='auto' .*within a constraint.*objective=.mean",
        ),
        (
            {"target_effect": 0.1},
            BudgetError,
            "objective='auto' .*sets of one size.*Give budget or budgets.*'mean'",
        ),
    ],
)
def test_what_auto_cannot_do(tracer, options, error, text):
    with pytest.raises(error, match=text):
        tracer.run("local-search", objective="auto", **options)


def test_auto_needs_examples_for_halves(model):
    tracer = tk.Tracer(model, tiny.pairs(3, seed=3))
    with pytest.raises(ConfigError, match="halves of the examples, and there are 3. Give at least"):
        tracer.run("top-k", budget=2, objective="auto")
    # By default there is nothing to choose by, so nothing is chosen.
    assert {result.method for result in tracer.pareto(max_budget=2)} == {"local-search"}
