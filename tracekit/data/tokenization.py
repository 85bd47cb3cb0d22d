"""Tokenization: from prompts and continuations to token ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracekit.errors import PairsError, UnsupportedModelError


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of a model, or the argument itself if it is one.

    Raises:
        UnsupportedModelError: The model has no tokenizer.
    """
    if callable(getattr(model, "encode", None)):
        return model
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise UnsupportedModelError(
            "The model has no tokenizer, so text cannot be encoded. "
            "Load it with tokenizer=..., or use PromptPairs.from_ids."
        )
    return tokenizer


def encoder(tokenizer: Any) -> Callable[[str, str], list[int]]:
    """A function of (prompt, text) that encodes the text after the prompt; "" for a prompt itself.

    Most tokenizers encode a continuation on its own. Those of the first Llamas put a space before
    every text, which would add a token. With them a continuation is the tokens after the prompt's.
    The function then raises a `PairsError` if the tokenizer joins prompt and continuation.
    """

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    # Only a tokenizer that adds a space encodes the parts of a text unlike the text.
    if encode("a b") == encode("a") + encode(" b"):
        return lambda _, text: encode(text)

    def encode_after(prompt: str, text: str) -> list[int]:
        if not prompt:
            return encode(text)
        prompt_ids, ids = encode(prompt), encode(prompt + text)
        if ids[: len(prompt_ids)] != prompt_ids:
            raise PairsError(
                f"The tokenizer joins the beginning of {text!r} to the end of {prompt!r}. "
                "Cut prompt and continuation where a word begins."
            )
        return ids[len(prompt_ids) :]

    return encode_after


def bos_of(tokenizer: Any) -> list[int]:
    """The beginning-of-sequence token, as a list of one id.

    Raises:
        UnsupportedModelError: The tokenizer has no such token.
    """
    if tokenizer.bos_token_id is None:
        raise UnsupportedModelError(
            "The tokenizer has no beginning-of-sequence token. Use prepend_bos=False."
        )
    return [tokenizer.bos_token_id]


def width_of(model: Any) -> int:
    """Width of a model's embeddings, d_model.

    Raises:
        UnsupportedModelError: It is unknown, because a tokenizer was given instead of a model.
    """
    width = getattr(getattr(model, "cfg", None), "d_model", None)
    if width is None:
        raise UnsupportedModelError(
            "Noise needs the width of the model's embeddings, and a tokenizer does not know it. "
            "Pass the model itself."
        )
    return int(width)
