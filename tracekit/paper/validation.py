"""Validation: do a model's single-head effects agree with published ones?

`validate` measures every head alone, and all together, with the data and the protocol of Vig et
al. (2020), and compares the effects with their table for the real weights. Agreement shows that
weights, tokenizer, data, hooks and metric are the ones meant; a wrong checkpoint fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.engine import checks
from tracekit.errors import ComparisonError
from tracekit.paper.published import SingleHeads
from tracekit.tracer.tracer import Tracer

_CORRELATION = 0.99
"""Least correlation that counts as agreement."""
_DIFFERENCE = 0.05
"""Largest difference of a single effect, as a share of the largest published one."""
_ALL_HEADS = 0.05
"""Largest relative difference of the effect of all heads."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Validation:
    """Measured single-head effects beside published ones."""

    table: SingleHeads
    """The published ones."""
    singles: Float[Tensor, "layer head"]
    """Effect of each head, measured here."""
    all_heads: float
    """Effect of all of them together, measured here."""

    @property
    def correlation(self) -> float:
        """Pearson correlation of the single effects; 0 if it is undefined."""
        both = torch.stack([self.singles.flatten(), self.table.singles.flatten()]).double()
        correlation = torch.corrcoef(both)[0, 1].item()
        return 0.0 if isnan(correlation) else correlation

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
        """The disagreements, as phrases; empty if there is none."""
        problems = []
        if not self.correlation >= _CORRELATION:
            problems.append(f"the correlation is {self.correlation:.4f}, below {_CORRELATION}")
        if not self.largest_difference <= _DIFFERENCE * self.largest_published:
            problems.append(
                f"a head differs by {self.largest_difference:.3g}, more than {_DIFFERENCE:.0%} of "
                f"the largest published effect, {self.largest_published:.3g}"
            )
        if not abs(self.all_heads - self.table.all_heads) <= _ALL_HEADS * abs(self.table.all_heads):
            problems.append(
                f"all heads together have an effect of {self.all_heads:.4g} instead of "
                f"{self.table.all_heads:.4g}, more than {_ALL_HEADS:.0%} off"
            )
        return problems

    @property
    def agrees(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


def validate(tracer: Tracer, table: SingleHeads) -> Validation:
    """Measures all heads of a model and compares them with a table.

    Args:
        tracer: Of all heads of a model, with `odds-ratio` and the data set of the table.
        table: Published effects.

    Raises:
        ComparisonError: Table and tracer differ in layers, heads, examples or data set.
    """
    n_layers, n_heads = int(tracer.model.cfg.n_layers), int(tracer.model.cfg.n_heads)
    traced = f"{n_layers} x {n_heads} heads, {len(tracer.pairs)} examples of {tracer.pairs.name}"
    rows, columns = table.singles.shape
    published = f"{rows} x {columns} heads, {table.n_examples} examples of {table.dataset}"
    if traced != published or len(tracer.registry) != n_layers * n_heads:
        raise ComparisonError(
            f"The table for {table.model} has {published}; the model has {traced}. "
            "Give the model and the data set that the table is about."
        )
    checks.check_unchanged(tracer.engine)
    sets = [[i] for i in range(len(tracer.registry))]
    singles = tracer.engine.set_effects(sets, "single heads").mean(1)
    return Validation(
        table=table, singles=singles.reshape(n_layers, n_heads), all_heads=tracer.full_effect
    )
