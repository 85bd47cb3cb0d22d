"""Prompt pairs from a CSV or JSON Lines file of the user's.

The columns are those of `PromptPairs.from_text`: `prompt`, `counterfactual`, the target
continuation `x`, the foil `y`, and `weight`. JSON Lines may hold the lists `x_set` and `y_set` and
the mappings `spans` besides, or token ids instead, as for `PromptPairs.from_ids`.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from tracekit._util.options import shortened
from tracekit.data.counterfactuals import GaussianNoise
from tracekit.data.pair import OWN_KEYS, SET_KEYS, TEXT_KEYS, id_keys
from tracekit.data.prompts import OnMismatch, PromptPairs
from tracekit.errors import ConfigError, DataFormatError, DataNotFoundError, near_miss

SUFFIXES = (".csv", ".jsonl")


def load_pairs(
    path: str | Path,
    model: Any,
    *,
    noise_std: float | None = None,
    seed: int = 0,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Loads pairs from a file.

    Args:
        path: A `.csv` file with a header, or a `.jsonl` file with an object per line. Empty cells
            count as missing.
        model: The model to be traced.
        noise_std: Standard deviation of noise that serves as the counterfactual, for text without
            a column `counterfactual`.
        seed: Seed of the noise.
        prepend_bos: As in `PromptPairs.from_text`; for text only.
        on_mismatch: As in `PromptPairs.from_text`.

    Raises:
        DataNotFoundError: There is no such file.
        DataFormatError: The suffix is another one, a line cannot be read, or a column is unknown.
        ConfigError: An option of text for a file of ids, or a seed without noise.
        PairsError: As in `PromptPairs.from_text` and `from_ids`.
    """
    path = Path(path)
    rows, has_ids = read_rows(path)
    options = {"prepend_bos": prepend_bos, "noise_std": noise_std, "seed": seed or None}
    # A seed draws noise; nothing else.
    unread = {"seed"} if noise_std is None else set()
    unread |= set(options) if has_ids else set()
    for option, value in options.items():
        if option in unread and value is not None:
            of = "holds token ids" if has_ids else "is read without noise_std"
            raise ConfigError(
                f"{option}={shortened(value)} was given, and {path} {of}, so nothing reads it. "
                "Leave it out."
            )
    if has_ids:
        return PromptPairs.from_ids(rows, name=path.stem, on_mismatch=on_mismatch)
    noise = None if noise_std is None else GaussianNoise(std=noise_std, seed=seed)
    return PromptPairs.from_text(
        rows,
        model,
        noise=noise,
        name=path.stem,
        on_mismatch=on_mismatch,
        prepend_bos=prepend_bos,
    )


def read_rows(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Rows of a file, and whether they are of token ids; needs no model."""
    if not path.is_file():
        raise DataNotFoundError(f"There is no file {path}. Give a {' or '.join(SUFFIXES)} file.")
    if path.suffix not in SUFFIXES:
        raise DataFormatError(
            f"The file {path} ends in {path.suffix!r}. Pairs are read from "
            f"{' and '.join(SUFFIXES)} files."
        )
    rows = _from_csv(path) if path.suffix == ".csv" else _from_json_lines(path)
    has_ids = any("prompt_ids" in row for row in rows)
    allowed = TEXT_KEYS | OWN_KEYS | (id_keys() if has_ids else SET_KEYS)
    for number, row in enumerate(rows):
        unknown = set(row) - allowed
        if unknown:
            raise DataFormatError(
                f"Example {number} of {path} has an unknown column {sorted(unknown)[0]!r}. "
                + f"{near_miss(sorted(unknown)[0], allowed)} ".lstrip()
                + f"Known: {', '.join(sorted(allowed))}."
            )
    return rows, has_ids


def _read_text(path: Path, encoding: str) -> str:
    try:
        return path.read_text(encoding=encoding)
    except UnicodeDecodeError as error:
        raise DataFormatError(
            f"{path} is not encoded in UTF-8 (byte {error.start}). Save it as UTF-8; spreadsheets "
            "call it 'CSV UTF-8'."
        ) from error


def _from_csv(path: Path) -> list[dict[str, Any]]:
    # Spreadsheets write a byte-order mark, which is no part of the first column's name.
    text = _read_text(path, "utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = list(reader)
        columns = reader.fieldnames or ()
    except csv.Error as error:
        raise DataFormatError(
            f"{path} cannot be read as CSV: {error}. Write a comma-separated file with a header; "
            "long texts fit in a .jsonl file."
        ) from error
    twice = [name for number, name in enumerate(columns) if name in columns[:number]]
    if twice:
        raise DataFormatError(f"{path} has the column {twice[0]!r} twice. Keep one of them.")
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            raise DataFormatError(
                f"Example {number} of {path} does not have as many cells as the header. "
                "Quote cells that hold commas."
            )
    return [{key: value for key, value in row.items() if value != ""} for row in rows]


def _from_json_lines(path: Path) -> list[dict[str, Any]]:
    rows = []
    # Not splitlines(): a text may hold other line separators than the file's.
    for number, line in enumerate(_read_text(path, "utf-8-sig").split("\n"), start=1):
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
        rows.append({key: value for key, value in row.items() if value not in (None, "")})
    return rows
