"""Cost as work grows: `python -m tools.studies.scaling [--json FILE] [--figure FILE]`.

Time and peak memory of a step of PGB-CT (GPT-2 small's widths, 32 examples, 12 layers, prompts of
10 tokens) against the number of components, examples, layers, and the length of continuations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import plotly.graph_objects as go
import torch
import typer
from plotly.subplots import make_subplots

from tools.benchmarks.figures import stepper
from tools.benchmarks.setting import Model, medians, peak_bytes
from tracekit.data.prompts import PromptPairs

AXES = ("components", "examples", "layers", "continuation tokens")
PROMPT = 10


@dataclass(frozen=True)
class Point:
    """One step."""

    axis: str
    at: int
    seconds: float
    mebibytes: float


def drawn(examples: int, length: int, prompt_length: int = PROMPT) -> PromptPairs:
    """Random pairs of one shape; `length` is that of the continuations."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(50257, (count,), generator=generator).tolist()

    rows = []
    for _ in range(examples):
        prompt = ids(prompt_length)
        other = [*ids(1), *prompt[1:]]
        rows.append(
            {
                "prompt_ids": prompt,
                "counterfactual_ids": other,
                "x_ids": ids(length),
                "y_ids": ids(length),
            }
        )
    return PromptPairs.from_ids(rows)


def points(device: torch.device, repeats: int) -> Iterator[Point]:
    """One axis after the other, the others at their usual value."""
    full = Model.make(device)
    for width in (1, 8, 64, 256, 768):
        engine = full.engine(drawn(32, 4), "mlp-outputs", indices=range(width))
        yield measured("components", 12 * width, engine, device, repeats)
    for count in (8, 16, 32, 64, 128):
        engine = full.engine(drawn(count, 4), max_batch_size=128)
        yield measured("examples", count, engine, device, repeats)
    for length in (1, 4, 8, 16, 32):
        engine = full.engine(drawn(32, length))
        yield measured("continuation tokens", length, engine, device, repeats)
    for layers in (1, 2, 4, 8, 12):
        engine = Model.make(device, n_layer=layers).engine(drawn(32, 4))
        yield measured("layers", layers, engine, device, repeats)


def measured(axis: str, at: int, engine, device: torch.device, repeats: int) -> Point:
    """Median time and peak memory of a step."""
    run = stepper(engine)
    (took,) = medians({axis: run}, device, repeats).values()
    return Point(axis, at, took, peak_bytes(run, device) / 2**20)


def draw(measured: list[Point]) -> go.Figure:
    """Time above, memory below, a column for each axis."""
    figure = make_subplots(
        2, len(AXES), shared_xaxes=True, vertical_spacing=0.06, horizontal_spacing=0.05
    )
    for column, axis in enumerate(AXES, 1):
        line = [point for point in measured if point.axis == axis]
        for row, values in ((1, [p.seconds for p in line]), (2, [p.mebibytes for p in line])):
            figure.add_scatter(
                x=[point.at for point in line],
                y=values,
                mode="lines+markers",
                line_color="#0072B2",
                showlegend=False,
                row=row,
                col=column,
            )
        figure.update_xaxes(title_text=axis, row=2, col=column)
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(title_text="seconds a step", row=1, col=1)
    figure.update_yaxes(title_text="peak MiB", row=2, col=1)
    figure.update_layout(template="simple_white", width=1000, height=460, font_size=14)
    return figure.update_layout(margin={"l": 60, "r": 10, "t": 10, "b": 50})


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "",
    repeats: Annotated[int, typer.Option(help="Runs that medians are taken of.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Where to draw.")] = None,
) -> None:
    """Measures how cost grows."""
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    found = []
    for point in points(torch.device(name), repeats):
        found.append(point)
        print(f"{point.axis} {point.at}: {point.seconds:.3f} s, {point.mebibytes:.0f} MiB")  # noqa: T201
    if json_file:
        json_file.write_text(json.dumps([asdict(point) for point in found], indent=1) + "\n")
    if figure:
        draw(found).write_image(figure, scale=2)


if __name__ == "__main__":
    typer.run(main)
