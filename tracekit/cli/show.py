"""`tracekit show`."""

from __future__ import annotations

from tracekit._util.table import Table
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import console
from tracekit.cli.options import OUTPUT, with_options
from tracekit.cli.rebuild import RunFolder
from tracekit.cli.summaries import print_results
from tracekit.cli.tables import print_facts

_MOST_LABELS = 40
"""Components that are listed without `--all`."""


@app.command()
@with_options(
    all_components=OUTPUT.flag("List every selected component, however many.", "--all"),
    full=OUTPUT.flag("Print all columns of the table, and what they mean."),
)
def show(values: OptionValues, run: RunFolder) -> None:
    """Prints a saved run, or all runs below a folder."""
    from tracekit.results.saved import load_saved
    from tracekit.results.tables import facts_of_model, result_examples_text

    results = load_saved(run)
    print_results(results, is_full=values["full"])
    if len(results) > 1:
        return
    (result,) = results
    options = {name: value for name, value in result.config.items() if value is not None}
    facts = {
        "model": facts_of_model(result),
        "data": result_examples_text(result),
        "metric": f"{result.setup.metric}, {result.setup.continuation_mean} mean",
        "positions": str(result.setup.positions),
        "source": f"{result.setup.source}: {result.setup.intervention}",
        "seed": result.seed,
        "options": ", ".join(f"{name}={value}" for name, value in options.items()),
        "versions": ", ".join(f"{package} {v}" for package, v in result.run.versions.items()),
    }
    print_facts("setting", Table.of_rows([facts]))
    labels = result.labels if values["all_components"] else result.labels[:_MOST_LABELS]
    more = "" if len(labels) == result.n_selected else ", ... (--all lists the rest)"
    console.print(f"Selected: {', '.join(labels)}{more}")
