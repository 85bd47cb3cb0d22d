"""Published formats of pairs: how a record of each becomes a row of `PromptPairs.from_text`.

auto-circuit       JSON of Miller et al. 2024: `clean`, `corrupt`, `answers`, `wrong_answers`
eap-ig             CSV of Hanna et al. 2024: `clean`, `corrupted`, and answers as token ids
(`correct_idx`, `incorrect_idx`) or as a year (`label`)
feature-circuits   JSON Lines of Marks et al. 2024, subject-verb agreement: `clean_prefix`, ...
blimp              JSON Lines of Warstadt et al. 2020
crows-pairs        CSV of Nangia et al. 2020; x is what both sentences end with
counterfact        JSON of Meng et al. 2022, without a counterfactual prompt: trace with noise

Some files hold what pairs are made of, and no pairs. Errors name them, and the code that makes
pairs of them (`refuse_without_pairs`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
        right, wrong = ([f"{n:02d}" for n in r] for r in (range(year + 1, 100), range(year + 1)))
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
    shared = _n_shared(good, bad)
    if shared in (0, len(good), len(bad)):
        return None
    x, y = (" " + " ".join(words[shared:]) for words in (good, bad))
    return {"prompt": " ".join(good[:shared]), "x": x, "y": y}


def _n_shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Words that both begin with."""
    same = [a == b for a, b in zip(first, second, strict=False)]
    return same.index(False) if False in same else len(same)


def _crows_pairs(record: Mapping[str, Any], decode: Decode) -> Row | None:
    more, less = record["sent_more"].split(), record["sent_less"].split()
    n_shared = _n_shared(more[::-1], less[::-1])
    if n_shared in (0, len(more), len(less)):
        return None
    prompts = (" ".join(words[:-n_shared]) for words in (more, less))
    row = dict(zip(("prompt", "counterfactual"), prompts, strict=True))
    return {**row, "x": " " + " ".join(more[-n_shared:])}


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
"""By name, a row from a record; None where the record makes none."""


_OF_WORDS = (
    """tk.PromptPairs.from_template({prompts}, model, x='{{{x}}}', y='{{{x}2}}', """
    """counterfactual={{'{field}': '{field}2', '{x}': '{x}2'}}, """
    """values={{('{field}', '{x}'): {rows}}}, n={n})"""
)
"""Code that puts words into sentences; the foil is the answer of the counterfactual's word."""


def refuse_without_pairs(document: Any, path: str) -> None:
    """Refuses a document, or a record, that holds what pairs are made of and no pairs.

    Raises:
        DataFormatError: It names the code that makes pairs of it.
    """
    for is_of, content, advice in _WITHOUT_PAIRS:
        if isinstance(document, Mapping) and is_of(document):
            raise DataFormatError(f"{path} holds {content}, and no pairs. {advice}")


def _is_task(entry: Any) -> bool:
    """Whether it is a task of causalgym."""
    return isinstance(entry, Mapping) and {"templates", "label", "labels", "variables"} <= {*entry}


def _has_tasks(document: Mapping[str, Any]) -> bool:
    return _is_task(document) or (bool(document) and all(map(_is_task, document.values())))


_WITHOUT_PAIRS: tuple[tuple[Callable[[Mapping[str, Any]], bool], str, str], ...] = (
    (
        lambda document: {"prompt_templates", "samples"} <= {*document},
        "sentences and the words that fill them (as of evandez/relations)",
        "Put them together, where document is what json.load reads: "
        + _OF_WORDS.format(
            prompts="[text.replace('{}', '{subject}') for text in document['prompt_templates']]",
            field="subject",
            x="object",
            rows="[(each['subject'], each['object']) for each in document['samples']]",
            n="len(document['samples'])",
        ),
    ),
    (
        lambda record: {*record} == {"subject", "object"},
        "subjects and objects without a sentence",
        "Put them into one, where rows are these records: "
        + _OF_WORDS.format(
            prompts="'{subject} belongs to'",
            field="subject",
            x="object",
            rows="[(each['subject'], each['object']) for each in rows]",
            n="len(rows)",
        ),
    ),
    (
        lambda record: {*record} == {"input", "output"},
        "inputs and outputs without a sentence (as of ericwtodd/function_vectors)",
        "Put them into one, better with some solved examples before, where rows are these records: "
        + _OF_WORDS.format(
            prompts="'Q: {input}\\nA:'",
            field="input",
            x="output",
            rows="[(each['input'], each['output']) for each in rows]",
            n="len(rows)",
        )
        + ". Or read inputs as whole prompts: columns={'input': 'prompt', 'output': 'x'}",
    ),
    (
        _has_tasks,
        "templates with lists of words by label (as of aryamanarora/causalgym)",
        "Fill them, where task is one of its entries: tk.PromptPairs.from_template("
        "task['templates'], model, x='{answer}', y='{answer2}', "
        "counterfactual={task['label']: task['label'] + '2', 'answer': 'answer2'}, "
        "values={(task['label'], 'answer'): [(word, task['labels'][name][0]) for name, words in "
        "task['variables'][task['label']].items() for word in words], **{name: words for name, "
        "words in task['variables'].items() if name != task['label']}}, n=50)",
    ),
    (
        lambda document: {"items", "region_meta"} <= {*document} or "conditions" in document,
        "a test suite of sentences in regions (as of SyntaxGym)",
        "Its predictions say which two conditions differ in which region. Regions before that one "
        "are the prompt (in a third condition the counterfactual), and that region is x in one and "
        "y in the other. docs/question.md has the code.",
    ),
)
"""What tells each from others, what it holds, and how pairs are made of it."""
