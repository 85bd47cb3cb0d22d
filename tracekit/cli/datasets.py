"""`tracekit datasets`."""

from __future__ import annotations

import tracekit as tk
from tracekit._util.table import Table
from tracekit.cli.app import app
from tracekit.cli.tables import print_table


@app.command()
def datasets() -> None:
    """Lists the data sets."""
    rows = [
        {"dataset": name, "components": data.components, "metric": data.metric, "about": data.about}
        for name, data in tk.data.DATASETS.items()
    ]
    print_table("datasets", Table.of_rows(rows))
