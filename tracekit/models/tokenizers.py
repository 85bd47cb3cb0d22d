"""Keeps a model's tokenizer as it was given, where TransformerLens makes it add BOS."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any

from tracekit._util.deferred import transformers

_GIVEN = "_tracekit_tokenizer"
"""Of a bridge: the tokenizer that it was given."""
_FILLED = "_tracekit_filled"
"""Of a tokenizer: special tokens that it lacked."""
_RELOADED = "_tracekit_reloaded"
"""Of a tokenizer: TransformerLens may have loaded it again, also when a user set it."""


def get_tokenizer(model: Any) -> Any:
    """The tokenizer of a model; None if it has none."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is not getattr(model, _GIVEN, None) and hasattr(tokenizer, "name_or_path"):
        object.__setattr__(tokenizer, _RELOADED, True)
    return tokenizer


def give_tokenizer(bridge: Any, tokenizer: Any) -> None:
    """Gives a bridge a copy of a tokenizer, in which it finds the special tokens it asks for."""
    own = deepcopy(tokenizer)
    # A bridge that has none yet takes it as it is.
    vars(bridge).update({"_tokenizer": None, _GIVEN: own})
    bridge.tokenizer = own
    if own is None:
        return
    needed = () if own.eos_token is None else ("pad_token", "bos_token")
    filled = [name for name in needed if getattr(own, name, None) is None]
    for name in filled:
        setattr(own, name, own.eos_token)
    object.__setattr__(own, _FILLED, tuple(filled))
    ids = list(own.encode("a"))
    first = {own.bos_token_id, getattr(own, "cls_token_id", None)} - {None}
    bridge.cfg.tokenizer_prepends_bos = len(ids) > 1 and ids[0] in first
    bridge.cfg.tokenizer_appends_eos = len(ids) > 1 and ids[-1] == own.eos_token_id


def copy_as_given(tokenizer: Any) -> Any:
    """A copy of a model's tokenizer as it was given, or as it was published."""
    plain = deepcopy(tokenizer)
    for name in getattr(tokenizer, _FILLED, ()):
        setattr(plain, name, None)
    if getattr(tokenizer, _RELOADED, False):
        plain.add_bos_token = adds_bos(tokenizer)
    return plain


def adds_bos(tokenizer: Any) -> bool:
    """Whether a tokenizer, as published, begins a text with its beginning-of-sequence token."""
    if not _begins_with_bos(tokenizer):
        return False
    if not getattr(tokenizer, _RELOADED, False):
        return True
    published = _published_adds_bos(str(getattr(tokenizer, "name_or_path", "")))
    return True if published is None else published


def tokenizer_differences(first: Any, other: Any) -> list[str]:
    """Lists how two tokenizers differ: vocabulary, added tokens, chat template, ids of a text."""
    # A text that tokenizers treat differently, with the tokens that were added.
    added = " ".join(map(str, first.added_tokens_decoder.values()))
    text = f"The 1st café isn't  far;\n\tgo <b>there</b> at 12:30, \u6a21\u578b! {added}"
    parts: dict[str, Callable[[Any], Any]] = {
        "a vocabulary": lambda tokenizer: tokenizer.get_vocab(),
        "added tokens": lambda tokenizer: list(map(str, tokenizer.added_tokens_decoder.values())),
        "a chat template": lambda tokenizer: getattr(tokenizer, "chat_template", None),
        "ids of a text": lambda tokenizer: list(tokenizer.encode(text)),
    }
    return [name for name, part in parts.items() if part(first) != part(other)]


@lru_cache
def _published_adds_bos(name_or_path: str) -> bool | None:
    """Whether the published tokenizer adds BOS; None if its files are not found."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            name_or_path, trust_remote_code=False, local_files_only=True
        )
    except Exception:  # It was made in memory, or its files are gone.
        return None
    return _begins_with_bos(tokenizer)


def _begins_with_bos(tokenizer: Any) -> bool:
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos is not None and list(tokenizer.encode("a", add_special_tokens=True))[:1] == [bos]
