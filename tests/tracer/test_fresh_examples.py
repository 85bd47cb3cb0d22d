"""What is said of a found set comes from examples that it was not selected on, or is said so."""

from __future__ import annotations

import math
import re

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import ComparisonError, ConfigError, NoResultError
from tracekit.measure import Explanation, SideEffects
from tracekit.measure.controls import control_overlap, control_sets, n_controls

SAME = "on the examples that the set was selected on, n = 12"
OTHER = "on held-out examples, n = 12"
PAIRS = tiny.pairs(24, seed=5)


@pytest.fixture(scope="module")
def without(model):
    tracer = tk.Tracer(model, PAIRS[:12], metric="probability-drop")
    return tracer, tracer.run("top-k", budget=3)


@pytest.fixture(scope="module")
def fresh(model):
    tracer = tk.Tracer(model, PAIRS[:12], metric="probability-drop", held_out=PAIRS[12:])
    return tracer, tracer.run("top-k", budget=3)


@pytest.mark.slow
def test_an_explanation_without_fresh_examples_has_no_p(without, tmp_path):
    tracer, result = without
    for given in (result, result.components, result.binary_mask):
        why = tracer.explain(given)
        assert why.interactions["p"].isna().all()
        assert not why.interactions["significant"].any()
        text = str(why)
        assert f", {SAME}." in text
        assert "p < .05" not in text
        assert re.search("no p value on the examples .*selected on. Give the tracer", text)
    loaded = Explanation.load(why.save(tmp_path))
    assert loaded.interactions.equals(why.interactions)
    own = tracer.explain(tracer.registry[:3])
    assert own.interactions["p"].notna().all()
    assert own.examples == "n = 12"
    assert why.heatmap().data
    assert why.network().data


@pytest.mark.slow
def test_an_explanation_is_of_held_out_examples(fresh, model):
    tracer, result = fresh
    why = tracer.explain(result)
    test = tk.Tracer(model, PAIRS[12:], metric="probability-drop")
    torch.testing.assert_close(why.effect, test.evaluate(result, per_example=True))
    torch.testing.assert_close(why.effect, result.held_out.effects)
    # One rule for every form of `evaluate`, and for what else is said of a set.
    fresh, own = result.held_out.mean, result.searched.mean
    for held_out, expected in ((None, fresh), (True, fresh), (False, own)):
        metrics = [result.setup.metric]
        table = tracer.evaluate(result, metrics=metrics, held_out=held_out)
        rows = tracer.evaluate(result, metrics=metrics, per_example=True, held_out=held_out)
        assert tracer.evaluate(result, held_out=held_out) == pytest.approx(expected, abs=1e-6)
        assert table[metrics[0]]["effect"] == pytest.approx(expected, abs=1e-6)
        assert rows[metrics[0]].mean() == pytest.approx(expected, abs=1e-6)
        assert table.index.name == (OTHER if expected is fresh else SAME)
    assert tracer.faithfulness(result).effects[0] == pytest.approx(fresh, abs=1e-6)
    both = tracer.noising_and_denoising(result)
    assert both["effect"][tracer.direction] == pytest.approx(fresh, abs=1e-6)
    assert why.interactions["p"].notna().all()
    assert f", {OTHER}." in str(why)
    # Others propose the non-members than those that test them.
    assert why.proposed_on == tracer.pairs.fingerprint != why.dataset_fingerprint
    elsewhere = test.explain(result)
    assert elsewhere.interactions["p"].tolist() == why.interactions["p"].tolist()
    assert elsewhere.backups["p"].isna().all()


@pytest.mark.slow
def test_interactions_of_a_found_set(without, fresh):
    tracer, result = without
    grid = tracer.interactions(result)
    assert grid.tests is None
    assert grid.interaction_interval is not None
    assert SAME in repr(grid)
    assert SAME in grid._repr_html_()
    assert tracer.interactions(layers=[1]).tests is not None
    both = tracer.interactions(result, both_directions=True)
    for each in (both, both.opposite):
        assert (each.tests, SAME in repr(each)) == (None, True)
    assert not {"p", "opposite_p"} & {*both.to_frame()}
    tracer, result = fresh
    both = tracer.interactions(result, both_directions=True)
    assert {"p", "opposite_p"} <= {*both.to_frame()}
    assert OTHER in repr(both.opposite)
    grid = tracer.interactions(result, both_directions=False)
    assert grid.tests is not None
    assert OTHER in repr(grid)
    i, j = (tracer.registry.index(component) for component in result.components[:2])
    both = tracer.question.held_out_engine.set_effects([(i, j), (i,), (j,)], "test").mean(1)
    assert grid.interaction[0, 1].item() == pytest.approx((both[0] - both[1:].sum()).item())


def test_side_effects(without, fresh, tmp_path):
    tracer, result = without
    other = tiny.pairs(9, seed=8)
    side = tracer.side_effects(result, {"other": other, "kl": (tracer.pairs, "kl")}, draws=4)
    p = side.table.set_index("name")["p"]
    assert p.isna().to_dict() == {"target": True, "other": False, "kl": True}
    target, further, kl, *_ = str(side).splitlines()[1:]
    assert f", {SAME}" in target
    assert "p = " not in target + kl
    assert f", p = {p['other']:.2g}, on held-out examples, n = 9" in further
    loaded = SideEffects.load(side.save(tmp_path))
    assert loaded.table.equals(side.table)
    tracer, result = fresh
    side = tracer.side_effects(result, {"other": other}, draws=4)
    assert side.target.dataset_fingerprint == tracer.question.held_out_engine.pairs.fingerprint
    assert side.table["p"].notna().all()


def test_tables_name_their_examples(without, fresh):
    for (tracer, result), name in ((without, SAME), (fresh, OTHER)):
        frame = tracer.evaluate(result, metrics=["kl", "probability-drop"])
        assert frame.index.name == name
        both = tracer.noising_and_denoising(result)
        assert both.index.name == name
        assert list(both.index) == ["noising", "denoising"]
        found = tracer.faithfulness(result)
        assert found.examples == name
        how = "counterfactual patching"
        assert repr(found).splitlines()[0].endswith(f"; {how}, {name}; 95 % intervals")
    assert frame.loc["effect", "probability-drop"] == pytest.approx(result.held_out_effect)
    assert both.loc["noising", "effect"] == pytest.approx(result.held_out_effect)
    tracer, result = without
    for mask in (tracer.registry[:2], torch.full((12,), 0.5)):
        assert tracer.evaluate(mask, metrics=["kl"]).index.name == "n = 12"


@pytest.mark.slow
def test_examples_that_a_search_saw_are_not_called_held_out(model):
    """Twelve of twenty examples, by what they hold, wherever they are from."""
    pairs = PAIRS
    result = tk.Tracer(model, pairs[:12], metric="probability-drop").run("top-k", budget=3)
    for examples, said in (
        (range(20), "on the examples that the set"),
        (range(12, 24), "held-out"),
    ):
        tracer = tk.Tracer(model, pairs.subset(examples), metric="probability-drop")
        assert result.searched.count_shared_pairs(tracer.pairs) == len({*examples} & {*range(12)})
        assert said in tracer.faithfulness(result).examples
        assert said in tracer.evaluate(result, metrics=["kl"]).index.name


class TestComparisons:
    def test_they_rank_by_what_holds(self, fresh):
        tracer, result = fresh
        # A control, the same set, another one, and a set of another size.
        others = [tracer.run("random", budget=3, draws=2), result]
        others += [
            tracer.as_result([tracer.registry[number] for number in (0, 5, 9)]),
            tracer.run("top-k", budget=1),
        ]
        compared = tk.compare([result, *others])
        frame = compared.to_frame()
        text = compared.to_latex()
        first = text.splitlines().index(r"\midrule") + 1
        cells = [line.split("&") for line in text.splitlines()[first : first + 5]]
        best = frame["held_out"][[0, 2, 3]].idxmax()
        marked = [number for number, row in enumerate(cells) if "\\textbf" in row[4]]
        assert marked == ([0, 2] if best == 0 else [best])
        assert "text" not in "".join(cells[1] + cells[4])
        assert "\\underline" not in "".join(cells[1] + cells[4])
        assert all("\\textbf" not in row[2] for row in cells)
        differences = compared.differences()
        facts = differences[["metric", "n_held_out", "n_held_out_independent"]]
        n = result.held_out.n_examples
        assert {*facts.itertuples(index=False, name=None)} == {(result.setup.metric, n, n)}
        assert len(differences) == 10
        row = differences.iloc[0]
        measured = (result.held_out.effects - others[0].held_out.effects).mean().item()
        assert row["difference"] == pytest.approx(measured)
        assert row["difference_low"] <= measured <= row["difference_high"]
        # Of four sets of one size, two are the same.
        assert re.search(r"Of 5 differences between sets of one size there, \d are signif", text)
        low, high = result.held_out_interval
        assert frame.loc[0, ["held_out_low", "held_out_high"]].tolist() == [low, high]
        assert f"| {low:.3g} to {high:.3g} |" in compared.to_markdown()

    def test_other_held_out_examples_are_refused(self, fresh, model):
        _, result = fresh
        other = tk.Tracer(model, PAIRS[:12], metric="probability-drop", held_out=PAIRS[12:20])
        text = "2 different sets of held-out examples.*with the same held_out"
        with pytest.raises(ComparisonError, match=text):
            tk.compare([result, other.run("top-k", budget=2)])

    def test_differences_need_held_out_effects(self, fresh, without):
        for results in ([fresh[1]], [without[1], fresh[1]]):
            with pytest.raises(NoResultError, match="Differences are between held-out effects of"):
                tk.compare(results).differences()


class TestControls:
    def test_none_is_the_set_and_none_comes_twice(self, tracer):
        members = (1, 4, 6)
        assert n_controls(tracer.registry, members) == 4 * 6 - 1
        drawn = control_sets(tracer.registry, members, 20, torch.Generator().manual_seed(0))
        assert len(set(drawn)) == 20
        assert members not in drawn
        every = control_sets(tracer.registry, members, 100, torch.Generator().manual_seed(0))
        assert len(set(every)) == 23
        shared = [len({*members} & {*control}) / 3 for control in every]
        assert control_overlap(tracer.registry, members) == pytest.approx(sum(shared) / 23)
        whole = tuple(range(4))
        assert control_sets(tracer.registry, whole, 5, torch.Generator()) == []
        assert math.isnan(control_overlap(tracer.registry, whole))

    @pytest.mark.slow
    def test_they_are_counted_in_text_and_statistics(self, tracer):
        side = tracer.side_effects(tracer.registry[:1], {"other": tiny.pairs(9, seed=8)}, draws=20)
        assert len(side.target.controls) == 3
        assert re.search("3 of 3 others of these layers.* share 0 % of the members", str(side))
        row = tracer.pareto(max_budget=1, max_passes=60).statistics[0]
        assert (row.controls, row.control_overlap) == (3, 0)


@pytest.mark.slow
def test_cpr_and_cmd_are_of_noising(model):
    tracer = tk.Tracer(model, PAIRS[:12], direction="denoising", metric="probability-drop")
    how = "counterfactual patching, denoising"
    assert repr(tracer).endswith(f" probability-drop, {how})")
    found = tracer.faithfulness(torch.arange(12.0), ranking="signed")
    for name in ("cpr", "cmd"):
        text = "CPR and CMD .* In denoising .*direction='noising', or read area and distance"
        with pytest.raises(ConfigError, match=text):
            getattr(found, name)
    areas = f"; area {found.area:.4g}, distance {found.distance:.4g} (denoising, not MIB's)"
    assert repr(found).splitlines()[0].endswith(f"{areas}; {how}, n = 12; 95 % intervals")
    noising = tk.Tracer(model, PAIRS[:12], metric="probability-drop")
    found = noising.faithfulness(torch.arange(12.0), ranking="signed")
    assert (found.cpr, found.cmd) == (found.area, found.distance)


@pytest.mark.slow
def test_few_examples_are_said(model):
    tracer = tk.Tracer(model, PAIRS[:5], metric="probability-drop")
    said = r"5 independent examples .*below 0\.062.*none can reach \.05"
    assert re.search(said, str(tracer.explain(tracer.registry[:2])))
    assert re.search(said, repr(tracer.interactions(layers=[0])))
