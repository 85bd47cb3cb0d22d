"""What objects show of themselves: short texts, and HTML without anybody else's markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import tracekit as tk
from tests import tiny
from tests.files import renamed
from tracekit.data.display import _changed_tokens, make_shown_pair
from tracekit.results.display import search_notes
from tracekit.results.tables import legend
from tracekit.search.targets import ConstraintEffect

HOSTILE = "<script>alert('1')</script>\"&\u001b[31m\u202e"


class Reader(HTMLParser):
    """Tags, and the texts of the cells of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.bold: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self._open.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data
        if "b" in self._open and "td" in self._open:
            self.bold.append(data)


SAFE = {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "span"}


@pytest.fixture(scope="module")
def shown(demo_model):
    """One of everything that shows itself."""
    pairs = tk.load_dataset("demo-bias", demo_model)[:16]
    tracer = tk.Tracer(
        demo_model,
        pairs,
        held_out=tk.load_dataset("demo-bias", demo_model)[16:24],
        extra_metrics=["kl"],
    )
    curve = tracer.run("top-k", budgets=list(range(1, 15)))
    result = tracer.run("greedy", budget=3)
    return {
        "pairs": pairs,
        "tracer": tracer,
        "curve": curve,
        "result": result,
        "front": tracer.pareto(max_budget=3, max_passes=30),
        "grid": tracer.interactions(layers=[0]),
        "comparison": tk.compare([result, curve.at(3)]),
        "registry": tracer.registry,
        "metric": tracer.engine.metric,
    }


@pytest.mark.slow
def test_texts_are_a_line_each(shown):
    for name, value in shown.items():
        text = repr(value)
        assert "\n" not in text, name
        assert len(text) < 400, name
        assert "tensor(" not in text, name
        assert "0x" not in text, name
    effects = shown["curve"].to_frame()["effect"]
    assert repr(shown["curve"]).startswith(
        f"TraceCurve(top-k on demo-bias, demo, counterfactual patching; "
        f"effect (odds ratio \u2212 1) on 16 searched examples by budget 1: {effects[0]:.4g}, 2: "
    )
    first = shown["grid"].to_frame().iloc[0]
    assert repr(shown["grid"]) == (
        "InteractionGrid(demo-bias data, demo model: 8 components; strongest interaction "
        f"{first['first']}, {first['second']}: {first['interaction']:+.4g}; "
        "measured as effect (odds ratio \u2212 1), noising; "
        f"{sum(shown['grid'].significant)} of 28 pairs have q < .05; counterfactual "
        "patching, n = 16 searched; q is not reliable here: the effects are skewed (median "
        "skewness 1.9) and there are fewer than 50 independent examples. Decide by p_family.)"
    )
    assert repr(shown["registry"]) == "ComponentRegistry(32 attention-patterns in layers 0-3)"
    assert repr(shown["metric"]) == "Metric(odds-ratio: effect (odds ratio \u2212 1))"


@pytest.mark.parametrize(
    "name", ["pairs", "tracer", "curve", "result", "front", "grid", "comparison"]
)
def test_html_is_small_and_plain(shown, name):
    text = shown[name]._repr_html_()
    reader = Reader(text)
    assert reader.tags <= SAFE
    assert len(text) < 40_000
    assert len(reader.rows) <= 7 + 1 + 12 + 1


def test_pairs_show_every_token_and_the_changed_ones_in_bold(shown):
    pairs = shown["pairs"]
    reader = Reader(pairs._repr_html_())
    assert len(reader.rows) == 1 + 12
    assert "and 4 more" in pairs._repr_html_()
    pair = pairs[3]
    texts = [pairs.token_texts[token] for token in pair.prompt_ids]
    assert reader.rows[4][:2] == ["3", "".join(texts)]
    changed = [
        (pairs.token_texts[a], pairs.token_texts[b])
        for each in pairs[:12]
        for a, b in zip(each.prompt_ids, each.counterfactual_ids, strict=True)
        if a != b
    ]
    assert sorted(reader.bold) == sorted(word for both in changed for word in both)


def test_pairs_without_a_tokenizer_show_ids_and_noise_is_said(model):
    row = {"prompt_ids": [5, 6, 7], "counterfactual_ids": [5, 9, 7], "x_ids": [1]}
    pairs = tk.PromptPairs.from_ids([row])
    assert Reader(pairs._repr_html_()).rows[1] == ["0", "567", "597", "1", ""]
    assert Reader(pairs._repr_html_()).bold == ["6", "9"]
    assert Reader(pairs.reversed()._repr_html_()).rows[1][1] == "597"
    noisy = Reader(tiny.pairs(2, noise=True)._repr_html_())
    assert noisy.rows[1][2] == "the prompt with noise on its embeddings"
    assert noisy.bold == []
    shown = make_shown_pair(tiny.pairs(1, noise=True).reversed()[0], {})
    assert shown.source.startswith("the prompt with noise on its embeddings; the counter")


def test_prompts_of_other_lengths_are_compared_as_in_a_diff(demo_model):
    row = {
        "prompt": "the mechanic waited for the maid while she",
        "counterfactual": "the guard met the maid while he",
        "x": " ironed sheets .",
        "spans": {"who": "mechanic", "pronoun": "she"},
        "counterfactual_spans": {"who": "guard", "pronoun": " he"},
    }
    pairs = tk.PromptPairs.from_text([row], demo_model)
    shown = make_shown_pair(pairs[0], pairs.token_texts)

    def changed(tokens):
        return [text.strip() for text, is_changed in tokens if is_changed]

    assert changed(shown.prompt) == ["mechanic", "waited", "for", "she"]
    assert changed(shown.counterfactual) == ["guard", "met", "he"]


def test_constant_values_are_said(model):
    pairs = tk.PromptPairs.from_ids([{"prompt_ids": [5, 6, 7], "x_ids": [1]}])
    tracer = tk.Tracer(model, pairs, metric="probability-drop", source="zero")
    assert "no prompt, but zero values" in tracer.engine.pairs._repr_html_()


def test_long_prompts_are_compared_token_by_token():
    """Tokens that stand often in a long prompt are no noise."""
    long, longer = [3, 4] * 150, [3, 4] * 75 + [9] + [3, 4] * 75
    in_long, in_longer = _changed_tokens(long, longer)
    assert not any(in_long)
    assert [number for number, is_changed in enumerate(in_longer) if is_changed] == [150]


def test_results_show_their_numbers(shown):
    result, text = shown["result"], shown["result"]._repr_html_()
    low, high = result.spread
    said = f"effect (odds ratio \u2212 1) {result.effect:.4g} (all: {result.full_effect:.4g})"
    assert f"{said} on 16 searched" in text
    assert f"{result.held_out_effect:.4g} (all: " in text
    assert f"spread {low:.3g} to {high:.3g}" in text
    low, high = result.held_out_interval
    assert f"95 % interval held out {low:.3g} to {high:.3g}" in text
    assert f"kl {result.extra_effects['kl']:.4g}" in text
    assert ", ".join(result.labels) in text
    # A row for each budget up to twelve, from the first to the last.
    rows = Reader(shown["curve"]._repr_html_()).rows
    assert [int(row[0]) for row in rows[1:]] == [1, 2, 3, 5, 6, 7, 8, 9, 10, 12, 13, 14]
    assert rows[1][2] == f"{shown['curve'].at(1).effect:.4g}"
    front = shown["front"]
    rows = Reader(front._repr_html_()).rows
    fitted = {row.size: row.cross_fitted for row in front.statistics}
    at = rows[0].index("effect, cross-fitted")
    assert [row[at] for row in rows[1:]] == [f"{fitted[size]:.4g}" for size in front.sizes]
    at = rows[0].index("effect, held out")
    assert [row[at] for row in rows[1:]] == [f"{each.held_out_effect:.4g}" for each in front]
    grid = shown["grid"].to_frame()
    rows = Reader(shown["grid"]._repr_html_()).rows
    assert [row[2] for row in rows[1:]] == [f"{effect:.4g}" for effect in grid["effect"][:12]]
    tracer = shown["tracer"]
    rows = Reader(tracer._repr_html_()).rows
    assert ["all components", f"effect {tracer.full_effect:.4g}, searched"] in rows
    assert [row[0] for row in rows[-12:]] == ["top-k"] * 11 + ["greedy"]
    assert "and 3 earlier results" in tracer._repr_html_()


def test_long_lists_of_components_are_cut(shown):
    result, curve = shown["result"], shown["curve"]
    assert repr(result).endswith(f" held-out examples; {', '.join(result.labels)})")
    assert repr(curve.at(12)).endswith(f"; {', '.join(curve.at(12).labels)})")
    assert repr(curve.at(13)).endswith(f"; {', '.join(curve.at(13).labels[:12])}, ...)")


def test_looking_at_a_tracer_runs_nothing(model):
    tracer = tk.Tracer(model, tiny.pairs(4))
    before = tracer.engine.cost
    assert "No results yet: run()." in tracer._repr_html_()
    assert tracer.engine.cost == before


def test_nothing_from_outside_becomes_markup_or_steers_a_terminal(shown):
    pairs = replace(
        shown["pairs"],
        name=HOSTILE,
        token_texts=dict.fromkeys(shown["pairs"].token_texts, HOSTILE),
    )
    result = renamed(shown["result"], dataset=HOSTILE, model=HOSTILE)
    result = renamed(result, title=HOSTILE, method=HOSTILE, metric=HOSTILE)
    grid = replace(shown["grid"], title=HOSTILE, labels=(HOSTILE,) * 8)
    front = tk.ParetoFront((result,), largest=3)
    for value in (
        *(pairs, result, grid, front, tk.results.TraceCurve((result,))),
        tk.compare([result], labels=[HOSTILE]),
    ):
        text = value._repr_html_()
        assert "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;&quot;&amp;" in text
        assert Reader(text).tags <= SAFE
        for shown_text in (text, repr(value)):
            assert not re.search("[\u001b\u202e]", shown_text)


def test_a_result_says_its_goal_its_constraint_and_an_early_end():
    tracer = tk.Tracer(tiny.shared_model("gpt2"), tiny.pairs(), "head-outputs", "logit-difference")
    plain = tracer.run("attribution", budget=2)
    assert search_notes(plain) == []
    everything = list(range(len(tracer.registry)))
    curve = tracer.run("attribution", budgets=[len(everything)])
    faithful = curve.smallest(faithfulness=0.9)
    bound = ConstraintEffect(
        metric="kl", dataset="other", dataset_fingerprint="0" * 64, at_most=0.05, effect=0.0123
    )
    stopped = replace(faithful, run=replace(faithful.run, stopped="interrupted"), constraint=bound)
    notes = [
        "faithfulness 1.00 on searched examples (0.9 was asked for)",
        "constraint: kl on other is 0.012 (at most 0.05)",
        "the best set when the search was stopped (interrupted)",
    ]
    assert search_notes(stopped) == notes
    for text in (repr(stopped), stopped._repr_html_()):
        assert all(note in text for note in notes)
    assert stopped.title == "attribution patching (interrupted)"
    assert "interrupted" in tk.compare([stopped, plain]).to_frame()["method"][0]


@pytest.mark.parametrize(("direction", "way"), [("noising", "away from"), ("denoising", "back to")])
def test_tables_say_which_way_an_effect_above_0_moves_the_model(direction, way):
    options = {"components": "head-outputs", "direction": direction}
    tracer = tk.Tracer(tiny.shared_model("gpt2"), tiny.pairs(), **options)
    text = legend([tracer.run("attribution", budget=2)])
    assert f"; above 0, they move the model {way} its clean answer x." in text
