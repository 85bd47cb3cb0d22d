"""An exploration as plain data, which the scripts beside it draw; and the page without a kernel."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tracekit._util.markup import html_text, printable, script_json
from tracekit.components import ComponentGrid
from tracekit.components.kinds import kind_of
from tracekit.data.display import ShownTokens
from tracekit.errors import ComponentError
from tracekit.explore.exploration import Circuit, Exploration, Measurement, set_key
from tracekit.models import model_name

SCRIPT = "\n".join(
    Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8")
    for name in ("view", "known", "grid", "detail", "bars", "explorer")
)
"""The module that draws: one, as a saved page holds it whole."""
MOST_COMPONENTS = 2048
"""Components that a view can show as cells."""
_MARK = "\n// ---- this page\n"
"""End of the module in a page; the call of it follows."""


def setup_of(
    exploration: Exploration, source: str, front_name: str, arrows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """All that does not change: components, examples, arrows, and the front, with its name."""
    from tracekit.figures.style import EXPLORER_COLORS

    engine = exploration.engine
    registry, pairs, n = engine.registry, engine.pairs, engine.n_components
    if n > MOST_COMPONENTS:
        raise ComponentError(
            f"The explorer shows up to {MOST_COMPONENTS} components, and this tracer has {n} "
            f"({registry.describe()}). Build one of fewer, by layers= or indices=."
        )
    kinds = registry.kinds
    clean = engine.data.clean
    shown = [pair.shown(pairs.token_texts) for pair in pairs]
    subtitle = f"{registry.describe()}; {engine.metric.name}; {engine.metric.direction}"
    if source != "counterfactual":
        subtitle += f"; source {source}"
    front = exploration.front
    return {
        "title": printable(f"{pairs.name} data, {model_name(engine.model)} model"),
        "subtitle": printable(subtitle),
        "colors": EXPLORER_COLORS,
        "needs_other": source == "counterfactual",
        "paths": list(arrows),
        "noun": printable(kinds[0]) if len(kinds) == 1 else "components",
        "axis": printable(engine.metric.axis_label),
        "weighted": pairs.weights is not None,
        "full": _finite(engine.full_effects.mean().item()),
        "labels": [printable(registry.label(index)) for index in range(n)],
        "parts": [[c.kind, c.layer, c.index, c.span] for c in registry],
        "grids": [_grid(grid) for grid in registry.grids],
        "examples": [
            {
                "prompt": _tokens(example.prompt),
                "other": None
                if example.counterfactual is None
                else _tokens(example.counterfactual),
                "source": printable(example.source),
                "x": list(map(printable, example.x)),
                "y": list(map(printable, example.y)),
            }
            for example in shown
        ],
        "before": {
            "x": clean.x.exp().tolist(),
            "y": None if clean.y is None else clean.y.exp().tolist(),
        },
        "front": None
        if not front
        else {
            "name": front_name,
            "sizes": [len(members) for members in front],
            "keys": [set_key(members) for members in front],
        },
    }


def _grid(grid: ComponentGrid) -> dict[str, Any]:
    names = grid.span_names or tuple(map(str, grid.indices))
    kind = kind_of(grid.kind)
    return {
        "title": printable(f"{grid.kind}, {grid.span}" if grid.span else grid.kind),
        "noun": printable("span" if grid.span_names else kind.noun),
        "layers": grid.layers,
        # A kind with one component a layer has no numbers to show.
        "columns": [printable(name) if len(names) > 1 else "" for name in names],
        "cells": grid.cells,
    }


def _tokens(tokens: ShownTokens) -> list[tuple[str, bool]]:
    texts = map(printable, tokens.texts)
    return list(zip(texts, tokens.changed, strict=True))


def entry_of(measurement: Measurement) -> dict[str, Any]:
    """A measurement but for its numbers by example, which `values_of` gives."""
    low, high = measurement.spread
    return {
        "key": set_key(measurement.members),
        "effect": measurement.effect,
        "low": _finite(low),
        "high": _finite(high),
        "seconds": measurement.seconds,
        "x": measurement.x is not None,
        "y": measurement.y is not None,
    }


def values_of(measurement: Measurement) -> bytes:
    """Effects, and the log-probabilities of x and y where they are known, one after the other."""
    return as_bytes([measurement.effects, measurement.x, measurement.y])


def circuit_of(circuit: Circuit) -> dict[str, Any]:
    """Its numbers, named as in `Faithfulness.to_frame`, and a warning, if there is one."""
    scores, warning = circuit.scores, ""
    if scores.overshoots[0]:
        warning = "overshoots: it leaves out components that push back"
    elif scores.incomplete[0]:
        warning = "not complete: all others without it still do the task"
    numbers = {name: _finite(value) for name, value in scores.to_frame().iloc[0].items()}
    return {"key": set_key(circuit.members), "warning": warning, **numbers}


def as_bytes(values: Iterable[Tensor | None]) -> bytes:
    """Tensors as 32-bit floats, lowest byte first, one after the other."""
    arrays = [value.float().numpy().astype("<f4") for value in values if value is not None]
    return b"".join(array.tobytes() for array in arrays)


def table_of(exploration: Exploration) -> dict[str, Any]:
    """All that was measured and predicted, with the numbers as bytes."""
    measured = list(exploration.measurements.values())
    predicted = list(exploration.predictions.values())
    return {
        "measured": [entry_of(each) for each in measured],
        "effects": b"".join(map(values_of, measured)),
        "predicted": [{"key": set_key(p.members), "rough": p.is_rough} for p in predicted],
        "gains": as_bytes([each.gains for each in predicted]),
        "circuits": [circuit_of(each) for each in exploration.circuits.values()],
        "unpredicted": [
            {"key": set_key(each.members), "reason": printable(each.reason)}
            for each in exploration.unpredicted.values()
        ],
    }


def page_parts(title: str) -> list[str]:
    """Texts of a page before the data, between data and module, and after the module."""
    return [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title>"
        "<style>:root { color-scheme: light dark; } body { background: Canvas; margin: 16px; }"
        " main { max-width: 1100px; margin: 0 auto; }</style></head>\n"
        '<body><main id="view"></main>\n<script type="application/json" id="data">',
        '</script>\n<script type="module" id="source">',
        f"{_MARK}const own = document.getElementById('source').textContent;\n"
        "showPage(document.getElementById('view'), "
        "JSON.parse(document.getElementById('data').textContent), "
        "own.slice(0, own.indexOf('\\n' + '// ---- this page')));\n</script></body></html>\n",
    ]


def page(exploration: Exploration, setup: dict[str, Any]) -> str:
    """A page that shows everything measured so far, and needs no kernel and no network."""
    parts = page_parts(setup["title"])
    table = table_of(exploration)
    for name in ("effects", "gains"):
        table[name] = base64.b64encode(table[name]).decode()
    data = {"parts": parts, "setup": setup, "state": exploration.state(), "table": table}
    return f"{parts[0]}{script_json(data)}{parts[1]}{SCRIPT}{parts[2]}"


def _finite(value: float) -> float | None:
    return value if torch.isfinite(torch.tensor(value)) else None
