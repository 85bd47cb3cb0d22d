"""The version of the source is the one that every user of it sees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import tracekit
from tracekit._util.versions import versions

ROOT = Path(__file__).resolve().parent.parent


def test_a_checkout_on_the_path_has_its_version_without_metadata():
    """Isolated from installed distributions: `-S` leaves site-packages out."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tracekit as t; print(t.__version__)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    shown = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert shown.stdout.strip() == tracekit.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", tracekit.__version__)


def test_saved_versions_name_the_package_not_the_distribution():
    assert versions()["tracekit"] == tracekit.__version__
    assert "tracekit-lm" not in versions()


def test_the_citation_has_the_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {tracekit.__version__}\n" in citation


def test_versions_are_shown_for_bug_reports(capsys):
    tracekit.show_versions()
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["tracekit"] == tracekit.__version__
    assert shown.items() >= versions().items()
    assert {"numpy", "platform", "devices"} <= shown.keys()
