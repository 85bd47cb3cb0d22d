"""Random inputs over the whole public surface; `tools/fuzz/properties.py` says what must hold.

`pytest -m slow tests/tools/test_fuzz.py` takes about two minutes and always the same inputs. By
hand, `python -m tools.fuzz` takes an hour; the soak test here does the same.
"""

from __future__ import annotations

import random
from unittest import mock

import pytest

from tools.fuzz.properties import PROPERTIES, counts
from tools.fuzz.trying import MINUTES, at_length, check

FRESH = random.SystemRandom().randrange(2**32)

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.soak
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
    at_length(start, MINUTES / 2)


@pytest.mark.soak
@pytest.mark.slow
def test_a_property_that_does_not_hold_is_found():
    """The net has no hole where it is tied: a wrong number and a foreign error are findings."""
    from tools.fuzz import properties

    def wrong(tracer, mask):
        return tracer.engine.effects(mask) + 1

    with mock.patch.object(properties, "plain_effects", wrong), pytest.raises(AssertionError):
        check("masks", examples=20)
    with (
        mock.patch("tracekit.PromptPairs.from_ids", side_effect=KeyError),
        pytest.raises(KeyError),
    ):
        check("rows_of_ids", examples=2)


def test_a_failure_names_the_seed_that_repeats_it():
    with (
        mock.patch("tools.fuzz.trying.check", side_effect=AssertionError("wrong")),
        pytest.raises(AssertionError, match="wrong") as failed,
    ):
        at_length(7, minutes=1)
    assert failed.value.__notes__ == [f"{next(iter(PROPERTIES))}, python -m tools.fuzz --seed 7"]
