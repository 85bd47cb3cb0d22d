"""`tracekit datasets`."""

from __future__ import annotations

from rich.table import Table

from tracekit.cli.app import app
from tracekit.cli.output import print_rows


@app.command()
def datasets() -> None:
    """Lists the data sets."""
    from tracekit.data import DATASETS

    table = Table("data set", "usually traced with", "about")
    for name, dataset in DATASETS.items():
        table.add_row(name, f"{dataset.components}, {dataset.metric}", dataset.about)
    print_rows(table)
