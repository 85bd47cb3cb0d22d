"""Speed by commit: `python -m tools.benchmarks.history [FILE] [--figure FILE]`.

`python -m tools.benchmarks --quick` appends a line to the file, by default `speed.jsonl`: commit,
date, machine and figures. The picture has a panel for each figure and a point for each commit, of
the machine of the last line alone.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import plotly.graph_objects as go
import typer
from plotly.subplots import make_subplots

from tools.benchmarks.figures import Figure

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "speed.jsonl"
_COLUMNS, _PANEL_HEIGHT = 2, 190
"""Panels side by side; pixels of a row of them."""
_BOUND = {"mode": "lines+markers", "line": {"dash": "dot", "color": "#666666"}, "marker_size": 3}


def append_line(file: Path, machine: Mapping[str, Any], figures: Sequence[Figure]) -> None:
    """Appends what was measured of the commit that is checked out."""
    entry = {
        "commit": commit_name(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": dict(machine),
        "figures": {
            figure.name: {"value": figure.value, "bound": figure.bound, "of": figure.of}
            for figure in figures
        },
    }
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(entry) + "\n")


def commit_name() -> str:
    """Name of the commit, with `-dirty` where files were changed since; empty without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude", "*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Lines of the machine of the last one, in their order.

    Raises:
        BadParameter: There are none.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    entries = [json.loads(line) for line in text.splitlines()]
    if not entries:
        raise typer.BadParameter(
            f"{file} holds no figures. Run python -m tools.benchmarks --quick, which appends them."
        )
    return [entry for entry in entries if entry["machine"] == entries[-1]["machine"]]


def draw(entries: Sequence[Mapping[str, Any]]) -> go.Figure:
    """A panel for each figure: its value by commit, and its bound as a dotted line."""
    names = list(dict.fromkeys(name for entry in entries for name in entry["figures"]))
    rows = ceil(len(names) / _COLUMNS)
    titles = [f"{name} ({_newest(entries, name)['of']})" for name in names]
    gap = 0.35 / rows
    figure = make_subplots(rows, _COLUMNS, subplot_titles=titles, vertical_spacing=gap)
    for number, name in enumerate(names):
        place = {"row": number // _COLUMNS + 1, "col": number % _COLUMNS + 1}
        measured = [
            # The number keeps two lines of one commit apart.
            (f"{line}. {entry['commit']}", entry["date"], entry["figures"][name])
            for line, entry in enumerate(entries, 1)
            if name in entry["figures"]
        ]
        x, dates, values = zip(*measured, strict=True)
        for key, look in (
            ("value", {"mode": "lines+markers", "line_color": "#0072B2"}),
            ("bound", _BOUND),
        ):
            y = [each[key] for each in values]
            figure.add_scatter(x=x, y=y, text=dates, showlegend=False, **look, **place)
    figure.update_yaxes(rangemode="tozero")
    figure.update_annotations(font_size=12)
    figure.update_layout(template="simple_white", width=1000, font_size=11)
    height = _PANEL_HEIGHT * rows + 60
    return figure.update_layout(height=height, margin={"l": 50, "r": 20, "t": 40, "b": 50})


def _newest(entries: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next(e["figures"][name] for e in reversed(entries) if name in e["figures"])


def main(
    file: Annotated[Path, typer.Argument(help="What the benchmarks appended to.")] = FILE,
    figure: Annotated[Path, typer.Option(help="HTML, PNG, SVG or PDF.")] = Path("speed.html"),
) -> None:
    """Draws speed and memory by commit."""
    entries = read_lines(file)
    drawn = draw(entries)
    if figure.suffix == ".html":
        drawn.write_html(figure)
    else:
        drawn.write_image(figure, scale=2)
    typer.echo(f"{len(entries)} lines of one machine: {figure}")


if __name__ == "__main__":
    typer.run(main)
