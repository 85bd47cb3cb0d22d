"""The checker of annotations in tests: beartype, with `int` accepted where `float` is asked for."""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable) -> Callable:
    """Check calls of a stub that jaxtyping makes of a function.

    jaxtyping makes two: one takes the arguments alone, the other takes them again with the value
    that was returned. The second need not check the arguments once more, which halves the time:
    their shapes are known by then, and the value is held to them.
    """
    hints = function.__annotations__
    if hints.get("return", Any) is not Any:
        function.__annotations__ = {"return": hints["return"]}
    return _check(function)
