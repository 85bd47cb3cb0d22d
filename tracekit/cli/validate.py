"""`tracekit validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tracekit._util.table import Table
from tracekit.cli.app import app
from tracekit.cli.options import OPTIONS, WHAT, Given, takes
from tracekit.cli.output import console, load, print_facts
from tracekit.cli.parsing import parse_loading
from tracekit.errors import ComparisonError


@app.command()
@takes(
    *("data_dir", "model_option", "device", "dtype", "max_batch_size", "quiet"),
    dataset=OPTIONS["dataset"].saying("winobias or winogender.", default="winogender"),
    table_of=WHAT.name(
        "Model to compare with: distilgpt2, gpt2, gpt2-medium, gpt2-large or gpt2-xl. Default: its "
        "name.",
        "--as",
    ),
    table=WHAT.path("A table of your own (JSON), instead of the published one."),
)
def validate(
    given: Given, model: Annotated[str, typer.Argument(help="A hub name or a directory.")]
) -> None:
    """Compares every single-head effect with those published for the real GPT-2 family.

    Exit code 1 if they do not agree, as with other weights.
    """
    import tracekit as tk
    from tracekit.paper.models import SINGLE_HEAD_TABLES
    from tracekit.paper.published import read_single_heads, single_heads
    from tracekit.paper.validation import validate as compare

    dataset, table_of = given["dataset"], given["table_of"]
    if given["table"] is not None:
        published = read_single_heads(given["table"])
    else:
        pairs_name = SINGLE_HEAD_TABLES.get(dataset, dataset)
        published = single_heads(table_of or Path(model).name, pairs_name)
    loaded = load(
        model, device=given["device"], dtype=given["dtype"], **parse_loading(given["model_option"])
    )
    data_dir = given["data_dir"]
    options: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    if dataset == "winogender":
        # Unlike those of the paper, the published single-head effects keep the case of pronouns.
        options["keep_case"] = True
    pairs = tk.load_dataset(dataset, loaded, **options)
    tracer = tk.Tracer(
        loaded,
        pairs,
        max_batch_size=given["max_batch_size"],
        progress=False if given["quiet"] else None,
    )
    validation = compare(tracer, published)
    facts = {
        "heads": validation.singles.numel(),
        "correlation": float(validation.correlation),
        "largest_difference": float(validation.largest_difference),
        "largest_published": float(validation.largest_published),
        "all_heads": float(validation.all_heads),
        "all_heads_published": float(published.all_heads),
        "published_by": published.source,
    }
    forms = {"correlation": ".6f", "all_heads": ".6g", "all_heads_published": ".6g"}
    print_facts("validation", Table.of_rows([facts], forms=forms))
    if not validation.agrees:
        raise ComparisonError(
            f"{model} does not agree with the table for {published.model} on {published.dataset}: "
            f"{'; '.join(validation.problems)}. It has other weights, another tokenizer or other "
            "data."
        )
    console.print(f"{model} agrees with {published.model}.", style="bold", highlight=False)
