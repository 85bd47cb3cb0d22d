"""`tracekit trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli.app import app
from tracekit.cli.options import (
    HOW,
    Also,
    ByOption,
    Components,
    Config,
    DataDir,
    DataOption,
    DatasetName,
    Device,
    DirectionOption,
    DryRun,
    Dtype,
    HeldOut,
    KeepAtMost,
    KeepDataset,
    KeepMetric,
    Layers,
    Limit,
    MaxBatchSize,
    MaxMemory,
    MeanOfTokens,
    MetricName,
    Model,
    ModelOption,
    ObjectiveChoice,
    Output,
    PositionScope,
    Quiet,
    SaveConfig,
    Seed,
    SkipMismatched,
    SourceOption,
    Split,
    Windows,
    build_keep,
    build_tracer,
    check_data,
    save_config,
)
from tracekit.cli.output import (
    check_folder,
    console,
    print_estimates,
    print_table,
    print_tracer,
    save,
    write_tracer_figures,
)
from tracekit.cli.parsing import goal, parse_options


@app.command()
def trace(
    model: Model = "demo",
    dataset: DatasetName = "demo-bias",
    data_dir: DataDir = None,
    data_option: DataOption = None,
    components: Components = None,
    metric: MetricName = None,
    also: Also = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help="A count (6) or a share (0.2); may be given several times.",
            rich_help_panel=HOW,
        ),
    ] = None,
    target_effect: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Instead of a budget: the effect to reach.", rich_help_panel=HOW
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="pgb-ct, local-search, dcm, top-k, shrunken-top-k, greedy, random, exhaustive, "
            "mask-ig, attribution; may be given several times. Default: pgb-ct.",
            rich_help_panel=HOW,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Option of a method as name=value, e.g. lambda1=0.001 or random:draws=200; "
            "may be given several times.",
            rich_help_panel=HOW,
        ),
    ] = None,
    layers: Layers = None,
    positions: PositionScope = None,
    by: ByOption = None,
    windows: Windows = 1,
    source: SourceOption = "counterfactual",
    direction: DirectionOption = "noising",
    continuation_mean: MeanOfTokens = "geometric",
    split: Split = None,
    skip_mismatched: SkipMismatched = False,
    limit: Limit = None,
    held_out: HeldOut = None,
    device: Device = None,
    dtype: Dtype = "auto",
    max_batch_size: MaxBatchSize = 64,
    model_option: ModelOption = None,
    max_memory: MaxMemory = None,
    objective: ObjectiveChoice = "mean",
    keep_at_most: KeepAtMost = None,
    keep_metric: KeepMetric = None,
    keep_dataset: KeepDataset = None,
    output: Output = Path("run"),
    config: Config = None,
    save_config_to: SaveConfig = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Traces any model on any data set, and writes figures and results."""
    options = dict(locals())
    from tracekit.search import make

    # Before anything slow: checks of everything that needs no model.
    check_folder(output)
    methods = method or ["pgb-ct"]
    by_method = parse_options(option or [], methods)
    goals = {name: goal(budget, target_effect, by_method[name]) for name in methods}
    searches = {name: make(name, by_method[name]) for name in methods}
    check_data(keep_dataset)
    if not dry_run:
        save_config(save_config_to, options)
    tracer = build_tracer(
        model=model,
        dataset=dataset,
        data_dir=data_dir,
        data_option=data_option,
        split=split,
        skip_mismatched=skip_mismatched,
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
        max_memory=max_memory,
        held_out=held_out,
        seed=seed,
        quiet=quiet,
    )
    keep = build_keep(tracer, keep_at_most, keep_metric, keep_dataset)
    print_tracer(tracer)
    if dry_run:
        print_estimates(
            tracer.estimate(searches[name], keep=keep, objective=objective, **goals[name])
            for name in methods
        )
        return
    for name in methods:
        try:
            result = tracer.run(
                searches[name], seed=seed, keep=keep, objective=objective, **goals[name]
            )
        except KeyboardInterrupt:
            # Of earlier methods there are results, of this one there are none.
            if not tracer.results:
                raise
            break
        save(result, output)
        if tracer.results[-1].stopped == "interrupted":
            break
    if console.quiet:
        return
    print_table(tracer.results)
    write_tracer_figures(tracer, output, tracer.results[-1], {})
