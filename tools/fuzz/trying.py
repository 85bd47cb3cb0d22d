"""Tries properties: some examples of one, or all of them until the time is over."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, given, seed, settings

from tools.fuzz.properties import PROPERTIES

MINUTES = 60.0
"""How long the two seeds take together."""


def check(name: str, *, examples: int, start: int | None = None) -> None:
    """Tries a property; without a start, always on the same inputs."""
    function, arguments, _ = PROPERTIES[name]
    test = given(**arguments)(function)
    test = settings(
        max_examples=examples,
        derandomize=start is None,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )(test if start is None else seed(start)(test))
    test()


def at_length(start: int, minutes: float) -> None:
    """Tries all properties in rounds, each with a seed of its own, until the time is over."""
    end, rounds = time.monotonic() + minutes * 60, 0
    while time.monotonic() < end:
        for name, (_, _, examples) in PROPERTIES.items():
            try:
                check(name, examples=4 * examples, start=start + rounds)
            except BaseException as error:
                error.add_note(f"{name}, python -m tools.fuzz --seed {start + rounds}")
                raise
            if time.monotonic() > end:
                break
        rounds += 1
