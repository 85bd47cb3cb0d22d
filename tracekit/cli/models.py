"""`tracekit models`."""

from __future__ import annotations

import json
from pathlib import Path

from tracekit._util.table import Table
from tracekit.cli.app import app
from tracekit.cli.console import console
from tracekit.cli.tables import print_table

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
