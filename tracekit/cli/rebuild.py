"""The tracer of a saved run, built again from its setup: the same model, data and question."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import tracekit as tk
from tracekit.cli.files import check_folder
from tracekit.cli.options import EXAMPLE_KEYS, OPTIONS, build_tracer
from tracekit.errors import ComparisonError, DataNotFoundError

_TOLERANCE = 1e-3
"""Share of the mean absolute effect by which a set may differ when it is measured again."""

RunFolder = Annotated[Path, typer.Argument(help="Folder that a run was saved to.")]
RUN_OPTIONS = {
    "model": OPTIONS["model"].with_help(
        "The model of the run: `demo`, a directory in Hugging Face layout, or a hub name. "
        "Default: that of the run.",
        default=None,
    ),
    "dataset": OPTIONS["dataset"].with_help(
        "The data of the run: a data set, or a .csv or .jsonl file of pairs. Default: that of the "
        "run, its options and examples.",
        default=None,
    ),
}
"""Options of a command on a saved run, where they differ from those that trace."""


def rebuild_tracer(
    run: Path, values: dict[str, Any], *folders: Path | None, is_same_model: bool = True
) -> tuple[tk.TraceResult, tk.Tracer]:
    """A saved run and its tracer, with the options of a command.

    First checks that the command can write to `folders`. The effect of the set is only compared if
    the model is to be the same.

    Raises:
        DataNotFoundError: No data set has the name of the run's data.
        ComparisonError: The examples, or the effect of the set, differ from the run.
    """
    result = tk.TraceResult.load(run)
    for folder in folders:
        check_folder(folder)
    facts = result.model_facts
    has_other_data = any(values[name] for name in ("dataset", *EXAMPLE_KEYS))
    origin = None if has_other_data else result.searched.origin
    if origin is None and values["dataset"] is None and result.dataset not in tk.data.DATASETS:
        raise DataNotFoundError(
            f"The run used {result.dataset!r}, which is not a data set of tracekit. Give its file "
            "by --dataset."
        )
    if values["limit"] is None and values["held_out"] is None:
        values = {**values, "limit": result.searched.n_examples}
    model_and_data = {
        "model": values["model"] or facts.path or result.model,
        "dataset": values["dataset"] or (result.dataset if origin is None else origin.dataset),
    }
    if values["dtype"] == "auto" and facts.dtype in ("float32", "bfloat16", "float16"):
        model_and_data["dtype"] = facts.dtype
    setup = result.setup.with_registry(result.registry)
    if values["split_by"] is not None:
        setup = replace(setup, split_by=values["split_by"])
    values = {**values, **model_and_data, "seed": result.seed, "origin": origin}
    saved = result.held_out
    values["held_out_origin"] = None if has_other_data or saved is None else saved.origin
    values["run_chat"] = result.searched.chat if has_other_data else None
    tracer = build_tracer(values, setup)
    if tracer.pairs.fingerprint != result.dataset_fingerprint:
        raise ComparisonError(
            f"The run used {result.searched.n_examples} examples of {result.dataset!r}, and these "
            f"{len(tracer.pairs)} are different ones. Give --dataset, --split, --limit, --held-out "
            "and --data-option as for the run."
        )
    examples = tracer.held_out
    if saved is not None and examples is not None and examples.fingerprint != saved.fingerprint:
        raise ComparisonError(
            f"The {len(examples)} held-out examples are not those of the run. Give "
            "--dataset, --split, --limit, --held-out and --data-option as for the run."
        )
    if is_same_model:
        effect = tracer.evaluate(result, held_out=False)
        allowed = _TOLERANCE * result.per_example.abs().mean().item() + 1e-6
        if not abs(effect - result.effect) <= allowed:
            raise ComparisonError(
                f"The set of the run has an effect of {effect:.6g} here and had "
                f"{result.effect:.6g} in the run, so this is not the same model. Give --model, "
                "--dtype and --model-option as for the run."
            )
    return result, tracer
