"""Prompt pairs from files and tables as people have them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from math import nan
from pathlib import Path
from shlex import quote
from typing import Any

from tracekit._util.arguments import check_arguments
from tracekit._util.options import as_path, short_repr
from tracekit._util.warn import warn
from tracekit.data.chat import Chat
from tracekit.data.counterfactuals import GaussianNoise
from tracekit.data.formats import FORMATS, check_holds_pairs
from tracekit.data.pair import OWN_KEYS, SET_KEYS, TEXT_KEYS, id_keys
from tracekit.data.prompts import OnMismatch, PromptPairs
from tracekit.data.tokenization import require_tokenizer
from tracekit.errors import (
    ConfigError,
    DataFormatError,
    DataNotFoundError,
    DataWarning,
    UnknownNameError,
    near_miss,
)
from tracekit.models.hooked import HookedModel

Columns = Mapping[str, str | None] | str | None
"""Names of columns -> what they are here; None leaves one out. Or the same as text."""
SUFFIXES = (".csv", ".jsonl", ".json")
_WORDS = (
    "pandas reads the words NA, None, null and nan as empty cells: where one was meant, read the "
    "file with dtype=str, keep_default_na=False, or give tracekit its path."
)
_FIELDS = ("prompt", "counterfactual", "x", "y", "weight", "group")
_MEANINGS = {
    **{name: name for name in _FIELDS},
    **dict.fromkeys(("clean", "question", "text", "sentence"), "prompt"),
    **dict.fromkeys(("corrupted", "corrupt", "cf"), "counterfactual"),
    **dict.fromkeys(("answer", "target", "correct", "right", "label", "completion"), "x"),
    **dict.fromkeys(("wrong", "incorrect", "distractor", "foil"), "y"),
    # Of anthropics/evals and nrimsky/CAA.
    **{"answermatchingbehavior": "x", "answernotmatchingbehavior": "y"},
    **dict.fromkeys(("template", "templateid", "cluster"), "group"),
}
"""What columns mostly are here, by names in small letters without spaces and a final `prompt`."""
_INDEX_COLUMNS = ("", "Unnamed: 0", "index", "__index_level_0__")
"""What pandas and spreadsheets call the numbers of rows."""


@check_arguments
def load_pairs(
    data: Any,
    model: HookedModel | str | Path,
    *,
    columns: Columns = None,
    format: str | None = None,
    noise_std: float | None = None,
    seed: int = 0,
    prepend_bos: bool | None = None,
    chat: Chat = False,
    name: str | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Loads pairs from a file or a table.

    Args:
        data: A `.csv` file with a header, a `.jsonl` file with an object per line, or a `.json`
            file with a list of objects (or one list by a name); a table of pandas, polars or
            pyarrow, a `datasets.Dataset` in any format (a `ClassLabel` is read as the names of its
            labels), a list of rows, or a dict of columns. Empty cells count as missing. With a
            warning, row numbers are left out and columns of usual names (`answer`) are guessed.
        model: The model to be traced.
        columns: Names of columns -> what they are here, e.g. `{"clean": "prompt", "notes": None}`,
            where None leaves a column out. Or the same as text, `clean:prompt,notes:`.
        format: A published format, one of `tracekit.data.formats.FORMATS`, e.g. `auto-circuit`.
        noise_std: Standard deviation of noise that serves as the counterfactual, for text without
            a column `counterfactual`.
        seed: Seed of the noise.
        prepend_bos: As in `PromptPairs.from_text`; for text only.
        chat: As in `PromptPairs.from_text`; for text only.
        name: Name of the data set; by default that of the file.
        on_mismatch: As in `PromptPairs.from_text`.

    Raises:
        DataNotFoundError: There is no such file.
        DataFormatError: The suffix is another one, a line cannot be read, a column is unknown, or
            a record is none of the format.
        UnknownNameError: An unknown format.
        ConfigError: An option of text for ids, a seed without noise; both `columns` and `format`.
        PairsError: As in `PromptPairs.from_text` and `from_ids`.
    """
    source = _data_name(data)
    rows, has_ids = read_rows(data, columns=columns, format=format)
    skipped: list[str] = []
    if format is not None:
        rows, skipped = _convert_format(rows, format, source, model)
    options = {"prepend_bos": prepend_bos, "noise_std": noise_std, "seed": seed or None}
    options |= {"chat": None if chat is False else chat}
    unread, reason = list[str](), ""
    if has_ids:
        unread, reason = list(options), "holds token ids"
    elif noise_std is None:
        unread, reason = ["seed"], "is read without noise_std"
    for option in unread:
        if options[option] is not None:
            raise ConfigError(
                f"{option}={short_repr(options[option])} was given, and {source} {reason}, so "
                "nothing reads it. Leave it out."
            )
    name = name or (Path(data).stem if isinstance(data, (str, Path)) else "pairs")
    if has_ids:
        return PromptPairs.from_ids(rows, name=name, on_mismatch=on_mismatch)
    noise = None if noise_std is None else GaussianNoise(std=noise_std, seed=seed)
    pairs = PromptPairs.from_text(
        rows, model, noise=noise, on_mismatch=on_mismatch, prepend_bos=prepend_bos, chat=chat
    )
    return replace(pairs, name=name, skipped=(*skipped, *pairs.skipped))


def load_prompts(path: str | Path, model: HookedModel) -> PromptPairs:
    """Loads the prompts of a file of pairs, which may lack all else, or of the lines of a `.txt`.

    Each stands as a pair whose answer is the prompt itself, so these pairs are for means alone.
    """
    path, has_ids = as_path("The file", path), False
    if path.suffix == ".txt" and path.is_file():
        rows = [{"prompt": line} for line in _read_text(path).split("\n") if line.strip()]
    else:
        rows, has_ids = read_rows(path)
    key = "prompt_ids" if has_ids else "prompt"
    if any(key not in row for row in rows or [{}]):
        raise DataFormatError(f"A row of {path} has no {key}. Give each row a prompt.")
    if has_ids:
        return PromptPairs.from_ids([{key: row[key], "x_ids": row[key]} for row in rows])
    rows = [{key: row[key], "x": f" {row[key]}"} for row in rows]
    return PromptPairs.from_text(rows, model, warn=False)


def read_rows(
    data: Any, *, columns: Columns = None, format: str | None = None, typed: bool = False
) -> tuple[list[dict[str, Any]], bool]:
    """Rows of a file or table, or of its format, and whether they are of token ids.

    `typed` says that the options come from the command line, and errors name them so.
    """
    if format is not None and format not in FORMATS:
        raise UnknownNameError("format", format, FORMATS)
    if format is not None and columns is not None:
        raise ConfigError("columns and format were given. A format knows its columns: leave one.")
    path = _data_name(data)
    is_file = isinstance(data, (str, Path))
    check_holds_pairs(data, path)
    rows = _read_file(as_path("The file", data)) if is_file else table_rows(data)
    if isinstance(columns, str):
        parts = [part.partition(":") for part in columns.split(",")]
        columns = {name: to or None for name, _, to in parts}
    if format is None:
        rows = _rename_columns(rows, columns or {}, path)
        _check_lost_words(rows, path)
    rows = [{k: v for k, v in row.items() if not _is_missing(v)} for row in rows]
    if format is not None:
        return rows, False
    lacking = [number for number, row in enumerate(rows) if "weight" not in row]
    if 0 < len(lacking) < len(rows):
        text = f"{len(lacking)} of {len(rows)} rows of {path} have no weight (row {lacking[0]})"
        warn(f"{text}, and count as 1. Give each row a weight, or none.", DataWarning)
    has_ids = any("prompt_ids" in row for row in rows)
    allowed = TEXT_KEYS | OWN_KEYS | (id_keys() if has_ids else SET_KEYS)
    for number, row in enumerate(rows):
        unknown = sorted(map(str, set(row) - allowed))
        if unknown:
            check_holds_pairs(row, path)
            also = f" (also {', '.join(map(repr, unknown[1:]))})" if unknown[1:] else ""
            meant = f" {near_miss(unknown[0], allowed)}".rstrip()
            raise DataFormatError(
                f"Example {number} of {path} has an unknown column {unknown[0]!r}{also}.{meant} "
                f"Known: {', '.join(sorted(allowed))}. Map each other column to a field, or to "
                f"nothing: {_columns_option(unknown, columns or {}, row, typed)}"
            )
    return rows, has_ids


def _columns_option(
    unknown: Sequence[str], given: Mapping[str, str | None], row: Mapping[str, Any], typed: bool
) -> str:
    """The option that maps unknown columns to fields that the row lacks, or to none."""
    columns, left = dict(given), [field for field in _FIELDS if field not in row]
    in_file = {field: name for name, field in given.items()}
    for name in unknown:
        close = get_close_matches(_guess_field(name) or name, left, 1)
        columns[in_file.get(name, name)] = close[0] if close else None
        left = [field for field in left if field not in close]
    needed = [field for field in ("prompt", "x") if field in left]
    texts = [name for name in row if name in unknown and isinstance(row[name], str)]
    free = [in_file.get(name, name) for name in texts]
    free = [name for name in free if columns[name] is None]
    columns |= dict(zip(free, needed, strict=False))
    if not typed:
        return f"columns={columns}"
    listed = ",".join(f"{name}:{field or ''}" for name, field in columns.items())
    return f"--data-option {quote(f'columns={listed}')}"


def _guess_field(column: object) -> str | None:
    name = re.sub(r"[\W_]+", "", str(column)).lower()
    return _MEANINGS.get(re.sub(r"(?<=.)(answer|prompt)$", "", name))


def _data_name(data: Any) -> str:
    return str(data) if isinstance(data, (str, Path)) else f"the {type(data).__name__}"


def _read_file(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataNotFoundError(f"There is no file {path}. Give a {' or '.join(SUFFIXES)} file.")
    if path.suffix not in SUFFIXES:
        raise DataFormatError(
            f"The file {path} ends in {path.suffix!r}. Pairs are read from "
            f"{' and '.join(SUFFIXES)} files."
        )
    if path.suffix == ".csv":
        return _read_csv(path)
    # Some publish JSON Lines under the name of JSON.
    return _read_json_lines(path) if path.suffix == ".jsonl" else _read_json(path)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value) or _is_nan(value)


def _is_nan(value: Any) -> bool:
    is_nan = isinstance(value, float) and value != value
    return is_nan or type(value).__name__ in ("NAType", "NaTType")


def _check_lost_words(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """Refuses or warns of cells that pandas read as missing, which may have been words as `NA`."""
    for key in ("prompt", "x", "counterfactual", "y", "group"):
        lost = [number for number, row in enumerate(rows) if _is_nan(row.get(key))]
        if lost:
            values = (
                f"The {key} of {len(lost)} of {len(rows)} rows of {path} is empty (row {lost[0]})"
            )
            if key in ("prompt", "x"):
                raise DataFormatError(f"{values}. {_WORDS}")
            warn(f"{values} and left out. {_WORDS}", DataWarning)


def _rename_columns(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str | None], path: str
) -> list[dict[str, Any]]:
    given = {key: None for row in rows for key in row}
    for name, field in columns.items():
        if name not in given:
            raise DataFormatError(
                f"columns maps {name!r}, which {path} does not have, to {field!r}. Map one of its "
                f"columns ({', '.join(sorted(map(str, given)))}) to a field."
            )
    names: dict[str, str | None] = {**dict.fromkeys(_INDEX_COLUMNS), **columns}
    index = sorted(given.keys() & set(_INDEX_COLUMNS) - set(columns))
    if index:
        warn(f"The column {index[0]!r} of {path} numbers its rows, and is left out.", DataWarning)
    usual = {} if "prompt_ids" in given else {key: _guess_field(key) for key in given}
    taken = Counter([names.get(key, usual.get(key)) for key in given])
    guessed = {k: to for k, to in usual.items() if to and k not in {*names, to} and taken[to] == 1}
    if guessed:
        shown = ", ".join(f"{key!r} as {to}" for key, to in guessed.items())
        warn(
            f"{path} is read with {shown} (a guess). To change this, pass columns (on "
            "the command line --data-option columns=...).",
            DataWarning,
        )
    names |= guessed
    renamed = [{names.get(key, key): value for key, value in row.items()} for row in rows]
    return [{key: v for key, v in row.items() if key is not None} for row in renamed]


def _convert_format(
    records: Sequence[Mapping[str, Any]], format: str, source: str, model: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    decode = getattr(require_tokenizer(model), "decode", str)
    rows, skipped = [], []
    for number, record in enumerate(records):
        try:
            row = FORMATS[format](record, lambda token: decode([token]))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, DataFormatError):
                raise
            problem = "lacks" if isinstance(error, KeyError) else "is of another form:"
            raise DataFormatError(
                f"Record {number} of {source} does not have the format {format!r}: it {problem} "
                f"{error}. Leave format out, or map columns."
            ) from error
        if row is None:
            skipped.append(f"example {number}: its two sentences share no beginning or ending")
        else:
            rows.append(row)
    return rows, skipped


def _read_text(path: Path) -> str:
    # Spreadsheets write a byte-order mark, which is no part of the first column's name.
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataFormatError(
            f"{path} is not encoded in UTF-8 (byte {error.start}). Save it as UTF-8; spreadsheets "
            "call it 'CSV UTF-8'."
        ) from error


def _refuse_twice(columns: list[Any], holder: str) -> None:
    twice = [name for number, name in enumerate(columns) if name in columns[:number]]
    if twice:
        raise DataFormatError(f"{holder} has the column {twice[0]!r} twice. Keep one of them.")


def _read_csv(path: Path) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(_read_text(path), newline=""))
    try:
        rows = list(reader)
        columns = reader.fieldnames or ()
    except csv.Error as error:
        raise DataFormatError(
            f"{path} cannot be read as CSV: {error}. Write a comma-separated file with a header; "
            "long texts fit in a .jsonl file."
        ) from error
    _refuse_twice(list(columns), str(path))
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            raise DataFormatError(
                f"Example {number} of {path} does not have as many cells as the header. "
                "Quote cells that hold commas."
            )
    return rows


def _read_json(path: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(_read_text(path))
    except (ValueError, RecursionError):
        return _read_json_lines(path)
    check_holds_pairs(document, str(path))
    if isinstance(document, Mapping):
        lists = [value for value in document.values() if isinstance(value, list)]
        records = [each for each in lists if each and isinstance(each[0], Mapping)]
        document = records[0] if len(records) == 1 else None
    if not isinstance(document, list):
        raise DataFormatError(f"{path} holds no list of objects. Write a JSON list, one per pair.")
    return table_rows(document)


def _read_json_lines(path: Path) -> list[dict[str, Any]]:
    rows = []
    # Not splitlines(): a text may hold other line separators than the file's.
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise DataFormatError(
                f"Line {number} of {path} is not a JSON object. Write one object per line."
            )
        rows.append(row)
    return rows


def table_rows(data: Any) -> list[dict[str, Any]]:
    """The rows of a table, as `load_pairs` takes them; labels of a `ClassLabel` become names."""
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
        _refuse_twice(list(data.columns), f"The {kind}")
        # For some columns, pandas gives None for a missing value.
        records = data.to_dict("records")
        data = [{k: nan if v is None else v for k, v in row.items()} for row in records]
    elif hasattr(data, "to_list"):
        data = data.to_list()
    elif isinstance(data, Mapping):
        data = _rows_from_columns(data, kind)
    try:
        return [{k: _name_label(v, labels.get(k)) for k, v in each.items()} for each in data]
    except (TypeError, AttributeError) as error:
        raise DataFormatError(
            f"Pairs cannot be read from a {kind}. Give a file, a DataFrame, a datasets.Dataset, a "
            "list of rows, each of which is a dict, or a dict of columns, each of which is a list."
        ) from error


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
