"""A figure of each kind from plain arrays, for any depth, and its texts in a browser."""

from __future__ import annotations

import random
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import torch
from plotly.offline import get_plotlyjs

from tracekit import figures
from tracekit.components import ComponentRegistry
from tracekit.figures.cells import BLUES, RING
from tracekit.figures.charts import HeadRow, attention_map, scatter
from tracekit.figures.members import Arrow, path_network
from tracekit.figures.style import styles
from tracekit.results.panels import panels_of, scale_of

TITLE = "top-k: ioi-abc data, SmolLM2-135M-Instruct model"
SUBTITLE = "6 of 270 head-outputs selected, effect 5.29 (all: 6.45)"
TITLES = {"title": TITLE, "subtitle": SUBTITLE}
TOKENS = ("0 When", "1 A", "2 and", "3 B1", "4 went", "5 to", "6 the", "7 place", "8 ,", "9 B2")


def cells(
    n_layers: int, kinds: str, color: str, *, copies: int = 1, layers_on: Any = "y", **options: Any
) -> go.Figure:
    """A map of scores, or several side by side."""
    shape = SimpleNamespace(n_layers=n_layers, n_heads=9, d_model=576, d_mlp=1536)
    registry = ComponentRegistry.build(shape, kinds, **options)
    n = len(registry)
    drawn = random.Random(0)
    values = [drawn.uniform(-5, 5) for _ in range(n)]
    titles = ["empirical-bayes-top-k", "PGB-CT with local search", "a run of mine", "random"]
    return figures.draw_panels(
        [
            panel
            for title in (titles[:copies] if copies > 1 else [""])
            for panel in panels_of(
                registry, torch.tensor(values) > 4, values=values, texts=[""] * n, title=title
            )
        ],
        scale=figures.ColorScale(BLUES, 1, 9, "enters<br>at size", ticks=(1, 4, 6, 9))
        if color == "front"
        else scale_of(color, n, 5.0, "effect (logit difference, nats)"),
        width=figures.WIDTH if copies == 1 else 648,
        outlines=True,
        layers_on=layers_on,
        **TITLES,
    )


def members_of(n_layers: int) -> tuple[figures.Members, list[int]]:
    """Eight members of a set."""
    layers = [round(rank * (n_layers - 1) / 7) for rank in range(8)]
    values = [2.5, 1.25, -0.75, 0.5, 0.25, 1.75, -0.125, 0.375]
    low, high = [v - 0.3 for v in values], [v + 0.3 for v in values]
    names = [f"L{layer}H{rank}" for rank, layer in enumerate(layers)]
    return figures.Members(names=names, values=values, low=low, high=high, hover=[""] * 8), layers


def gallery(n_layers: int) -> dict[str, go.Figure]:
    """A figure of every kind, by its name."""
    members, layers = members_of(n_layers)
    names = list(members.names)
    edges = [
        figures.Edge(first=i, second=j, value=(-1) ** i * 0.4, hover="", is_sure=i != 0)
        for i, j in combinations(range(0, 8, 2), 2)
    ]
    n = 3 * n_layers
    drawn = random.Random(0)
    values = [[None if i == j else drawn.uniform(-1, 1) for j in range(n)] for i in range(n)]
    pairs = {"hover": [[""] * n for _ in range(n)], "bound": 0.8, "values": values}
    groups = [(f"layer {layer}", str(layer), 3) for layer in range(n_layers)]
    lines = [
        figures.Line(
            name=name, sizes=[1, 2, 4, 8], values=[1, 2, 3, 5.0], style=style, hover=[""] * 4
        )
        for name, style in styles(
            ["pgb-ct", "top-k", "empirical-bayes-top-k", "local-search"]
        ).items()
    ]
    rows = [
        HeadRow(head=name, run=run, values=[0.1] * 6, beside="-0.0021", hover=[""] * 6)
        for name in names[:4]
        for run in ("", "cf.")
    ]
    searches = [*names[:5], "PGB-CT with local search"]
    frame = pd.DataFrame(
        [(size, size / 9, name) for size in (1, 2, 4) for name in ("top-k", "greedy", "dcm")],
        columns=["size", "share", "method"],
    )
    chart = figures.Chart(
        frame=frame, x="size", y="share", series="method",
        axis_titles=("number of components", "share of the effect of all"), **TITLES,
    )  # fmt: skip
    arrows = [
        Arrow(start=i, end=i + 3, value=0.5, letter="v", hover="", is_sure=True) for i in range(5)
    ]
    effects = [
        figures.Strength(
            name=name,
            metric="logit-difference",
            n="16 (12 independent)",
            value=0.5,
            low=0.4,
            high=0.6,
            controls=[0.1, 0.2],
            hover="",
            beside="2.34<br>(1.11 to 3.21)",
        )
        for name in ("the task", "gendered pronouns", "capitals")
    ]
    x = [drawn.gauss(0, 1) ** 3 for _ in range(n)]
    scores = pd.DataFrame({"component": [f"L{i}H{i}>L{i + 1}Q{i}" for i in range(n)], "first": x})
    scores["second"] = [each / 2 + drawn.gauss(0, 0.2) for each in x]
    scores = scores.sort_values("second", key=lambda y: -(y - scores["first"] / 2).abs())
    spans = {"spans": ("IO", "S1", "S2", "subject last", "rest")}
    return {
        "heatmap": cells(n_layers, "head-outputs", "score"),
        "combined": cells(n_layers, "attention-blocks+mlp-blocks", "score"),
        "kinds": cells(n_layers, "head-outputs+mlp-neurons+mlp-blocks", "score"),
        "shares": cells(n_layers, "mlp-neurons", "selected"),
        "one-column": cells(n_layers, "mlp-blocks", "rank"),
        "panel": cells(n_layers, "head-outputs", "selected", copies=4),
        "panel-of-kinds": cells(n_layers, "head-outputs+mlp-blocks", "score", copies=2),
        "front": cells(n_layers, "head-outputs", "front"),
        "spans": cells(n_layers, "residual-before", "score", **spans),
        "tokens": cells(n_layers, "residual-before", "score", spans=TOKENS),
        "layers-on-x": cells(n_layers, "residual-before", "score", spans=TOKENS, layers_on="x"),
        "kinds-on-x": cells(
            n_layers, "attention-blocks+mlp-blocks+residual-before", "score", layers_on="x", **spans
        ),
        "shares-on-x": cells(n_layers, "head-outputs+mlp-neurons", "score", layers_on="x"),
        "spans-of-heads": cells(n_layers, "head-outputs", "score", spans=("IO", "rest")),
        "curve": figures.size_lines(
            lines, n_components=9 * n_layers, largest=8, full=6.0,
            value_title="effect (logit difference, nats)", **TITLES,
        ),
        "grid": figures.pair_map(
            figures.PairMap(
                labels=[str(head) for _ in range(n_layers) for head in range(3)],
                groups=groups, noun="", note=f"dot: p &lt; .05<br>{RING}",
                dotted=[(0, 1), (0, 2), (1, 2), (4, 5)], **pairs,
            ),
            title="Interactions: ioi-abc",
            subtitle="l({i, j}) \u2212 l({i}) \u2212 l({j}), l: effect (nats)",
        ),
        "pairs": figures.pair_map(
            figures.PairMap(labels=[f"L{i}H0" for i in range(n)], **pairs), **TITLES
        ),
        "waterfall": figures.waterfall(members, value_title="effect (nats)", **TITLES),
        "network": figures.network(members, layers, edges, **TITLES),
        "attention": attention_map(
            rows, ["IO", "S1", "S1+1", "S2", "last", "rest"], beside="logits", **TITLES
        ),
        "strengths": figures.strengths(
            effects, beside="selectivity", value_title="strength (share of all)", **TITLES
        ),
        "similarities": figures.similarities(
            pd.DataFrame([[0.25] * 6] * 6, searches, searches),
            **TITLES,
        ),
        "lines": figures.lines(chart, reference=(0.4, "random")),
        "bars": figures.bars(chart),
        "scatter": scatter(
            figures.Chart(
                frame=scores, x="first", y="second", series="component",
                axis_titles=("learned ranking soft mask", "single effect (logit difference, nats)"),
                **TITLES,
            ),
            (0.5, 0.0), 8,
        ),
        "paths": path_network([*names, "logits"], [*layers, None], arrows, **TITLES),
        "circuit": path_network(
            [*names, "logits"], [*layers, None], arrows, quantity="score", **TITLES
        ),
    }  # fmt: skip


def legend_of(figure: Any) -> list[str]:
    """The entries of the legend of a figure, from the first to the last."""
    if not figure.layout.showlegend:
        return []
    return [each.name for each in figure.data if each.name and each.showlegend is not False]


_TEXTS = """
async ({ figure, width, height }) => {
  const at = document.createElement("div");
  document.body.replaceChildren(at);
  await Plotly.newPlot(at, figure.data, figure.layout, { staticPlot: true });
  const page = at.getBoundingClientRect();
  const texts = [...at.querySelectorAll("svg text")].filter((text) => text.textContent.trim());
  return texts.map((text) => {
    const { left, top, right, bottom } = text.getBoundingClientRect();
    const [x, y] = [page.left, page.top];
    return [text.textContent, left - x, top - y, right - x, bottom - y];
  });
}
"""
Box = tuple[str, float, float, float, float]


async def texts_of(page: Any, drawn: list[Any]) -> list[list[Box]]:
    """Texts of each figure, with the left, upper, right and lower end of each in pixels."""
    await page.add_script_tag(content=get_plotlyjs())
    return [
        [tuple(box) for box in await page.evaluate(_TEXTS, {"figure": figure})] for figure in drawn
    ]
