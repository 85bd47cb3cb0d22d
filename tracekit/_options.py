"""Options by name, from Python or typed on a command line."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from tracekit.errors import ConfigError, RenamedArgumentError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def renamed_arguments(**new_names: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Makes a function refuse earlier names of its arguments, with the new one.

    Args:
        **new_names: Earlier name -> name.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name in kwargs:
                if name in new_names:
                    raise RenamedArgumentError(
                        f"The argument {name!r} is now called {new_names[name]!r}. "
                        f"Write {new_names[name]}=..."
                    )
            return function(*args, **kwargs)

        return checked

    return decorate


def convert(name: str, value: Any, hint: Any) -> Any:
    """A value as the type of its option, where nothing is lost.

    Args:
        name: Of the option, for the message.
        value: As given; from a command line a text such as `"0.001"`, `"12"`, `"false"`,
            `"none"` where None is allowed, or `"5,1"` for a tuple.
        hint: Its type.

    Raises:
        ConfigError: It is of another type.
    """
    if isinstance(value, str):
        if value.lower() == "none" and type(None) in get_args(hint):
            return None
        if get_origin(hint) is tuple:
            value = value.split(",")
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise ConfigError(f"The option {name} is {value!r}. {problem}.") from None
