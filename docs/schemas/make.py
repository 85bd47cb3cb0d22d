"""Writes the JSON Schema of every saved document: `python docs/schemas/make.py`."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter

from tracekit.anatomy import Attention, Explanation, Paths, SideEffects
from tracekit.cli.documents import schemas
from tracekit.cli.explain import Findings
from tracekit.cli.output import CommandOutput
from tracekit.results import Generations, InteractionGrid, StrongestPairs, TraceResult
from tracekit.results.curve import CurveRuns
from tracekit.results.pareto_front import FrontFacts
from tracekit.results.storage import schema
from tracekit.runs.store import RunInfo

SCHEMAS = {
    "result": schema(TraceResult),
    "curve": schema(CurveRuns),
    "pareto": schema(FrontFacts),
    "explanation": schema(Explanation),
    "paths": schema(Paths),
    "attention": schema(Attention),
    "side_effects": schema(SideEffects),
    "generations": schema(Generations),
    "interaction_grid": schema(InteractionGrid, inline=True),
    "strongest_pairs": schema(StrongestPairs, inline=True),
    "run": schema(RunInfo),
    "command": TypeAdapter(CommandOutput).json_schema(),
    "findings": TypeAdapter(Findings).json_schema(),
    **{f"commands/{command}": described for command, described in schemas().items()},
}


def texts() -> dict[Path, str]:
    """The files and their texts."""
    folder = Path(__file__).parent
    return {
        folder / f"{name}.schema.json": json.dumps(described, indent=1) + "\n"
        for name, described in SCHEMAS.items()
    }


if __name__ == "__main__":
    for path, text in texts().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
