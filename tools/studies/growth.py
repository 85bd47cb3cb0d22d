"""Searches as components and examples grow: `python -m tools.studies.growth [--figure FILE]`.

Local search, mask-ig and PGB-CT over MLP neurons of GPT-2 small's width (12 layers, 8,334 neurons
each) on 8 random pairs, from 100 to 100,000 components, and over 1,000 components from 8 to 2,000
pairs. In processor time: what a pass costs, in passes of the model alone over the same pairs, and
the share of the time that is no pass: bookkeeping, which is to stay below 5 % at 100,000.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from time import process_time
from typing import Annotated, Any

import plotly.graph_objects as go
import torch
import typer
from plotly.subplots import make_subplots

import tracekit as tk
from tools.benchmarks.setting import Model
from tools.studies.scaling import drawn
from tracekit.engine.engine import Engine
from tracekit.engine.forward import ForwardPass
from tracekit.engine.prepared import PreparedData
from tracekit.search import Goal
from tracekit.search.constraint import make_target

LAYERS, NEURONS = 12, 8334
METHODS: dict[str, dict[str, Any]] = {
    "local-search": {"max_passes": 100},
    "mask-ig": {},
    "pgb-ct": {"lambda1": 1e-6, "epochs": 3},
}
COMPONENTS, EXAMPLES = (100, 1_000, 10_000, 100_000), (8, 64, 500, 2_000)


@dataclass(frozen=True)
class Point:
    """One search."""

    method: str
    components: int
    examples: int
    passes: float
    of_pass: float
    """Time of a pass, in passes of the model alone."""
    bookkeeping: float
    """Share of the time that is no pass."""


@contextmanager
def timed() -> Iterator[list[float]]:
    """Collects the processor time of passes and of their gradients."""
    spent: list[float] = []

    def timing(function: Any) -> Any:
        @wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            start = process_time()
            try:
                return function(*args, **options)
            finally:
                spent.append(process_time() - start)

        return run

    parts = [
        (ForwardPass, "log_probs"),
        (ForwardPass, "residual_at"),
        (PreparedData, "mask_gradient"),
    ]
    before = [getattr(owner, name) for owner, name in parts]
    for (owner, name), function in zip(parts, before, strict=True):
        setattr(owner, name, timing(function))
    try:
        yield spent
    finally:
        for (owner, name), function in zip(parts, before, strict=True):
            setattr(owner, name, function)


def point(engine: Engine, method: str, options: dict[str, Any]) -> Point:
    """Searches ten components."""
    _ = engine.full_effects
    start = process_time()
    with engine.measuring():
        for batch in engine.batches:
            engine.forward_pass.log_probs(batch, [])
    plain, target = process_time() - start, make_target(engine)
    goal = Goal() if "lambda1" in options else Goal(budgets=(10,))
    with timed() as spent:
        start = process_time()
        tk.search.make(method, options).search(target, goal, 0)
        took = process_time() - start
    passes = target.cost.forward_equivalents
    return Point(
        method,
        engine.n_components,
        engine.n_examples,
        passes,
        took / passes / plain,
        max(0.0, 1 - sum(spent) / took),
    )


def points() -> Iterator[Point]:
    """All searches."""
    model = Model.make(torch.device("cpu"), bare=False, n_inner=NEURONS)
    small = Model.make(torch.device("cpu"), bare=False, n_embd=96, n_inner=384)
    for of, cases in (
        (model, [(count, 8) for count in COMPONENTS]),
        (small, [(1_000, count) for count in EXAMPLES]),
    ):
        for components, examples in cases:
            indices = range(components // LAYERS)
            for method, options in METHODS.items():
                pairs = drawn(examples, 1)
                yield point(of.engine(pairs, "mlp-neurons", indices=indices), method, options)


def figure(of: list[Point]) -> go.Figure:
    """Cost of a pass and share of bookkeeping, by components and by examples."""
    titles = ["cost of a pass, in plain passes", "", "share of bookkeeping", ""]
    drawing = make_subplots(2, 2, shared_yaxes=True, subplot_titles=titles)
    for number, method in enumerate(METHODS):
        for column, axis in enumerate(("components", "examples"), 1):
            # The first searches all have 8 pairs of the wide model.
            part = of[: len(COMPONENTS) * len(METHODS)]
            part = part if axis == "components" else of[len(part) :]
            part = [each for each in part if each.method == method]
            for row, value in enumerate(("of_pass", "bookkeeping"), 1):
                line = go.Scatter(
                    x=[getattr(each, axis) for each in part],
                    y=[getattr(each, value) for each in part],
                    name=method,
                    mode="lines+markers",
                    showlegend=row == column == 1,
                    line_color=("#0072B2", "#D55E00", "#009E73")[number],
                    marker_symbol=("circle", "square", "diamond")[number],
                )
                drawing.add_trace(line, row, column)
                drawing.update_xaxes(type="log", dtick=1, row=row, col=column)
            drawing.update_xaxes(title_text=axis, row=2, col=column)
    drawing.update_yaxes(rangemode="tozero")
    drawing.update_yaxes(tickformat=".0%", row=2)
    return drawing.update_layout(template="simple_white", width=800, height=520, margin={"t": 40})


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write.")] = None,
    figure_file: Annotated[Path | None, typer.Option("--figure", help="PNG to draw.")] = None,
) -> None:
    """Measures all searches, and prints each."""
    torch.set_num_threads(1)
    measured = []
    for each in points():
        measured.append(each)
        typer.echo(
            f"{each.method}, {each.components:,} components, {each.examples:,} examples: "
            f"{each.passes:.0f} passes of {each.of_pass:.2f}, {each.bookkeeping:.1%} bookkeeping"
        )
    if json_file:
        json_file.write_text(json.dumps([asdict(each) for each in measured], indent=1) + "\n")
    if figure_file:
        figure(measured).write_image(figure_file, scale=2)


if __name__ == "__main__":
    typer.run(main)
