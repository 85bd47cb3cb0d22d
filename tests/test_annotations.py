"""The checker that holds calls to their annotations, as `.ci/run` uses it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from torch import Tensor

from tests import check
from tests.annotations import DEFINITIONS


@jaxtyped(typechecker=check)
def product(x: Float[Tensor, "a b"], y: Float[Tensor, " b"]) -> Float[Tensor, " a"]:
    return y if len(y) == 2 else x @ y


@jaxtyped(typechecker=check)
def half(number: float) -> float:
    return "half" if number < 0 else number / 2


@jaxtyped(typechecker=check)
@dataclass
class Pair:
    x: Float[Tensor, " n"]
    y: Float[Tensor, " n"]


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (lambda: product(torch.ones(3, 4), torch.ones(5)), "parameters"),
        (lambda: product(torch.ones(3, 4), torch.ones(4, dtype=torch.long)), "parameters"),
        (lambda: product(torch.ones(3, 2), torch.ones(2)), "return value"),
        (lambda: half("1"), "parameters"),
        (lambda: half(-1), "return value"),
        (lambda: Pair(torch.ones(3), torch.ones(4)), "parameters"),
    ],
)
def test_arguments_and_values_are_held_to_their_annotations(call, wrong):
    with pytest.raises(TypeCheckError, match=f"whilst checking the {wrong} of"):
        call()


def test_true_calls_pass():
    assert product(torch.ones(3, 4), torch.ones(4)).shape == (3,)
    assert half(1) == 0.5
    Pair(torch.ones(3), torch.ones(3))


def test_functions_within_functions_are_checked_when_they_are_first_defined():
    def define():
        @jaxtyped(typechecker=check)
        def inner(number: int) -> int:
            return number

        return inner

    for _ in range(DEFINITIONS):
        with pytest.raises(TypeCheckError, match="whilst checking the parameters of"):
            define()("1")
    assert define()("1") == "1"
