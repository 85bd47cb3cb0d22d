"""`tracekit models`."""

from __future__ import annotations

from rich.table import Table

from tracekit.cli.app import app
from tracekit.cli.output import console, print_rows

_PAPER_KINDS = ("attention-patterns", "head-outputs", "mlp-outputs", "mlp-blocks")
"""Kinds that the paper traces."""


@app.command()
def models() -> None:
    """Lists the paper's models, and what can be traced in which architecture.

    The second table is made now: every check that a trace makes on its own model is made on a tiny
    random model of each architecture.
    """
    from tracekit.engine.architectures import ARCHITECTURES, try_out
    from tracekit.paper.models import PAPER_MODELS

    table = Table("the paper's model", "hub name", *_PAPER_KINDS)
    for model in PAPER_MODELS.values():
        counts = (model.count(kind) for kind in _PAPER_KINDS)
        table.add_row(model.title, model.hub, *map(str, counts))
    print_rows(table)
    table = Table("architecture", "can be traced by")
    refusals = []
    for architecture in ARCHITECTURES:
        refusal_by_kind = try_out(architecture)
        refused = [kind for kind, refusal in refusal_by_kind.items() if refusal is not None]
        table.add_row(architecture, f"all but {', '.join(refused)}" if refused else "every kind")
        refusals += [refusal for refusal in refusal_by_kind.values() if refusal is not None]
    print_rows(table)
    for refusal in refusals:
        console.print(refusal, style="dim", highlight=False)
