"""`tracekit show`, `datasets`, `models`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from tracekit.cli.app import app, console
from tracekit.cli.output import print_table


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="Folder that a run was saved to.")],
    all_components: Annotated[
        bool, typer.Option("--all", help="List every selected component, however many.")
    ] = False,
) -> None:
    """Prints a saved run, or all runs below a folder."""
    import tracekit as tk

    folders = sorted(path.parent for path in run.rglob("result.json")) or [run]
    results = [tk.TraceResult.load(folder) for folder in folders]
    print_table(results)
    for result in results if len(results) == 1 else []:
        table = Table(show_header=False, box=None)
        for name, value in (
            ("data", f"{result.dataset}, {len(result.per_example)} examples"),
            ("metric", f"{result.metric}, {result.mean} mean"),
            ("positions", result.positions),
            ("seed", result.seed),
            ("options", ", ".join(f"{k}={v}" for k, v in result.config.items() if v is not None)),
            ("versions", ", ".join(f"{k} {v}" for k, v in result.versions.items())),
        ):
            table.add_row(name, str(value))
        console.print(table)
        labels = result.labels if all_components else result.labels[:40]
        more = "" if len(labels) == result.n_selected else ", ... (--all lists the rest)"
        console.print(f"Selected: {', '.join(labels)}{more}", highlight=False)


@app.command()
def datasets() -> None:
    """Lists the data sets."""
    from tracekit.data.registry import DATASETS

    table = Table("data set", "usually traced with", "about")
    for name, dataset in DATASETS.items():
        table.add_row(name, f"{dataset.components}, {dataset.metric}", dataset.about)
    console.print(table)


@app.command()
def models() -> None:
    """Lists the paper's models, and what can be traced in which architecture.

    The second table is made now: every check that a trace makes on its own model is made on a tiny
    random model of each architecture.
    """
    from tracekit.checks.architectures import ARCHITECTURES, PAPER_MODELS, try_out
    from tracekit.components import KINDS

    table = Table("the paper's model", "hub name", *KINDS)
    for model in PAPER_MODELS.values():
        counts = (str(model.count(kind)) if kind != "mlp-hidden" else "by config" for kind in KINDS)
        table.add_row(model.title, model.hub, *counts)
    console.print(table)
    table = Table("architecture", *KINDS)
    reasons = []
    for architecture in ARCHITECTURES:
        found = try_out(architecture)
        table.add_row(architecture, *("yes" if why is None else "no" for why in found.values()))
        reasons += [why for why in found.values() if why is not None]
    console.print(table)
    for why in reasons:
        console.print(why, style="dim", highlight=False)
