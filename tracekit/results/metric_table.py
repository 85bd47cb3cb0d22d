"""Effects of one set by several metrics, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tracekit.data.prompts import PromptPairs
from tracekit.engine.effects import metric_effects
from tracekit.engine.engine import Engine
from tracekit.metrics import Bounds, Metric
from tracekit.results.intervals import effect_interval

if TYPE_CHECKING:
    import pandas as pd


def metric_table(
    engine: Engine, mask: Tensor, metrics: Sequence[Metric], *, per_example: bool
) -> pd.DataFrame:
    """A pandas DataFrame with a column per metric, from two passes over the data.

    Its rows are examples or, of all of them, `effect`, `low` and `high` (95 % interval),
    `full_effect` (all components together) and `share` of it. Metrics are in the direction of the
    engine.
    """
    import pandas as pd

    effects = metric_effects(engine.data, mask, metrics)
    if per_example:
        frame = pd.DataFrame({name: values.numpy() for name, values in effects.items()})
        return frame.rename_axis("example")
    full_effects = metric_effects(engine.data, torch.ones_like(mask), metrics)
    bounds = {metric.name: metric.bounds for metric in metrics}
    columns = {
        name: effect_row(values, full_effects[name], engine.pairs, bounds[name])
        for name, values in effects.items()
    }
    return pd.DataFrame(columns)


def effect_table(engines: Mapping[str, Engine], mask: Tensor) -> pd.DataFrame:
    """A pandas DataFrame with a row for the effect of a mask by each of several engines."""
    import pandas as pd

    rows = {
        name: effect_row(
            engine.effects(mask), engine.full_effects, engine.pairs, engine.metric.bounds
        )
        for name, engine in engines.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def effect_row(
    effects: Tensor, full_effects: Tensor, pairs: PromptPairs, bounds: Bounds
) -> dict[str, float]:
    """Entries of a set in a table: `effect`, `low`, `high`, `full_effect`, `share`."""
    low, high = effect_interval(effects, bounds=bounds, **pairs.over)
    effect, full = effects.mean().item(), full_effects.mean().item()
    share = effect / full if full else float("nan")
    return {"effect": effect, "low": low, "high": high, "full_effect": full, "share": share}
