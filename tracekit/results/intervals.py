"""Bootstrap intervals of mean effects over examples, as `docs/statistics.md` describes them.

They are studentised (Efron and Tibshirani, An Introduction to the Bootstrap, section 12.5). Pairs
that repeat an example, and those of a group, are drawn together, as one of a larger weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.clusters import FEWEST, EvidenceOptions, ratio_and_error, sum_by_cluster
from tracekit.metrics import Bounds

N_RESAMPLES = 2000
_AT_ONCE = 4_000_000
"""Numbers that are drawn together; bounds memory."""
LEAST_ERROR = 0.2
"""A resample's standard error is at least this share of that of the examples: where most of them
are alike, a resample may have none."""
UNBOUNDED = Bounds()


def effect_interval(
    per_example: Float[Tensor, " example"],
    *,
    weights: Float[Tensor, " example"] | None = None,
    clusters: Int[Tensor, " example"] | None = None,
    bounds: Bounds = UNBOUNDED,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Studentised bootstrap interval of the mean effect over examples; NaN below three of them.

    Args:
        per_example: Effects, times the weights of their examples if these have weights.
        weights: These weights; None if all examples count alike.
        clusters: Which independent example each is part of; None if all are independent.
        bounds: What the mean can be. If effects are whole numbers within bounds, and all equal,
            the interval is exact (Clopper and Pearson, 1934): other values have a share of up to
            1 - 0.025^(1/n).
        confidence: How often such an interval is to hold the true mean.
        seed: Of the resamples.
    """
    over, tail = EvidenceOptions(weights=weights, clusters=clusters), (1 - confidence) / 2
    low, high = row_intervals(per_example[None], bounds=bounds, tail=tail, seed=seed, **over)[0]
    return low.item(), high.item()


def row_intervals(
    per_example: Float[Tensor, "row example"],
    *,
    weights: Float[Tensor, " example"] | None = None,
    clusters: Int[Tensor, " example"] | None = None,
    bounds: Bounds = UNBOUNDED,
    tail: float = 0.025,
    seed: int = 0,
) -> Float[Tensor, "row 2"]:
    """Low and high end of the `effect_interval` of each row, from the same resamples.

    `tail` is the share of them beyond either end.
    """
    parts = []
    for rows in per_example.split(max(1, _AT_ONCE // N_RESAMPLES)):
        drawn = Resamples(rows, weights, clusters, seed)
        ends = drawn.centres[:, None] - drawn.quantiles(tail) * drawn.errors[:, None]
        if bounds.counts and bounds.low > -inf and bounds.high < inf:
            exact = drawn.exact_ends(tail)
            ends = torch.where(exact.isnan(), ends, exact)
        parts.append(ends.clamp(bounds.low, bounds.high))
    return torch.cat(parts)


class Resamples:
    """Means of rows of effects on resampled examples, and the standard errors of these."""

    def __init__(
        self,
        per_example: Float[Tensor, "row example"],
        weights: Float[Tensor, " example"] | None,
        clusters: Int[Tensor, " example"] | None,
        seed: int = 0,
    ) -> None:
        """Draws nothing yet; arguments as of `effect_interval`."""
        ones = torch.ones(per_example.shape[1])
        values = sum_by_cluster(per_example, clusters)
        self._bases = sum_by_cluster(ones if weights is None else weights, clusters)
        self._seed = seed
        self.centres, self.errors = ratio_and_error(values, self._bases.expand_as(values))
        """Mean effects, and their standard errors to first order."""
        self._residuals = values - self.centres[:, None] * self._bases

    def exact_ends(self, tail: float) -> Float[Tensor, "row 2"]:
        """Low and high end where all effects of a row are one whole number; NaN elsewhere."""
        is_whole = (self.centres - self.centres.round()).abs() < 1e-6
        is_constant = is_whole & (self._residuals.abs().amax(1) <= 1e-6 * self._bases.mean())
        # The largest share of examples that as many as these may all miss.
        off = 1 - tail ** (self._bases.square().sum() / self._bases.sum().square()).item()
        ends = self.centres[:, None] + torch.tensor([-off, off], dtype=self.centres.dtype)
        return torch.where(is_constant[:, None], ends, nan)

    @property
    def skewness(self) -> Float[Tensor, " row"]:
        """Skewness of the effects of each row around its mean; 0 where they are alike."""
        squares, cubes = self._residuals.square().mean(1), self._residuals.pow(3).mean(1)
        return torch.where(squares > 0, cubes / squares.pow(1.5), 0.0).nan_to_num(0.0, 0.0, 0.0)

    def deviations(
        self, at_once: int = N_RESAMPLES, n_draws: int = N_RESAMPLES
    ) -> Iterator[tuple[Float[Tensor, "row draw"], Float[Tensor, "row draw"]]]:
        """How far resampled means lie from the mean, and their standard errors, in portions."""
        n, residuals, bases = len(self._bases), self._residuals, self._bases
        for part in resamples(n, self._seed, at_once, n_draws):
            # How often each example is in each resample: sums over resamples are matrix products.
            counts = torch.zeros(len(part), n, dtype=torch.float64)
            counts = counts.scatter_add(1, part, torch.ones_like(part, dtype=torch.float64)).T
            base_sums, base_squares = bases @ counts, bases.square() @ counts
            shifts = residuals @ counts / base_sums
            squares = (
                residuals.square() @ counts
                - 2 * shifts * ((residuals * bases) @ counts)
                + shifts.square() * base_squares
            )
            yield shifts, (squares.clamp(min=0) / max(1, n - 1) / n).sqrt() / (base_sums / n).abs()

    def quantiles(self, tail: float) -> Float[Tensor, "row 2"]:
        """Upper and lower quantile of the deviations, in standard errors of each resample."""
        if len(self._bases) < FEWEST:
            return torch.full((len(self.centres), 2), nan, dtype=torch.float64)
        ends = torch.tensor([1 - tail, tail], dtype=torch.float64)
        parts = []
        for shifts, errors in self.deviations():
            floored = torch.maximum(errors, LEAST_ERROR * self.errors[:, None])
            # If all values are equal, the standard error is 0.
            parts.append(torch.where(floored > 0, shifts / floored, 0.0))
        return torch.cat(parts, dim=1).quantile(ends, dim=1).T


def resamples(
    n: int, seed: int = 0, at_once: int = N_RESAMPLES, n_draws: int = N_RESAMPLES
) -> Iterator[Int[Tensor, "draw example"]]:
    """Examples of every resample, in portions that bound memory."""
    generator = torch.Generator().manual_seed(seed)
    most = min(at_once, max(1, _AT_ONCE // n))
    for done in range(0, n_draws, most):
        yield torch.randint(n, (min(most, n_draws - done), n), generator=generator)


def ratio_interval(
    numerators: Float[Tensor, " example"],
    denominators: Float[Tensor, " example"],
    *,
    clusters: Int[Tensor, " example"] | None = None,
    bounds: Bounds = UNBOUNDED,
) -> tuple[float, float]:
    """95 % interval of a ratio of two means over the same examples, by a studentised bootstrap.

    Where some denominators are negative, it is after Fieller (1954) and holds the ratios r for
    which the mean of `numerators - r * denominators` does not differ from 0. Where the mean of the
    denominators itself does not differ from 0, any ratio may be: the ends are infinite. Values are
    times the weights of their examples if these have weights. NaN below three independent examples.
    """
    values, bases = sum_by_cluster(numerators, clusters), sum_by_cluster(denominators, clusters)
    n = len(values)
    if n < FEWEST:
        return nan, nan
    centre, error = ratio_and_error(values, bases)
    if error == 0:
        return centre.item(), centre.item()
    if bases.min() < 0:
        of_whole = effect_interval(bases)
        if of_whole[0] <= 0 <= of_whole[1]:
            return -inf, inf
        residuals = Resamples((values - centre * bases)[None], None, None)
        upper, lower = residuals.quantiles(0.025)[0].tolist()
        low, high = _fieller(values, bases, upper, -1), _fieller(values, bases, lower, 1)
    else:
        deviations = []
        for picks in resamples(n):
            ratios, errors = ratio_and_error(values[picks], bases[picks])
            deviations.append((ratios - centre) / errors.clamp(min=LEAST_ERROR * error.item()))
        ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
        low, high = (centre - torch.cat(deviations).quantile(ends).flip(0) * error).tolist()
    return max(low, bounds.low), min(high, bounds.high)


def _fieller(
    values: Float[Tensor, " example"], bases: Float[Tensor, " example"], errors: float, side: int
) -> float:
    """The ratio below or above the measured one that lies as many standard errors from it."""
    n = len(values)
    both = torch.stack([values, bases])
    (a, b), covariances = both.mean(1).tolist(), (errors**2 / n * torch.cov(both)).tolist()
    # (a - r b)^2 = errors^2 var(values - r bases) / n, a quadratic equation of r.
    of_square = b * b - covariances[1][1]
    half = a * b - covariances[0][1]
    root = half * half - of_square * (a * a - covariances[0][0])
    return side * inf if of_square <= 0 else (half + side * max(root, 0.0) ** 0.5) / of_square


def standard_error(
    per_example: Float[Tensor, " example"],
    weights: Float[Tensor, " example"] | None = None,
    clusters: Int[Tensor, " example"] | None = None,
) -> float:
    """Standard error of the mean effect over examples; arguments as in `effect_interval`."""
    return Resamples(per_example[None], weights, clusters).errors.item()
