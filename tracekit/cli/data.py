"""`tracekit datasets`, `pairs`, `look` and `models`: data and models before they are traced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import tracekit as tk
from tracekit._util.table import Table
from tracekit.cli import options
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import check_file, check_folder, console
from tracekit.cli.options import EXAMPLE_KEYS, LIMITS, OPTIONAL_OUTPUT, OPTIONS, TRACE_KEYS
from tracekit.cli.tables import print_checks, print_table, record_table

if TYPE_CHECKING:
    from tracekit.measure.look import LookPart

_OMITTED = {"model", "dataset", "components", "layers", "split_by", "layer_window", "extra_metric"}
"""Shared options that `look` lacks, because they are arguments or fixed."""
REFUSED = Path(__file__).with_name("refused_kinds.json")
"""By architecture, the kinds that cannot be traced in it; `python -m tools.architectures`."""
PAPER = Path(__file__).with_name("paper_models.json")
"""The paper's models, with their numbers of components; stored, so that no library is loaded."""
_REASONS = (
    "residual-between: attention and MLP read the same residual stream, so there is none between "
    "them. Use residual instead.",
    "mlp-neurons: the hidden units of experts have no hook point. Use mlp-outputs or mlp-blocks "
    "instead.",
)


@app.command()
def datasets() -> None:
    """Lists the data sets."""
    rows = [
        {"dataset": name, "components": data.components, "metric": data.metric, "about": data.about}
        for name, data in tk.data.DATASETS.items()
    ]
    print_table("datasets", Table.of_rows(rows))


@app.command()
@options.with_options(
    *(*EXAMPLE_KEYS, "model", "model_option", "device", "dtype", "quiet"),
    held_out=OPTIONS["held_out"].with_help("Share to hold out: groups are counted in both parts."),
    seed=OPTIONS["seed"].with_help("Draws the examples that are held out."),
    output=OPTIONAL_OUTPUT.with_help("CSV file for the probabilities of every example."),
)
def pairs(
    values: OptionValues,
    action: Annotated[Literal["check"], typer.Argument(help="`check` is the only action.")],
    file: Annotated[
        str, typer.Argument(help="A .csv, .json or .jsonl file of pairs, or a data set.")
    ],
) -> None:
    """Says whether the model does the task, and whether the pairs show it.

    Exit code 1 if a line is red: effects on such pairs say little.
    """
    from tracekit._util.files import write_csv

    output = values["output"]
    check_file(output)
    model, loaded = options.load_data({**values, "dataset": file})
    share = values["held_out"]
    parts = () if share is None else loaded.split(1 - share, seed=values["seed"])
    check = loaded.check(model, parts=parts, progress=False if values["quiet"] else None)
    console.print(f"{loaded}", soft_wrap=True)
    print_checks(check)
    record_table("examples", Table.of_rows(check.table))
    if output is not None:
        write_csv(check.table, output)
    if check.color == "red":
        raise typer.Exit(1)


@app.command()
@options.with_options(
    *(name for name in (*TRACE_KEYS, "seed", "quiet") if name not in _OMITTED),
    examples=LIMITS.count("Pairs that are looked at, at most.", default=16, min=1),
    output=OPTIONAL_OUTPUT.with_help("Folder for the look, with which `tracekit report` begins."),
)
def look(
    values: OptionValues,
    model: Annotated[str, typer.Argument(help=OPTIONS["model"].option_info.help)],
    data: Annotated[str, typer.Argument(help=OPTIONS["dataset"].option_info.help)],
) -> None:
    """Takes a first look: does the model do the task, where, by which components, what next."""
    check_folder(values["output"])
    arguments = {"model": model, "dataset": data, "components": "head-outputs+mlp-blocks"}
    values = {name: OPTIONS[name].default for name in TRACE_KEYS} | values | arguments
    loaded = options.load_data(values)
    examples = loaded[1][:: -(-len(loaded[1]) // values["examples"])]
    console.print(examples.check(loaded[0], progress=False).lines[0].text, soft_wrap=True)

    def print_part(part: LookPart) -> None:
        is_kept = bool(part.rows) and record_table(part.name, part.table)
        console.print("\n".join(part.lines) if is_kept else str(part), soft_wrap=True)

    tracer = options.build_tracer(values, loaded=loaded)
    first_look = tracer.look(examples=values["examples"], seed=values["seed"], say=print_part)
    if values["output"] is not None:
        first_look.save(values["output"])
        console.print(f"Saved in {values['output']}/.", soft_wrap=True)


@app.command()
def models() -> None:
    """Lists the paper's models, and what can be traced in which architecture.

    Every check that a trace makes on its own model was made on a tiny random model of each
    architecture. Others that TransformerLens supports can be traced too.
    """
    titles = {"model": "the paper's model", "hub": "hub name"}
    rows = json.loads(PAPER.read_text(encoding="utf-8"))
    print_table("paper_models", Table.of_rows(rows, titles))
    rows = [
        {"architecture": name, "kinds": f"all but {', '.join(kinds)}" if kinds else "every kind"}
        for name, kinds in json.loads(REFUSED.read_text(encoding="utf-8")).items()
    ]
    print_table("architectures", Table.of_rows(rows, {"kinds": "can be traced by"}))
    for reason in _REASONS:
        console.print(reason, style="dim")
