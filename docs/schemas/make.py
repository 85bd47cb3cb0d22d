"""Writes the JSON Schema of every saved document, which `docs/conf.py` does for the site.

`python docs/schemas/make.py` writes them beside this file, where git ignores them.
"""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from docs.schemas.command_documents import schemas
from tracekit.cli.console import CommandOutput, Row
from tracekit.measure import Attention, Explanation, Look, Paths, SideEffects
from tracekit.results import Generations, InteractionGrid, StrongestPairs, TraceResult
from tracekit.results.curve import CurveRuns
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.storage import (
    FORMAT_VERSION,
    document_model,
    has_spec,
    is_tensor,
    item_of,
    saved_fields,
    without_none,
)
from tracekit.runs.store import RunInfo


def schema(cls: type, *, inline: bool = False) -> dict[str, Any]:
    """JSON Schema of the document of a class; `tensors` lists the axes of those beside it."""
    described = document_model(cls, inline).model_json_schema()
    tensors = {} if inline else dict(_tensor_axes(cls, ""))
    text = {"type": "string"}
    added: dict[str, Any] = {"format_version": {"const": FORMAT_VERSION}, "sha256": text}
    if tensors:
        added["tensors_sha256"] = text
    if hasattr(cls, "labels"):
        added["selected"] = {"type": "array", "items": text}
    # A recursive class is described by reference.
    body = described["$defs"].get(cls.__name__, described) if "$ref" in described else described
    body["properties"] = {**added, **body["properties"]}
    return {**described, **({"tensors": tensors} if tensors else {})}


def _tensor_axes(cls: type, prefix: str) -> list[tuple[str, str]]:
    """Name and axes of each tensor of a class; `*` stands for the number of a part."""
    axes: list[tuple[str, str]] = []
    for name, annotation in saved_fields(cls).items():
        bare = without_none(annotation)
        item = item_of(bare)
        if is_tensor(bare):
            axes.append((f"{prefix}{name}", bare.dim_str.strip()))
        elif item is not None:
            axes += _tensor_axes(item, f"{prefix}{name}.*.")
        elif is_dataclass(bare) and not has_spec(bare):
            axes += _tensor_axes(bare, f"{prefix}{name}.")  # type: ignore[arg-type]
    return axes


SCHEMAS = {
    "result": schema(TraceResult),
    "curve": schema(CurveRuns),
    "pareto": schema(ParetoFront),
    "explanation": schema(Explanation),
    "paths": schema(Paths),
    "attention": schema(Attention),
    "side_effects": schema(SideEffects),
    "generations": schema(Generations),
    "look": schema(Look),
    "interaction_grid": schema(InteractionGrid, inline=True),
    "strongest_pairs": schema(StrongestPairs, inline=True),
    "run": schema(RunInfo),
    "command": TypeAdapter(CommandOutput).json_schema(),
    "findings": TypeAdapter(dict[str, list[Row]]).json_schema(),
    **{f"commands/{command}": described for command, described in schemas().items()},
}


def write(folder: Path) -> list[Path]:
    """Writes the schemas to a folder; files that would stay the same are left as they are."""
    paths = []
    for name, described in SCHEMAS.items():
        path, text = folder / f"{name}.schema.json", json.dumps(described, indent=1) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Sphinx reads a page again whenever a file that it links has a new time.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


if __name__ == "__main__":
    write(Path(__file__).parent)
