"""What a message advises works in the state in which the message appears."""

from __future__ import annotations

import re

import pytest

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
