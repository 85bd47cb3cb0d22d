"""Minimality: what the faithfulness of a set loses without each of its members.

The loss of a member is the faithfulness of the set less that of the set without it. Members that
lose nothing may stand in for each other, so they leave one after another, the one with the least
loss first, and each only if the set without it stays as faithful. The examples that the set was
selected on decide; losses, and the faithfulness of what is left, are measured on the held-out ones,
if the tracer has some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from tracekit._util.markup import interval_text, printable
from tracekit._util.options import shortened
from tracekit.components import Component, ComponentRegistry, ComponentSet
from tracekit.components.masks import complement_of
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.errors import ConfigError
from tracekit.results.display import frame_html
from tracekit.results.intervals import ratio_interval
from tracekit.search.faithful import require_full_effect

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Minimality:
    """What every member adds to the faithfulness of its set, and the set without idle members."""

    registry: ComponentRegistry
    """Components by flat index."""
    labels: tuple[str, ...]
    """Members of the set."""
    faithfulness: float
    """Of the set."""
    losses: tuple[float, ...]
    """What it loses without each member; below 0 the set is more faithful without."""
    loss_intervals: tuple[tuple[float, float], ...]
    """95 % intervals over examples."""
    tolerance: float
    """By how much the set without idle members may be further from a faithfulness of 1."""
    dropped: tuple[str, ...]
    """Idle members, in the order in which they left."""
    members: ComponentSet
    """Flat indices of those that stay."""
    minimal_faithfulness: float
    """Faithfulness of these."""
    examples: str
    """Whether the set was selected on these examples, in words; empty where nobody says."""
    cost: Cost
    """Passes over the data that this took."""

    @property
    def components(self) -> list[Component]:
        """Those that stay: `tracer.as_result(minimality)` measures their set."""
        return [self.registry[index] for index in self.members]

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per member, those that lose most first."""
        import pandas as pd

        frame = pd.DataFrame(
            {
                "component": self.labels,
                "loss": self.losses,
                "loss_low": [low for low, _ in self.loss_intervals],
                "loss_high": [high for _, high in self.loss_intervals],
                "stays": [label not in self.dropped for label in self.labels],
            }
        )
        return frame.sort_values("loss", ascending=False, ignore_index=True)

    def __repr__(self) -> str:
        rows = self.to_frame().to_dict("records")
        lines = [
            f"  {row['component']}: {row['loss']:.3g} "
            f"({interval_text(row['loss_low'], row['loss_high'])})"
            + ("" if row["stays"] else ", left")
            for row in rows
        ]
        title = (
            f"Faithfulness {self.faithfulness:.3g} with {len(self.labels)} members, "
            f"{self.minimal_faithfulness:.3g} with {len(self.members)}; lost without each:"
        )
        return printable("\n".join([title, *lines, *([self.examples] if self.examples else [])]))

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return frame_html(repr(self).splitlines()[0], self.to_frame())


def measure_minimality(
    deciding: Engine, fresh: Engine, members: ComponentSet, *, tolerance: float, examples: str
) -> Minimality:
    """Measures what each member adds, and drops the idle ones; see `Tracer.minimality`.

    `deciding` has the examples that the set was selected on, `fresh` those that are reported.
    """
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    if not is_number or not 0 <= tolerance < 1:
        raise ConfigError(f"The tolerance is {shortened(tolerance)}. It must lie in [0, 1).")
    for engine in (deciding, fresh):
        require_full_effect(engine)
    engines = [deciding] if fresh is deciding else [deciding, fresh]
    before = [engine.cost for engine in engines]
    without = [tuple(i for i in members if i != member) for member in members]
    staying, dropped = _reduced(deciding, members, without, tolerance)
    alone = _alone(fresh, [members, staying, *without])
    full = fresh.full_effects
    differences = alone[0] - alone[2:]
    shares = (alone.mean(1) / full.mean()).tolist()
    work = [engine.cost - earlier for engine, earlier in zip(engines, before, strict=True)]
    return Minimality(
        registry=deciding.registry,
        labels=tuple(deciding.registry.label(index) for index in members),
        faithfulness=shares[0],
        losses=tuple((differences.mean(1) / full.mean()).tolist()),
        loss_intervals=tuple(
            ratio_interval(row, full, clusters=fresh.pairs.clusters) for row in differences
        ),
        tolerance=tolerance,
        dropped=tuple(deciding.registry.label(index) for index in dropped),
        members=staying,
        minimal_faithfulness=shares[1],
        examples=examples,
        cost=sum(work, Cost()),
    )


def _reduced(
    engine: Engine, members: ComponentSet, without: Sequence[ComponentSet], tolerance: float
) -> tuple[ComponentSet, list[int]]:
    """The set without idle members, and these in the order in which they left."""
    full = engine.full_effects.mean().item()
    whole, *shares = (_alone(engine, [members, *without]).mean(1) / full).tolist()
    allowed = abs(1 - whole) + tolerance
    staying, dropped = members, []
    # Those that are missed least alone are tried first.
    order = sorted(zip(shares, members, strict=True), key=lambda each: abs(1 - each[0]))
    for share, index in order:
        if abs(1 - share) > allowed or len(staying) == 1:
            break
        rest = tuple(i for i in staying if i != index)
        if dropped:
            share = _alone(engine, [rest]).mean().item() / full
        if abs(1 - share) <= allowed:
            staying = rest
            dropped.append(index)
    return staying, dropped


def _alone(engine: Engine, sets: Sequence[ComponentSet]) -> Float[Tensor, "set example"]:
    """What each set does by itself: the full effect less that of its complement (noising)."""
    if engine.metric.direction == "denoising":
        return engine.set_effects(sets, "minimality")
    others = [complement_of(members, engine.n_components) for members in sets]
    return engine.full_effects - engine.set_effects(others, "minimality")
