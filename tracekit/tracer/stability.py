"""Repeats a search on resampled examples: would other examples have led to the same members?"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from tracekit._util import progress
from tracekit._util.names import MethodName, SignName
from tracekit._util.options import check_int, short_repr
from tracekit.components.masks import BinaryMask, members_of_mask
from tracekit.engine import checks
from tracekit.engine.cost import Cost
from tracekit.engine.resampled import ResampledEngine, SharedMeasurements
from tracekit.errors import ConfigError
from tracekit.measure.question import Question
from tracekit.results.by_component import Stability
from tracekit.search import DEFAULT_METHOD, Search, make
from tracekit.search.objectives import Objective, ObjectiveName
from tracekit.search.prefix import drop_idle_edges
from tracekit.tracer.request import Request, resolve_request


def stability(
    question: Question,
    method: MethodName | type | Search = DEFAULT_METHOD,
    *,
    budget: int | float,
    resamples: int = 20,
    threshold: float = 0.9,
    objective: ObjectiveName | Objective | None = None,
    sign: SignName | None = None,
    seed: int = 0,
    **options: Any,
) -> Stability:
    """Repeats a search on resampled examples, and counts how often each component is selected.

    A resample has as many independent examples as the searched ones, drawn from them with
    replacement (the bootstrap); pairs of one group stay together. What several resamples measure is
    measured once, on all examples: every set, and gradients at masks whose entries are equal, which
    are all that gradient rankings of masks need. Ctrl-C keeps the resamples so far.

    Args:
        question: The question.
        method: As in `run`, with its options.
        budget: As in `run`.
        resamples: Number of searches, at least 2.
        threshold: Share of the resamples from which on a component counts as stable, in (0, 1].
        objective: As in `run`.
        sign: As in `run`.
        seed: Draws the resamples, and is the seed of the first search; the next seed is that of the
            second, and so on.
        **options: Of the method.

    Raises:
        ConfigError: Fewer resamples, another threshold, or about the search.
        UnknownNameError, BudgetError, NothingFoundError: As in `run`.
    """
    check_int("resamples", resamples, 2)
    if not 0 < threshold <= 1:
        raise ConfigError(f"threshold is {short_repr(threshold)}. Give a share in (0, 1].")
    search = make(method, options, signature(stability).parameters)
    asked = Request(search=search, budget=budget, objective=objective, sign=sign, seed=seed)
    request = resolve_request(question, asked)
    engine, measured = question.search_engine, question.eval_engine
    checks.check_model_unchanged(engine)
    target, before, cost = request.target(), measured.cost, Cost()
    shared = SharedMeasurements(engine)
    generator = torch.Generator().manual_seed(seed)
    masks: list[BinaryMask] = []
    name = f"stability of {search.name}"
    with progress.open_bar(name, None, engine.n_examples, shown=engine.config.progress):
        try:
            for number in range(resamples):
                rows = _resample(target.pairs.clusters, engine.n_examples, generator)
                part = target.with_engine(ResampledEngine.draw(shared, rows))
                (selection,) = search.search(part, request.goal_of_search, seed + number)
                if selection.stopped == "interrupted":
                    raise KeyboardInterrupt
                masks.append(drop_idle_edges(part, selection).mask)
                cost += part.cost
        except KeyboardInterrupt:
            if len(masks) < 2:
                raise
    chosen = torch.stack(masks).double()
    frequencies = chosen.mean(0)
    stable = members_of_mask(frequencies >= threshold - 1e-6)
    effects = measured.set_effects([*map(members_of_mask, masks), stable], "sets of the resamples")
    facts = question.facts_of(measured, before)
    return Stability(
        members=stable,
        frequencies=frequencies.float(),
        threshold=threshold,
        method=getattr(search, "title", search.name),
        n_resamples=len(masks),
        n_selected=chosen.sum(1).mean().item(),
        effects=effects[-1],
        mean_effect=effects[:-1].mean().item(),
        selected_on=engine.fingerprint,
        **{**facts, "cost": cost - shared.saved + facts["cost"]},
    )


def _resample(
    clusters: Int[Tensor, " example"] | None, n_examples: int, generator: torch.Generator
) -> list[int]:
    """Numbers of the examples of a resample: whole clusters, drawn with replacement."""
    of_example = torch.arange(n_examples) if clusters is None else clusters
    n = int(of_example.max()) + 1
    drawn = torch.randint(n, (n,), generator=generator)
    return [row for each in drawn for row in (of_example == each).nonzero().flatten().tolist()]
