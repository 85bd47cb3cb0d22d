"""Faithfulness and completeness, the areas of MIB, and its files."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from dataclasses import replace
from itertools import pairwise

import pandas as pd
import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.plain import Plain
from tracekit._util.clusters import ratio_and_error
from tracekit._util.markup import interval_text
from tracekit.errors import (
    BudgetError,
    ConfigError,
    DataFormatError,
    MaskError,
    NoResultError,
    UnreliableResultWarning,
)
from tracekit.measure import evaluation
from tracekit.results import faithfulness as measures
from tracekit.results.faithfulness import MIB_SHARES
from tracekit.results.intervals import ratio_interval
from tracekit.tracer.diagnostics import warn_of_circuits


@pytest.fixture
def tracer(model):
    return tk.Tracer(model, tiny.pairs(12, seed=3), "head-outputs", "logit-difference")


def test_against_plain_hooks(model):
    """(score of the set - score of nothing) / (score of the model - score of nothing)."""
    rows = tiny.rows(6)
    pairs = tk.PromptPairs.from_ids(rows)
    tracer = tk.Tracer(model, pairs, "head-outputs", "logit-difference")
    members = [tk.Component("head-outputs", 0, 1), tk.Component("head-outputs", 2, 3)]
    found = tracer.faithfulness(members)
    plain = Plain("gpt2", "head-outputs")
    inside = torch.zeros(tiny.N_LAYERS, tiny.N_HEADS)
    inside[0, 1] = inside[2, 3] = 1

    def score(mask):
        total = 0.0
        for row in rows:
            prompt = row["prompt_ids"]
            change = plain.mixed(mask, plain.activations(row["counterfactual_ids"]), len(prompt))
            y, x = (plain.score(prompt, row[key], change) for key in ("y_ids", "x_ids"))
            total += (x - y).item()
        return total / len(rows)

    nothing, everything = score(torch.ones_like(inside)), score(torch.zeros_like(inside))
    expected = (score(1 - inside) - nothing) / (everything - nothing)
    assert found.faithfulness[0] == pytest.approx(expected, abs=1e-3)
    without = (score(inside) - nothing) / (everything - nothing)
    assert found.completeness[0] == pytest.approx(without, abs=1e-3)
    assert found.sizes == (2,)


def test_the_ends(tracer):
    everything = tracer.faithfulness(torch.ones(12))
    nothing = tracer.faithfulness(torch.zeros(12))
    assert everything.faithfulness == pytest.approx((1,))
    assert everything.completeness == pytest.approx((0,), abs=1e-6)
    assert nothing.faithfulness == pytest.approx((0,), abs=1e-6)
    assert nothing.completeness == pytest.approx((1,))
    assert everything.faithfulness_intervals[0] == pytest.approx((1, 1))


def test_denoising_measures_the_same_intervention(model):
    """What is restored alone is what is left when everything else is patched."""
    pairs = tiny.pairs(12, seed=3)
    options = {"components": "head-outputs", "metric": "logit-difference"}
    noising = tk.Tracer(model, pairs, **options)
    denoising = tk.Tracer(model, pairs, direction="denoising", positions="prompt", **options)
    # From the counterfactual run with all heads restored to the clean run is not the whole way.
    mask = torch.zeros(12)
    mask[[1, 5, 7]] = 1
    share = denoising.evaluate(mask) / denoising.full_effect
    found = denoising.faithfulness(mask)
    assert found.faithfulness[0] == pytest.approx(share, abs=1e-5)
    others = denoising.evaluate(1 - mask) / denoising.full_effect
    assert found.completeness[0] == pytest.approx(others, abs=1e-5)
    assert noising.faithfulness(mask).faithfulness[0] == pytest.approx(
        1 - noising.evaluate(1 - mask) / noising.full_effect, abs=1e-5
    )


@pytest.mark.parametrize("ranking", ["signed", "absolute"])
def test_areas_of_a_ranking(model, ranking):
    tracer = tk.Tracer(model, tiny.pairs(8), "mlp-neurons", "logit-difference")
    result = tracer.run("attribution", budget=10)
    found = tracer.faithfulness(result, ranking=ranking)
    assert found.ranking == ranking
    assert found.shares == MIB_SHARES
    scores = result.component_scores
    order = (scores if ranking == "signed" else scores.abs()).argsort(descending=True)
    values = []
    for share, size in zip(MIB_SHARES, found.sizes, strict=True):
        assert size == int(share * len(scores))
        mask = torch.zeros(len(scores))
        mask[order[:size]] = 1
        values.append(1 - tracer.evaluate(1 - mask) / tracer.full_effect)
    assert found.faithfulness == pytest.approx(values, abs=1e-3)
    steps = list(pairwise(zip(MIB_SHARES, values, strict=True)))
    cpr = sum((b - a) * (u + v) / 2 for (a, u), (b, v) in steps)
    cmd = sum((b - a) * (abs(1 - u) + abs(1 - v)) / 2 for (a, u), (b, v) in steps)
    assert found.cpr == pytest.approx(cpr, abs=1e-3)
    assert found.cmd == pytest.approx(cmd, abs=1e-3)
    assert f"CPR {found.cpr:.4g}" in repr(found)


def names_in_mib(component, registry):
    """The edges of the benchmark that are one edge here: one for each head that reads it."""

    def node(label):
        if label[0] == "L":
            return f"a{label[1:].replace('H', '.h')}"
        return {"E": "input", "logits": "logits"}.get(label, label.replace("MLP", "m"))

    sender, receiver = component.ends.split(">")
    use = "".join(f"<{letter.lower()}>" for letter in "QKV" if letter in receiver)
    return {f"{node(sender)}->{node(head)}{use}" for head in registry.edges.nodes_of(receiver)}


@pytest.mark.parametrize("ranking", ["signed", "absolute"])
def test_shares_of_edges_count_a_shared_key_for_each_head(tmp_path, ranking):
    """Against the exported file, of whose edges MIB takes the first by their scores."""
    tracer = tk.Tracer(tiny.shared_model("gemma2"), tiny.pairs(4), "edges", "logit-difference")
    result, n = tracer.run("attribution", budget=10), len(tracer.registry)
    edges = json.loads(result.to_mib(tmp_path / "edges.json").read_text())["edges"]
    assert len(edges) > n
    sign = abs if ranking == "absolute" else float
    first = sorted(edges, key=lambda edge: sign(edges[edge]["score"]), reverse=True)
    found = tracer.faithfulness(result, ranking=ranking)
    for share, size, value in zip(MIB_SHARES, found.sizes, found.faithfulness, strict=True):
        taken = {*first[: int(share * len(edges))]}
        inside = [taken >= names_in_mib(each, tracer.registry) for each in tracer.registry]
        mask = torch.tensor(inside).float()
        assert size == mask.sum()
        assert value == pytest.approx(
            1 - tracer.evaluate(1 - mask) / tracer.full_effect, abs=1e-3, rel=1e-3
        )
    assert found.sizes != tuple(int(share * n) for share in MIB_SHARES)
    assert f"CPR {found.cpr:.4g}" in repr(found)


def test_budgets_of_edges_count_a_shared_key_once(monkeypatch):
    tracer = tk.Tracer(tiny.shared_model("gemma2"), tiny.pairs(4), "edges", "logit-difference")
    n, shares = len(tracer.registry), (0.1, 0.5, 1.0)
    for module in (evaluation, measures):
        monkeypatch.setattr(module, "MIB_SHARES", shares)
    curve = tracer.run("attribution", budgets=[int(share * n) for share in shares])
    found = tracer.faithfulness(curve)
    with pytest.raises(ConfigError, match="these budgets count it once. Give a ranking, tracer."):
        _ = found.cpr
    assert f"distance {found.distance:.4g} (shared keys are counted once, not MIB's)" in repr(found)
    advised = tracer.faithfulness(curve[0], ranking="signed")
    assert advised.cpr == advised.area


@pytest.mark.slow
def test_sets_of_a_front_of_edges_are_of_the_sizes_that_mib_counts():
    tracer = tk.Tracer(
        tiny.shared_model("gemma2"), tiny.pairs(4), "edges", "logit-difference", layers=[0]
    )
    front = tracer.pareto(statistics=False, max_passes=60)
    found = tracer.faithfulness(front)
    counts = [len(names_in_mib(each, tracer.registry)) for each in tracer.registry]
    most = [share * sum(counts) for share in MIB_SHARES]
    sets = {size: front.at(size).binary_mask for size in front.sizes}
    fits = {size: (mask * torch.tensor(counts)).sum() for size, mask in sets.items()}
    for size, limit in zip(found.sizes[:-1], most, strict=False):
        assert size == max((each for each in sets if fits[each] <= limit), default=0)
    assert found.sizes[-1] == len(counts) < sum(counts)


@pytest.mark.slow
def test_of_results_curves_and_fronts(tracer):
    front = tracer.pareto(statistics=False, max_passes=120)
    found = tracer.faithfulness(front)
    assert found.shares == MIB_SHARES
    assert found.sizes[-1] == 12
    assert found.faithfulness[-1] == pytest.approx(1)
    assert found.sizes[MIB_SHARES.index(0.5)] <= 6
    assert found.cpr > 0
    frame = found.to_frame()
    assert list(frame["share"]) == list(MIB_SHARES)
    assert (frame["faithfulness_low"] <= frame["faithfulness"] + 1e-6).all()
    figure = found.curve()
    drawn = {trace.name: list(trace.y) for trace in figure.data if trace.name}
    assert drawn["faithfulness, 95 % interval"] == list(frame["faithfulness"])
    assert drawn["completeness, 95 % interval"] == list(frame["completeness"])
    front = tracer.pareto(max_budget=3, statistics=False, max_passes=40)
    short = tracer.faithfulness(front)
    with pytest.raises(BudgetError, match="do not cover them. Take a front without max_budget"):
        _ = short.cpr
    curve = tracer.run("greedy", budgets=[1, 3])
    of_curve = tracer.faithfulness(curve)
    assert of_curve.sizes == (1, 3)
    assert curve[1].faithfulness().faithfulness[0] == pytest.approx(of_curve.faithfulness[1])


def test_errors_of_ratios_are_those_of_residuals():
    for n in (2, 3, 9):
        draw = torch.Generator().manual_seed(n)
        values, bases = torch.rand(2, n, generator=draw, dtype=torch.float64)
        ratio, error = ratio_and_error(values, bases)
        assert ratio == pytest.approx((values.sum() / bases.sum()).item())
        residuals = values - ratio * bases
        expected = residuals.square().sum() / (n - 1) / n / bases.mean().square()
        assert error.item() == pytest.approx(expected.sqrt().item())


def test_intervals_of_ratios():
    values = torch.arange(1.0, 30.0)
    assert ratio_interval(2 * values, values) == pytest.approx((2, 2))
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    low, high = ratio_interval(1 + noise, torch.ones(4000))
    width = 2 * 1.96 / 4000**0.5
    assert high - low == pytest.approx(width, rel=0.1)
    assert low < 1 + noise.mean() < high


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_a_result_holds_its_own_and_measures_nothing(model, tmp_path, direction):
    for held_out in (None, tiny.pairs(6, seed=9)):
        tracer = tk.Tracer(
            model, tiny.pairs(8), "head-outputs", held_out=held_out, direction=direction
        )
        result = tracer.run("top-k", budget=2)
        measured = tracer.faithfulness(result)
        loaded = tk.TraceResult.load(result.save(tmp_path / "run"))
        before = tracer.engine.cost
        for each in (result, loaded, pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
            own = each.faithfulness()
            pd.testing.assert_frame_equal(own.to_frame(), measured.to_frame(), atol=1e-4)
            assert (own.examples, own.direction) == (measured.examples, direction)
        assert tracer.engine.cost == before
        lacking = {"searched": replace(loaded.searched, complement=None), "held_out": None}
        without = replace(loaded, **lacking)
        with pytest.raises(NoResultError, match="does not hold the effects of its complement"):
            without.faithfulness()
        assert tracer.faithfulness(without).sizes == (2,)


@pytest.mark.parametrize(
    ("n_exchanged", "said"),
    [(12, "is below 0: faithful is"), (6, "does not differ from 0|is mixed")],
)
def test_an_effect_that_says_little_as_a_whole_is_warned_of(demo_model, n_exchanged, said):
    pairs = tk.load_dataset("demo-bias", demo_model)[:12]
    given = [
        replace(pair, x_ids=pair.y_ids, y_ids=pair.x_ids) if number < n_exchanged else pair
        for number, pair in enumerate(pairs)
    ]
    pairs = replace(pairs, pairs=tuple(given))
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", "logit-difference")
    with pytest.warns(UnreliableResultWarning, match=f"all components together, .* ({said})"):
        tracer.faithfulness(["L0H1"])


def test_what_is_refused(tracer, unchecked):
    with pytest.raises(MaskError, match="A set of components is needed here"):
        tracer.faithfulness(torch.full((12,), 0.5))
    with pytest.raises(ConfigError, match="ranking is 'best'. Use one of signed, absolute"):
        tracer.faithfulness(torch.ones(12), ranking="best")
    with pytest.raises(MaskError, match=r"The scores have shape \(3,\)"):
        tracer.faithfulness(torch.ones(3), ranking="signed")


# ---- files of MIB ----------------------------------------------------------------------------


def test_importances_go_to_a_file_and_back(model, tmp_path):
    tracer = tk.Tracer(model, tiny.pairs(8), "head-outputs+mlp-blocks", "logit-difference")
    result = tracer.run("top-k", budget=4)
    path = result.to_mib(tmp_path / "new" / "importances.json")
    document = json.loads(path.read_text())
    assert document["cfg"] == {
        "n_layers": 3,
        "n_heads": 4,
        "d_model": 24,
        "parallel_attn_mlp": False,
    }
    assert list(document["nodes"])[:6] == ["input", "a0.h0", "a0.h1", "a0.h2", "a0.h3", "m0"]
    assert document["nodes"]["logits"] == {"in_graph": True}
    kept = {name for name, node in document["nodes"].items() if node["in_graph"]}
    assert len(kept) == 2 + result.n_selected
    index = tracer.registry.index(tk.Component("head-outputs", 2, 1))
    score = result.component_scores[index].item()
    assert document["nodes"]["a2.h1"]["score"] == pytest.approx(score)
    torch.testing.assert_close(tracer.from_mib(path), result.component_scores)
    ours = tracer.faithfulness(result, ranking="signed")
    theirs = tracer.faithfulness(tracer.from_mib(path), ranking="signed")
    assert ours.faithfulness == pytest.approx(theirs.faithfulness)


@pytest.mark.slow
def test_mib_files_that_do_not_fit(model, tmp_path):
    tracer = tk.Tracer(model, tiny.pairs(8), "head-outputs", "logit-difference")
    result = tracer.run("top-k", budget=2)
    path = result.to_mib(tmp_path / "importances.json")
    document = json.loads(path.read_text())
    patterns = tk.Tracer(model, tiny.pairs(8), "attention-patterns")
    with pytest.raises(DataFormatError, match="attention-patterns have no node in a MIB file"):
        patterns.run("top-k", budget=2).to_mib(path)
    both = tk.Tracer(model, tiny.pairs(8), "head-outputs+mlp-blocks")
    with pytest.raises(DataFormatError, match=r"has no score of m0 \(MLP0\)"):
        both.from_mib(path)
    (tmp_path / "other.json").write_text(
        json.dumps({**document, "cfg": {**document["cfg"], "n_layers": 12}})
    )
    with pytest.raises(DataFormatError, match="is of another model: its n_layers is 12"):
        tracer.from_mib(tmp_path / "other.json")
    for change, text in (
        ({"cfg": {}}, "lacks the n_layers of its model"),
        (
            {"nodes": {**document["nodes"], "a12.h3": {"score": 0.1}}},
            "the node a12.h3, .*3 layers of 4 heads",
        ),
        (
            {"nodes": {**document["nodes"], "a0.h0": {"score": True}}},
            "has no score of a0.h0",
        ),
        *(
            ({"nodes": {**document["nodes"], "a0.h0": {"score": score}}}, "has no score of a0.h0")
            for score in (1e300, 10**400, float("nan"), -1e39)
        ),
        (
            {"nodes": {**document["nodes"], f"a{'9' * 5000}.h0": {"score": 0.1}}},
            "and the traced model has 3 layers of 4 heads",
        ),
    ):
        (tmp_path / "changed.json").write_text(json.dumps({**document, **change}))
        with pytest.raises(DataFormatError, match=text):
            tracer.from_mib(tmp_path / "changed.json")
    (tmp_path / "none.json").write_text("[1, 2]")
    for name in ("none.json", "missing.json"):
        with pytest.raises(DataFormatError, match="cannot be read as importances of MIB"):
            tracer.from_mib(tmp_path / name)
    wide = tk.Tracer(model, tiny.pairs(8), "mlp-blocks", layer_window=2)
    with pytest.raises(DataFormatError, match="Trace without them"):
        wide.run("top-k", budget=1).to_mib(path)


def test_searches_within_bounds_rank_nothing(tracer, tmp_path):
    keep = tk.Constraint(metric="kl", at_most=1e3)
    for options, text in (
        ({"constraint": keep}, "within bounds"),
        ({"objective": "median"}, "by median"),
    ):
        result = tracer.run("top-k", budget=2, **options)
        with pytest.raises(ConfigError, match=f"top-k, searched {text}, has no scores of comp"):
            _ = result.ranked_by


def test_a_selection_ranks_nothing(tracer, tmp_path):
    result = tracer.run("greedy", budget=3)
    for ask in (
        lambda: tracer.faithfulness(result, ranking="signed"),
        lambda: result.to_mib(tmp_path / "importances.json"),
    ):
        with pytest.raises(ConfigError, match="has no scores of components, only a selection"):
            ask()
    with pytest.raises(MaskError, match="A ranking needs a score for each component"):
        tracer.faithfulness(result.components, ranking="signed")


class TestWarnings:
    """Of sets that are strong and no circuits, and of circuits that are not complete."""

    @staticmethod
    def texts_of(tracer, *, own, others):
        result = tracer.run("top-k", budget=2)
        full = torch.linspace(1.0, 1.2, 12)
        values = replace(result.searched, effects=own * full, complement=others * full, full=full)
        made = replace(result, searched=values)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_circuits([result, made])
        texts = [str(each.message) for each in caught]
        return [text for text in texts if f"{own:.2f} times" in text or "complete" in text]

    def test_a_set_that_overshoots(self, tracer):
        (text,) = self.texts_of(tracer, own=1.9, others=0.6)
        assert text.startswith("The set of 2 has 1.90 times the effect")
        assert "Its faithfulness is 0.40" in text
        assert "objective='faithful'" in text
        assert self.texts_of(tracer, own=1.05, others=0.6) == []

    def test_noise_is_no_overshooting(self, tracer):
        result = tracer.run("top-k", budget=2)
        values = replace(
            result.searched,
            effects=torch.tensor([2.9, 0.1] * 6),
            full=torch.ones(12),
            complement=torch.zeros(12),
        )
        made = replace(result, searched=values)
        assert made.faithfulness().shares_of_full == pytest.approx((1.5,))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_circuits([made])

    def test_a_circuit_whose_complement_does_the_task(self, tracer):
        (text,) = self.texts_of(tracer, own=0.3, others=0.2)
        assert text.startswith("The set of 2 does 0.80 of the task")
        assert "do 0.70: it is not complete" in text
        assert self.texts_of(tracer, own=0.3, others=0.9) == []

    @pytest.mark.parametrize(
        ("objective", "others", "is_said"),
        [("faithful", 0.8, True), ("faithful", 0.3, False), ("mean", 0.8, False)],
    )
    def test_a_set_that_was_to_be_faithful_and_is_not(self, tracer, objective, others, is_said):
        result = tracer.run("top-k", budget=2)
        full = torch.linspace(1.0, 1.2, 12)
        own = replace(result.searched, effects=full, complement=others * full, full=full)
        run = replace(result.run, objective=objective)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_circuits([replace(result, searched=own, run=run)])
        said = "The set of 2 was sought to be faithful, and does 0.20 of the task alone"
        assert any(str(each.message).startswith(said) for each in caught) == is_said

    @pytest.mark.parametrize(("kind", "is_said"), [("mlp-blocks", True), ("residual", False)])
    def test_a_map_of_the_residual_stream_is_never_complete(self, model, kind, is_said):
        tracer = tk.Tracer(model, tiny.pairs(12, seed=3), kind, "probability-ratio")
        texts = self.texts_of(tracer, own=0.3, others=0.2)
        assert any("it is not complete" in text for text in texts) == is_said


def test_tables_hold_them(tracer):
    curve = tracer.run("top-k", budgets=[2, 4])
    by_size = [tracer.faithfulness(result).to_frame().iloc[0] for result in curve]
    front = tracer.pareto(max_budget=3, max_passes=40, statistics=False)
    for frame in (curve.to_frame(), tk.compare(list(curve)).to_frame()):
        for name in ("faithfulness", "faithfulness_low", "completeness", "completeness_high"):
            assert frame[name].tolist() == pytest.approx([row[name] for row in by_size], abs=1e-4)
    assert front.to_frame()["faithfulness"].notna().all()
    scores = curve[0].circuit_scores
    for name, score in zip(("faithfulness", "completeness"), scores, strict=True):
        ends = [by_size[0][f"{name}{end}"] for end in ("", "_low", "_high")]
        assert score == pytest.approx(ends)
        text = f"{name}, searched, {ends[0]:.2f} ({interval_text(*ends[1:])})"
        assert text in curve[0]._repr_html_()
    without = replace(curve[0], searched=replace(curve[0].searched, complement=None))
    assert without.circuit_scores == ((None, None, None),) * 2


@pytest.mark.slow
def test_runs_and_fronts_warn(demo_model):
    pairs = tk.load_dataset("demo-professions", demo_model)[:12]
    tracer = tk.Tracer(demo_model, pairs, "attention-patterns", "logit-difference", layers=[0, 3])
    with pytest.warns(UnreliableResultWarning, match="of 7 has 1.27 times the effect of all compo"):
        tracer.run("top-k", budget=7)
    with pytest.warns(
        UnreliableResultWarning, match="times the effect of all components: it leave"
    ):
        tracer.pareto(max_budget=7, max_passes=40, statistics=False)


def test_what_faithfulness_is_of_is_in_words(model):
    tracer = tk.Tracer(model, tiny.pairs(6), "head-outputs")
    curve = tracer.run("top-k", budgets=[1, 3])
    cases = (
        ((curve,), {}, "sets found by top-k;"),
        ((curve[0],), {}, "a set found by top-k;"),
        ((["L0H1"],), {}, "a set chosen by hand;"),
        ((curve[0],), {"ranking": "signed"}, "components with the highest scores of top-k;"),
    )
    for given, options, sets in cases:
        measured = tracer.faithfulness(*given, **options)
        assert repr(measured).startswith(f"Faithfulness (odds-ratio) of {sets}")
        title = measured.curve().layout.title
        assert title.text == "Faithfulness: pairs data, GPT2LMHeadModel model"
        assert title.subtitle.text.replace("<br>", " ").startswith(f"by odds-ratio; {sets}")
    one, three = repr(tracer.faithfulness(curve)).splitlines()[1:]
    assert (one.split(":")[0], three.split(":")[0]) == ("  1 component", "  3 components")


def test_budgets_stand_beside_sets_that_are_smaller(model):
    tracer = tk.Tracer(model, tiny.pairs(6), "head-outputs")
    results = [
        replace(each, budget=each.n_selected + 1) for each in tracer.run("top-k", budgets=[1, 3])
    ]
    found = tracer.faithfulness(tk.results.TraceCurve(tuple(results)))
    assert found.to_frame()["budget"].tolist() == [2, 4]
    assert "  1 component (budget 2): " in repr(found)
    assert "budget" not in tracer.faithfulness(results[0]).to_frame()
