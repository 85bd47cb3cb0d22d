"""First names for data sets that are generated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tracekit.errors import ConfigError

FEMALE = (
    *("Mary", "Anna", "Sarah", "Emma", "Laura", "Julia", "Alice", "Lisa", "Helen", "Susan"),
    *("Emily", "Karen", "Rachel", "Diana", "Maria", "Claire", "Jessica", "Amanda", "Kate", "Rose"),
)
MALE = (
    *("John", "David", "James", "Peter", "Paul", "Mark", "Thomas", "Robert", "Daniel", "Simon"),
    *("Michael", "George", "Henry", "Jack", "Kevin", "Brian", "Adam", "Martin", "Steven", "Frank"),
)


def one_token(
    encode: Callable[[str, str], list[int]], names: Sequence[str], at_least: int, dataset: str
) -> list[str]:
    """The names that are one token after a space."""
    ids = {name: tuple(encode("and", f" {name}")) for name in names}
    counts = Counter(ids.values())
    # Names that a vocabulary lacks may all be one and the same unknown token.
    short = [name for name in names if len(ids[name]) == 1 and counts[ids[name]] == 1]
    if len(short) < at_least:
        raise ConfigError(
            f"The data set {dataset} needs {at_least} names that are one token each, and this "
            f"tokenizer has {len(short)} of {len(names)}. Use a model whose vocabulary holds "
            "common first names."
        )
    return short
