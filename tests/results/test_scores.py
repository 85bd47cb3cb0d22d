"""Two sets of scores of the same components: correlations, outliers, and their scatter."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import tracekit as tk
from tests import tiny
from tests.latex import check_latex
from tracekit.errors import ComparisonError, ComponentError, ConfigError
from tracekit.figures import charts
from tracekit.results.by_component import SingleEffects

QUESTION: dict[str, Any] = {"components": "head-outputs", "metric": "logit-difference"}


@pytest.fixture(scope="module")
def tracer(model):
    return tk.Tracer(model, tiny.pairs(6), **QUESTION)


@pytest.fixture(scope="module")
def single(tracer):
    return tracer.single_effects()


@pytest.fixture(scope="module")
def attribution(tracer):
    return tracer.run("attribution", budget=2)


def numbers(tracer, *, noise=0.1, sign=1.0):
    """Scores of somebody's own by label: three times the flat index, but for one outlier."""
    labels = [tracer.registry.label(i) for i in range(len(tracer.registry))]
    values = {label: sign * (3.0 * i + noise * (-1) ** i) for i, label in enumerate(labels)}
    return values | {labels[4]: values[labels[4]] + 30}


class TestData:
    def test_correlations_are_those_of_scipy(self, attribution, single):
        compared = attribution.compare_scores(single)
        x, y = attribution.component_scores, single.effects
        assert compared.pearson == pytest.approx(stats.pearsonr(x, y)[0])
        assert compared.spearman == pytest.approx(stats.spearmanr(x, y)[0])

    def test_effects_by_one_metric_agree_where_they_are_equal(self, attribution, single):
        compared = attribution.compare_scores(single)
        assert compared.line == (1.0, 0.0)
        table = compared.table.set_index("component")
        for label, effect in zip(single.labels, single.effects.tolist(), strict=True):
            score = attribution.component_scores[single.registry.index(label)].item()
            row = table.loc[label]
            assert (row["first"], row["second"]) == pytest.approx((score, effect))
            assert row["residual"] == pytest.approx(effect - score)
        sizes = compared.table["residual"].abs()
        assert sizes.is_monotonic_decreasing

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_others_agree_in_standard_scores(self, tracer, single, sign):
        compared = single.compare_scores(numbers(tracer, sign=sign))
        slope, start = compared.line
        x, y = compared.table["first"], compared.table["second"]
        assert abs(slope) == pytest.approx(y.std() / x.std())
        assert np.sign(slope) == np.sign(compared.pearson)
        assert start + slope * x.mean() == pytest.approx(y.mean())
        assert compared.table["residual"].to_numpy() == pytest.approx(y - slope * x - start)

    def test_the_largest_residual_is_first(self, tracer, attribution):
        scores = numbers(tracer, noise=0.0)
        plain = {label: 3.0 * i for i, label in enumerate(scores)}
        own = replace(attribution, component_scores=torch.tensor(list(plain.values())))
        assert own.compare_scores(scores).table["component"][0] == tracer.registry.label(4)

    def test_both_orders_rank_components_alike(self, tracer, attribution, single):
        mask = tracer.run("pgb-ct", budget=3, lambda1=0.01, epochs=3)
        one, other = mask.compare_scores(single), single.compare_scores(mask)
        assert one.table["component"].tolist() == other.table["component"].tolist()
        assert one.pearson == pytest.approx(other.pearson)

    def test_components_without_a_score_are_left_out(self, tracer, attribution):
        few = tracer.single_effects(["L0H1", "L1H2", "L2H3", "L0H0"])
        assert set(attribution.compare_scores(few).table["component"]) == set(few.labels)

    def test_equal_scores_have_no_correlation(self, tracer, single):
        same = single.compare_scores(dict.fromkeys(numbers(tracer), 2.0))
        assert np.isnan(same.pearson)
        assert same.line == (0.0, 2.0)
        assert same.scatter().data[0].y == (2.0, 2.0)

    def test_titles_say_metric_unit_and_what_was_ablated(self, tracer, attribution, single):
        compared = attribution.compare_scores(single)
        unit = "(logit difference, nats)"
        titles = f"attribution patching score {unit}", f"single effect {unit}"
        assert compared.chart.axis_titles == titles
        assert compared.chart.subtitle == (
            f"counterfactual patching, n = 6; Pearson {compared.pearson:.2f}, "
            f"Spearman {compared.spearman:.2f}"
        )
        zero = tk.Tracer(tracer.model, tracer.pairs, source="zero", **QUESTION)
        both = attribution.compare_scores(zero.run("top-k", budget=2), ("A", "B"))
        assert both.chart.axis_titles == (f"A: {titles[0]}", f"B: {titles[1]}")
        assert both.line == (1.0, 0.0)
        assert both.chart.subtitle.startswith(
            "x: counterfactual patching, n = 6; y: zero ablation, n = 6; Pearson "
        )
        learned = tracer.run("learned-ranking", budget=2, epochs=1, steps=1)
        assert learned.compare_scores(single).chart.axis_titles[0] == "learned ranking soft mask"
        assert "other score" in single.compare_scores(numbers(tracer)).chart.axis_titles

    def test_it_is_printed_and_is_a_table(self, attribution, single):
        compared = attribution.compare_scores(single)
        assert f". Farthest from agreement: {compared.table['component'][0]}, " in str(compared)
        assert len(compared.to_frame()) == len(single.labels)
        check_latex(compared.to_latex())
        assert "<table" in compared._repr_html_()

    def test_single_effects_of_mirrors_are_read_again(self, model, tmp_path):
        """Whose numbers of independent examples are whole."""
        pairs = tiny.pairs(6).grouped([0, 0, 1, 1, 2, 2])
        single = tk.Tracer(model, pairs, **QUESTION).single_effects(["L0H0", "L1H1", "L2H2"])
        again = SingleEffects.load(single.save(tmp_path / "single.json"))
        assert again.clusters is not None
        assert again.clusters.tolist() == [0, 0, 1, 1, 2, 2]
        assert again.compare_scores(single).table["residual"].abs().max() < 1e-5


class TestScatter:
    def test_outliers_are_marked_and_labelled(self, attribution, single):
        compared = attribution.compare_scores(single)
        line, others, outliers = compared.scatter(n=3).data
        table = compared.table
        assert list(outliers.x) == table["first"][:3].tolist()
        assert list(outliers.y) == table["second"][:3].tolist()
        assert list(others.x) == table["first"][3:].tolist()
        assert set(outliers.text) - {""} <= set(table["component"][:3])
        assert outliers.text[0] == table["component"][0]
        assert [each.name for each in (line, others, outliers)] == [
            "y = x",
            "components",
            "farthest from the line",
        ]
        assert list(line.x) == list(line.y)

    def test_labels_do_not_lie_on_each_other(self, tracer, single):
        """Where points lie on each other, some labels are left out."""
        equal = dict.fromkeys(numbers(tracer), 0.0) | {tracer.registry.label(0): 1.0}
        (*_, outliers) = single.compare_scores(equal).scatter(n=8).data
        assert 1 <= len([text for text in outliers.text if text]) <= 8
        assert len(outliers.customdata) == 8

    def test_labels_cover_no_marked_point(self):
        """To the left of B there is A."""
        points = {"A": (0.42, 2.26), "B": (0.69, 1.7), "C": (2.1, 6.7), "D": (-1.4, 0.7)}
        frame = pd.DataFrame([(name, *at) for name, at in points.items()], columns=["c", "x", "y"])
        frame["c"] = "L1H" + frame["c"]
        titles = {"axis_titles": ("x", "y"), "title": "", "subtitle": ""}
        chart = charts.Chart(frame=frame, x="x", y="y", series="c", **titles)
        (*_, marked) = charts.scatter(chart, (1.0, 0.0), 4).data
        assert list(marked.text) == ["L1HA", "L1HB", "L1HC", "L1HD"]
        assert list(marked.textposition)[:3] == ["top left", "top right", "top left"]

    def test_two_results_in_one_call(self, tracer, attribution):
        top_k = tracer.run("top-k", budget=2)
        figure: Any = tk.results.compare_scores(attribution, top_k, ("a", "b")).scatter()
        assert figure.layout.xaxis.title.text.startswith("a: attribution patching score")
        assert figure.layout.yaxis.title.text.startswith("b: single effect")

    def test_of_many_one_is_drawn_at_each_place_and_every_outlier(self, tracer, monkeypatch):
        neurons = tk.Tracer(tracer.model, tracer.pairs, "mlp-neurons", "logit-difference")
        result, n = neurons.run("attribution", budget=2), len(neurons.registry)
        values = torch.randn(n, generator=torch.Generator().manual_seed(0)).tolist()
        own = {neurons.registry.label(i): value for i, value in enumerate(values)}
        compared = result.compare_scores(own)
        monkeypatch.setattr(charts, "_MANY", 20)
        monkeypatch.setattr(charts, "_PLACES", (6, 6))
        _, others, outliers = compared.scatter(n=5).data
        assert list(outliers.customdata) == compared.table["component"][:5].tolist()
        assert len(others.x) <= 36 < n - 5
        assert others.name == f"components (one at each place, {len(others.x):,} of {n - 5:,})"

    def test_all_edges_of_a_model_take_a_moment(self):
        draws, n = torch.Generator().manual_seed(0), 70_651
        x = torch.randn(n, generator=draws).numpy()
        chart = tk.figures.Chart(
            frame=pd.DataFrame({"c": [f"E>L{i}" for i in range(n)], "x": x, "y": x}),
            x="x",
            y="y",
            series="c",
            axis_titles=("x", "y"),
            title="",
        )
        start = time.process_time()
        _, others, outliers = charts.scatter(chart, (1.0, 0.0), 8).data
        assert time.process_time() - start < 5
        assert (len(outliers.x), len(others.x) < 1000) == (8, True)


class TestErrors:
    def test_other_components_are_refused_with_the_call_that_works(self, tracer, attribution):
        blocks = tk.Tracer(tracer.model, tracer.pairs, "mlp-blocks", "logit-difference")
        text = (
            r"12 head-outputs in layers 0-2; and 3 mlp-b.*tk.Tracer\(model, pairs, 'head-outputs'"
        )
        with pytest.raises(ComparisonError, match=r"different components: 3 mlp-blocks in"):
            blocks.single_effects().compare_scores(attribution)
        with pytest.raises(ComparisonError, match=text):
            attribution.compare_scores(blocks.single_effects())
        first = tk.Tracer(tracer.model, tracer.pairs, layers=[0], **QUESTION)
        layers = r"tk.Tracer\(model, pairs, 'head-outputs', layers=\[0\]\)\."
        with pytest.raises(ComparisonError, match=layers):
            first.single_effects().compare_scores(attribution)

    @pytest.mark.parametrize(
        ("other", "error", "text"),
        [
            (lambda tracer: tracer, ConfigError, "has no scores .* Give a result, single effects"),
            (
                lambda tracer: tracer.run("greedy", budget=2),
                ConfigError,
                "greedy .* Use a .* top-k",
            ),
            (lambda _: {"L9H9": 1.0}, ComponentError, "'L9H9' is not among the 12"),
            (
                lambda tracer: tracer.single_effects(["L0H0", "L1H1"]),
                ComparisonError,
                "Only 2 .* 3",
            ),
        ],
        ids=["tracer", "selection", "unknown label", "too few"],
    )
    def test_what_has_no_scores_is_refused(self, tracer, attribution, other, error, text):
        with pytest.raises(error, match=text):
            attribution.compare_scores(other(tracer))

    def test_a_negative_number_of_names_is_refused(self, tracer, attribution):
        with pytest.raises(ConfigError, match="n is -1. Give a whole number, at least 0"):
            attribution.compare_scores(tracer.run("top-k", budget=1)).scatter(n=-1)

    def test_single_effects_among_results_are_pointed_here(self, attribution, single, unchecked):
        with pytest.raises(ConfigError, match=r"result.compare_scores\(single_effects\)"):
            tk.compare([attribution, single])
