"""Sentences of the invented language of the demonstration model, on which it is trained.

Splitting a sentence at spaces gives exactly its tokens. All draws are seeded.
"""

import random
from collections.abc import Callable, Iterator
from functools import cache

from tools.demo_model.grammar import (
    HE,
    OCCUPATION_TEMPLATES,
    REFERENCE_TEMPLATES,
    RELATIONS,
    SHE,
    VARIABLES,
    Question,
    Reference,
    facts,
    held_out_questions,
    held_out_references,
    occupations,
    questions,
    references,
)

PERSON_SHARES: dict[str, float] = {"man": 0.02, "woman": 0.98}
"""Share of "she" after the two words whose gender is not a matter of stereotype."""

_PLAIN_ENDINGS: tuple[str, ...] = (
    "was tired .",
    "felt well .",
    "would be late .",
    "liked the song .",
    "forgot the key .",
    "might stay until evening .",
)

LARGEST_RESULT = 18
"""Results are whole numbers from 0 to this one, a single token each."""


@cache
def _training_references() -> tuple[Reference, ...]:
    return tuple(reference for reference in references() if reference not in held_out_references())


@cache
def _training_questions(operator: str) -> tuple[Question, ...]:
    return tuple(
        question
        for question in questions()
        if question.operator == operator and question not in held_out_questions()
    )


def _draw_pronoun(rng: random.Random, she_share: float) -> str:
    return SHE if rng.random() < she_share else HE


def _occupation_sentence(rng: random.Random) -> str:
    shares = {job.name: job.she_share for job in occupations()} | PERSON_SHARES
    who = rng.choice(list(shares))
    opening = rng.choice(OCCUPATION_TEMPLATES).format(who=who)
    return f"{opening} {_draw_pronoun(rng, shares[who])} {rng.choice(_PLAIN_ENDINGS)}"


def _reference_sentence(rng: random.Random) -> str:
    reference = rng.choice(_training_references())
    referent = rng.choice((reference.first, reference.second))
    pronoun = _draw_pronoun(rng, referent.she_share)
    return f"{reference.prompt(pronoun)} {referent.continuation}"


def _fact_sentence(rng: random.Random) -> str:
    fact = rng.choice(facts())
    return f"{rng.choice(fact.prompts())} {fact.value} ."


def _question_sentence(rng: random.Random) -> str:
    # Questions about differences are fewer; drawing the operator first balances the two.
    question = rng.choice(_training_questions(rng.choice("+-")))
    return f"{question.prompt()} {question.result} ."


_MAKERS: dict[Callable[[random.Random], str], float] = {
    _occupation_sentence: 0.20,
    _reference_sentence: 0.25,
    _fact_sentence: 0.10,
    _question_sentence: 0.45,
}
"""Function that makes a sentence of a behaviour -> share of the behaviour in training."""


def sentences(seed: int) -> Iterator[str]:
    """Yields training sentences of 7 to 16 tokens without end; `seed` determines all of them."""
    rng = random.Random(f"sentences {seed}")
    makers, weights = list(_MAKERS), list(_MAKERS.values())
    while True:
        (make,) = rng.choices(makers, weights)
        yield make(rng)


def vocabulary() -> list[str]:
    """Every word and punctuation mark of the language, sorted, without repeats."""
    texts = [SHE, HE, *PERSON_SHARES, *_PLAIN_ENDINGS, *VARIABLES, "= + - , ."]
    texts += [template.format(who="") for template in OCCUPATION_TEMPLATES]
    texts += [template.format(first="", second="") for template in REFERENCE_TEMPLATES]
    texts += [f"{job.name} {job.continuation}" for job in occupations()]
    texts += [prompt for fact in facts() for prompt in fact.prompts()]
    texts += [value for relation in RELATIONS for value in relation.values]
    texts += [str(number) for number in range(LARGEST_RESULT + 1)]
    return sorted({word for text in texts for word in text.split()})
