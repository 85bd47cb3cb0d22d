"""The tracer of a saved run, built again: the same model, data, components and metric."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.options import (
    WHAT,
    ByOption,
    DataDir,
    DataOption,
    Device,
    Dtype,
    HeldOut,
    Limit,
    MaxBatchSize,
    ModelOption,
    SkipMismatched,
    Split,
    build_tracer,
)
from tracekit.errors import ComparisonError, DataNotFoundError

if TYPE_CHECKING:
    from tracekit.results import TraceResult
    from tracekit.tracer.tracer import Tracer

__all__ = [
    "ByOption",
    "DataDir",
    "DataOption",
    "DatasetOfRun",
    "Device",
    "Dtype",
    "HeldOut",
    "Limit",
    "MaxBatchSize",
    "ModelOfRun",
    "ModelOption",
    "Run",
    "SkipMismatched",
    "Split",
    "rebuild_tracer",
]
_TOLERANCE = 1e-3
"""Share of the mean absolute effect by which a set may differ when it is measured again."""

Run = Annotated[Path, typer.Argument(help="Folder that a run was saved to.")]
ModelOfRun = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="The model of the run: `demo`, a directory in Hugging Face layout, or a hub name. "
        "Default: the name that the run has.",
        rich_help_panel=WHAT,
    ),
]
DatasetOfRun = Annotated[
    str | None,
    typer.Option(
        "--dataset",
        metavar="NAME",
        help="The data of the run: a data set, or a .csv or .jsonl file of pairs. Default: the "
        "name that the run has.",
        rich_help_panel=WHAT,
    ),
]


def rebuild_tracer(
    result: TraceResult,
    *,
    model: str | None,
    dataset: str | None,
    data_dir: Path | None,
    data_option: list[str] | None,
    split: str | None,
    skip_mismatched: bool,
    limit: int | None,
    held_out: float | None,
    by: str | None,
    model_option: list[str] | None,
    device: str | None,
    dtype: str,
    max_batch_size: int,
    quiet: bool,
) -> Tracer:
    """Builds the tracer of a run once more; the arguments are the options of a command.

    Everything that the run says is taken from it. The set of the run is measured once, and must
    have the effect that the run says.

    Raises:
        DataNotFoundError: The run is of data that no data set has the name of.
        ComparisonError: The examples are others, or the set has another effect here.
    """
    from tracekit.data.registry import DATASETS

    if dataset is None and result.dataset not in DATASETS:
        raise DataNotFoundError(
            f"The run is of {result.dataset!r}, which is no data set of tracekit. Give its file by "
            "--dataset."
        )
    if limit is None and held_out is None:
        limit = len(result.per_example)
    tracer = build_tracer(
        model=model or result.model,
        dataset=dataset or result.dataset,
        data_dir=data_dir,
        data_option=data_option,
        split=split,
        skip_mismatched=skip_mismatched,
        limit=limit,
        components=result.registry,
        metric=result.metric,
        positions=result.positions,
        by=by or result.by or ("span" if result.registry.spans else None),
        source=result.source,
        source_seed=result.source_seed,
        direction=result.direction,
        continuation_mean=result.continuation_mean,
        model_option=model_option,
        device=device,
        dtype=dtype,
        max_batch_size=max_batch_size,
        held_out=held_out,
        seed=result.seed,
        quiet=quiet,
    )
    _check_same(tracer, result)
    return tracer


def _check_same(tracer: Tracer, result: TraceResult) -> None:
    if tracer.pairs.fingerprint != result.dataset_fingerprint:
        raise ComparisonError(
            f"The run is of {len(result.per_example)} examples of {result.dataset!r}, and these "
            f"{len(tracer.pairs)} are not the same. Give --dataset, --split, --limit, --held-out "
            "and --data-option as for the run."
        )
    effect = tracer.evaluate(result)
    allowed = _TOLERANCE * result.per_example.abs().mean().item() + 1e-6
    if not abs(effect - result.effect) <= allowed:
        raise ComparisonError(
            f"The set of the run has an effect of {effect:.6g} here and had {result.effect:.6g} in "
            "the run, so the model is another one. Give --model, --dtype and --model-option as for "
            "the run."
        )
