"""Methods of a tracer that take a set of components, however it was found.

Each measures what one function elsewhere says: this module only turns what was given into flat
indices, and checks that the model is still the one that was bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from jaxtyping import Float
from torch import Tensor

from tracekit._util.options import as_path, check_seed
from tracekit.anatomy import Explanation, SetGame, SideEffects
from tracekit.anatomy.minimality import Minimality, measure_minimality
from tracekit.anatomy.runs import engines_of, plan_explanation, run_explanation, run_side_effects
from tracekit.components import ComponentRegistry
from tracekit.components.masks import from_indices
from tracekit.components.members import mask_of, members_of, ordered_in
from tracekit.data.prompts import PromptPairs
from tracekit.engine import checks
from tracekit.engine.effects import noise_floor
from tracekit.engine.engine import Engine
from tracekit.engine.setup import BoundSetup, Setup
from tracekit.engine.sources import name_of
from tracekit.errors import ComponentError, ConfigError, MaskError
from tracekit.metrics import Direction, Metric, MetricFunction, MetricName
from tracekit.models import HookedModel, model_name
from tracekit.results.curve import TraceCurve
from tracekit.results.faithfulness import Faithfulness, Ranking
from tracekit.results.faithfulness_of_sets import faithfulness_of
from tracekit.results.interactions import InteractionGrid
from tracekit.results.metric_table import effect_table, metric_table
from tracekit.results.mib import model_sizes, read_mib
from tracekit.results.pair_effects import MOST_IN_GRID, chosen_for_pairs, measure_pairs
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult
from tracekit.results.significance import said_of_examples
from tracekit.results.strongest_pairs import StrongestPairs, strongest_pairs
from tracekit.search.base import require_gradient
from tracekit.tracer.estimate import Estimate, estimate_planned
from tracekit.tracer.exploring import result_by_hand
from tracekit.tracer.search_run import BestMeasured, RunContext

if TYPE_CHECKING:
    import pandas as pd

    MetricChoice = MetricName
else:
    # At run time a wrong name has an error of its own, with suggestions.
    MetricChoice = MetricName | str


class SetMethods:
    """Measurements of a given set of components of a model, on a data set, by a metric."""

    model: HookedModel
    engine: Engine
    """Masks in, effects and gradients out."""
    setup: Setup
    """The setup, with metric and source by their names."""
    extra_metrics: tuple[Metric, ...]
    """Further metrics that every result is measured by."""
    results: list[TraceResult]
    """All results of `run`, in order."""
    _bound: BoundSetup
    _given: PromptPairs
    """The data set, before the setup prepared it."""
    _held_out: Engine | None
    _known: BestMeasured
    _held_out_given: PromptPairs | None
    _last: Sequence[TraceResult]

    @property
    def registry(self) -> ComponentRegistry:
        """The components under study."""
        return self.engine.registry

    @property
    def pairs(self) -> PromptPairs:
        """The data set."""
        return self.engine.pairs

    @property
    def held_out(self) -> PromptPairs | None:
        """Examples that no search sees, if there are any."""
        return None if self._held_out is None else self._held_out.pairs

    @property
    def direction(self) -> Direction:
        """Whether counterfactual values are patched in (`noising`) or clean ones back."""
        return self.setup.direction

    @property
    def source(self) -> str:
        """Where the values come from that are patched in."""
        return name_of(self.setup.source)

    @property
    def full_effect(self) -> float:
        """Mean effect of all components together."""
        return self.engine.full_effects.mean().item()

    @cached_property
    def noise_floor(self) -> float:
        """Mean effect that the rounding of a model in low precision can have alone; float32: 0.

        Measured on the clean run in other batch shapes (`tracekit.engine.effects.noise_floor`).
        """
        return noise_floor(self.engine.data)

    @property
    def explained_variance(self) -> Mapping[str, float]:
        """Share of the variance of activations that features reconstruct, by kind and layer.

        Over the tokens of the first prompts but the first of each; empty without features.
        """
        return self._bound.explained_variance

    @property
    def n_prefers_x(self) -> int | None:
        """Examples on which the run that is started from finds x more probable than y.

        None if not every example has a y. Where the clean model does not prefer x, it does not
        show the behaviour that is traced.
        """
        clean = self.engine.data.clean
        return None if clean.y is None else int((clean.x > clean.y).sum())

    @property
    def _fresh(self) -> Engine:
        """The engine of the examples that no search saw, where there are some."""
        return self.engine if self._held_out is None else self._held_out

    def _found_on(self, given: Any) -> str | None:
        """Fingerprint of the examples that a set was selected on; None for one of somebody's own.

        A set of this tracer's results is known as a list or a mask, too.
        """
        if isinstance(given, TraceResult):
            return given.dataset_fingerprint
        members = set(members_of(given, self.registry, or_none=True))
        if len(members) == len(self.registry):
            return None  # Nobody chose among them.
        own = (set(members_of(each, self.registry)) for each in (*self.results, *self._last))
        return self.pairs.fingerprint if members in own else None

    def _selected_on(self, given: Any) -> str | None:
        """The same; with held-out examples no set was selected on others than the tracer's own."""
        found_on = self._found_on(given)
        is_fresh = found_on is None and self._held_out is not None
        return self.pairs.fingerprint if is_fresh else found_on

    def _traced(self) -> RunContext:
        return RunContext(
            engine=self.engine,
            setup=self.setup,
            noise_floor=self.noise_floor,
            explained_variance=self.explained_variance,
            extra_metrics=self.extra_metrics,
            held_out=self._held_out,
            best_known=self._known,
        )

    @overload
    def evaluate(self, mask: Any, *, held_out: bool = ...) -> float: ...

    @overload
    def evaluate(
        self, mask: Any, *, per_example: Literal[True], held_out: bool = ...
    ) -> Float[Tensor, " example"]: ...

    @overload
    def evaluate(
        self,
        mask: Any,
        *,
        metrics: Sequence[MetricChoice | Metric | MetricFunction],
        per_example: bool = ...,
    ) -> pd.DataFrame: ...

    def evaluate(
        self,
        mask: Any,
        *,
        metrics: Sequence[MetricChoice | Metric | MetricFunction] | None = None,
        per_example: bool = False,
        held_out: bool = False,
    ) -> float | Float[Tensor, " example"] | pd.DataFrame:
        """Mean effect of a mask.

        Args:
            mask: Soft or binary, one entry in [0, 1] per component; or with the axes layer and
                component, where one kind is studied whole in every layer. Or a set: a result,
                whose selected components are taken; labels (`"L5H3"`, `["L5H3", "L7H1"]`), layer
                and index (`(5, 3)`, `{5: [3]}`), components, or `"all"`.
            metrics: Instead of the tracer's metric, several, all measured in one pass; gives a
                pandas DataFrame with a column per metric and the rows `effect`, `low` and `high`
                (95 % interval), `full_effect` (all components) and `share` of it. It is of the
                held-out examples, if the tracer has some, and its index is named by that.
            per_example: Give one effect per example instead of their mean; times the example's
                weight, if examples have weights.
            held_out: Measure on the held-out examples; with `metrics` that is so anyway, but for
                effects per example.

        Raises:
            ConfigError: There are no metrics, or no held-out examples.
            MaskError: About the mask.
            ComponentError: A component that is not among those of this tracer.
            NonFiniteMetricError: The metric is NaN or infinite on some examples.
            UnknownNameError, MissingContinuationError: About one of the metrics.
        """
        checks.check_unchanged(self.engine)
        if held_out and self._held_out is None:
            raise ConfigError(
                "This tracer has no held-out examples. Give it some: Tracer(..., held_out=pairs)."
            )
        entries = mask_of(mask, self.registry)
        if entries.ndim != 1:
            raise MaskError(
                f"The mask has shape {tuple(entries.shape)}. evaluate() takes one mask with an "
                f"entry for each of the {len(self.registry)} components; call it once per mask."
            )
        if metrics is not None:
            resolved = self._bound.metrics(metrics)
            if not resolved:
                raise ConfigError("metrics is empty. Name at least one, or leave it out.")
            engine = self.engine if per_example and not held_out else self._fresh
            frame = metric_table(engine, entries, resolved, per_example=per_example)
            return frame if per_example else self._said(frame, mask)
        effects = (self._fresh if held_out else self.engine).effects(entries)
        return effects if per_example else effects.mean().item()

    def _said(self, frame: pd.DataFrame, given: Any) -> pd.DataFrame:
        """A table whose index says whether the set was selected on its examples."""
        entries = mask_of(given, self.registry)
        is_set = bool(((entries == 0) | (entries == 1)).all())
        selected_on = self._selected_on(given) if is_set else None
        name = said_of_examples(selected_on, self._fresh.pairs.fingerprint)
        return frame.rename_axis(index=name or None)

    def noising_and_denoising(self, members: Any) -> pd.DataFrame:
        """The effect of a set in both directions: is it necessary, is it sufficient?

        Noising: the set takes counterfactual values, everything else stays clean. Denoising: the
        set takes clean values, everything else stays counterfactual.

        Args:
            members: A set or a mask, as in `evaluate`.

        Returns:
            A pandas DataFrame with the rows `noising` and `denoising` and the columns `effect`,
            `low` and `high` (95 % interval), `full_effect` (all components), `share` of it; of the
            held-out examples, if the tracer has some. The name of the index says so.

        Raises:
            PairsError: The source is no run of the model that denoising could start from.
        """
        checks.check_unchanged(self.engine)
        both = {self.direction: self._fresh, self._other_direction: self._opposite(self._fresh)}
        engines = {name: both[name] for name in get_args(Direction)}
        return self._said(effect_table(engines, mask_of(members, self.registry)), members)

    def faithfulness(self, members: Any, *, ranking: Ranking | None = None) -> Faithfulness:
        """How much sets of components do alone, and how much is left without them.

        It is measured on the held-out examples, if the tracer has some.

        Args:
            members: A set or a mask, as in `evaluate`; a curve or a front, for all of its sets; or,
                with `ranking`, a score for each component.
            ranking: Take the components with the highest scores at each share of the MIB
                benchmark: by the scores themselves (`signed`) or their absolute values
                (`absolute`). Of a result, by what its method ranked by.

        Raises:
            ConfigError: Another ranking.
            MaskError, ComponentError: About the set, or soft masks.
        """
        checks.check_unchanged(self.engine)
        measured = faithfulness_of(self._fresh, members, ranking)
        first = members[0] if isinstance(members, (ParetoFront, TraceCurve)) else members
        found_on = first.dataset_fingerprint if isinstance(first, TraceResult) else None
        examples = said_of_examples(found_on, self._fresh.pairs.fingerprint)
        return replace(measured, examples=examples)

    def minimality(self, members: Any, *, tolerance: float = 0.01) -> Minimality:
        """What the faithfulness of a set loses without each member, and which members are idle.

        It is measured on the held-out examples, if the tracer has some; the tracer's own decide
        who leaves. `tracer.as_result(minimality)` is the set that is left, measured
        again.

        Args:
            members: A set as in `evaluate`, or a mask of zeros and ones.
            tolerance: By how much the set may be further from a faithfulness of 1, in [0, 1).

        Raises:
            MetricError: All components have no effect together, or one of the wrong sign.
            ConfigError: About the tolerance.
            MaskError, ComponentError: About the set.
        """
        checks.check_unchanged(self.engine)
        chosen, found_on = members_of(members, self.registry), self._selected_on(members)
        if not chosen:
            raise ComponentError("An empty set has no idle members. Give at least one component.")
        examples = said_of_examples(found_on, self._fresh.pairs.fingerprint)
        return measure_minimality(
            self.engine, self._fresh, chosen, tolerance=tolerance, examples=examples
        )

    def as_result(self, members: Any) -> TraceResult:
        """A set of your own as a result, with all that a result says of it.

        Raises:
            MaskError, ComponentError: About the set.
        """
        checks.check_unchanged(self.engine)
        chosen = members_of(members, self.registry)
        effects = self.engine.effects(from_indices(chosen, len(self.registry)).float())
        return result_by_hand(self._traced(), chosen, effects)

    def explain(
        self,
        members: Any,
        *,
        max_sets: int = 2000,
        tolerance: float = 0.02,
        look_outside: bool | None = None,
        seed: int = 0,
    ) -> Explanation:
        """Why a set acts together: what each member brings, who interacts, who can be replaced.

        ```python
        why = tracer.explain(tracer.run(budget=4))
        print(why)
        why.table, why.interactions, why.additivity, why.redundant, why.backups
        ```

        It is measured on the held-out examples, if the tracer has some. On the examples that the
        set was selected on there are no p values.

        Args:
            members: A set as in `evaluate`, or a mask of zeros and ones; for a size of a front,
                `front.at(size)`.
            max_sets: Of more than 12 members, the subsets to measure at most for their values.
            tolerance: Share of the effect that may be lost without redundant members.
            look_outside: Whether to look for outsiders that replace or back up a member. By
                default where the metric has a gradient, which proposes them.
            seed: Draws the orders in which more than 12 members join.

        Raises:
            ComponentError: Fewer than two members, or others than of this tracer.
            MaskError: About the mask.
            ConfigError: About the options.
            NotDifferentiableError: Outsiders are asked for, and the metric has no gradient.
            NonFiniteMetricError: The metric is not finite on a subset; names both.
        """
        check_seed(seed)
        checks.check_unchanged(self.engine)
        return run_explanation(
            self._fresh,
            members_of(members, self.registry),
            selected_on=self._selected_on(members),
            proposing=self.engine,
            max_sets=max_sets,
            tolerance=tolerance,
            look_outside=look_outside,
            seed=seed,
            model=model_name(self.model),
            source=self.source,
        )

    def estimate_explain(
        self, members: Any, *, max_sets: int = 2000, look_outside: bool | None = None
    ) -> Estimate:
        """As `estimate`, of `explain` with these arguments.

        The time is an upper bound: subsets share what lies below the first layer in which they
        differ, which a probe of single sets does not see.
        """
        checks.check_unchanged(self.engine)
        chosen = members_of(members, self.registry)
        planned = plan_explanation(
            self._fresh, chosen, max_sets=max_sets, look_outside=look_outside
        )
        return estimate_planned("explain", planned, self._fresh)

    def as_game(self, members: Any) -> SetGame:
        """The effect of every subset of a set, as libraries for cooperative games take it.

        ```python
        game = tracer.as_game(result)
        shapiq.KernelSHAPIQ(n=game.n_players, max_order=2).approximate(budget=200, game=game)
        ```
        """
        return SetGame(self.engine, members_of(members, self.registry))

    def side_effects(
        self,
        members: Any,
        others: Mapping[
            str, PromptPairs | tuple[PromptPairs, MetricChoice | Metric | MetricFunction]
        ],
        *,
        draws: int = 20,
        seed: int = 0,
    ) -> SideEffects:
        """Effects of a set on other data and by other metrics, against random sets of its layers.

        ```python
        side = tracer.side_effects(result, {"neutral": (text, "kl"), "other task": pairs})
        print(side)
        side.to_frame(), side.figure()
        ```

        Each data set is measured with this tracer's components, source and direction; the target
        on the held-out examples, if the tracer has some. On the examples that the set was selected
        on there is no `p`.

        Args:
            members: As in `explain`; one component is enough.
            others: By name, pairs, which are measured by the tracer's metric, or pairs with a
                metric. As the tracer was given its own: denoising reverses them.
            draws: Different random sets with as many components of every kind in every layer, the
                same for all data; all, if there are fewer. `p` cannot be below 1 / (draws + 1).
            seed: Draws them.

        Raises:
            PairsError: There are no others, or something else than pairs, or all components
                together change nothing on them.
            ConfigError: About the number of draws, or the seed.
            MissingContinuationError, PairsError: The others do not suit the metric, the
                model or the components.
            MaskError, ComponentError: About the set.
        """
        check_seed(seed)
        checks.check_unchanged(self.engine)
        return run_side_effects(
            self._fresh,
            engines_of(self._bound, others),
            members_of(members, self.registry),
            selected_on=self._selected_on(members),
            draws=draws,
            seed=seed,
            model=model_name(self.model),
            source=self.source,
        )

    def from_mib(self, path: str | Path) -> Tensor:
        """Reads importances of a file of the MIB benchmark, one for each component.

        Measure them by `faithfulness(scores, ranking="signed")`.

        Raises:
            DataFormatError: The file is none, or is of another model or other components.
        """
        return read_mib(as_path("path", path), self.registry, model_sizes(self.model.cfg))

    @property
    def _other_direction(self) -> Direction:
        return "denoising" if self.direction == "noising" else "noising"

    def _opposite(self, engine: Engine) -> Engine:
        """The engine of the same data set in the other direction; each is made once."""
        key = "own" if engine is self.engine else "held out"
        if key not in self._opposites:
            given = self._given if engine is self.engine else self._held_out_given
            assert given is not None
            self._opposites[key] = self._bound.engine(given, direction=self._other_direction)
        return self._opposites[key]

    @cached_property
    def _opposites(self) -> dict[str, Engine]:
        return {}

    def interactions(
        self,
        components: Any = None,
        *,
        layers: Sequence[int] | None = None,
        given: Any = None,
        both_directions: bool = False,
    ) -> InteractionGrid:
        """Measures every pair of components: l({i, j}) - l({i}) - l({j}).

        Every interaction has a 95 % interval over examples and a p value that is corrected for
        all pairs. The members of a result are paired on the held-out examples, if the tracer has
        some, and without p values on the examples that they were selected on.

        Args:
            components: The components, as a set of `evaluate`; all by default.
            layers: Only those in these layers.
            given: A set that is patched besides, in every set. Then l is what a set adds to it.
            both_directions: Whether to measure the pairs by noising and by denoising, which tells
                AND from OR: the column `kind` of the table. `given` takes the values of each
                direction.

        Raises:
            ComponentError: Fewer than two components, or so many that the grid would be
                unreadable and its passes countless; or one that is patched besides.
            PairsError: The source is no run of the model that denoising could start from.
        """
        checks.check_unchanged(self.engine)
        context = members_of(given, self.registry, or_none=True)
        found_on = None if components is None else self._found_on(components)
        engine = self.engine if found_on is None else self._fresh
        if components is not None:
            components = ordered_in(components, self.registry)
        if layers is not None:
            n_layers = self.model.cfg.n_layers
            layers = [layer + n_layers if layer < 0 else layer for layer in layers]
        paired = chosen_for_pairs(
            self.registry, components, given=context, layers=layers, most=MOST_IN_GRID
        )
        grids = [
            measure_pairs(each, paired, title=self._title, given=context, selected_on=found_on)
            for each in ([engine, self._opposite(engine)] if both_directions else [engine])
        ]
        return grids[0] if not both_directions else replace(grids[0], opposite=grids[1])

    @property
    def _title(self) -> str:
        return f"{self.pairs.name} data, {model_name(self.model)} model"

    def strongest_pairs(
        self,
        count: int = 20,
        *,
        components: Any = None,
        given: Any = None,
        n_looked_at: int = 64,
        seed: int = 0,
    ) -> StrongestPairs:
        """Finds the pairs that interact most among any number of components.

        `interactions` measures every pair. Of thousands of components, this method proposes pairs
        from gradients on one half of the examples, measures five times as many as asked for (at
        least 100), and tests them on the other half. See `docs/interactions.md` for how many of
        the strongest pairs it finds.

        Args:
            count: Pairs wanted.
            components: The components, as a set of `evaluate`; all by default.
            given: What is patched besides, in every set, as in `interactions`.
            n_looked_at: Components whose interactions with all others are predicted, one by one;
                the more, the more passes, and the fewer pairs are missed.
            seed: Draws the halves, and the random signs that choose these components.

        Raises:
            ComponentError: Fewer than two components, or one that is patched besides.
            ConfigError: A number of pairs or components that cannot be.
            NotDifferentiableError: The metric has no gradient.
        """
        checks.check_unchanged(self.engine)
        require_gradient(self.engine.metric, "strongest_pairs")
        context = members_of(given, self.registry, or_none=True)
        if components is not None:
            components = ordered_in(components, self.registry)
        chosen = chosen_for_pairs(self.registry, components, given=context)
        return strongest_pairs(
            self.engine,
            chosen,
            count,
            given=context,
            n_looked_at=n_looked_at,
            seed=seed,
            title=self._title,
        )
