"""Shared options: one for each field of a setup, and help that names all that there is."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, fields
from typing import get_args

import pytest

from tracekit._util.names import SourceName
from tracekit._util.options import field_help
from tracekit.cli.options import OPTIONS, TRACE_KEYS, make_setup_options
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
    assert {*make_setup_options(Setup)} == names <= {*TRACE_KEYS}
    helps = field_help(Setup)
    for name in names:
        assert OPTIONS[name].option_info.help.startswith(helps[name])


@dataclass(frozen=True, kw_only=True)
class WithDepth(Setup):
    depth: int = 3
    """How deep it goes.

    Only Python takes a tuple.
    """


def test_a_new_field_of_a_setup_is_an_option_with_its_help_and_default():
    option = make_setup_options(WithDepth)["depth"]
    assert (option.kind, option.default, option.option_info.help) == (int, 3, "How deep it goes.")


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
    words = (
        OPTIONS[option]
        .option_info.help.replace(",", " ")
        .replace(".", " ")
        .replace(";", " ")
        .split()
    )
    assert {*names} <= {*words}


TRACE = ("trace", "--dataset", "demo-bias", "--limit", "4", "--dry-run", "--quiet")
ROWS = [
    {"first": "The maid slept because", "x": " she", "y": " he", "counterfactual": "The man slept"},
    {"first": "The nurse ran because", "x": " she", "y": " he", "counterfactual": "A man"},
]


@pytest.mark.parametrize(
    ("options", "advice", "advised"),
    [
        (
            ["--budget", "2", "--target-effect", "1"],
            "Give one of --budget, --target-effect and",
            [["--budget", "2"]],
        ),
        (
            ["--budget", "few"],
            "Give a count such as 6 or a share such as 0.2",
            [["--budget", "6"], ["--budget", "0.2"]],
        ),
        (["--layers", "all"], "are not of the form 0-5,8", [["--layers", "0-1,1"]]),
        (
            ["--option", "draws"],
            "not of the form name=value",
            [["--method", "random", "--option", "draws=2"]],
        ),
        (
            ["--constraint-metric", "kl"],
            "Give --constraint-at-most, e.g. 0.05",
            [["--constraint-metric", "kl", "--constraint-at-most", "0.05"]],
        ),
        (
            ["--source", "mean over pairs"],
            "with options as in 'noise:spans=subject' and 'mean:pairs=prompts.jsonl'",
            [["--source", "noise"], ["--source", "mean:pairs=demo-facts"]],
        ),
        (["--data-dir", "nowhere"], "There is no folder nowhere with data files", [[]]),
    ],
)
@pytest.mark.slow
def test_what_errors_of_commands_advise_works(command, options, advice, advised):
    code, _, err = command(*TRACE, *options)
    assert code == 1
    assert advice in err
    for each in advised:
        assert command(*TRACE, *each)[0] == 0


@pytest.mark.slow
def test_options_for_data_that_errors_of_commands_advise_work(command, tmp_path):
    """Columns that nobody knows, then counterfactuals of other lengths."""
    path = tmp_path / "mine.jsonl"
    rows = [{**ROWS[0], "counterfactual": "The miner slept because"}, ROWS[1]]
    path.write_text("\n".join(map(json.dumps, rows)))
    options = ["trace", "--dataset", str(path), "--dry-run", "--quiet"]
    code, _, err = command(*options)
    assert code == 1
    columns = shlex.split(err[err.index("--data-option") :])[:2]
    assert columns[1] == "columns=first:prompt"
    code, _, err = command(*options, *columns)
    assert code == 1
    assert "drop them with" in err
    assert "--skip-mismatched" in err
    assert command(*options, *columns, "--skip-mismatched")[0] == 0
