"""Published formats of pairs: how a record of each becomes a row of `PromptPairs.from_text`.

`docs/question.md` lists them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tracekit.data.pair import count_shared
from tracekit.errors import DataFormatError

Row = dict[str, Any]
Decode = Callable[[int], str]
"""Text of a token."""


def _auto_circuit(record: Mapping[str, Any], decode: Decode) -> Row:
    right, wrong = record["answers"], record["wrong_answers"]
    sets = {"x_set": right, "y_set": wrong} if len(right) > 1 or len(wrong) > 1 else {}
    row = {"prompt": record["clean"], "counterfactual": record["corrupt"]}
    return {**row, "x": right[0], "y": wrong[0], **sets}


def _eap_ig(record: Mapping[str, Any], decode: Decode) -> Row:
    row = {"prompt": record["clean"], "counterfactual": record["corrupted"]}
    if "label" in record:
        # Greater-than: the last two digits of a year.
        year = int(record["label"])
        numbers = [f"{number:02d}" for number in range(100)]
        right, wrong = numbers[year + 1 :], numbers[: year + 1]
        return {**row, "x": right[0], "y": wrong[-1], "x_set": right, "y_set": wrong}
    x, y = decode(int(record["correct_idx"])), decode(int(record["incorrect_idx"]))
    if x.strip() not in record["clean"] or y.strip() not in record["clean"]:
        raise DataFormatError(
            f"The tokens {record['correct_idx']} and {record['incorrect_idx']} are {x!r} and {y!r} "
            f"for this model, and {record['clean']!r} has no such names. The file was written for "
            "another tokenizer: load it with that one, and write x and y as text."
        )
    return {**row, "x": x, "y": y}


def _feature_circuits(record: Mapping[str, Any], decode: Decode) -> Row:
    names = {"prompt": "clean_prefix", "counterfactual": "patch_prefix"}
    names |= {"x": "clean_answer", "y": "patch_answer"}
    return {key: record[name] for key, name in names.items()}


def _blimp(record: Mapping[str, Any], decode: Decode) -> Row | None:
    if record.get("two_prefix_prefix_good"):
        row = {"prompt": record["two_prefix_prefix_good"]}
        row["counterfactual"] = record["two_prefix_prefix_bad"]
        return {**row, "x": f" {record['two_prefix_word'].strip()}"}
    if record.get("one_prefix_prefix"):
        x, y = (f" {record[f'one_prefix_word_{side}'].strip()}" for side in ("good", "bad"))
        return {"prompt": record["one_prefix_prefix"], "x": x, "y": y}
    good, bad = record["sentence_good"].split(), record["sentence_bad"].split()
    shared = count_shared(good, bad)
    if shared in (0, len(good), len(bad)):
        return None
    x, y = (" " + " ".join(words[shared:]) for words in (good, bad))
    return {"prompt": " ".join(good[:shared]), "x": x, "y": y}


def _crows_pairs(record: Mapping[str, Any], decode: Decode) -> Row | None:
    more, less = record["sent_more"].split(), record["sent_less"].split()
    n_last = count_shared(more[::-1], less[::-1])
    if n_last in (0, len(more), len(less)):
        return None
    return {
        "prompt": " ".join(more[:-n_last]),
        "counterfactual": " ".join(less[:-n_last]),
        "x": " " + " ".join(more[-n_last:]),
    }


def _counterfact(record: Mapping[str, Any], decode: Decode) -> Row:
    rewrite = record["requested_rewrite"]
    if isinstance(rewrite, str):
        rewrite = json.loads(rewrite)
    prompt, subject = rewrite["prompt"].format(rewrite["subject"]), rewrite["subject"]
    x, y = (f" {rewrite[key]['str'].strip()}" for key in ("target_true", "target_new"))
    return {"prompt": prompt, "x": x, "y": y, **subject_span(prompt, subject)}


def subject_span(prompt: str, subject: str) -> Row:
    """The subject as a span, where it stands once in the prompt."""
    return {"spans": {"subject": subject}} if prompt.count(subject) == 1 else {}


FORMATS: Mapping[str, Callable[[Mapping[str, Any], Decode], Row | None]] = {
    "auto-circuit": _auto_circuit,
    "eap-ig": _eap_ig,
    "feature-circuits": _feature_circuits,
    "blimp": _blimp,
    "crows-pairs": _crows_pairs,
    "counterfact": _counterfact,
}
"""By name, a function that makes a row from a record, or None if the record has no pair."""


_PAIRLESS = json.loads(Path(__file__).with_name("without_pairs.json").read_text("utf-8"))
"""Kinds of documents from which pairs must first be made: `content`, `advice`, and lists of `keys`,
all of any one of which tell the kind; whether it `has_more` keys."""


def _is_kind(document: Any, kind: Mapping[str, Any]) -> bool:
    if not isinstance(document, Mapping):
        return False
    names = set(document)
    return any(names >= {*keys} if kind["has_more"] else names == {*keys} for keys in kind["keys"])


def check_holds_pairs(document: Any, path: str) -> None:
    """Refuses a document or a record from which pairs must first be made.

    Raises:
        DataFormatError: It names the code that makes pairs of it.
    """
    parts = list(document.values()) if isinstance(document, Mapping) else []
    for kind in _PAIRLESS:
        if _is_kind(document, kind) or (parts and all(_is_kind(part, kind) for part in parts)):
            raise DataFormatError(f"{path} holds {kind['content']}, and no pairs. {kind['advice']}")
