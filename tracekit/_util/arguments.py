"""Checks the arguments of public functions against their annotations.

Most functions check their own arguments, with better messages. Therefore annotations are only
consulted after a function has raised a Python error, and beforehand for booleans.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from inspect import Parameter, formatannotation, isfunction, signature, unwrap
from types import NoneType, SimpleNamespace
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
from beartype import BeartypeConf
from beartype.door import is_bearable

from tracekit._util.options import short_repr
from tracekit.errors import ConfigError, TracekitError

_C = TypeVar("_C", bound=Callable[..., Any])
_TOWER = BeartypeConf(is_pep484_tower=True)
"""Whole numbers are floating ones, too."""
_TYPE_FAULTS = (TypeError, AttributeError, ValueError, LookupError)
"""Errors that Python raises for a value of a wrong type."""


def check_arguments(function: _C) -> _C:
    """Wraps a function, or the public methods of a class, to refuse values of a wrong type.

    Raises:
        ConfigError: An argument does not fit its annotation; the message has its value.
    """
    if isinstance(function, type):
        for name, call_checked in list(vars(function).items()):
            inner = getattr(call_checked, "__func__", call_checked)
            if isfunction(inner) and (name == "__init__" or not name.startswith("_")):
                checked = check_arguments(inner)
                if isinstance(call_checked, (classmethod, staticmethod)):
                    checked = type(call_checked)(checked)
                setattr(function, name, checked)
        return function  # type: ignore[return-value]
    parameters = signature(function)

    @wraps(function)
    def call_checked(*args: Any, **keywords: Any) -> Any:
        switches = _flag_names(function)
        for name in switches & keywords.keys():
            _check_argument(name, keywords[name], _parameter_hints(function)[name])
        try:
            return function(*args, **keywords)
        except TracekitError:
            raise
        except _TYPE_FAULTS as error:
            try:
                given = parameters.bind(*args, **keywords).arguments
            except TypeError:
                raise error from None
            for name, value in given.items():
                kind = parameters.parameters[name].kind
                if kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL):
                    _check_argument(name, value, _parameter_hints(function).get(name, Any), error)
            raise

    return call_checked  # type: ignore[return-value]


def _check_argument(name: str, value: object, hint: Any, error: Exception | None = None) -> None:
    if not fits_annotation(value, hint):
        text = f"{name} is {short_repr(value)}. Pass {formatannotation(hint)}."
        raise ConfigError(text) from error


@cache
def _parameter_hints(function: Any) -> dict[str, Any]:
    """Annotations by parameter, without those whose names only type checkers import."""
    function, hints = unwrap(function), {}
    for name, annotation in function.__annotations__.items():
        with suppress(NameError):
            holder = SimpleNamespace(__annotations__={name: annotation})
            hints |= get_type_hints(holder, globalns=function.__globals__)
    return hints


@cache
def _flag_names(function: Any) -> frozenset[str]:
    hints = {name: get_args(hint) or [hint] for name, hint in _parameter_hints(function).items()}
    return frozenset(n for n, parts in hints.items() if all(p in (bool, NoneType) for p in parts))


def fits_annotation(value: object, hint: Any) -> bool:
    """Whether a value fits an annotation, where a number of NumPy is as good as one of Python."""
    return is_bearable(value.item() if isinstance(value, np.generic) else value, hint, conf=_TOWER)
