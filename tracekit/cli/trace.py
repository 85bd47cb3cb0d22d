"""`tracekit demo`, `trace`, `evaluate`."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tracekit.cli.app import (
    BatchSize,
    DataDir,
    Device,
    Dtype,
    ModelOption,
    Output,
    Quiet,
    Seed,
    app,
    console,
)
from tracekit.cli.output import (
    bars,
    describe,
    load,
    print_table,
    save,
    write_all,
    write_figures,
)
from tracekit.cli.parsing import (
    goal,
    parse_budget,
    parse_layers,
    parse_loading,
    parse_options,
    parse_positions,
    read_masks,
)
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from tracekit.tracer import Tracer

_DEMO_BUDGETS = (0.1, 0.2, 0.3, 0.4)
_DEMO_DRAWS = 100
_DEMO_PAIR_LAYERS = (0, 1)


@app.command()
def demo(
    output: Output = Path("tracekit-demo"),
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Traces the embedded model: four methods, a heatmap, an effect curve and a pairwise map.

    Which attention heads decide, in the demo model, whom a pronoun refers to? Takes about half a
    minute on two processor cores, and no network.
    """
    import tracekit as tk

    model = load("demo")
    pairs = tk.load_dataset("demo-bias", model)
    tracer = tk.Tracer(model, pairs, components="heads", metric="odds-ratio", progress=bars(quiet))
    describe(tracer)
    budgets = list(_DEMO_BUDGETS)
    for method, options in (
        ("pgb-ct", {}),
        ("top-k", {}),
        ("greedy", {}),
        ("random", {"draws": _DEMO_DRAWS}),
    ):
        save(tracer.run(method, budgets=budgets, seed=seed, **options), output)
    print_table(tracer.results)
    pairs_grid = tracer.interactions(layers=_DEMO_PAIR_LAYERS)
    shown = next(r for r in tracer.results if r.method == "pgb-ct" and r.budget == 6)
    console.print(f"PGB-CT selects {', '.join(shown.labels)} at a budget of {shown.budget}.")
    write_all(tracer, output, shown, {"pairs": pairs_grid.heatmap()})
    pairs_grid.save(output / "pairs.csv")


@app.command()
def trace(
    model: Annotated[
        str, typer.Option(help="`demo`, a directory in Hugging Face layout, or a hub name.")
    ] = "demo",
    dataset: Annotated[
        str,
        typer.Option(
            help="A data set (`tracekit datasets` lists them), or a .csv or .jsonl file of pairs."
        ),
    ] = "demo-bias",
    data_dir: DataDir = None,
    data_option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option of the data set as name=value, e.g. seed=1; may be given several times."
        ),
    ] = None,
    components: Annotated[
        str | None,
        typer.Option(
            help="heads, head-outputs, neurons, mlp-hidden, mlp-blocks, or several joined by +. "
            "Default: what the data set is usually traced with."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="odds-ratio, probability-drop, probability-ratio, logit-difference, accuracy. "
            "Default: by the data set."
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(help="A count (6) or a share (0.2); may be given several times."),
    ] = None,
    target_effect: Annotated[
        float | None, typer.Option(help="Instead of a budget: the effect to reach.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="pgb-ct, path, dcm, top-k, greedy, random, exhaustive, mask-ig, attribution; may "
            "be given several times. Default: pgb-ct."
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option of a method as name=value, e.g. lambda1=0.001 or random:draws=200; "
            "may be given several times."
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Layers to study, e.g. 0-5,8. Default: all.")
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(help="prompt, last, all, or prompt positions such as 0,3,-1."),
    ] = None,
    mean: Annotated[
        str, typer.Option(help="Mean over continuation tokens: geometric or arithmetic.")
    ] = "geometric",
    split: Annotated[str | None, typer.Option(help="Split of the data set, e.g. test.")] = None,
    skip_mismatched: Annotated[
        bool, typer.Option(help="Drop examples whose counterfactual has another length.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first examples.")] = None,
    held_out: Annotated[
        float | None,
        typer.Option(help="Share of the examples that no method sees, e.g. 0.2, to measure on."),
    ] = None,
    device: Device = None,
    dtype: Dtype = "float32",
    batch_size: BatchSize = 64,
    model_option: ModelOption = None,
    max_memory: Annotated[
        int | None,
        typer.Option(min=0, help="MiB that counterfactual activations may take on the device."),
    ] = None,
    path: Annotated[
        bool,
        typer.Option(
            "--path",
            help="The best set of every size, up to --budget, with held-out effects, random "
            "controls and stability, instead of --method.",
        ),
    ] = False,
    max_forwards: Annotated[
        int | None, typer.Option(min=1, help="With --path: passes over the data at most.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="With --path: wall time at most; the best so far is kept.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="With --path: file to keep measurements in, and to go on from."),
    ] = None,
    output: Output = Path("run"),
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Traces any model on any data set, and writes figures and results."""
    import tracekit as tk
    from tracekit.data.registry import describe as describe_dataset
    from tracekit.search import make

    # What can be checked of what was typed is checked before anything slow happens.
    if output.is_file():
        raise ConfigError(f"The output {output} is a file. Give a folder.")
    limits = {
        "max_forwards": max_forwards,
        "max_seconds": max_seconds,
        "checkpoint": checkpoint,
    }
    limits = {name: value for name, value in limits.items() if value is not None}
    _check_path(path, bool(method), budget, target_effect, limits)
    methods = ["path"] if path else method or ["pgb-ct"]
    by_method = parse_options(option or [], methods)
    by_method[methods[0]] |= limits
    goals = {name: goal(budget, target_effect, by_method[name]) for name in methods}
    searches = {name: make(name, by_method[name]) for name in methods}
    chosen_layers = parse_layers(layers)
    usual = describe_dataset(dataset)
    further = parse_options(data_option or [], [dataset])[dataset]
    loaded = load(model, device=device, dtype=dtype, **parse_loading(model_option))
    options: dict[str, Any] = {"data_dir": data_dir, "split": split, **further}
    options = {name: value for name, value in options.items() if value is not None}
    if skip_mismatched:
        options["on_mismatch"] = "skip"
    pairs = tk.load_dataset(dataset, loaded, **options)
    for line in pairs.skipped:
        console.print(f"Skipped {line}.", highlight=False)
    pairs, outside = _split(pairs if limit is None else pairs[:limit], held_out, seed)
    tracer = tk.Tracer(
        loaded,
        pairs,
        components=components or usual.components,
        metric=metric or usual.metric,
        layers=chosen_layers,
        positions=parse_positions(positions or usual.positions),
        mean=mean,  # type: ignore[arg-type]
        batch_size=batch_size,
        max_memory=None if max_memory is None else max_memory * 2**20,
        progress=bars(quiet),
        held_out=outside,
    )
    describe(tracer)
    if path:
        largest = parse_budget(budget[0]) if budget else None
        _trace_path(tracer, largest, seed, by_method["path"], output)
        return
    for name in methods:
        save(tracer.run(searches[name], seed=seed, **goals[name]), output)
        if tracer.results[-1].stopped == "interrupted":
            break
    print_table(tracer.results)
    write_all(tracer, output, tracer.results[-1], {})


def _split(pairs: Any, held_out: float | None, seed: int) -> tuple[Any, Any]:
    """The examples that methods see, and those they do not."""
    return (pairs, None) if held_out is None else pairs.split(1 - held_out, seed=seed)


def _check_path(
    path: bool,
    methods: bool,
    budgets: list[str] | None,
    target_effect: float | None,
    limits: dict[str, Any],
) -> None:
    """Refuses options that do not go together with --path, or not without it."""
    if path and (methods or target_effect is not None or len(budgets or []) > 1):
        raise ConfigError(
            "--path answers every budget by itself. Leave out --method and --target-effect, and "
            "give at most one --budget, the largest."
        )
    if limits and not path:
        name = next(iter(limits)).replace("_", "-")
        raise ConfigError(f"--{name} is for paths. Add --path, or leave it out.")


def _trace_path(
    tracer: Tracer,
    largest: int | float | None,
    seed: int,
    options: dict[str, Any],
    output: Path,
) -> None:
    """Searches a path, prints what is known of it, and writes results and figures."""
    import warnings

    from tracekit.errors import SearchStoppedWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SearchStoppedWarning)
        found = tracer.path(max_budget=largest, seed=seed, **options)
    found.save(output / "path")
    table = Table("size", "effect", "95 % interval", "held out", "random", "stability")
    for column in table.columns:
        column.justify = "right"
    frame = found.to_frame()
    taken = frame[frame["size"].isin([one.size for one in found.statistics])]
    for row in (taken if found.statistics else frame).itertuples():
        table.add_row(
            str(row.size),
            f"{row.effect:.4g}",
            f"{row.effect_low:.3g} to {row.effect_high:.3g}",
            *("-" if isnan(v) else f"{v:.4g}" for v in (row.held_out, row.control)),
            "-" if isnan(row.stability) else f"{row.stability:.2f}",
        )
    console.print(table)
    console.print(
        "Held out: chosen on one half of the examples, measured on the other. Random: as many "
        "components of every kind in every layer. Stability: Jaccard similarity of what the "
        "halves choose.",
        style="dim",
    )
    passes = found[0].cost.forward_equivalents
    extra = found.statistics_cost.forward_equivalents
    console.print(f"{passes:.0f} passes, and {extra:.0f} for the statistics.", highlight=False)
    if found.stopped:
        why = "Ctrl-C" if found.stopped == "interrupted" else f"--{found.stopped}"
        why = why.replace("_", "-")
        console.print(f"Stopped by {why}: these are the best sets found so far.")
    write_figures({"path": found.curve(), "heatmap": tracer.heatmap(found[-1])}, output)


@app.command()
def evaluate(
    mask: Annotated[
        list[Path],
        typer.Option(
            help="A JSON file with one entry in [0, 1] per component, or with a list of such "
            "masks, or the folder of a run; may be given several times."
        ),
    ],
    model: Annotated[str, typer.Option(help="As in `trace`.")] = "demo",
    dataset: Annotated[str, typer.Option(help="As in `trace`.")] = "demo-bias",
    data_dir: DataDir = None,
    data_option: Annotated[list[str] | None, typer.Option(help="As in `trace`.")] = None,
    components: Annotated[str | None, typer.Option(help="As in `trace`.")] = None,
    metric: Annotated[str | None, typer.Option(help="As in `trace`.")] = None,
    layers: Annotated[str | None, typer.Option(help="As in `trace`.")] = None,
    positions: Annotated[str | None, typer.Option(help="As in `trace`.")] = None,
    mean: Annotated[str, typer.Option(help="As in `trace`.")] = "geometric",
    limit: Annotated[int | None, typer.Option(min=1, help="As in `trace`.")] = None,
    model_option: ModelOption = None,
    device: Device = None,
    dtype: Dtype = "float32",
    batch_size: BatchSize = 64,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="CSV file for the effect on every example."),
    ] = None,
) -> None:
    """Measures the effects of given masks: soft or binary, 1 takes the counterfactual value."""
    import pandas as pd

    import tracekit as tk
    from tracekit.data.registry import describe as describe_dataset
    from tracekit.results.result import effect_interval

    usual = describe_dataset(dataset)
    options: dict[str, Any] = parse_options(data_option or [], [dataset])[dataset]
    options |= {} if data_dir is None else {"data_dir": data_dir}
    loaded = load(model, device=device, dtype=dtype, **parse_loading(model_option))
    pairs = tk.load_dataset(dataset, loaded, **options)
    tracer = tk.Tracer(
        loaded,
        pairs if limit is None else pairs[:limit],
        components=components or usual.components,
        metric=metric or usual.metric,
        layers=parse_layers(layers),
        positions=parse_positions(positions or usual.positions),
        mean=mean,  # type: ignore[arg-type]
        batch_size=batch_size,
    )
    describe(tracer)
    table = Table("mask", "sum", "effect", "95 % interval")
    rows = []
    for name, values in (one for path in mask for one in read_masks(path)):
        effects: Any = tracer.evaluate(values, per_example=True)
        low, high = effect_interval(effects)
        total = sum(map(float, values))
        table.add_row(
            name, f"{total:.4g}", f"{effects.mean().item():.6g}", f"{low:.3g} to {high:.3g}"
        )
        rows += [
            {"mask": name, "example": number, "effect": effect}
            for number, effect in enumerate(effects.tolist())
        ]
    console.print(table)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_csv(output, index=False)
