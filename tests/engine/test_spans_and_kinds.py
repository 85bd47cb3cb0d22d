"""Kinds, spans and windows against plain Hugging Face models with torch hooks."""

from __future__ import annotations

import itertools
import pickle
import re

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.plain import KINDS, MODULES, Plain, effects_by_span
from tracekit.errors import (
    ComponentError,
    ConfigError,
    HookPointError,
    PairsError,
    SourceError,
    UnknownNameError,
)

MARKS = {"llama": (), "gpt2": pytest.mark.slow}
ARCHITECTURES = [pytest.param(name, marks=MARKS.get(name, pytest.mark.soak)) for name in MODULES]


def rows_with_spans(count=6, seed=0, *, other_length=False):
    """Prompts with the spans `first` (1 token) and `second` (2), at different positions."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number, row in enumerate(tiny.rows(count, seed)):
        prompt = row["prompt_ids"] + [5, 6]
        start = number % 2
        row |= {"prompt_ids": prompt, "spans": {"first": [start, start + 1]}}
        row["spans"]["second"] = [start + 1, start + 3]
        shift = 1 + number % 3 if other_length else 0
        other = torch.randint(tiny.VOCABULARY, (len(prompt) + shift,), generator=generator)
        row["counterfactual_ids"] = other.tolist()
        if other_length:
            spans = row["spans"].items()
            row["counterfactual_spans"] = {n: [a + shift, b + shift] for n, (a, b) in spans}
        rows.append(row)
    return rows


def is_missing(architecture, kind, **_):
    """Where attention and MLP run in parallel, there is no stream between them."""
    return (architecture, kind) == ("gpt_neox", "residual-between")


def skip_what_is_not_there(architecture, kind):
    if is_missing(architecture, kind):
        with pytest.raises(HookPointError, match="hook_resid_mid does not exist. Use residual"):
            tk.Tracer(tiny.shared_model(architecture), tiny.pairs(2), kind)
        pytest.skip("There is nothing between attention and MLP.")


def plain_effect(plain, row, by_span, names):
    """Logit difference of one example; `by_span[layer]` has the axes component and span."""
    prompt = row["prompt_ids"]
    last = {"last": [len(prompt) - 1, len(prompt)]}
    spans = row["spans"] | last
    others = row.get("counterfactual_spans")
    if others is not None:
        others = others | {"last": [len(row["counterfactual_ids"]) - 1] * 2}
    source = plain.activations(row["counterfactual_ids"])
    named = {p for a, b in spans.values() for p in range(a, b)}
    owner = torch.full((len(prompt),), -1)
    index = torch.arange(len(prompt))
    for number, name in enumerate(names):
        inside = (
            [p for p in range(len(prompt)) if p not in named]
            if name == "rest"
            else list(range(*spans[name]))
        )
        for step, position in enumerate(inside):
            owner[position] = number
            if others is not None:
                index[position] = others[name][0] + step
    moved = {layer: value[index.clamp(max=len(value) - 1)] for layer, value in source.items()}
    weights = [
        torch.where(owner[:, None] >= 0, layer.T[owner.clamp(min=0)], 0.0) for layer in by_span
    ]

    def odds(change):
        y, x = (plain.score(prompt, row[key], change) for key in ("y_ids", "x_ids"))
        return y - x

    return odds(plain.mixed(weights, moved, len(prompt))) - odds(lambda layer, value: None)


@pytest.mark.lens
@pytest.mark.pairwise(without=is_missing)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("soft", [pytest.param(False, marks=pytest.mark.soak), True])
@pytest.mark.parametrize("other_length", [False, True])
def test_spans_of_every_kind_equal_plain_hooks(architecture, kind, soft, other_length):
    skip_what_is_not_there(architecture, kind)
    plain = Plain(architecture, kind)
    rows = rows_with_spans(4, other_length=other_length)
    tracer = tk.Tracer(
        tiny.shared_model(architecture),
        tk.PromptPairs.from_ids(rows),
        kind,
        "logit-difference",
        split_by="span",
    )
    names = ("first", "second") + (() if other_length else ("rest",)) + ("last",)
    assert tracer.registry.spans == names
    n_layers = len(plain.modules)
    assert len(tracer.registry) == n_layers * plain.count * len(names)
    mask = torch.rand(len(tracer.registry), generator=torch.Generator().manual_seed(1))
    mask = mask if soft else (mask > 0.5).float()
    found = tracer.evaluate(mask, per_example=True)
    by_span = mask.reshape(n_layers, plain.count, len(names))
    expected = torch.stack([plain_effect(plain, row, by_span, names) for row in rows])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert found.abs().max() > 1e-2


QUESTIONS = [
    ("zero", "noising"),
    ("mean", "noising"),
    ("noise", "noising"),
    ("noise", "denoising"),
    ("counterfactual", "denoising"),
]


@pytest.mark.pairwise(without=is_missing)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["head-outputs", "residual", "residual-between", "keys"])
@pytest.mark.parametrize(("source", "direction"), QUESTIONS)
def test_spans_under_every_source_equal_plain_hooks(architecture, kind, source, direction):
    skip_what_is_not_there(architecture, kind)
    plain, rows = Plain(architecture, kind), rows_with_spans(4)
    options = {"source": source, "direction": direction}
    tracer = tk.Tracer(
        tiny.shared_model(architecture),
        tk.PromptPairs.from_ids(rows),
        kind,
        "logit-difference",
        split_by="span",
        **options,
    )
    mask = torch.rand(len(tracer.registry), generator=torch.Generator().manual_seed(1))
    found = tracer.evaluate(mask, per_example=True)
    expected = effects_by_span(plain, rows, tracer, mask)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    # Qwen3 norms its keys, so that keys nearer to zero are the same keys.
    if (architecture, kind, source) != ("qwen3", "keys", "zero"):
        assert found.abs().max() > 1e-2


@pytest.mark.lens
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_at_all_positions_equal_plain_hooks(architecture, kind):
    skip_what_is_not_there(architecture, kind)
    plain = Plain(architecture, kind)
    rows = tiny.rows(4)
    tracer = tk.Tracer(
        tiny.shared_model(architecture),
        tk.PromptPairs.from_ids(rows),
        kind,
        "logit-difference",
    )
    mask = torch.rand(len(tracer.registry), generator=torch.Generator().manual_seed(1))
    found = tracer.evaluate(mask, per_example=True)
    by_layer = mask.reshape(len(plain.modules), plain.count)
    for effect, row in zip(found, rows, strict=True):
        prompt = row["prompt_ids"]
        change = plain.mixed(by_layer, plain.activations(row["counterfactual_ids"]), len(prompt))
        odds = [
            plain.score(prompt, row["y_ids"], act) - plain.score(prompt, row["x_ids"], act)
            for act in (change, lambda layer, value: None)
        ]
        assert effect.item() == pytest.approx((odds[0] - odds[1]).item(), abs=1e-3)


SPAN_KINDS = ("attention-patterns", "head-outputs", "mlp-neurons", "residual", "keys+mlp-blocks")


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", SPAN_KINDS)
@pytest.mark.parametrize(("windows", "source"), [(1, "counterfactual"), (2, "zero"), (3, "mean")])
def test_fast_paths_equal_the_plain_way(model, kind, windows, source):
    pairs = tk.PromptPairs.from_ids(rows_with_spans(5))
    options = {"indices": [0, 1]} if kind == "mlp-neurons" else {}
    fast, plain = (
        tk.Tracer(
            model,
            pairs,
            kind,
            split_by="span",
            layer_window=windows,
            source=source,
            capabilities=capabilities,
            max_batch_size=size,
            **options,
        )
        for capabilities, size in ((None, 64), (tk.Capabilities.none(), 1))
    )
    n = len(fast.registry)
    generator = torch.Generator().manual_seed(0)
    sets = [(), (0,), (n - 1,)]
    sets += [
        tuple(torch.randperm(n, generator=generator)[:k].sort().values.tolist()) for k in (2, 4)
    ]
    expected = torch.stack(
        [
            plain.engine.effects(tk.components.masks.from_indices(members, n).float())
            for members in sets
        ]
    )
    torch.testing.assert_close(fast.engine.set_effects(sets), expected, rtol=1e-3, atol=1e-4)
    mask = torch.rand(n, generator=generator)
    ahead = [each.engine.gradient(mask, torch.ones_like)[1] for each in (fast, plain)]
    torch.testing.assert_close(*ahead, rtol=1e-3, atol=1e-4)
    # Looking ahead tells examples apart by a mask for each row.
    gains = [each.engine.predict_changes((0,)).predicted_effects for each in (fast, plain)]
    torch.testing.assert_close(*gains, rtol=1e-3, atol=1e-4)


def test_spans_make_up_the_whole_prompt(any_model):
    """All spans of a component together are the component without spans."""
    pairs = tk.PromptPairs.from_ids(rows_with_spans())
    whole = tk.Tracer(any_model, pairs, "head-outputs")
    split = tk.Tracer(any_model, pairs, "head-outputs", split_by="span")
    mask = torch.rand(len(whole.registry), generator=torch.Generator().manual_seed(0))
    repeated = mask.repeat_interleave(len(split.registry.spans))
    torch.testing.assert_close(
        split.evaluate(repeated, per_example=True),
        whole.evaluate(mask, per_example=True),
        rtol=1e-4,
        atol=1e-5,
    )
    last = tk.Tracer(any_model, pairs, "head-outputs", positions="last")
    only_last = torch.zeros(len(whole.registry), 4)
    only_last[:, split.registry.spans.index("last")] = mask
    assert split.evaluate(only_last.flatten()) == pytest.approx(last.evaluate(mask), abs=1e-5)


@pytest.mark.lens
@pytest.mark.pairwise
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["head-outputs", "residual", "mlp-outputs"])
def test_positions_equal_plain_hooks(architecture, kind):
    """A component per layer, head or coordinate, and position."""
    plain = Plain(architecture, kind)
    rows = [row for row in tiny.rows(40) if len(row["prompt_ids"]) == 5][:3]
    tracer = tk.Tracer(
        tiny.shared_model(architecture),
        tk.PromptPairs.from_ids(rows),
        kind,
        "logit-difference",
        split_by="position",
    )
    mask = torch.rand(len(tracer.registry), generator=torch.Generator().manual_seed(1))
    by_position = mask.reshape(len(plain.modules), plain.count, 5)
    names = tracer.registry.spans
    found = tracer.evaluate(mask, per_example=True)
    for effect, row in zip(found, rows, strict=True):
        spans = {name: [position, position + 1] for position, name in enumerate(names)}
        expected = plain_effect(plain, {**row, "spans": spans}, by_position, names)
        assert effect.item() == pytest.approx(expected.item(), abs=1e-3)
    assert found.abs().max() > 1e-2


def test_positions_are_spans_of_their_own(any_model):
    rows = [row for row in tiny.rows(40) if len(row["prompt_ids"]) == 5][:4]
    tracer = tk.Tracer(any_model, tk.PromptPairs.from_ids(rows), "residual", split_by="position")
    assert tracer.registry.spans == ("0", "1", "2", "3", "4")
    assert tracer.registry.grid_shape == (tiny.N_LAYERS, 5)
    assert str(tracer.registry[7]) == "R1@2"
    for position in (0, 4):
        alone = tk.Tracer(
            any_model, tk.PromptPairs.from_ids(rows), "residual", positions=[position]
        )
        members = [tk.Component("residual", 1, 0, str(position))]
        assert tracer.evaluate(members) == pytest.approx(
            alone.evaluate([tk.Component("residual", 1)]), abs=1e-6
        )


@pytest.mark.lens
def test_restoring_the_residual_stream_reaches_the_clean_score(any_model):
    """Denoising: after the last block nothing is left of the counterfactual prompt."""
    rows = [{**row, "x_ids": row["x_ids"][:1], "y_ids": row["y_ids"][:1]} for row in tiny.rows(6)]
    tracer = tk.Tracer(
        any_model,
        tk.PromptPairs.from_ids(rows),
        "residual",
        "logit-difference",
        direction="denoising",
    )
    forwards = tk.Tracer(any_model, tk.PromptPairs.from_ids(rows), "residual", "logit-difference")
    last = [tk.Component("residual", tiny.N_LAYERS - 1)]
    assert tracer.evaluate(last) == pytest.approx(tracer.full_effect, abs=1e-5)
    assert tracer.full_effect == pytest.approx(forwards.full_effect, abs=1e-5)


def test_a_window_acts_in_all_of_its_layers(any_model):
    pairs = tk.PromptPairs.from_ids(rows_with_spans())
    wide = tk.Tracer(any_model, pairs, "mlp-blocks", layer_window=2)
    narrow = tk.Tracer(any_model, pairs, "mlp-blocks")
    assert len(wide.registry) == len(narrow.registry) == 3
    assert "in windows of 2 layers" in wide.registry.describe()
    for layer, members in ((0, [0]), (1, [0, 1]), (2, [1, 2])):
        same = [tk.Component("mlp-blocks", each) for each in members]
        alone = wide.evaluate([tk.Component("mlp-blocks", layer)])
        assert alone == pytest.approx(narrow.evaluate(same), abs=1e-6)


METHODS = ("pgb-ct", "top-k", "greedy", "local-search", "random", "mask-ig", "dcm")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "windows"),
    [
        ("span", 2),
        pytest.param("span", 1, marks=pytest.mark.slow),
        pytest.param(None, 2, marks=pytest.mark.slow),
    ],
)
def test_every_search_runs_and_is_read_back(model, tmp_path, by, windows):
    pairs = tk.PromptPairs.from_ids(rows_with_spans())
    tracer = tk.Tracer(model, pairs, "residual+values", split_by=by, layer_window=windows)
    for method in METHODS:
        options = {"epochs": 2} if method in ("pgb-ct", "dcm") else {}
        options |= {"trials": 2} if method == "pgb-ct" else {}
        result = tracer.run(method, budget=3, **options)
        assert result.effect == pytest.approx(tracer.evaluate(result), abs=1e-5)
        loaded = tk.TraceResult.load(result.save(tmp_path / method))
        assert loaded.components == result.components
        assert loaded.registry == tracer.registry
    front = tracer.pareto(max_budget=3, max_passes=60, checkpoint=tmp_path / "search.ckpt")
    # Halves may choose a set that does less on the examples at hand; the joint search has the most.
    assert front.at(3).effect == pytest.approx(tracer.evaluate(front.at(3)), abs=1e-5)
    largest = tracer.pareto(max_budget=3, max_passes=60, objective="mean", statistics=False)
    assert largest.at(3).effect >= tracer.results[1].effect - 1e-6
    assert front.statistics
    grid = tracer.interactions([tracer.registry[0], tracer.registry[-1]])
    assert torch.isfinite(grid.pairs).all()
    for figure in (front.heatmap(), front.curve(), tracer.heatmap(), grid.heatmap()):
        assert figure.data


@pytest.mark.slow
def test_heatmaps_have_spans_on_the_axis(model):
    pairs = tk.PromptPairs.from_ids(rows_with_spans())
    tracer = tk.Tracer(model, pairs, "residual", split_by="span")
    result = tracer.run("top-k", budget=3)
    figure = result.heatmap(color="selected")
    assert list(figure.layout.xaxis.ticktext) == ["first", "second", "rest", "last"]
    (cells,) = (
        trace for trace in figure.data if trace.type == "heatmap" and trace.text is not None
    )
    expected = result.binary_mask.reshape(tracer.registry.grid_shape).tolist()
    assert [list(row) for row in cells.z] == expected
    assert cells.text[1][2].startswith("R1@rest: ")
    tracer = tk.Tracer(model, pairs, "head-outputs", split_by="span")
    result = tracer.run("top-k", budget=3)
    figure = result.heatmap(color="score")
    titles = [text.text for text in figure.layout.annotations]
    assert {"first", "second", "rest", "last"} <= set(titles)
    by_span = result.component_scores.reshape(tiny.N_LAYERS, tiny.N_HEADS, 4)
    drawn = [trace for trace in figure.data if trace.type == "heatmap" and trace.text is not None]
    for number, trace in enumerate(drawn):
        assert torch.allclose(torch.tensor(trace.z), by_span[:, :, number])


# ---- kinds of one's own ----------------------------------------------------------------------

COORDINATES = {
    "name": "residual-coordinates",
    "hook": "hook_resid_post",
    "axes": ("batch", "pos", "component"),
    "width": "d_model",
    "label": "L{layer}R{index}",
}


def test_a_kind_of_ones_own(any_model, tmp_path):
    kind = tk.Kind(**COORDINATES)
    tracer = tk.Tracer(any_model, tiny.pairs(), kind, layers=[1])
    everything = tracer.evaluate(torch.ones(tiny.D_MODEL))
    whole = tk.Tracer(any_model, tiny.pairs(), "residual", layers=[1])
    assert everything == pytest.approx(whole.full_effect, abs=1e-5)
    result = tracer.run("top-k", budget=2)
    loaded = tk.TraceResult.load(result.save(tmp_path / "run"))
    assert loaded.components == result.components
    assert result.labels[0].startswith("L1R")
    assert tk.Tracer(any_model, tiny.pairs(), [kind, "mlp-blocks"]).registry.kinds == (
        "residual-coordinates",
        "mlp-blocks",
    )


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"width": 7}, "(2, 6, 7)"),
        ({"axes": ("batch", "pos", "component", "d_head")}, "(2, 6, 24, any)"),
    ],
)
def test_a_kind_under_the_name_of_one_that_was_proven_is_proven_too(model, changes, shape):
    tk.Tracer(model, tiny.pairs(), tk.Kind(**COORDINATES))
    with pytest.raises(HookPointError, match=re.escape(f"instead of {shape}")):
        tk.Tracer(model, tiny.pairs(), tk.Kind(**{**COORDINATES, **changes}))


def test_a_saved_kind_is_known_again(model, tmp_path, monkeypatch):
    kind = tk.Kind(**{**COORDINATES, "name": "once"})
    result = tk.Tracer(model, tiny.pairs(), kind).run("random", budget=2, draws=3)
    folder = result.save(tmp_path / "run")
    monkeypatch.setattr(tk.components.kinds, "_USER_KINDS", {})
    with pytest.raises(UnknownNameError):
        tk.Tracer(model, tiny.pairs(), "once")
    assert tk.TraceResult.load(folder).labels == result.labels
    assert tk.Tracer(model, tiny.pairs(), "once").registry.kinds == ("once",)


# ---- spans in text, and what is refused ------------------------------------------------------


def test_spans_from_text(demo_model):
    row = {
        "prompt": "the mechanic waited for the maid while",
        "counterfactual": "the mechanic waited for the guard while",
        "x": " she",
        "y": " he",
        "spans": {"who": "mechanic", "whom": "the maid"},
    }
    with pytest.raises(PairsError, match="'the', occurs 2 times"):
        tk.PromptPairs.from_text([{**row, "spans": {"who": "the"}}], demo_model)
    pairs = tk.PromptPairs.from_text([row], demo_model)
    tokenizer = demo_model.tokenizer
    spans = pairs[0].spans

    def text(name):
        return tokenizer.decode([pairs[0].prompt_ids[i] for i in spans[name]]).strip()

    assert {name: text(name) for name in spans} == row["spans"]
    whole = pairs.by_span()[0].spans
    assert sorted(itertools.chain(*whole.values())) == list(range(len(pairs[0].prompt_ids)))
    assert pairs.by_span().span_names == ("who", "whom", "rest", "last")


def test_spans_from_text_of_gpt2(gpt2_tokenizer):
    row = {
        "prompt": "The Space Needle is in downtown",
        "counterfactual": "Well, the Colosseum is in downtown",
        "x": " Seattle",
        "spans": {"subject": "Space Needle"},
    }
    pairs = tk.PromptPairs.from_text([{**row, "counterfactual": None}], gpt2_tokenizer)
    texts = [gpt2_tokenizer.decode([pairs[0].prompt_ids[i]]) for i in pairs[0].spans["subject"]]
    assert "".join(texts) == " Space Needle"
    # No space before it: the token that ends where the text begins is none of its own.
    quoted = {**row, "prompt": 'The "Needle" is in downtown', "counterfactual": None}
    quoted["spans"] = {"subject": "Needle"}
    (pair,) = tk.PromptPairs.from_text([quoted], gpt2_tokenizer)
    assert gpt2_tokenizer.decode([pair.prompt_ids[i] for i in pair.spans["subject"]]) == "Needle"
    with pytest.raises(tk.errors.TracekitError, match="give both spans"):
        tk.PromptPairs.from_text([{k: v for k, v in row.items() if k != "spans"}], gpt2_tokenizer)
    with pytest.raises(PairsError, match="have {'subject': 3} tokens, and {'subject': 4} in the c"):
        tk.PromptPairs.from_text(
            [{**row, "counterfactual_spans": {"subject": " Colosseum"}}], gpt2_tokenizer
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spans": {"a": [0, 99]}}, r"The span 'a' of example 1 is \[0, 99\]. Give a range"),
        ({"spans": {"a": [1, 1]}}, "Give a range of tokens"),
        ({"spans": {"a": [0, 2], "b": [1, 3]}}, "'a' and 'b' of example 1 share token 1"),
        ({"spans": {"last": [0, 1]}}, "is called 'last'"),
        ({"spans": {"a@b": [0, 1]}}, "is called 'a@b'"),
        ({"spans": [0, 1]}, "Give a mapping from name"),
        ({"spans": {"third": [0, 1]}}, "Example 1 .* spans third.*example 0 has first"),
        ({"spans": None}, "Example 1 .* has no spans"),
    ],
)
def test_spans_that_are_none(model, change, message):
    rows = rows_with_spans(3)
    rows[1] |= change
    with pytest.raises(PairsError, match=message):
        tk.Tracer(model, tk.PromptPairs.from_ids(rows), "residual", split_by="span")


@pytest.mark.parametrize("other_length", [False, True])
@pytest.mark.parametrize(("name", "part"), [("second:last", 1), ("second:first", 0), ("first", 0)])
def test_one_span_or_an_end_of_one(model, name, part, other_length):
    """The same as a span that holds these tokens alone."""
    rows = rows_with_spans(other_length=other_length)
    by_hand = rows_with_spans(other_length=other_length)
    for row in by_hand:
        for key in {"spans", "counterfactual_spans"} & set(row):
            first, _ = row[key][name.partition(":")[0]]
            row[key] = {"token": [first + part, first + part + 1]}
    of_one, of_hand = (
        tk.Tracer(model, tk.PromptPairs.from_ids(given), "residual", split_by=split)
        for given, split in ((rows, name), (by_hand, "token"))
    )
    assert str(of_one.registry[0]) == f"R0@{name}"
    effects = [tracer.single_effects().effects for tracer in (of_one, of_hand)]
    assert effects[0].abs().max() > 1e-3
    torch.testing.assert_close(*effects)


@pytest.mark.parametrize("source", [tk.Noise(spans=("second",)), "noise:spans=second"])
def test_noise_is_on_the_whole_span_where_components_act_on_its_end(model, source):
    pairs = tk.PromptPairs.from_ids(rows_with_spans())
    of_end, of_all = (
        tk.Tracer(model, pairs, "residual", split_by=split, source=source)
        for split in ("second:last", "span")
    )
    noises = [
        [pair.counterfactual.noise for pair in tracer.engine.pairs] for tracer in (of_end, of_all)
    ]
    for one, other in zip(*noises, strict=True):
        assert (one.abs().sum(1) > 0).sum() == 2
        torch.testing.assert_close(one, other)


LAST, PATTERNS = {"positions": "last"}, {"components": "attention-patterns"}
SPANS = tk.PromptPairs.from_ids(rows_with_spans())
UNEQUAL = tk.PromptPairs.from_ids(rows_with_spans(other_length=True))
NAMED = "first, second, last, rest. Name one of these, or an end .* or use split_by='span'"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("pairs", "options", "error", "text"),
    [
        (SPANS, {"split_by": "position"}, PairsError, "5 tokens, .* 7 .* Give prompts of one"),
        (UNEQUAL, {}, PairsError, "8 tokens, its prompt 7. .* use split_by='span'"),
        (UNEQUAL, {"split_by": "span", **PATTERNS}, PairsError, "patterns .* Use head-outputs"),
        (SPANS, {"split_by": "spans"}, PairsError, f"'spans', .* {NAMED}"),
        (SPANS, {"split_by": "object:middle"}, PairsError, f"'object:middle', .* {NAMED}"),
        (SPANS, {"split_by": "verb:last"}, PairsError, f"'verb:last', .* {NAMED}"),
        (SPANS, {"split_by": "span", **LAST}, ConfigError, "positions='last' .* Leave one out"),
        (SPANS, {"layer_window": 0}, ConfigError, "layer_window is 0. .* greater than 0"),
        (SPANS, {"layer_window": 1.5}, ConfigError, "layer_window is 1.5. .* valid integer"),
        (SPANS, {"layer_window": 4}, ComponentError, "layer_window is 4. .* 1 to 3"),
    ],
)
def test_combinations_that_are_refused(model, pairs, options, error, text):
    with pytest.raises(error, match=text):
        tk.Tracer(model, pairs, **{"components": "residual", **options})


def test_registries_and_pairs_that_do_not_go_together(model):
    registry = tk.Tracer(model, SPANS, "residual", split_by="span").registry
    with pytest.raises(PairsError, match="Example 0 .* has no spans. Give every example spans"):
        tk.Tracer(model, tiny.pairs(), registry, split_by="span")
    with pytest.raises(PairsError, match="the pairs do not. Say split_by='span' or .*'position'"):
        tk.Tracer(model, SPANS, registry)
    without = tk.Tracer(model, SPANS, "residual").registry
    with pytest.raises(ComponentError, match="split_by='span' .* without spans. Leave it out"):
        tk.Tracer(model, SPANS, without, split_by="span")


# ---- features of an autoencoder --------------------------------------------------------------


class Autoencoder(torch.nn.Module):
    """A tiny sparse autoencoder, which reconstructs badly."""

    def __init__(self, n_features=10, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.into = torch.nn.Parameter(torch.randn(tiny.D_MODEL, n_features, generator=generator))
        self.out = torch.nn.Parameter(torch.randn(n_features, tiny.D_MODEL, generator=generator))
        self.bias = torch.nn.Parameter(torch.randn(tiny.D_MODEL, generator=generator))

    def encode(self, activation):
        return ((activation - self.bias) @ self.into / 5).relu()

    def decode(self, features):
        return features @ self.out / 5 + self.bias


def feature_kind(name="features", layers=(0, 2)):
    return tk.Kind(
        name=name,
        hook="hook_resid_post",
        axes=("batch", "pos", "component"),
        width=10,
        label="L{layer}F{index}",
        features={layer: Autoencoder(seed=layer) for layer in layers},
    )


AXES = "Give a tuple of .*: 'batch' first, and 'pos', or 'query' and 'key', which is last"
WIDTH = {"width": 10}
MAPPING = "Give a mapping from layer to autoencoder"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"axes": ("batch", "place")}, rf"\('batch', 'place'\). {AXES}"),
        ({"axes": ("pos", "batch")}, rf"\('pos', 'batch'\). {AXES}"),
        ({"axes": ("batch", "component")}, rf"\('batch', 'component'\). {AXES}"),
        ({"axes": ("batch", "key", "query")}, rf"\('batch', 'key', 'query'\). {AXES}"),
        ({"width": None}, "width None. A width goes with an axis 'component'"),
        ({"width": 0}, "a width of 0. Give a whole number, at least 1"),
        ({"name": "a+b"}, r"'a\+b' has a name that .* holds one of \+ @ ,. Give it another"),
        ({"hook": "blocks.0.hook_resid_post"}, "'blocks.0.hook_.*'. Name it within a block"),
        ({"label": "L{place}"}, r"'L{place}'. Use \{layer\} and \{index\} only"),
        ({"features": {0: Autoencoder()}}, "the width 'd_model'.* give their number as the width"),
        ({**WIDTH, "features": {}}, f"{{}}. {MAPPING}"),
        ({**WIDTH, "features": {"0": Autoencoder()}}, f"'0': Autoencoder.*. {MAPPING}"),
        ({**WIDTH, "features": [Autoencoder()]}, rf"\[Autoencoder.*. {MAPPING}"),
        ({**WIDTH, "features": {0: torch.nn.Identity()}}, "Identity.* methods encode and decode"),
    ],
)
def test_kinds_that_are_none(change, text):
    with pytest.raises(ComponentError, match=text):
        tk.Kind(**{**COORDINATES, **change})


DEEP = (*COORDINATES["axes"], "d_head")


# A kind is checked once for a model, by its name.
@pytest.mark.parametrize(
    ("name", "change", "error", "text"),
    [
        ("narrow", {"width": 7}, HookPointError, r"\(2, 6, 24\) instead of \(2, 6, 7\).* Use"),
        ("deep", {"axes": DEEP}, HookPointError, r"24\) instead of \(2, 6, 24, any\).* Use"),
        ("no hook", {"hook": "hook_nowhere"}, HookPointError, "hook_nowhere does not exist. Use"),
        ("wings", {"width": "n_wings"}, ComponentError, "'n_wings'.* Give the width as a number"),
        ("residual", {}, ComponentError, "'residual' belongs to another kind"),
    ],
)
def test_kinds_that_do_not_fit_the_model(model, name, change, error, text):
    with pytest.raises(error, match=text):
        tk.Tracer(model, tiny.pairs(), tk.Kind(**{**COORDINATES, "name": name, **change}))


RUN = "Use source='counterfactual', 'noise' or 'resample'"


@pytest.mark.parametrize(
    ("layers", "options", "error", "text"),
    [
        ((0, 2), {"layers": [0, 1]}, ComponentError, "in layers 1. It has features of .*: 0, 2"),
        ((0, 2), {"layer_window": 2}, ComponentError, "in layers 1. It has features of .*: 0, 2"),
        ((0, 9), {}, ComponentError, "layer 9, but the model has layers 0 to 2"),
        ((0, -1), {}, ComponentError, "layer -1, but the model has layers 0 to 2"),
        ((0, 2), {"source": "zero"}, SourceError, RUN),
        ((0, 2), {"source": "mean"}, SourceError, RUN),
    ],
)
def test_features_that_do_not_fit_the_model(model, layers, options, error, text):
    with pytest.raises(error, match=text):
        tk.Tracer(model, tiny.pairs(), feature_kind(layers=layers), **options)


def test_features_are_tried_on_the_activation(model):
    def kind(name, features, width=10):
        return tk.Kind(**{**vars(feature_kind(name)), "features": {0: features}, "width": width})

    with pytest.raises(HookPointError, match=r"returns the shape \(2, 6, 10\) .* of 9. Give"):
        tk.Tracer(model, tiny.pairs(), kind("narrow", Autoencoder(), width=9))
    with pytest.raises(HookPointError, match=r"and torch.float32 they fail with: .*float32 on"):
        tk.Tracer(model, tiny.pairs(), kind("half", Autoencoder().to(torch.bfloat16)))
    wrong = Autoencoder()
    wrong.out = torch.nn.Parameter(torch.ones(10, 3))
    wrong.bias = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(HookPointError, match="decode returns the shape .* Give an autoencoder of"):
        tk.Tracer(model, tiny.pairs(), kind("short", wrong))


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("soft", [False, True])
def test_features_are_mixed_and_the_error_is_kept(architecture, soft):
    plain, rows, kind = Plain(architecture, "residual"), tiny.rows(5), feature_kind()
    pairs = tk.PromptPairs.from_ids(rows)
    model = tiny.shared_model(architecture)
    tracer = tk.Tracer(model, pairs, kind, "logit-difference")
    assert len(tracer.registry) == 20
    assert tracer.registry.layers == (0, 2)
    assert str(tracer.registry[13]) == "L2F3"
    mask = torch.rand(2, 10, generator=torch.Generator().manual_seed(1))
    mask = mask if soft else (mask > 0.5).float()
    found = tracer.evaluate(mask.flatten(), per_example=True)
    by_layer = dict(zip((0, 2), mask, strict=True))
    for effect, row in zip(found, rows, strict=True):
        prompt = row["prompt_ids"]
        source, n_tokens = plain.activations(row["counterfactual_ids"]), len(prompt)

        def change(layer, value, source=source, length=n_tokens):
            if layer not in by_layer:
                return None
            sae, value = kind.features[layer], value.clone()
            clean = value[0, :length]
            own = sae.encode(clean)
            mixed = torch.lerp(own, sae.encode(source[layer]), by_layer[layer])
            value[0, :length] = sae.decode(mixed) + (clean - sae.decode(own))
            return value

        odds = [
            plain.score(prompt, row["y_ids"], act) - plain.score(prompt, row["x_ids"], act)
            for act in (change, lambda layer, value: None)
        ]
        assert effect.item() == pytest.approx((odds[0] - odds[1]).item(), abs=1e-3)
    none = tracer.evaluate(torch.zeros(20))
    assert none == 0


def test_features_of_a_model_in_bfloat16():
    tracers = [
        tk.Tracer(
            tk.load_model(tiny.hf_model("gpt2").to(dtype)),
            tiny.pairs(6),
            feature_kind(f"of {dtype}"),
            "logit-difference",
        )
        for dtype in (torch.float32, torch.bfloat16)
    ]
    exact, rough = (tracer.evaluate(torch.ones(20), per_example=True) for tracer in tracers)
    assert exact.abs().max() > 0.5
    torch.testing.assert_close(rough, exact, atol=0.1, rtol=0.1)


@pytest.mark.slow
def test_features_are_searched_and_saved_without_the_autoencoder(model, tmp_path, monkeypatch):
    kind = feature_kind("searched")
    pairs = tk.PromptPairs.from_ids(rows_with_spans())
    tracer = tk.Tracer(model, pairs, [kind, "mlp-blocks"], split_by="span")
    for method, options in (("top-k", {}), ("pgb-ct", {"trials": 2, "epochs": 2}), ("mask-ig", {})):
        result = tracer.run(method, budget=3, **options)
        assert result.effect == pytest.approx(tracer.evaluate(result), abs=1e-5)
    folder = result.save(tmp_path / "run")
    monkeypatch.setattr(tk.components.kinds, "_USER_KINDS", {})
    loaded = tk.TraceResult.load(folder)
    assert loaded.components == result.components
    assert loaded.heatmap().data
    with pytest.raises(ComponentError, match="is of features, which are not saved with results"):
        tk.Tracer(model, pairs, loaded.registry, split_by="span")
    again = tk.Tracer(model, pairs, [kind, "mlp-blocks"], split_by="span")
    assert again.evaluate(loaded) == pytest.approx(result.effect, abs=1e-5)


@pytest.mark.slow
def test_features_are_told_apart_by_their_weights(model, tmp_path):
    pairs = tiny.pairs()
    result = tk.Tracer(model, pairs, feature_kind("same")).run("top-k", budget=2)
    folder = result.save(tmp_path / "run")
    again = tk.Tracer(model, pairs, feature_kind("same"))
    assert again.evaluate(tk.TraceResult.load(folder)) == pytest.approx(result.effect, abs=1e-6)
    other = feature_kind("same")
    with torch.no_grad():
        other.features[2].bias[0] += 1
    other = tk.Kind(**vars(feature_kind("same")) | {"features": other.features})
    with pytest.raises(ComponentError, match="its features have other weights. Trace with the"):
        tk.Tracer(model, pairs, other).evaluate(tk.TraceResult.load(folder))
    renamed = tk.Kind(**vars(feature_kind("same")) | {"hook": "hook_resid_pre"})
    with pytest.raises(ComponentError, match="its hook is 'hook_resid_post' there and 'hook"):
        tk.Tracer(model, pairs, renamed).evaluate(tk.TraceResult.load(folder))


def test_unpickled_results_bring_their_kinds(model, monkeypatch):
    result = tk.Tracer(model, tiny.pairs(), tk.Kind(**COORDINATES)).run("top-k", budget=2)
    stored = pickle.dumps(result.registry)
    printed = list(map(str, result.components))
    monkeypatch.setattr(tk.components.kinds, "_USER_KINDS", {})
    registry = pickle.loads(stored)
    assert [str(registry[i]) for i in map(result.registry.index, result.components)] == printed


def test_axes_may_be_a_list(unchecked):
    assert tk.Kind(**{**COORDINATES, "axes": list(COORDINATES["axes"])}) == tk.Kind(**COORDINATES)


# ---- what a registry, a result or other pairs bring along ------------------------------------


@pytest.mark.parametrize("by", ["span", "position"])
def test_a_registry_of_spans_asks_the_same(model, by):
    rows = rows_with_spans(40)
    rows = [row for row in rows if len(row["prompt_ids"]) == 7][:5] if by == "position" else rows
    pairs = tk.PromptPairs.from_ids(rows)
    tracer = tk.Tracer(model, pairs, "residual", split_by=by)
    again = tk.Tracer(model, pairs, tracer.registry, split_by=by)
    mask = torch.rand(len(tracer.registry), generator=torch.Generator().manual_seed(0))
    assert again.evaluate(mask) == pytest.approx(tracer.evaluate(mask), abs=1e-6)
    assert again.full_effect == pytest.approx(tracer.full_effect, abs=1e-6)
    with pytest.raises(ConfigError, match="say where to intervene. Leave one out"):
        tk.Tracer(model, pairs, tracer.registry, split_by=by, positions="last")
    with pytest.raises(PairsError, match="the components are of"):
        tiny.engine(model, pairs, "residual", spans=tracer.registry.spans)


def test_windows_are_not_taken_for_single_layers(model):
    wide = tk.Tracer(model, tiny.pairs(), "mlp-blocks", layer_window=3)
    narrow = tk.Tracer(model, tiny.pairs(), "mlp-blocks")
    result = wide.run("top-k", budget=1)
    with pytest.raises(ComponentError, match="acts in layers .* that it is from, and in layers"):
        narrow.evaluate(result)
    with pytest.raises(ComponentError, match="Give both the same layer_window"):
        narrow.faithfulness(result, ranking="signed")


def test_counterfactual_spans_need_spans_and_a_prompt():
    row = {"prompt_ids": [1, 2, 3], "x_ids": [4], "counterfactual_spans": {"a": [0, 1]}}
    with pytest.raises(PairsError, match="has counterfactual_spans, and no spans"):
        tk.PromptPairs.from_ids([{**row, "counterfactual_ids": [1, 2, 4]}])
    noise = torch.zeros(2, tiny.D_MODEL)
    with pytest.raises(PairsError, match="no counterfactual prompt"):
        tk.PromptPairs.from_ids([{**row, "spans": {"a": [0, 1]}, "noise": noise}])


def test_a_long_counterfactual_is_refused(model):
    row = rows_with_spans(1, other_length=True)[0]
    row["counterfactual_ids"] = row["counterfactual_ids"] + [1] * 80
    with pytest.raises(PairsError, match="needs .* positions. The model has 64"):
        tk.Tracer(model, tk.PromptPairs.from_ids([row]), "residual", split_by="span")


def test_means_at_each_position_are_of_one_length(model):
    rows = tiny.rows(40)
    traced, other = (
        tk.PromptPairs.from_ids([row for row in rows if len(row["prompt_ids"]) == n][:3])
        for n in (5, 4)
    )
    with pytest.raises(SourceError, match="the means at each position are of prompts"):
        tk.Tracer(model, traced, "head-outputs", source="mean-positional", held_out=other)


def test_masks_of_spans_are_not_rounded(model):
    pairs = tk.PromptPairs.from_ids(rows_with_spans(3))
    tracer = tk.Tracer(model, pairs, "residual", split_by="span")
    engine = tracer.engine
    batch = engine.batches[0]
    mask = torch.full((len(tracer.registry),), 0.7513)
    known = engine.counterfactual_cache.activations_for(batch)
    source = {name: torch.ones_like(values) for name, values in known.items()}
    name, hook = engine.hooks(batch, source, mask[None])[0]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = hook(torch.zeros_like(source[name]))
    inside = batch.positions[:, : mixed.shape[1]]
    assert mixed[inside].unique().tolist() == pytest.approx([0.7513], abs=1e-6)
