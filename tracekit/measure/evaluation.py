"""Effects of a given mask or set: by one metric or several, in one direction or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, overload

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.markup import interval_text
from tracekit._util.options import as_path, check_choice
from tracekit._util.warn import warn
from tracekit.components import ComponentSet
from tracekit.components.masks import complement_of
from tracekit.components.members import ComponentsLike, mask_of, members_of, scores_of
from tracekit.engine.effects import metric_effects
from tracekit.engine.engine import Engine
from tracekit.errors import ConfigError, MaskError, UnreliableResultWarning
from tracekit.figures.style import data_and_model
from tracekit.measure.question import AnyMetric, Question, examples_of, further_metrics, on_examples
from tracekit.metrics import Direction
from tracekit.models.hooked import model_name
from tracekit.results import mib
from tracekit.results.curve import TraceCurve
from tracekit.results.faithfulness import MIB_SHARES, Faithfulness, Ranking
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult

PlannedSets = list[tuple[Engine, list[ComponentSet]]]
"""Sets that are patched, for each engine that measures some."""
_ALIKE = 0.5
"""Share of the size of effects on single examples below which their mean is mixed."""


@overload
def evaluate(question: Question, mask: ComponentsLike, *, held_out: bool | None = ...) -> float: ...


@overload
def evaluate(
    question: Question,
    mask: ComponentsLike,
    *,
    per_example: Literal[True],
    held_out: bool | None = ...,
) -> Float[Tensor, " example"]: ...


@overload
def evaluate(
    question: Question,
    mask: ComponentsLike,
    *,
    metrics: Sequence[AnyMetric],
    per_example: bool = ...,
    held_out: bool | None = ...,
) -> pd.DataFrame: ...


def evaluate(
    question: Question,
    mask: ComponentsLike,
    *,
    metrics: Sequence[AnyMetric] | None = None,
    per_example: bool = False,
    held_out: bool | None = None,
) -> float | Float[Tensor, " example"] | pd.DataFrame:
    """Mean effect of a mask.

    Args:
        question: The question.
        mask: Soft or binary, one entry in [0, 1] per component; or with the axes layer and
            component, where one kind is studied whole in every layer. Or a set: a result,
            whose selected components are taken; labels (`"L5H3"`, `["L5H3", "L7H1"]`), layer
            and index (`(5, 3)`, `{5: [3]}`), components, or `"all"`.
        metrics: Instead of the tracer's metric, several, all measured in one pass; gives a
            pandas DataFrame with a column per metric and the rows `effect`, `effect_low` and
            `effect_high` (95 % interval), `full_effect` (all components) and `share` of it; the
            name of its index says of which examples.
        per_example: Give one effect per example instead of their mean; times the example's
            weight, if examples have weights.
        held_out: Measure on the held-out examples (True) or on the searched ones (False). None:
            on the held-out ones, if the tracer has some, as everything that is said of a set.

    Raises:
        ConfigError: There are no metrics, or no held-out examples.
        MaskError: About the mask.
        ComponentError: A component that is not among those of this tracer.
        NonFiniteMetricError: The metric is NaN or infinite on some examples.
        UnknownNameError, MissingContinuationError: About one of the metrics.
    """
    if held_out and question.held_out_engine is None:
        raise ConfigError(
            "This tracer has no held-out examples. Give it some: Tracer(..., held_out=pairs)."
        )
    entries = mask_of(mask, question.registry)
    if entries.ndim != 1:
        raise MaskError(
            f"The mask has shape {tuple(entries.shape)}. evaluate() takes one mask with an "
            f"entry for each of the {len(question.registry)} components; call it once per mask."
        )
    engine = question.search_engine if held_out is False else question.eval_engine
    if metrics is None:
        effects = engine.effects(entries)
        return effects if per_example else effects.mean().item()
    resolved = further_metrics(metrics, question.direction)
    if not resolved:
        raise ConfigError("metrics is empty. Name at least one, or leave it out.")
    by_name = metric_effects(engine, entries, resolved)
    if per_example:
        frame = pd.DataFrame({name: values.numpy() for name, values in by_name.items()})
        return frame.rename_axis("example")
    full = metric_effects(engine, torch.ones_like(entries), resolved)
    rows = {}
    for name, values in by_name.items():
        rows[name] = replace(on_examples(engine, values, full=full[name]), metric=name).row()
    return pd.DataFrame(rows).rename_axis(index=_index_name(question, mask, engine))


def noising_and_denoising(question: Question, members: ComponentsLike) -> pd.DataFrame:
    """The effect of a set in both directions: is it necessary, is it sufficient?

    Noising: the set takes counterfactual values, everything else stays clean. Denoising: the set
    takes clean values, everything else stays counterfactual.

    Args:
        question: The question.
        members: A set or a mask, as in `evaluate`.

    Returns:
        A pandas DataFrame with the rows `noising` and `denoising` and the columns `effect`, with
        its 95 % interval `effect_low` and `effect_high`, `full_effect` (all components), `share` of
        it; of the held-out examples, if the tracer has some. The name of the index says so.

    Raises:
        PairsError: The source is no run of the model that denoising could start from.
    """
    mask = mask_of(members, question.registry)
    both = {each.direction: each.eval_engine for each in (question, question.opposite)}
    rows = {
        name: on_examples(both[name], both[name].effects(mask)).row()
        for name in get_args(Direction)
    }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    return frame.rename_axis(index=_index_name(question, members, question.eval_engine))


def from_mib(question: Question, path: str | Path) -> Tensor:
    """Reads importances of a file of the MIB benchmark, one for each component.

    Measure them by `faithfulness(scores, ranking="signed")`.

    Raises:
        DataFormatError: The file is none, or is of another model or other components.
    """
    return mib.read_mib(as_path("path", path), question.registry, question.model.cfg)


def _index_name(question: Question, given: ComponentsLike, engine: Engine) -> str:
    """Whether a set was selected on the examples of an engine, and how many these are."""
    entries = mask_of(given, question.registry)
    members = given if ((entries == 0) | (entries == 1)).all() else "all"
    return examples_of(engine, question.selected_on(members))


def faithfulness(
    question: Question,
    members: ComponentsLike | ParetoFront | TraceCurve,
    *,
    ranking: Ranking | None = None,
) -> Faithfulness:
    """How much sets of components do alone, and how much is left without them.

    It is measured on the held-out examples, if the tracer has some.

    Args:
        question: The question.
        members: A set or a mask, as in `evaluate`; a curve or a front, for all of its sets (with
            `budgets=MIB_SHARES`, CPR and CMD too); or, with `ranking`, a score for each component.
        ranking: Take the components with the highest scores at each share of the MIB benchmark: by
            the scores themselves (`signed`) or their absolute values (`absolute`). Of a result, by
            what its method ranked by.

    Raises:
        ConfigError: Another ranking.
        MaskError, ComponentError: About the set, or soft masks.
    """
    first = members[0] if isinstance(members, (ParetoFront, TraceCurve)) else members
    selected_on = question.selected_on(first) if isinstance(first, TraceResult) else None
    counts, n = mib.count_mib_edges(question.registry), len(question.registry)
    ((engine, sets),) = planned_faithfulness(question, members, ranking=ranking)
    sets = sets[: len(sets) // 2]
    # A set may be smaller than its budget.
    budgets = [each.budget for each in members] if isinstance(members, TraceCurve) else []
    is_mib = [int(share * n) for share in MIB_SHARES] in (budgets, [*map(len, sets)])
    rows = zip(MIB_SHARES, sets, strict=False)
    is_within = all(sum(counts[i] for i in each) <= share * sum(counts) for share, each in rows)
    follows_mib = ranking is not None or getattr(members, "largest", None) == n
    shares = MIB_SHARES if follows_mib or is_mib else ()
    own_budgets = [] if None in budgets or shares else budgets
    method = getattr(first if ranking is None else members, "method", "")
    return measure_faithfulness(
        engine,
        sets,
        shares=shares,
        budgets=tuple(own_budgets),
        ranking=ranking or "sets",
        method=method,
        intervention=question.setup.intervention,
        examples=examples_of(engine, selected_on),
        counts_like_mib=follows_mib or sum(counts) == n or is_within,
    )


def planned_faithfulness(
    question: Question,
    members: ComponentsLike | ParetoFront | TraceCurve,
    *,
    ranking: Ranking | None = None,
) -> PlannedSets:
    """What `faithfulness` patches: sets, and after them the complement of each."""
    registry, n = question.registry, len(question.registry)
    counts = mib.count_mib_edges(registry)
    most = [int(share * sum(counts)) for share in MIB_SHARES]
    if ranking is not None:
        check_choice("ranking", ranking, get_args(Ranking))
        scores = scores_of(members, registry)
        sets = mib.top_sets_counted_as_mib(
            scores if ranking == "signed" else scores.abs(), counts, most
        )
    elif isinstance(members, ParetoFront) and members.largest == n:
        of_front = [members_of(members.at(size), registry) for size in members.sizes]
        sets = mib.largest_sets_counted_as_mib(of_front, counts, most)
        # All components, of which no set of fewer may do better.
        sets[-1] = tuple(range(n))
    else:
        several = members if isinstance(members, (ParetoFront, TraceCurve)) else [members]
        sets = [members_of(each, registry) for each in several]
    return [(question.eval_engine, both_ways(sets, n))]


def both_ways(sets: Sequence[ComponentSet], n_components: int) -> list[ComponentSet]:
    """Sets, and after them the complement of each."""
    return [*sets, *(complement_of(members, n_components) for members in sets)]


def measure_faithfulness(
    engine: Engine, sets: Sequence[ComponentSet], **labels: Any
) -> Faithfulness:
    """Measures sets of flat indices and their complements; `labels` are other fields of these."""
    _warn_of_whole(engine)
    effects = engine.set_effects(both_ways(sets, engine.n_components), "faithfulness")
    return Faithfulness.of(
        effects[: len(sets)],
        effects[len(sets) :],
        engine.full_effects,
        sizes=list(map(len, sets)),
        n_components=engine.n_components,
        metric=engine.metric.name,
        data=data_and_model(engine.pairs.name, model_name(engine.model)),
        direction=engine.metric.direction,
        **engine.pairs.statistics_options,
        **labels,
    )


def _warn_of_whole(engine: Engine) -> None:
    """Warns of an effect of all components that no share of it says much about."""
    full = engine.full_effects
    mean, size = full.mean().item(), full.abs().mean().item()
    low, high = on_examples(engine, full).interval
    if low <= 0 <= high or abs(mean) < 1e-9:
        said = f"does not differ from 0 ({interval_text(low, high)}), and shares of it say little"
    elif mean < 0:
        said = "is below 0: faithful is what moves the metric as far towards that side"
    elif mean < _ALIKE * size:
        said = f"is mixed: on single examples it is {size:.3g} in size, with either sign"
    else:
        return
    warn(
        f"The effect of all components together, {mean:.3g}, {said}. Exchange x and y, or the "
        "prompts, or keep the pairs that the model knows, unless that is meant.",
        UnreliableResultWarning,
    )
