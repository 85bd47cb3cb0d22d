"""Prompts of chat models: a question or messages, as the model's chat template writes them.

To locate a message in the written text, the text is written again with a mark in its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import Any

from tracekit._util.options import short_repr
from tracekit._util.warn import warn
from tracekit.data.spans import Region
from tracekit.errors import ConfigError, DataWarning, PairsError, UnsupportedModelError, near_miss

Chat = bool | Mapping[str, Any]
"""Whether prompts are written by the chat template, or the arguments of the template."""
Messages = Sequence[Mapping[str, Any]]
"""What was said in turn: mappings with `role` and `content`."""

CLOCK = "strftime_now"
"""What templates call to read the clock; as an argument it is the time that they read."""
_MARK, _END = "\ue000", "\ue001"
"""Characters of no script: one stands in place of a turn, one behind the beginning of an answer."""
_RANDOM_CALLS = re.compile(r"\|\s*random\b|\blipsum\s*\(")
"""How a template draws at random."""
_RESERVED_ARGUMENTS = ("messages", "add_generation_prompt")
_clock_in_use = Lock()


class _Clock:
    """A `datetime` for transformers that does not move, and records whether it was read."""

    def __init__(self, at: datetime) -> None:
        self.at = at
        self.was_read = False

    def now(self) -> datetime:
        self.was_read = True
        return self.at


class ChatTemplate:
    """The chat template of a tokenizer with its arguments."""

    def __init__(self, tokenizer: Any, chat: Chat) -> None:
        """The template of a tokenizer, with the arguments in `chat`, if there are any.

        The argument `strftime_now` is the time that the template reads, such as "2026-01-31".
        """
        template = getattr(tokenizer, "chat_template", None)
        if not template:
            raise UnsupportedModelError(
                "The model's tokenizer has no chat template, so chat=True has nothing to write the "
                "prompts with. Leave chat out, or set tokenizer.chat_template."
            )
        self._tokenizer = tokenizer
        self._given = dict(chat) if isinstance(chat, Mapping) else {}
        _check_template_arguments(self._given, str(template))
        at = self._given.get(CLOCK)
        self._clock = _Clock(datetime.now().replace(microsecond=0) if at is None else _as_time(at))
        self._wrote = False
        if _RANDOM_CALLS.search(str(template)):
            raise UnsupportedModelError(
                "The chat template draws words at random, so no prompt is written twice. Set "
                "tokenizer.chat_template to one that does not."
            )

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments that write the same prompts on any day: with the time, if it was read."""
        is_read = self._clock.was_read or CLOCK in self._given
        return self._given | ({CLOCK: self._clock.at.isoformat()} if is_read else {})

    def warn_of_clock(self) -> None:
        """Warns if the template wrote the current time into the prompts."""
        if self._clock.was_read and CLOCK not in self._given:
            at = self._clock.at.isoformat()
            warn(
                f"The chat template reads the clock ({at}), so prompts differ from day to day. Fix "
                f"the time by chat={{{CLOCK!r}: {at!r}}} (--chat-option {CLOCK}={at}). Pairs and "
                "results record it.",
                DataWarning,
            )

    def render_prompt(self, given: Any, part: str, number: int) -> str:
        """The text that a chat model reads, up to where its answer begins.

        `given` is what the user says, or messages with `role` and `content`. If the last one is of
        the assistant, it is the beginning of the answer. Errors name `part` and `number`.
        """
        messages = _as_messages(given)
        if messages is None:
            raise PairsError(
                f"The {part} of example {number} is {short_repr(given)}. With chat=True give a "
                "text, or a list of messages with the keys role and content."
            )
        try:
            text = self._render(messages)
            if not self._wrote and text != self._render(messages):
                raise ValueError("it writes another text each time")
            self._wrote = True
            for located, message in enumerate(messages):
                is_written = message["content"].strip() in text or message["role"] == "assistant"
                if not is_written and _MARK not in self._render(_mark(messages, located)):
                    raise ValueError(f"it leaves out what the {message['role']} says")
        except Exception as error:
            raise PairsError(
                f"The chat template refuses the {part} of example {number}: {error}. Give messages "
                "as the model's card shows them."
            ) from error
        return text

    def locate_messages(self, given: Any, text: str, number: int) -> list[Region]:
        """Where messages stand in the written text; the last message of the user comes first."""
        messages = _as_messages(given) or ()
        of_user = [located for located, each in enumerate(messages) if each["role"] == "user"]
        main = of_user[-1] if of_user else len(messages) - 1
        order = [main, *(located for located in range(len(messages)) if located != main)]
        first, *others = (self._locate_message(messages, located, text) for located in order)
        if first is None:
            raise PairsError(
                f"The chat template changes {short_repr(messages[main]['content'])} of example "
                f"{number}, or writes it several times, so no part of it can be found. Give ranges "
                "of tokens [first, one past the last] as spans, or leave them out."
            )
        return [first, *filter(None, others)]

    def _locate_message(self, messages: Messages, located: int, text: str) -> Region | None:
        try:
            before, *rest = self._render(_mark(messages, located)).split(_MARK)
        except Exception:  # A template may refuse a changed message.
            return None
        if len(rest) != 1:
            return None
        after, content = rest[0], messages[located]["content"]
        first, stop = len(before), len(text) - len(after)
        within = text[first:stop]
        is_content = within in content and within.strip() == content.strip()
        return (first, stop) if text == before + within + after and is_content else None

    def _render(self, messages: Messages) -> str:
        if messages[-1]["role"] != "assistant":
            return self._apply(messages, add_generation_prompt=True)
        begun = messages[-1]["content"]
        # A template may trim white space at an end, but not before a mark.
        before = self._apply(_mark(messages, -1, _MARK + _END)).split(_END)[0].removesuffix(_MARK)
        text, *others = self._apply(_mark(messages, -1, begun + _END)).split(_END)
        if len(others) == 1 and text.removeprefix(before) in (begun, begun.lstrip()):
            return before + begun
        if len(others) == 1 and text.endswith(begun) and not begun[:1].isspace():
            return text
        raise ValueError(
            f"it changes the beginning of the answer, {short_repr(begun)}, and ends with "
            f"{text[-len(begun) - 40 :]!r}"
        )

    def _apply(self, messages: Messages, **options: Any) -> str:
        from transformers.utils import chat_template_utils as module

        options |= {name: value for name, value in self._given.items() if name != CLOCK}
        with _clock_in_use:
            usual, module.datetime = module.datetime, self._clock  # type: ignore[misc]
            try:
                return self._tokenizer.apply_chat_template(messages, tokenize=False, **options)
            finally:
                module.datetime = usual  # type: ignore[misc]


def make_chat_template(tokenizer: Any, chat: Any) -> ChatTemplate | None:
    """The template that writes prompts; None without `chat`."""
    if chat is False or chat is None:
        return None
    if chat is not True and not isinstance(chat, Mapping):
        raise ConfigError(
            f"chat is {short_repr(chat)}. Give True, or a mapping of the arguments of the chat "
            "template, e.g. chat={'enable_thinking': False}."
        )
    return ChatTemplate(tokenizer, chat)


def _check_template_arguments(arguments: Mapping[str, Any], template: str) -> None:
    words = sorted({*re.findall(r"[A-Za-z_]\w+", template)} - {*_RESERVED_ARGUMENTS})
    for name, value in arguments.items():
        if name not in words:
            hint = near_miss(str(name), words)
            raise ConfigError(
                f"The chat template does not read the argument {short_repr(name)}. {hint}".rstrip()
                + " Give one that it reads, or leave it out."
            )
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"The argument {name} of the chat template is {short_repr(value)}. Give a text, a "
                "number, True, False, None, or lists and mappings of them."
            ) from error


def _as_time(given: Any) -> datetime:
    try:
        return datetime.fromisoformat(str(given))
    except ValueError as error:
        raise ConfigError(
            f"The time {CLOCK} of the chat is {short_repr(given)}. Give a date such as "
            "'2026-01-31', or a date and time."
        ) from error


def _as_messages(prompt: Any) -> Messages | None:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    are_messages = (
        isinstance(prompt, Sequence)
        and len(prompt) > 0
        and all(isinstance(each, Mapping) and {"role", "content"} <= set(each) for each in prompt)
        and all(isinstance(each["content"], str) for each in prompt)
    )
    return prompt if are_messages else None


def _mark(messages: Messages, located: int, mark: str = _MARK) -> Messages:
    changed = list(messages)
    changed[located] = {**changed[located], "content": mark}
    return changed
