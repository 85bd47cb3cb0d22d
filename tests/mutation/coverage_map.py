"""Which tests pass through which line: a plugin of pytest that writes it to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_measured = coverage.Coverage(data_file=None, source=["tracekit"])
_seconds: dict[str, float] = {}


def pytest_sessionstart() -> None:
    _measured.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    # Set-up too: what a fixture does counts for the test that is the first to ask for it.
    _measured.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome == "passed":
        _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    else:
        _seconds[report.nodeid] = float("inf")


def pytest_sessionfinish() -> None:
    _measured.stop()
    data = _measured.get_data()
    root = Path.cwd()
    tests_by_line = {
        str(Path(file).relative_to(root)): {
            line: [test for test in tests if _seconds.get(test, float("inf")) < 60]
            for line, tests in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    document = {"seconds": _seconds, "tests_by_line": tests_by_line}
    Path(os.environ["TRACEKIT_COVERAGE_MAP"]).write_text(json.dumps(document))
