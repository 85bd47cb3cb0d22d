"""`tracekit models`."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from tracekit.cli.app import app
from tracekit.cli.output import console, print_rows

REFUSED = Path(__file__).with_name("refused_kinds.json")
"""By architecture, the kinds that cannot be traced in it; `python -m tests.architectures`."""
_PAPER_KINDS = ("attention-patterns", "head-outputs", "mlp-outputs", "mlp-blocks")
"""Kinds that the paper traces."""
_REASONS = (
    "residual-between: attention and MLP read the same residual stream, so there is none between "
    "them. Use residual instead.",
    "mlp-neurons: the hidden units of experts have no hook point. Use mlp-outputs or mlp-blocks "
    "instead.",
)


@app.command()
def models() -> None:
    """Lists the paper's models, and what can be traced in which architecture.

    Every check that a trace makes on its own model was made on a tiny random model of each
    architecture. Others that TransformerLens supports can be traced too.
    """
    from tracekit.paper.models import PAPER_MODELS

    table = Table("the paper's model", "hub name", *_PAPER_KINDS)
    for model in PAPER_MODELS.values():
        counts = (model.count(kind) for kind in _PAPER_KINDS)
        table.add_row(model.title, model.hub, *map(str, counts))
    print_rows(table)
    table = Table("architecture", "can be traced by")
    for architecture, refused in json.loads(REFUSED.read_text(encoding="utf-8")).items():
        table.add_row(architecture, f"all but {', '.join(refused)}" if refused else "every kind")
    print_rows(table)
    for reason in _REASONS:
        console.print(reason, style="dim", highlight=False)
