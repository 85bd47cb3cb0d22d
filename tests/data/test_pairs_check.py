"""Checks of pairs on a model: what it knows, and what would give x away."""

from __future__ import annotations

import json
import warnings
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.cli.conftest import run
from tracekit.data import pairs_report
from tracekit.errors import ConfigError, DataWarning, PairsError


@pytest.fixture(scope="module")
def bias(demo_model):
    return tk.load_dataset("demo-bias", demo_model)[:12]


def lines(check):
    return {line.topic: line for line in check.lines}


def pairs_of(model, changes, warn=False):
    """Sentences of the embedded model's words, each with the changes of a row."""
    row = {"prompt": "the maid", "counterfactual": "the nurse", "x": " smiled", "y": " left"}
    return tk.PromptPairs.from_text([{**row, **change} for change in changes], model, warn=warn)


class TestProbabilities:
    def test_they_are_those_of_the_tracer(self, demo_model, bias):
        table = bias.check(demo_model).table
        clean = tk.Tracer(demo_model, bias).engine.clean
        for column, log_probabilities in (("p_x", clean.x), ("p_y", clean.y)):
            expected = log_probabilities.exp()
            torch.testing.assert_close(
                torch.tensor(table[column].to_numpy()), expected.double(), rtol=1e-4, atol=1e-7
            )
        assert table["prefers_x"].tolist() == (clean.x > clean.y).tolist()

    def test_prompts_and_continuations_of_several_lengths(self, any_model):
        pairs = tiny.pairs(6)
        clean = tk.Tracer(any_model, pairs).engine.clean
        found = torch.tensor(pairs.check(any_model).table["p_x"].to_numpy())
        torch.testing.assert_close(found, clean.x.exp().double(), rtol=1e-4, atol=1e-7)

    def test_continuations_that_are_read_out_of_one_run(self, demo_model):
        rows = [([11, 12], [13, 14]), ([11, 12, 13], [15]), ([11, 12, 13], [16])]
        pairs = tk.PromptPairs.from_ids(
            [{"prompt_ids": a, "counterfactual_ids": a[::-1], "x_ids": b} for a, b in rows]
        )
        clean = tk.Tracer(demo_model, pairs, metric="probability-drop").engine.clean
        found = torch.tensor(pairs.check(demo_model).table["p_x"].to_numpy())
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
        assert (wrong.color, "Exchange x and y, or the prompts" in str(wrong)) == ("red", True)
        some = tk.PromptPairs.from_text([*turned[:8], bias[8].texts], demo_model)
        assert "pairs.known(model) keeps" in lines(some.check(demo_model))["task"].text

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
    monkeypatch.setattr(pairs_report, "_BATCH", 4)
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


class TestForms:
    """Probabilities are planted, by the text of the prompt and of x; others are near 0."""

    THINKS = (
        "{% for m in messages %}Q: {{ m.content }}\nA:\n{% endfor %}"
        "{% if think %}</think>{% endif %}"
    )
    BLOCK = "<think>\n\n</think>\n\n"

    def line(self, monkeypatch, tokenizer, rows, planted, **options):
        pairs = tk.PromptPairs.from_text(rows, tokenizer, warn=False, **options)
        decode = tokenizer.decode

        def of(sequences, *_):
            values = [(planted.get((decode(a), decode(b)), 1e-6), len(b)) for a, b in sequences]
            return np.array([whole ** (1 / n) for whole, n in values])

        monkeypatch.setattr(pairs_report, "_mean_probabilities", of)
        model = SimpleNamespace(tokenizer=tokenizer)
        return lines(pairs.check(model))

    @pytest.mark.parametrize(
        ("prompt", "x", "planted", "color", "text"),
        [
            (
                "It is",
                "Paris",
                {("It is", " Paris"): 0.6},
                "red",
                "with one leading space, on 1 of 1: 0.6",
            ),
            (
                "It is",
                " Paris",
                {("It is", " Paris"): 0.6},
                "green",
                "0.6, and 1e-06 without its lea",
            ),
            ("It: ", " Paris", {("It: ", "Paris"): 0.6}, "red", "without its leading space, on 1"),
            (
                "It is ",
                "Paris",
                {("It is", " Paris"): 0.6},
                "red",
                "and none at the end of the prompt",
            ),
            (
                "It is ",
                " Paris",
                {("It is", " Paris"): 0.6},
                "red",
                "and none at the end of the prom",
            ),
            (
                "It is",
                " a b",
                {("It is", " a b"): 0.5},
                "green",
                "0.5, and 1e-06 without its leading",
            ),
            ("It is", "Paris", {}, "green", "x has a median probability of 1e-06, and 1e-06 with"),
        ],
    )
    def test_a_leading_space(self, monkeypatch, gpt2_tokenizer, prompt, x, planted, color, text):
        rows = [{"prompt": prompt, "x": x}]
        form = self.line(monkeypatch, gpt2_tokenizer, rows, planted)["form"]
        assert (form.color, text in form.text) == (color, True), form

    @pytest.mark.parametrize(
        ("prompt", "parts", "better", "text"),
        [
            ("It is", {"x": "  Paris"}, " Paris", "x is likelier with one leading space"),
            ("It is", {"y": "Rome"}, " Rome", "y is likelier with one leading space"),
            ("It is", {"y": "  Rome"}, " Rome", "y is likelier with one leading space"),
            ("It: ", {"y": " Rome"}, "Rome", "y is likelier without its leading space"),
            ("It is ", {"y": "Rome"}, " Rome", "y is likelier with a leading space, and none at"),
            ("It is", {"x_set": ["Paris", "London"]}, " Paris", "x_set is likelier with one lead"),
            ("It is", {"y_set": ["London", " Spain"]}, " London", "y_set is likelier with one l"),
            ("It is\n", {"y_set": [" London"]}, "London", "y_set is likelier without its lead"),
        ],
    )
    def test_of_y_and_of_token_sets(self, monkeypatch, gpt2_tokenizer, prompt, parts, better, text):
        rows = [{"prompt": prompt, "x": " Madrid", "y": " Berlin", **parts}]
        spaced = prompt.rstrip(" ") if better.startswith(" ") else prompt
        checks = self.line(monkeypatch, gpt2_tokenizer, rows, {(spaced, better): 0.3})
        topic = "form" if "x" in parts else f"form-of-{next(iter(parts))}"
        assert (checks[topic].color, checks[topic].text.startswith(text)) == ("red", True)
        assert " on 1 of 1: 0.3, and " in checks[topic].text
        # Given so, nothing is said of it.
        given = better if topic in ("form", "form-of-y") else [better]
        rows = [{**rows[0], "prompt": spaced, next(iter(parts)): given}]
        checks = self.line(monkeypatch, gpt2_tokenizer, rows, {(spaced, better): 0.3})
        assert [line.color for name, line in checks.items() if name.startswith("form")] == ["green"]

    def test_a_set_is_the_sum_of_its_texts(self, monkeypatch, gpt2_tokenizer):
        rows = [{"prompt": "It is", "x": " Paris", "x_set": ["Paris", "London"]}]
        planted = {("It is", " Paris"): 0.5, ("It is", " London"): 0.25, ("It is", "London"): 0.1}
        form = self.line(monkeypatch, gpt2_tokenizer, rows, planted)["form-of-x_set"]
        assert "on 1 of 1: 0.75, and 0.1 as it is" in form.text

    @pytest.mark.parametrize(("count", "color"), [(1, "green"), (3, "yellow"), (8, "red")])
    def test_some_of_many(self, monkeypatch, gpt2_tokenizer, count, color):
        rows = [{"prompt": f"It {n} is", "x": "Paris"} for n in range(16)]
        planted = {(f"It {n} is", " Paris"): 0.5 for n in range(count)}
        assert self.line(monkeypatch, gpt2_tokenizer, rows, planted)["form"].color == color

    @pytest.mark.parametrize(
        ("template", "by"),
        [
            (THINKS, "last message of the ass"),
            (THINKS + "{{ enable_thinking }}", "chat={'enable_th"),
        ],
    )
    def test_an_empty_think_block(self, monkeypatch, gpt2_tokenizer, template, by):
        tokenizer = deepcopy(gpt2_tokenizer)
        tokenizer.chat_template = template
        rows, asked = [{"prompt": "hi", "x": "Paris"}], "Q: hi\nA:\n"
        planted = {(asked + self.BLOCK, "Paris"): 0.5, (asked, "Paris"): 0.01}
        form = self.line(monkeypatch, tokenizer, rows, planted, chat=True)["form"]
        assert (form.color, by in form.text) == ("red", True)
        assert "after an empty think block, on 1 of 1: 0.5, and 0.01 as it is" in form.text
        plain = self.line(monkeypatch, tokenizer, [{**rows[0], "prompt": asked}], planted)["form"]
        assert "think" not in plain.text

    def test_a_think_block_that_is_there_or_begun(self, monkeypatch, gpt2_tokenizer):
        tokenizer = deepcopy(gpt2_tokenizer)
        rows = [{"prompt": "hi", "x": "Paris"}]
        for begun, ends in (("<think>\n", "\n</think>\n\n"), (self.BLOCK, None)):
            tokenizer.chat_template = self.THINKS + begun
            asked = f"Q: hi\nA:\n{begun.rstrip() if ends is None else begun}"
            planted = {(f"{asked}{ends}", "Paris"): 0.5}
            form = self.line(monkeypatch, tokenizer, rows, planted, chat=True)["form"]
            assert ("think" in form.text) == (ends is not None)

    def test_a_low_probability(self, monkeypatch, gpt2_tokenizer):
        rows = [{"prompt": "It is", "x": " Paris", "y": " Rome"}]
        for p, color in ((0.005, "yellow"), (0.5, "green")):
            planted = {("It is", " Paris"): p}
            task = self.line(monkeypatch, gpt2_tokenizer, rows, planted)["task"]
            assert (task.color, "That is low" in task.text) == (color, color == "yellow")

    SIDES = (("dog", " Yes", " No"), ("trout", " No", " Yes")) * 10

    @pytest.mark.parametrize(("n_yes", "is_bias"), [(0, True), (2, True), (3, False)])
    def test_one_answer_whatever_the_prompt(self, monkeypatch, gpt2_tokenizer, n_yes, is_bias):
        rows = [
            {"prompt": f"Is a {animal} {n} a mammal?", "x": x, "y": y}
            for n, (animal, x, y) in enumerate(self.SIDES)
        ]
        said = [" Yes" if n < 2 * n_yes and n % 2 else " No" for n in range(20)]
        planted = {(row["prompt"], each): 0.5 for row, each in zip(rows, said, strict=True)}
        task = self.line(monkeypatch, gpt2_tokenizer, rows, planted)["task"]
        assert ("whatever the prompt: this is a bias, not knowledge" in task.text) == is_bias
        assert (f"' No' on {20 - n_yes} of 20" in task.text) == is_bias
        assert ("do not filter them by pairs.known" in task.text) == is_bias
        assert ("known(model) keeps" in task.text) == (not is_bias)
        assert task.color == ("yellow" if is_bias else "red")
        pairs = tk.PromptPairs.from_text(rows, gpt2_tokenizer)
        model = SimpleNamespace(tokenizer=gpt2_tokenizer)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            known = pairs.known(model)
        assert len(known) == 10 - n_yes
        shown = f"All {len(known)} pairs that are known have one x. The model prefers ' No' on"
        assert any(str(each.message).startswith(shown) for each in caught) == is_bias

    def test_an_answer_that_is_never_x_is_no_bias(self, monkeypatch, gpt2_tokenizer):
        rows = [{"prompt": f"It {n} is", "x": " Paris", "y": " Rome"} for n in range(8)]
        planted = {(row["prompt"], " Rome"): 0.5 for row in rows}
        task = self.line(monkeypatch, gpt2_tokenizer, rows, planted)["task"]
        assert (task.color, "bias" in task.text, "Exchange x and y" in task.text) == (
            *("red", False),
            True,
        )


@pytest.mark.soak
@pytest.mark.real
def test_a_missing_space_in_a_file(real_model, tmp_path):
    sides = [("France", "Paris", "Rome"), ("Spain", "Madrid", "Berlin")]
    sides += [("Italy", "Rome", "Paris"), ("Germany", "Berlin", "Madrid")]
    for space, color in (("", "red"), (" ", "green")):
        rows = [f"The capital of {a} is,{space}{x},{space}{y}" for a, x, y in sides]
        path = tmp_path / "capitals.csv"
        path.write_text("\n".join(["prompt,x,y", *rows]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            check = tk.load_pairs(path, real_model).check(real_model)
        assert check.color == lines(check)["form"].color == color
        assert "0.576" in lines(check)["form"].text
        assert ("form-of-y" in lines(check)) == (color == "red")


@pytest.mark.parametrize(
    ("labels", "n_own", "color", "text"),
    [
        ("aabb", 4, "yellow", "2 independent groups in 4 examples. An interval needs 3"),
        ("aabc", 4, "green", "3 independent groups in 4 examples."),
        ([None] * 4, 4, None, ""),
        ([None] * 4, 2, "yellow", "2 independent examples in 2 examples; held out: 2 ind"),
        ("abcdef", 3, "green", "3 independent groups in 3 examples; held out: 3 independent g"),
        (
            "aabbcc",
            4,
            "red",
            "2 independent groups in 4 examples; held out: 1 independent group in",
        ),
        (
            "abcaaa",
            3,
            "red",
            "3 independent groups in 3 examples; held out: 1 independent group in",
        ),
    ],
)
def test_groups_are_counted_in_each_part(demo_model, bias, labels, n_own, color, text):
    pairs = bias[: len(labels)].grouped(labels)
    parts = [pairs[:n_own], pairs[n_own:]] if n_own < len(labels) else []
    line = lines(pairs.check(demo_model, parts=parts)).get("groups")
    assert (line and line.color) == color
    assert line is None or line.text.startswith(text)


@pytest.mark.filterwarnings("ignore::tracekit.errors.DataWarning")
def test_a_share_that_is_held_out_on_the_command_line(monkeypatch, capsys, tmp_path, bias):
    path = tmp_path / "mine.jsonl"
    rows = [{**pair.texts, "group": "abcd"[n // 3]} for n, pair in enumerate(bias)]
    path.write_text("\n".join(map(json.dumps, rows)))
    check = ("pairs", "check", str(path), "--json")
    for options, color in (((), "green"), (("--held-out", "0.5", "--seed", "3"), "yellow")):
        _, out, _ = run(monkeypatch, capsys, *check, *options)
        (row,) = [row for row in json.loads(out)["tables"]["checks"] if row["check"] == "groups"]
        assert row["color"] == color
    assert row["finding"].startswith("2 independent groups in 6 examples; held out: 2 independent")


class TestBeginnings:
    """x and y that begin alike: a warning when pairs are made, a line of the check."""

    SHARED = "x and y begin with the same token 'ironed' in {} of {} pairs: move it into the prompt"

    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            ([(" ironed sheets", " ironed shirts")] * 2, [SHARED.format(2, 2)]),
            (
                [(" ironed sheets", " ironed shirts"), (" smiled", " left")],
                [SHARED.format(1, 2)],
            ),
            (
                [(" was lying under", " was lying on")] * 2,
                ["x and y begin with the same tokens 'was' 'lying' in 2 of 2 pairs: move them"],
            ),
            (
                [(" ironed", " ironed sheets"), (" was lying", " was")],
                ["One of x and y is the beginning of the other in 2 of 2 pairs (example 0: "],
            ),
            (
                [(" ironed", " ironed sheets"), (" ironed sheets", " ironed shirts")],
                [SHARED.format(1, 2), "One of x and y is the beginning of the other in 1 of 2"],
            ),
            ([(" ironed sheets", " ironed sheets"), (" smiled", " left"), (" smiled", None)], []),
        ],
    )
    def test_one_warning_and_one_line(self, demo_model, answers, expected):
        nouns = ("maid", "nurse", "mechanic")
        changes = [
            {"prompt": f"the {noun}", "counterfactual": "the baker", "x": x, "y": y}
            for noun, (x, y) in zip(nouns, answers, strict=False)
        ]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pairs = pairs_of(demo_model, changes, warn=True)
            pairs[:1].reversed()
        texts = [str(each.message) for each in caught if each.category is DataWarning]
        assert len(texts) == len(expected)
        assert all(t.startswith(each) for t, each in zip(texts, expected, strict=True))
        assert all(each.filename == __file__ for each in caught)
        found = lines(pairs.check(demo_model)).get("beginnings")
        assert (found and (found.color, found.text)) == (
            ("yellow", " ".join(texts)) if texts else None
        )

    def test_pairs_of_ids_are_named_by_ids(self):
        rows = [
            {"prompt_ids": [5, 6, n], "x_ids": [30 + n % 4, 40], "y_ids": [30 + n % 4, 41]}
            for n in range(8)
        ]
        with pytest.warns(DataWarning, match=r"same token 30, 31, 32, \.\.\. in 8 of 8 pairs"):
            tk.PromptPairs.from_ids(rows)

    def test_balance_and_leaks_look_at_the_token_that_differs(self, demo_model):
        nouns = ("maid", "nurse", "mechanic", "baker")
        sides = [(" ironed sheets", " ironed shirts"), (" ironed shirts", " ironed sheets")]
        changes = [
            {"prompt": f"the {noun}", "counterfactual": "the cook", "x": x, "y": y}
            for noun in nouns
            for x, y in sides
        ]
        with pytest.warns(DataWarning, match="begin with the same token"):
            checked = lines(pairs_of(demo_model, changes, warn=True).check(demo_model))
        balance = checked["balance"]
        assert balance.color == "green"
        assert balance.text.startswith("The commonest x goes on, after what it shares with y, with")
        assert ": 4 of 8." in balance.text
        assert checked["leak"].color == "green"

    def test_the_command_line_says_it(self, monkeypatch, capsys, tmp_path):
        row = {"prompt": "the maid", "counterfactual": "the nurse"}
        rows = [{**row, "x": " ironed sheets", "y": " ironed shirts"}] * 2
        path = tmp_path / "mine.json"
        path.write_text(json.dumps(rows))
        _, out, err = run(monkeypatch, capsys, "pairs", "check", path, "--model", "demo")
        for text in (out, err):
            assert self.SHARED.format(2, 2) in " ".join(text.split())
