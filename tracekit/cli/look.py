"""`tracekit look`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import options
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import console
from tracekit.cli.files import check_folder
from tracekit.cli.options import LIMITS, OPTIONAL_OUTPUT, OPTIONS, TRACE_KEYS
from tracekit.cli.tables import record_table

if TYPE_CHECKING:
    from tracekit.measure.look import LookPart

_OMITTED = {"model", "dataset", "components", "layers", "split_by", "layer_window", "extra_metric"}
"""Shared options that the command lacks, because they are arguments or fixed."""


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
