"""Runs commands in this process."""

from __future__ import annotations

import json
import math
import re
import sys
from functools import cache

import jsonschema
import pytest
from pydantic import TypeAdapter

from docs.schemas.command_documents import schemas
from tracekit import cli, figures, models
from tracekit._util import progress
from tracekit.cli.console import CommandOutput, console, error_console


@cache
def validators():
    """By command; of usage errors before a command is known, under an empty name."""
    described = {"": TypeAdapter(CommandOutput).json_schema(), **schemas()}
    return {name: jsonschema.Draft202012Validator(each) for name, each in described.items()}


def check_document(name, code, out):
    """Holds what a command printed with `--json` against its schema, and `ok` against its code."""
    document = json.loads(out, parse_constant=pytest.fail)
    validators()[name if name in validators() else ""].validate(document)
    assert document["ok"] == (code == 0)
    for key, value in _entries(document["tables"]):
        assert not re.search(r"\s", key), key
        assert not _is_number_in_text(value), (key, value)


def _entries(tables):
    """Keys and values of all rows."""
    return [entry for rows in tables.values() for row in rows for entry in row.items()]


def _is_number_in_text(value):
    """Whether a text is a number, an interval or a share, but for a digest."""
    number = r"[-+]?(\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?"
    pattern = rf"{number}( ?%| to {number}| of \d+)?|nan|inf"
    is_digest = len(str(value)) == 16
    return isinstance(value, str) and not is_digest and re.fullmatch(pattern, value) is not None


def run(monkeypatch, capsys, *arguments):
    """Runs a command in this process; gives exit code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["tracekit", *map(str, arguments)])
    monkeypatch.setattr(console, "width", 160)
    monkeypatch.setattr(error_console, "width", 400)
    # On a busy machine any command may take longer than a second.
    monkeypatch.setattr(progress, "_FIRST_LINE_AFTER", math.inf)
    code = 0
    try:
        cli.main()
    except SystemExit as stopped:
        code = stopped.code or 0
    out = capsys.readouterr()
    if "--json" in arguments:
        check_document(str(arguments[0]), code, out.out)
    return code, out.out, out.err


@pytest.fixture
def pictures():
    """Asked for by tests of pictures, which are drawn in a browser."""


@pytest.fixture(autouse=True)
def _without_browser(request, monkeypatch):
    """Figures are HTML only, which takes no browser, unless a test asks for pictures."""
    if "pictures" in request.fixturenames:
        return
    write_all = figures.write_all

    def html_only(named):
        return write_all({path: each for path, each in named.items() if path.suffix == ".html"})

    monkeypatch.setattr(figures, "write_all", html_only)


@pytest.fixture(autouse=True)
def _one_embedded_model(demo_model, monkeypatch):
    """Commands share the embedded model, which they leave as it is."""
    load = models.load_model

    def shared(source, **options):
        is_plain = source == "demo" and all(value is None for value in options.values())
        return demo_model if is_plain else load(source, **options)

    monkeypatch.setattr(models, "load_model", shared)


@pytest.fixture
def command(monkeypatch, capsys):
    return lambda *arguments: run(monkeypatch, capsys, *arguments)
