"""Schedules: epoch -> factor that multiplies a penalty weight.

The paper's schedule is `linear`: lambda * (epoch + 1), epochs counted from 0. All of them start
at 1, so that a penalty weight means the same under each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tracekit.errors import ConfigError


@dataclass(frozen=True)
class Exponential:
    """1, g, g^2, ..."""

    name: ClassVar[str] = "exponential"
    growth: float = 1.3

    def __post_init__(self) -> None:
        if self.growth <= 0:
            raise ConfigError(f"growth is {self.growth}. It must be positive.")

    def __call__(self, epoch: int) -> float:
        """Factor in `epoch` (from 0)."""
        return self.growth**epoch


@dataclass(frozen=True)
class Polynomial:
    """1, 2^p, 3^p, ...: with p = 0 the same in every epoch, with p = 1 the paper's."""

    name: ClassVar[str] = "polynomial"
    power: float = 2.0

    def __call__(self, epoch: int) -> float:
        """Factor in `epoch` (from 0)."""
        return float(epoch + 1) ** self.power


Schedule = Callable[[int], float]
"""Anything from an epoch (counted from 0) to a factor of at least 0."""

SCHEDULES: Mapping[str, Schedule] = {
    "constant": Polynomial(power=0.0),
    "linear": Polynomial(power=1.0),
    "exponential": Exponential(),
    "polynomial": Polynomial(),
}


def resolve(schedule: str | Schedule) -> Schedule:
    """A schedule by name or as given."""
    if not isinstance(schedule, str):
        return schedule
    if schedule not in SCHEDULES:
        raise ConfigError(
            f"Unknown schedule {schedule!r}. Use one of {', '.join(SCHEDULES)}, or a callable."
        )
    return SCHEDULES[schedule]
