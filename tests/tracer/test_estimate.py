"""Estimates are what runs take, or at most that; a run has one progress bar, and it fits."""

from __future__ import annotations

import io
import math
import re
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest

import tracekit as tk
from tests import tiny
from tracekit._util import progress as _progress
from tracekit._util.progress import duration_text
from tracekit.errors import (
    BudgetError,
    ComponentError,
    ConfigError,
    SearchStoppedWarning,
    UnknownNameError,
    UnknownOptionError,
)
from tracekit.search.baselines.measured_effects import TopK
from tracekit.tracer import estimate as estimating

DETERMINISTIC = {
    "top-k": {},
    "empirical-bayes-top-k": {"by_gradients": True, "steps": 3},
    "greedy": {},
    "random": {"draws": 10},
    "exhaustive": {},
    "attribution": {},
    "mask-ig": {"steps": 3},
}
BOUNDED = {
    "pgb-ct+local": {"epochs": 3},
    "pgb-ct": {"epochs": 3, "trials": 2},
    "dcm": {"epochs": 3, "trials": 2},
    "learned-ranking": {"epochs": 3, "steps": 3},
    "local-search": {"max_passes": 40},
}


def passes_of(outcome) -> float:
    result = outcome if isinstance(outcome, tk.TraceResult) else outcome[0]
    return result.cost.forward_equivalents


class TestPasses:
    @pytest.mark.parametrize("method", DETERMINISTIC)
    def test_are_exact_where_the_method_is_fixed(self, tracer, method):
        options, goal = DETERMINISTIC[method], {"budgets": [1, 2]}
        estimate = tracer.estimate(method, **goal, **options)
        assert estimate.is_exact
        assert estimate.passes == passes_of(tracer.run(method, **goal, **options))
        # And for each of the two sets one of its complement, one for first choices.
        assert estimate.example_passes == (estimate.passes + 4) * len(tracer.pairs)

    @pytest.mark.parametrize("method", BOUNDED)
    def test_are_a_bound_otherwise(self, tracer, method):
        options, goal = BOUNDED[method], {"budgets": [2, 4]}
        estimate = tracer.estimate(method, **goal, **options)
        passes = passes_of(tracer.run(method, **goal, **options))
        assert not estimate.is_exact
        # A bound that says something.
        assert passes <= estimate.passes <= 8 * passes

    @pytest.mark.parametrize("method", ["top-k", "greedy", "random", "mask-ig"])
    def test_of_a_target_are_a_bound(self, tracer, method):
        options = {"target_effect": 0.5 * tracer.full_effect, **DETERMINISTIC[method]}
        estimate = tracer.estimate(method, **options)
        assert not estimate.is_exact
        assert passes_of(tracer.run(method, **options)) <= estimate.passes

    def test_count_the_effects_of_sets_that_scores_chose(self, tracer):
        """Twelve components alone, three sets, each once more, without others, and said."""
        asked = {"budgets": [1, 2, 3], "objective": "median"}
        estimate, _ = tracer.estimate("top-k", **asked), tracer.full_effect
        with _progress.open_bar("counts", None, len(tracer.pairs), shown=False) as counted:
            tracer.run("top-k", **asked)
        assert counted.done == estimate.passes + estimate.further == 12 + 3 + 3 + 3 + 3

    @pytest.mark.parametrize("objective", ["median", "auto"])
    @pytest.mark.parametrize("method", ["top-k", "mask-ig"])
    def test_hold_for_other_objectives(self, tracer, method, objective):
        options = {**DETERMINISTIC, **BOUNDED}[method]
        estimate = tracer.estimate(method, budget=3, objective=objective, **options)
        result = tracer.run(method, budget=3, objective=objective, **options)
        assert passes_of(result) <= estimate.passes

    @pytest.mark.parametrize("method", ["top-k", "mask-ig"])
    def test_hold_with_something_to_keep(self, tracer, method):
        keep = tk.Constraint(pairs=tiny.pairs(6, seed=9), at_most=5.0)
        options = {**DETERMINISTIC, **BOUNDED}[method]
        estimate = tracer.estimate(method, budget=3, constraint=keep, **options)
        assert (
            passes_of(tracer.run(method, budget=3, constraint=keep, **options)) <= estimate.passes
        )

    @pytest.mark.parametrize("statistics", [False, True])
    def test_of_a_front_hold_with_its_statistics(self, tracer, statistics):
        options = {"max_budget": 3, "max_passes": 40, "statistics": statistics, "objective": "mean"}
        _ = tracer.full_effect  # Shared by all runs, and in the account of none.
        estimate = tracer.estimate_pareto(**options)
        with _progress.open_bar("counts", None, 1, shown=False) as counted:
            tracer.pareto(**options)
        assert estimate.passes == 40
        # What is left is less than a gradient takes, which is two passes.
        assert 38 * len(tracer.pairs) < counted.done <= estimate.example_passes

    @pytest.mark.slow
    @pytest.mark.parametrize("asked", ["mean", "median", "auto", "constraint"])
    def test_of_a_front_are_a_bound_however_it_is_asked(self, tracer, asked):
        keep = tk.Constraint(pairs=tiny.pairs(6, seed=9), at_most=5.0)
        question = {"constraint": keep} if asked == "constraint" else {"objective": asked}
        options = {"max_budget": 3, "max_passes": 40, **question}
        _ = tracer.full_effect
        estimate = tracer.estimate_pareto(**options)
        with _progress.open_bar("counts", None, 1, shown=False) as counted:
            front = tracer.pareto(**options)
        assert counted.done <= estimate.example_passes
        spent = front[0].cost + front.statistics_cost
        assert spent.forward_equivalents * len(tracer.pairs) <= estimate.example_passes
        # What is kept, and scores, are run for the statistics too.
        assert spent.forward_equivalents * len(tracer.pairs) > 0.95 * counted.done

    @pytest.mark.slow
    @pytest.mark.parametrize("statistics", [False, True])
    def test_of_a_front_count_both_searches(self, tracer, statistics):
        """Local search, twelve components alone and three of their prefixes; halves besides."""
        options = {"max_budget": 3, "max_passes": 40, "statistics": statistics}
        _ = tracer.full_effect
        estimate = tracer.estimate_pareto(objective="auto", **options)
        assert estimate.passes == 40 + 12 + 3
        with _progress.open_bar("counts", None, 1, shown=False) as counted:
            front = tracer.pareto(objective="auto", **options)
        assert {result.cost for result in front} == {front[0].cost}
        assert {result.stopped for result in front} == {"max_passes"}
        assert 38 + 15 < front[0].cost.forward_equivalents <= estimate.passes
        spent = (front[0].cost + front.statistics_cost).forward_equivalents * len(tracer.pairs)
        assert 0.95 * counted.done < spent <= counted.done <= estimate.example_passes

    def test_say_what_is_measured_besides(self, model):
        tracer = tk.Tracer(
            model, tiny.pairs(8), held_out=tiny.pairs(4, seed=5), extra_metrics=["probability-drop"]
        )
        estimate = tracer.estimate("top-k", budgets=[1, 2])
        # For each of the two results: three further passes, one of them of its complement and one
        # for first choices, and four over the held-out half.
        assert estimate.example_passes == estimate.passes * 8 + 2 * 3 * 8 + 2 * 4 * 4


class TestPassesOfExplanations:
    """`Tracer.estimate_explain`."""

    @pytest.mark.parametrize("size", [2, 3, 5, pytest.param(12, marks=pytest.mark.soak)])
    def test_are_exact_for_up_to_twelve_members(self, tracer, size):
        members, options = list(tracer.registry)[:size], {"look_outside": False}
        estimate = tracer.estimate_explain(members, **options)
        assert estimate.is_exact
        assert estimate.passes == 2**size - 1
        assert estimate.passes == tracer.explain(members, **options).cost.forward_equivalents
        assert estimate.example_passes == estimate.passes * len(tracer.pairs)

    @pytest.mark.parametrize("size", [2, 4, pytest.param(11, marks=pytest.mark.slow)])
    def test_are_a_bound_with_non_members(self, tracer, size):
        members = list(tracer.registry)[:size]
        estimate = tracer.estimate_explain(members)
        passes = tracer.explain(members).cost.forward_equivalents
        assert not estimate.is_exact
        # Non-members that both predictions propose are measured once.
        assert passes <= estimate.passes <= 2 * passes

    def test_are_the_end_of_its_bar(self, tracer, monkeypatch):
        opened = []
        bar = _progress.open_bar

        def recorded(label, passes, *rest, **options):
            opened.append((label, passes))
            return bar(label, passes, *rest, **options)

        monkeypatch.setattr(_progress, "open_bar", recorded)
        members = list(tracer.registry)[:4]
        expected = tracer.estimate_explain(members).passes
        opened.clear()
        tracer.explain(members)
        assert opened[0] == ("explain", expected)

    @pytest.mark.slow
    @pytest.mark.parametrize(("size", "max_sets"), [(13, 200), (14, 1)])
    def test_are_a_bound_for_many_members(self, model, size, max_sets):
        tracer = tk.Tracer(model, tiny.pairs(4), "attention-patterns+mlp-blocks")
        assert len(tracer.registry) == 15
        members, options = list(tracer.registry)[:size], {"max_sets": max_sets}
        estimate = tracer.estimate_explain(members, **options)
        passes = tracer.explain(members, **options).cost.forward_equivalents
        assert passes <= estimate.passes <= 2 * passes

    def test_are_refused_where_an_explanation_is(self, tracer):
        with pytest.raises(ComponentError, match="Give at least two"):
            tracer.estimate_explain([tracer.registry[0]])
        with pytest.raises(ConfigError, match="max_sets is 0"):
            tracer.estimate_explain(list(tracer.registry)[:2], max_sets=0)


CALLS = {
    "faithfulness": {},
    "controls": {"draws": 7},
    "side_effects": {"draws": 5, "others": {"other": tiny.pairs(8, seed=9)}},
    "minimality": {},
}


class TestPassesOfCallsOnASet:
    """`Tracer.estimate_controls` and its like."""

    @pytest.mark.pairwise
    @pytest.mark.parametrize("direction", ["noising", "denoising"])
    @pytest.mark.parametrize("is_found", [True, False])
    @pytest.mark.parametrize("held_out", [None, tiny.pairs(9, seed=2)])
    @pytest.mark.parametrize("call", CALLS)
    def test_are_those_that_are_counted(self, model, call, held_out, is_found, direction):
        asked = {"held_out": held_out, "direction": direction, "source": "counterfactual"}
        tracer = tk.Tracer(model, tiny.pairs(6, seed=7), "head-outputs", **asked)
        _ = tracer.full_effect, tracer.question.eval_engine.full_effects
        found = tracer.run("top-k", budget=4)
        members = found if is_found else tracer.registry[2:5]
        estimate = getattr(tracer, f"estimate_{call}")(members, **CALLS[call])
        with _progress.open_bar("counts", None, 1, shown=False) as counted:
            outcome = getattr(tracer, call)(members, **CALLS[call])
        times = 1.5 if call == "minimality" else 1.0
        assert estimate.is_exact == (call != "minimality")
        assert counted.done <= estimate.example_passes <= times * counted.done
        if call != "faithfulness":
            passes = outcome.cost.forward_equivalents
            assert passes <= estimate.passes <= times * passes
        assert f"{call}: {'up to ' * (times > 1)}{estimate.passes:.0f} passes, " in repr(estimate)

    def test_of_rankings_are_two_for_each_share(self, tracer):
        found = tracer.run("top-k", budget=2)
        assert tracer.estimate_faithfulness(found, ranking="signed").passes == 20
        assert tracer.estimate_faithfulness(found).passes == 2
        assert tracer.estimate_faithfulness(tracer.run("top-k", budgets=[1, 2, 3])).passes == 6

    @pytest.mark.parametrize("call", CALLS)
    def test_are_refused_where_the_call_is(self, tracer, call):
        options = {name: CALLS[call][name] for name in CALLS[call] if name != "draws"}
        with pytest.raises(ComponentError, match="L77H0"):
            getattr(tracer, f"estimate_{call}")("L77H0", **options)
        with pytest.raises(UnknownOptionError, match="'drawn'"):
            getattr(tracer, f"estimate_{call}")(tracer.registry[:2], **options, drawn=3)


class TestTime:
    @pytest.mark.parametrize("call", CALLS)
    def test_of_calls_is_that_of_their_own_sets(self, model, call, monkeypatch):
        """A set costs what such a set costs: the probe runs some of those that the call does."""
        tracer = tk.Tracer(model, tiny.pairs(12), "head-outputs")
        probed, told = [], CALLS[call]
        monkeypatch.setattr(
            estimating,
            "_seconds_of_passes",
            lambda few, sets, **given: (probed.extend(sets), (2.0, 0.0))[1],
        )
        members = tracer.registry[3:6]
        estimate = getattr(tracer, f"estimate_{call}")(members, **told)
        assert estimate.seconds == pytest.approx(2 * estimate.example_passes / 8)
        others = tuple(i for i in range(len(tracer.registry)) if i not in (3, 4, 5))
        assert {"minimality": others, "side_effects": (3, 4, 5)}.get(call, (3, 4, 5)) in probed

    def test_is_that_of_the_run_within_reason(self, tracer):
        estimate = tracer.estimate("exhaustive", budget=2)
        seconds = tracer.run("exhaustive", budget=2).run.seconds
        assert seconds / 10 < estimate.seconds < 10 * seconds

    def test_is_taken_once_of_a_few_examples(self, model, monkeypatch):
        tracer = tk.Tracer(model, tiny.pairs(40), "head-outputs")
        timed = []

        def seconds(few, sets, **given):
            timed.append(few.n_examples)
            return 1.0, 2.0

        monkeypatch.setattr(estimating, "_seconds_of_passes", seconds)
        first = tracer.estimate("top-k", budget=2)
        # Eight of 40 examples: a pass over all takes five times as long. One is of the complement,
        # one for first choices.
        assert first.seconds == pytest.approx(5 * (first.passes + 2))
        assert tracer.estimate("greedy", budget=2).seconds > first.seconds
        assert timed == [8]
        tracer.estimate("pgb-ct", budget=2)
        assert timed == [8, 8]
        assert tracer.engine.cost == tk.engine.Cost()

    def test_is_taken_of_more_where_a_few_take_a_moment(self, model, monkeypatch):
        """Of neighbours, which share as much as all components do."""
        tracer, timed = tk.Tracer(model, tiny.pairs(40), "mlp-neurons"), []
        n = len(tracer.registry)

        def seconds(few, sets, **given):
            timed.append((few.n_examples, [i for (i,) in sets]))
            return few.n_examples * 1e-3, 0.0

        monkeypatch.setattr(estimating, "_seconds_of_passes", seconds)
        estimate = tracer.estimate("top-k", budget=2)
        assert estimate.seconds == pytest.approx(40e-3 * (estimate.passes + 2))
        assert [count for count, _ in timed] == [8, 32]
        starts = [n // 8, 3 * n // 8, 5 * n // 8, 7 * n // 8]
        assert timed[1][1] == [start + k for start in starts for k in range(4)]
        monkeypatch.setattr(estimating, "_seconds_of_passes", lambda *_, **__: (1e-6, 0.0))
        few = tk.Tracer(model, tiny.pairs(3), "mlp-blocks")
        assert few.estimate("top-k", budget=1).seconds < 1e-4

    def test_is_bounded_by_a_limit(self, tracer):
        """Of the search, and of each of three; not of what is measured besides."""
        search = {"budget": 3, "max_passes": 40}
        alone = tracer.estimate("local-search", **search)
        limited = tracer.estimate("local-search", **search, max_seconds=1e-4)
        assert limited.further == 2
        assert alone.passes == limited.passes
        assert limited.seconds < 4 / 40 * alone.seconds
        front = {"max_budget": 3, "max_passes": 40, "objective": "mean"}
        whole = tracer.estimate_pareto(**front).seconds
        less = whole - tracer.estimate_pareto(**front, max_seconds=1e-4).seconds
        once = alone.seconds - limited.seconds
        assert less == pytest.approx(2 * once, rel=1e-3)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("call", "options", "times", "is_said"),
        [
            ("run", {"budget": 3, "max_passes": 40}, 1.1, False),
            ("run", {"budget": 3, "max_passes": 40, "objective": "auto"}, 1.1, True),
            ("pareto", {"max_budget": 3, "max_passes": 40}, 1.5, True),
            ("pareto", {"max_budget": 3, "max_passes": 40, "objective": "mean"}, 1.5, True),
            ("pareto", {"max_budget": 3, "max_passes": 40, "statistics": False}, 1.1, False),
            ("pareto", {"max_budget": 3, "max_seconds": 0.5}, 9.0, True),
            ("pareto", {"max_passes": 20, "statistics": False}, 1.6, True),
            ("pareto", {"max_budget": 3}, 9.0, False),
        ],
    )
    def test_what_a_limit_does_not_bound_is_said_before(
        self, tracer, call, options, times, is_said
    ):
        """All passes are at most those that the estimate and the warning say, and not far below."""
        # One of its own: where sets were measured before, less is left to measure.
        tracer = tk.Tracer(tracer.model, tracer.pairs, metric="probability-ratio")
        _ = tracer.full_effect
        if call == "run":
            estimate = tracer.estimate("local-search", **options)
            work = partial(tracer.run, "local-search", **options)
        else:
            estimate, work = tracer.estimate_pareto(**options), partial(tracer.pareto, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", SearchStoppedWarning)
            with _progress.open_bar("counts", None, len(tracer.pairs), shown=False) as counted:
                work(observe=lambda record: caught.append(record))
        said = [str(w.message) for w in caught if isinstance(w, warnings.WarningMessage)]
        said = [text for text in said if "Measuring the results takes further" in text]
        passes = estimate.passes + estimate.further
        assert counted.done <= passes + 1e-6
        assert passes <= times * counted.done
        assert [f"at most {passes:.0f} in all" in text for text in said] == [True] * is_said
        limit = "0.5 seconds" if "max_seconds" in options else f"{options.get('max_passes')} passes"
        assert all(text.startswith(f"A limit of {limit} applies to ") for text in said)
        if is_said:
            assert "applies to" in str(getattr(caught[0], "message", "")), "it is said too late"

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(0.01, "0.1 s"), (1.4, "1 s"), (89, "89 s"), (240, "4 min"), (9000, "2.5 h")],
    )
    def test_is_printed_as_people_say_it(self, seconds, text):
        assert duration_text(seconds) == text

    def test_memory_is_that_of_a_process_with_a_model(self, tracer):
        assert 2**26 < tracer.estimate("top-k", budget=1).memory < 2**36


def test_an_estimate_is_one_line(tracer):
    text = repr(tracer.estimate(budget=3))
    assert text.startswith("Estimate(pgb-ct+local: up to 250 passes, about ")
    assert "at most" not in text + repr(tracer.estimate("top-k", budget=3))
    assert "Faster" not in text
    assert "MiB" in text
    assert "\n" not in text


class TestFaster:
    """Where a run takes long, its estimate names what takes minutes, and how many."""

    @pytest.fixture
    def slow(self, model, monkeypatch):
        """A tracer whose passes over its 40 examples take so many seconds, and gradients too."""
        tracer = tk.Tracer(model, tiny.pairs(40), "head-outputs", "logit-difference")

        def with_pass_of(seconds):
            probed = (seconds / 5, seconds / 5)
            monkeypatch.setattr(estimating, "_seconds_of_passes", lambda *_, **__: probed)
            estimating._PACES.clear()
            return tracer

        yield with_pass_of
        estimating._PACES.clear()

    def test_is_a_ranking_by_gradients_if_that_takes_minutes(self, slow):
        tracer = slow(60.0)
        estimate = tracer.estimate("greedy", budget=6)
        by_gradients = tracer.estimate("mask-ig", budget=6, steps=10)
        assert estimate.seconds > by_gradients.seconds > 600
        # 11 gradients of a minute are too many; of some of the examples they are not.
        few = int(40 * 300 / by_gradients.seconds)
        assert estimate.faster == f"mask-ig on {few} of the 40 examples, about 5 min"
        tracer = slow(20.0)
        estimate = tracer.estimate("greedy", budget=6)
        seconds = tracer.estimate("mask-ig", budget=6).seconds
        assert 60 < seconds < 600 < estimate.seconds
        assert estimate.faster == f"mask-ig, about {duration_text(seconds)}"
        assert repr(estimate).endswith(f". Faster: {estimate.faster}")

    def test_is_of_a_front_a_curve_of_a_few_sizes(self, slow):
        estimate = slow(15.0).estimate_pareto(max_budget=6)
        assert estimate.seconds > 600
        pattern = r"mask-ig with budgets=\[1, 2, 3, 4, 5, 6\], about \d+ min"
        assert re.fullmatch(pattern, estimate.faster)

    def test_is_fewer_examples_where_nothing_else_is(self, slow):
        tracer = slow(100.0)
        estimate = tracer.estimate("mask-ig", budget=6)
        few, n, minutes = map(int, re.findall(r"\d+", estimate.faster))
        assert estimate.faster == f"{few} of the 40 examples, about {minutes} min"
        assert 8 <= few == int(40 * 300 / estimate.seconds)
        assert minutes == round(few / n * estimate.seconds / 60)
        tracer, members = slow(15.0), tracer.registry[:5]
        assert " of the 40 examples, about " in tracer.estimate_explain(members).faster
        estimate = tracer.estimate_minimality(members)
        is_long = estimate.seconds > 600
        assert is_long == (" of the 40 examples, about " in estimate.faster)

    def test_is_a_ranking_also_where_pairs_are_drawn_to_train_on(self, slow):
        tracer, pairs = slow(20.0), [tiny.pairs(40, seed=9)]
        given, drawn = (
            tracer.estimate("learned-ranking", budget=6, training_pairs=each)
            for each in (None, pairs)
        )
        assert drawn.passes > given.passes + 3 * 40
        assert drawn.faster.startswith("mask-ig, about ")

    def test_is_a_quicker_way_also_where_that_takes_longer(self, slow):
        tracer = slow(1e4)
        quick = tracer.estimate("mask-ig", budget=6)
        estimate = tracer.estimate("greedy", budget=6)
        assert 600 < quick.seconds < estimate.seconds / 2
        assert estimate.faster == f"mask-ig, about {duration_text(quick.seconds)}"

    def test_is_nothing_where_eight_examples_take_too_long(self, slow):
        assert slow(1e4).estimate("mask-ig", budget=6).faster == ""

    def test_is_no_gradient_where_the_metric_has_none(self, slow, model):
        tracer = slow(20.0)
        counted = tk.Tracer(model, tracer.pairs, "head-outputs", "accuracy")
        assert re.match(r"\d+ of the 40", counted.estimate("greedy", budget=6).faster)


@pytest.mark.slow
def test_says_how_many_examples_go_through_the_model_at_once(tracer):
    estimate = tracer.estimate("top-k", budget=3)
    assert estimate.rows == 64
    assert "examples are run, up to 64 at once" in repr(estimate)
    few = tk.Tracer(tracer.model, tracer.pairs, "head-outputs", max_batch_size=4)
    assert few.estimate("top-k", budget=3).rows == 4
    assert few.estimate_minimality(["L0H0", "L1H1"]).rows == 4


def test_an_estimate_refuses_what_a_run_refuses(tracer):
    with pytest.raises(UnknownNameError):
        tracer.estimate("top-q", budget=3)
    with pytest.raises(BudgetError, match="needs to know how many"):
        tracer.estimate("top-k")
    # PGB-CT with a fixed lambda decides its own size.
    assert tracer.estimate("pgb-ct", lambda1=0.1, epochs=2).passes == 7


@dataclass(frozen=True)
class Silent:
    name: ClassVar[str] = "silent"

    def search(self, engine, goal, seed):
        return TopK().search(engine, goal, seed)


def test_a_search_that_does_not_say_is_no_estimate(tracer):
    with pytest.raises(ConfigError, match="'silent' .*how many passes.*Give it a method"):
        tracer.estimate(Silent(), budget=2)
    assert tracer.run(Silent(), budget=2).n_selected == 2


# ---- the bar ----------------------------------------------------------------------------------


class Recorded:
    """Stands for tqdm: remembers every bar, and how many were open at a time."""

    def __init__(self):
        self.bars = []
        self.most_open = 0

    def __call__(self, items=None, **options):
        bar = _Bar(self, items, options)
        self.bars.append(bar)
        self.most_open = max(self.most_open, sum(each.is_open for each in self.bars))
        return bar


class _Bar:
    def __init__(self, recorded, items, options):
        self.items, self.options = items, options
        self.n, self.is_open = 0, True

    def __iter__(self):
        yield from self.items
        self.close()

    def update(self, n):
        self.n += n

    def set_postfix(self, values, refresh):
        self.postfix = values

    def close(self):
        self.is_open = False


@pytest.fixture
def bars(monkeypatch):
    recorded = Recorded()
    monkeypatch.setattr(_progress, "_import_tqdm", lambda: recorded)
    return recorded


@pytest.fixture(scope="module")
def watched(model):
    tracer = tk.Tracer(model, tiny.pairs(6, seed=3), progress=True, layers=[0, 1])
    _ = tracer.full_effect
    return tracer


class TestBar:
    def test_an_export_has_one(self, model, bars, tmp_path):
        options = {"source": "zero", "positions": "all", "held_out": tiny.pairs(3, seed=4)}
        tracer = tk.Tracer(model, tiny.pairs(6, seed=3), "head-outputs", progress=True, **options)
        _ = tracer.full_effect
        bars.bars.clear()
        tracer.export("all", tmp_path / "edited")
        (bar,) = bars.bars
        assert (bar.options["desc"], bar.options["total"]) == ("export", 2.5)
        assert bar.n == pytest.approx(2.5)
        assert not bar.is_open

    @pytest.mark.parametrize("method", [*DETERMINISTIC, *BOUNDED])
    def test_there_is_one_and_it_fits(self, watched, bars, method):
        options = {**DETERMINISTIC, **BOUNDED}[method]
        name = method.split()[0]
        watched.run(name, budgets=[1, 2], **options)
        (bar,) = bars.bars
        # With the complements of both sets, and their first choices.
        total = watched.estimate(name, budgets=[1, 2], **options).passes + 4
        assert bar.options["total"] == total
        assert bar.options["desc"] == name
        assert not bar.is_open
        if method in DETERMINISTIC:
            assert bar.n == pytest.approx(total)
        else:
            assert 0 < bar.n <= total

    @pytest.mark.slow
    def test_a_front_with_statistics_has_one(self, watched, bars):
        watched.pareto(max_budget=3, max_passes=20)
        (bar,) = bars.bars
        assert 20 < bar.n <= bar.options["total"]

    def test_halves_that_choose_have_one(self, watched, bars):
        watched.run("top-k", budget=2, objective="auto")
        (bar,) = bars.bars
        assert bar.n == pytest.approx(bar.options["total"])

    @pytest.mark.parametrize(
        "work",
        [
            lambda tracer: tracer.explain(tracer.run("top-k", budget=3)),
            lambda tracer: tracer.side_effects([tracer.registry[0]], {"other": tiny.pairs(6)}),
            lambda tracer: tracer.interactions(layers=[0]),
        ],
    )
    def test_bars_are_never_nested(self, watched, bars, work):
        work(watched)
        assert bars.bars
        assert bars.most_open == 1
        assert not any(bar.is_open for bar in bars.bars)

    def test_building_a_tracer_has_one_at_a_time(self, model, bars):
        tracer = tk.Tracer(model, tiny.pairs(12), progress=True, max_batch_size=2)
        _ = tracer.full_effect
        assert bars.most_open == 1

    def test_an_error_closes_it(self, watched, bars, monkeypatch):
        def interrupted(*args, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(tk.engine.Engine, "set_effects", interrupted)
        with pytest.raises(KeyboardInterrupt):
            watched.run("top-k", budget=2)
        assert [bar.is_open for bar in bars.bars] == [False]
        assert _progress.current_run() is _progress._NOTHING

    @pytest.mark.parametrize("shown", [True, None])
    def test_a_bar_may_be_within_a_call_that_has_none(self, shown):
        """Bars of tqdm compare themselves with bars only."""
        with (
            _progress.report_waiting("certify", shown=shown),
            _progress.open_bar("controls", 40, 10, shown=True) as progress,
        ):
            progress.advance(10)

    def test_an_estimate_that_was_too_low_leaves_it_full(self, bars):
        with _progress.open_bar("mine", 2, 10, shown=True) as progress:
            progress.advance(50)
        assert bars.bars[0].n == 2
        assert progress.done == 5

    def test_a_search_that_does_not_say_has_one_without_an_end(self, watched, bars):
        watched.run(Silent(), budget=2)
        (bar,) = bars.bars
        assert bar.options["total"] is None
        assert "{total" not in bar.options["bar_format"]


class TestWhereItIsShown:
    @pytest.fixture
    def clock(self, monkeypatch):
        """Time in these tests; no thread looks at it but the test."""
        now = [1000.0]
        monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(_progress.Thread, "start", lambda thread: None)
        monkeypatch.setattr(_progress._Watch, "last_line", -math.inf)
        monkeypatch.setattr(_progress._Watch, "last_label", "")
        return now

    @pytest.fixture
    def pass_time(self, clock, capsys):
        """Lets seconds pass, with four looks in each; gives the lines and when they came."""

        def passing(seconds):
            lines, start = [], clock[0]
            while clock[0] < start + seconds:
                clock[0] += 0.25
                _progress._LOCAL.watch.write_if_due()
                lines += [(clock[0] - start, each) for each in capsys.readouterr().err.splitlines()]
            return lines

        return passing

    @pytest.mark.slow
    def test_off_elsewhere(self, model, bars):
        assert not _progress.is_interactive()
        tracer = tk.Tracer(model, tiny.pairs(12), max_batch_size=2)
        tracer.run("top-k", budget=2)
        assert not bars.bars

    def test_a_wait_is_said_after_a_second_and_twice_a_minute(self, pass_time):
        with _progress.report_waiting("certify"):
            assert pass_time(0.75) == []
            assert pass_time(70.0) == [
                (0.25, "certify ..."),
                (30.25, "certify: 31 s so far"),
                (60.25, "certify: 61 s so far"),
            ]

    def test_bars_say_how_far_they_are_also_within_a_long_step(self, pass_time):
        with (
            _progress.report_waiting("certify"),
            _progress.open_bar("controls", 40, 10, shown=None) as progress,
        ):
            progress.advance(100)
            assert pass_time(31.0) == [
                (1.0, "certify (controls): 10 of 40 passes in 1 s, about 3 s left"),
                (31.0, "certify (controls): 10 of 40 passes in 31 s, about 2 min left"),
            ]

    def test_short_calls_after_each_other_say_nothing(self, pass_time):
        for _ in range(50):
            with _progress.report_waiting("evaluate"):
                assert pass_time(0.5) == []

    def test_equal_calls_share_two_lines_a_minute(self, pass_time):
        lines = []
        for _ in range(10):
            with _progress.report_waiting("evaluate"):
                lines += pass_time(6.0)
        assert [line for _, line in lines] == ["evaluate ..."] * 2

    def test_other_calls_are_said_at_once(self, pass_time):
        for label in ("evaluate", "controls"):
            with _progress.report_waiting(label):
                assert pass_time(3.0) == [(1.0, f"{label} ...")]

    def test_loops_say_their_steps_and_short_ones_that_they_run(self, pass_time):
        loop: Any = _progress.track(range(40), "generate", shown=None)
        next(loop)
        next(loop)
        assert pass_time(2.0) == [(1.0, "generate: 1 of 40 steps in 1 s, about 39 s left")]
        loop.close()
        for _ in _progress.track([0], "check", shown=None):
            assert pass_time(2.0) == [(1.0, "check ...")]
        assert _progress._LOCAL.watch is None

    @pytest.mark.parametrize("inner", [None, False])
    def test_what_is_turned_off_is_silent_with_all_within(self, pass_time, inner):
        with _progress.report_waiting("run", shown=False), _progress.report_waiting("a"):
            assert _progress._LOCAL.watch.open[-1].label == "a"
            assert [each.label for each in _progress._LOCAL.watch.open] == ["a"]

    def test_bars_of_terminals_are_not_disturbed(self, pass_time, bars):
        with _progress.report_waiting("run"):
            with _progress.open_bar("greedy", 40, 10, shown=True):
                assert pass_time(40.0) == []
            assert pass_time(2.0) == [(1.0, "run: 41 s so far")]

    def test_one_of_several_processes_writes(self, monkeypatch):
        started = []
        monkeypatch.setattr(_progress.Thread, "start", lambda thread: started.append(thread))
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            with _progress.report_waiting("run"):
                pass
        assert len(started) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize(("given", "is_said"), [(None, True), (False, False)])
    def test_calls_of_a_tracer_are_said(self, model, monkeypatch, capsys, given, is_said):
        """By the thread, whatever they do and how far they are."""
        warnings.simplefilter("ignore")
        for name, value in {"_FIRST_LINE_AFTER": 0.0, "_LINE_EVERY": 0.0, "_TICK": 1e-3}.items():
            monkeypatch.setattr(_progress, name, value)
        tracer = tk.Tracer(model, tiny.pairs(12), "head-outputs", progress=given, max_batch_size=4)
        for call, label in {
            "run": "greedy",
            "pareto": "pareto",
            "controls": "controls",
            "single_effects": "single effects",
            "strongest_pairs": "strongest pairs",
            "faithfulness": "faithfulness",
            "minimality": "minimality",
        }.items():
            capsys.readouterr()
            options = {"run": ("greedy",), "strongest_pairs": (2,)}
            few = {"run": {"budget": 3}, "pareto": {"max_budget": 2, "max_passes": 20}}
            members = () if call in ("pareto", "single_effects") else (tracer.registry[:3],)
            getattr(tracer, call)(*options.get(call, members), **few.get(call, {}))
            said = capsys.readouterr().err.splitlines()
            assert all(re.match(rf"{label}( \(.*\))?(:| \.\.\.)", line) for line in said), said
            assert bool(said) == is_said, call
            is_counted = any(re.search(r"\(?.*of 36 passes in", line) for line in said)
            assert is_counted == is_said or call != "run"

    def test_on_in_terminals(self, model, bars, monkeypatch):
        terminal = io.StringIO()
        terminal.isatty = lambda: True
        monkeypatch.setattr(sys, "stderr", terminal)
        tk.Tracer(model, tiny.pairs(12)).run("top-k", budget=2)
        assert len(bars.bars) == 1

    def test_on_in_notebooks(self, monkeypatch):
        class Shell:
            kernel = object()

        class IPython:
            get_ipython = staticmethod(lambda: Shell())

        monkeypatch.setitem(sys.modules, "IPython", IPython)
        assert _progress.is_interactive()

    def test_what_it_prints(self, model, monkeypatch):
        terminal = io.StringIO()
        terminal.isatty = lambda: True
        monkeypatch.setattr(sys, "stderr", terminal)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with _progress.open_bar("pgb-ct", 250, 12, shown=True) as progress:
                progress.report_values(selected=4)
                progress.advance(12 * 100)
                progress.bar.refresh()
        assert "pgb-ct:  40% |" in terminal.getvalue()
        assert "100 of 250 passes [00:00, 00:00 left, selected=4]" in terminal.getvalue()
