"""Shared options: one for each field of a setup, and help that names all that there is."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import get_args

import pytest

from tracekit._util.names import SourceName
from tracekit._util.options import field_help
from tracekit.cli.options import OPTIONS, TRACED, setup_options
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
    names = {each.name for each in fields(Setup)} - {"indices", "source_seed"}
    assert {*setup_options(Setup)} == names <= {*TRACED}
    helps = field_help(Setup)
    for name in names:
        assert OPTIONS[name].shown.help.startswith(helps[name])


@dataclass(frozen=True, kw_only=True)
class WithDepth(Setup):
    depth: int = 3
    """How deep it goes.

    Only Python takes a tuple.
    """


def test_a_new_field_of_a_setup_is_an_option_with_its_help_and_default():
    option = setup_options(WithDepth)["depth"]
    assert (option.kind, option.default, option.shown.help) == (int, 3, "How deep it goes.")


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
