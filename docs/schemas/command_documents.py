"""What each command prints with `--json`: its tables by their columns, and JSON Schemas of that."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from tracekit.cli.console import CommandOutput

_RESULTS = (
    "method, budget, n_selected, n_components, effect, effect_low, effect_high, full_effect, "
    "share, faithfulness, faithfulness_low, faithfulness_high, completeness, completeness_low, "
    "completeness_high, measured_on, held_out, held_out_low, held_out_high, held_out_share, "
    "passes, seconds, components, n_examples, n_independent, n_held_out, n_held_out_independent, "
    "model, dataset, kind, metric, source, direction, positions, seed, *"
)
_CHOICES = {
    "choices": "method, n_selected, examples, run, n, first_x, first_y, neither, log_odds, kl",
}
_ESTIMATES = {
    "estimates": "method, passes, further, is_exact, example_passes, rows, seconds, memory, faster"
}
_CHECKS = {"checks": "color, check, finding"}
_TABLES: dict[str, dict[str, str]] = {
    "datasets": {"datasets": "dataset, components, metric, about"},
    "demo": {"methods": "method, passes, seconds, *", "results": _RESULTS, **_CHOICES},
    "evaluate": {
        "masks": "mask, sum, effect, effect_low, effect_high, n_examples, "
        "n_independent, n_searched, *"
    },
    "explain": {
        "explanation": "model, dataset, metric, effect, effect_low, effect_high, members, "
        "redundant, n_orders, passes, *",
        "members": "component, alone, alone_low, alone_high, last, last_low, last_high, value, "
        "value_low, value_high, verdict, *",
        "interactions": "*",
        "replacements": "*",
        "backups": "*",
        **_ESTIMATES,
    },
    "look": {
        "task": "run, n, first_x, first_y, neither, log_odds, kl",
        "where": "layer, *",
        "who": "component, score",
        "sets": "n_selected, effect, effect_low, effect_high, held_out, held_out_low, "
        "held_out_high, random, random_low, random_high, components, *",
        "next": "call, why, passes, minutes",
    },
    "models": {"paper_models": "model, hub, *", "architectures": "architecture, kinds"},
    "pairs": {
        **_CHECKS,
        "examples": "prompt, x, y, p_x, p_y, prefers_x, *",
    },
    "pareto": {
        "front": "method, size, n_components, effect, effect_low, effect_high, full_effect, share, "
        "faithfulness, completeness, measured_on, components, held_out, held_out_low, "
        "held_out_high, held_out_share, cross_fitted, cross_fitted_low, cross_fitted_high, "
        "control, stability, n_examples, n_independent, n_held_out, n_held_out_independent, *",
        **_ESTIMATES,
    },
    "report": {},
    "show": {
        "results": _RESULTS,
        **_CHOICES,
        "setting": "model, data, metric, positions, intervention, search, seed, options, versions",
    },
    "side-effects": {
        "side_effects": "name, dataset, metric, examples, effect, effect_low, effect_high, "
        "strength, strength_low, strength_high, control, control_low, control_high, p, q, "
        "selectivity, selectivity_low, selectivity_high, control_selectivity",
        **_ESTIMATES,
    },
    "sweep": {
        "runs": "model, dataset, kind, metric, positions, setting, method, options, objective, "
        "sign, seed, budget, n_selected, n_components, effect, effect_low, effect_high, share, "
        "measured_on, held_out, held_out_low, held_out_high, held_out_share, n_examples, "
        "n_independent, n_held_out, n_held_out_independent, passes, seconds, device, tracekit, "
        "components, folder, *"
    },
    "trace": {"results": _RESULTS, **_CHOICES, **_CHECKS, **_ESTIMATES},
    "certify": {"claims": "claim, low, high, verdict"},
    "verify": {
        "measured": "measured, saved, now, agrees",
        "claims": "claim, low, high, verdict",
    },
}
"""Tables of each command by name, with their columns; `*`: there may be others."""
_CELL = {"type": ["string", "number", "boolean", "array", "null"], "items": {"type": "string"}}


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of what each command prints with `--json`, also after an error."""
    return {command: _schema(command, tables) for command, tables in _TABLES.items()}


def _schema(command: str, tables: dict[str, str]) -> dict[str, Any]:
    described = TypeAdapter(CommandOutput).json_schema()
    others: Any = _table(tables["*"]) if "*" in tables else False
    described["properties"] |= {
        "command": {"const": command},
        "tables": {
            "type": "object",
            "properties": {name: _table(tables[name]) for name in tables if name != "*"},
            "additionalProperties": others,
        },
    }
    return described | {"title": f"tracekit {command} --json"}


def _table(columns: str) -> dict[str, Any]:
    """Schema of the rows of a table, from its columns in a line."""
    names = columns.split(", ")
    named = [name for name in names if name != "*"]
    row = {
        "type": "object",
        "properties": dict.fromkeys(named, _CELL),
        "required": named,
        "propertyNames": {"pattern": "^\\S+$"},
        "additionalProperties": _CELL if "*" in names else False,
    }
    return {"type": "array", "items": row}
