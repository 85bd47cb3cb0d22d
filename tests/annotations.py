"""Calls are held to their annotations: `pytest --jaxtyping-packages=tracekit,tests.check`.

jaxtyping decorates every function of the package as it is imported, and asks `check` to check it.
Two things of that cost more than the tests themselves, and are spared here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

# An `int` is accepted where a `float` is asked for.
_check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped
DEFINITIONS = 20
"""How often a function that is defined inside another one is checked."""


def check(function: Callable) -> Callable:
    """Check the calls of a stub that jaxtyping makes of a function.

    jaxtyping makes two stubs. One takes the arguments alone, the other takes them again with the
    value that was returned. The second need not check the arguments once more: their shapes are
    known by then, and the value is held to them.
    """
    hints = function.__annotations__
    if hints.get("return", Any) is not Any:
        function.__annotations__ = {"return": hints["return"]}
    return _check(function)


def _decorate(function: Any = None, *, typechecker: Any) -> Any:
    """Stands for `jaxtyping.jaxtyped`, without hooks that are defined anew in every pass.

    To decorate such a function takes ten times as long as to run it, so only the first of its
    definitions are.
    """
    if function is None:
        return lambda each: _decorate(each, typechecker=typechecker)
    code = getattr(function, "__code__", None)
    if code is not None and "<locals>" in function.__qualname__:
        _definitions[code] += 1
        if _definitions[code] > DEFINITIONS:
            return function
    return _jaxtyped(function, typechecker=typechecker)


_definitions = Counter[CodeType]()
jaxtyping.jaxtyped = _decorate
