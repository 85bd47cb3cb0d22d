"""`python -m tests.mutation`: see the package."""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.mutation.mutants import Mutant, count, make

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("engine", "search", "data", "results")
TESTS = [
    *(f"tests/{name}" for name in FOLDERS),
    "tests/components/test_masks.py",
    "tests/test_metrics.py",
]
_OPTIONS = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header"]
_SECONDS = 120.0
_TIMES = 5
"""A mutant counts as noticed when its tests take longer than this, and so many times as long as
without it: it hangs."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=300, help="How many are drawn.")
    parser.add_argument("--seed", type=int, default=0, help="Of the draw.")
    parser.add_argument(
        "--only", default="", help="Draws from paths that contain this, e.g. search/local."
    )
    parser.add_argument(
        "--tests", nargs="+", default=TESTS, help="Paths of the tests, where the map is made."
    )
    parser.add_argument(
        "--most-tests", type=int, default=40, help="Of each mutant; the quickest ones first."
    )
    parser.add_argument(
        "--again", type=Path, help="Output of an earlier run: only its survivors are tried."
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="Ends after these.")
    parser.add_argument(
        "--map", type=Path, default=ROOT / ".mutation-map.json", help="Made if it is missing."
    )
    given = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if not given.map.exists():
        make_map(given.map, given.tests)
    document = json.loads(given.map.read_text())
    drawn = draw(given.mutants, given.seed, given.only)
    if given.again is not None:
        listed = given.again.read_text().splitlines()
        drawn = [each for each in drawn if any(line.startswith(name(each)) for line in listed)]
    _import_libraries()
    end = time.monotonic() + 60 * given.minutes
    noticed, survivors = 0, []
    for mutant in drawn:
        if time.monotonic() > end:
            break
        tests = tests_of(mutant, document)[: given.most_tests]
        usual = sum(document["seconds"][test] for test in tests)
        if tests and is_noticed(mutant, tests, max(_SECONDS, _TIMES * usual)):
            noticed += 1
            continue
        survivors.append(mutant)
        how = f"{len(tests)} tests" if tests else "no test"
        print(f"{name(mutant)} ({how})", flush=True)  # noqa: T201
    tried = noticed + len(survivors)
    print(  # noqa: T201
        f"{noticed} of {tried} mutants were noticed ({noticed / max(tried, 1):.1%}); seed "
        f"{given.seed}, {len(drawn) - tried} of {len(drawn)} drawn were not tried."
    )


def name(mutant: Mutant) -> str:
    """Where a mutant is, and what it changes."""
    return f"{mutant.path.relative_to(ROOT)}:{mutant.line} {mutant.change}"


def draw(number: int, seed: int, only: str = "") -> list[Mutant]:
    """Mutants of all files alike whose path contains a text."""
    paths = sorted(path for name in FOLDERS for path in (ROOT / "tracekit" / name).rglob("*.py"))
    all_of_them = [
        (path, which) for path in paths if only in str(path) for which in range(count(path))
    ]
    drawn = random.Random(seed).sample(all_of_them, min(number, len(all_of_them)))
    return [make(*one) for one in drawn]


def make_map(path: Path, tests: list[str]) -> None:
    """Runs the tests once, and writes which of them pass through which line."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
            *("-p", "tests.mutation.coverage_map", *tests),
        ],
        env={**os.environ, "TRACEKIT_COVERAGE_MAP": str(path)},
        check=False,
    )


def tests_of(mutant: Mutant, document: dict) -> list[str]:
    """Tests that pass through the line of a mutant, quick ones first."""
    lines = document["tests_by_line"].get(str(mutant.path.relative_to(ROOT)), {})
    seconds = document["seconds"]
    # Of an expression over several lines, only some count as passed.
    passing = lines.get(str(mutant.line)) or lines.get(str(mutant.statement), [])
    tests = sorted(passing, key=lambda test: seconds[test])
    return tests


def _import_libraries() -> None:
    """What takes long to import, and is no part of what is mutated."""
    import hypothesis  # noqa: F401
    import pandas  # noqa: F401
    import plotly.graph_objects  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import torch
    import transformers  # noqa: F401
    from transformer_lens.model_bridge import TransformerBridge  # noqa: F401

    torch.set_num_threads(1)
    # The command itself needs none of the package.
    assert not [name for name in sys.modules if name.split(".")[0] == "tracekit"]


def is_noticed(mutant: Mutant, tests: list[str], seconds: float) -> bool:
    """Runs tests on a mutant in a process of its own; files stay as they are."""
    child = os.fork()
    if child == 0:
        os.setsid()
        os._exit(_run(mutant, tests))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            # 5: no test of these names is left, so the map is old.
            code = os.waitstatus_to_exitcode(status)
            assert code != 5, "the map is of other tests; remove it"
            return code != 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _run(mutant: Mutant, tests: list[str]) -> int:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    read = importlib.machinery.SourceFileLoader.get_data
    path = str(mutant.path)

    def get_data(loader: importlib.machinery.SourceFileLoader, name: str) -> bytes:
        if name == path:
            return mutant.source.encode()
        if name.endswith(".pyc") and mutant.path.stem in name and "tracekit" in name:
            raise OSError("compiled from the whole module")
        return read(loader, name)

    importlib.machinery.SourceFileLoader.get_data = get_data  # type: ignore[method-assign]
    sys.dont_write_bytecode = True
    import pytest

    return int(pytest.main([*_OPTIONS, *tests]))


if __name__ == "__main__":
    main()
