"""Runs commands in this process."""

from __future__ import annotations

import sys

import pytest

from tracekit import cli
from tracekit.cli.output import console, error_console


def run(monkeypatch, capsys, *arguments):
    """Runs a command in this process; gives exit code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["tracekit", *map(str, arguments)])
    monkeypatch.setattr(console, "width", 160)
    monkeypatch.setattr(error_console, "width", 400)
    code = 0
    try:
        cli.main()
    except SystemExit as stopped:
        code = stopped.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def command(monkeypatch, capsys):
    return lambda *arguments: run(monkeypatch, capsys, *arguments)
