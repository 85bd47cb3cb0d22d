"""The beginning-of-sequence token: whether a tokenizer puts it first by itself.

TransformerLens loads tokenizers again so that they put one first, also those of models that never
saw one. What counts here is the tokenizer as it was published, or as the user gave it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_OWN = "_tracekit_adds_bos"


def adds_bos(tokenizer: Any) -> bool:
    """Whether a tokenizer begins a text with its beginning-of-sequence token by itself."""
    noted = getattr(tokenizer, _OWN, None)
    if noted is not None:
        return noted
    # Where it puts none even as TransformerLens loads it, it puts none by itself.
    if not _begins_with_bos(tokenizer):
        return False
    published = _published(str(getattr(tokenizer, "name_or_path", "")))
    return True if published is None else published


def remember_own(tokenizer: Any, given: Any) -> None:
    """Notes on a tokenizer of TransformerLens what the given one does by itself."""
    if tokenizer is not None:
        noted = getattr(given, _OWN, None)
        adds = _begins_with_bos(given) if noted is None else noted
        object.__setattr__(tokenizer, _OWN, adds)


@lru_cache
def _published(name_or_path: str) -> bool | None:
    """Whether the tokenizer of a folder or a cached hub model does; None if there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name_or_path, trust_remote_code=False, local_files_only=True
        )
    except Exception:  # It was made in memory, or its files are gone.
        return None
    return _begins_with_bos(tokenizer)


def _begins_with_bos(tokenizer: Any) -> bool:
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos is not None and list(tokenizer.encode("a", add_special_tokens=True))[:1] == [bos]
