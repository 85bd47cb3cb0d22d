"""The question, laid out: a setup on a model, on the searched pairs and on those held out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from tracekit._util.clusters import n_text
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components.masks import complement_of, from_indices
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.prompts import PromptPairs
from tracekit.engine.effects import choices_in, noise_floor
from tracekit.engine.engine import Engine
from tracekit.engine.setup import BoundSetup, Setup
from tracekit.engine.sources import name_of
from tracekit.errors import PairsError
from tracekit.metrics import Direction, Effects, Metric
from tracekit.models import HookedModel, foreign_hooks, model_name, revision_of, weights_digest
from tracekit.results.mib import model_sizes
from tracekit.results.on_examples import OnExamples, examples_said
from tracekit.results.result import ModelFacts, TraceResult


class Measured(NamedTuple):
    """A set that was measured on all searched examples."""

    mean: float
    members: ComponentSet
    effects: Effects


class KnownSets:
    """What is known of sets: of every size the best one that was measured, and those selected.

    The best ones are what is left of a search that is interrupted, and what no front leaves out.
    """

    def __init__(self) -> None:
        """Knows none yet."""
        self.by_size: dict[int, Measured] = {}
        self.selected: set[ComponentSet] = set()
        """Sets that were chosen by their effects on the searched examples."""

    def record(self, sets: Sequence[ComponentSet], effects: Float[Tensor, "set example"]) -> None:
        """Takes note of sets and their effects, a row for each."""
        for members, row in zip(sets, effects, strict=True):
            mean, size = float(row.mean()), len(members)
            if size and (size not in self.by_size or mean > self.by_size[size].mean):
                self.by_size[size] = Measured(mean, members, row.clone())


@dataclass(frozen=True, kw_only=True, eq=False)
class Traced:
    """Components of a model, what takes their place, a metric, and the examples."""

    bound: BoundSetup
    """The setup on the model."""
    pairs: PromptPairs
    """The searched examples, before the setup gives them spans and counterfactuals."""
    held_out_pairs: PromptPairs | None = None
    """Examples that no search sees."""
    extra_metrics: tuple[Metric, ...] = ()
    """Further metrics that every result is measured by."""
    sets: KnownSets = field(default_factory=KnownSets)
    results: list[TraceResult] = field(default_factory=list)
    """Results of all searches, in their order."""

    @cached_property
    def own(self) -> Engine:
        """The engine of the searched examples, which notes the best sets."""
        return self.bound.engine(self.pairs).sharing(record=self.sets.record)

    @cached_property
    def held_out(self) -> Engine | None:
        """The engine of the held-out examples, if there are some."""
        return None if self.held_out_pairs is None else self.bound.engine(self.held_out_pairs)

    @property
    def fresh(self) -> Engine:
        """The engine of the examples that no search saw, where there are some."""
        return self.held_out or self.own

    @cached_property
    def opposite(self) -> Traced:
        """The same question in the other direction.

        Its engines raise a `PairsError` where the source is no run that denoising could start from.
        """
        direction: Direction = "denoising" if self.direction == "noising" else "noising"
        bound = replace(self.bound, setup=replace(self.bound.setup, direction=direction))
        return replace(self, bound=bound, extra_metrics=(), sets=KnownSets(), results=[])

    # ---- its facts ------------------------------------------------------------------------

    @property
    def model(self) -> HookedModel:
        """The model."""
        return self.bound.model

    @property
    def model_name(self) -> str:
        """Name of the model."""
        return model_name(self.model)

    @property
    def registry(self) -> ComponentRegistry:
        """The components under study."""
        return self.bound.registry

    @property
    def dtype(self) -> str:
        """Type of the model's weights, as `load_model` takes it."""
        return str(next(iter(self.model.parameters())).dtype).removeprefix("torch.")

    @cached_property
    def setup(self) -> Setup:
        """The setup, with metric and source by their names."""
        return self.bound.named

    @property
    def direction(self) -> Direction:
        """Whether counterfactual values are patched in (`noising`) or clean ones back."""
        return self.bound.setup.direction

    @property
    def source(self) -> str:
        """Where the values come from that are patched in."""
        return name_of(self.setup.source)

    @property
    def title(self) -> str:
        """Data and model, for a figure."""
        return f"{self.own.pairs.name} data, {self.model_name} model"

    @property
    def n_prefers_x(self) -> int | None:
        """Searched examples whose run finds x more probable than y; None if not all have a y."""
        clean = self.own.data.clean
        return None if clean.y is None else int((clean.x > clean.y).sum())

    @cached_property
    def noise_floor(self) -> float:
        """Mean effect that the rounding of a model in low precision can have alone; float32: 0.

        Measured on the clean run in other batch shapes (`tracekit.engine.effects.noise_floor`).
        """
        return noise_floor(self.own.data)

    @property
    def model_facts(self) -> ModelFacts:
        """Which model it is."""
        model = self.model
        name = str(getattr(model.cfg, "model_name", ""))
        return ModelFacts(
            weights_digest=weights_digest(model),
            revision=revision_of(model),
            foreign_hooks=tuple(foreign_hooks(model)),
            sizes=model_sizes(model.cfg),
            path=str(Path(name).absolute()) if Path(name).exists() else name,
            dtype=self.dtype,
            explained_variance=self.bound.explained_variance,
        )

    # ---- sets -----------------------------------------------------------------------------

    def on_examples(
        self, sets: Sequence[ComponentSet], effects: Sequence[Effects]
    ) -> list[tuple[OnExamples, OnExamples | None]]:
        """Values of sets on the searched examples, and on those held out.

        `effects` are those of the sets on the searched examples. All others together are measured
        on both.
        """
        others = [complement_of(members, len(self.registry)) for members in sets]

        def measured(part: str, engine: Engine, effects: Sequence[Effects]) -> list[OnExamples]:
            without = engine.set_effects(others, "complements" + ", held out" * (part != "own"))
            said = self.choices(sets, part)
            rows = zip(effects, without, range(2, len(said)), strict=True)
            return [OnExamples.of(engine, *r, choices=said[[0, 1, n]]) for *r, n in rows]

        own = measured("own", self.own, effects)
        if self.held_out is None:
            return [(each, None) for each in own]
        masks = [from_indices(members, len(self.registry)).float() for members in sets]
        fresh = measured("held_out", self.held_out, list(map(self.held_out.effects, masks)))
        return list(zip(own, fresh, strict=True))

    def choices(self, sets: Sequence[ComponentSet] = (), part: str = "own") -> Tensor:
        """What is said without and with each of some sets, on `own` or `held_out`; `choices_in`."""
        other = None
        with suppress(PairsError):  # The source is no run.
            other = getattr(self.opposite, part).data
        return choices_in(getattr(self, part).data, other, sets)

    def found_on(self, given: ComponentsLike) -> str | None:
        """Fingerprint of the examples that a set was selected on; None for one of somebody's own.

        A set that was selected here is known as a list or a mask, too.
        """
        if isinstance(given, TraceResult):
            if not given.config.get("selected", True):
                return None
            # Some of the searched examples are as good as all.
            is_among = given.own.n_among(self.fresh.pairs_given) > 0
            return self.fresh.fingerprint if is_among else given.own.fingerprint
        members = members_of(given, self.registry, or_none=True)
        if len(members) == len(self.registry):
            return None  # Nobody chose among them.
        return self.own.fingerprint if members in self.sets.selected else None

    def selected_on(self, given: ComponentsLike) -> str | None:
        """The same; with held-out examples no set was selected on others than the searched ones."""
        found_on = self.found_on(given)
        is_fresh = found_on is None and self.held_out is not None
        return self.own.fingerprint if is_fresh else found_on

    def said_of(self, given: ComponentsLike, engine: Engine | None = None) -> str:
        """On which examples a set is measured, by default the `fresh` ones, in words."""
        measured = engine or self.fresh
        n = n_text(measured.n_examples, measured.pairs.clusters)
        return examples_said(self.selected_on(given), measured.fingerprint, n)
