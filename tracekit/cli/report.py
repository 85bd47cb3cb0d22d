"""`tracekit report`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import tracekit as tk
from tracekit._util.deferred import transformers
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import console
from tracekit.cli.files import check_file
from tracekit.cli.options import OPTIONS, load_quietly, with_options
from tracekit.demo import DEMO
from tracekit.errors import TracekitError


@app.command()
@with_options(
    output=OPTIONS["output"].with_help("The HTML file to write.", default=Path("report.html"))
)
def report(
    values: OptionValues,
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders that runs, curves or fronts were saved to, or that hold such folders; "
            "and .json files of interaction grids."
        ),
    ],
) -> None:
    """Writes a page on saved runs: setting, figures, sets, why they act together, how to repeat."""
    from tracekit.reports.saved import read_saved

    output = values["output"]
    check_file(output)
    results = [result for path in runs for result in read_saved(path)]
    page = tk.report([*results, *_load_examples(results)], output)
    console.print(f"The report: {page.resolve().as_uri()}", soft_wrap=True)


def _load_examples(results: list[Any]) -> list[tk.PromptPairs]:
    """The pairs of results, for their prompts, where data and tokenizer are on this machine."""
    from tracekit.data.registry import load_origin

    by_data: dict[str, tk.PromptPairs] = {}
    for each in results:
        first = each[0] if isinstance(each, Sequence) else each
        if isinstance(first, tk.TraceResult) and first.searched.origin is not None:
            path = first.model_facts.path or first.model
            # Some data sets, such as those with noise, need the model and not only its tokenizer.
            with suppress(TracekitError, OSError, ValueError, AttributeError):
                if first.model == DEMO:
                    model = load_quietly(DEMO)
                else:
                    model = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
                by_data[first.dataset_fingerprint] = load_origin(first.searched.origin, model)
    return list(by_data.values())
