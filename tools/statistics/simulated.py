"""Draws of effects whose true mean is known, and how often intervals and p values are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from tracekit.metrics import Bounds
from tracekit.results.intervals import UNBOUNDED, row_intervals
from tracekit.results.significance import LEVEL, p_values, sign_flip_p_values

SIZES = (8, 20, 100)
"""Independent examples."""
ROWS = (1, 10, 45)
"""Rows that are tested together: a pair, the pairs of 5 and of 10 components."""


@dataclass(frozen=True)
class Kind:
    """A distribution of effects."""

    draw: Callable[[tuple[int, int], Generator], Tensor]
    """Effects for a number of rows and examples."""
    mean: float
    bounds: Bounds = UNBOUNDED
    is_weighted: bool = False
    """Whether half of the examples weigh five times as much."""
    group: int = 1
    """Examples of a group, which share four fifths of their variance."""

    @property
    def can_be_null(self) -> bool:
        """Whether less their mean they are effects still: counts are not."""
        return not self.bounds.counts or self.mean == 0

    def effects(self, rows: int, n: int, generator: Generator) -> tuple[Tensor, dict]:
        """Effects of rows, times their weights, and what intervals take besides."""
        values = self.draw((rows, n * self.group), generator).double()
        weights = torch.tensor([5.0, 1.0]).repeat(n // 2) if self.is_weighted else None
        if weights is not None:
            weights = (weights / weights.mean()).double()
            values = values * weights
        clusters = None if self.group == 1 else torch.arange(n * self.group) // self.group
        return values, {"weights": weights, "clusters": clusters}


def _normal(shape: tuple[int, int], generator: Generator) -> Tensor:
    return torch.randn(*shape, generator=generator)


def _log_normal(sigma: float) -> Callable[[tuple[int, int], Generator], Tensor]:
    return lambda shape, generator: (sigma * _normal(shape, generator)).exp()


def _product(shape: tuple[int, int], generator: Generator) -> Tensor:
    """Interactions of odds ratios - 1 whose components add up in the log-odds."""
    first, second = (_normal(shape, generator).exp() - math.exp(0.5) for _ in range(2))
    return first * second


def _beta(a: float, b: float) -> Callable[[tuple[int, int], Generator], Tensor]:
    def draw(shape: tuple[int, int], generator: Generator) -> Tensor:
        numbers = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
        return torch.from_numpy(numbers.beta(a, b, shape))

    return draw


def _gamma(shape_parameter: float) -> Callable[[tuple[int, int], Generator], Tensor]:
    def draw(shape: tuple[int, int], generator: Generator) -> Tensor:
        numbers = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
        return torch.from_numpy(numbers.gamma(shape_parameter, 1.0, shape))

    return draw


def _choice(shares: dict[float, float]) -> Callable[[tuple[int, int], Generator], Tensor]:
    values, weights = torch.tensor(list(shares)), torch.tensor(list(shares.values()))

    def draw(shape: tuple[int, int], generator: Generator) -> Tensor:
        drawn = torch.multinomial(weights, shape[0] * shape[1], True, generator=generator)
        return values[drawn].reshape(shape)

    return draw


def _grouped(shape: tuple[int, int], generator: Generator) -> Tensor:
    rows, n = shape
    shared = _normal((rows, n // 4), generator).repeat_interleave(4, dim=1)
    return 0.84**0.5 * shared + 0.16**0.5 * _normal(shape, generator)


KINDS = {
    "normal": Kind(_normal, 0),
    "normal, weights 5 : 1": Kind(_normal, 0, is_weighted=True),
    "normal, groups of 4": Kind(_grouped, 0, group=4),
    "skewed (products of odds)": Kind(_product, 0),
    "skewed (log-normal, sigma 1)": Kind(_log_normal(1), math.exp(0.5)),
    "the same, weights 5 : 1": Kind(_log_normal(1), math.exp(0.5), is_weighted=True),
    "skewed (log-normal, sigma 1.5)": Kind(_log_normal(1.5), math.exp(1.125)),
    "bounded (beta .3, .3)": Kind(_beta(0.3, 0.3), 0.5, Bounds(0, 1)),
    "bounded (beta 5, .3)": Kind(_beta(5, 0.3), 5 / 5.3, Bounds(0, 1)),
    "0 or 1, p = .5": Kind(_choice({0.0: 0.5, 1.0: 0.5}), 0.5, Bounds(0, 1, True)),
    "0 or 1, p = .9": Kind(_choice({0.0: 0.1, 1.0: 0.9}), 0.9, Bounds(0, 1, True)),
    "0 or 1, p = .98": Kind(_choice({0.0: 0.02, 1.0: 0.98}), 0.98, Bounds(0, 1, True)),
    "-2, 0 or 1": Kind(_choice({-2.0: 0.1, 0.0: 0.7, 1.0: 0.2}), 0, Bounds(-3, 3, True)),
}


SKEWNESSES = {
    "gamma, skewness 1": Kind(_gamma(4), 4),
    "gamma, skewness 1.4": Kind(_gamma(2), 2),
    "gamma, skewness 2": Kind(_gamma(1), 1),
    "gamma, skewness 2.8": Kind(_gamma(0.5), 0.5),
    "log-normal, skewness 1.75": Kind(_log_normal(0.5), math.exp(0.125)),
    "log-normal, skewness 3.3": Kind(_log_normal(0.75), math.exp(0.28125)),
}
"""Further ones, to see from which skewness on q is below its level too often."""


def coverage(kind: Kind, n: int, draws: int = 600) -> float:
    """How often a 95 % interval holds the true mean."""
    values, over = kind.effects(draws, n, torch.Generator().manual_seed(n))
    low, high = row_intervals(values, bounds=kind.bounds, **over).T
    return ((low - 1e-9 <= kind.mean) & (kind.mean <= high + 1e-9)).double().mean().item()


def corrected(values: Tensor, **over: Tensor | None) -> Tensor:
    """P values that are corrected for all rows."""
    return p_values(values, **over).family


def family_wise_error(kind: Kind, n: int, rows: int, draws: int = 200, *, test=corrected) -> float:
    """How often any of some rows of mean 0 is significant."""
    generator, wrong = torch.Generator().manual_seed(1000 * rows + n), 0
    for _ in range(draws):
        values, over = kind.effects(rows, n, generator)
        values -= kind.mean * (1 if over["weights"] is None else over["weights"])
        wrong += int((test(values, **over) < LEVEL).any())
    return wrong / draws


def false_findings(kind: Kind, n: int, draws: int = 200, rows: int = 40) -> tuple[float, float]:
    """How often any of some rows of mean 0 has q < .05, and how often q comes with a caution."""
    generator, wrong, cautions = torch.Generator().manual_seed(11 * n), 0, 0
    for _ in range(draws):
        values, over = kind.effects(rows, n, generator)
        values -= kind.mean * (1 if over["weights"] is None else over["weights"])
        tests = p_values(values, **over)
        wrong += any(tests.significant())
        cautions += bool(tests.caution)
    return wrong / draws, cautions / draws


def power(n: int, rows: int, shift: float, draws: int = 200) -> float:
    """How often the one of some rows whose mean is not 0 is significant; normal effects."""
    generator, found = torch.Generator().manual_seed(n), 0
    for _ in range(draws):
        values = _normal((rows, n), generator).double()
        values[0] += shift
        found += int(corrected(values)[0] < LEVEL)
    return found / draws


def discoveries(
    kind: Kind, n: int, rows: int = 45, n_true: int = 5, shift: float = 1.0, draws: int = 100
) -> tuple[float, float]:
    """Share of rows with an effect that have q < .05, and the false discovery rate.

    The true rows have a mean of `shift` standard deviations of the effects.
    """
    generator, found, false = torch.Generator().manual_seed(7 * n), 0.0, 0.0
    for _ in range(draws):
        values, over = kind.effects(rows, n, generator)
        weights = 1 if over["weights"] is None else over["weights"]
        values -= kind.mean * weights
        values[:n_true] += shift * values.std() * weights
        is_found = torch.tensor(p_values(values, **over).significant())
        found += is_found[:n_true].double().mean().item() / draws
        false += is_found[n_true:].sum().item() / max(1, int(is_found.sum())) / draws
    return found, false


def planted_pairs(
    kind: Kind, n: int, rows: int = 120, n_true: int = 5, draws: int = 60
) -> dict[str, tuple[float, float]]:
    """Share of true pairs of a grid that are found, and false discovery rate, by each way to test.

    All pairs on all examples, by the family-wise p and by q; and choosing by the size on one half
    of the examples, testing 20 or 6 on the other.
    """
    generator, totals = torch.Generator().manual_seed(3 * n), {}
    for _ in range(draws):
        values, over = kind.effects(rows, n, generator)
        weights = 1 if over["weights"] is None else over["weights"]
        values -= kind.mean * weights
        values[:n_true] += values.std() * weights
        half = values.shape[1] // 2
        other = {name: None if each is None else each[half:] for name, each in over.items()}
        by_size = values[:, :half].mean(1).abs().argsort(descending=True)
        tests, every = p_values(values, **over), torch.arange(rows)
        found = {"family-wise p": every[torch.tensor(tests.significant("family"))]}
        found["q"] = every[torch.tensor(tests.significant())]
        for count in (20, 6):
            chosen = by_size[:count]
            passed = p_values(values[chosen, half:], **other).significant()
            found[f"{count} chosen by a half, q"] = chosen[torch.tensor(passed)]
        for name, those in found.items():
            n_found, right = len(those), int((those < n_true).sum())
            shares, false = totals.setdefault(name, ([], []))
            shares.append(right / n_true)
            false.append((n_found - right) / max(1, n_found))
    return {name: (float(np.mean(a)), float(np.mean(b))) for name, (a, b) in totals.items()}


def flips_alone(values: Tensor, *, weights: Tensor | None, clusters: Tensor | None) -> Tensor:
    """P values of sign flips, to compare with; they know of no groups."""
    del weights, clusters
    return sign_flip_p_values(values)[1]


def table() -> Iterator[str]:
    """Lines of the table of which `docs/statistics.md` has some rows, and of its powers."""
    yield "| effects | coverage, n = 8, 20, 100 | error, n = 8 | n = 20 | n = 100 |"
    yield "| --- | --- | --- | --- | --- |"
    for name, kind in KINDS.items():
        cells = [", ".join(_share(coverage(kind, n)) for n in SIZES)]
        for n in SIZES if kind.can_be_null else ():
            cells.append(", ".join(_share(family_wise_error(kind, n, rows)) for rows in ROWS))
        cells += [""] * (4 - len(cells))
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield "| mean of the row | n = 8 | n = 20 | n = 100 |"
    yield "| --- | --- | --- | --- |"
    for shift in (0.5, 1.0, 2.0):
        cells = [", ".join(_share(power(n, rows, shift)) for rows in ROWS) for n in SIZES]
        yield f"| {shift:g} standard deviations | {' | '.join(cells)} |"

    yield ""
    yield "| 5 of 45 rows have a mean of 1 standard deviation | found, false, n = 20 | n = 50 |"
    yield "| --- | --- | --- |"
    for name, kind in KINDS.items():
        if kind.can_be_null:
            cells = [", ".join(map(_share, discoveries(kind, n))) for n in (20, 50)]
            yield f"| {name} | {' | '.join(cells)} |"

    yield ""
    yield "| 40 rows of mean 0: some q < .05, with a caution | n = 12 | n = 20 | n = 30 | n = 50 |"
    yield "| --- | --- | --- | --- | --- |"
    for name, kind in (KINDS | SKEWNESSES).items():
        if kind.can_be_null:
            cells = [", ".join(map(_share, false_findings(kind, n))) for n in (12, 20, 30, 50)]
            yield f"| {name} | {' | '.join(cells)} |"

    yield ""
    yield "| 5 of 120 pairs, found, false: tested by | n = 16 | n = 32 | n = 64 |"
    yield "| --- | --- | --- | --- |"
    for name in ("normal", "normal, groups of 4", "skewed (log-normal, sigma 1)"):
        by_n = [planted_pairs(KINDS[name], n) for n in (16, 32, 64)]
        for way in by_n[0]:
            cells = [", ".join(map(_share, each[way])) for each in by_n]
            yield f"| {name}; {way} | {' | '.join(cells)} |"


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")
