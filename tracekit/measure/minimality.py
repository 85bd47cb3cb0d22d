"""Minimality: what the faithfulness of a set loses without each of its members.

Members that lose nothing may stand in for each other. So they are dropped one after another, the
one with the least loss first, and each only if the set without it stays as faithful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.clusters import count_text
from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells, clean_text, number_text
from tracekit._util.options import check_max_loss
from tracekit.components import Component, ComponentRegistry, ComponentSet
from tracekit.components.masks import complement_of
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.pair import cluster_ids
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.errors import ComponentError
from tracekit.measure.evaluation import PlannedSets
from tracekit.measure.question import Question
from tracekit.metrics import Effects
from tracekit.results.display import InWords, Tabular
from tracekit.results.intervals import ratio_interval
from tracekit.search.targets import require_full_effect


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Minimality(InWords, Tabular):
    """What every member adds to the faithfulness of its set, and the set without idle members."""

    registry: ComponentRegistry
    """Components by flat index."""
    labels: tuple[str, ...]
    """Members of the set."""
    faithfulness: float
    """Faithfulness of the set."""
    losses: tuple[float, ...]
    """What it loses without each member; below 0 the set is more faithful without."""
    loss_intervals: tuple[tuple[float, float], ...]
    """95 % intervals over examples."""
    tolerance: float
    """By how much the set without idle members may be further from a faithfulness of 1."""
    dropped: tuple[str, ...]
    """Idle members, in the order in which they were dropped."""
    members: ComponentSet
    """Flat indices of those that stay."""
    minimal_faithfulness: float
    """Faithfulness of these."""
    decided_on: str
    """Which examples decided who is dropped, in words."""
    cost: Cost
    """Passes over the data that this took."""

    @property
    def components(self) -> list[Component]:
        """Those that stay: `tracer.as_result(minimality)` measures their set."""
        return [self.registry[index] for index in self.members]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per member, those that lose most first."""
        frame = pd.DataFrame(
            {
                "component": self.labels,
                **as_cells("loss", self.losses, zip(*self.loss_intervals, strict=True)),
                "stays": [label not in self.dropped for label in self.labels],
            }
        )
        return frame.sort_values("loss", ascending=False, ignore_index=True)

    def __repr__(self) -> str:
        lines = [
            f"  {row['component']}: {number_text(row, 'loss')}{', dropped' * (not row['stays'])}"
            for row in self.to_frame().to_dict("records")
        ]
        title = (
            f"Faithfulness {self.faithfulness:.3g} with {len(self.labels)} members, "
            f"{self.minimal_faithfulness:.3g} with {len(self.members)}, {self.intervention}; "
            "lost without each:"
        )
        said = f"Measured on {self.examples}; {self.decided_on} decided who is dropped."
        return clean_text("\n".join([title, *lines, said]))


def minimality(
    question: Question, members: ComponentsLike, *, tolerance: float = 0.01
) -> Minimality:
    """What the faithfulness of a set loses without each member, and which members are idle.

    The examples that the set was selected on decide who is dropped, and the held-out ones, if the
    tracer has some, say what each is worth: a member whose 95 % interval there is above 0 stays.
    Of a set that no search selected, all examples decide. `tracer.as_result(minimality)` is the set
    that is left, measured again.

    Args:
        question: The question.
        members: A set as in `evaluate`, or a mask of zeros and ones.
        tolerance: By how much the set may be further from a faithfulness of 1, in [0, 1).

    Raises:
        MetricError: All components have no effect together, or one of the wrong sign.
        ConfigError: About the tolerance.
        MaskError, ComponentError: About the set.
    """
    check_max_loss("tolerance", tolerance)
    own, fresh, (chosen, *without) = _examples_and_sets(question, members)
    label = question.registry.label
    engines = {id(engine): engine for engine in (*own.engines, *fresh.engines)}.values()
    for engine in engines:
        require_full_effect(engine)
    before = [engine.cost for engine in engines]
    alone = fresh.alone([chosen, *without])
    differences = alone[0] - alone[1:]
    intervals = [ratio_interval(row, fresh.full, clusters=fresh.clusters) for row in differences]
    missed = {member for member, (low, _) in zip(chosen, intervals, strict=True) if low > 0}
    staying, dropped = _drop_idle_members(own, chosen, without, missed, tolerance)
    if own.kind != "all":
        question.sets.selected.add(staying)
    work = [engine.cost - earlier for engine, earlier in zip(engines, before, strict=True)]
    return Minimality(
        registry=question.registry,
        labels=tuple(map(label, chosen)),
        faithfulness=fresh.share(alone[0]),
        losses=tuple(map(fresh.share, differences)),
        loss_intervals=tuple(intervals),
        tolerance=tolerance,
        dropped=tuple(map(label, dropped)),
        members=staying,
        minimal_faithfulness=fresh.share(fresh.alone([staying])[0]),
        decided_on=own.described,
        intervention=question.setup.intervention,
        examples=fresh.described,
        cost=sum(work, Cost()),
    )


def planned_minimality(question: Question, members: ComponentsLike) -> PlannedSets:
    """What `minimality` patches, at most: all members but one are tried without each other."""
    own, fresh, sets = _examples_and_sets(question, members)
    # Sets without several members are unknown yet; those without one stand for them.
    of_own, of_fresh = [*sets, *sets[2:]], [*sets, sets[0]]
    parts = [(each, of_own) for each in own.engines] + [(each, of_fresh) for each in fresh.engines]
    return [(engine, _sets_to_patch(engine, each)) for engine, each in parts]


def _examples_and_sets(
    question: Question, members: ComponentsLike
) -> tuple[_Examples, _Examples, list[ComponentSet]]:
    """Examples that decide and that are measured; the set, and the set without each member."""
    chosen = members_of(members, question.registry)
    is_selected = question.selection_fingerprint(members) is not None
    if not chosen:
        raise ComponentError("An empty set has no idle members. Give at least one component.")
    sets = [chosen, *(tuple(i for i in chosen if i != member) for member in chosen)]
    searched, held_out = question.search_engine, question.held_out_engine
    if held_out is not None and is_selected:
        return _Examples([searched], "searched"), _Examples([held_out], "held-out"), sets
    both = [searched] if held_out is None else [searched, held_out]
    examples = _Examples(both, "searched" if is_selected else "all")
    return examples, examples, sets


@dataclass(frozen=True, eq=False)
class _Examples:
    """Examples of one engine or of several, as those of one data set."""

    engines: Sequence[Engine]
    kind: str

    @property
    def described(self) -> str:
        """Which ones they are, and how many."""
        n = count_text(len(self.clusters), self.clusters)
        return f"the {n} {self.kind} examples" if self.kind != "all" else f"all {n} examples"

    @cached_property
    def full(self) -> Effects:
        return self._joined([engine.full_effects for engine in self.engines])

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Effects on all, by the weights of all: each engine has its own around 1."""
        weights = [fmean(pair.weight for pair in engine.pairs) for engine in self.engines]
        own = [part * (w / max(weights)) for part, w in zip(parts, weights, strict=True)]
        return torch.cat(own, dim=-1)

    @property
    def clusters(self) -> Int[Tensor, " example"]:
        """Number of the independent example that each is part of."""
        return torch.tensor(cluster_ids([pair for each in self.engines for pair in each.pairs]))

    def alone(self, sets: Sequence[ComponentSet]) -> Float[Tensor, "set example"]:
        """What each set does by itself: the full effect less that of its complement (noising)."""
        parts = [
            each.set_effects(_sets_to_patch(each, sets), "minimality") for each in self.engines
        ]
        effects = self._joined(parts)
        return effects if self.engines[0].metric.direction == "denoising" else self.full - effects

    def share(self, effects: Effects) -> float:
        return (effects.mean() / self.full.mean()).item()


def _drop_idle_members(
    examples: _Examples,
    members: ComponentSet,
    without: Sequence[ComponentSet],
    missed: set[int],
    tolerance: float,
) -> tuple[ComponentSet, list[int]]:
    """The set without idle members, and these in the order in which they were dropped."""
    paths = examples.engines[0].edge_paths
    whole, *shares = map(examples.share, examples.alone([members, *without]))
    allowed = abs(1 - whole) + tolerance
    staying, dropped = members, []
    # Those that are missed least alone are tried first.
    order = sorted(zip(shares, members, strict=True), key=lambda each: abs(1 - each[0]))
    for share, index in order:
        if abs(1 - share) > allowed or len(staying) == 1:
            break
        rest = tuple(i for i in staying if i != index)
        if paths is not None:
            # Edges go together with the edge that all their paths run through.
            rest = paths.edges_on_paths(rest)
        if not rest or not missed.isdisjoint(set(staying) - set(rest)) or rest == staying:
            continue
        if dropped:
            share = examples.share(examples.alone([rest])[0])
        if abs(1 - share) <= allowed:
            dropped += [i for i in staying if i not in rest]
            staying = rest
    return staying, dropped


def _sets_to_patch(engine: Engine, sets: Sequence[ComponentSet]) -> list[ComponentSet]:
    """What is patched to see what each set does alone: all others in noising."""
    if engine.metric.direction == "denoising":
        return [*sets]
    return [complement_of(members, engine.n_components) for members in sets]
