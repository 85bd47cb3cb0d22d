"""Runs commands in this process."""

from __future__ import annotations

import json
import sys
from functools import cache

import jsonschema
import pytest
from pydantic import TypeAdapter

from docs.schemas.command_documents import schemas
from tracekit import cli
from tracekit.cli.output import CommandOutput, console, error_console


@cache
def validators():
    """By command; of usage errors before a command is known, under an empty name."""
    described = {"": TypeAdapter(CommandOutput).json_schema(), **schemas()}
    return {name: jsonschema.Draft202012Validator(each) for name, each in described.items()}


def check_document(name, code, out):
    """Holds what a command printed with `--json` against its schema, and `ok` against its code."""
    document = json.loads(out)
    validators()[name if name in validators() else ""].validate(document)
    assert document.get("ok", True) == (code == 0)


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
    if "--json" in arguments:
        check_document(str(arguments[0]), code, out.out)
    return code, out.out, out.err


@pytest.fixture
def command(monkeypatch, capsys):
    return lambda *arguments: run(monkeypatch, capsys, *arguments)
