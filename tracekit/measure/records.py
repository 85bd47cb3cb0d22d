"""What results record of the engine that measured them: examples, metric, direction."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from tracekit.engine.engine import Engine
from tracekit.metrics import Effects
from tracekit.results.on_examples import OnExamples


def on_examples(
    engine: Engine,
    effects: Effects,
    complement: Effects | None = None,
    full: Effects | None = None,
    choices: Float[Tensor, "run 5"] | None = None,
) -> OnExamples:
    """Returns measured effects together with the examples of the engine that measured them.

    `full` are the effects of all components by another metric than that of the engine.
    """
    pairs = engine.pairs
    return OnExamples(
        effects=effects,
        full=engine.full_effects if full is None else full,
        complement=complement,
        **pairs.over,
        dataset=pairs.name,
        fingerprint=engine.fingerprint,
        prompts=tuple(pair.prompts_digest for pair in pairs),
        origin=pairs.origin,
        chat=pairs.chat,
        metric=engine.metric.name,
        direction=engine.metric.direction,
        choices=choices,
    )


def positions_of(engine: Engine) -> str | tuple[int, ...]:
    """Where an engine patches, as it is saved."""
    positions = engine.config.positions
    return positions if isinstance(positions, str) else tuple(positions)
