"""Searches: which small set of components moves the metric most?

One search a file, each an immutable value with its options as fields and one method,
`search(engine, goal, seed)`. `make` builds one from a name and options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from tracekit.errors import ConfigError, UnknownMethodError, UnknownOptionError
from tracekit.search.base import Found, Goal, Search
from tracekit.search.exhaustive import Exhaustive
from tracekit.search.greedy import Greedy
from tracekit.search.pgbct import PGBCT
from tracekit.search.random import Random
from tracekit.search.topk import TopK

METHODS: Mapping[str, type[Search]] = {
    method.name: method for method in (PGBCT, TopK, Greedy, Random, Exhaustive)
}

__all__ = [
    "METHODS",
    "PGBCT",
    "Exhaustive",
    "Found",
    "Goal",
    "Greedy",
    "Random",
    "Search",
    "TopK",
    "make",
]


def make(method: str | Search, options: Mapping[str, Any]) -> Search:
    """A search by name with options, or as given.

    Values are converted to the types of the options where nothing is lost, so that what was typed
    on a command line can be passed on: `"0.001"`, `"12"`, `"false"`.

    Raises:
        UnknownMethodError: No search of that name.
        UnknownOptionError: It has no such option.
        ConfigError: A value of another type, or out of range.
    """
    if isinstance(method, str):
        if method not in METHODS:
            raise UnknownMethodError(method, METHODS)
        kind = METHODS[method]
    else:
        kind = type(method)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise UnknownOptionError(option, known or {"none"})
    if isinstance(method, str):
        hints = get_type_hints(kind)
        return kind(**{name: _convert(name, value, hints[name]) for name, value in options.items()})
    if options:
        raise UnknownOptionError(next(iter(options)), {"none, as the search was given ready-made"})
    return method


def _convert(name: str, value: Any, hint: Any) -> Any:
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        what = error.errors()[0]["msg"]
        raise ConfigError(f"The option {name} is {value!r}. {what}.") from None
