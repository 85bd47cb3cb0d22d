"""Files and tables as people have them: other names of columns, published formats, row numbers."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import tracekit as tk
from tests.cli.conftest import run
from tracekit.data.from_file import read_rows
from tracekit.errors import (
    ConfigError,
    DataFormatError,
    DataWarning,
    PairsError,
    UnknownNameError,
)

ROWS = [
    {"prompt": "the maid", "counterfactual": "the nurse", "x": " slept", "y": " ran"},
    {"prompt": "a maid", "counterfactual": "a nurse", "x": " slept", "y": " ran"},
]
OTHER = {"prompt": "clean", "counterfactual": "corrupted", "x": "answer", "y": "wrong"}
RENAMED = [{OTHER[key]: text for key, text in row.items()} for row in ROWS]
COLUMNS = {theirs: ours for ours, theirs in OTHER.items()}


class Dataset:
    """A `datasets.Dataset`, as far as it is read."""

    def __iter__(self):
        return iter(RENAMED)


@pytest.fixture(scope="module")
def expected(demo_model):
    return tk.PromptPairs.from_text(ROWS, demo_model).fingerprint


class TestTables:
    @pytest.mark.parametrize(
        "table", [RENAMED, pd.DataFrame(RENAMED), Dataset()], ids=["list", "pandas", "datasets"]
    )
    def test_of_every_sort(self, demo_model, expected, table):
        pairs = tk.load_pairs(table, demo_model, columns=COLUMNS, name="mine")
        assert (pairs.fingerprint, pairs.name) == (expected, "mine")

    @pytest.mark.parametrize("document", [RENAMED, {"about": "x", "prompts": RENAMED}])
    def test_json(self, demo_model, expected, tmp_path, document):
        path = tmp_path / "mine.json"
        path.write_text(json.dumps(document))
        options = {"columns": "clean:prompt,corrupted:counterfactual,answer:x,wrong:y"}
        # As the command line gives them.
        pairs = tk.load_dataset(str(path), demo_model, **options)
        assert (pairs.fingerprint, pairs.name) == (expected, "mine")

    def test_row_numbers_are_left_out_with_a_word(self, demo_model, expected, tmp_path):
        path = tmp_path / "mine.csv"
        pd.DataFrame(ROWS).to_csv(path)
        with pytest.warns(DataWarning, match="The column '' of .* numbers its rows, and is left"):
            assert tk.load_pairs(path, demo_model).fingerprint == expected

    def test_missing_cells(self, demo_model):
        frame = pd.DataFrame([{**ROWS[0], "weight": None}, {**ROWS[1], "weight": 2.0}])
        said = "1 of 2 rows of the DataFrame have no weight \\(row 0\\), and count as 1. Give each"
        with pytest.warns(DataWarning, match=said):
            assert tk.load_pairs(frame, demo_model).weights is not None

    def test_columns_that_are_left_out(self, demo_model, expected):
        rows = [{**row, "notes": "!"} for row in ROWS]
        with pytest.raises(
            DataFormatError,
            match="unknown column 'notes'.* or to nothing: columns={'notes': N",
        ):
            tk.load_pairs(rows, demo_model)
        assert tk.load_pairs(rows, demo_model, columns={"notes": None}).fingerprint == expected
        rows[0] |= {"topic": "?", "author": "?"}
        with pytest.raises(DataFormatError, match=r"column 'author' \(also 'notes', 'topic'\)\. K"):
            tk.load_pairs(rows, demo_model)

    @pytest.mark.parametrize(
        ("table", "options", "error", "text"),
        [
            (ROWS, {"columns": {"z": "x"}}, DataFormatError, "columns maps 'z', which the list do"),
            (5, {}, DataFormatError, "cannot be read from a int. Give a file, a DataFrame"),
            (ROWS, {"format": "csv"}, UnknownNameError, "Unknown format 'csv'. "),
            (ROWS, {"format": "blimp", "columns": {}}, ConfigError, "A format knows its columns"),
            (ROWS, {"format": "blimp"}, DataFormatError, "Record 0 .* it lacks 'sentence_good'"),
        ],
    )
    def test_what_is_no_table(self, demo_model, table, options, error, text):
        with pytest.raises(error, match=text):
            tk.load_pairs(table, demo_model, **options)

    def test_a_json_file_without_a_list(self, demo_model, tmp_path):
        path = tmp_path / "mine.json"
        path.write_text('{"a": 1}')
        with pytest.raises(DataFormatError, match="holds no list of objects. Write a JSON list"):
            tk.load_pairs(path, demo_model)


IOI = "Then, Aaron and Amber were working at the house. {} decided to give a drink to"
RECORDS = {
    # As in the files that their authors publish, shortened.
    "auto-circuit": (
        {
            "clean": "The capital of Chile is the city of",
            "corrupt": "The capital of Sweden is the city of",
            "answers": [" Santiago"],
            "wrong_answers": [" Stockholm"],
        },
        ("The capital of Chile is the city of", "The capital of Sweden is the city of"),
        (" Santiago", " Stockholm"),
    ),
    "feature-circuits": (
        {
            "clean_prefix": "The lawyer",
            "patch_prefix": "The lawyers",
            "clean_answer": " has",
            "patch_answer": " have",
            "case": "singular",
        },
        ("The lawyer", "The lawyers"),
        (" has", " have"),
    ),
    "crows-pairs": (
        {
            "": "1",
            "sent_more": "The poor are really ignorant about how to handle the money.",
            "sent_less": "The rich are really ignorant about how to handle the money.",
            "stereo_antistereo": "stereo",
        },
        ("The poor", "The rich"),
        (" are really ignorant about how to handle the money.", None),
    ),
    "counterfact": (
        {
            "case_id": 0,
            "requested_rewrite": {
                "prompt": "The mother tongue of {} is",
                "subject": "Danielle Darrieux",
                "target_new": {"str": "English"},
                "target_true": {"str": "French"},
            },
        },
        ("The mother tongue of Danielle Darrieux is", None),
        (" French", " English"),
    ),
}
BLIMP = {"sentence_good": "A hat is good.", "sentence_bad": "A hat are good.", "UID": "agreement"}
RECORDS["blimp"] = (BLIMP, ("A hat", None), (" is good.", " are good."))
PREFIX = {"one_prefix_prefix": "A hat", "one_prefix_word_good": "is", "one_prefix_word_bad": "are"}
RECORDS["blimp, one prefix"] = ({**BLIMP, **PREFIX}, ("A hat", None), (" is", " are"))
PREFIXES = {"two_prefix_prefix_good": "A hat", "two_prefix_prefix_bad": "A hats"}
RECORDS["blimp, two prefixes"] = (
    {**BLIMP, **PREFIXES, "two_prefix_word": "is"},
    ("A hat", "A hats"),
    (" is", None),
)


class TestPublishedFormats:
    @pytest.mark.parametrize("name", RECORDS)
    def test_records_become_pairs(self, gpt2_tokenizer, name):
        record, (prompt, counterfactual), (x, y) = RECORDS[name]
        options = {"format": name.partition(",")[0], "on_mismatch": "skip"}
        (pair,) = tk.load_pairs([record], gpt2_tokenizer, **options)
        texts = {"prompt": prompt, "counterfactual": counterfactual, "x": x, "y": y}
        assert pair.texts == {key: text for key, text in texts.items() if text is not None}

    def test_subjects_are_spans(self, gpt2_tokenizer):
        (pair,) = tk.load_pairs([RECORDS["counterfact"][0]], gpt2_tokenizer, format="counterfact")
        assert gpt2_tokenizer.decode([pair.prompt_ids[i] for i in pair.spans["subject"]]) == (
            " Danielle Darrieux"
        )

    def test_answers_of_eap_ig_are_tokens_of_a_model(self, gpt2_tokenizer, tmp_path):
        ids = [gpt2_tokenizer.encode(f" {name}")[0] for name in ("Amber", "Aaron")]
        frame = pd.DataFrame(
            {"clean": [IOI.format("Aaron")], "corrupted": [IOI.format("Tom")]}
        ).assign(corrupted_hard=IOI.format("Amber"), correct_idx=ids[0], incorrect_idx=ids[1])
        path = tmp_path / "ioi.csv"
        frame.to_csv(path)
        (pair,) = tk.load_pairs(path, gpt2_tokenizer, format="eap-ig")
        assert (pair.x_ids, pair.y_ids) == ((ids[0],), (ids[1],))
        frame.assign(correct_idx=47764).to_csv(path)
        with pytest.raises(DataFormatError, match="was written for another tokenizer"):
            tk.load_pairs(path, gpt2_tokenizer, format="eap-ig")

    def test_years_of_eap_ig(self, gpt2_tokenizer):
        text = "The contract lasted from the year {} to the year 13"
        record = {"clean": text.format(1352), "corrupted": text.format(1301), "label": "52"}
        (pair,) = tk.load_pairs([record], gpt2_tokenizer, format="eap-ig", on_mismatch="skip")
        assert (pair.texts["x"], pair.texts["y"]) == ("53", "52")
        assert (len(pair.x_set_ids), len(pair.y_set_ids)) == (47, 53)

    def test_sentences_that_share_nothing_are_named(self, gpt2_tokenizer):
        other = {"sent_more": "He is from Iraq.", "sent_less": "He is from Canada."}
        records = [RECORDS["crows-pairs"][0], other]
        pairs = tk.load_pairs(records, gpt2_tokenizer, format="crows-pairs")
        assert (len(pairs), len(pairs.skipped)) == (1, 1)
        assert pairs.skipped[0].startswith("example 1: its two sentences share no")


WORDS = ("NA", "None", "null", "nan", "NaN", "N/A")


class TestWordsThatPandasTakesForNothing:
    @pytest.mark.parametrize("word", WORDS)
    def test_they_are_words_in_files(self, gpt2_tokenizer, tmp_path, word):
        rows = [{key: word for key in (*ROWS[0], "group")}, {**ROWS[0], "group": "a"}]
        pd.DataFrame(rows).to_csv(tmp_path / "mine.csv", index=False)
        lines = "\n".join(map(json.dumps, rows))
        (tmp_path / "mine.jsonl").write_text(lines)
        for path in tmp_path.iterdir():
            pairs = tk.load_pairs(path, gpt2_tokenizer, on_mismatch="skip")
            assert set(pairs[0].texts.values()) == {word}
            assert pairs[0].group == word

    @pytest.mark.parametrize("key", ["prompt", "x", "counterfactual", "y", "group"])
    @pytest.mark.parametrize("dtype", [None, "string", "object"])
    def test_read_by_pandas_they_are_named(self, gpt2_tokenizer, tmp_path, key, dtype):
        rows = [{**row, "group": name} for row, name in zip(ROWS, "ab", strict=True)]
        rows[1][key] = "NA"
        pd.DataFrame(rows).to_csv(tmp_path / "mine.csv", index=False)
        frame = pd.read_csv(tmp_path / "mine.csv", dtype=dtype)
        text = f"The {key} of 1 of 2 rows of the DataFrame is empty .row 1.*keep_default_na=False"
        if key in ("prompt", "x"):
            with pytest.raises(DataFormatError, match=text):
                tk.load_pairs(frame, gpt2_tokenizer)
        else:
            with pytest.warns(DataWarning, match=text):
                tk.load_pairs(frame, gpt2_tokenizer, on_mismatch="skip")
        kept = pd.read_csv(tmp_path / "mine.csv", dtype=dtype, keep_default_na=False)
        assert read_rows(kept)[0] == rows

    @pytest.mark.parametrize("key", ["group", "x", "prompt"])
    def test_a_missing_whole_number(self, gpt2_tokenizer, key):
        frame = pd.DataFrame([{**row, "group": "a"} for row in ROWS])
        frame[key] = [1.0, 2.0]
        with pytest.raises(PairsError, match=rf"The {key} of example 0 .*1\.0.* dtype=str"):
            tk.load_pairs(frame, gpt2_tokenizer)
        frame[key] = pd.array([1, None], dtype="Int64")
        if key == "group":
            with pytest.warns(DataWarning, match="The group of 1 of 2 rows"):
                assert tk.load_pairs(frame, gpt2_tokenizer)[0].group == "1"

    def test_a_byte_order_mark_is_no_part_of_a_name(self, gpt2_tokenizer, tmp_path):
        path = tmp_path / "mine.json"
        for text in (json.dumps(ROWS), "\n".join(map(json.dumps, ROWS))):
            path.write_text(text, encoding="utf-8-sig")
            assert len(tk.load_pairs(path, gpt2_tokenizer)) == 2


GUESSED = {
    "prompt": ("Prompt", " CLEAN ", "clean_prompt", "Question"),
    "counterfactual": ("Corrupted Prompt", "corrupted", "corrupt-prompt", "Counterfactual"),
    "x": ("answer", "Target", "Correct_Answer", "X"),
    "y": ("wrong answer", "Wrong", "INCORRECT", "distractor"),
    "group": ("template", "Template ID", "cluster", "Group"),
}


@pytest.mark.parametrize("number", range(4))
def test_columns_are_guessed_by_their_usual_names(gpt2_tokenizer, number):
    own = [{**row, "group": f"t{n}"} for n, row in enumerate([*ROWS, *ROWS])]
    rows = [{GUESSED[key][number]: text for key, text in row.items()} for row in own]
    with pytest.warns(DataWarning, match="To change this, pass columns") as caught:
        found, _ = read_rows(rows)
    assert found == own
    (said,) = [str(each.message) for each in caught]
    for key, names in GUESSED.items():
        assert f"{names[number]!r} as {key}" in said, said


@pytest.mark.parametrize(
    ("row", "columns", "typed"),
    [
        # Two that may be one, one that is there already, and what the user said stays.
        (
            {"answer": " a", "target": " b"},
            {"answer": "x", "target": None},
            "columns=answer:x,target:",
        ),
        ({"x": " a", "answer": " b"}, {"answer": None}, "columns=answer:"),
        ({"x": " a", "weigth": 1}, {"weigth": "weight"}, "columns=weigth:weight"),
        ({"x": " a", "my note": 1}, {"my note": None}, "'columns=my note:'"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for_as_options_are_written(row, columns, typed):
    rows = [{"clean": "the maid", **row}]
    for on_command_line, option in ((True, f"--data-option {typed}"), (False, f"{columns=}")):
        with pytest.raises(DataFormatError) as caught:
            read_rows(rows, typed=on_command_line)
        assert str(caught.value).endswith(f"or to nothing: {option}")
    found, _ = read_rows(rows, columns=columns)
    assert set(found[0]) <= {"prompt", "x", "weight"}


@pytest.mark.parametrize(
    ("columns", "option"),
    [
        ([], "columns=note:"),
        # A field that is none, and the direction the wrong way round.
        (["columns=note:notes"], "columns=note:"),
        (["columns=answer:x,note:grop"], "columns=answer:x,note:group"),
        (["columns=x:answer"], "maps 'x', which {} does not have, to 'answer'. Map one of"),
    ],
)
def test_the_options_of_a_command_are_in_its_errors(monkeypatch, capsys, tmp_path, columns, option):
    path = tmp_path / "mine.csv"
    path.write_text("prompt,Corrupted prompt,answer,note\nthe maid,the nurse, smiled,!\n")
    given = [part for each in columns for part in ("--data-option", each)]
    code, _, err = run(monkeypatch, capsys, "pairs", "check", path, *given)
    assert (code, "columns={" in err) == (1, False)
    assert option.format(path) in err
    if option.startswith("columns"):
        given = ("--data-option", option)
        assert f"--data-option {option}\n" in err
        _, _, err = run(monkeypatch, capsys, "pairs", "check", path, *given)
        assert "Error" not in err
        assert err.count("'Corrupted prompt' as counterfactual") == 1
