"""`tracekit models`."""

from __future__ import annotations

from rich.table import Table

from tracekit.cli.app import app
from tracekit.cli.output import console


@app.command()
def models() -> None:
    """Lists the paper's models, and what can be traced in which architecture.

    The second table is made now: every check that a trace makes on its own model is made on a tiny
    random model of each architecture.
    """
    from tracekit.checks.architectures import ARCHITECTURES, try_out
    from tracekit.components import KINDS
    from tracekit.paper.models import PAPER_MODELS

    table = Table("the paper's model", "hub name", *KINDS)
    for model in PAPER_MODELS.values():
        counts = (model.count(kind) for kind in KINDS)
        cells = ("by config" if count is None else str(count) for count in counts)
        table.add_row(model.title, model.hub, *cells)
    console.print(table)
    table = Table("architecture", *KINDS)
    refusals = []
    for architecture in ARCHITECTURES:
        refusal_by_kind = try_out(architecture)
        cells = ("yes" if refusal is None else "no" for refusal in refusal_by_kind.values())
        table.add_row(architecture, *cells)
        refusals += [refusal for refusal in refusal_by_kind.values() if refusal is not None]
    console.print(table)
    for refusal in refusals:
        console.print(refusal, style="dim", highlight=False)
