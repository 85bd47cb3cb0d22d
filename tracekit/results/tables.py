"""Tables of several results, and whether one table may hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracekit.errors import ComparisonError
from tracekit.results.result import TraceResult

if TYPE_CHECKING:
    import pandas as pd


def curve_data(results: Sequence[TraceResult]) -> pd.DataFrame:
    """The table behind an effect curve: a row per method and number of components.

    Methods whose history holds an effect for each of several sizes contribute all of them. Where
    two runs of a method measured the same size, the larger effect counts.

    Returns:
        A DataFrame with the columns `method`, `n_selected` and `effect`.
    """
    import pandas as pd

    rows = []
    for result in results:
        rows.append((result.series, result.n_selected, result.effect))
        if result.run.records_every_size:
            rows += [
                (result.series, int(record["n_selected"]), float(record["effect"]))
                for record in result.history
            ]
    frame = pd.DataFrame(rows, columns=["method", "n_selected", "effect"])
    frame["method"] = pd.Categorical(frame["method"], categories=frame["method"].unique())
    groups = frame.groupby(["method", "n_selected"], observed=True, as_index=False)
    return groups.agg({"effect": "max"}).astype({"method": str})


def extra_columns(results: Sequence[TraceResult]) -> dict[str, list[float]]:
    """A column per further metric by which all of the results were measured."""
    names = [
        name
        for name in results[0].extra_effects
        if all(name in result.extra_effects for result in results)
    ]
    return {name: [result.extra_effects[name] for result in results] for name in names}


def held_out_columns(results: Sequence[TraceResult]) -> dict[str, list[float | None]]:
    """Effects on held-out examples with their 95 % intervals; None where there are none."""
    ends = [result.held_out_interval or (None, None) for result in results]
    return {
        "held_out": [result.held_out_effect for result in results],
        "held_out_low": [low for low, _ in ends],
        "held_out_high": [high for _, high in ends],
    }


def circuit_columns(results: Sequence[TraceResult]) -> dict[str, list[float]]:
    """Faithfulness and completeness with intervals, held out where possible; empty if unknown."""
    if any((result.held_out or result.own).complement is None for result in results):
        return {}
    columns: dict[str, list[float]] = {}
    for scores in [result.faithfulness() for result in results]:
        for name in ("faithfulness", "completeness"):
            (ends,) = getattr(scores, f"{name}_intervals")
            values = {"": getattr(scores, name)[0], "_low": ends[0], "_high": ends[1]}
            for suffix, value in values.items():
                columns.setdefault(f"{name}{suffix}", []).append(value)
    return columns


def facts_of_model(result: TraceResult) -> str:
    """Name, revision and weights of the model of a result, and what may blur its numbers."""
    facts = result.model_facts
    parts = [result.model, f"weights {facts.weights_digest[:12] or 'not read'}"]
    parts += [f"revision {facts.revision[:12]}"] if facts.revision else []
    parts += [f"hooks left at {', '.join(facts.foreign_hooks[:3])}"] if facts.foreign_hooks else []
    parts += [f"noise floor {result.noise_floor:.2g}"] if result.noise_floor else []
    return "; ".join(parts)


def data_and_models(results: Sequence[TraceResult]) -> tuple[str, str]:
    """Names of the data sets and of the models of results, for a title."""
    data = dict.fromkeys(result.dataset for result in results)
    models = list(dict.fromkeys(result.model for result in results))
    shown = models if len(models) < 4 else [models[0], "\u2026", models[-1]]
    return " / ".join(data), " / ".join(shown)


def check_comparable(results: Sequence[TraceResult], *, of_sets: bool = False) -> None:
    """Refuses results of different questions, data or models, and says which.

    `of_sets`, which are compared and not their effects, data may differ, and models whose names do.
    """
    may_differ = {"data sets", "examples"} if of_sets else set()
    weights = {(result.model, result.model_facts.weights_digest) for result in results}
    if of_sets and len(weights) == len({model for model, _ in weights}):
        may_differ |= {"models", "weights"}
    for name, values in (
        ("models", [result.model for result in results]),
        ("weights", [result.model_facts.weights_digest[:12] for result in results]),
        ("data sets", [result.dataset for result in results]),
        ("sources", [result.setup.source for result in results]),
        ("directions", [result.setup.direction for result in results]),
        ("examples", [result.dataset_fingerprint for result in results]),
        ("metrics", [result.setup.metric for result in results]),
        ("continuation means", [result.setup.continuation_mean for result in results]),
        ("positions", [result.setup.positions for result in results]),
        ("components", [result.registry for result in results]),
    ):
        others = [value for value in values if value != values[0]]
        if others and name not in may_differ:
            is_long = name in ("examples", "components")
            shown = "" if is_long else f" ({values[0]} and {others[0]})"
            raise ComparisonError(
                f"The results are of different {name}{shown}, so one figure or table would mix "
                "numbers that mean different things. Make one for each."
            )
