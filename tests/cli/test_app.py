"""The program: help, usage, version."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import typer

import tracekit as tk
from tracekit import cli
from tracekit.cli.app import PANELS


def test_wrong_usage_and_empty_folders(command, tmp_path):
    code, _, err = command("trace", "--colour", "red")
    assert code == 2
    assert "No such option" in err
    code, _, err = command("show", tmp_path)
    assert code == 1
    assert "holds no result.json" in err


def test_lists_and_version(command):
    assert "demo-binding" in command("datasets")[1]
    assert command("--version")[1].strip() == f"tracekit {tk.__version__}"


def test_help_is_light():
    """Neither help nor `import tracekit` loads torch."""
    script = (
        "import sys, tracekit, tracekit.cli; print([m for m in ('torch', 'plotly', 'pandas') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_output_that_nobody_reads_ends_the_command_without_a_traceback():
    """As in `tracekit show run | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tracekit", "--version"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_over_long_path_is_shortened_in_its_error(command):
    code, _, errors = command("show", "x" * 5000)
    assert code == 1
    assert "x" in errors
    assert "x" * 79 not in errors


COMMANDS = {command.name: command for command in typer.main.get_command(cli.app).commands.values()}


@pytest.fixture
def help_of(command, monkeypatch):
    """The help of a command, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *name: command(*name, "--help")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_grouped(help_of, name):
    """What, how, limits, output: in this order, and every option in one of the panels."""
    titles = re.findall(r"^╭─ (.+?) ─", help_of(name), re.MULTILINE)
    assert titles == [panel for panel in PANELS if panel in titles]
    assert titles[-1] == "Output"
    if name in ("trace", "pareto"):
        assert set(titles) == set(PANELS) - {"Arguments", "Where it runs"}


@pytest.mark.parametrize("name", [*COMMANDS, None], ids=str)
def test_help_breaks_no_word_at_80_columns(help_of, name):
    out = help_of() if name is None else help_of(name)
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    shown = set(re.sub("[│╭╮╰╯─]", " ", out).split())
    if name is None:
        expected = set(COMMANDS)
    else:
        parameters = COMMANDS[name].params
        texts = [each.help.replace("`", "") for each in parameters]
        expected = {word for text in texts for word in text.split()}
        options = [opt for each in parameters for opt in each.opts if opt.startswith("--")]
        expected |= set(options)
        # A value that is named by its type, such as a choice of words, would be folded.
        values = [each.metavar for each in parameters if each.param_type_name == "option"]
        assert None not in values
        expected |= {value for value in values if value}
    assert expected <= shown


def test_help_shows_the_range_of_a_layer_window(help_of):
    assert re.search(r"--layer-window +N \[x>=1\]", help_of("trace"))


def test_commands_stand_in_the_order_of_use(help_of):
    listed = re.findall(r"^│ ([a-z-]+)  ", help_of().split("Commands")[1], re.MULTILINE)
    assert listed == list(COMMANDS)
    assert listed[:4] == ["demo", "trace", "pareto", "evaluate"]
    assert listed.index("show") < listed.index("datasets") < listed.index("sweep")
