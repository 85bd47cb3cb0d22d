"""Options that commands share, and the tracer that is built from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracekit.cli.app import PANELS
from tracekit.cli.output import check_file, load, progress_is_shown
from tracekit.cli.parsing import (
    as_arguments,
    parse_layers,
    parse_loading,
    parse_options,
    parse_positions,
)
from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.components import ComponentRegistry
    from tracekit.search import Keep
    from tracekit.tracer.tracer import Tracer

_, WHAT, DATA, MODEL, HOW, LIMITS, WHERE, OUTPUT = PANELS

Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="Folder for figures and results; made if missing.",
        rich_help_panel=OUTPUT,
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of every search.", rich_help_panel=HOW)]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.", rich_help_panel=OUTPUT)]

# ---- what is traced -------------------------------------------------------------------------


def _read_config(context: Any, path: Path | None) -> Path | None:
    """Makes the options of a file the defaults of a command."""
    from tracekit._util.toml import read_options

    if path is not None:
        options = {parameter.name: parameter for parameter in context.command.params}
        keys = {name for name in options if name and name not in _OF_THE_FILE}
        context.default_map = {
            name: as_arguments(value, is_list=bool(getattr(options[name], "multiple", False)))
            for name, value in read_options(path, keys).items()
        }
    return path


_OF_THE_FILE = ("config", "save_config_to", "dry_run")

Config = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="TOML file of these options, e.g. limit = 32. What is given here counts more.",
        callback=_read_config,
        is_eager=True,
        rich_help_panel=OUTPUT,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print how long it will take, from one timed probe; run and write nothing.",
        rich_help_panel=LIMITS,
    ),
]
SaveConfig = Annotated[
    Path | None,
    typer.Option(
        "--save-config",
        metavar="PATH",
        help="File to write all of these options to.",
        rich_help_panel=OUTPUT,
    ),
]


def save_config(path: Path | None, options: Mapping[str, Any]) -> None:
    """Writes the options of a command to a file that `--config` reads; None: to none.

    Raises:
        OutputError: The file cannot be written.
    """
    from tracekit._util.toml import write_options

    if path is not None:
        check_file(path)
        write_options(path, {n: v for n, v in options.items() if n not in _OF_THE_FILE})


Model = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="`demo`, a directory in Hugging Face layout, or a hub name.",
        rich_help_panel=WHAT,
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Option of loading the model as name=value, e.g. device_map=auto, n_devices=2 or "
        "revision=main; may be given several times.",
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="E.g. cpu or cuda:0.", rich_help_panel=MODEL)
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="auto (as the checkpoint says), float32, bfloat16 or float16.",
        rich_help_panel=MODEL,
    ),
]
DatasetName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="A data set (`tracekit datasets` lists them), or a .csv or .jsonl file of pairs.",
        rich_help_panel=WHAT,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Folder with the data set's files. Default: downloaded once.",
        rich_help_panel=DATA,
    ),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Option of the data set as name=value, e.g. seed=1; may be given several times.",
        rich_help_panel=DATA,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Split of the data set, e.g. test.", rich_help_panel=DATA),
]
SkipMismatched = Annotated[
    bool,
    typer.Option(
        "--skip-mismatched",
        help="Drop examples whose counterfactual has another length.",
        rich_help_panel=DATA,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Use only the first N examples.", rich_help_panel=DATA),
]
Components = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="attention-patterns, head-outputs, mlp-outputs, mlp-neurons, mlp-blocks, "
        "attention-blocks, queries, keys, values, residual, residual-before, residual-between, "
        "or several joined by +. Default: what the data set is usually traced with.",
        rich_help_panel=WHAT,
    ),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="odds-ratio, probability-drop, probability-ratio, logit-difference, accuracy, kl, "
        "jensen-shannon, entropy-change, set-logit-difference, set-probability-difference, "
        "rank-change, first-choice-change. Default: by the data set.",
        rich_help_panel=WHAT,
    ),
]
Also = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A further metric that every result is measured by; may be given several times.",
        rich_help_panel=WHAT,
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="Layers to study, e.g. 0-5,8. Default: all.", rich_help_panel=WHAT
    ),
]
PositionScope = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="prompt, last, all, or prompt positions such as 0,3,-1.",
        rich_help_panel=WHAT,
    ),
]
ByOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="What is told apart besides: span (named parts of the prompts) or position.",
        rich_help_panel=WHAT,
    ),
]
Windows = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="Consecutive layers in which a component acts at once.",
        rich_help_panel=WHAT,
    ),
]
SourceOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Where the values come from that are put in: counterfactual, noise, zero, mean, "
        "mean-positional, resample, or noise on spans, e.g. 'noise on subject'.",
        rich_help_panel=WHAT,
    ),
]
DirectionOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="noising: counterfactual values into the clean run. denoising: clean values back.",
        rich_help_panel=WHAT,
    ),
]
MeanOfTokens = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Mean over continuation tokens: geometric or arithmetic.",
        rich_help_panel=WHAT,
    ),
]
# Named here too: PyTorch is not imported for a page of help.
_Objective = Literal["mean", "log-odds", "trimmed-mean", "lower-bound", "median", "auto"]
_OBJECTIVE = typer.Option(
    metavar="NAME",
    help="What is maximised over the examples: mean, log-odds, trimmed-mean, lower-bound, median "
    "or auto; mean effects are reported all the same. auto: the mean, by the search or by single "
    "effects, whichever holds on the other half.",
    rich_help_panel=HOW,
)
ObjectiveChoice = Annotated[_Objective, _OBJECTIVE]
FrontObjective = Annotated[_Objective | None, _OBJECTIVE]
KeepAtMost = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Search only sets whose effect by the kept metric is at most this.",
        rich_help_panel=HOW,
    ),
]
KeepMetric = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The metric that is to stay within it. Default: kl.",
        rich_help_panel=HOW,
    ),
]
KeepDataset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The data it is measured on, e.g. a .jsonl file of neutral text. Default: the traced.",
        rich_help_panel=HOW,
    ),
]
MaxBatchSize = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="Examples per pass; bounds memory, changes no result.",
        rich_help_panel=LIMITS,
    ),
]
MaxMemory = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="MiB that counterfactual activations may take on the device.",
        rich_help_panel=LIMITS,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of runs at a time, each on a CUDA device of its own if there are several. "
        "Default: 1, or as many as the executor has workers.",
        rich_help_panel=WHERE,
    ),
]
Part = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Such as 3/16: only every sixteenth run, beginning with the third, and no report. "
        "For arrays of jobs and several shells.",
        rich_help_panel=WHERE,
    ),
]
ExecutorAddress = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="TEXT",
        help="dask://HOST:PORT: the workers of a Dask scheduler. submitit://slurm: jobs of Slurm. "
        "Default: this machine.",
        rich_help_panel=WHERE,
    ),
]
ExecutorOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Parameter of submitit as name=value, e.g. timeout_min=240 or slurm_partition=gpu; "
        "may be given several times.",
        rich_help_panel=WHERE,
    ),
]
HeldOut = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Share of the examples that no method sees, e.g. 0.2, to measure on.",
        rich_help_panel=DATA,
    ),
]


def check_data(*datasets: str | None, data_dir: Path | None = None) -> None:
    """Checks files of pairs and the folder with data, before a model is loaded.

    Args:
        *datasets: Names of data sets, or files of pairs; None is none.
        data_dir: Folder with data.

    Raises:
        DataNotFoundError: A file or the folder is not there.
        DataFormatError: A file has not the form of one of pairs.
    """
    from tracekit.data.from_file import SUFFIXES, read_rows
    from tracekit.errors import DataNotFoundError

    for dataset in datasets:
        if dataset is not None and dataset.endswith(SUFFIXES):
            read_rows(Path(dataset))
    if data_dir is not None and not data_dir.is_dir():
        raise DataNotFoundError(f"There is no folder {data_dir} with data files. Give another.")


def build_keep(
    tracer: Tracer, at_most: float | None, metric: str | None, dataset: str | None
) -> Keep | None:
    """What a search is to leave as it is; the arguments are options of a command.

    Raises:
        ConfigError: A data set or a metric without a bound.
    """
    import tracekit as tk

    if at_most is None:
        for option, given in (("--keep-dataset", dataset), ("--keep-metric", metric)):
            if given is not None:
                raise ConfigError(f"{option} needs a bound. Give --keep-at-most, e.g. 0.05.")
        return None
    pairs = None if dataset is None else tk.load_dataset(dataset, tracer.model)
    return tk.Keep(pairs=pairs, metric=metric or "kl", at_most=at_most)


def build_tracer(
    *,
    model: str,
    dataset: str,
    data_dir: Path | None = None,
    data_option: list[str] | None = None,
    split: str | None = None,
    skip_mismatched: bool = False,
    limit: int | None = None,
    components: str | ComponentRegistry | None = None,
    metric: str | None = None,
    also: list[str] | None = None,
    layers: str | None = None,
    positions: str | Sequence[int] | None = None,
    by: str | None = None,
    windows: int = 1,
    source: str = "counterfactual",
    source_seed: int | None = None,
    direction: str = "noising",
    continuation_mean: str = "geometric",
    model_option: list[str] | None = None,
    device: str | None = None,
    dtype: str = "auto",
    max_batch_size: int = 64,
    max_memory: int | None = None,
    held_out: float | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> Tracer:
    """Loads model and data and builds the tracer; the arguments are the options of a command.

    Layers, the name of the data set and the form of options are checked before the model is loaded.
    """
    import tracekit as tk
    from tracekit._util.ranks import own_device
    from tracekit.cli.output import join_ranks, print_skipped
    from tracekit.data.registry import describe
    from tracekit.engine.sources import source_of_name

    join_ranks()
    layer_list = parse_layers(layers)
    check_data(dataset, data_dir=data_dir)
    usual = describe(dataset)
    data_options: dict[str, Any] = parse_options(data_option or [], [dataset])[dataset]
    data_options |= {} if data_dir is None else {"data_dir": data_dir}
    data_options |= {} if split is None else {"split": split}
    data_options |= {"on_mismatch": "skip"} if skip_mismatched else {}
    if device in (None, "cuda"):
        device = own_device() or device
    loaded = load(model, device=device, dtype=dtype, **parse_loading(model_option))
    pairs = tk.load_dataset(dataset, loaded, **data_options)
    print_skipped(pairs)
    pairs = pairs if limit is None else pairs[:limit]
    held_out_pairs = None
    if held_out is not None:
        pairs, held_out_pairs = pairs.split(1 - held_out, seed=seed)
    positions = positions or ("prompt" if by else usual.positions)
    return tk.Tracer(
        loaded,
        pairs,
        components=components or usual.components,
        metric=metric or usual.metric,  # type: ignore[arg-type]
        layers=layer_list,
        positions=parse_positions(positions) if isinstance(positions, str) else positions,
        split_by=by,  # type: ignore[arg-type]
        layer_window=windows,
        source=source_of_name(source),
        direction=direction,  # type: ignore[arg-type]
        source_seed=seed if source_seed is None else source_seed,
        continuation_mean=continuation_mean,  # type: ignore[arg-type]
        max_batch_size=max_batch_size,
        max_memory=None if max_memory is None else max_memory * 2**20,
        progress=progress_is_shown(quiet),
        held_out=held_out_pairs,
        extra_metrics=also or (),  # type: ignore[arg-type]
    )
