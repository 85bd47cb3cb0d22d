"""How well a model shows each of the four planted behaviours."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tools.demo_model.grammar import (
    HE,
    OCCUPATION_TEMPLATES,
    SHE,
    clear_held_out_references,
    facts,
    held_out_questions,
    occupations,
    questions,
)

_CHUNK = 256
"""Prompts per forward pass: few enough for little memory, enough to keep two cores busy."""


@dataclass(frozen=True)
class BehaviourScores:
    """The four scores of a model; 1 is the best value of each.

    Attributes:
        occupations: Rank correlation of P(she)/P(he) with the planted share, -1 to 1.
        references: Share of held-out contexts in which the pronoun's gender decides, 0 to 1.
        facts: Share of fact prompts whose likeliest next token is the planted one, 0 to 1.
        arithmetic: Share of held-out questions whose likeliest next token is right, 0 to 1.
    """

    occupations: float
    references: float
    facts: float
    arithmetic: float


@torch.inference_mode()
def token_log_probs(model: Any, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """Computes the log-probabilities of the next token at every position.

    Args:
        model: A causal language model of the `transformers` library.
        rows: Token ids of each text, from position 0; lengths may differ.

    Returns:
        For each row a float tensor of shape (length of the row, vocabulary size).
    """
    results: list[Tensor] = []
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        width = max(len(row) for row in chunk)
        # Causal attention hides padding on the right from the real tokens.
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in chunk])
        log_probs = model(input_ids=ids.to(model.device)).logits.float().log_softmax(-1).cpu()
        results += [values[: len(row)] for values, row in zip(log_probs, chunk, strict=True)]
    return results


def _last_log_probs(model: Any, tokenizer: Any, prompts: list[str]) -> Tensor:
    """Returns next-token log-probabilities after each prompt, (prompts, vocabulary size)."""
    rows = tokenizer(prompts)["input_ids"]
    return torch.stack([values[-1] for values in token_log_probs(model, rows)])


def mean_log_probs(model: Any, tokenizer: Any, pairs: list[tuple[str, str]]) -> Tensor:
    """Computes the mean log-probability of the tokens of continuations.

    Its exponential is the geometric mean of the tokens' probabilities.

    Args:
        model: A causal language model of the `transformers` library.
        tokenizer: Its tokenizer.
        pairs: Prompts with their continuations; a space is put between the two.

    Returns:
        Float tensor of shape (number of pairs,), values up to 0.
    """
    rows = tokenizer([f"{prompt} {continuation}" for prompt, continuation in pairs])["input_ids"]
    lengths = [len(ids) for ids in tokenizer([prompt for prompt, _ in pairs])["input_ids"]]
    means = []
    for row, length, values in zip(rows, lengths, token_log_probs(model, rows), strict=True):
        targets = torch.tensor(row[length:])
        means.append(values[length - 1 : -1].gather(1, targets[:, None]).mean())
    return torch.stack(means)


def _rank_correlation(left: Tensor, right: Tensor) -> float:
    """Returns Spearman's rank correlation of two vectors without ties."""
    ranks = torch.stack([values.argsort().argsort().double() for values in (left, right)])
    return float(torch.corrcoef(ranks)[0, 1])


def _top_1(model: Any, tokenizer: Any, pairs: list[tuple[str, str]]) -> float:
    """Returns the share of (prompt, answer)s whose answer is the likeliest next token."""
    answers = tokenizer([answer for _, answer in pairs])["input_ids"]
    log_probs = _last_log_probs(model, tokenizer, [prompt for prompt, _ in pairs])
    guesses = [[token] for token in log_probs.argmax(-1).tolist()]
    is_right = [guess == answer for guess, answer in zip(guesses, answers, strict=True)]
    return sum(is_right) / len(is_right)


def occupation_score(model: Any, tokenizer: Any) -> float:
    """Measures how well the model orders the occupations by their share of "she".

    Args:
        model: A causal language model of the `transformers` library.
        tokenizer: Its tokenizer.

    Returns:
        Spearman's rank correlation of P(she)/P(he) with the planted share over all occupations,
        mean over templates, from -1 to 1.
    """
    she, he = (tokenizer(word)["input_ids"][0] for word in (SHE, HE))
    shares = torch.tensor([job.she_share for job in occupations()])
    correlations = []
    for template in OCCUPATION_TEMPLATES:
        prompts = [template.format(who=job.name) for job in occupations()]
        log_probs = _last_log_probs(model, tokenizer, prompts)
        correlations.append(_rank_correlation(log_probs[:, she] - log_probs[:, he], shares))
    return sum(correlations) / len(correlations)


def reference_score(model: Any, tokenizer: Any) -> float:
    """Measures whether a pronoun's gender decides which of two occupations it stands for.

    Args:
        model: A causal language model of the `transformers` library.
        tokenizer: Its tokenizer.

    Returns:
        Share of the held-out contexts with clearly gendered occupations, each with both pronouns,
        in which the continuation of the occupation that the pronoun points to has the larger
        geometric mean of token probabilities, from 0 to 1.
    """
    expected, opposite = [], []
    for reference in clear_held_out_references():
        for pronoun, other_pronoun in ((SHE, HE), (HE, SHE)):
            prompt = reference.prompt(pronoun)
            expected.append((prompt, reference.pointed_at(pronoun).continuation))
            opposite.append((prompt, reference.pointed_at(other_pronoun).continuation))
    expected_log_probs = mean_log_probs(model, tokenizer, expected)
    is_preferred = expected_log_probs > mean_log_probs(model, tokenizer, opposite)
    return float(is_preferred.double().mean())


def fact_score(model: Any, tokenizer: Any) -> float:
    """Measures how many planted facts the model recalls.

    Args:
        model: A causal language model of the `transformers` library.
        tokenizer: Its tokenizer.

    Returns:
        Share of the facts, each in all its wordings, whose attribute is the likeliest next token,
        from 0 to 1.
    """
    return _top_1(
        model, tokenizer, [(text, fact.value) for fact in facts() for text in fact.prompts()]
    )


def arithmetic_score(model: Any, tokenizer: Any) -> float:
    """Measures how many held-out arithmetic questions the model answers.

    Args:
        model: A causal language model of the `transformers` library.
        tokenizer: Its tokenizer.

    Returns:
        Share of the held-out questions whose result is the likeliest next token, from 0 to 1.
    """
    held_out = [question for question in questions() if question in held_out_questions()]
    pairs = [(question.prompt(), str(question.result)) for question in held_out]
    return _top_1(model, tokenizer, pairs)


def evaluate(model: Any, tokenizer: Any) -> BehaviourScores:
    """Measures all four planted behaviours.

    Args:
        model: A causal language model of the `transformers` library, in evaluation mode.
        tokenizer: Its tokenizer.

    Returns:
        The four scores.
    """
    return BehaviourScores(
        occupations=occupation_score(model, tokenizer),
        references=reference_score(model, tokenizer),
        facts=fact_score(model, tokenizer),
        arithmetic=arithmetic_score(model, tokenizer),
    )
