"""Shared options: one for each field of a setup, and help that names all that there is."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest

from tracekit._util.names import SourceName
from tracekit.cli.options import OPTIONS, TRACED
from tracekit.components.kinds import KINDS
from tracekit.engine.setup import Setup
from tracekit.metrics import METRICS
from tracekit.search.objectives import ObjectiveName


@pytest.mark.parametrize("share", ["6", "-0.5"])
def test_a_held_out_share_lies_between_0_and_1(command, share):
    code, _, err = command("trace", "--held-out", share, "--dry-run")
    assert code != 0
    assert "Invalid value for '--held-out': Input should be " in err


def test_every_field_of_a_setup_is_an_option_of_commands_that_trace():
    # `--seed` draws the values of sources too; single components are named in Python.
    names = {each.name for each in fields(Setup)} - {"indices", "source_seed", "drawn"}
    assert names <= {*TRACED}
    for each in fields(Setup):
        if each.name in ("split_by", "layer_window", "source", "direction", "continuation_mean"):
            assert OPTIONS[each.name].default == each.default


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("components", KINDS),
        ("metric", METRICS),
        ("source", get_args(SourceName)),
        ("objective", get_args(ObjectiveName)),
    ],
)
def test_help_names_all_that_there_is(option, names):
    words = OPTIONS[option].shown.help.replace(",", " ").replace(".", " ").replace(";", " ").split()
    assert {*names} <= {*words}
