"""Reads the values of options from text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tracekit as tk
from tracekit.errors import ConfigError, DataFormatError, DataNotFoundError

_MOST_LAYERS = 10_000


def goal_arguments(values: Mapping[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The goal of a run, as keyword arguments of `Tracer.run`; a fixed lambda1 needs no budget."""
    goals: dict[str, Any] = {"budgets": [parse_budget(text) for text in values["budget"] or []]}
    goals |= {name: values[name] for name in ("target_effect", "faithfulness")}
    goals = {name: value for name, value in goals.items() if value not in (None, [])}
    if len(goals) > 1:
        raise ConfigError(
            "More than one goal was given. Give one of --budget, --target-effect and "
            "--faithfulness."
        )
    return goals or ({} if "lambda1" in options else {"budgets": [0.1]})


def parse_budget(text: str) -> int | float:
    """A count (int) or a share (float)."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    raise ConfigError(
        f"The budget {text!r} is not a number. Give a count such as 6 or a share such as 0.2."
    )


def parse_layers(text: str | None) -> list[int] | None:
    """Layers from text such as `0-5,8`; None stays None."""
    if text is None:
        return None
    ranges = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            ranges.append(range(int(first), int(last if dash else first) + 1))
        n_layers = sum(len(layers) for layers in ranges)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"The layers {text!r} are not of the form 0-5,8. Write them so."
        ) from None
    if n_layers > _MOST_LAYERS:
        raise ConfigError(f"The layers {text!r} are more than any model has. Name fewer.")
    return [layer for layers in ranges for layer in layers]


def parse_options(texts: list[str], methods: list[str]) -> dict[str, dict[str, Any]]:
    """Options by method: `name=value` for all methods, `method:name=value` for one."""
    by_method: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"The option {text!r} is not of the form name=value. Write it so.")
        method, colon, option = name.rpartition(":")
        if colon and method not in by_method:
            raise ConfigError(f"The option {text!r} is for {method}, which is not run.")
        targets = [method] if colon else methods
        for target in targets:
            by_method[target][option] = value
    return by_method


def parse_named_values(texts: list[str] | None, *kinds: type) -> dict[str, Any]:
    """Values by their names, from `name=value`: texts, or where JSON has it one of the `kinds`."""
    values = parse_options(texts or [], [""])[""]
    for name, text in values.items() if kinds else ():
        with suppress(ValueError):
            value = json.loads(text)
            values[name] = value if type(value) in kinds else text
    return values


def parse_loading_options(texts: list[str] | None) -> dict[str, Any]:
    """Options of `load_model`; whole numbers become int."""
    return parse_named_values(texts, int)


def cli_values(value: Any, *, is_list: bool) -> Any:
    """Converts a value of a TOML file to the texts that a command line would have.

    A table stands for `name=value`, a table in it for options of one method.
    """
    if isinstance(value, dict):
        value = [text for name, entry in value.items() for text in _setting_texts(name, entry)]
    if not is_list:
        return _argument_text(value)
    entries = value if isinstance(value, list) else [value]
    return [_argument_text(entry) for entry in entries]


def _setting_texts(name: str, entry: Any) -> list[str]:
    if isinstance(entry, dict):
        return [f"{name}:{option}={_argument_text(value)}" for option, value in entry.items()]
    return [f"{name}={_argument_text(entry)}"]


def _argument_text(value: Any) -> Any:
    if isinstance(value, list):
        return ",".join(map(str, value))
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else value


def parse_chat(texts: list[str] | None) -> dict[str, Any]:
    """Arguments of a chat template: JSON or, as in Python, True, False and None; else texts."""
    words = {"true": True, "false": False, "none": None, "null": None}
    options = parse_named_values(texts)
    for name, text in options.items():
        with suppress(ValueError):
            # NaN stays a text.
            options[name] = json.loads(text, parse_constant=str)
        options[name] = words.get(text.lower(), options[name])
    return options


def read_masks(path: Path) -> list[tuple[str, list[float] | tk.TraceResult | str]]:
    """Masks from a JSON file, the result in a run folder, or labels, each with a name."""
    if path.is_dir():
        return [(path.name, tk.TraceResult.load(path))]
    if not path.is_file():
        if not path.suffix and len(path.parts) == 1:
            return [(str(path), str(path))]
        raise DataNotFoundError(
            f"There is no file {path}. Give a JSON file, a run's folder, or labels."
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(document, list):
            raise TypeError
        stack = document if document and isinstance(document[0], list) else [document]
        masks = [[float(entry) for entry in mask] for mask in stack]
    except (ValueError, TypeError) as error:
        raise DataFormatError(
            f"{path} holds no mask. Write a JSON list with one number per component, or a list of "
            "such lists."
        ) from error
    return [
        (f"{path.name}[{number}]" if len(masks) > 1 else path.name, mask)
        for number, mask in enumerate(masks)
    ]
