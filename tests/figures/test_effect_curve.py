"""Effect curves against the effects of results."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import tracekit as tk
from tests import tiny
from tests.figures.gallery import legend_of
from tests.files import renamed
from tracekit.errors import ComparisonError
from tracekit.figures import for_print
from tracekit.results.curve import effect_curve
from tracekit.search import Goal


@pytest.mark.slow
def test_curve_data_has_every_measured_size(tracer):
    frame = tk.results.curve_data(tracer.results)
    sizes = {name: part["n_selected"].tolist() for name, part in frame.groupby("method")}
    assert sizes == {"top-k": [1, 4], "greedy": [1, 2, 3], "random": [2, 4]}
    greedy = tracer.results[2]
    found = frame[frame["method"] == "greedy"]["effect"].tolist()
    assert found == pytest.approx([record["effect"] for record in greedy.history], rel=1e-4)


@pytest.mark.slow
def test_curve_data_has_every_size_of_a_path(tracer):
    search = tk.search.LocalSearch(max_passes=40)
    found = search.search(tk.search.make_target(tracer.engine), Goal(budgets=(3,)), 0)[0]
    assert [record["n_selected"] for record in found.history] == [1, 2, 3]
    before = list(tracer.results)
    result = tracer.run(search, budget=3)
    tracer.results[:] = before
    frame = tk.results.curve_data([result])
    assert frame["n_selected"].tolist() == [1, 2, 3]
    assert frame["effect"].tolist() == pytest.approx([r["effect"] for r in result.history])


def test_curves_draw_their_data(tracer):
    figure = tracer.curve()
    named = {trace.name: trace for trace in figure.data if trace.name}
    assert list(named) == ["top-k", "greedy", "best of 3 random sets", "all 15 components"]
    assert named.pop("all 15 components").line.dash == figure.layout.shapes[0].line.dash
    assert len({trace.line.color for trace in named.values()}) == 3
    assert len({trace.line.dash for trace in named.values()}) == 3
    assert len({trace.marker.symbol for trace in named.values()}) == 3
    assert list(named["greedy"].x) == [1, 2, 3]
    starts = [trace for trace in figure.data if not trace.name and trace.mode == "lines"]
    assert [(trace.x[0], trace.y[0]) for trace in starts] == [(0, 0)] * 3
    assert figure.layout.shapes[0].y0 == pytest.approx(tracer.full_effect)
    assert "odds ratio \u2212 1" in figure.layout.yaxis.title.text
    # The second axis has shares of all 15 components.
    ticks, texts = figure.layout.xaxis2.tickvals, figure.layout.xaxis2.ticktext
    assert [float(text[:-2]) * 15 / 100 for text in texts] == pytest.approx(list(ticks))


@pytest.mark.slow
def test_curves_show_held_out_examples_where_there_are_some(model):
    pairs = tiny.pairs(12)
    tracer = tk.Tracer(model, pairs[:6], "head-outputs", held_out=pairs[6:])
    tracer.run("top-k", budgets=[1, 4])
    tracer.run("greedy", budget=3)
    for figure in (tracer.curve(), tk.compare(tracer.results).curve()):
        named = {trace.name: trace for trace in figure.data if trace.name}
        filled = "filled: held out, 95 % interval"
        assert legend_of(figure) == ["top-k", "greedy", filled, "all 12 components"]
        subtitle = figure.layout.title.subtitle.text.replace("<br>", " ")
        assert "on 6 searched examples (held out: 6)" in subtitle
        for title, results in (("top-k", tracer.results[:2]), ("greedy", tracer.results[2:])):
            searched, fresh = named[title], named[f"{title}, held out"]
            assert list(fresh.x) == [result.n_selected for result in results]
            assert list(fresh.y) == pytest.approx([result.held_out_effect for result in results])
            ends = [result.held_out_interval for result in results]
            rises = [
                high - result.held_out_effect
                for (_, high), result in zip(ends, results, strict=True)
            ]
            assert list(fresh.error_y.array) == pytest.approx(rises)
            assert fresh.marker.color == searched.line.color
            assert fresh.marker.symbol == searched.marker.symbol
            # Searched ones are hollow, and have no bars of another kind beside these.
            assert searched.marker.color == "white"
            assert searched.error_y.array is None
    # Of one method, the legend has its filled marks as they are.
    alone = effect_curve(tracer.results[:2])
    assert legend_of(alone) == ["top-k", "top-k, held out, 95 % interval", "all 12 components"]
    fresh = next(trace for trace in alone.data if trace.name == legend_of(alone)[1])
    assert fresh.marker.color == alone.data[1].line.color
    printed = for_print(tracer.curve(), width=3.25, title=False)
    assert legend_of(printed) == legend_of(tracer.curve())


def test_the_legend_says_what_bars_are(tracer):
    figure = tk.compare(tracer.results).curve()
    *_, spread, whole = legend_of(figure)
    assert (spread, whole) == ("95 % spread", "all 15 components")
    assert legend_of(tracer.curve()) == ["top-k", "greedy", "best of 3 random sets", whole]


def test_pgb_ct_lies_on_top(tracer):
    results = [renamed(tracer.results[0], method="pgb-ct"), *tracer.results[1:]]
    named = [trace.name for trace in effect_curve(results).data if trace.name]
    assert named[-2:] == ["top-k", "all 15 components"]  # The title that was kept.


def test_long_legends_leave_the_axis_alone(tracer):
    results = [
        renamed(tracer.results[1], method=f"m{k}", title=f"a long name of method {k}")
        for k in range(7)
    ]
    few, many = effect_curve(results[:1]), effect_curve(results)
    assert many.layout.legend.yanchor == "top"
    assert many.layout.height > few.layout.height + 3 * 17
    assert many.layout.margin.b - few.layout.margin.b == many.layout.height - few.layout.height


@pytest.mark.slow
def test_curves_never_mix_what_is_not_comparable(model):
    pairs = tiny.pairs(6)
    base = tk.Tracer(model, pairs).run("top-k", budget=2)
    for other, text in (
        (tk.Tracer(model, tiny.pairs(6, seed=1)), "of different examples"),
        (tk.Tracer(model, pairs, metric="probability-drop"), "(odds-ratio and probability-drop)"),
        (tk.Tracer(model, pairs, "head-outputs"), "of different components"),
        (tk.Tracer(model, pairs, positions="last"), "of different positions (prompt and last)"),
    ):
        with pytest.raises(ComparisonError, match=re.escape(text)):
            effect_curve([base, other.run("top-k", budget=2)])
    assert effect_curve([base, base]).data


def test_a_faithfulness_curve_mixes_no_examples(model):
    pairs = tiny.pairs(12)
    tracers = [tk.Tracer(model, pairs[:6], "edges", "kl", held_out=h) for h in (pairs[6:], None)]
    results = [each.run("mask-ig", budget=4 + 9 * n) for n, each in enumerate(tracers)]
    figure = tk.compare(results).faithfulness_curve()
    line = next(trace for trace in figure.data if trace.name == results[0].title)
    scores = [replace(result, held_out=None).faithfulness() for result in results]
    assert list(line.y) == [each.faithfulness[0] for each in scores]


def test_faithfulness_curves_draw_the_scores_of_their_results(model):
    pairs = tiny.pairs(12)
    tracer = tk.Tracer(model, pairs[:6], "edges", "kl", held_out=pairs[6:])
    searches = (tk.search.MaskIG(), tk.search.LearnedRanking(epochs=2))
    curves = [tracer.run(search, budgets=[4, 20, 100]) for search in searches]
    figure = tk.compare(curves).faithfulness_curve()
    lines = {trace.name: trace for trace in figure.data if trace.name}
    assert list(lines) == [curve[0].title for curve in curves]
    for curve in curves:
        line = lines[curve[0].title]
        scores = [result.faithfulness() for result in curve]
        assert list(line.x) == [result.n_selected for result in curve]
        assert list(line.y) == [each.faithfulness[0] for each in scores]
        ends = [each.faithfulness_intervals[0] for each in scores]
        high = [value + length for value, length in zip(line.y, line.error_y.array, strict=True)]
        low = [
            value - length for value, length in zip(line.y, line.error_y.arrayminus, strict=True)
        ]
        assert (low, high) == (
            pytest.approx([low for low, _ in ends], nan_ok=True),
            pytest.approx([high for _, high in ends], nan_ok=True),
        )
    assert figure.layout.xaxis.type == "log"
    subtitle = figure.layout.title.subtitle.text.replace("<br>", " ")
    assert subtitle.endswith("counterfactual patching, on held-out examples, n = 6")
