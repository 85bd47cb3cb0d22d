from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit import search
from tracekit.errors import (
    BudgetError,
    ConfigError,
    NonFiniteMetricError,
    NotDifferentiableError,
    SpaceTooLargeError,
    TargetNotReachedError,
    UnknownMethodError,
    UnknownOptionError,
)
from tracekit.masks import from_indices
from tracekit.search import Goal
from tracekit.search.base import as_count
from tracekit.search.learned.lambda_search import (
    LambdaBracket,
    TrainingRun,
    best_within_budgets,
    measured_sets,
)
from tracekit.search.learned.reward import RewardGradient, make_objective

METHODS = {
    "pgb-ct": {"trials": 3, "epochs": 5},
    "top-k": {},
    "local-search": {},
    "greedy": {},
    "random": {"draws": 20},
    "exhaustive": {},
}


@pytest.fixture(scope="module")
def tracer(model):
    """Twelve heads, with interactions: a probability ratio is far from additive."""
    return tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")


@pytest.fixture(scope="module")
def all_sets(tracer):
    """Mean effect of every set of up to three heads, measured one by one."""
    sets = [s for size in (1, 2, 3) for s in combinations(range(12), size)]
    return dict(zip(sets, tracer.engine.set_effects(sets).mean(1).tolist(), strict=True))


def chosen(result):
    return tuple(result.binary_mask.nonzero()[:, 0].tolist())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_answers_in_the_same_terms(tracer, method):
    curve = tracer.run(
        method,
        budgets=[1, 3, 0.5],
        **METHODS[method] | {"max_sets": 3000} if method == "exhaustive" else METHODS[method],
    )
    assert [result.budget for result in curve] == [1, 3, 6]
    for result in curve:
        assert result.method == method
        assert 1 <= result.n_selected <= result.budget
        measured = tracer.evaluate(result.binary_mask, per_example=True)
        assert torch.equal(measured, result.per_example)
        assert result.effect == pytest.approx(measured.mean().item())
        assert result.cost.forward >= 1
        assert result.seconds > 0
        assert result.history[-1].keys() >= {"n_selected", "effect"}
        assert len(result.components) == result.n_selected
        assert result.full_effect == pytest.approx(tracer.full_effect)
    assert curve.at(3) is curve[1]


def test_exhaustive_is_the_best_of_all(tracer, all_sets):
    result = tracer.run("exhaustive", budget=3)
    assert result.effect == pytest.approx(max(all_sets.values()), rel=1e-4)
    assert result.cost.forward == 12 + 66 + 220 + 1
    for method in ("pgb-ct", "local-search", "top-k", "greedy", "random"):
        assert tracer.run(method, budget=3, **METHODS[method]).effect <= result.effect + 1e-6


def test_one_component_the_optimum_for_greedy_top_k_and_exhaustive(tracer, all_sets):
    best = max((s for s in all_sets if len(s) == 1), key=all_sets.__getitem__)
    for method in ("greedy", "top-k", "exhaustive"):
        assert chosen(tracer.run(method, budget=1)) == best


def test_top_k_takes_the_best_singles(tracer, all_sets):
    order = sorted(range(12), key=lambda i: -all_sets[(i,)])
    result = tracer.run("top-k", budget=3)
    assert chosen(result) == tuple(sorted(order[:3]))
    assert result.component_scores.tolist() == pytest.approx(
        [all_sets[(i,)] for i in range(12)], rel=1e-4
    )
    assert result.cost.forward == 12 + 1


def test_greedy_adds_the_best_next_component(tracer, all_sets):
    result = tracer.run("greedy", budget=3)
    first = max(range(12), key=lambda i: all_sets[(i,)])
    second = max(
        (i for i in range(12) if i != first), key=lambda i: all_sets[tuple(sorted((first, i)))]
    )
    labels = [record["component"] for record in result.history]
    assert labels[:2] == [tracer.registry.label(first), tracer.registry.label(second)]
    assert result.cost.forward == 12 + 11 + 10 + 1
    path = tracer.run("greedy", budget=1.0)
    assert [record["n_selected"] for record in path.history] == list(range(1, 13))
    assert path.effect == pytest.approx(tracer.full_effect, rel=1e-4)


def test_random_keeps_the_best_draw_and_its_spread(tracer):
    result = tracer.run("random", budget=3, draws=50, seed=1)
    record = result.history[0]
    assert record["draws"] == 50
    assert record["mean"] < record["effect"] == pytest.approx(result.effect, rel=1e-4)
    assert record["std"] > 0
    again = tracer.run("random", budget=3, draws=50, seed=1)
    assert chosen(again) == chosen(result)
    assert tracer.run("random", budget=3, draws=50, seed=2).history != result.history
    assert tk.Random().draws == 1000


def test_targets_are_reached_with_few_components(tracer):
    goal = 0.5 * tracer.full_effect
    sizes = {}
    for method, options in METHODS.items():
        result = tracer.run(method, target_effect=goal, **options)
        assert result.effect >= goal
        assert result.target_effect == goal
        assert result.budget is None
        sizes[method] = result.n_selected
    assert sizes["exhaustive"] == min(sizes.values())
    for method in ("pgb-ct", "top-k", "greedy", "random"):
        with pytest.raises(
            TargetNotReachedError, match="No set that was tried reaches an effect of 1e"
        ):
            tracer.run(method, target_effect=1e6, **METHODS[method])


# ---- PGB-CT -------------------------------------------------------------------------------


def test_one_step_of_the_paper_by_hand(tracer):
    """One full-batch step of Adam moves every entry by the learning rate, against the sign."""
    result = tracer.run(
        lambda1=0.01, lambda2=0.02, epochs=1, batch_size=12, learning_rate=0.1, init=0.4
    )
    engine = tracer.engine
    start = torch.full((12,), 0.4)
    effects, gradient = engine.gradient(start, lambda e: torch.ones_like(e) / 12)
    slope = -1 / (1 + effects.mean()) ** 2
    total = slope * gradient + 0.01 + 0.02 * (1 - 2 * 0.4)
    torch.testing.assert_close(result.soft_mask, 0.4 - 0.1 * total.sign(), rtol=0, atol=1e-4)
    record = result.history[0]
    assert record["reward"] == pytest.approx(1 / (1 + effects.mean().item()), rel=1e-5)
    assert record["size_penalty"] == pytest.approx(0.01 * result.soft_mask.sum().item(), rel=1e-5)
    violation = (result.soft_mask * (1 - result.soft_mask)).sum().item()
    assert record["binary_violation"] == pytest.approx(violation, rel=1e-5)
    assert record["binary_penalty"] == pytest.approx(0.02 * violation, rel=1e-5)
    assert record["n_selected"] == result.n_selected


def test_rewards_differ_as_they_should(tracer):
    """The gradient of the per-example reward weighs each example by its own slope."""
    engine = tracer.engine
    start = torch.full((12,), 0.5)
    by_example = RewardGradient(engine, make_objective("per-example", engine))
    found = by_example.step(start, torch.arange(12))
    effects = engine.effects(start)
    _, expected = engine.gradient(start, lambda e: -1 / (1 + e) ** 2 / 12)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    assert by_example.value() == pytest.approx((1 / (1 + effects)).mean().item(), rel=1e-4)


def test_minibatches_of_the_dataset_reward_use_the_running_mean(tracer):
    engine = tracer.engine
    start = torch.full((12,), 0.5)
    reward = RewardGradient(engine, make_objective("dataset", engine))
    reward.step(start, torch.arange(6))
    found = reward.step(start, torch.arange(6, 12))
    effects = engine.effects(start)
    _, plain = engine.gradient(start, lambda e: torch.ones_like(e) / 6, torch.arange(6, 12))
    expected = plain * -1 / (1 + effects.mean()) ** 2
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-7)


def test_unbounded_metrics_meet_no_pole(model):
    """Below -1/2 the reward goes on along its tangent, so an effect of -1 is nothing special."""
    tracer = tk.Tracer(model, tiny.pairs(6, seed=2), metric="logit-difference")
    objective = make_objective("dataset", tracer.engine)
    effects = torch.tensor([-3.0, -1.0, -0.5, 0.0, 1.0])
    rewards = [objective.value(effect[None]).item() for effect in effects]
    assert rewards == pytest.approx([12, 4, 2, 1, 0.5])
    slopes = [objective.scale(effect).item() for effect in effects]
    assert slopes == pytest.approx([-4, -4, -4, -1, -0.25])
    assert tracer.run(budget=2, trials=2, epochs=3).n_selected <= 2


def test_the_budget_is_never_exceeded_and_needs_no_lambda(tracer):
    for budget in (1, 2, 5, 11, 12):
        result = tracer.run(budget=budget, trials=2, epochs=3)
        assert 1 <= result.n_selected <= budget
        assert result.config["lambda1"] is None
        assert result.history[0]["lambda1"] > 0


def test_given_lambdas_are_one_descent(tracer):
    result = tracer.run(lambda1=1e-3, epochs=4, batch_size=5)
    assert len(result.history) == 4
    assert result.cost.backward == pytest.approx(4)
    assert [r["lambda1"] for r in result.history] == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3])
    assert [r["lambda2"] for r in result.history] == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3])
    assert torch.equal(result.binary_mask, result.soft_mask > 0.5)
    strong = tracer.run(lambda1=10.0, epochs=9, budget=4)
    assert len(strong.history) < 9  # stops once few enough are selected


def test_the_same_seed_gives_the_same_bits(tracer):
    first, second = (
        tracer.run(lambda1=1e-3, epochs=3, batch_size=5, seed=4).soft_mask for _ in range(2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(
        first, tracer.run(lambda1=1e-3, epochs=3, batch_size=5, seed=5).soft_mask
    )


def test_schedules_and_reductions_reach_the_penalty(tracer):
    result = tracer.run(lambda1=1e-3, epochs=3, penalty_schedule="exponential")
    assert [r["lambda1"] for r in result.history] == pytest.approx([1e-3, 1.3e-3, 1.69e-3])
    mean = tracer.run(lambda1=1e-3, epochs=1, penalty_reduction="mean").history[0]
    total = tracer.run(lambda1=1e-3 / 12, epochs=1).history[0]
    assert mean["size_penalty"] == pytest.approx(total["size_penalty"], rel=1e-4)


def test_learning_rates_of_the_paper(model, pairs):
    for kinds, rate in (
        ("attention-patterns", 0.1),
        ("mlp-outputs", 0.5),
        ("head-outputs+mlp-blocks", 0.01),
    ):
        engine = tiny.engine(model, pairs, kinds)
        assert tk.PGBCT()._learning_rate(engine) == rate
    assert (tk.PGBCT().epochs, tk.PGBCT().init, tk.PGBCT().threshold) == (15, 0.5, 0.5)


def test_a_metric_without_gradient_cannot_be_followed(model, pairs):
    engine = tiny.engine(model, pairs, metric="accuracy")
    with pytest.raises(NotDifferentiableError, match="'accuracy' has no gradient for pgb-ct"):
        tk.PGBCT().search(engine, Goal(budgets=(2,)), 0)
    assert tk.TopK().search(engine, Goal(budgets=(2,)), 0)[0].mask.sum() == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lambda1": -1.0}, "lambda1 is -1.0. It must be at least 0."),
        ({"lambda2": -1.0}, "lambda2 is -1.0. It must be at least 0."),
        ({"trials": 0}, "trials is 0. It must be at least 1."),
        ({"epochs": 0}, "epochs is 0. It must be at least 1."),
        ({"init": 1.5}, "init is 1.5. It must lie in [0, 1]."),
        ({"learning_rate": 0.0}, "learning_rate is 0.0. It must be positive."),
        ({"reward": "both"}, "Unknown reward 'both'. Use 'dataset' or 'per-example'."),
        ({"penalty_reduction": "max"}, "Unknown penalty_reduction 'max'."),
        ({"penalty_schedule": "cosine"}, "Unknown schedule 'cosine'."),
    ],
)
def test_hyper_parameters_out_of_range(options, text, unchecked):
    with pytest.raises(ConfigError) as caught:
        tk.PGBCT(**options)
    assert text in str(caught.value)


def test_brackets_close_in_on_a_threshold():
    bracket = LambdaBracket(1.0)
    tried = []
    while (guess := bracket.guess()) is not None:
        tried.append(guess)
        bracket.record(guess, guess < 37.0)
    assert tried[:4] == [1, 4, 16, 64]
    assert 37 / 1.06 < tried[-1] < 37 * 1.06
    down = LambdaBracket(1.0)
    down.record(1.0, False)
    assert down.guess() == 0.25


# ---- requests -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "count"), [(3, 3), (0.2, 2), (0.3, 3), (1.0, 10), (10, 10), (5.0, 5), (0.19, 1)]
)
def test_budgets_are_counts_or_shares(budget, count):
    assert as_count(budget, 10) == count


@pytest.mark.parametrize("budget", [0, -1, 11, 0.05, 1.5, 0.0])
def test_budgets_out_of_range(budget):
    with pytest.raises(BudgetError, match="Give a count from 1 to 10, or a share"):
        as_count(budget, 10)


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), "0.2", [1, 2]])
def test_budgets_that_are_no_numbers(budget, unchecked):
    with pytest.raises(BudgetError, match="is no number of components. Give a count from 1 to 10"):
        as_count(budget, 10)


def test_contradictory_or_missing_goals(tracer):
    with pytest.raises(BudgetError, match="More than one goal was given."):
        tracer.run(budget=2, target_effect=0.1)
    with pytest.raises(BudgetError, match="The list of budgets is empty."):
        tracer.run(budgets=[])
    for method in METHODS:
        with pytest.raises(BudgetError, match=f"'{method}' needs to know how many components"):
            tracer.run(method)


def test_unknown_methods_and_options(tracer):
    with pytest.raises(UnknownMethodError, match="Unknown method 'topk'. Did you mean 'top-k'?"):
        tracer.run("topk", budget=2)
    with pytest.raises(UnknownOptionError, match="Unknown option 'lamda1'. Did you mean 'lambda1'"):
        tracer.run(budget=2, lamda1=1.0)
    with pytest.raises(UnknownOptionError, match="none, as the search was given ready-made"):
        tracer.run(tk.Random(draws=5), budget=2, draws=6)
    assert tracer.run(tk.Random(draws=5), budget=2).config == {"draws": 5}
    with pytest.raises(ConfigError, match="draws is 0. It must be at least 1."):
        tk.Random(draws=0)


def test_exhaustive_refuses_large_spaces(tracer):
    with pytest.raises(SpaceTooLargeError) as caught:
        tracer.run("exhaustive", budget=6, max_sets=100)
    assert "There are 2,509 sets of at most 6 of 12 components" in str(caught.value)


# ---- where things could go wrong silently ---------------------------------------------------


def test_the_pole_of_the_reward_is_never_reached(model):
    """In float32 the odds of an example can fall to nothing: its effect is then exactly -1."""

    def ruined(clean, intervened):
        effects = torch.expm1(intervened.y - clean.y - intervened.x + clean.x)
        return torch.where(torch.arange(len(effects)) == 0, effects * 0 - 1, effects)

    metric = tk.Metric("ruined", ruined, lower_bound=-1.0)
    engine = tiny.engine(model, tiny.pairs(4), metric=metric)
    for reward in ("per-example", "dataset"):
        gradient = RewardGradient(engine, make_objective(reward, engine))
        step = gradient.step(torch.full((12,), 0.5), torch.tensor([0]))
        assert torch.isfinite(step).all()
        assert gradient.value() < float("inf")


def test_a_gradient_that_is_not_finite_is_an_error(model, pairs):
    def rooted(clean, intervened):
        return (intervened.x - intervened.x.detach()).clamp(min=0).sqrt()

    tracer = tk.Tracer(model, pairs, metric=rooted)
    with pytest.raises(
        NonFiniteMetricError, match="The gradient of the metric 'rooted' is not finite although"
    ):
        tracer.run(lambda1=1e-3, batch_size=2)


def test_an_effect_that_is_not_finite_names_its_example_only(model, pairs):
    """Also where later steps of the epoch, with a spoilt mask, have no finite effect at all."""

    def broken(clean, intervened):
        effects = intervened.x - clean.x
        return torch.where(intervened.x == clean.x, effects, effects / (clean.x != lowest))

    tracer = tk.Tracer(model, pairs, metric="probability-drop")
    lowest = tracer.engine.clean.x.min()
    number = int(tracer.engine.clean.x.argmin())
    broken_tracer = tk.Tracer(model, pairs, metric=broken)
    with pytest.raises(NonFiniteMetricError) as caught:
        broken_tracer.run(lambda1=1e-3, batch_size=2)
    assert "is not finite on 1 of 8 examples" in str(caught.value)
    assert f"example {number} (" in str(caught.value)


def test_a_callable_without_gradient_is_an_error_for_gradient_methods(model, pairs):
    def counted(clean, intervened):
        return (intervened.x < clean.x).float()

    tracer = tk.Tracer(model, pairs, metric=counted)
    with pytest.raises(NotDifferentiableError, match="No gradient reaches the mask through the"):
        tracer.run(budget=2)
    assert tracer.run("top-k", budget=2).n_selected == 2


def test_a_target_between_the_doubled_sizes_is_found(model):
    """Effects rise and fall with the size; a prefix of three may be the only one that reaches."""
    tracer = tk.Tracer(model, tiny.pairs(8), metric="logit-difference")
    engine = tracer.engine
    singles = engine.set_effects([[i] for i in range(12)]).mean(1)
    order = singles.argsort(descending=True).tolist()
    means = [engine.effects(from_indices(order[:size], 12)).mean().item() for size in range(1, 13)]
    best = max(range(12), key=means.__getitem__) + 1
    result = tracer.run("top-k", target_effect=means[best - 1] - 1e-4)
    assert result.effect >= means[best - 1] - 1e-4


def test_a_target_that_the_full_set_misses_can_still_be_reached(model):
    tracer = tk.Tracer(model, tiny.pairs(6, seed=4), metric="logit-difference")
    best = max(tracer.engine.set_effects([[i] for i in range(12)]).mean(1).tolist())
    assert tracer.full_effect < best
    target = (max(tracer.full_effect, 0) + best) / 2
    for method in ("top-k", "greedy", "random", "pgb-ct"):
        assert tracer.run(method, target_effect=target, **METHODS[method]).effect >= target


def test_what_several_trials_propose_is_measured_once(model, monkeypatch):
    engine = tiny.engine(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    seen = []
    original = engine.effects
    monkeypatch.setitem(
        vars(engine), "effects", lambda mask: seen.append(tuple(mask.tolist())) or original(mask)
    )
    tk.PGBCT(trials=4, epochs=6, refine=False).search(engine, Goal(budgets=(2, 4, 6)), 0)
    # A trial measures its own selections as it goes; proposals afterwards add only new ones.
    in_trials = [mask for mask in seen if sum(mask) not in (2, 4, 6)]
    afterwards = [mask for mask in seen if sum(mask) in (2, 4, 6)]
    assert len(afterwards) > 3
    assert len(set(afterwards)) >= 0.6 * len(afterwards)
    assert len(set(seen)) >= 0.6 * len(seen) > 0.6 * len(in_trials)


def test_random_draws_of_a_size_do_not_depend_on_the_other_sizes(tracer):
    alone = tracer.run("random", budget=4, draws=6)
    assert torch.equal(
        tracer.run("random", budgets=[2, 4], draws=6).at(4).binary_mask, alone.binary_mask
    )


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("epochs", "many", "The option epochs is 'many'. Input should be a valid integer"),
        ("epochs", 2.5, "The option epochs is 2.5. Input should be a valid integer"),
        ("inclusive", "perhaps", "The option inclusive is 'perhaps'."),
        ("lambda1", "big", "The option lambda1 is 'big'."),
    ],
)
def test_options_of_the_wrong_type(tracer, option, value, text):
    with pytest.raises(ConfigError) as caught:
        tracer.run(budget=2, **{option: value})
    assert text in str(caught.value)


def test_options_as_typed_on_a_command_line(tracer):
    made = search.make("pgb-ct", {"inclusive": "False", "epochs": "3", "lambda1": "1e-3"})
    assert made == tk.PGBCT(inclusive=False, epochs=3, lambda1=1e-3)


def test_a_schedule_may_start_at_nothing(tracer):
    result = tracer.run(
        budget=3, trials=2, epochs=3, penalty_schedule=lambda epoch: max(0, epoch - 1)
    )
    assert result.n_selected <= 3


def test_classes_and_searches_of_one_s_own(tracer):
    class First:
        """The first components, in flat order."""

        name = "first"

        def search(self, engine, goal, seed):
            masks = [from_indices(range(size), engine.n_components) for size in goal.budgets]
            return [
                search.Selection(mask=mask, effects=engine.effects(mask), budget=int(mask.sum()))
                for mask in masks
            ]

    result = tracer.run(First(), budget=3)
    assert (result.method, chosen(result), result.config) == ("first", (0, 1, 2), {})
    assert tracer.run(tk.TopK, budget=2).method == "top-k"
    assert tracer.run(tk.Random, budget=2, draws=4).config == {"draws": 4}


def test_the_best_proposal_wins_and_of_equals_the_later(tracer):
    engine, trial = tracer.engine, TrainingRun(1.0)
    for soft, above in (([0, 1], 0.9), ([2, 5], 0.8), ([2, 5], 0.6), ([0, 3, 4], 0.7)):
        mask = torch.full((12,), 0.1)
        mask[soft] = above
        trial.add(engine, mask, torch.zeros(12), mask > 0.5)
    means = {size: [s.effect for s in trial.snapshots if s.n_selected == size] for size in (2, 3)}
    two, three = best_within_budgets([trial], engine, [2, 3], measured_sets([trial]))
    proposals = [
        engine.effects(from_indices(s.order()[:2], 12)).mean().item() for s in trial.snapshots
    ]
    assert two.effects.mean().item() == pytest.approx(max(means[2] + proposals))
    assert three.effects.mean().item() >= max(two.effects.mean().item(), means[3][0]) - 1e-6
    only = TrainingRun(1.0, snapshots=trial.snapshots[1:3])
    (found,) = best_within_budgets([only], engine, [2], measured_sets([only]))
    assert found.soft_mask.max() == pytest.approx(0.6)


def test_entries_that_tie_are_ranked_by_how_hard_the_reward_pushes_them_up(tracer):
    search_ = tk.PGBCT(lambda1=0.0, epochs=1, batch_size=12)
    trial = search_._train(tracer.engine, 0.0, 0, stop_at=0)
    start = torch.full((12,), 0.5)
    gradient = RewardGradient(tracer.engine, make_objective("dataset", tracer.engine)).step(
        start, torch.arange(12)
    )
    torch.testing.assert_close(trial.last.reward_gradient_sum, -gradient, rtol=1e-3, atol=1e-7)
    tied = replace(trial.last, soft_mask=torch.ones(12))
    assert tied.order() == gradient.argsort(stable=True).tolist()


def descended(engine, search_, epochs):
    """The descent of DCM, written out plainly: full batches, autograd of the whole loss."""
    mask = torch.full((engine.n_components,), 0.5, requires_grad=True)
    optimizer = torch.optim.Adam([mask], lr=0.1)
    for _ in range(epochs):
        effects, gradient = engine.gradient(mask.detach(), torch.ones_like)
        surrogate = (mask * gradient).sum() / len(effects)
        loss = -surrogate + search_.lambda1 * (mask + 0.001).sqrt().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mask.data.clamp_(0, 1)
    return mask.detach()


def test_dcm_descends_the_raw_effect_with_a_concave_penalty(tracer):
    search_ = tk.DCM(lambda1=2e-3, epochs=4, batch_size=len(tracer.pairs))
    (found,) = search_.search(tracer.engine, Goal(), 0)
    expected = descended(tracer.engine, search_, 4)
    torch.testing.assert_close(found.soft_mask, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found.mask, expected > 0.5)
    line = found.history[-1]
    assert line["size_penalty"] == pytest.approx(
        2e-3 * (expected + 0.001).sqrt().sum().item(), rel=1e-4
    )
    assert "binary_penalty" not in line


def test_dcm_answers_budgets_and_targets(tracer):
    curve = tracer.run("dcm", budgets=[2, 5], epochs=8, trials=3)
    assert [result.method for result in curve] == ["dcm", "dcm"]
    assert all(r.n_selected <= r.budget for r in curve)
    reached = tracer.run("dcm", target_effect=0.5 * curve[1].effect, epochs=8)
    assert reached.effect >= 0.5 * curve[1].effect
    with pytest.raises(ConfigError, match="trials is 0"):
        tk.DCM(trials=0)


def test_pgbct_without_one_of_its_penalties(tracer):
    first = tracer.run(budgets=[3, 6], lambda1=0.0, lambda2=1e-2, refine=False, epochs=4)
    assert first[0].history[-1]["size_penalty"] == 0
    second = tracer.run(budgets=[3, 6], lambda2=0.0, refine=False, epochs=4, trials=2)
    assert second[0].history[-1]["binary_penalty"] == 0
    assert second[0].history[-1]["size_penalty"] > 0
    for result in (*first, *second):
        assert 0 < result.n_selected <= result.budget


class TestGradientBaselines:
    """Attribution patching and integrated gradients over masks."""

    def test_attribution_is_the_slope_of_the_effect_at_the_empty_mask(self, tracer):
        result = tracer.run("attribution", budget=3)
        step = 1e-3
        masks = step * torch.eye(len(tracer.registry))
        slopes = tracer.engine.effects(masks).mean(1) / step
        torch.testing.assert_close(result.component_scores, slopes, rtol=0.05, atol=2e-3)
        chosen = result.component_scores.argsort(descending=True)[:3]
        assert result.binary_mask.nonzero()[:, 0].tolist() == sorted(chosen.tolist())
        assert (result.cost.forward, result.cost.backward) == (2, 1)

    def test_integrated_gradients_are_complete(self, tracer):
        """Along the diagonal the scores sum to the effect of all components."""
        result = tracer.run("mask-ig", budgets=[2, 5], steps=40)
        assert result[0].component_scores.sum().item() == pytest.approx(
            tracer.full_effect, rel=0.02
        )
        assert (result[0].cost.forward, result[0].cost.backward) == (41 + 2, 41)
        with pytest.raises(ConfigError, match="steps is 0. It must be at least 1."):
            tk.MaskIG(steps=0)

    @pytest.mark.parametrize("method", ["attribution", "mask-ig"])
    def test_they_need_a_gradient_and_a_goal(self, model, method):
        accuracy = tk.Tracer(model, tiny.pairs(), metric="accuracy")
        with pytest.raises(NotDifferentiableError, match=f"no gradient for {method} to follow"):
            accuracy.run(method, budget=2)
        with pytest.raises(BudgetError, match="needs to know how many components"):
            tk.Tracer(model, tiny.pairs()).run(method)

    def test_attribution_agrees_with_transformer_lens(self):
        """Its own attribution patching, of head outputs and MLP blocks, on one-token answers."""
        module = pytest.importorskip("transformer_lens.tools.analysis.attribution_patching")
        model = tk.load_model(tiny.hf_model("gpt2"))
        for parameter in model.parameters():
            parameter.requires_grad_(True)  # Theirs needs it.
        rows = [
            {**row, "x_ids": row["x_ids"][:1], "y_ids": [(row["x_ids"][0] + 7) % tiny.VOCABULARY]}
            for row in tiny.rows(4)
        ]
        tracer = tk.Tracer(
            model,
            tk.PromptPairs.from_ids(rows),
            "head-outputs+mlp-blocks",
            "logit-difference",
        )
        ours = tracer.run("attribution", budget=1).component_scores
        theirs = torch.zeros(len(tracer.registry))
        for row in rows:
            x, y = row["x_ids"][0], row["y_ids"][0]
            # Theirs points from corrupt to clean, ours from clean to counterfactual.
            found = module.attribution_patch(
                model,
                torch.tensor([row["counterfactual_ids"]]),
                torch.tensor([row["prompt_ids"]]),
                lambda logits, x=x, y=y: logits[0, -1, y] - logits[0, -1, x],
            )
            for node, score in found.node_scores.items():
                if node.kind == "attn_head_out":
                    component = tk.Component("head-outputs", node.layer, node.head)
                elif node.kind == "mlp_out":
                    component = tk.Component("mlp-blocks", node.layer)
                else:
                    continue
                theirs[tracer.registry.index(component)] += float(score) / len(rows)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_the_per_example_reward_has_no_weights(model):
    rows = [{**row, "weight": 1 + i} for i, row in enumerate(tiny.rows(4))]
    tracer = tk.Tracer(model, tk.PromptPairs.from_ids(rows))
    assert tracer.run(budget=2, epochs=2).effect > 0
    for method, options in (("pgb-ct", {}), ("local-search", {"soft_steps": 4, "max_passes": 200})):
        with pytest.raises(ConfigError, match="per-example reward has no meaning for weighted"):
            tracer.run(method, budget=2, reward="per-example", **options)
