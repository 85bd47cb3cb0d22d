"""Single effects against sets that are measured one by one, and their map."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.figures.gallery import legend_of
from tracekit.errors import ConfigError, MetricError
from tracekit.figures import for_print
from tracekit.results import effect_interval
from tracekit.results.significance import p_values, zero_below_rounding
from tracekit.search.objectives import log_odds_of


@pytest.fixture(scope="module")
def tracer(model):
    return tk.Tracer(model, tiny.pairs(12), "head-outputs+mlp-blocks", "logit-difference")


@pytest.fixture(scope="module")
def found(tracer):
    return tracer.single_effects()


def test_every_number_is_measured(tracer, found):
    engine = tracer.engine
    effects = torch.stack([engine.set_effects([(i,)])[0] for i in range(len(tracer.registry))])
    effects = effects.double()
    tests = p_values(zero_below_rounding(effects, effects.abs().amax(0).expand_as(effects)))
    rows = found.table.set_index("component")
    assert rows["effect"].abs().tolist() == sorted(rows["effect"].abs(), reverse=True)
    for number, values in enumerate(effects):
        row = rows.loc[tracer.registry.label(number)]
        mean = values.mean().item()
        assert row["effect"] == pytest.approx(mean, abs=1e-5)
        assert row["share"] == pytest.approx(mean / tracer.full_effect, rel=1e-3, abs=1e-5)
        ends = effect_interval(values)
        assert (row["effect_low"], row["effect_high"]) == pytest.approx(ends, rel=2e-3, abs=1e-5)
        for name, expected in (("p", tests.row), ("q", tests.q), ("p_family", tests.family)):
            assert row[name] == pytest.approx(expected[number].item(), abs=2e-3)
        assert row["significant"] == (row["q"] < 0.05)


@pytest.mark.parametrize("metric", ["odds-ratio", "probability-drop", "probability-ratio"])
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_ratios_and_probabilities_are_tested_on_log_odds(model, metric, direction):
    """Tests of the effects of a metric that is the log-odds; all else is of the metric itself."""
    pairs = tiny.pairs(12)
    tracer = tk.Tracer(model, pairs, "head-outputs", metric, direction=direction)
    found = tracer.single_effects()
    of_log_odds = log_odds_of(tracer.engine.metric)
    sets = [(i,) for i in range(len(tracer.registry))]
    changes = tracer.engine.with_metric(of_log_odds).set_effects(sets).double()
    effects = tracer.engine.set_effects(sets).double()
    assert (changes.sign() == effects.sign())[effects.abs() > 1e-5].all()
    expected = p_values(zero_below_rounding(changes, changes.abs().amax(0).expand_as(changes)))
    torch.testing.assert_close(found.tests.row, expected.row, atol=0.01, rtol=0.05)
    rows = found.table.set_index("component")
    signs = (effects.sign() == effects.mean(1).sign()[:, None]).double().mean(1)
    for number, values in enumerate(effects):
        row = rows.loc[tracer.registry.label(number)]
        assert row["effect"] == pytest.approx(values.mean().item(), rel=1e-4, abs=1e-6)
        assert row["same_sign"] == pytest.approx(signs[number].item())
    assert "(tested on log-odds)" in str(found)
    other = tk.Tracer(model, pairs, "head-outputs", "logit-difference").single_effects()
    assert "tested on" not in str(other)


@pytest.mark.slow
def test_the_map_has_the_effects_and_frames_what_is_significant(tracer, found):
    plain, shares = found.heatmap(), found.heatmap(normalised=True)
    rows = found.table.set_index("component")
    for figure, column in ((plain, "effect"), (shares, "share")):
        # Below each panel lies another, for what is not studied.
        cells = [trace for trace in figure.data if trace.type == "heatmap"][1::2]
        drawn = sorted(v for cell in cells for row in cell.z for v in row if v is not None)
        assert drawn == pytest.approx(sorted(rows[column].tolist()), rel=1e-4, abs=1e-6)
    assert "counterfactual patching, n = 12 searched; all: " in plain.layout.title.subtitle.text
    assert legend_of(plain) == ["q &lt; .05"]
    assert legend_of(found.heatmap(mark="family")) == ["family-wise p &lt; .05"]
    unframed = found.heatmap(mark=None)
    assert legend_of(unframed) == []
    names = [{trace.name for trace in figure.data} for figure in (plain, unframed)]
    assert names[0] - names[1] == {"frame", "q &lt; .05"}


@pytest.mark.slow
def test_layers_on_x_turn_the_map(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model)[:8]
    singles = tk.Tracer(demo_model, pairs, "residual+head-outputs", split_by="span").single_effects(
        ["R0@subject", "L1H4@last"]
    )
    kept, turned = singles.heatmap(), singles.heatmap(layers_on="x")
    assert [trace.type for trace in turned.data] == [trace.type for trace in kept.data]
    for old, new in zip(kept.data, turned.data, strict=True):
        assert (new.xaxis, new.yaxis) == (old.xaxis, old.yaxis)
        assert (list(new.x), list(new.y)) == (list(old.y), list(old.x))
        if old.type == "heatmap":
            assert [list(row) for row in new.z] == [list(row) for row in zip(*old.z, strict=True)]
            assert new.text is None or new.text[0][1] == old.text[1][0]
    layout, n = turned.layout, len(singles.registry.spans)
    kinds = ["residual", *(f"head, {span}" for span in singles.registry.spans)]
    assert [note.text for note in layout.annotations] == kinds
    # A panel of spans, below it one of heads for each span; none lies on another.
    axes = [layout.yaxis, *(layout[f"yaxis{k}"] for k in range(2, 2 + n))]
    assert list(axes[0].ticktext) == list(singles.registry.spans)
    assert list(axes[0].range) == [n - 0.5, -0.5]
    assert all(below.domain[1] < above.domain[0] for above, below in pairwise(axes))
    last = layout[f"xaxis{1 + n}"]
    assert (last.title.text, list(last.ticktext)) == ("layer", ["0", "1", "2", "3"])
    assert list(last.range) == [-0.5, 3.5]


@pytest.mark.slow
@pytest.mark.parametrize("height", [None, "2.6in", "3.2in"])
def test_titles_of_panels_below_each_other_have_room(demo_model, height):
    pairs = tk.load_dataset("demo-facts", demo_model)[:4]
    kinds = "head-outputs+mlp-neurons+attention-blocks"
    singles = tk.Tracer(demo_model, pairs, kinds, layers=[0, 1]).single_effects(["L0H1", "ATT1"])
    figure = singles.heatmap(layers_on="x", mark=None)
    keys = {"share of all layers", "bar: q &lt; .05", "not measured"}
    assert {*legend_of(singles.heatmap())} == {*keys, "q &lt; .05"}
    assert {*legend_of(figure)} == keys
    layout = for_print(figure, width="3.3in", height=height).layout
    pixels = layout.height - layout.margin.t - layout.margin.b
    axes = [layout.yaxis, layout.yaxis2, layout.yaxis3]
    assert axes[0].domain[1] == 1
    assert axes[-1].domain[0] == pytest.approx(0, abs=1e-6)
    for above, below, note in zip(axes, axes[1:], layout.annotations[1:], strict=False):
        gap = (above.domain[0] - below.domain[1]) * pixels
        assert gap >= 1.3 * note.font.size + note.yshift
    sizes = [axis.domain[1] - axis.domain[0] for axis in axes]
    assert [size / sizes[2] for size in sizes] == pytest.approx([8, 6, 1])
    with pytest.raises(ConfigError, match=r"The height of 1.5 inches leaves -?\d+ pixels"):
        for_print(figure, width="3.3in", height="1.5in")


def test_it_is_read_back_and_printed(tracer, found, tmp_path):
    loaded = tk.results.SingleEffects.load(found.save(tmp_path / "singles.json"))
    assert loaded.to_frame().equals(found.to_frame())
    assert len((found.save(tmp_path / "singles.csv")).read_text().splitlines()) == 1 + len(
        tracer.registry
    )
    first, *rest = str(found).splitlines()
    assert f"Single effects of {len(tracer.registry)} components of " in first
    assert "(logit difference, nats), counterfactual patching, n = 12 searched: " in first
    assert first.endswith("Brackets: 95 % intervals.")
    assert len(rest) == 8
    assert " to " in rest[0]
    assert "toprule" in found.to_latex()
    assert "<table" in found._repr_html_()


def test_some_components_and_few_examples(model):
    tracer = tk.Tracer(model, tiny.pairs(4), metric="logit-difference")
    few = tracer.single_effects(["L0H1", "L1H0"])
    assert set(few.table["component"]) == {"L0H1", "L1H0"}
    assert not few.table["significant"].any()
    assert "no p can be below 0.12" in str(few)
    assert [v for t in few.heatmap().data if t.type == "heatmap" for r in t.z for v in r].count(
        None
    ) == len(tracer.registry) - 2


def test_shares_of_nothing_are_refused(tracer, found):
    from dataclasses import replace

    with pytest.raises(MetricError, match="no effect, so there are no shares of it"):
        replace(found, full_effect=0.0).heatmap(normalised=True)


@pytest.mark.slow
def test_a_map_by_position_names_fields_of_templates(demo_model):
    pairs = tk.PromptPairs.from_template(
        "the {job} said that",
        demo_model,
        x="he",
        y="she",
        counterfactual={"job": "other"},
        values={"job": ["nurse", "pilot", "baker", "cook"], "other": ["guard", "clerk"]},
        n=4,
    )
    tracer = tk.Tracer(
        demo_model, pairs, "residual-before+mlp-blocks", split_by="position", direction="denoising"
    )
    assert tracer.registry.spans == ("0 the", "1 {job}", "2 said", "3 that")
    figure = tracer.single_effects().heatmap(normalised=True)
    assert figure.layout.xaxis.title.text == "residual-before"
    assert figure.data[1].colorbar.title.text.startswith("share<br>restored")
    assert list(figure.layout.xaxis.ticktext) == list(tracer.registry.spans)


@pytest.mark.slow
def test_where_labels_have_no_room_those_of_large_values_stay(found):
    figure = found.heatmap()
    figure.layout.meta["ticks"].clear()
    figure.layout.xaxis.update(ticktext=["a long label"] * 4, tickvals=[0, 1, 2, 3])
    for hot in (1, 2, 3):
        sizes = [1.0 if column == hot else 0.1 for column in range(4)]
        figure.update_traces({"z": [sizes] * 3}, {"type": "heatmap"})
        shown = list(for_print(figure, width="3.25in").layout.xaxis.tickvals)
        assert hot in shown
        assert len(shown) < 4


@pytest.mark.parametrize("layers_on", ["x", "y"])
def test_maps_of_windows_say_so(demo_model, layers_on):
    pairs = tk.load_dataset("demo-facts", demo_model)[:4]
    tracer = tk.Tracer(demo_model, pairs, "mlp-blocks", split_by="span", layer_window=3)
    layout = tracer.single_effects().heatmap(layers_on=layers_on).layout
    shown = layout.annotations[0].text if layers_on == "x" else layout.xaxis.title.text
    assert shown.replace("<br>", " ") == "mlp-blocks in windows of 3 layers"
