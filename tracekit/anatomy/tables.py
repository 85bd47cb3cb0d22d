"""Tables of the anatomy of a set as text, each number with its interval, for pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit._util.markup import interval_text
from tracekit.anatomy.explanation import Explanation
from tracekit.anatomy.paths import Paths
from tracekit.anatomy.side_effects import SideEffects

if TYPE_CHECKING:
    import pandas as pd

_DASH = "\u2013"


def member_table(why: Explanation) -> pd.DataFrame:
    """A row per member: its contribution alone, last and on average, and its verdict."""
    import pandas as pd

    columns = {"component": why.table["component"]}
    for name in ("alone", "last", "value"):
        columns[name] = _with_intervals(why.table, name)
    return pd.DataFrame(columns | {"verdict": why.table["verdict"]})


def path_table(paths: Paths, most: int = 20) -> pd.DataFrame:
    """A row for each of the strongest paths: its effect, and that of each single input."""
    import pandas as pd

    table = paths.table.head(most)
    columns = {name: table[name] for name in ("sender", "receiver")}
    columns["effect"] = _with_intervals(table, "effect")
    for name in ("query", "key", "value"):
        if name in table:
            columns[f"by {name}"] = _with_intervals(table, name)
    return pd.DataFrame(columns | {"p": [_or_dash(value, ".2g") for value in table["p"]]})


def side_effects_table(side: SideEffects) -> pd.DataFrame:
    """A row per data set: effect, strength, that of random sets, selectivity."""
    import pandas as pd

    table = side.table
    columns = {name: table[name] for name in ("name", "dataset", "metric", "examples")}
    columns["effect"] = _with_intervals(table, "effect")
    columns["strength"] = _with_intervals(table, "strength")
    columns["random sets"] = _with_intervals(table, "control")
    columns["p"] = [_or_dash(value, ".2g") for value in table["p"]]
    columns["selectivity"] = _with_intervals(table, "selectivity")
    columns["of random sets"] = [_or_dash(value, ".3g") for value in table["control_selectivity"]]
    return pd.DataFrame(columns)


def _with_intervals(table: pd.DataFrame, name: str) -> pd.Series:
    import pandas as pd

    rows = zip(*(table[f"{name}{end}"] for end in ("", "_low", "_high")), strict=True)
    texts = [
        f"{value:.4g} ({interval_text(low, high)})" if value == value else _DASH
        for value, low, high in rows
    ]
    return pd.Series(texts)


def _or_dash(value: float, form: str) -> str:
    return f"{value:{form}}" if value == value else _DASH
