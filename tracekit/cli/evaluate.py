"""`tracekit evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tracekit.cli.app import app
from tracekit.cli.options import (
    OUTPUT,
    WHAT,
    Also,
    ByOption,
    Components,
    DataDir,
    DataOption,
    DatasetName,
    Device,
    DirectionOption,
    Dtype,
    Layers,
    Limit,
    MaxBatchSize,
    MeanOfTokens,
    MetricName,
    Model,
    ModelOption,
    PositionScope,
    SourceOption,
    Windows,
    build_tracer,
)
from tracekit.cli.output import check_file, print_rows, print_tracer
from tracekit.cli.parsing import read_masks


@app.command()
def evaluate(
    mask: Annotated[
        list[Path],
        typer.Option(
            metavar="PATH",
            help="A JSON file with one entry in [0, 1] per component, or with a list of such "
            "masks, or the folder of a run; may be given several times.",
            rich_help_panel=WHAT,
        ),
    ],
    model: Model = "demo",
    dataset: DatasetName = "demo-bias",
    data_dir: DataDir = None,
    data_option: DataOption = None,
    components: Components = None,
    metric: MetricName = None,
    also: Also = None,
    layers: Layers = None,
    positions: PositionScope = None,
    by: ByOption = None,
    windows: Windows = 1,
    source: SourceOption = "counterfactual",
    direction: DirectionOption = "noising",
    continuation_mean: MeanOfTokens = "geometric",
    limit: Limit = None,
    model_option: ModelOption = None,
    device: Device = None,
    dtype: Dtype = "auto",
    max_batch_size: MaxBatchSize = 64,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="CSV file for the effect on every example.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Measures the effects of given masks: soft or binary, 1 takes the counterfactual value."""
    import pandas as pd

    from tracekit._util.files import write_csv
    from tracekit.results import effect_interval

    if output is not None:
        check_file(output)
    tracer = build_tracer(
        model=model,
        dataset=dataset,
        data_dir=data_dir,
        data_option=data_option,
        limit=limit,
        components=components,
        metric=metric,
        also=also,
        layers=layers,
        positions=positions,
        by=by,
        windows=windows,
        source=source,
        direction=direction,
        continuation_mean=continuation_mean,
        model_option=model_option,
        device=device,
        dtype=dtype,
        max_batch_size=max_batch_size,
        quiet=True,
    )
    print_tracer(tracer)
    names = [further.name for further in tracer.extra_metrics]
    table = Table("mask", "sum", "effect", "95 % interval", *names)
    rows = []
    named_masks = [named_mask for path in mask for named_mask in read_masks(path)]
    for name, entries in named_masks:
        # A result is taken by its components: as many entries of others mean something else.
        effects: Any = tracer.evaluate(entries, per_example=True)
        further = (
            tracer.evaluate(entries, metrics=names, per_example=True)  # type: ignore[arg-type]
            if names
            else pd.DataFrame(index=range(len(effects)))
        )
        total = sum(entries) if isinstance(entries, list) else entries.n_selected
        low, high = effect_interval(effects, weights=tracer.pairs.weights)
        table.add_row(
            name,
            f"{total:.4g}",
            f"{effects.mean().item():.6g}",
            f"{low:.3g} to {high:.3g}",
            *(f"{further[column].mean():.6g}" for column in names),
        )
        rows += [
            {"mask": name, "example": number, "effect": effect, **further.loc[number].to_dict()}
            for number, effect in enumerate(effects.tolist())
        ]
    print_rows(table)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_csv(pd.DataFrame(rows), output)
