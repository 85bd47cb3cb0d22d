"""Tracer: the face people meet. A model, a data set, components and a metric, ready to trace."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, overload

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit import checks
from tracekit.components import Component, ComponentRegistry
from tracekit.data.prompts import PromptPairs
from tracekit.engine.batch import Positions
from tracekit.engine.engine import Cost, Engine
from tracekit.errors import (
    ComponentError,
    MaskShapeError,
    NoResultError,
    NothingMeasuredError,
    SearchStoppedWarning,
)
from tracekit.masks import Mask
from tracekit.metrics import Mean, Metric, MetricFunction
from tracekit.metrics import resolve as resolve_metric
from tracekit.models.loading import HookedModel, load_model, model_name
from tracekit.results import interactions, pareto_front
from tracekit.results.pareto_front import TracePath
from tracekit.results.result import TraceCurve, TraceResult, versions
from tracekit.search import Found, Goal, PathSearch, Search, make

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MAX_PAIRED = 256
_T = TypeVar("_T")


class _Spent(NamedTuple):
    """What a search took."""

    cost: Cost
    seconds: float


class Tracer:
    """Traces which components of a model jointly move a metric.

    ```python
    tracer = tk.Tracer(model, pairs, components="heads", metric="odds-ratio")
    result = tracer.run(budget=0.2)
    tracer.heatmap()
    ```

    Building one checks every hook point on this very model (see `tracekit.checks`), so a run never
    rests on a hook that does nothing.
    """

    def __init__(
        self,
        model: HookedModel | str | Path,
        pairs: PromptPairs,
        components: str | Sequence[str] | ComponentRegistry = "heads",
        metric: str | Metric | MetricFunction = "odds-ratio",
        *,
        layers: Sequence[int] | None = None,
        indices: Sequence[int] | Mapping[int, Sequence[int]] | None = None,
        positions: Positions = "prompt",
        mean: Mean = "geometric",
        batch_size: int = 64,
        max_memory: int | None = None,
        progress: bool = False,
        held_out: PromptPairs | None = None,
    ) -> None:
        """Sets a trace up and checks it.

        Args:
            model: A TransformerLens model, or anything `load_model` takes.
            pairs: The data set.
            components: Kind or kinds (see `tracekit.components.KINDS`), joined by `+` or in a
                list; or a registry.
            metric: Name of a metric (see `tracekit.metrics.METRICS`), a `Metric`, or a callable
                of the clean and the intervened `Scores`.
            layers: Layers to study; all by default.
            indices: Heads, neurons or units to study in every layer, or by layer.
            positions: Where to intervene: `prompt`, `last`, `all`, or prompt positions.
            mean: Probability of a continuation of several tokens: `geometric` or `arithmetic`
                mean of its token probabilities.
            batch_size: Examples per pass; bounds memory, changes no result.
            max_memory: Bytes that the activations of the counterfactual run may take on the
                model's device; see `Engine`. Changes no result.
            progress: Whether to show progress bars.
            held_out: Examples that no search sees; every result says what its selection does on
                them (`TraceResult.held_out_effect`). `pairs.split` makes some.

        Raises:
            HookPointError: A component cannot be intervened on in this model.
            IdentityCheckError: The empty mask has an effect, or the full mask has none.
        """
        self.model = model if isinstance(model, HookedModel) else load_model(model)
        if not isinstance(components, ComponentRegistry):
            components = ComponentRegistry.build(
                self.model.cfg, components, layers=layers, indices=indices
            )
        elif layers is not None or indices is not None:
            raise ComponentError(
                "layers and indices were given along with a registry, which has its own. "
                "Leave them out, or give kinds instead of a registry."
            )
        self.engine = Engine(
            self.model,
            pairs,
            components,
            resolve_metric(metric),
            positions=positions,
            mean=mean,
            batch_size=batch_size,
            max_memory=max_memory,
            progress=progress,
        )
        checks.check_sites(self.model, components)
        checks.check_engine(self.engine)
        self._outside = None if held_out is None else self.engine.restricted(held_out)
        self.results: list[TraceResult] = []
        """All results of `run`, in order."""

    @property
    def registry(self) -> ComponentRegistry:
        """The components under study."""
        return self.engine.registry

    @property
    def pairs(self) -> PromptPairs:
        """The data set."""
        return self.engine.pairs

    @property
    def full_effect(self) -> float:
        """Mean effect of all components together."""
        return self.engine.full_effects.mean().item()

    def __repr__(self) -> str:
        return (
            f"Tracer({self.registry.describe()} of {model_name(self.model)}, "
            f"{len(self.pairs)} examples of {self.pairs.name}, {self.engine.metric.name})"
        )

    # ---- searching ------------------------------------------------------------------------

    @overload
    def run(
        self,
        method: str | type | Search = ...,
        *,
        budget: int | float | None = ...,
        target_effect: float | None = ...,
        seed: int = ...,
        **options: Any,
    ) -> TraceResult: ...

    @overload
    def run(
        self,
        method: str | type | Search = ...,
        *,
        budgets: Sequence[int | float],
        seed: int = ...,
        **options: Any,
    ) -> TraceCurve: ...

    def run(
        self,
        method: str | type | Search = "pgb-ct",
        *,
        budget: int | float | None = None,
        budgets: Sequence[int | float] | None = None,
        target_effect: float | None = None,
        seed: int = 0,
        **options: Any,
    ) -> TraceResult | TraceCurve:
        """Searches for a small set of components with a large effect.

        Args:
            method: `pgb-ct`, `path`, `dcm`, `top-k`, `greedy`, `random`, `exhaustive`, `mask-ig`,
                `attribution`, or a search such as `PGBCT(epochs=30)`, of tracekit or of your own.
            budget: Largest number of components: a count (int) or a share (float), rounded down.
            budgets: Several budgets; gives a `TraceCurve`.
            target_effect: Instead of a budget, the mean effect to reach with as few components
                as possible.
            seed: Seed of the search; the same seed gives the same result.
            **options: Fields of the search, e.g. `lambda1=1e-3` or `draws=200`.

        Returns:
            A `TraceResult`, or with `budgets` a `TraceCurve` of them, ascending.

        Raises:
            UnknownMethodError, UnknownOptionError, ConfigError: About the search.
            BudgetError: About the budget.
            TargetNotReachedError: No set that was tried reaches the target.
            IdentityCheckError: The model's weights or hooks changed since the Tracer was built.
        """
        search = make(method, options)
        goal = Goal.make(
            len(self.registry), budget=budget, budgets=budgets, target_effect=target_effect
        )
        found, spent = self._accounted(lambda: search.search(self.engine, goal, seed))
        results = [self._result(search, one, goal, seed, spent) for one in found]
        self.results += results
        if any(result.stopped == "interrupted" for result in results):
            _warn("Stopped by Ctrl-C: the result is the best found so far.")
        return results[0] if budgets is None else TraceCurve(tuple(results))

    def path(
        self,
        *,
        max_budget: int | float | None = None,
        statistics: bool = True,
        seed: int = 0,
        **options: Any,
    ) -> TracePath:
        """Searches the best set of every size in one run.

        Ctrl-C, `max_seconds` and `max_forwards` end the search with the best found so far; with
        `checkpoint`, a file, the same call goes on where it stopped.

        Args:
            max_budget: Largest size: a count (int) or a share (float). None: all components.
            statistics: Whether to measure held-out effects, random controls and stability, at up
                to 12 sizes. That takes two searches on half the examples each, about as long as
                the path itself; their passes are in `statistics_cost`, and limits apply to each
                of the three searches. `max_memory` bounds what each holds; while a half is
                searched, two are held.
            seed: Seed of the search, of the halves and of the controls.
            **options: Fields of `PathSearch`, e.g. `max_forwards=300`.

        Raises:
            UnknownOptionError, ConfigError: About the options.
            BudgetError: About `max_budget`.
            NotDifferentiableError: The metric has no gradient.
            NothingMeasuredError: A limit was reached before any set was measured.
            CheckpointError: The checkpoint is damaged, or of another search, model or data set.
        """
        search = cast(PathSearch, make(PathSearch, options))
        n = len(self.registry)
        goal = Goal.make(n, budget=1.0 if max_budget is None else max_budget)
        walk, spent = self._accounted(lambda: search.walk(self.engine, goal, seed))
        results = [
            self._result(search, walk.found(size, size), goal, seed, spent)
            for size in walk.frontier.improving
        ]
        path = TracePath(tuple(results), goal.budgets[-1], pareto_front.ranking_of(walk))
        if walk.stopped == "interrupted":
            _warn("Stopped by Ctrl-C: the path holds the best sets found so far, no statistics.")
        elif statistics:
            # What was searched is not lost for what could not be added to it.
            try:
                taken, extra = pareto_front.statistics_of(self.engine, search, walk, seed)
            except KeyboardInterrupt:
                _warn("Stopped by Ctrl-C: the path is complete, but has no statistics.")
            except NothingMeasuredError:
                _warn("The limits left no room for statistics: the path has none.")
            else:
                return replace(path, statistics=taken, statistics_cost=extra)
        return path

    def _accounted(self, work: Callable[[], _T]) -> tuple[_T, _Spent]:
        """Does what a search does on an unchanged model, and says what it took."""
        _ = self.full_effect  # Shared by all methods, so it counts for none.
        checks.check_unchanged(self.engine)
        cost, start = self.engine.cost, time.perf_counter()
        done = work()
        return done, _Spent(self.engine.cost - cost, time.perf_counter() - start)

    def _result(
        self, search: Search, found: Found, goal: Goal, seed: int, spent: _Spent
    ) -> TraceResult:
        engine = self.engine
        return TraceResult(
            method=search.name,
            config=config_of(search),
            registry=engine.registry,
            binary_mask=found.mask,
            soft_mask=found.mask.float() if found.soft_mask is None else found.soft_mask,
            scores=found.scores,
            effect=found.effects.mean().item(),
            per_example=found.effects,
            full_effect=self.full_effect,
            held_out=None if self._outside is None else self._outside.effects(found.mask),
            budget=found.budget,
            target_effect=goal.target,
            history=found.history,
            seed=seed,
            cost=spent.cost + found.saved,
            seconds=spent.seconds,
            stopped=found.stopped,
            metric=engine.metric.name,
            metric_axis=engine.metric.axis,
            mean=engine.mean,
            positions=engine.positions
            if isinstance(engine.positions, str)
            else tuple(engine.positions),
            model=model_name(self.model),
            dataset=engine.pairs.name,
            dataset_fingerprint=engine.pairs.fingerprint,
            versions=versions(),
        )

    # ---- measuring ------------------------------------------------------------------------

    @overload
    def evaluate(self, mask: Any) -> float: ...

    @overload
    def evaluate(self, mask: Any, *, per_example: bool) -> float | Float[Tensor, " example"]: ...

    def evaluate(
        self, mask: Any, *, per_example: bool = False
    ) -> float | Float[Tensor, " example"]:
        """Mean effect of a mask.

        Args:
            mask: Soft or binary, one entry in [0, 1] per component; or a list of components; or a
                result, whose binary mask is taken.
            per_example: Give one effect per example instead of their mean.

        Raises:
            MaskShapeError, MaskRangeError: About the mask.
            NonFiniteMetricError: The metric is NaN or infinite on some examples.
        """
        entries = torch.as_tensor(self._as_mask(mask))
        if entries.ndim != 1:
            raise MaskShapeError(
                f"The mask has shape {tuple(entries.shape)}. evaluate() takes one mask with an "
                f"entry for each of the {len(self.registry)} components; call it once per mask."
            )
        effects = self.engine.effects(entries)
        return effects if per_example else effects.mean().item()

    def interactions(
        self,
        components: Sequence[Component] | None = None,
        *,
        layers: Sequence[int] | None = None,
    ) -> interactions.InteractionGrid:
        """Measures every pair of components: l({i, j}) - l({i}) - l({j}).

        Args:
            components: The components; all by default.
            layers: Only those in these layers.

        Raises:
            ComponentError: Fewer than two components, or so many that the grid would be
                unreadable and its passes countless.
        """
        flat = range(len(self.registry))
        if components is not None and len(set(components)) < len(components):
            raise ComponentError(
                "A component is named twice among those to be paired. Name each one once."
            )
        chosen = list(flat) if components is None else [self.registry.index(c) for c in components]
        if layers is not None:
            wanted = {n + self.model.cfg.n_layers if n < 0 else n for n in layers}
            chosen = [i for i in chosen if self.registry[i].layer in wanted]
        if not 2 <= len(chosen) <= _MAX_PAIRED:
            raise ComponentError(
                f"{len(chosen)} components were chosen for pairs. Choose 2 to {_MAX_PAIRED}, "
                f"for instance by layers; there are components in layers "
                f"{', '.join(map(str, self.registry.layers))}."
            )
        title = f"{self.pairs.name}, {model_name(self.model)}"
        return interactions.measure(self.engine, chosen, title=title)

    def _as_mask(self, mask: Any) -> Mask | Any:
        if isinstance(mask, TraceResult):
            return mask.binary_mask
        if isinstance(mask, Sequence) and mask and isinstance(mask[0], Component):
            entries = torch.zeros(len(self.registry))
            entries[[self.registry.index(component) for component in mask]] = 1
            return entries
        return mask

    # ---- drawing --------------------------------------------------------------------------

    def heatmap(self, result: TraceResult | None = None) -> go.Figure:
        """Per-layer selection heatmap of a result, by default the last.

        Raises:
            NoResultError: Nothing was run yet.
        """
        from tracekit import figures

        return figures.heatmap(result or self._results()[-1])

    def curve(self, results: TraceResult | Sequence[TraceResult] | None = None) -> go.Figure:
        """Effect against number of components, a line per method, by default of all runs.

        Raises:
            NoResultError: Nothing was run yet.
        """
        from tracekit import figures

        chosen = [results] if isinstance(results, TraceResult) else results
        return figures.curve(chosen or self._results())

    def _results(self) -> list[TraceResult]:
        if not self.results:
            raise NoResultError("There is no result to draw yet. Call run() first.")
        return self.results


def _warn(text: str) -> None:
    warnings.warn(text, SearchStoppedWarning, stacklevel=3)


def config_of(search: Search) -> dict[str, Any]:
    """Options of a search as JSON-ready values."""
    return {name: _plain(value) for name, value in vars(search).items()}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": getattr(value, "name", type(value).__name__), **asdict(value)}
    if isinstance(value, Callable):
        return getattr(value, "__name__", repr(value))
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
