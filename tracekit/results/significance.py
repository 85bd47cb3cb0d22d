"""Whether mean effects differ from 0: p values over examples, alone and for many rows.

A row of a table has the three numbers `p`, `q` and `p_family`, whose tests `docs/statistics.md`
describes (`pytest -m soak tests/tools -k table` prints how often they are wrong). For `p_family`,
both tests are corrected for all rows by step-down maxT (Westfall and Young, Resampling-based
multiple testing, 1993).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.clusters import sum_by_cluster
from tracekit.results.intervals import LEAST_ERROR, N_RESAMPLES, Resamples

LEVEL = 0.05
"""q, or family-wise p value, below which an effect counts."""
Mark = Literal["q", "family"]
"""Whether `q` or `p_family` decides."""
RESOLUTION = 1e-4
"""Share of the effects that an interaction is a difference of, below which it may be rounding."""
_FLOOR = 1e-5
"""Rounding of effects near 0: of ratios and probabilities, and in nats. Of metrics with smaller
units, the share of the largest effect of any set on the example."""
_DRAWS = 10_000
_DRAWS_PER_ROW, _MOST_DRAWS = 60, 20_000
"""Resamples, so that one row of many can have a q below `LEVEL`."""
_AT_ONCE = 20_000_000
"""Signs that are drawn together; bounds memory."""
_MOST = 0.5
"""Share of the summed effects of a row that one example may have, for it to count."""
MANY_EXAMPLES = 50
"""Independent examples from which on q holds for skewed effects too."""
SKEWED = 0.8
"""Median size of skewness of rows from which on it does not hold with fewer: `python -m
tools.statistics` prints how often q is below `LEVEL` in tables without any effect."""
_LEAST_ERROR = 0.1
"""As in `intervals.py`, of p values: lower, which finds less in skewed effects by chance."""


def zero_below_rounding(
    interactions: Float[Tensor, "*row example"], scale: Float[Tensor, "*row example"]
) -> Float[Tensor, "*row example"]:
    """Interactions, with 0 where they are too small to be told from rounding.

    Effects are float32 numbers. Rounding often has the same sign on all examples, and a test of
    signs would call a difference of 1e-7 significant. `scale` is the size of the effects compared.
    """
    least = RESOLUTION * scale + _FLOOR * scale.flatten(0, -2).max(0).values.clamp(max=1)
    return torch.where(interactions.abs() > least, interactions, 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class PValues:
    """Two-sided p values of the rows of a table, of the hypothesis that their mean is 0."""

    row: Float[Tensor, " row"]
    """Of each row by itself."""
    q: Float[Tensor, " row"]
    """False discovery rate (Benjamini and Hochberg)."""
    family: Float[Tensor, " row"]
    """Corrected for all rows: the family-wise error."""
    skewness: float | None = None
    """Median over rows of the size of the skewness of their effects, where it makes q unreliable:
    at least 0.8, with fewer than 50 independent examples. None elsewhere."""

    @property
    def caution(self) -> str:
        """A sentence where q is not reliable; else empty."""
        if self.skewness is None:
            return ""
        return (
            f"q is not reliable here: the effects are skewed (median skewness {self.skewness:.2g}) "
            f"and there are fewer than {MANY_EXAMPLES} independent examples. Decide by p_family."
        )

    def columns(self, by: Mark = "q") -> dict[str, list[Any]]:
        """Columns `p`, `q`, `p_family` and `significant`, whether what decides is below 0.05."""
        return {
            "p": self.row.tolist(),
            "q": self.q.tolist(),
            "p_family": self.family.tolist(),
            "significant": self.significant(by),
        }

    def significant(self, by: Mark = "q") -> list[bool]:
        """Whether what decides is below 0.05."""
        return ((self.q if by == "q" else self.family) < LEVEL).tolist()

    @classmethod
    def none(cls, n_rows: int) -> PValues:
        """NaN for each of some rows, which cannot be tested."""
        nothing = torch.full((n_rows,), float("nan"))
        return cls(row=nothing, q=nothing, family=nothing)


def p_values(
    effects: Float[Tensor, "row example"],
    *,
    weights: Float[Tensor, " example"] | None = None,
    clusters: Int[Tensor, " example"] | None = None,
) -> PValues:
    """Two-sided p values of means of 0; arguments as `row_intervals`."""
    sums, resamples = sum_by_cluster(effects, clusters), Resamples(effects, weights, clusters)
    by_resamples = _resampled_p_values(resamples, sums)
    row, family = map(torch.maximum, sign_flip_p_values(sums), by_resamples)
    skewness, has_effect = None, (effects != 0).any(1).cpu()
    if sums.shape[1] < MANY_EXAMPLES and has_effect.any():
        median = resamples.skewness[has_effect].abs().median().item()
        skewness = median if median >= SKEWED else None
    q = q_values(row).float()
    return PValues(row=row.float(), q=q, family=family.float(), skewness=skewness)


def p_text(row: Mapping[Any, Any]) -> str:
    """The p values of a row of a table in words."""
    if row["p"] != row["p"]:
        return "no p on these examples"
    return f"p = {row['p']:.2g}, q = {row['q']:.2g}, family-wise p = {row['p_family']:.2g}"


def is_unsure(row: Mapping[Any, Any], name: str) -> bool:
    """Whether the interval of a row of a table leaves out 0, but it is not significant."""
    low, high = row.get(f"{name}_low", 0.0), row.get(f"{name}_high", 0.0)
    return not row["significant"] and (low > 0 or high < 0)


def q_values(p: Float[Tensor, " row"]) -> Float[Tensor, " row"]:
    """False discovery rates of p values (Benjamini and Hochberg); NaN where p is."""
    from scipy.stats import false_discovery_control

    q, has_p = p.clone(), ~p.isnan()
    if has_p.any():
        q[has_p] = torch.from_numpy(false_discovery_control(p[has_p].numpy())).to(p.dtype)
    return q


def least_p(n_examples: int, n_rows: int = 1) -> float:
    """The least p value of so many independent examples, in a table of so many rows."""
    return max(2.0 ** (1 - min(n_examples, 1000)), 2 / (_n_draws(n_rows) + 1))


def _n_draws(n_rows: int) -> int:
    return max(N_RESAMPLES, min(_DRAWS_PER_ROW * n_rows, _MOST_DRAWS))


def most_testable_rows(n_examples: int) -> int:
    """The most rows among which one with the least possible p value has a q of at most 0.05."""
    return max(1, int(LEVEL / least_p(n_examples, _MOST_DRAWS)))


NO_P = (
    "There is no p value on the examples that the set was selected on. Give the tracer held_out "
    "examples."
)


def few_examples_note(n_examples: int, n_rows: int = 1) -> str:
    """A sentence where the least p value of so many independent examples decides; else empty.

    `n_rows` is how many rows a table has, of which a q counts.
    """
    least, plural = least_p(n_examples, n_rows), "" if n_examples == 1 else "s"
    text = f"With {n_examples} independent example{plural} no p can be below {least:.2g}"
    if least >= LEVEL:
        return f"{text}, so that none can reach .05."
    if least * n_rows < LEVEL:
        return ""
    return (
        f"{text}, so that no q is below .05 unless {ceil(least * n_rows / LEVEL)} of the {n_rows} "
        "rows have it."
    )


def sign_flip_p_values(
    effects: Float[Tensor, "row example"],
) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """Two-sided p values from sign flips: of each row, and corrected for any number of rows.

    Effects are times the weights of their examples. For the correction each row is divided by the
    size of sum that 5 % of its flips exceed, which no flip changes. Up to 13 examples have all of
    their flips; of more, 10,000 are drawn, and the measured signs count as one. With n examples no
    p value lies below 2 / 2^n.
    """
    values = effects.double().cpu()
    n_rows, n = values.shape
    scale = _sign_flip_quantile(values)[:, None]
    # A row without any effect is as far from 0 as every flip of it.
    values = torch.where(scale > 0, values / scale, 0.0)
    measured, order = values.sum(1).abs().sort(descending=True)
    # Sums in another order may differ in the last digits.
    values, least = values[order], measured - 1e-9
    (alone, hits), n_flips = torch.zeros(2, n_rows, dtype=torch.float64), 0
    for signs in _flips(n, max(1, _AT_ONCE // (n + 2 * n_rows))):
        flipped = (values @ signs.T).abs()
        alone += flipped.ge(least[:, None]).sum(1)
        hits += _count_draws_reaching(flipped, least)
        n_flips += len(signs)
    both = torch.stack([alone, hits.cummax(0).values]) / n_flips
    row, family = torch.empty_like(both).scatter(1, order.expand_as(both), both)
    return row, family


def _resampled_p_values(
    resamples: Resamples, sums: Float[Tensor, "row cluster"]
) -> tuple[Float[Tensor, " row"], Float[Tensor, " row"]]:
    """P values from resamples around the mean: of each row's tails, and corrected for all."""
    centres, spreads = resamples.centres, resamples.errors
    statistics = torch.where(spreads > 0, centres / spreads, torch.inf * centres.sign()).nan_to_num(
        nan=0.0, posinf=torch.inf, neginf=-torch.inf
    )
    # Every third resample of a row leaves an example out that makes up most of it, deviates widely,
    # and would hide what all other rows show. The p value of such a row is that of its tails.
    n_rows, sizes = len(statistics), sums.abs()
    is_shared = sizes.amax(1) <= _MOST * sizes.sum(1)
    skewness = resamples.skewness
    sides = torch.where(skewness < 0, -1.0, 1.0).double()
    turned = sides * statistics
    # What is compared: sizes, and each tail of the rows that are turned to one side.
    measured = [statistics.abs(), turned, -turned]
    orders = [each.argsort(descending=True) for each in measured]
    hits = torch.ones(len(measured), n_rows, dtype=torch.float64)
    above, below = torch.ones(2, n_rows, dtype=torch.float64)
    n_draws = _n_draws(n_rows)
    for shifts, errors in resamples.deviations(max(1, _AT_ONCE // 8 // n_rows), n_draws):
        floored = torch.maximum(errors, _LEAST_ERROR * spreads[:, None])
        deviations = torch.where(floored > 0, shifts / floored, 0.0)
        deviations = torch.where(is_shared[:, None], deviations * sides[:, None], 0.0)
        drawn = (deviations.abs(), deviations, -deviations)
        for number, (each, order) in enumerate(zip(drawn, orders, strict=True)):
            hits[number] += _count_draws_reaching(each[order], measured[number][order] - 1e-9)
        floored = torch.maximum(errors, LEAST_ERROR * spreads[:, None])
        deviations = torch.where(floored > 0, shifts / floored, 0.0)
        above += deviations.ge(statistics[:, None] - 1e-9).sum(1)
        below += deviations.le(statistics[:, None] + 1e-9).sum(1)
    tails = (2 * torch.minimum(above, below) / (n_draws + 1)).clamp(max=1)
    corrected = (hits / (n_draws + 1)).cummax(1).values
    in_order = torch.stack(orders)
    both, upper, lower = torch.empty_like(corrected).scatter(1, in_order, corrected)
    of_tail = (2 * torch.minimum(upper, lower)).clamp(max=1)
    has_side = skewness.abs() >= (6 / sizes.shape[1]) ** 0.5
    return tails, torch.maximum(torch.where(has_side, of_tail, both), tails)


def _sign_flip_quantile(values: Float[Tensor, "row example"]) -> Float[Tensor, " row"]:
    """The absolute sum that only a share `LEVEL` of the sign flips of a row exceeds."""
    n = values.shape[1]
    # All flips, of up to 2,000 examples.
    signs = torch.cat([*islice(_flips(n, max(1, _AT_ONCE // n)), 2)])
    rows = values.split(max(1, _AT_ONCE // len(signs)))
    rank = ceil((1 - LEVEL) * len(signs))
    return torch.cat([(part @ signs.T).abs().kthvalue(rank, dim=1).values for part in rows])


def _count_draws_reaching(
    drawn: Float[Tensor, "row draw"], measured: Float[Tensor, " row"]
) -> Float[Tensor, " row"]:
    """Draws in which the largest among a row and all below it reaches what was measured of it."""
    return drawn.flip(0).cummax(0).values.flip(0).ge(measured[:, None]).sum(1).double()


def _flips(n_examples: int, at_once: int) -> Iterator[Float[Tensor, "draw example"]]:
    """Signs of the examples in portions, the same for all rows; the first are those measured."""
    if 2**n_examples <= _DRAWS:
        # Flipping all signs leaves the absolute sum as it is: the last example is never flipped.
        for part in torch.arange(2 ** (n_examples - 1)).split(at_once):
            yield 1.0 - 2.0 * (part[:, None] >> torch.arange(n_examples) & 1).double()
        return
    generator = torch.Generator().manual_seed(0)
    yield torch.ones(1, n_examples, dtype=torch.float64)
    for first in range(0, _DRAWS, at_once):
        shape = (min(at_once, _DRAWS - first), n_examples)
        yield torch.randint(2, shape, generator=generator).double() * 2 - 1
