"""Comparisons: figures and tables of several results."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.figures.test_selection_heatmap import cells_of
from tests.files import renamed
from tracekit.errors import ComparisonError, NoResultError


class TestComparison:
    @pytest.mark.slow
    def test_panels_share_rows_and_colours(self, tracer):
        top_k, greedy = tracer.results[1], tracer.results[2]
        figure = tk.compare([top_k, greedy], ["one", "two"]).heatmap()
        first, _, second, _ = cells_of(figure)
        assert [list(row) for row in first.z] == top_k.binary_mask[:12].reshape(3, 4).tolist()
        assert [list(row) for row in second.z] == greedy.binary_mask[:12].reshape(3, 4).tolist()
        assert first.colorscale == second.colorscale
        assert [note.text for note in figure.layout.annotations] == ["one", "two"]
        figure = tk.compare(tracer.results[:3]).heatmap()
        assert figure.layout.title.subtitle.text == (
            "1, 4 and 3 of 15 head-outputs+mlp-blocks selected, counterfactual patching;<br>"
            "odds-ratio on 6 searched examples"
        )

    def test_similarities(self, tracer):
        comparison = tk.compare(tracer.results[:3])
        sets = [set(result.labels) for result in comparison]
        expected = [[len(a & b) / len(a | b) for b in sets] for a in sets]
        assert comparison.jaccard.to_numpy() == pytest.approx(torch.tensor(expected).numpy())
        assert list(comparison.jaccard) == list(comparison.labels)
        (trace,) = comparison.similarities().data
        assert trace.z[0][1] == pytest.approx(expected[0][1])

    def test_curves_have_the_intervals_of_results(self, tracer):
        result = tracer.results[2]
        figure = tk.compare(tracer.results).curve()
        (trace,) = [trace for trace in figure.data if trace.name == "greedy"]
        index = list(trace.x).index(result.n_selected)
        low, high = result.spread
        assert trace.error_y.array[index] == pytest.approx(high - result.effect)
        assert trace.error_y.arrayminus[index] == pytest.approx(result.effect - low)
        # Sizes that were passed on the way have no interval.
        assert trace.error_y.array[0] == 0

    def test_labels(self, tracer):
        assert tk.compare(tracer.results[1:3]).labels == ("top-k", "greedy")
        assert tk.compare([tracer.results[:2], tracer.results[2]]).labels == (
            "top-k, 1",
            "top-k, 4",
            "greedy, 3",
        )
        twice = tk.compare([tracer.results[2], tracer.results[2]])
        assert twice.labels == ("greedy, 3 (1)", "greedy, 3 (2)")
        with pytest.raises(ComparisonError, match="There are 2 results and 1 labels. Give a label"):
            tk.compare(tracer.results[:2], ["a"])
        with pytest.raises(NoResultError, match="There is no result to compare. Give at least one"):
            tk.compare([])

    def test_the_table(self, tracer):
        comparison = tk.compare(tracer.results[:3])
        frame = comparison.to_frame()
        assert frame["effect"].tolist() == [result.effect for result in comparison]
        assert frame["share"].tolist() == pytest.approx(
            [result.effect / result.full_effect for result in comparison]
        )
        assert frame["components"][2] == " ".join(comparison[2].labels)

    def test_names_are_no_latex(self, tracer):
        bad = "my_data.csv 5% \\input{/etc/passwd} \x1b]0;x\x07 \u2212"
        result = renamed(tracer.results[0], dataset=bad, model="a_b")
        text = tk.compare([result], labels=["x_y\x1b"]).to_latex()
        caption = text[text.index("\\caption{") :].splitlines()[0]
        assert r"my\_data.csv 5\% \textbackslash{}input\{/etc/passwd\}" in caption
        assert "a\\_b" in caption
        assert "$-$" in caption
        assert "x\\_y" in text
        assert "\x1b" not in text

    def test_latex_and_markdown(self, tracer):
        comparison = tk.compare([*tracer.results, tracer.run("attribution", budget=4)])
        text = comparison.to_latex(label="tab:mine")
        assert "\\label{tab:mine}" in text
        assert "\\textbf{" in text
        assert "held out" not in text
        lines = comparison.to_markdown().splitlines()
        assert len(lines) == 2 + len(comparison) + 2
        assert lines[-1].startswith(
            f"{comparison[0].axis_label} on 6 searched examples. Effects are of counterfactual "
            "patching; above 0, they move the model away from its clean answer x. Searched: "
        )
        assert lines[0].startswith("| result | selected | effect, searched | 95 % spread | share")


@pytest.mark.slow
def test_results_of_two_data_sets_are_compared_by_their_sets(model):
    first, second = (tk.Tracer(model, tiny.pairs(6, seed=seed)) for seed in (0, 3))
    named = [tracer.run("top-k", budget=3) for tracer in (first, second)]
    named[1] = renamed(named[1], dataset="others")
    comparison = tk.compare(named)
    assert comparison.labels == (named[0].dataset, "others")
    assert tk.compare([named[0], renamed(second.run("greedy", budget=2), dataset="others")]).labels[
        1
    ] == ("others, greedy")
    both = len({*named[0].labels} & {*named[1].labels})
    assert comparison.jaccard.iloc[0, 1] == pytest.approx(both / (6 - both))
    assert f"{named[0].dataset} / others data" in comparison.heatmap().layout.title.text
    for refused in (comparison.curve, comparison.to_latex):
        with pytest.raises(ComparisonError, match="of different data sets"):
            refused()
