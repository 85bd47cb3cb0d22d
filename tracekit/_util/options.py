"""Checks options from Python or the command line; a `ConfigError` names the wrong one."""

from __future__ import annotations

import ast
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from inspect import get_annotations, getsource, signature
from itertools import pairwise
from numbers import Integral, Number
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, TypeGuard, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from tracekit.errors import ConfigError, TracekitError, UnknownOptionError

_C = TypeVar("_C", bound=Callable[..., Any])
Share = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed that every random generator takes, without rounding it."""
_LONGEST_NAME = 255
"""Bytes of one part of a path that common file systems take."""
_LARGEST = 1e12
"""Far beyond any useful option; its square is still a number of float32."""


def short_repr(value: object) -> str:
    """The repr of a value, shortened for messages."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python does not write out whole numbers of thousands of digits.
        return f"{type(value).__name__} with thousands of digits"


def join_first(cases: Sequence[str], most: int = 3) -> str:
    """Joins the first cases for a message, and says how many more there are."""
    more = f"; and {len(cases) - most} more" if len(cases) > most else ""
    return "; ".join(cases[:most]) + more


def is_int(value: object) -> TypeGuard[int]:
    """Whether a value is an int of Python or NumPy, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def as_ints(values: object) -> tuple[int, ...] | None:
    """Converts a list, range, array or tensor of whole numbers to a tuple; else returns None."""
    as_list = getattr(values, "tolist", None)
    if as_list is not None:
        values = as_list()
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, bytearray)):
        return None
    return tuple(map(int, values)) if all(map(is_int, values)) else None


def check_names(given: Iterable[str], allowed: Iterable[str], also: Iterable[str] = ()) -> None:
    """Refuses names that are not `allowed`; suggests a similar one of `allowed` or `also`."""
    for name in given:
        if name not in allowed:
            raise UnknownOptionError(name, {*allowed, *also} or {"none"})


def check_keywords(function: _C) -> _C:
    """Wraps a function or class to refuse unknown keywords with a list of the known ones."""
    if isinstance(function, type):
        function.__init__ = check_keywords(function.__init__)
        return function  # type: ignore[return-value]
    parameters = signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return function
    taken = [each.name for each in parameters if each.name not in ("self", "question")]

    @wraps(function)
    def call_checked(*args: Any, **keywords: Any) -> Any:
        check_names(keywords, taken)
        return function(*args, **keywords)

    return call_checked  # type: ignore[return-value]


def check_seed(seed: object) -> None:
    """Refuses a seed that random generators would not take, or would round."""
    if not is_int(seed) or not 0 <= seed < 2**63:
        shown = short_repr(seed)
        raise ConfigError(f"The seed is {shown}. Give a whole number from 0 to 2^63 - 1.")


def check_int(name: str, value: object, least: int = 1) -> None:
    """Refuses anything but a whole number of at least `least`."""
    if not is_int(value) or value < least:
        raise ConfigError(f"{name} is {short_repr(value)}. Give a whole number, at least {least}.")


def check_choice(
    name: str, value: object, choices: Iterable[object], error: type[TracekitError] = ConfigError
) -> None:
    """Refuses anything but one of a few names."""
    if value not in (allowed := tuple(choices)):
        raise error(f"{name} is {short_repr(value)}. Use one of {', '.join(map(str, allowed))}.")


def check_max_loss(name: str, value: object) -> None:
    """Refuses anything but a share from 0 to below 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ConfigError(f"{name} is {short_repr(value)}. Give a share from 0 to below 1.")


def check_numbers(options: object) -> None:
    """Refuses fields of a dataclass instance that are NaN, infinite or beyond 1e12."""
    if not is_dataclass(options) or isinstance(options, type):
        return
    for field in fields(options):
        value = getattr(options, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            # Comparisons with NaN are False.
            if isinstance(number, (int, float)) and not abs(number) <= _LARGEST:
                raise ConfigError(
                    f"The option {field.name} is {short_repr(value)}. Give finite numbers, of at "
                    f"most {_LARGEST:.0e} in size."
                )


def as_path(name: str, value: Any) -> Path:
    """Converts a str or a path-like value to a `Path`; `name` is the name of the argument."""
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigError(f"{name} is {value!r}, which is not a path. Give a str or a Path.")
    path = Path(value)
    longest = max(map(len, map(os.fsencode, path.parts)), default=0)
    if longest > _LONGEST_NAME or "\0" in str(path):
        raise ConfigError(
            f"{name} is {short_repr(str(value))}, which no file system takes. Give names of at "
            f"most {_LONGEST_NAME} bytes, without the character 0."
        )
    return path


class ValidatedFields:
    """Base of dataclasses whose values are held to the annotations of their fields.

    Bounds stand in the annotations, e.g. `steps: PositiveInt`. Texts are not converted to numbers.
    """

    def __post_init__(self) -> None:
        check_fields(self, *(field.name for field in fields(self)))  # type: ignore[arg-type]


def check_fields(options: Any, *names: str) -> None:
    """Refuses values of fields of a dataclass instance that their annotations do not allow."""
    for name in names:
        value = getattr(options, name)
        converted = convert(name, value, field_hints(type(options))[name])
        if isinstance(value, str) and not isinstance(converted, (str, Path)):
            raise ConfigError(
                f"The option {name} is {value!r}. Give a number, True or False, not a text."
            )


@cache
def field_hints(kind: type) -> dict[str, Any]:
    """Annotations of a class by name, without those whose names only type checkers import."""
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        for name, annotation in get_annotations(base).items():
            holder = type("Holder", (), {"__annotations__": {name: annotation}})
            with suppress(NameError):
                namespace = vars(sys.modules[base.__module__])
                hints |= get_type_hints(holder, globalns=namespace, include_extras=True)
    return hints


def field_help(kind: type) -> dict[str, str]:
    """First paragraph of the docstring of each field of a class, in one line, by field."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not is_dataclass(base):
            continue
        (definition,) = ast.parse(dedent(getsource(base))).body
        for field, below in pairwise(cast(ast.ClassDef, definition).body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                paragraph = ast.literal_eval(below.value).strip().partition("\n\n")[0]
                texts[ast.unparse(field.target)] = " ".join(paragraph.split())
    return {field.name: texts[field.name] for field in fields(kind) if field.name in texts}  # type: ignore[arg-type]


_adapter = cache(TypeAdapter)


def convert(name: str, value: Any, hint: Any) -> Any:
    """Converts a value to the type of its option, if nothing is lost.

    On a command line it is a text such as `"0.001"`, `"12"`, `"false"`, `"none"` where None is
    allowed, or `"5,1"` for a tuple.
    """
    if isinstance(value, Number):
        value = getattr(value, "item", lambda: value)()  # Numbers of NumPy have it.
    if isinstance(value, str):
        if value.lower() == "none" and type(None) in get_args(hint):
            return None
        if get_origin(hint) is tuple:
            value = value.split(",")
    try:
        converted = _adapter(hint).validate_python(value)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise ConfigError(f"The option {name} is {short_repr(value)}. {problem}.") from None
    if isinstance(value, bool) and not isinstance(converted, bool):
        raise ConfigError(f"The option {name} is {value}. Give a number.")
    return converted
