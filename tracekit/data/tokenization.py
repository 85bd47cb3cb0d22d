"""Tokenization: from prompts and continuations to token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tracekit._util.options import join_first, short_repr
from tracekit._util.warn import warn
from tracekit.data.chat import ChatTemplate
from tracekit.data.pair import SET_KEYS, TEXT_KEYS, check_keys, check_mappings, count_shared
from tracekit.data.spans import Region, spans_from_text
from tracekit.errors import DataWarning, PairsError, UnsupportedModelError
from tracekit.models.tokenizers import adds_bos, get_tokenizer

Encode = Callable[[str, str], list[int]]
"""Encodes a text after a prompt; after none, a prompt."""
_SPANS = {"prompt": "spans", "counterfactual": "counterfactual_spans"}


def require_tokenizer(model: Any) -> Any:
    """The tokenizer of a model, or the argument itself if it is one."""
    if callable(getattr(model, "encode", None)):
        return model
    tokenizer = get_tokenizer(model)
    if tokenizer is None:
        raise UnsupportedModelError(
            "The model has no tokenizer, so text cannot be encoded. "
            "Give it one, tk.load_model(model, tokenizer=...), or use PromptPairs.from_ids."
        )
    return tokenizer


def make_encoder(tokenizer: Any) -> Encode:
    """Makes a function (prompt, text) that encodes text after a prompt; "" encodes a prompt.

    It raises a `PairsError` if a tokenizer that adds spaces joins the two.
    """

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    # Only tokenizers that add a space encode the parts of a text differently from the text.
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


def warn_of_boundaries(tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Warns where a continuation has other tokens alone than after its prompt.

    `rows` hold texts (`prompt`, `x`, `y`) and their ids.
    """
    problems: dict[str, list[str]] = {}
    for number, row in enumerate(rows):
        for part in ("x", "y"):
            is_given = row.get("prompt") and row.get(part)
            if is_given and (problem := _boundary_problem(tokenizer, row, part)):
                reason, tokens = problem
                problems.setdefault(reason, []).append(f"{part} of example {number}: {tokens}")
    for reason, cases in problems.items():
        warn(f"{reason} ({join_first(cases)}).", DataWarning)


def _boundary_problem(tokenizer: Any, row: Mapping[str, Any], part: str) -> tuple[str, str] | None:
    """Problem where a prompt and its continuation meet, and the tokens there; None without one."""
    prompt, text, ids = row["prompt"], row[part], list(row[f"{part}_ids"])
    shown = f"{_tokens_text(tokenizer, row['prompt_ids'][-2:])} + {_tokens_text(tokenizer, ids)}"
    if is_letter(prompt[-1]) and is_letter(text[0]):
        return "A continuation begins within a word; give it its leading space", shown
    apart = list(tokenizer.encode(prompt, add_special_tokens=False)) + ids
    together = list(tokenizer.encode(prompt + text, add_special_tokens=False))
    if apart != together:
        written = _tokens_text(tokenizer, together[max(count_shared(apart, together) - 1, 0) :])
        reason = "A continuation alone has other tokens than in the text"
        return reason, f"{shown}, in the text {written}"
    if any("\ufffd" in text for text in token_texts(tokenizer, ids).values()):
        return "A continuation is encoded in parts of characters (byte tokens)", shown
    return None


def is_letter(character: str) -> bool:
    """Whether it is a letter of a script that puts spaces between words."""
    return character.lower() != character.upper()


def _tokens_text(tokenizer: Any, ids: Sequence[int]) -> str:
    texts = token_texts(tokenizer, ids)
    return str([texts.get(token, token) for token in ids])


def token_texts(tokenizer: Any, ids: Iterable[int]) -> dict[int, str]:
    """Text of each token alone; empty if the tokenizer has no decoder."""
    decode = getattr(tokenizer, "decode", None)
    return {} if decode is None else {token: str(decode([token])) for token in sorted(ids)}


def bos_ids(tokenizer: Any, prepend: bool | None) -> list[int]:
    """Ids to put first: the beginning-of-sequence token or none, by default as the tokenizer."""
    if not (adds_bos(tokenizer) if prepend is None else prepend):
        return []
    if tokenizer.bos_token_id is None:
        raise UnsupportedModelError(
            "The tokenizer has no beginning-of-sequence token. Use prepend_bos=False."
        )
    return [tokenizer.bos_token_id]


def embedding_width(model: Any) -> int:
    """Width of a model's embeddings, d_model."""
    width = getattr(getattr(model, "cfg", None), "d_model", None)
    if width is None:
        raise UnsupportedModelError(
            "Noise needs the width of the model's embeddings, and a tokenizer does not know it. "
            "Pass the model itself."
        )
    return int(width)


def encode_rows(
    rows: object,
    tokenizer: Any,
    writer: ChatTemplate | None,
    *,
    prepend_bos: bool | None,
    warn: bool,
) -> list[dict[str, Any]]:
    """Rows of text as rows of token ids with their texts; see `PromptPairs.from_text`."""
    encode = make_encoder(tokenizer)
    # A chat template puts the beginning-of-sequence token where it belongs.
    bos = bos_ids(tokenizer, False if writer and prepend_bos is None else prepend_bos)
    encoded: list[dict[str, Any]] = []
    texts: list[dict[str, str]] = []
    for number, row in enumerate(check_mappings(rows)):
        check_keys(row, number, ("prompt", "x"), TEXT_KEYS | SET_KEYS, optional="y")
        regions: dict[str, list[Region]] = {}
        texts.append({})
        for part, key in _SPANS.items():
            if writer and row.get(part):
                given, text = row[part], writer.render_prompt(row[part], part, number)
                spans = row.get(key)
                if isinstance(spans, Mapping) and any(isinstance(s, str) for s in spans.values()):
                    regions[part] = writer.locate_messages(given, text, number)
                # Tables and messages show the last message of a chat.
                texts[-1][part] = given if isinstance(given, str) else str(given[-1]["content"])
                row = {**row, part: text}
        entry = _encode_row(row, number, encode, bos)
        for part, key in _SPANS.items():
            if row.get(key) is not None and row.get(part):
                ids, places = entry[f"{part}_ids"], regions.get(part, ())
                entry[key] = spans_from_text(tokenizer, row[part], ids, row[key], number, places)
        encoded.append(entry)
    if warn:
        warn_of_boundaries(tokenizer, encoded)
    if warn and writer:
        writer.warn_of_clock()
    return [entry | shown for entry, shown in zip(encoded, texts, strict=True)]


def _encode_row(row: Mapping[str, Any], number: int, encode: Encode, bos: list[int]) -> Any:
    given = {key: row[key] for key in sorted(TEXT_KEYS) if row.get(key) is not None}
    entry: dict[str, Any] = {k: v for k, v in given.items() if v or not isinstance(v, str)}
    _require_text(entry, number)
    entry |= {key: row[key] for key in ("weight", "group") if row.get(key) is not None}
    for key in sorted(TEXT_KEYS & set(entry)):
        if key in _SPANS:
            own = encode("", row[key])
            entry[f"{key}_ids"] = own if own[:1] == bos else bos + own
        else:
            entry[f"{key}_ids"] = encode(row["prompt"], row[key])
    for key in sorted(SET_KEYS & set(row)):
        entry[f"{key}_ids"] = _encode_set(encode, row, key, number)
    # Empty texts have no ids, which `from_ids` refuses.
    return entry | {f"{key}_ids": [] for key in set(given) - set(entry)}


def _require_text(entry: Mapping[str, Any], number: int) -> None:
    for key, text in entry.items():
        is_text = isinstance(text, str)
        try:
            is_readable = is_text and bool(text.encode())
        except UnicodeEncodeError:
            is_readable = False
        if not is_readable:
            problem = "holds half a character" if is_text else "is not text"
            is_number = isinstance(text, (int, float))
            hint = " Read columns of numbers with dtype=str." if is_number else ""
            raise PairsError(
                f"The {key} of example {number} {problem}: {short_repr(text)}. "
                f"Give a text, or token ids (prompt_ids, x_ids, ...).{hint}"
            )


def _encode_set(encode: Encode, row: Mapping[str, Any], key: str, number: int) -> list[int]:
    texts = row[key]
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise PairsError(
            f"The {key} of example {number} is {short_repr(texts)}. Give a list of texts, each of "
            "them one token."
        )
    ids = []
    for text in texts:
        _require_text({key: text}, number)
        tokens = encode(row["prompt"], text)
        if len(tokens) != 1:
            raise PairsError(
                f"The {key} of example {number} holds {text!r}, which is {len(tokens)} tokens. "
                "Token sets are of the first token after the prompt: give texts of one token, "
                "with a leading space where a word begins."
            )
        ids += tokens
    return ids
