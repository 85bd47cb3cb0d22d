"""The command line: `tracekit demo`, `trace`, `show`, `datasets`. The only module that prints.

Heavy imports happen inside the commands, so that `tracekit --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tracekit.errors import ConfigError, FigureExportError, TracekitError

if TYPE_CHECKING:
    from tracekit.results import TraceCurve, TraceResult
    from tracekit.tracer import Tracer

app = typer.Typer(
    name="tracekit",
    help="Which components of a language model act together? Multi-component causal tracing.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

_console = Console()
_errors = Console(stderr=True)

_DEMO_BUDGETS = (0.1, 0.2, 0.3, 0.4)
_DEMO_DRAWS = 100
_DEMO_PAIR_LAYERS = (0, 1)

Output = Annotated[
    Path, typer.Option("--output", "-o", help="Folder for figures and results; made if missing.")
]
Seed = Annotated[int, typer.Option(help="Seed of every search.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


def main() -> None:
    """Runs the command line; errors end it with one sentence and exit code 1."""
    _quieten()
    try:
        app(standalone_mode=False)
    except TracekitError as error:
        text = escape(str(error))
        _errors.print(f"[bold red]Error:[/] {text}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except typer.Abort:
        _errors.print("Stopped.")
        sys.exit(130)
    except KeyboardInterrupt:
        _errors.print("Stopped.")
        sys.exit(130)
    except Exception as error:
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(getattr(error, "exit_code", 2))


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""
    if show_version:
        import tracekit

        _console.print(f"tracekit {tracekit.__version__}")
        raise typer.Exit


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

    model = _load("demo")
    pairs = tk.load_dataset("demo-bias", model)
    tracer = tk.Tracer(model, pairs, components="heads", metric="odds-ratio", progress=_bars(quiet))
    _describe(tracer)
    budgets = list(_DEMO_BUDGETS)
    for method, options in (
        ("pgb-ct", {}),
        ("top-k", {}),
        ("greedy", {}),
        ("random", {"draws": _DEMO_DRAWS}),
    ):
        _save(tracer.run(method, budgets=budgets, seed=seed, **options), output)
    _print_table(tracer.results)
    pairs_grid = tracer.interactions(layers=_DEMO_PAIR_LAYERS)
    shown = next(r for r in tracer.results if r.method == "pgb-ct" and r.budget == 6)
    _console.print(f"PGB-CT selects {', '.join(shown.labels)} at a budget of {shown.budget}.")
    _write_all(tracer, output, shown, {"pairs": pairs_grid.heatmap()})
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
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with the data set's files. Default: downloaded once."),
    ] = None,
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
    device: Annotated[str | None, typer.Option(help="E.g. cpu or cuda:0.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per pass.")] = 64,
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
    from tracekit.datasets import describe
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
    by_method = _parse_options(option or [], methods)
    by_method[methods[0]] |= limits
    goals = {name: _goal(budget, target_effect, by_method[name]) for name in methods}
    searches = {name: make(name, by_method[name]) for name in methods}
    chosen_layers = _parse_layers(layers)
    usual = describe(dataset)
    further = _parse_options(data_option or [], [dataset])[dataset]
    loaded = _load(model, device=device, dtype=dtype)
    options: dict[str, Any] = {"data_dir": data_dir, "split": split, **further}
    options = {name: value for name, value in options.items() if value is not None}
    if skip_mismatched:
        options["on_mismatch"] = "skip"
    pairs = tk.load_dataset(dataset, loaded, **options)
    for line in pairs.skipped:
        _console.print(f"Skipped {line}.", highlight=False)
    pairs, outside = _split(pairs if limit is None else pairs[:limit], held_out, seed)
    tracer = tk.Tracer(
        loaded,
        pairs,
        components=components or usual.components,
        metric=metric or usual.metric,
        layers=chosen_layers,
        positions=_parse_positions(positions or usual.positions),
        mean=mean,  # type: ignore[arg-type]
        batch_size=batch_size,
        max_memory=None if max_memory is None else max_memory * 2**20,
        progress=_bars(quiet),
        held_out=outside,
    )
    _describe(tracer)
    if path:
        largest = _parse_budget(budget[0]) if budget else None
        _trace_path(tracer, largest, seed, by_method["path"], output)
        return
    for name in methods:
        _save(tracer.run(searches[name], seed=seed, **goals[name]), output)
        if tracer.results[-1].stopped == "interrupted":
            break
    _print_table(tracer.results)
    _write_all(tracer, output, tracer.results[-1], {})


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
    _console.print(table)
    _console.print(
        "Held out: chosen on one half of the examples, measured on the other. Random: as many "
        "components of every kind in every layer. Stability: Jaccard similarity of what the "
        "halves choose.",
        style="dim",
    )
    passes = found[0].cost.forward_equivalents
    extra = found.statistics_cost.forward_equivalents
    _console.print(f"{passes:.0f} passes, and {extra:.0f} for the statistics.", highlight=False)
    if found.stopped:
        why = "Ctrl-C" if found.stopped == "interrupted" else f"--{found.stopped}"
        why = why.replace("_", "-")
        _console.print(f"Stopped by {why}: these are the best sets found so far.")
    _write_figures({"path": found.curve(), "heatmap": tracer.heatmap(found[-1])}, output)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="Folder that a run was saved to.")],
    all_components: Annotated[
        bool, typer.Option("--all", help="List every selected component, however many.")
    ] = False,
) -> None:
    """Prints a saved run, or all runs below a folder."""
    import tracekit as tk

    folders = sorted(path.parent for path in run.rglob("result.json")) or [run]
    results = [tk.TraceResult.load(folder) for folder in folders]
    _print_table(results)
    for result in results if len(results) == 1 else []:
        table = Table(show_header=False, box=None)
        for name, value in (
            ("data", f"{result.dataset}, {len(result.per_example)} examples"),
            ("metric", f"{result.metric}, {result.mean} mean"),
            ("positions", result.positions),
            ("seed", result.seed),
            ("options", ", ".join(f"{k}={v}" for k, v in result.config.items() if v is not None)),
            ("versions", ", ".join(f"{k} {v}" for k, v in result.versions.items())),
        ):
            table.add_row(name, str(value))
        _console.print(table)
        labels = result.labels if all_components else result.labels[:40]
        more = "" if len(labels) == result.n_selected else ", ... (--all lists the rest)"
        _console.print(f"Selected: {', '.join(labels)}{more}", highlight=False)


@app.command()
def datasets() -> None:
    """Lists the data sets."""
    from tracekit.datasets import DATASETS

    table = Table("data set", "usually traced with", "about")
    for name, dataset in DATASETS.items():
        table.add_row(name, f"{dataset.components}, {dataset.metric}", dataset.about)
    _console.print(table)


def _load(source: str, **options: Any) -> Any:
    """Loads a model without the progress bar of transformers, which ignores where it is shown."""
    from transformers.utils import logging

    from tracekit.models import load_model

    logging.disable_progress_bar()
    return load_model(source, **options)


def _bars(quiet: bool) -> bool:
    """Progress bars only where they can be redrawn in place."""
    return not quiet and sys.stderr.isatty()


def _describe(tracer: Tracer) -> None:
    _console.print(f"{tracer}", highlight=False, soft_wrap=True)
    _console.print(f"Effect of all components together: {tracer.full_effect:.4g}")


def _print_table(results: Sequence[TraceResult]) -> None:
    """One row per result; the best effect of each comparable group in bold."""

    def group(result: TraceResult) -> tuple[object, ...]:
        measured = (result.metric, result.mean, result.positions, result.registry.describe())
        return result.budget, result.model, result.dataset_fingerprint, *measured

    several = len({group(result)[1:] for result in results}) > 1
    outside = any(result.held_out is not None for result in results)
    names = ["method", "budget", "selected", "effect", "95 % interval"]
    names += ["held out", "95 % interval"] if outside else []
    names += ["passes", "seconds"]
    table = Table(*(["model", "data", "traced"] if several else []), *names)
    for column in table.columns[1 - len(names) :]:
        column.justify = "right"
    for result in results:
        low, high = result.interval
        traced = f"{result.registry.describe()}; {result.positions}; {result.metric}"
        rivals = [other.effect for other in results if group(other) == group(result)]
        leads = len(rivals) > 1 and result.effect == max(rivals)
        table.add_row(
            *([result.model, result.dataset, traced] if several else []),
            result.method,
            "-" if result.budget is None else str(result.budget),
            f"{result.n_selected} of {result.n_components}",
            f"[bold]{result.effect:.4g}[/]" if leads else f"{result.effect:.4g}",
            f"{low:.3g} to {high:.3g}",
            *(_held_out(result) if outside else []),
            f"{result.cost.forward_equivalents:.0f}",
            f"{result.seconds:.1f}",
        )
    _console.print(table)
    _console.print(
        "Effect: mean over examples, with a bootstrap interval over examples. Passes: forward and "
        "backward, over all data; the budgets of one run share them, and its seconds.",
        style="dim",
    )


def _held_out(result: TraceResult) -> tuple[str, str]:
    """Effect on the examples that were held out, and its interval."""
    if result.held_out_effect is None or result.held_out_interval is None:
        return "-", "-"
    low, high = result.held_out_interval
    return f"{result.held_out_effect:.4g}", f"{low:.3g} to {high:.3g}"


def _save(run: TraceResult | TraceCurve, output: Path) -> None:
    """Each result of a run in its folder, as soon as the run is done."""
    from tracekit.results import TraceResult

    for result in [run] if isinstance(run, TraceResult) else run:
        size = result.n_selected if result.budget is None else result.budget
        result.save(output / f"{result.method}-{size}")


def _write_all(tracer: Tracer, output: Path, shown: TraceResult, extra: dict[str, Any]) -> None:
    """Figures as HTML, and as PNG where a browser is at hand."""
    _write_figures({"heatmap": tracer.heatmap(shown), "curve": tracer.curve(), **extra}, output)


def _write_figures(drawn: dict[str, Any], output: Path) -> None:
    from tracekit import figures

    figures.write_all({output / f"{name}.html": figure for name, figure in drawn.items()})
    try:
        figures.write_all({output / f"{name}.png": figure for name, figure in drawn.items()})
    except FigureExportError as error:
        _console.print(f"No PNG figures: {escape(str(error))}", style="dim", highlight=False)
    _console.print(f"Figures and results are in {escape(str(output))}/.", highlight=False)


def _goal(
    budgets: list[str] | None, target_effect: float | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The goal of a run, as keyword arguments."""
    values = [_parse_budget(text) for text in budgets or []]
    if target_effect is not None and values:
        raise ConfigError("Both --budget and --target-effect were given. Give one of them.")
    if target_effect is not None:
        return {"target_effect": target_effect}
    if not values and "lambda1" in options:
        return {}
    return {"budgets": values or [0.1]}


def _parse_budget(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"The budget {text!r} is not a number. Give a count such as 6 or a share such as 0.2."
        ) from None


def _parse_layers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    layers: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            layers += range(int(first), int(last if dash else first) + 1)
    except ValueError:
        raise ConfigError(
            f"The layers {text!r} are not of the form 0-5,8. Write them so."
        ) from None
    return layers


def _parse_positions(text: str) -> Any:
    if text in ("prompt", "last", "all"):
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return text


def _parse_options(texts: list[str], methods: list[str]) -> dict[str, dict[str, Any]]:
    """Options by method: `name=value` for all methods, `method:name=value` for one."""
    found: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"The option {text!r} is not of the form name=value. Write it so.")
        method, colon, rest = name.rpartition(":")
        if colon and method not in found:
            raise ConfigError(f"The option {text!r} is for {method}, which is not run.")
        for one in [method] if colon else methods:
            found[one][rest if colon else name] = value
    return found


def _quieten() -> None:
    """Keeps the libraries' own progress bars and advice out of the terminal."""
    import os
    import warnings

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)


if __name__ == "__main__":
    main()
