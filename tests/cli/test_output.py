"""Paths, tables and texts from elsewhere, in every command."""

from __future__ import annotations

import dataclasses
import re

import pytest

import tracekit as tk
from tests.files import renamed
from tracekit import cli
from tracekit._util.table import Column, Table
from tracekit.cli.console import console
from tracekit.cli.tables import print_table


class TestPathsAreCheckedFirst:
    """Before a model is loaded, which takes half a minute and more."""

    @pytest.fixture(autouse=True)
    def _no_model(self, monkeypatch):
        def loaded(*given, **options):
            pytest.fail("a model was loaded")

        monkeypatch.setattr("tracekit.cli.options.load_quietly", loaded)

    @pytest.mark.parametrize("start", [("trace", "--budget", 2), ("pareto",)])
    def test_of_one_trace(self, command, tmp_path, start):
        bad = tmp_path / "bad.csv"
        bad.write_text("prompt,shade\nthe nurse, red\n")
        code, _, err = command(*start, "--dataset", bad, "-o", tmp_path)
        assert (code, "unknown column 'shade'" in err) == (1, True)
        code, _, err = command(*start, "--dataset", tmp_path / "none.jsonl", "-o", tmp_path)
        assert (code, "There is no file" in err) == (1, True)
        code, _, err = command(*start, "--data-dir", tmp_path / "none", "-o", tmp_path)
        assert (code, "with data files. Give another." in err) == (1, True)
        code, _, err = command(
            *start, "--constraint-dataset", bad, "--constraint-at-most", 1, "-o", tmp_path
        )
        assert (code, "unknown column 'shade'" in err) == (1, True)


class TestOutputs:
    """Where nothing can be written, that is said before a model is loaded."""

    @pytest.fixture
    def no_loading(self, monkeypatch):
        def load(*given, **options):
            raise AssertionError("a model was loaded")

        for module in (cli.options, cli.demo):
            monkeypatch.setattr(module, "load_quietly", load)

    @pytest.mark.parametrize("name", ["afile", "afile/sub", "x" * 300, "/dev/null/x"])
    @pytest.mark.parametrize(
        "arguments",
        [
            ["trace"],
            ["pareto"],
            ["demo"],
            ["evaluate", "--mask", "mask.json"],
        ],
        ids=lambda arguments: arguments[0],
    )
    @pytest.mark.usefixtures("no_loading")
    def test_bad_outputs(self, command, tmp_path, name, arguments):
        (tmp_path / "afile").write_text("kept")
        bad = tmp_path / name
        if (arguments[0], name) == ("evaluate", "afile"):
            bad = tmp_path
        code, _, err = command(*arguments, "--output", bad)
        assert code == 1
        assert err.startswith("Error: The output ")
        assert err.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["afile"]

    def test_a_full_disk_is_a_message(self, command, tmp_path, monkeypatch):
        def full(self, folder):
            raise OSError(28, "No space left on device", str(folder))

        monkeypatch.setattr(tk.TraceResult, "save", full)
        code, _, err = command("trace", "--limit", 4, "--method", "top-k", "--output", tmp_path)
        assert code == 1
        assert err.startswith("Error: No space left on device (")
        assert "Traceback" not in err

    def test_early_failures_leave_no_folder(self, command, tmp_path):
        code, _, err = command("trace", "--model", "/nowhere", "--output", tmp_path / "a" / "b")
        assert code == 1, err
        assert list(tmp_path.iterdir()) == []


class TestForeignTexts:
    """Names come from files: they are neither markup nor commands for the terminal."""

    NAME = "[red]a[/red] [/] [link=http://evil]b[/link] :smile: \x1b]0;owned\x07 \x9b31m c"
    SHOWN = "[red]a[/red] [/] [link=http://evil]b[/link] :smile: \ufffd]0;owned\ufffd \ufffd31m c"

    def test_in_tables(self, command, demo_model, tmp_path):
        pairs = dataclasses.replace(tk.load_dataset("demo-bias", demo_model)[:4], name=self.NAME)
        tracer = tk.Tracer(demo_model, pairs, layers=[0])
        first = tracer.run("top-k", budget=2)
        renamed(first, method=self.NAME).save(tmp_path / "one")
        code, out, err = command("show", tmp_path / "one")
        assert code == 0, err
        assert out.count(self.SHOWN) == 4
        assert "\x1b" not in out

    def test_in_skipped_examples_and_names_of_data(self, command, tmp_path):
        path = tmp_path / "[red]hello.csv"
        rows = ["prompt,counterfactual,x,y"]
        rows += ["[/red]the cook said,the cook,a,b", "the cook,the maid, a, b"]
        path.write_text("\n".join(rows))
        code, out, err = command(
            *("trace", "--dataset", path, "--skip-mismatched", "--budget", 1, "--method", "top-k"),
            *("--output", tmp_path / "run", "--quiet"),
        )
        assert code == 0, err
        assert "Skipped example 0: " in out
        assert "[/red]the cook said" in out
        assert "[red]hello" in out

    def test_in_errors(self, command):
        code, _, err = command("trace", "--dataset", "[/red]\x1b[31m")
        assert code == 1
        assert "[/red]\\x1b[31m" in err


@pytest.mark.parametrize("width", [80, 60, 120])
def test_tables_break_no_word(monkeypatch, capsys, width):
    monkeypatch.setattr(console, "width", width)
    titles = ["the name", "a longer text", "number"]
    titles += [f"{each} of all" for each in ("attention-patterns", "mlp-neurons")]
    rows = [
        ("gpt2-small", "said in several words with one-that-is-longer", "0.123", "17", "-0.5 to 3"),
        ("llama", "few words", "10", "1000.5", "-12.25 to 12.25"),
    ]
    columns = zip(titles, zip(*rows, strict=True), strict=True)
    print_table("runs", Table([Column("key", *each) for each in columns]), heading="Some runs")
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    shown = re.sub("[^\\w\\s.%-]", " ", out).split()
    headers = [word for title in titles for word in title.split()]
    assert {*headers, *(word for row in rows for cell in row for word in cell.split())} <= set(
        shown
    )
    # In parts where there is no room, each with the name of a row.
    parts = out.count("┏")
    assert parts == {80: 1, 60: 2, 120: 1}[width]
    assert shown.count("gpt2-small") == shown.count("llama") == parts
    assert out.count("Some runs") == parts


def test_a_word_wider_than_the_terminal_is_folded(monkeypatch, capsys):
    monkeypatch.setattr(console, "width", 40)
    print_table("masks", Table.of_rows([{"mask": "a" * 50, "effect": 0.123}]))
    out = capsys.readouterr().out
    assert out.count("a") == 50 + 1
    assert "0.123" in out
