"""`tracekit pairs check`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tracekit._util.table import Table
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import console
from tracekit.cli.files import check_file
from tracekit.cli.options import EXAMPLE_KEYS, OPTIONAL_OUTPUT, OPTIONS, load_data, with_options
from tracekit.cli.summaries import print_checks
from tracekit.cli.tables import record_table


@app.command()
@with_options(
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
    model, loaded = load_data({**values, "dataset": file})
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
