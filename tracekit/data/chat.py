"""Prompts of chat models: a question or messages, as the model's chat template writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit._util.options import shortened
from tracekit._util.warn import warn
from tracekit.errors import DataWarning, PairsError, UnsupportedModelError


def in_chat(tokenizer: Any, given: Any, part: str, number: int) -> str:
    """The text that a chat model reads, up to where its answer begins.

    Args:
        tokenizer: Has the chat template.
        given: What the user says, or messages with `role` and `content`. Where the last one is of
            the assistant, it is the beginning of the answer, and the model goes on with it.
        part: `prompt` or `counterfactual`, for messages.
        number: Of the example, for messages.

    Raises:
        UnsupportedModelError: The tokenizer has no chat template.
        PairsError: Neither a text nor messages, or messages that the template refuses.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UnsupportedModelError(
            "The model's tokenizer has no chat template, so chat=True has nothing to write the "
            "prompts with. Leave chat out, or set tokenizer.chat_template."
        )
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not _are_messages(messages):
        raise PairsError(
            f"The {part} of example {number} is {shortened(given)}. With chat=True give a text, or "
            "a list of messages with the keys role and content."
        )
    is_begun = messages[-1]["role"] == "assistant"
    try:
        return tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=not is_begun,
            continue_final_message=is_begun,
        )
    except Exception as error:
        raise PairsError(
            f"The chat template refuses the {part} of example {number}: {error}. Give messages as "
            "the model's card shows them."
        ) from error


def said(given: Any) -> str:
    """What was said last: the text of a prompt, as tables and messages show it."""
    return given if isinstance(given, str) else str(given[-1]["content"])


def within(text: str, given: Any) -> tuple[int, int]:
    """Characters of the chat's text in which spans are looked for: of a user's text that text.

    The template may hold the same words.
    """
    start = text.rfind(given.strip()) if isinstance(given, str) else -1
    return (0, len(text)) if start < 0 else (start, start + len(given.strip()))


def warn_of_spaces(rows: Sequence[Mapping[str, Any]]) -> None:
    """Warns of continuations with a leading space where the template ends with white space."""
    spaced = [
        number
        for number, row in enumerate(rows)
        if row["prompt"][-1:].isspace()
        and any(row.get(part, "").startswith(" ") for part in ("x", "y"))
    ]
    if spaced:
        warn(
            f"The x or y of {len(spaced)} of {len(rows)} examples begins with a space (example "
            f"{spaced[0]}: {rows[spaced[0]]['x']!r}), and the chat template ends the prompt with "
            "white space. The model begins its answer without one: leave it out.",
            DataWarning,
        )


def _are_messages(given: Any) -> bool:
    return (
        isinstance(given, Sequence)
        and len(given) > 0
        and all(isinstance(each, Mapping) and {"role", "content"} <= set(each) for each in given)
        and all(isinstance(each["content"], str) for each in given)
    )
