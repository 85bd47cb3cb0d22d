"""Report on prompt pairs: examples that are useless, or show something else than was meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from tracekit._util.markup import clean_text
from tracekit._util.warn import warn
from tracekit.data.counterfactuals import Ids, PromptCounterfactual
from tracekit.data.pair import PromptPair, count_shared, quote_briefly
from tracekit.errors import DataWarning, PairsError
from tracekit.models.tokenizers import adds_bos

_SHOWN = 3
"""Examples that are named."""
_TEXTS: Mapping[str, tuple[str, str]] = json.loads(
    Path(__file__).with_name("findings.json").read_text(encoding="utf-8")
)
"""By kind, in the order of the report: what follows "... of ... examples", and what to do."""


@dataclass(frozen=True)
class Finding:
    """Examples with the same peculiarity."""

    kind: str
    """One of `repeated`, `equal-continuations`, `equal-prompts`, `shifted`, `two-spaces`,
    `token-counts`; with a tokenizer also `special-tokens`, `two-bos`, `no-bos`, `padding-token`,
    `unknown-token`."""
    examples: tuple[int, ...]
    """Their numbers."""
    shown: tuple[str, ...]
    """The first three as a message shows them."""
    n_pairs: int
    """Pairs in all."""

    def __str__(self) -> str:
        phrase, advice = _TEXTS[self.kind]
        cases = [
            f"example {n}: {shown}" for n, shown in zip(self.examples, self.shown, strict=False)
        ]
        n_more = len(self.examples) - len(cases)
        more = f"; and {n_more} more" if n_more else ""
        return clean_text(
            f"{len(self.examples)} of {self.n_pairs} examples {phrase} "
            f"({'; '.join(cases)}{more}). {advice}"
        )


@dataclass(frozen=True)
class PairsReport:
    """Peculiarities of pairs, at most one finding of each kind."""

    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or "Nothing to remark on."

    def without(self, *kinds: str) -> PairsReport:
        """The report without findings of these kinds."""
        return PairsReport(tuple(each for each in self.findings if each.kind not in kinds))

    def warn(self, title: str = "") -> None:
        """Warns of each finding; the title says which pairs they are of."""
        for finding in self.findings:
            warn(f"{title}{finding}", DataWarning)

    @property
    def summary(self) -> str:
        """The counts, as `repr` of pairs ends."""
        parts = [f"{len(each.examples)} {each.kind.replace('-', ' ')}" for each in self.findings]
        return f"; {', '.join(parts)}" if parts else ""


def make_report(
    pairs: Sequence[PromptPair], token_texts: Mapping[int, str], tokenizer: Any = None
) -> PairsReport:
    """The report on pairs.

    Shifted examples need `token_texts`, the text of each token; special tokens the tokenizer.
    """
    seen: set[Any] = set()

    def is_repeated(pair: PromptPair) -> bool:
        identity = pair.identity
        return identity in seen or seen.add(identity) is not None

    tests: dict[str, Callable[[PromptPair], bool]] = {
        "repeated": is_repeated,
        "equal-continuations": lambda pair: pair.x_ids == pair.y_ids,
        "equal-prompts": lambda pair: (
            isinstance(pair.counterfactual, PromptCounterfactual) and not pair.differs
        ),
        "shifted": lambda pair: _is_shifted(pair, token_texts),
        "two-spaces": lambda pair: _has_two_spaces(pair, token_texts),
        "token-counts": _differs_in_count,
        **({} if tokenizer is None else _special_token_tests(tokenizer)),
    }
    findings = []
    for kind, test in tests.items():
        at = tuple(n for n, pair in enumerate(pairs) if test(pair))
        shown = tuple(_label(pairs[n], kind) for n in at[:_SHOWN])
        if at:
            findings.append(Finding(kind, at, shown, len(pairs)))
    return PairsReport(tuple(findings))


def check_padding(pairs: Iterable[PromptPair], tokenizer: Any) -> None:
    """Refuses token ids that end in padding, or have two padding tokens at one end."""
    pad = _padding_token(tokenizer)
    if pad is None:
        return
    has_own = all(getattr(tokenizer, f"{each}_token_id", None) != pad for each in ("eos", "bos"))
    for number, pair in enumerate(pairs):
        parts = {"prompt": pair.prompt_ids, "counterfactual": pair.counterfactual_ids}
        for part, ids in {**parts, "x": pair.x_ids, "y": pair.y_ids or ()}.items():
            n_first, n_last = _count_leading(ids, pad), _count_leading(ids[::-1], pad)
            if max(n_first, n_last) > 1 or (has_own and n_last):
                where = "ends" if n_last >= n_first else "begins"
                raise PairsError(
                    f"The {part} of example {number} ({pair.describe()}) {where} with padding "
                    f"(token {pad}). Leave padding out, e.g. ids[mask == 1]: prompts may have any "
                    "length."
                )


def _padding_token(tokenizer: Any) -> int | None:
    """The padding token; tokenizers without one use the end-of-sequence token."""
    pad = getattr(tokenizer, "pad_token_id", None)
    return getattr(tokenizer, "eos_token_id", None) if pad is None else pad


def _count_leading(ids: Sequence[int], token: int) -> int:
    return next((n for n, each in enumerate(ids) if each != token), len(ids))


def _differs_in_count(pair: PromptPair) -> bool:
    counts = {len(pair.x_ids), len(pair.y_ids or pair.x_ids)}
    # If one begins the other, another warning says so.
    return len(counts) > 1 and 1 in counts and pair.has_distinguishing_token


def _has_two_spaces(pair: PromptPair, token_texts: Mapping[int, str]) -> bool:
    texts = pair.texts or {}
    # Texts of a chat lack the end that its template adds.
    ends = texts.get("prompt", ""), token_texts.get(pair.prompt_ids[-1], "")
    is_after = any(text[-1:].isspace() for text in ends)
    return is_after and any(texts.get(part, "").startswith(" ") for part in ("x", "y"))


def _is_shifted(pair: PromptPair, token_texts: Mapping[int, str]) -> bool:
    """Whether an edited copy of the prompt has some of its words at other positions.

    Most tokens must be the prompt's, else it is an unrelated prompt. Words that exchange places are
    not shifted: each still begins where a word begins. Without texts, at least two tokens must have
    moved.
    """
    if not isinstance(pair.counterfactual, PromptCounterfactual):
        return False
    own, other = pair.prompt_ids, pair.counterfactual.ids
    if len(own) != len(other) or pair.counterfactual_spans is not None:
        return False
    n_same = sum(a == b for a, b in zip(own, other, strict=True))
    if n_same == len(own) or (
        token_texts and _word_starts(own, token_texts) == _word_starts(other, token_texts)
    ):
        return False
    n_first, n_last = count_shared(own, other), count_shared(own[::-1], other[::-1])
    middle = slice(n_first, len(own) - n_last)
    blocks = SequenceMatcher(None, own[middle], other[middle], autojunk=False).get_matching_blocks()
    n_matched = n_first + n_last + sum(block.size for block in blocks)
    return n_matched - n_same >= (1 if token_texts else 2) and 2 * n_matched >= len(own)


def _word_starts(ids: Ids, token_texts: Mapping[int, str]) -> list[bool]:
    return [not token_texts.get(token, "")[:1].isalnum() for token in ids]


def _special_token_tests(tokenizer: Any) -> dict[str, Callable[[PromptPair], bool]]:
    special = set(getattr(tokenizer, "all_special_ids", ()) or ())
    bos, pad = getattr(tokenizer, "bos_token_id", None), _padding_token(tokenizer)
    is_first, unknown = adds_bos(tokenizer), getattr(tokenizer, "unk_token_id", None)
    # Many tokenizers without unknown tokens name the end-of-sequence token instead.
    lacking = {unknown} - {None, bos, pad, getattr(tokenizer, "eos_token_id", None)}

    def both_prompts(pair: PromptPair) -> tuple[Ids, Ids]:
        return pair.prompt_ids, pair.counterfactual_ids

    def has_padding(ids: Ids) -> bool:
        return pad is not None and (ids[-1] == pad or (ids[0] == pad != bos))

    return {
        "special-tokens": lambda pair: bool(special & {*pair.x_ids[:-1], *(pair.y_ids or ())[:-1]}),
        "two-bos": lambda pair: any(ids[:2] == (bos, bos) for ids in both_prompts(pair)),
        "no-bos": lambda pair: is_first and any(ids[0] != bos for ids in both_prompts(pair)),
        "padding-token": lambda pair: any(map(has_padding, both_prompts(pair))),
        "unknown-token": lambda pair: bool(
            lacking & {*pair.tokens, *(pair.x_set_ids or ()), *(pair.y_set_ids or ())}
        ),
    }


def _label(pair: PromptPair, kind: str) -> str:
    texts = pair.texts or {}
    if kind == "shifted":
        other = texts.get("counterfactual")
        ids = list(pair.counterfactual_ids[:12])
        return f"{pair.describe()} / {quote_briefly(other) if other else ids}"
    if kind in ("equal-continuations", "token-counts", "special-tokens", "two-spaces"):
        sides = [
            f"{part} {texts[part]!r}" if part in texts else f"{part} {list(ids or ())}"
            for part, ids in (("x", pair.x_ids), ("y", pair.y_ids))
            if ids is not None
        ]
        return f"{pair.describe()}, {', '.join(sides)}"
    return pair.describe()
