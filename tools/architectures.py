"""Writes the tables of `tracekit models`: `python -m tools.architectures`."""

from __future__ import annotations

import json
from typing import Any

import typer

from paper.models import PAPER_MODELS
from tests.architectures import ARCHITECTURES, try_out
from tracekit.cli.data import PAPER, REFUSED

_PAPER_KINDS = ("attention-patterns", "head-outputs", "mlp-outputs", "mlp-blocks")
"""Kinds that the paper traces."""


def paper_models() -> list[dict[str, Any]]:
    """The paper's models, with their numbers of components."""
    return [
        {"model": model.title, "hub": model.hub} | {k: model.count(k) for k in _PAPER_KINDS}
        for model in PAPER_MODELS.values()
    ]


def main() -> None:
    """Tries every kind of component in every architecture, and writes which are refused."""
    tried = {name: try_out(name) for name in ARCHITECTURES}
    refused = {
        name: [kind for kind, reason in reasons.items() if reason is not None]
        for name, reasons in tried.items()
    }
    PAPER.write_text(json.dumps(paper_models(), indent=1) + "\n", encoding="utf-8")
    REFUSED.write_text(json.dumps(refused, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
