"""Searches: which small set of components moves the metric most?

One search a file, each an immutable value with its options as fields and one method,
`search(engine, goal, seed)`. `make` builds one from a name and options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tracekit.errors import UnknownMethodError, UnknownOptionError
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

    Raises:
        UnknownMethodError: No search of that name.
        UnknownOptionError: It has no such option.
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
        return kind(**options)
    if options:
        raise UnknownOptionError(next(iter(options)), {"none, as the search was given ready-made"})
    return method
