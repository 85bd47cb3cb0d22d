"""What each command prints with `--json`: its tables by their columns, and JSON Schemas of that."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from tracekit.cli.explain import Findings
from tracekit.cli.output import CommandOutput
from tracekit.tracer.estimate import Estimate

_RESULTS = (
    "method, budget, selected, effect, 95 % spread, of all, faithful, complete, passes, seconds, "
    "held out?, 95 % interval?, components?, *"
)
_TABLES: dict[str, tuple[str, ...]] = {
    "datasets": ("data set, usually traced with, about",),
    "demo": ("method, passes, time, *", _RESULTS),
    "evaluate": ("mask, sum, effect, 95 % interval, *",),
    "explain": (),
    "models": ("the paper's model, hub name, *", "architecture, can be traced by"),
    "pairs": ("color, check, finding",),
    "pareto": ("size, effect, 95 % spread, faithful, held out, random, stability, search, *",),
    "report": (),
    "reproduce": ("*",),
    "show": (_RESULTS, "fact, value"),
    "side-effects": ("name, dataset, metric, examples, effect, strength, p, selectivity, *",),
    "sweep": (
        "model, dataset, kind, method, options, seed, budget, selected, effect, low, high, "
        "held_out?",
    ),
    "trace": (_RESULTS,),
    "validate": ("fact, value",),
    "verify": ("measured, saved, now, agrees",),
}
"""Columns of the tables of each command; `?`: it may be missing, `*`: there may be others."""


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of what each command prints with `--json`, also after an error."""
    return {command: _schema(command, tables) for command, tables in _TABLES.items()}


def _schema(command: str, tables: tuple[str, ...]) -> dict[str, Any]:
    described = TypeAdapter(CommandOutput).json_schema()
    own = {
        "command": {"const": command},
        "tables": {"type": "array", "items": {"anyOf": [*map(_table, tables), {"maxItems": 0}]}},
    }
    described["properties"] |= own
    if command == "explain":
        # Its findings, or with --dry-run what they take.
        either = TypeAdapter(Findings | Estimate).json_schema()
        defs = {**either["$defs"], **described.pop("$defs")}
        described = {"$defs": defs, "anyOf": [*either["anyOf"], described]}
    return described | {"title": f"tracekit {command} --json"}


def _table(columns: str) -> dict[str, Any]:
    """Schema of the rows of a table, from its columns in a line."""
    names, cell = columns.split(", "), {"type": ["string", "number"]}
    named = [name for name in names if name != "*"]
    row = {
        "type": "object",
        "properties": {name.removesuffix("?"): cell for name in named},
        "required": [name for name in named if not name.endswith("?")],
        "additionalProperties": cell if "*" in names else False,
    }
    return {"type": "array", "items": row}
