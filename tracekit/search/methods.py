"""Search methods by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, cast

from tracekit._util.names import MethodName
from tracekit._util.options import check_keywords, check_names, check_numbers, convert, field_hints
from tracekit.components.edges import EDGE_KINDS
from tracekit.errors import UnknownNameError, UnknownOptionError
from tracekit.search.base import Search
from tracekit.search.baselines.attribution import EAPIG, Attribution, MaskIG
from tracekit.search.baselines.empirical_bayes_topk import EmpiricalBayesTopK
from tracekit.search.baselines.measured_effects import Exhaustive, Greedy, Random, TopK
from tracekit.search.learned.learned_ranking import LearnedRanking
from tracekit.search.learned.mask_training import DCM
from tracekit.search.learned.pgbct import PGBCT, PGBCTLocal
from tracekit.search.local_search import LocalSearch

METHODS: Mapping[str, type[Search]] = {
    method.name: method
    for method in (
        PGBCTLocal,
        PGBCT,
        LocalSearch,
        DCM,
        LearnedRanking,
        TopK,
        EmpiricalBayesTopK,
        Greedy,
        Random,
        Exhaustive,
        MaskIG,
        EAPIG,
        Attribution,
    )
}

for _kind in METHODS.values():
    check_keywords(_kind)


def default_method(kinds: str | Iterable[str]) -> MethodName:
    """The search method where none is named: edges are too many to measure one at a time."""
    names = kinds.split("+") if isinstance(kinds, str) else kinds
    return "pgb-ct+local" if EDGE_KINDS.keys().isdisjoint(names) else "learned-ranking"


def title_of(method: str) -> str:
    """Title of a method in figures and tables; its name if it is not one of `METHODS`."""
    return getattr(METHODS.get(method), "title", method)


def make(
    method: str | type | Search | None,
    options: Mapping[str, Any],
    also: Iterable[str] = (),
    kinds: Iterable[str] = (),
) -> Search:
    """A search by name or class with options; None: the default for components of `kinds`.

    A ready-made search stays as it is. Values such as `"0.001"` are converted to the types of the
    options where nothing is lost. An error also names `also`, further options of the caller.

    Raises:
        UnknownNameError: No search of that name, or it has no such option.
        ConfigError: A value of another type, or out of range.
    """
    method = default_method(kinds) if method is None else method
    if not isinstance(method, (str, type)):
        if options:
            none = {"none, as the search was given ready-made"}
            raise UnknownOptionError(next(iter(options)), none)
        check_numbers(method)
        return method
    if isinstance(method, str) and method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    kind = METHODS[method] if isinstance(method, str) else method
    allowed = {field.name for field in fields(cast(Any, kind))}
    check_names(options, allowed, {*also} - {"self", "question", "method", "options"})
    hints = field_hints(kind)
    search = kind(**{name: convert(name, value, hints[name]) for name, value in options.items()})
    check_numbers(search)
    return search
