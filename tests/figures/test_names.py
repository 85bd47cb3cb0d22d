"""Names of every sort, in every figure, are shown letter by letter: no HTML, no formula of TeX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import unescape
from typing import Any, ClassVar

import pytest

import tracekit as tk
from tests.files import renamed
from tracekit.metrics import METRICS
from tracekit.results import TraceCurve
from tracekit.results.curve import effect_curve
from tracekit.search import TopK

ODD = "$a$ <b>b</b>"
OURS = re.compile(r"</?(br|extra|sup|sub|b|i)/?>")
"""Tags that figures write themselves."""


@dataclass(frozen=True)
class OddSearch(TopK):
    name: ClassVar[str] = f"method {ODD}"


def texts_of(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """All texts of a figure but its template, with where they stand."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key != "template":
                yield from texts_of(each, f"{path}.{key}")
    elif isinstance(value, str):
        yield path, value
    elif hasattr(value, "tolist"):
        yield from texts_of(value.tolist(), path)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from texts_of(each, path)


@pytest.fixture(scope="module")
def figures(demo_model):
    """Every figure, of a tracer in which all that has a name has an odd one."""
    rows = [
        {
            "prompt": f"the {a} said that",
            "counterfactual": f"the {b} said that",
            "x": x,
            "y": y,
            "spans": {f"span {ODD}": a},
            "counterfactual_spans": {f"span {ODD}": b},
        }
        for a, b, x, y in [("pilot", "cook", "he", "she"), ("cook", "pilot", "she", "he")] * 2
    ]
    pairs = tk.PromptPairs.from_text(rows, demo_model, name=f"data {ODD}")
    kind = tk.Kind(
        name=f"kind {ODD}",
        hook="attn.hook_z",
        axes=("batch", "pos", "component", "d_head"),
        width="n_heads",
        label="$L{layer}$<i>H{index}",
        noun=f"noun {ODD}",
    )
    base = METRICS["logit-difference"]
    metric = replace(base, name=f"metric {ODD}", axis_label=f"effect ({ODD})")
    spans = tk.Tracer(demo_model, pairs, kind, metric, layers=[0, 1], split_by="span")
    plain = tk.Tracer(demo_model, pairs, kind, metric, layers=[0, 1])
    heads = tk.Tracer(demo_model, pairs, "head-outputs", metric, layers=[0, 1])
    title = {"dataset": f"data {ODD}", "model": f"model {ODD}", "title": f"title {ODD}"}
    results = [renamed(plain.run(OddSearch(), budget=n), **title) for n in (1, 3)]
    found = plain.run("top-k", budget=3)
    front = plain.pareto(max_budget=3)
    why = plain.explain(found)
    side = plain.side_effects(found, {f"other {ODD}": (pairs, metric)}, draws=3)
    paths = heads.paths(["L0H1", "L1H4"])
    attention = heads.attention(["L0H1", "L1H4"])
    compared = tk.compare([*results, renamed(found, **{**title, "title": "another"})])
    return {
        "heatmap": results[1].heatmap(),
        "heatmap by score": results[1].heatmap(color="score"),
        "by span": renamed(spans.run("top-k", budget=3), **title).heatmap(),
        "curve": effect_curve(results),
        "curve of a run": TraceCurve(tuple(results)).curve(),
        "tracer": plain.curve(),
        "compared": compared.heatmap(),
        "compared curve": compared.curve(),
        "similarities": compared.similarities(),
        "front": front.curve(),
        "front map": front.heatmap(),
        "faithfulness": plain.faithfulness(found).curve(),
        "interactions": replace(plain.interactions(layers=[0]), title=f"title {ODD}").heatmap(),
        "strongest pairs": plain.interactions(found).heatmap(),
        "waterfall": why.waterfall(),
        "members": why.heatmap(),
        "network": why.network(),
        "paths": paths.network(),
        "attention": attention.figure(),
        "side effects": side.figure(),
        "explorer": plain.explore(found).figure(),
    }


@pytest.mark.slow
def test_names_are_texts_in_every_figure(figures):
    shown = 0
    for name, figure in figures.items():
        for path, text in texts_of(figure.to_plotly_json()):
            assert "$" not in text, (name, path, text)
            assert "<" not in OURS.sub("", text) or "%{" in text, (name, path, text)
            assert "<b>b" not in text, (name, path, text)
            assert "<i>H" not in text, (name, path, text)
            shown += ODD in unescape(text)
    assert shown > 40
