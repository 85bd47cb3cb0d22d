"""Whether pairs show what is meant: a report on the pairs alone, and a check on a model.

The report names examples that are useless, or show something else than was meant. The check says
before a trace whether the model does the task, and whether the pairs show it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import ceil
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float

from tracekit._util import progress
from tracekit._util.clusters import FEWEST
from tracekit._util.deferred import pd
from tracekit._util.markup import clean_text
from tracekit._util.warn import warn
from tracekit.data.counterfactuals import Ids, PromptCounterfactual
from tracekit.data.pair import (
    PromptPair,
    cluster_ids,
    count_shared,
    describe_independent,
    overlap_texts,
    quote_briefly,
)
from tracekit.data.tokenization import make_encoder
from tracekit.errors import ConfigError, DataWarning, PairsError
from tracekit.models import HookedModel
from tracekit.models.hooked import device_of, freeze
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
    not shifted: each still begins where a word begins. Without texts, two tokens must have moved.
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


Color = Literal["green", "yellow", "red"]
"""From the best to the worst."""
_BATCH = 16
_FATAL = ("equal-continuations", "equal-prompts")
"""Findings of the report that make a pair useless."""
_MAX_SHARE = 0.6
"""Share of the examples that one x may have."""
_CHANCE = 0.01
"""Probability below which a token that occurs with one x only is not due to chance."""
_LOW_PROBABILITY = 0.01
"""Median probability of x below which the model hardly ever answers x."""
_BIAS_SHARE = 0.9
"""Share of the examples beyond which a preference for one answer is a bias."""
_N_TRIED = 16
"""Examples on which other forms of x and y are tried."""
_SURE, _LIKELIER = 10, 2
"""Ratios from which another form is likelier: at any probability, and at one that is not low."""
_MAX_LIKELIER = 0.1
"""Share of the examples tried on which another form may be likelier."""
_Line = tuple[Color, str]
"""Color and text of a check."""
_Sequence = tuple[Ids, Ids]
"""A prompt, and a continuation of it."""
_THINK_FORM = "after an empty think block"


@dataclass(frozen=True)
class CheckLine:
    """One check."""

    color: Color
    """`green`: as it should be; `yellow`: look at it; `red`: effects will say little."""
    topic: str
    """`task`, `form` (of x), `form-of-y`, `form-of-x_set`, `form-of-y_set`, `tokens`, `beginnings`,
    `balance`, `leak`, `groups`, or the kind of a finding of the report."""
    text: str
    """What was found, and what to do."""


@dataclass(frozen=True, eq=False)
class PairsCheck:
    """What `PromptPairs.check` finds."""

    lines: tuple[CheckLine, ...]
    """One for each check."""
    table: pd.DataFrame
    """A row per example: `prompt`, `x`, `y`, the probabilities `p_x` and `p_y` (the geometric mean
    over tokens), `prefers_x` (None without y), tokens of prompt, x and y."""

    @property
    def color(self) -> Color:
        """The worst of the lines."""
        colors: list[Color] = ["green", *(line.color for line in self.lines)]
        return max(colors, key=get_args(Color).index)

    def __str__(self) -> str:
        return "\n".join(clean_text(f"{each.color:<6} {each.text}") for each in self.lines)

    def __repr__(self) -> str:
        return f"PairsCheck({self.color}: {len(self.table)} pairs)\n{self}"


def check_pairs(
    pairs: Sequence[PromptPair],
    model: HookedModel,
    parts: Sequence[Sequence[PromptPair]],
    texts: Mapping[int, str],
    in_chat: bool,
    shown: bool | None,
) -> PairsCheck:
    """Checks pairs on a model; arguments as in `PromptPairs.check`.

    `texts` has the text of each token, if known; `in_chat` whether a chat template wrote them.
    """
    table, overlaps = _tabulate(pairs, model, shown), overlap_texts(pairs, texts)
    checks: dict[str, _Line | None] = {
        "task": _check_task(pairs, table),
        **_check_forms(pairs, model, in_chat),
        "tokens": _check_token_counts(table),
        "beginnings": ("yellow", " ".join(overlaps)) if overlaps else None,
        "balance": _check_balance(pairs, texts),
        "leak": _check_leaks(pairs, texts),
        "groups": _check_groups(parts or [pairs]),
    }
    findings = make_report(pairs, texts, getattr(model, "tokenizer", None)).findings
    checks |= {
        each.kind: ("red" if each.kind in _FATAL else "yellow", str(each)) for each in findings
    }
    if not findings:
        checks["report"] = "green", "No repetitions, shifts or stray tokens."
    lines = [CheckLine(line[0], topic, line[1]) for topic, line in checks.items() if line]
    return PairsCheck(tuple(lines), table)


def _tabulate(pairs: Sequence[PromptPair], model: HookedModel, shown: bool | None) -> pd.DataFrame:
    both = [(pair.prompt_ids, pair.x_ids) for pair in pairs]
    both += [(pair.prompt_ids, pair.y_ids) for pair in pairs if pair.y_ids]
    values = iter(_mean_probabilities(both, model, shown).tolist())
    p_x = [next(values) for _ in pairs]
    p_y = [next(values) if pair.y_ids else None for pair in pairs]
    return pd.DataFrame(
        {
            "prompt": [pair.describe() for pair in pairs],
            **dict(zip("xy", zip(*map(answer_texts, pairs), strict=True), strict=True)),
            "p_x": p_x,
            "p_y": p_y,
            "prefers_x": [None if y is None else x > y for x, y in zip(p_x, p_y, strict=True)],
            "prompt_tokens": [len(pair.prompt_ids) for pair in pairs],
            "x_tokens": [len(pair.x_ids) for pair in pairs],
            "y_tokens": [len(pair.y_ids or ()) for pair in pairs],
        }
    )


def _mean_probabilities(
    sequences: Sequence[_Sequence], model: HookedModel, shown: bool | None
) -> Float[np.ndarray, " sequence"]:
    # Continuations of one token share one run of their prompt.
    readers: dict[Ids, list[int]] = defaultdict(list)
    for number, (prompt, continuation) in enumerate(sequences):
        readers[(*prompt, *continuation[:-1])].append(number)
    by_length: dict[int, list[Ids]] = defaultdict(list)
    for read in readers:
        by_length[len(read)].append(read)
    batches = [
        equal[first : first + _BATCH]
        for equal in by_length.values()
        for first in range(0, len(equal), _BATCH)
    ]
    values = np.zeros(len(sequences))
    with freeze(model), torch.no_grad():
        for batch in progress.track(batches, "check", shown=shown):
            tokens = torch.tensor(batch, device=device_of(model))
            logits = model.run_with_hooks(tokens, fwd_hooks=[])
            for row, read in enumerate(batch):
                longest = max(len(sequences[number][1]) for number in readers[read])
                scores = logits[row, -longest:].float().log_softmax(-1).cpu()
                for number in readers[read]:
                    ids = torch.tensor(sequences[number][1])
                    of_tokens = scores[-len(ids) :].gather(1, ids[:, None])
                    values[number] = of_tokens.mean().exp().item()
    return values


def select_known(
    pairs: Sequence[PromptPair], model: HookedModel, probability: float
) -> tuple[list[int], list[str]]:
    """Numbers of the pairs with P(x) >= `probability` and P(x) > P(y); a line for each other."""
    if not 0 <= probability <= 1:
        raise ConfigError(f"probability is {probability}. Give a number from 0 to 1.")
    table, numbers, dropped = _tabulate(pairs, model, None), [], []
    for number, row in enumerate(table.to_dict("records")):
        if row["p_x"] >= probability and row["prefers_x"] is not False:
            numbers.append(number)
        else:
            y = "" if row["prefers_x"] is None else f", y {row['p_y']:.3g}"
            shown = f"{row['prompt']}, x has probability {row['p_x']:.3g}{y}"
            dropped.append(f"example {number}: {shown}")
    if not numbers:
        raise PairsError(
            f"The model knows none of the {len(pairs)} pairs: with a probability of at least "
            f"{probability:g} it finds x more probable than y on none ({dropped[0]}). Lower "
            "probability, or trace another model."
        )
    bias = describe_bias(pairs, table["prefers_x"])
    if bias and len({pairs[number].x_ids for number in numbers}) == 1:
        warn(f"All {len(numbers)} pairs that are known have one x. {bias}", DataWarning)
    return numbers, dropped


def describe_bias(pairs: Iterable[PromptPair], prefers_x: Iterable[bool | None]) -> str:
    """Describes a preference for one answer both where it is x and where it is y; else empty."""
    rows = [(*answer_texts(p), is_x) for p, is_x in zip(pairs, prefers_x, strict=True) if p.y_ids]
    if not rows:
        return ""
    answers = Counter(x if is_x else y for x, y, is_x in rows)
    answer, times = answers.most_common(1)[0]
    where_x = [bool(is_x) for x, _, is_x in rows if x == answer]
    where_y = [not is_x for _, y, is_x in rows if y == answer]
    is_everywhere = 2 * sum(where_x) > len(where_x) and 2 * sum(where_y) > len(where_y)
    if times < _BIAS_SHARE * len(rows) or not is_everywhere:
        return ""
    return (
        f"The model prefers {answer!r} on {times} of {len(rows)}, whatever the prompt: this is a "
        "bias, not knowledge. Keep all pairs, as differences of log-odds cancel it, and do not "
        "filter them by pairs.known(model)."
    )


def answer_texts(pair: PromptPair) -> tuple[str, str]:
    """Texts of x and y, or their ids."""
    texts = pair.texts or {}
    return texts.get("x", str([*pair.x_ids])), texts.get("y", str([*(pair.y_ids or ())]))


def _check_task(pairs: Sequence[PromptPair], table: pd.DataFrame) -> _Line:
    n, compared = len(table), table["p_y"].notna()
    shown = f"Median probability of x {table['p_x'].median():.3g}"
    if not compared.any():
        median = table["p_x"].median()
        color = "green" if median >= 0.1 else "yellow" if median >= 0.01 else "red"
        return color, f"{shown}; there is no y to compare with."
    count, of = int(table["prefers_x"][compared].sum()), int(compared.sum())
    color: Color = "green" if count >= 0.75 * of else "yellow" if count > 0.5 * of else "red"
    bias, advice = describe_bias(pairs, table["prefers_x"]), ""
    if color == "green" and table["p_x"].median() < _LOW_PROBABILITY:
        color, advice = "yellow", " That is low: the model hardly says x at all."
    elif color != "green" and bias:
        color, advice = "yellow", f" {bias}"
    elif color != "green":
        advice = " Exchange x and y, or the prompts, unless that is meant."
        if count:
            advice = " pairs.known(model) keeps those that it knows."
    without = "" if of == n else f" ({n - of} have no y)"
    return color, f"The model prefers x to y on {count} of {of}{without}. {shown}.{advice}"


def _check_forms(
    pairs: Sequence[PromptPair], model: HookedModel, in_chat: bool
) -> dict[str, _Line]:
    """Checks whether x, y or a token set is likelier in another form, e.g. with a space."""
    tokenizer = getattr(model, "tokenizer", None)
    if not callable(getattr(tokenizer, "decode", None)):
        return {}
    tried = pairs[:: ceil(len(pairs) / _N_TRIED)]
    forms = [each for pair in tried for each in _other_forms(pair, tokenizer, in_chat)]
    sequences = [sequence for *_, given, other in forms for sequence in (*given, *other)]
    if not sequences:
        return {}
    lengths = np.array([len(ids) for _, ids in sequences])
    probabilities = iter(_mean_probabilities(sequences, model, False) ** lengths)
    by_part: dict[str, dict[str, list[Any]]] = {}
    for part, form, *both in forms:
        sums = tuple(sum(next(probabilities) for _ in each) for each in both)
        by_part.setdefault(part, defaultdict(list))[form].append(sums)
    lines = {part: _compare_forms(part, each, tokenizer) for part, each in by_part.items()}
    return {
        "form" if part == "x" else f"form-of-{part}": line
        for part, line in lines.items()
        if part == "x" or line[0] != "green"
    }


def _compare_forms(
    part: str, by_form: Mapping[str, Sequence[tuple[float, float]]], tokenizer: Any
) -> _Line:
    likelier = {
        form: [(a, b) for a, b in each if b > _SURE * a or b > max(_LIKELIER * a, _LOW_PROBABILITY)]
        for form, each in by_form.items()
    }
    form = max(likelier, key=lambda form: (len(likelier[form]), np.sum(likelier[form])))
    own, other = np.median(likelier[form] or by_form[form], axis=0)
    count, of = len(likelier[form]), len(by_form[form])
    if count <= _MAX_LIKELIER * of:
        return (
            "green",
            f"{part} has a median probability of {own:.3g}, and {other:.3g} {form} ({of} tried).",
        )
    is_read = "enable_thinking" in str(getattr(tokenizer, "chat_template", ""))
    by = "chat={'enable_thinking': False}" if is_read else "a last message of the assistant"
    advice = f"Give the block by {by}." if form == _THINK_FORM else "Give it so."
    text = f"{part} is likelier {form}, on {count} of {of}: {other:.3g}, and {own:.3g} as it is."
    return "red" if 2 * count >= of else "yellow", f"{text} {advice}"


def _other_forms(
    pair: PromptPair, tokenizer: Any, in_chat: bool
) -> Iterator[tuple[str, str, list[_Sequence], list[_Sequence]]]:
    """Yields other forms of x, y and sets: part, form, and sequences as given and in that form."""
    ids, encode = pair.prompt_ids, make_encoder(tokenizer)
    prompt = tokenizer.decode(list(ids))
    if in_chat and "</think>" in str(tokenizer.chat_template) and "</think>" not in prompt[-20:]:
        opening = "" if prompt.rstrip().endswith("<think>") else "<think>\n"
        with suppress(PairsError):  # The tokenizer joins a form to the prompt.
            thought = (*ids, *encode(prompt, f"{opening}\n</think>\n\n"))
            yield "x", _THINK_FORM, [(ids, pair.x_ids)], [(thought, pair.x_ids)]
    forms = [("with one leading space", ids, " "), ("without its leading space", ids, "")]
    if len(ids) > 1 and not tokenizer.decode([ids[-1]]).strip(" "):
        forms.append(("with a leading space, and none at the end of the prompt", ids[:-1], " "))
    parts = {"x": [pair.x_ids], "y": [pair.y_ids or ()]}
    for part, tokens in (("x_set", pair.x_set_ids), ("y_set", pair.y_set_ids)):
        parts[part] = [(token,) for token in tokens or ()]
    for part, given in parts.items():
        texts = {tokenizer.decode(list(each)): each for each in given}
        with suppress(PairsError):
            texts = {t: i for t, i in texts.items() if t.strip() and tuple(encode(prompt, t)) == i}
            as_given = [(ids, each) for each in texts.values()]
            for form, read, space in forms:
                before, words = tokenizer.decode(list(read)), [text.lstrip(" ") for text in texts]
                other = [(read, tuple(encode(before, f"{space}{word}"))) for word in words]
                if other != as_given and all(each for _, each in other):
                    yield part, form, as_given, other


def _check_groups(parts: Sequence[Sequence[PromptPair]]) -> _Line | None:
    shown = "; held out: ".join(map(describe_independent, parts))
    counts = [len(set(cluster_ids(part))) for part in parts]
    if min(counts) >= FEWEST:
        are_grouped = any(pair.group is not None for part in parts for pair in part)
        return ("green", f"{shown}.") if are_grouped else None
    is_one = any(n == 1 < len(part) for n, part in zip(counts, parts, strict=True))
    text = (
        f"{shown}. An interval needs {FEWEST} independent ones: give more, or pairs of more groups."
    )
    return "red" if is_one else "yellow", text


def _check_token_counts(table: pd.DataFrame) -> _Line:
    longer = ((table["x_tokens"] > 1) | (table["y_tokens"] > 1)).sum()
    low, high = table["prompt_tokens"].min(), table["prompt_tokens"].max()
    of = f"Prompts have {low} tokens" if low == high else f"Prompts have {low} to {high} tokens"
    if not longer:
        return "green", f"x and y are one token each. {of}."
    shown = f"x or y is several tokens on {longer} of {len(table)}"
    return "yellow", f"{shown}; probabilities are means over them. {of}."


def _check_balance(pairs: Sequence[PromptPair], texts: Any) -> _Line:
    tokens = Counter(pair.x_ids[pair.answer_position] for pair in pairs)
    first, count = tokens.most_common(1)[0]
    share, begun = count / len(pairs), any(pair.n_shared for pair in pairs)
    begins = "goes on, after what it shares with y," if begun else "begins"
    shown = f"The commonest x {begins} with {texts.get(first, first)!r}: {count} of {len(pairs)}."
    if share <= _MAX_SHARE:
        return "green", shown
    return "yellow", f"{shown} A part that always raises it would seem to do the task: balance x."


def _check_leaks(pairs: Sequence[PromptPair], texts: Any) -> _Line:
    longer = [len(pair.x_ids) - len(pair.y_ids) for pair in pairs if pair.y_ids]
    if longer and (all(n > 0 for n in longer) or all(n < 0 for n in longer)):
        word = "more" if longer[0] > 0 else "fewer"
        return "yellow", f"x has {word} tokens than y on every example, which tells them apart."
    firsts = Counter(pair.x_ids[pair.answer_position] for pair in pairs)
    by_token: dict[int, list[int]] = defaultdict(list)
    for pair in pairs:
        other = pair.counterfactual_ids
        is_prompt = isinstance(pair.counterfactual, PromptCounterfactual)
        same = {a for a, b in zip(pair.prompt_ids, other, strict=False) if a == b}
        # A name that x repeats is the task, not a leak.
        for token in (same if is_prompt else set()) - {*pair.x_ids, *(pair.y_ids or ())}:
            by_token[token].append(pair.x_ids[pair.answer_position])
    leaks = [
        (token, values[0], len(values))
        for token, values in by_token.items()
        if len(set(values)) == 1
        and (firsts[values[0]] / len(pairs)) ** len(values) * len(by_token) < _CHANCE
    ]
    if not leaks:
        return "green", "No length and no unchanged word gives x away."
    token, value, count = max(leaks, key=lambda leak: leak[2])
    return (
        "yellow",
        f"The token {texts.get(token, token)!r}, which the counterfactual leaves as it is, stands "
        f"with the x {texts.get(value, value)!r} only, in {count} examples: the model needs "
        "nothing else to answer. Vary it.",
    )
