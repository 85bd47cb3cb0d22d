"""A small trained language model with planted behaviours, and rows of prompts about these.

In a checkout, `python -m tools.demo_model.train` trains the model from scratch, and
`python -m tools.demo_model.examples` makes the rows.
"""

import json
from pathlib import Path
from typing import Any

__all__ = ["DEMO", "MODEL_DIR", "rows"]

DEMO = "demo"
"""Name of the trained model."""

MODEL_DIR: Path = Path(__file__).resolve().parent / "model"
"""Folder of the trained model, in the layout that `from_pretrained` reads."""


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of `bias`, `professions`, `facts`, `binding` or `operations`."""
    text = (MODEL_DIR.parent / "rows" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
