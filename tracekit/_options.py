"""Options by name, from Python or typed on a command line."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from tracekit.errors import ConfigError


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
        what = error.errors()[0]["msg"]
        raise ConfigError(f"The option {name} is {value!r}. {what}.") from None
