"""`tracekit pairs check`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tracekit._util.table import Column, Table
from tracekit.cli.app import app
from tracekit.cli.options import CHOSEN, OPTIONAL_OUTPUT, Given, load_data, takes
from tracekit.cli.output import check_file, console, print_table, recorded


@app.command()
@takes(
    *(name for name in CHOSEN if name != "held_out"),
    *("model", "model_option", "device", "dtype", "quiet"),
    output=OPTIONAL_OUTPUT.saying("CSV file for the probabilities of every example."),
)
def pairs(
    given: Given,
    action: Annotated[Literal["check"], typer.Argument(help="The only one there is.")],
    file: Annotated[
        str, typer.Argument(help="A .csv, .json or .jsonl file of pairs, or a data set.")
    ],
) -> None:
    """Says whether the model does the task, and whether the pairs show it.

    Exit code 1 if a line is red: effects on such pairs say little.
    """
    from tracekit._util.files import write_csv

    output = given["output"]
    check_file(output)
    model, loaded = load_data({**given, "dataset": file})
    checked = loaded.check(model, progress=False if given["quiet"] else None)
    console.print(f"{loaded}", highlight=False, soft_wrap=True)
    colors = [line.color for line in checked.lines]
    columns = [
        Column("color", "color", colors, styles=dict(enumerate(colors))),
        Column("check", "check", [line.topic for line in checked.lines]),
        Column("finding", "finding", [line.text for line in checked.lines]),
    ]
    print_table("checks", Table(columns), n_names=2)
    recorded("examples", Table.of_rows(checked.table))
    if output is not None:
        write_csv(checked.table, output)
    if checked.color == "red":
        raise typer.Exit(1)
