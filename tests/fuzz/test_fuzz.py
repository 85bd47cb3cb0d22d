"""Random inputs over the whole public surface; `properties.py` says what must hold.

`pytest -m slow tests/fuzz` takes about two minutes and always the same inputs. By hand,
`pytest -m soak tests/fuzz` takes an hour, half of it with the seed 0 and half with a fresh one that
a failure names; TRACEKIT_FUZZ_MINUTES sets another time, TRACEKIT_FUZZ_SEED another fresh seed.
"""

from __future__ import annotations

import os
import random
import time

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.properties import PROPERTIES, counts

MINUTES = float(os.environ.get("TRACEKIT_FUZZ_MINUTES", "60"))
FRESH = int(os.environ.get("TRACEKIT_FUZZ_SEED", random.SystemRandom().randrange(2**32)))

pytestmark = pytest.mark.usefixtures("unchecked")


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


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_in_short(name):
    counts.clear()
    check(name, examples=PROPERTIES[name][2])
    # Were everything refused, or everything taken, little would be tried.
    assert counts["taken"] >= 3 or name == "damaged_saves", counts
    assert counts["refused"] >= 0.02 * counts.total(), counts


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("start", [0, FRESH], ids=["seed 0", "a fresh seed"])
def test_at_length(start):
    end, rounds = time.monotonic() + MINUTES * 60 / 2, 0
    while time.monotonic() < end:
        for name, (_, _, examples) in PROPERTIES.items():
            try:
                check(name, examples=4 * examples, start=start + rounds)
            except BaseException as error:
                error.add_note(f"{name}, TRACEKIT_FUZZ_SEED={start + rounds}")
                raise
            if time.monotonic() > end:
                break
        rounds += 1


def test_a_property_that_does_not_hold_is_found():
    """The net has no hole where it is tied: a wrong number and a foreign error are findings."""
    from unittest import mock

    from tests.fuzz import properties

    def wrong(tracer, mask):
        return tracer.engine.effects(mask) + 1

    with mock.patch.object(properties, "plain_effects", wrong), pytest.raises(AssertionError):
        check("masks", examples=20)
    with (
        mock.patch("tracekit.PromptPairs.from_ids", side_effect=KeyError),
        pytest.raises(KeyError),
    ):
        check("rows_of_ids", examples=2)
