"""Effects of a given mask or set: by one metric or several, in one direction or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from tracekit.components.members import mask_of
from tracekit.engine.effects import metric_effects
from tracekit.engine.engine import Engine
from tracekit.errors import ConfigError, MaskError
from tracekit.metrics import Direction, Effects, Metric, MetricFunction
from tracekit.results.mib import model_sizes, read_mib
from tracekit.results.on_examples import OnExamples
from tracekit.results.traced import Traced

if TYPE_CHECKING:
    import pandas as pd


def evaluate(
    traced: Traced,
    mask: Any,
    *,
    metrics: Sequence[str | Metric | MetricFunction] | None = None,
    per_example: bool = False,
    held_out: bool | None = None,
) -> float | Effects | pd.DataFrame:
    """Mean effect of a mask; see `Tracer.evaluate`."""
    if held_out and traced.held_out is None:
        raise ConfigError(
            "This tracer has no held-out examples. Give it some: Tracer(..., held_out=pairs)."
        )
    entries = mask_of(mask, traced.registry)
    if entries.ndim != 1:
        raise MaskError(
            f"The mask has shape {tuple(entries.shape)}. evaluate() takes one mask with an "
            f"entry for each of the {len(traced.registry)} components; call it once per mask."
        )
    engine = traced.own if held_out is False else traced.fresh
    if metrics is None:
        effects = engine.effects(entries)
        return effects if per_example else effects.mean().item()
    resolved = traced.bound.metrics(metrics)
    if not resolved:
        raise ConfigError("metrics is empty. Name at least one, or leave it out.")
    frame = _by_metric(engine, entries, resolved, per_example=per_example)
    return frame if per_example else frame.rename_axis(index=_said(traced, mask, engine))


def noising_and_denoising(traced: Traced, members: Any) -> pd.DataFrame:
    """The effect of a set in both directions: is it necessary, is it sufficient?

    Noising: the set takes counterfactual values, everything else stays clean. Denoising: the set
    takes clean values, everything else stays counterfactual.

    Args:
        traced: The question, laid out.
        members: A set or a mask, as in `evaluate`.

    Returns:
        A pandas DataFrame with the rows `noising` and `denoising` and the columns `effect`, `low`
        and `high` (95 % interval), `full_effect` (all components), `share` of it; of the held-out
        examples, if the tracer has some. The name of the index says so.

    Raises:
        PairsError: The source is no run of the model that denoising could start from.
    """
    import pandas as pd

    mask = mask_of(members, traced.registry)
    both = {each.direction: each.fresh for each in (traced, traced.opposite)}
    rows = {
        name: OnExamples.of(both[name], both[name].effects(mask)).row()
        for name in get_args(Direction)
    }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    return frame.rename_axis(index=_said(traced, members, traced.fresh))


def from_mib(traced: Traced, path: str | Path) -> Tensor:
    """Reads importances of a file of the MIB benchmark, one for each component.

    Measure them by `faithfulness(scores, ranking="signed")`.

    Raises:
        DataFormatError: The file is none, or is of another model or other components.
    """
    return read_mib(Path(path), traced.registry, model_sizes(traced.model.cfg))


def _said(traced: Traced, given: Any, engine: Engine) -> str | None:
    """Whether a set was selected on the examples of an engine; None of a soft mask."""
    entries = mask_of(given, traced.registry)
    is_set = bool(((entries == 0) | (entries == 1)).all())
    return traced.said_of(given, engine) or None if is_set else None


def _by_metric(
    engine: Engine, mask: Tensor, metrics: Sequence[Metric], *, per_example: bool
) -> pd.DataFrame:
    """A pandas DataFrame with a column per metric, from two passes over the data.

    Its rows are examples or, of all of them, those of `OnExamples.row`. Metrics are in the
    direction of the engine.
    """
    import pandas as pd

    effects = metric_effects(engine.data, mask, metrics)
    if per_example:
        frame = pd.DataFrame({name: values.numpy() for name, values in effects.items()})
        return frame.rename_axis("example")
    full = metric_effects(engine.data, torch.ones_like(mask), metrics)
    own = OnExamples.of(engine, engine.full_effects)
    columns = {
        metric.name: replace(
            own, effects=effects[metric.name], full=full[metric.name], metric=metric.name
        ).row()
        for metric in metrics
    }
    return pd.DataFrame(columns)
