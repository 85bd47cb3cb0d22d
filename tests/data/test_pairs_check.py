"""Checks of pairs on a model: what it knows, and what would give x away."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.cli.conftest import run
from tracekit.data import pairs_check
from tracekit.errors import ConfigError, PairsError


@pytest.fixture(scope="module")
def bias(demo_model):
    return tk.load_dataset("demo-bias", demo_model)[:12]


def lines(check):
    return {line.topic: line for line in check.lines}


def pairs_of(model, changes):
    """Sentences of the embedded model's words, each with the changes of a row."""
    row = {"prompt": "the maid", "counterfactual": "the nurse", "x": " smiled", "y": " left"}
    return tk.PromptPairs.from_text([{**row, **change} for change in changes], model, warn=False)


class TestProbabilities:
    def test_they_are_those_of_the_tracer(self, demo_model, bias):
        table = bias.check(demo_model).table
        clean = tk.Tracer(demo_model, bias).engine.data.clean
        for column, log_probabilities in (("p_x", clean.x), ("p_y", clean.y)):
            expected = log_probabilities.exp()
            torch.testing.assert_close(
                torch.tensor(table[column].to_numpy()), expected.double(), rtol=1e-4, atol=1e-7
            )
        assert table["prefers_x"].tolist() == (clean.x > clean.y).tolist()

    def test_prompts_and_continuations_of_several_lengths(self, any_model):
        pairs = tiny.pairs(6)
        clean = tk.Tracer(any_model, pairs).engine.data.clean
        found = torch.tensor(pairs.check(any_model).table["p_x"].to_numpy())
        torch.testing.assert_close(found, clean.x.exp().double(), rtol=1e-4, atol=1e-7)


class TestKnown:
    def test_only_pairs_with_a_probable_x_stay(self, demo_model, bias):
        table = bias.check(demo_model).table
        bound = float(table["p_x"].median())
        known = bias.known(demo_model, bound)
        expected = table[(table["p_x"] >= bound) & table["prefers_x"].astype(bool)]
        assert 0 < len(known) == len(expected) < len(bias)
        assert [pair.describe() for pair in known] == expected["prompt"].tolist()
        assert len(known.skipped) == len(bias) - len(known)
        assert "x has probability" in known.skipped[0]

    def test_none(self, demo_model, bias):
        with pytest.raises(PairsError, match="The model knows none of the 12 pairs: with a prob"):
            bias.known(demo_model, 1.0)

    def test_another_probability(self, demo_model, bias):
        with pytest.raises(ConfigError, match="probability is 2. Give a number from 0 to 1."):
            bias.known(demo_model, 2)


class TestColours:
    def test_a_task_that_the_model_does(self, demo_model, bias):
        check = bias.check(demo_model)
        count = int(check.table["prefers_x"].sum())
        assert f"The model prefers x to y on {count} of 12" in str(check)
        turned = [{**pair.texts, "x": pair.texts["y"], "y": pair.texts["x"]} for pair in bias]
        wrong = tk.PromptPairs.from_text(turned, demo_model).check(demo_model)
        assert (lines(check)["task"].color, lines(wrong)["task"].color) == ("green", "red")
        assert (wrong.color, "pairs.known(model) keeps" in str(wrong)) == ("red", True)

    def test_without_y(self, demo_model):
        pairs = tk.PromptPairs.from_text([{"prompt": "the maid", "x": " smiled"}], demo_model)
        check = pairs.check(demo_model)
        assert "there is no y to compare with" in lines(check)["task"].text
        assert check.table["prefers_x"][0] is None

    def test_several_tokens(self, demo_model, bias):
        assert lines(bias.check(demo_model))["tokens"].color == "yellow"
        check = pairs_of(demo_model, [{}]).check(demo_model)
        assert lines(check)["tokens"].text == "x and y are one token each. Prompts have 2 tokens."

    def test_an_x_that_is_too_frequent(self, demo_model):
        nouns = [f"the {noun}" for noun in ("maid", "nurse", "mechanic", "baker")]
        same = pairs_of(demo_model, [{"prompt": noun} for noun in nouns])
        changes = [{"prompt": n, "x": x, "y": y} for n in nouns for x, y in [(" left", " smiled")]]
        mixed = pairs_of(demo_model, [{}, *changes[:1]])
        colors = [lines(each.check(demo_model))["balance"].color for each in (same, mixed)]
        assert colors == ["yellow", "green"]

    def test_a_word_that_gives_x_away(self, demo_model):
        sides = [("a", " smiled", " left"), ("the", " left", " smiled")]
        changes = [
            {"prompt": f"{word} maid", "counterfactual": f"{word} nurse", "x": x, "y": y}
            for word, x, y in sides
        ]
        leak = lines(pairs_of(demo_model, changes * 8).check(demo_model))["leak"]
        assert (leak.color, "in 8 examples" in leak.text) == ("yellow", True)
        crossed = [{**change, "x": x, "y": y} for change in changes for _, x, y in sides]
        assert lines(pairs_of(demo_model, crossed * 4).check(demo_model))["leak"].color == "green"

    def test_a_length_that_gives_x_away(self, demo_model):
        pairs = pairs_of(
            demo_model, [{"x": " smiled late"}, {"prompt": "a maid", "x": " left late"}]
        )
        assert "x has more tokens than y on every" in lines(pairs.check(demo_model))["leak"].text

    def test_findings_of_the_report_are_lines(self, demo_model):
        check = pairs_of(demo_model, [{}, {}, {"y": " smiled"}]).check(demo_model)
        assert lines(check)["repeated"].color == "yellow"
        assert lines(check)["equal-continuations"].color == "red"
        assert "report" not in lines(check)


def test_there_is_a_bar(demo_model, bias, capsys, monkeypatch):
    monkeypatch.setattr(pairs_check, "_BATCH", 4)
    bias.check(demo_model, progress=True)
    assert "check:   0%" in capsys.readouterr().err
    bias.check(demo_model)
    assert not capsys.readouterr().err


def test_on_the_command_line(monkeypatch, capsys, tmp_path, demo_model):
    path = tmp_path / "mine.csv"
    path.write_text("clean,corrupted,x,y\nthe maid,the nurse, smiled, left\n")
    columns = ["--data-option", "columns=clean:prompt,corrupted:counterfactual"]
    table = tmp_path / "out" / "table.csv"
    code, out, _ = run(
        monkeypatch, capsys, "pairs", "check", str(path), *columns, "--output", str(table)
    )
    expected = tk.load_pairs(path, demo_model, columns=columns[1].partition("=")[2])
    check = expected.check(demo_model)
    assert code == (check.color == "red")
    assert all(line.topic in out for line in check.lines)
    assert table.read_text().startswith("prompt,x,y,p_x,p_y,prefers_x")
