"""Rows of tables in memory, from any common library and in any form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from tracekit.errors import DataFormatError

_TABLE_FORMS = (
    "Give a file, a DataFrame, a datasets.Dataset, a list of rows, each of which is a dict, or a "
    "dict of columns, each of which is a list."
)


def table_rows(data: Any) -> list[dict[str, Any]]:
    """The rows of a table, as `load_pairs` takes them; labels of a `ClassLabel` become names.

    Raises:
        DataFormatError: The data are not a table, or have several parts.
    """
    kind = type(data).__name__
    labels: Mapping[str, Any] = {}
    if hasattr(data, "with_format") and hasattr(data, "features"):
        # In another format rows are tensors, or a slice of a DataFrame.
        data, labels = data.with_format(None), data.features or {}
    elif hasattr(data, "to_dicts"):
        data = data.to_dicts()
    elif hasattr(data, "to_pylist"):
        data = data.to_pylist()
    elif hasattr(data, "columns") and hasattr(data, "to_dict"):
        data = _frame_rows(data)
    elif hasattr(data, "to_list"):
        data = data.to_list()
    elif isinstance(data, Mapping):
        data = _rows_from_columns(data, kind)
    try:
        return [{k: _name_label(v, labels.get(k)) for k, v in each.items()} for each in data]
    except (TypeError, AttributeError) as error:
        raise DataFormatError(f"Pairs cannot be read from a {kind}. {_TABLE_FORMS}") from error


def _frame_rows(frame: Any) -> list[dict[str, Any]]:
    columns = list(frame.columns)
    twice = [name for number, name in enumerate(columns) if name in columns[:number]]
    if twice:
        raise DataFormatError(
            f"The {type(frame).__name__} has the column {twice[0]!r} twice. Keep one of them."
        )
    # For some columns, pandas gives None for a missing value.
    records = frame.to_dict("records")
    return [{k: nan if v is None else v for k, v in row.items()} for row in records]


def _rows_from_columns(table: Mapping[Any, Any], kind: str) -> list[dict[str, Any]]:
    columns = {name: _as_list(column) for name, column in table.items()}
    lists = {name: column for name, column in columns.items() if isinstance(column, list)}
    are_rows = all(column and isinstance(column[0], Mapping) for column in lists.values())
    if len(lists) < len(columns) or are_rows:
        named = ", ".join(map(repr, columns))
        if all(isinstance(value, str) for value in table.values()):
            raise DataFormatError(
                f"The {kind} with the keys {named} is a single row. Give a list of rows: [row]."
            )
        raise DataFormatError(
            f"Pairs cannot be read from a {kind} with the parts {named}. If each part is a table, "
            "give one of them. If each part is a column, give every one as a list."
        )
    lengths = {name: len(column) for name, column in lists.items()}
    if len({*lengths.values()}) > 1:
        raise DataFormatError(
            f"The columns of the {kind} differ in length: {lengths}. Give each the same number of "
            "entries, one for each pair."
        )
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _as_list(column: Any) -> Any:
    # A tensor on a graph has no list.
    column = column.detach() if hasattr(column, "detach") else column
    is_column = not hasattr(column, "columns") and not hasattr(column, "column_names")
    if is_column and hasattr(column, "tolist"):
        column = column.tolist()
    is_text = isinstance(column, (str, bytes))
    return list(column) if isinstance(column, Sequence) and not is_text else column


def _name_label(value: Any, feature: Any) -> Any:
    """Replaces the number of a label of a `datasets.Dataset` by the label's name."""
    if feature is None or value is None:
        return value
    if isinstance(value, list):
        within = getattr(feature, "feature", feature)
        within = within[0] if isinstance(within, list) else within
        return [_name_label(each, within) for each in value]
    names = getattr(feature, "names", None)
    if names is None:
        return value
    # A label of -1 is a missing one.
    return names[value] if value >= 0 else None
