"""Reading what was typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tracekit.errors import ConfigError, DataFormatError, DataNotFoundError


def goal(
    budgets: list[str] | None, target_effect: float | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The goal of a run, as keyword arguments."""
    values = [parse_budget(text) for text in budgets or []]
    if target_effect is not None and values:
        raise ConfigError("Both --budget and --target-effect were given. Give one of them.")
    if target_effect is not None:
        return {"target_effect": target_effect}
    if not values and "lambda1" in options:
        return {}
    return {"budgets": values or [0.1]}


def parse_budget(text: str) -> int | float:
    """A count or a share."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"The budget {text!r} is not a number. Give a count such as 6 or a share such as 0.2."
        ) from None


def parse_layers(text: str | None) -> list[int] | None:
    """Layers such as 0-5,8."""
    if text is None:
        return None
    layers: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            layers += range(int(first), int(last if dash else first) + 1)
    except ValueError:
        raise ConfigError(
            f"The layers {text!r} are not of the form 0-5,8. Write them so."
        ) from None
    return layers


def parse_positions(text: str) -> Any:
    """A scope by name, or prompt positions such as 0,3,-1."""
    if text in ("prompt", "last", "all"):
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return text


def parse_options(texts: list[str], methods: list[str]) -> dict[str, dict[str, Any]]:
    """Options by method: `name=value` for all methods, `method:name=value` for one."""
    found: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"The option {text!r} is not of the form name=value. Write it so.")
        method, colon, rest = name.rpartition(":")
        if colon and method not in found:
            raise ConfigError(f"The option {text!r} is for {method}, which is not run.")
        for one in [method] if colon else methods:
            found[one][rest if colon else name] = value
    return found


def parse_loading(texts: list[str] | None) -> dict[str, Any]:
    """Options of loading a model; whole numbers as such."""
    given = parse_options(texts or [], [""])[""]
    return {name: int(value) if value.isdigit() else value for name, value in given.items()}


def read_masks(path: Path) -> list[tuple[str, list[float]]]:
    """Masks in a file or a run folder, each with a name.

    Raises:
        DataNotFoundError: There is no such file.
        DataFormatError: It holds no mask.
    """
    if path.is_dir():
        from tracekit.results.result import TraceResult

        return [(path.name, TraceResult.load(path).binary_mask.float().tolist())]
    if not path.is_file():
        raise DataNotFoundError(f"There is no file {path}. Give a JSON file or a run's folder.")
    try:
        found = json.loads(path.read_text())
        stack = found if isinstance(found[0], list) else [found]
        masks = [[float(entry) for entry in one] for one in stack]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise DataFormatError(
            f"{path} holds no mask. Write a JSON list with one number per component, or a list of "
            "such lists."
        ) from error
    several = len(masks) > 1
    return [
        (f"{path.name}[{number}]" if several else path.name, one)
        for number, one in enumerate(masks)
    ]
