"""Data sets about the planted behaviours of the demonstration model.

Every row is a dictionary of texts. `prompt` is the clean prompt and `counterfactual`, where there
is one, the changed prompt of the same number of tokens. `x` is the target continuation and `y` the
foil, both with a leading space; the clean prompt favours `x`, except in `operation_rows`. The rows
are the same on every call.

`python -m tools.demo_model.examples` writes them to `tracekit/demo/rows`.
"""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tools.demo_model.grammar import (
    DIGITS,
    HE,
    OCCUPATION_TEMPLATES,
    SHE,
    Question,
    Reference,
    clear_held_out_references,
    facts,
    held_out_questions,
    occupations,
    questions,
)
from tracekit.demo import MODEL_DIR

_SEED = 7
_UNDECIDED = (0.45, 0.55)
"""Occupations with a share of "she" between these values have no stereotyped pronoun."""


def _bias_row(reference: Reference) -> dict[str, str]:
    return {
        "prompt": reference.prompt(SHE),
        "counterfactual": reference.prompt(HE),
        "x": f" {reference.pointed_at(SHE).continuation}",
        "y": f" {reference.pointed_at(HE).continuation}",
    }


def bias_rows() -> list[dict[str, str]]:
    """64 rows about the referent of a pronoun, in contexts held out of training.

    The clean prompt ends in "she" and the counterfactual in "he"; `x` is typical of the
    occupation stereotyped as female and `y` of the one stereotyped as male. Both occupations are
    clearly gendered, and each comes first in half of the rows. `x` and `y` differ in length.
    """
    rng = random.Random(f"bias {_SEED}")
    clear, sample = clear_held_out_references(), []
    for female_first in (True, False):
        same_order = [
            reference
            for reference in clear
            if (reference.pointed_at(SHE) == reference.first) == female_first
        ]
        sample += rng.sample(same_order, 32)
    rng.shuffle(sample)
    return [_bias_row(reference) for reference in sample]


def profession_rows() -> list[dict[str, str]]:
    """216 rows about the pronoun after an occupation: each template, each clear occupation.

    The counterfactual names "man" instead of an occupation stereotyped as female, and "woman"
    instead of one stereotyped as male; `x` is the stereotyped pronoun and `y` the other one.
    """
    rows = []
    for template in OCCUPATION_TEMPLATES:
        for job in occupations():
            if _UNDECIDED[0] < job.she_share < _UNDECIDED[1]:
                continue
            is_female = job.she_share > 0.5
            rows.append(
                {
                    "prompt": template.format(who=job.name),
                    "counterfactual": template.format(who="man" if is_female else "woman"),
                    "x": f" {SHE if is_female else HE}",
                    "y": f" {HE if is_female else SHE}",
                }
            )
    return rows


def fact_rows() -> list[dict[str, Any]]:
    """60 rows, one for each planted fact, with spans and without a counterfactual prompt.

    `x` is the true attribute and `y` another one of the same relation; the wordings take turns.
    """
    rng = random.Random(f"facts {_SEED}")
    rows = []
    for index, fact in enumerate(facts()):
        prompts = fact.prompts()
        # Neighbours have different relations; counting in threes turns the wordings within each.
        prompt = prompts[index // len(prompts) % len(prompts)]
        foil = rng.choice([value for value in fact.relation.values if value != fact.value])
        spans = {"subject": fact.subject}
        rows.append({"prompt": prompt, "x": f" {fact.value}", "y": f" {foil}", "spans": spans})
    return rows


def _changed(question: Question) -> list[Question]:
    """The questions that differ in one value and have another result, not negative."""
    first, second = question.values
    values = [(digit, second) for digit in DIGITS] + [(first, digit) for digit in DIGITS]
    changed = [
        Question(question.names, pair, question.operator, question.swapped) for pair in values
    ]
    return [new for new in changed if new.result >= 0 and new.result != question.result]


def binding_rows() -> list[dict[str, str]]:
    """64 rows about the values of variables, from questions held out of training.

    The counterfactual changes the value of one variable; `x` is the answer to the clean question
    and `y` the answer to the counterfactual one. Sums and differences are equally many.
    """
    rng = random.Random(f"binding {_SEED}")
    held_out = [question for question in questions() if question in held_out_questions()]
    rows = []
    for operator in "+-":
        for question in rng.sample([q for q in held_out if q.operator == operator], 32):
            changed = rng.choice(_changed(question))
            rows.append(
                {
                    "prompt": question.prompt(),
                    "counterfactual": changed.prompt(),
                    "x": f" {question.result}",
                    "y": f" {changed.result}",
                }
            )
    rng.shuffle(rows)
    return rows


def operation_rows() -> list[dict[str, str]]:
    """64 rows about the operation, from questions held out of training.

    The counterfactual asks for the difference instead of the sum, or the other way round. `x` is
    its answer and `y` the clean one: components that carry only values leave the answer `y` alone.
    """
    rng = random.Random(f"operations {_SEED}")
    rows = []
    for operator, new_operator in ("+-", "-+"):
        candidates = []
        for question in questions():
            changed = replace(question, operator=new_operator)
            fits = changed.result >= 0 and changed.result != question.result
            if question.operator == operator and question in held_out_questions() and fits:
                candidates.append((question, changed))
        for question, changed in rng.sample(candidates, 32):
            rows.append(
                {
                    "prompt": question.prompt(),
                    "counterfactual": changed.prompt(),
                    "x": f" {changed.result}",
                    "y": f" {question.result}",
                }
            )
    rng.shuffle(rows)
    return rows


MAKERS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "bias": bias_rows,
    "professions": profession_rows,
    "facts": fact_rows,
    "binding": binding_rows,
    "operations": operation_rows,
}
"""What makes the rows, by the name of their file."""


if __name__ == "__main__":
    for name, make in MAKERS.items():
        text = "".join(json.dumps(row) + "\n" for row in make())
        (MODEL_DIR.parent / "rows" / f"{name}.jsonl").write_text(text, encoding="utf-8")
