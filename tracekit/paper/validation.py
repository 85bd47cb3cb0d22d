"""Validation: do a model's single-head effects agree with published ones?

Every head is measured alone, and all together, on the data set and with the protocol of Vig et al.
(2020), and compared with their table for the real weights. Agreement shows that weights,
tokenizer, data, hooks and metric are all the ones meant; a wrong checkpoint fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.errors import TableMismatchError
from tracekit.paper.published import SingleHeads
from tracekit.tracer import Tracer

_CORRELATION = 0.99
_DIFFERENCE = 0.05
_ALL = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Validation:
    """Ours beside the published ones."""

    table: SingleHeads
    singles: Float[Tensor, "layer head"]
    """Effect of each head, measured here."""
    all_heads: float
    """Effect of all of them together, measured here."""

    @property
    def correlation(self) -> float:
        """Pearson correlation of the single effects."""
        both = torch.stack([self.singles.flatten(), self.table.singles.flatten()]).double()
        found = torch.corrcoef(both)[0, 1].item()
        return found if found == found else 0.0

    @property
    def largest_difference(self) -> float:
        """Largest difference of a single effect."""
        return (self.singles - self.table.singles).abs().max().item()

    @property
    def largest_published(self) -> float:
        """Largest published single effect, the scale of the difference."""
        return self.table.singles.abs().max().item()

    @property
    def problems(self) -> list[str]:
        """What does not agree; empty if everything does."""
        found = []
        if not self.correlation >= _CORRELATION:
            found.append(f"the correlation is {self.correlation:.4f}, below {_CORRELATION}")
        if not self.largest_difference <= _DIFFERENCE * self.largest_published:
            found.append(
                f"a head differs by {self.largest_difference:.3g}, more than {_DIFFERENCE:.0%} of "
                f"the largest published effect, {self.largest_published:.3g}"
            )
        if not abs(self.all_heads - self.table.all_heads) <= _ALL * abs(self.table.all_heads):
            found.append(
                f"all heads together have an effect of {self.all_heads:.4g} instead of "
                f"{self.table.all_heads:.4g}, more than {_ALL:.0%} off"
            )
        return found

    @property
    def agrees(self) -> bool:
        """The verdict."""
        return not self.problems


def validate(tracer: Tracer, table: SingleHeads) -> Validation:
    """Measures all heads and compares.

    Args:
        tracer: Of all heads of a model, with `odds-ratio` and the data set of the table.
        table: What to compare with.

    Raises:
        TableMismatchError: The table has other layers, heads, examples or another data set than
            the tracer, so there is nothing to compare.
    """
    layers, heads = int(tracer.model.cfg.n_layers), int(tracer.model.cfg.n_heads)
    ours = f"{layers} x {heads} heads, {len(tracer.pairs)} examples of {tracer.pairs.name}"
    rows, columns = table.singles.shape
    theirs = f"{rows} x {columns} heads, {table.n_examples} examples of {table.dataset}"
    if ours != theirs or len(tracer.registry) != layers * heads:
        raise TableMismatchError(
            f"The table for {table.model} has {theirs}; the model has {ours}. "
            "Give the model and the data set that the table is about."
        )
    sets = [[i] for i in range(len(tracer.registry))]
    singles = tracer.engine.mean_effects(sets, "single heads")
    return Validation(
        table=table, singles=singles.reshape(layers, heads), all_heads=tracer.full_effect
    )
