"""Executes every notebook in this folder, in order, each in a fresh kernel.

`python notebooks/execute.py` checks: it fails on the first error and changes nothing.
`python notebooks/execute.py --write` also stores the outputs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent


def execute(path: Path, *, write: bool, timeout: int) -> None:
    """Executes one notebook in a temporary working directory."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=timeout,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
        )
        client.execute()
    if write:
        _drop_stderr(notebook)
        nbformat.validate(notebook)
        nbformat.write(notebook, path)


def _drop_stderr(notebook: nbformat.NotebookNode) -> None:
    """Removes progress bars and warnings, which name places on the machine that ran it."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]


def main() -> int:
    """Executes all notebooks; returns the exit code."""
    parser = argparse.ArgumentParser(description="Executes every notebook in this folder.")
    parser.add_argument("--write", action="store_true", help="store the outputs")
    parser.add_argument("--timeout", type=int, default=300, help="seconds per cell")
    arguments = parser.parse_args()
    paths = sorted(FOLDER.glob("*.ipynb"))
    if not paths:
        sys.stderr.write(f"There is no notebook in {FOLDER}.\n")
        return 1
    for path in paths:
        start = time.perf_counter()
        try:
            execute(path, write=arguments.write, timeout=arguments.timeout)
        except CellExecutionError as error:
            sys.stderr.write(f"{path.name}: {error}\n")
            return 1
        sys.stdout.write(f"{path.name}: {time.perf_counter() - start:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
