"""Prints and writes the figures: `python -m tools.benchmarks [--quick] [--check] [--json FILE]`.

With `--quick`, a line with the commit is appended to a file that `tools.benchmarks.history` draws.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from tools.benchmarks.figures import FIGURES, Figure, Plan
from tools.benchmarks.history import FILE, append_line

GROSS = 1.4
"""`--check` fails beyond this multiple of a bound: machines differ and are shared."""


QUICK = ("step", "searches", "memory", "start")
"""Sections that `--quick` takes a part of."""


def main(
    only: Annotated[str, typer.Option(help="Sections, separated by commas.")] = "",
    quick: Annotated[bool, typer.Option(help="A part, in about two minutes.")] = False,
    check: Annotated[bool, typer.Option(help="Fail on gross loss.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "",
    repeats: Annotated[int, typer.Option(help="Runs that medians are taken of.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write.")] = None,
    history: Annotated[Path, typer.Option(help="Where --quick appends a line.")] = FILE,
) -> None:
    """Measures speed and memory."""
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    plan = Plan(torch.device(name), min(repeats, 2) if quick else repeats, quick)
    if unknown := set(only.split(",") if only else ()) - set(FIGURES):
        raise typer.BadParameter(
            f"Unknown: {', '.join(sorted(unknown))}. Use {', '.join(FIGURES)}."
        )
    sections = only.split(",") if only else [n for n in FIGURES if not quick or n in QUICK]
    console = Console()
    figures: list[Figure] = []
    for section in sections:
        for figure in FIGURES[section](plan):
            figures.append(figure)
            # One by one: a long run that is stopped has said something.
            console.print(f"{figure.name}: {figure.value:.3g} {figure.of}", highlight=False)
    console.print(table(figures))
    if json_file:
        written = {
            "machine": machine(plan.device),
            "figures": [{**asdict(figure), "holds": figure.holds} for figure in figures],
        }
        json_file.write_text(json.dumps(written, indent=1) + "\n")
    if quick:
        append_line(history, machine(plan.device), figures)
    if check and (lost := [figure for figure in figures if gross(figure)]):
        console.print("Gross loss:", ", ".join(figure.name for figure in lost))
        raise typer.Exit(1)


def gross(figure: Figure) -> bool:
    """Whether a ratio is far beyond its bound; seconds and bytes are no ratios."""
    if figure.bound is None or figure.of in ("s", "GiB"):
        return False
    if figure.at_least:
        return figure.value < figure.bound / GROSS
    return figure.value > figure.bound * GROSS


def table(figures: list[Figure]) -> Table:
    """All figures with their bounds."""
    made = Table("figure", "measured", "bound", "of")
    for figure in figures:
        sign = ">=" if figure.at_least else "<="
        bound = "" if figure.bound is None else f"{sign} {figure.bound:g}"
        value = f"{figure.value:.3g}" + ("" if figure.holds else "  over")
        made.add_row(figure.name, value, bound, figure.of)
    return made


def machine(device: torch.device) -> dict[str, str | int]:
    """What the figures were measured on."""
    named = torch.cuda.get_device_name() if device.type == "cuda" else _processor()
    return {
        "device": named,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    typer.run(main)
