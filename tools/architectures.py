"""Writes the table of `tracekit models`: `python -m tools.architectures`."""

from __future__ import annotations

import json

import typer

from tests.architectures import ARCHITECTURES, try_out
from tracekit.cli.models import REFUSED


def main() -> None:
    """Tries every kind of component in every architecture, and writes which are refused."""
    tried = {name: try_out(name) for name in ARCHITECTURES}
    refused = {
        name: [kind for kind, reason in reasons.items() if reason is not None]
        for name, reasons in tried.items()
    }
    REFUSED.write_text(json.dumps(refused, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
