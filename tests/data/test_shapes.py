"""Files as researchers share them: what is read, and advice that works where it is followed.

The rows are made up, in the shape of the files that are named.
"""

from __future__ import annotations

import json
import re
import warnings

import pytest

import tracekit as tk
from tracekit.errors import DataFormatError, DataWarning

COUNTRIES = [("Chile", "Santiago"), ("Peru", "Lima"), ("Cuba", "Havana"), ("Iran", "Tehran")]
COUNTRIES += [("Italy", "Rome")]
WORDS = [{"input": a, "output": b} for a, b in COUNTRIES]
"""As of ericwtodd/function_vectors."""
SAMPLES = [{"subject": a, "object": b} for a, b in COUNTRIES]
RELATIONS = {
    "name": "capitals",
    "prompt_templates": ["The capital of {} is", "The capital city of {} is"],
    "prompt_templates_zs": ["What is the capital of {}? It is"],
    "properties": {"relation_type": "factual", "symmetric": False},
    "samples": SAMPLES,
}
"""As of evandez/relations."""
TASK = {
    "source": "made up",
    "templates": ["The {subject} near the {object}"],
    "label": "subject",
    "result_prepend_space": True,
    "labels": {"singular": ["is", "was"], "plural": ["are", "were"]},
    "variables": {
        "subject": {"singular": ["guard", "clerk", "pilot"], "plural": ["guards", "pilots"]},
        "object": ["doctor", "actor", "teacher", "farmers", "actors"],
    },
}
"""As of aryamanarora/causalgym."""


def conditions(*sentences):
    return [
        {
            "condition_name": name,
            "regions": [
                {"region_number": number, "content": content}
                for number, content in enumerate(regions, start=1)
            ],
        }
        for name, regions in sentences
    ]


SUITE = {
    "meta": {"name": "number"},
    "region_meta": {"1": "intro", "2": "subject", "3": "verb"},
    "predictions": [{"type": "formula", "formula": "(3;%match%) < (3;%mismatch%)"}],
    "items": [
        {
            "item_number": number,
            "conditions": conditions(
                ("match", ["The", one, "is"]),
                ("mismatch", ["The", one, "are"]),
                ("match_plural", ["The", f"{one}s", "are"]),
            ),
        }
        for number, one in enumerate(("guard", "clerk", "pilot", "actor", "doctor"), start=1)
    ],
}
"""As a test suite of SyntaxGym."""


def refusal(data, model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        with pytest.raises(DataFormatError) as caught:
            tk.load_pairs(data, model, **options)
    return str(caught.value)


def code_in(message, start):
    """The Python from its start to the bracket that closes it."""
    code = message[message.index(start) :]
    depth = 0
    for number, sign in enumerate(code):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0 and sign in ")]}":
            return code[: number + 1]
    raise AssertionError(f"no end of the code in {message}")


@pytest.mark.parametrize("form", ["file", "memory"])
@pytest.mark.parametrize(
    ("data", "said", "names", "prompt"),
    [
        (WORDS, "function_vectors", {"rows": WORDS}, r"Q: \w+\nA:"),
        (RELATIONS, "evandez/relations", {"document": RELATIONS}, r"The capital (city )?of \w+ is"),
        (SAMPLES, "subjects and objects without a sentence", {"rows": SAMPLES}, r"\w+ belongs to"),
        (TASK, "causalgym", {"task": TASK}, r"The \w+ near the \w+"),
        ({"agr": TASK, "agr2": TASK}, "causalgym", {"task": TASK}, r"The \w+ near the \w+"),
    ],
    ids=["function_vectors", "relations", "samples", "a task", "causalgym"],
)
def test_the_advice_for_files_without_pairs_works(
    gpt2_tokenizer, tmp_path, form, data, said, names, prompt
):
    given = data
    if form == "file":
        given = tmp_path / "mine.json"
        given.write_text(json.dumps(data))
    message = refusal(given, gpt2_tokenizer)
    assert said in message
    assert "no pairs" in message
    code = code_in(message, "tk.PromptPairs.from_template")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # Five rows are few.
        pairs = eval(code, {"tk": tk, "model": gpt2_tokenizer, **names})
    assert len(pairs) >= 2
    for pair in pairs:
        assert re.fullmatch(prompt, pair.texts["prompt"])
        assert pair.texts["x"] != pair.texts["y"]
        assert pair.texts["x"].startswith(" ")
        assert pair.prompt_ids != pair.counterfactual.ids


def test_templates_are_not_dropped_where_columns_are_given(gpt2_tokenizer, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(RELATIONS))
    columns = {"subject": "prompt", "object": "x"}
    assert "evandez/relations" in refusal(path, gpt2_tokenizer, columns=columns)
    # The rows alone are what the user says they are.
    with pytest.warns(DataWarning):
        assert len(tk.load_pairs(SAMPLES, gpt2_tokenizer, columns=columns)) == 5


@pytest.mark.parametrize("data", [SUITE, SUITE["items"]], ids=["suite", "items"])
def test_a_test_suite_is_named(gpt2_tokenizer, tmp_path, data):
    path = tmp_path / "number.json"
    path.write_text(json.dumps(data))
    for given in (path, data):
        message = refusal(given, gpt2_tokenizer)
        assert "SyntaxGym" in message
        assert message.endswith("docs/question.md has the code.")


QUESTION = "Would you {}?\n\nChoices:\n (A) Yes\n (B) No\n\nAnswer:"
EVALS = [
    {
        "question": QUESTION.format(verb),
        "answer_matching_behavior": " (A)" if number % 2 else " (B)",
        "answer_not_matching_behavior": " (B)" if number % 2 else " (A)",
    }
    for number, verb in enumerate(("lie", "wait", "agree", "leave", "help"))
]
"""As of anthropics/evals."""
CAA = [{key: text.strip() for key, text in row.items()} for row in EVALS]
"""As of nrimsky/CAA: answers without a leading space, which `pairs.check` tries on the model."""


def lines(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_evaluations_by_question_are_read(gpt2_tokenizer, tmp_path):
    path = lines(tmp_path / "sycophancy.jsonl", EVALS)
    said = "'answer_matching_behavior' as x, 'answer_not_matching_behavior' as y"
    with pytest.warns(DataWarning) as caught:
        pairs = tk.load_pairs(path, gpt2_tokenizer)
    assert [pair.texts["x"] for pair in pairs] == [r["answer_matching_behavior"] for r in EVALS]
    assert [pair.texts["prompt"] for pair in pairs] == [row["question"] for row in EVALS]
    messages = [str(each.message) for each in caught]
    assert any(said in each for each in messages)
    # Both begin with ' ('.
    assert any("begin with the same token" in each for each in messages), messages


def test_answers_without_a_space_are_read_as_they_are(gpt2_tokenizer, tmp_path):
    with pytest.warns(DataWarning):
        pairs = tk.load_pairs(lines(tmp_path / "caa.jsonl", CAA), gpt2_tokenizer)
    assert pairs[0].texts["x"] == "(B)"


def test_other_columns_of_evaluations_are_left_out_as_the_error_says(gpt2_tokenizer, tmp_path):
    rows = [{**row, "statement": "I lie", "label_confidence": 0.9} for row in EVALS]
    message = refusal(rows, gpt2_tokenizer)
    columns = eval(message[message.index("columns=") + len("columns=") :])
    assert columns == {"statement": None, "label_confidence": None}
    with pytest.warns(DataWarning):
        assert len(tk.load_pairs(rows, gpt2_tokenizer, columns=columns)) == 5


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"source": "The maid", "sentiment": " slept"}, {"source": "prompt", "sentiment": "x"}),
        ({"id": 3, "source": "a", "to": " b"}, {"id": None, "source": "prompt", "to": "x"}),
        ({"prompt": "The maid", "next": " slept"}, {"next": "x"}),
        ({"sentence": "The maid", "z": 1, "next": " ran"}, {"z": None, "next": "x"}),
    ],
)
def test_advice_on_columns_works_when_it_is_followed(gpt2_tokenizer, row, columns):
    message = refusal([row], gpt2_tokenizer)
    advised = eval(message[message.index("columns=") + len("columns=") :])
    assert advised == columns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        assert len(tk.load_pairs([row], gpt2_tokenizer, columns=advised)) == 1
