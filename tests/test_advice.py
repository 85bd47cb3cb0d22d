"""What a message advises works in the state in which the message appears."""

from __future__ import annotations

import re
from copy import deepcopy

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import TracekitError, UnreliableResultWarning
from tracekit.tracer import diagnostics

ROWS = tiny.rows(8)
WITHOUT_Y = tk.PromptPairs.from_ids([{k: v for k, v in r.items() if k != "y_ids"} for r in ROWS])
SEARCHES = re.compile(r"[Ss]earch with (?:a budget and )?objective=((?:'[\w-]+'(?: or )?)+)")


def traced(model, metric="logit-difference", pairs=None, kinds="head-outputs", **options):
    return tk.Tracer(model, tiny.pairs(8) if pairs is None else pairs, kinds, metric, **options)


def advised_objectives(caught) -> list[str]:
    found = [SEARCHES.search(str(each.message)) for each in caught]
    return [name for each in found if each for name in re.findall(r"'([\w-]+)'", each[1])]


@pytest.mark.slow
@pytest.mark.parametrize("goal", [{"budget": 2}, {"target_effect": 0.001}])
@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("metric", ["kl", "odds-ratio", "logit-difference", "probability-drop"])
def test_objectives_that_depend_less_on_few_examples(model, monkeypatch, metric, is_bound, goal):
    """Also by a metric without log-odds, and within a constraint, which `auto` refuses."""
    monkeypatch.setattr(diagnostics, "TOO_LARGE_A_SHARE", 0.0)
    monkeypatch.setattr(diagnostics, "FEWEST_TO_SHARE", 1)
    tracer = traced(model, metric)
    bound = tk.Constraint(pairs=tiny.pairs(3), metric="kl", at_most=1e9) if is_bound else None
    with pytest.warns(UnreliableResultWarning, match="carries") as caught:
        tracer.run("greedy", **goal, constraint=bound)
    names = advised_objectives(caught)
    assert names
    for name in names:
        assert tracer.run("greedy", budget=2, objective=name, constraint=bound).n_selected


def test_auto_is_not_advised_of_examples_that_cannot_be_halved(model, monkeypatch):
    monkeypatch.setattr(diagnostics, "TOO_LARGE_A_SHARE", 0.0)
    monkeypatch.setattr(diagnostics, "FEWEST_TO_SHARE", 1)
    tracer = traced(model, pairs=tiny.pairs(3))
    with pytest.warns(UnreliableResultWarning, match="carries") as caught:
        tracer.run("greedy", budget=2)
    for name in advised_objectives(caught):
        tracer.run("greedy", budget=2, objective=name)


def test_faithful_is_advised_only_where_it_was_not_sought(model):
    tracer = traced(model)
    mean = tracer.run("top-k", budget=2)
    assert diagnostics._faithful_instead(mean) == " Search with objective='faithful' for that."
    if tracer.full_effect > 0:
        faithful = tracer.run("top-k", budget=2, objective="faithful")
        assert diagnostics._faithful_instead(faithful) == ""


CASES = {
    "no gradient": (
        lambda m: traced(m, "accuracy").run("attribution", budget=2),
        "Search with logit-difference and evaluate",
        lambda m: traced(m).run("attribution", budget=2),
    ),
    "no gradient, without y": (
        lambda m: traced(m, "rank-change", WITHOUT_Y).run("attribution", budget=2),
        "Search with probability-drop and evaluate",
        lambda m: traced(m, "probability-drop", WITHOUT_Y).run("attribution", budget=2),
    ),
    "a method without gradients": (
        lambda m: traced(m, "accuracy").run("pgb-ct", budget=2),
        "a method without gradients, e.g. top-k",
        lambda m: traced(m, "accuracy").run("top-k", budget=2),
    ),
    "log-odds": (
        lambda m: traced(m).run("top-k", budget=2, objective="log-odds"),
        "Search by them with odds-ratio",
        lambda m: traced(m, "odds-ratio").run("top-k", budget=2, objective="log-odds"),
    ),
    "log-odds, without y": (
        lambda m: traced(m, "kl", WITHOUT_Y).run("top-k", budget=2, objective="log-odds"),
        "with probability-drop, or use another objective, e.g. 'median'",
        lambda m: (
            traced(m, "probability-drop", WITHOUT_Y).run("top-k", budget=2, objective="log-odds"),
            traced(m, "kl", WITHOUT_Y).run("top-k", budget=2, objective="median"),
        ),
    ),
    "a gradient that vanishes": (
        lambda m: traced(m, "kl").run("attribution", budget=2),
        "Use mask-ig",
        lambda m: traced(m, "kl").run("mask-ig", budget=2),
    ),
    "halves of few": (
        lambda m: traced(m, pairs=tiny.pairs(3)).run("greedy", budget=2, objective="auto"),
        "or use 'mean'",
        lambda m: traced(m, pairs=tiny.pairs(3)).run("greedy", budget=2, objective="mean"),
    ),
    "auto without a budget": (
        lambda m: traced(m).run("greedy", target_effect=0.001, objective="auto"),
        "",
        lambda m: traced(m).run("greedy", budget=2, objective="auto"),
    ),
    "areas of denoising": (
        lambda m: traced(m, direction="denoising").faithfulness("all").cpr,
        "Trace with direction='noising'",
        lambda m: (
            traced(m, direction="noising")
            .faithfulness(traced(m).run("top-k", budget=2), ranking="signed")
            .cpr
        ),
    ),
    "areas of a set": (
        lambda m: traced(m).faithfulness(["L0H0"]).cpr,
        "the ranking of a result of top-k, attribution or mask-ig",
        lambda m: [
            traced(m).faithfulness(traced(m).run(name, budget=2), ranking="signed").cpr
            for name in ("top-k", "attribution", "mask-ig")
        ],
    ),
    "a selection that ranks nothing": (
        lambda m: traced(m).run("greedy", budget=2).ranked_by,
        "Use a result of top-k, attribution, mask-ig or pgb-ct",
        lambda m: [
            traced(m).run(name, budget=2, **options).ranked_by
            for name, options in {"top-k": {}, "mask-ig": {}, "pgb-ct": {"epochs": 2}}.items()
        ],
    ),
    "colours of scores": (
        lambda m: traced(m).run("greedy", budget=2).heatmap(color="score"),
        "Use color='selected', or a result of top-k",
        lambda m: (
            traced(m).run("greedy", budget=2).heatmap(color="selected"),
            traced(m).run("top-k", budget=2).heatmap(color="score"),
        ),
    ),
    "held-out effects": (
        lambda m: traced(m).evaluate("all", held_out=True),
        "Tracer(..., held_out=pairs)",
        lambda m: traced(m, pairs=tiny.pairs(8)[:4], held_out=tiny.pairs(8)[4:]).evaluate(
            "all", held_out=True
        ),
    ),
    "differences": (
        lambda m: tk.compare([traced(m).run("top-k", budget=n) for n in (1, 2)]).differences(),
        "Tracer(..., held_out=...)",
        lambda m: tk.compare(
            [
                traced(m, pairs=tiny.pairs(8)[:4], held_out=tiny.pairs(8)[4:]).run(
                    "top-k", budget=n
                )
                for n in (1, 2)
            ]
        ).differences(),
    ),
    "two goals": (
        lambda m: traced(m).run("top-k", budget=2, budgets=[2]),
        "Use one of budget, budgets and target_effect",
        lambda m: traced(m).run("top-k", budgets=[2]),
    ),
    "no goal": (
        lambda m: traced(m).run("top-k"),
        "Give budget, budgets or target_effect",
        lambda m: traced(m).run("top-k", budget=2),
    ),
    "edges on other kinds": (
        lambda m: traced(m).run("eap-ig", budget=2),
        "Use mask-ig",
        lambda m: traced(m).run("mask-ig", budget=2),
    ),
    "a setup and its options": (
        lambda m: tk.Tracer(m, tiny.pairs(3), tk.Setup(components="head-outputs"), layers=[0]),
        "Leave them out",
        lambda m: tk.Tracer(m, tiny.pairs(3), tk.Setup(components="head-outputs", layers=[0])),
    ),
    "sets of exhaustive search": (
        lambda m: traced(m).run("exhaustive", budget=4, max_sets=20),
        "or raise max_sets",
        lambda m: traced(m).run("exhaustive", budget=2, max_sets=200),
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_advice_of_errors_works(model, name):
    refused, advice, advised = CASES[name]
    with pytest.raises(TracekitError) as caught:
        refused(model)
    assert advice in str(caught.value)
    advised(model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_advice_about_signs(model):
    """Of data whose effect is negative: a budget takes sign='full', a target another sign."""
    tracer = traced(model, direction="noising")
    if tracer.full_effect > 0:
        pairs = [{**r, "x_ids": r["y_ids"], "y_ids": r["x_ids"]} for r in ROWS if "y_ids" in r]
        tracer = traced(model, pairs=tk.PromptPairs.from_ids(pairs))
    assert tracer.full_effect < 0
    with pytest.warns(UnreliableResultWarning, match="Give sign='full' for sets that do what all"):
        tracer.run("greedy", budget=2)
    assert tracer.run("greedy", budget=2, sign="full").effect < 0
    target = 1e-4
    with pytest.warns(UnreliableResultWarning, match="Give a target_effect of the other sign"):
        tracer.run("greedy", target_effect=target)
    assert tracer.run("greedy", target_effect=-target).effect <= -target


def equal_lengths(n=6, length=5):
    """Pairs of prompts of one length, with x and y of one token."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(30, (2 * n, length), generator=generator).tolist()
    parts = enumerate(zip(ids[:n], ids[n:], strict=True))
    return tk.PromptPairs.from_ids(
        [
            {
                "prompt_ids": prompt,
                "counterfactual_ids": other,
                "x_ids": [30 + i],
                "y_ids": [40 + i],
            }
            for i, (prompt, other) in parts
        ]
    )


def with_spans(**spans):
    """These pairs with spans at the first and the second token, or others."""
    spans = spans or {"first": [0, 1], "second": [1, 2]}
    return tk.PromptPairs.from_ids([{**row, "spans": spans} for row in ROWS])


EQUAL = equal_lengths()
TENSORS = {f"blocks.{n}.attn.hook_z": torch.zeros(tiny.N_HEADS, 6) for n in range(tiny.N_LAYERS)}


def outputs(model, source="counterfactual", kinds="head-outputs", pairs=EQUAL, **options):
    return tk.Tracer(model, pairs, kinds, "logit-difference", source=source, **options)


def exported(folder, *options, **keywords):
    tracer = outputs(*options, **keywords)
    return tracer.export(tracer.registry[:2], folder / f"{len(list(folder.iterdir()))}")


def steered(*options, **keywords):
    tracer = outputs(*options, **keywords)
    with tracer.steer(tracer.registry[:2]) as model:
        return model(torch.tensor([[1, 2]]))


OF_SOURCES = {
    "noise on spans": (
        lambda m: outputs(m, tk.Noise(spans=("object",)), pairs=with_spans()),
        "has the spans first, second, last, rest. Name one of these",
        lambda m: [
            outputs(m, tk.Noise(spans=(name,)), pairs=with_spans())
            for name in ("first", "second", "last")
        ],
    ),
    "an option that a source lacks": (
        lambda m: outputs(m, "noise:std=3"),
        "It takes spans and factor",
        lambda m: outputs(m, "noise:spans=second,factor=5", pairs=with_spans()),
    ),
    "an unknown source": (
        lambda m: outputs(m, "nought"),
        "Use one of counterfactual, noise, zero, mean, mean-positional, resample",
        lambda m: [
            outputs(m, name)
            for name in ("counterfactual", "noise", "zero", "mean", "mean-positional", "resample")
        ],
    ),
    "resampling alone": (
        lambda m: outputs(m, "resample", pairs=EQUAL[:1]),
        "or use source='mean'",
        lambda m: outputs(m, "mean", pairs=EQUAL[:1]),
    ),
    "means at positions of ragged prompts": (
        lambda m: outputs(m, "mean-positional", pairs=tiny.pairs(8)),
        "Use source='mean'",
        lambda m: outputs(m, "mean", pairs=tiny.pairs(8)),
    ),
    "means at positions of patterns": (
        lambda m: outputs(m, "mean-positional", "attention-patterns"),
        "Use source='mean', or head-outputs",
        lambda m: (outputs(m, "mean", "attention-patterns"), outputs(m, "mean-positional")),
    ),
    "means at positions of everything": (
        lambda m: outputs(m, "mean-positional", positions="all"),
        "Use positions='prompt' or source='mean'",
        lambda m: (outputs(m, "mean-positional"), outputs(m, "mean", positions="all")),
    ),
    "tensors of patterns": (
        lambda m: (
            outputs(m, dict.fromkeys(TENSORS, torch.zeros(4, 8)), "attention-patterns")
            and outputs(
                m,
                {f"blocks.{n}.attn.hook_pattern": torch.zeros(4, 8) for n in range(tiny.N_LAYERS)},
                "attention-patterns",
            )
        ),
        "It needs one for each of blocks.0.attn.hook_pattern",
        lambda m: (
            [outputs(m, each, "attention-patterns") for each in ("zero", "mean", "resample")],
            outputs(m, TENSORS),
        ),
    ),
    "a setting of spans twice": (
        lambda m: outputs(m, pairs=with_spans(), split_by="span", positions="last"),
        "Leave one out",
        lambda m: (
            outputs(m, pairs=with_spans(), split_by="span"),
            outputs(m, pairs=with_spans(), positions="last"),
        ),
    ),
    "no spans to split by": (
        lambda m: outputs(m, split_by="span"),
        "Give every example spans, e.g. spans={'subject': 'Space Needle'}, or use split_by='pos",
        lambda m: (
            outputs(m, pairs=with_spans(), split_by="span"),
            outputs(m, split_by="position"),
        ),
    ),
    "positions of ragged prompts": (
        lambda m: outputs(m, pairs=with_spans(), split_by="position"),
        "Give prompts of one length, or name spans, and use split_by='span'",
        lambda m: outputs(m, pairs=with_spans(), split_by="span"),
    ),
    "a registry and layers": (
        lambda m: outputs(m, kinds=outputs(m).registry, layers=[0]),
        "Leave them out, or give kinds instead of a registry",
        lambda m: (outputs(m, kinds=outputs(m).registry), outputs(m, layers=[0])),
    ),
    "steering by counterfactuals": (
        lambda m: steered(m),
        "Use source='zero', 'mean' or tensors",
        lambda m: [steered(m, source) for source in ("zero", "mean", TENSORS)],
    ),
    "steering at spans": (
        lambda m: steered(m, "zero", pairs=with_spans(), split_by="span"),
        "Steer with a trace without split_by",
        lambda m: steered(m, "zero", pairs=with_spans()),
    ),
}
EXPORTED = {
    "the counterfactual": ({}, "Exact would be source='zero' or 'mean'", ("zero", "mean")),
    "positions": (
        {"source": "zero", "positions": "last"},
        "Exact would be positions='all', or 'prompt' with x and y of one token",
        ("zero", {"positions": "all"}, {"positions": "prompt"}),
    ),
    "spans": (
        {"source": "zero", "pairs": with_spans(), "split_by": "span", "positions": "prompt"},
        "Exact would be a trace without split_by",
        ("zero",),
    ),
    "patterns": (
        {"source": "zero", "kinds": "attention-patterns"},
        "Exact would be head-outputs, mlp-outputs, mlp-neurons, mlp-blocks or attention-blocks",
        [
            {"kinds": kinds}
            for kinds in (
                *("head-outputs", "mlp-outputs", "mlp-neurons", "mlp-blocks", "attention-blocks"),
            )
        ],
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", OF_SOURCES)
def test_advice_about_sources_and_spans_works(model, name):
    refused, advice, advised = OF_SOURCES[name]
    with pytest.raises(TracekitError) as caught:
        refused(model)
    assert advice in str(caught.value)
    advised(model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", EXPORTED)
def test_what_is_said_to_be_exact_is_exported(model, tmp_path, name):
    options, advice, advised = EXPORTED[name]
    with pytest.raises(TracekitError) as caught:
        exported(tmp_path, model, **options)
    assert advice in str(caught.value)
    for change in advised:
        change = {"source": change} if isinstance(change, str) else {"source": "zero", **change}
        assert exported(tmp_path, model, **change).largest_difference < 1e-3


CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if style %}{{ style }}{% endif %}<assistant>"
)


@pytest.mark.parametrize(
    ("template", "options", "advice", "change"),
    [
        (None, {}, "Leave chat out, or set tokenizer.chat_template", {"chat": False}),
        (None, {}, "or set tokenizer.chat_template", {"template": CHAT}),
        (CHAT, {"chat": "yes"}, "Give True, or a mapping of the arguments", {"chat": True}),
        (CHAT, {"chat": {"stile": "a"}}, "Did you mean 'style'?", {"chat": {"style": "a"}}),
        (CHAT, {"chat": {"style": {1}}}, "Give a text, a number", {"chat": {"style": 1}}),
        (CHAT, {"prompt": [{"role": "user"}]}, "give a text, or a list", {"prompt": "Hello"}),
        (
            CHAT.replace("m.content", "m.content | upper"),
            {"spans": {"who": "you"}},
            "Give ranges of tokens [first, one past the last] as spans, or leave them out",
            {"spans": {"who": [0, 1]}},
        ),
        (CHAT, {"spans": {"who": "me"}}, "Give a text that occurs once", {"spans": {"who": "you"}}),
    ],
)
def test_advice_about_chats_works(gpt2_tokenizer, template, options, advice, change):
    def load(*, template=template, chat=True, prompt="Who are you?", **spans):
        tokenizer = deepcopy(gpt2_tokenizer)
        tokenizer.chat_template = template
        row = {"prompt": prompt, "x": "I", "y": "You", **spans}
        return tk.PromptPairs.from_text([row], tokenizer, chat=chat)

    with pytest.raises(TracekitError) as caught:
        load(**options)
    assert advice in str(caught.value)
    assert len(load(**{**options, **change})) == 1
