"""Checks of pairs on a model, before they are traced: does it do the task, do the pairs show it?

A low probability of x is mostly one of its form: a leading space that is missing or one too many,
or an answer that a chat model begins otherwise. The likelier form is looked for on a few examples.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from tracekit._util import progress
from tracekit._util.markup import printable
from tracekit.data.counterfactuals import Ids, PromptCounterfactual
from tracekit.data.pair import PromptPair, independent
from tracekit.data.pairs_report import report_on
from tracekit.data.tokenization import encoder
from tracekit.errors import ConfigError, PairsError
from tracekit.models import HookedModel
from tracekit.models.hooked import device_of, frozen

if TYPE_CHECKING:
    import pandas as pd

Color = Literal["green", "yellow", "red"]

_BATCH = 16
_RED = ("equal-continuations", "equal-prompts")
"""Findings of the report after which a pair can show nothing."""
_MOST = 0.6
"""Share of the examples that one x may have."""
_CHANCE = 0.01
"""Chance, over all tokens, beyond which a token that stands with one x only is no accident."""
_LOW = 0.01
"""Median probability of x below which effects are of little."""
_FEWEST = 3
"""Independent examples that an interval needs."""
_TRIED = 16
"""Examples on which other forms of x are tried."""
_SURE, _LIKELIER = 10, 2
"""How often as probable another form is, at any probability and at one that is not low."""
_OF_SOME = 0.1
"""Share of the examples tried on which another form may be likelier."""
_Line = tuple[Color, str]
"""Color and text of a check."""
_THOUGHT = "after an empty think block"


@dataclass(frozen=True)
class CheckLine:
    """One check."""

    color: Color
    """`green`: as it should be; `yellow`: look at it; `red`: effects will say little."""
    topic: str
    """`task`, `form`, `tokens`, `balance`, `leak`, `groups`, or the kind of a finding of the
    report."""
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
        colors = {line.color for line in self.lines}
        return "red" if "red" in colors else "yellow" if "yellow" in colors else "green"

    def __str__(self) -> str:
        return "\n".join(printable(f"{each.color:<6} {each.text}") for each in self.lines)

    def __repr__(self) -> str:
        return f"PairsCheck({self.color}: {len(self.table)} pairs)\n{self}"


def check_pairs(
    pairs: Sequence[PromptPair],
    texts: Any,
    model: HookedModel,
    shown: bool | None = None,
    *,
    in_chat: bool = False,
) -> PairsCheck:
    """The checks of pairs, with a bar if `shown`; `texts` are those of tokens, by id.

    `in_chat` says that a chat template wrote the prompts.
    """
    table = _table(pairs, model, shown)
    tokenizer = getattr(model, "tokenizer", None)
    checks: dict[str, _Line | None] = {
        "task": _task(table),
        "form": _form(pairs, table, model, in_chat),
        "tokens": _tokens(table),
        "balance": _balance(pairs, texts),
        "leak": _leak(pairs, texts),
        "groups": _groups(pairs),
    }
    findings = report_on(pairs, texts, tokenizer).findings
    checks |= {
        each.kind: ("red" if each.kind in _RED else "yellow", str(each)) for each in findings
    }
    if not findings:
        checks["report"] = "green", "No repetitions, shifts or stray tokens."
    lines = [CheckLine(line[0], topic, line[1]) for topic, line in checks.items() if line]
    return PairsCheck(tuple(lines), table)


def _probabilities(
    pairs: Sequence[PromptPair], model: HookedModel, shown: bool | None = None
) -> tuple[list[float], list[float | None]]:
    """How probable the model finds x and y of each pair; None without y."""
    both = [(pair.prompt_ids, pair.x_ids) for pair in pairs]
    both += [(pair.prompt_ids, pair.y_ids) for pair in pairs if pair.y_ids]
    values = _mean_probabilities(both, model, shown).tolist()
    of_y = iter(values[len(pairs) :])
    return values[: len(pairs)], [next(of_y) if pair.y_ids else None for pair in pairs]


def _table(
    pairs: Sequence[PromptPair], model: HookedModel, shown: bool | None = None
) -> pd.DataFrame:
    """The table of a `PairsCheck`."""
    import pandas as pd

    p_x, of_y = _probabilities(pairs, model, shown)
    return pd.DataFrame(
        {
            "prompt": [pair.describe() for pair in pairs],
            "x": [(pair.texts or {}).get("x", str(list(pair.x_ids))) for pair in pairs],
            "y": [(pair.texts or {}).get("y", str(list(pair.y_ids or ()))) for pair in pairs],
            "p_x": p_x,
            "p_y": of_y,
            "prefers_x": [None if y is None else x > y for x, y in zip(p_x, of_y, strict=True)],
            "prompt_tokens": [len(pair.prompt_ids) for pair in pairs],
            "x_tokens": [len(pair.x_ids) for pair in pairs],
            "y_tokens": [len(pair.y_ids or ()) for pair in pairs],
        }
    )


def _mean_probabilities(
    sequences: Sequence[tuple[Ids, Ids]], model: HookedModel, shown: bool | None
) -> Float[np.ndarray, " sequence"]:
    """Geometric mean probability of the tokens of each continuation after its prompt."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, (prompt, continuation) in enumerate(sequences):
        by_length[len(prompt) + len(continuation)].append(number)
    # Of one length, so that nothing is padded.
    batches = [
        numbers[first : first + _BATCH]
        for numbers in by_length.values()
        for first in range(0, len(numbers), _BATCH)
    ]
    values = np.zeros(len(sequences))
    with frozen(model), torch.no_grad():
        for batch in progress.steps(batches, "check", shown=shown):
            tokens = torch.tensor([[*sequences[n][0], *sequences[n][1]] for n in batch])
            tokens = tokens.to(device_of(model))
            logits = model.run_with_hooks(tokens, fwd_hooks=[])
            for row, number in enumerate(batch):
                count = len(sequences[number][1])
                own = logits[row, -count - 1 : -1].float().log_softmax(-1)
                scores = own.gather(1, tokens[row, -count:, None])
                values[number] = scores.mean().exp().item()
    return values


def known_pairs(
    pairs: Sequence[PromptPair], model: HookedModel, probability: float
) -> tuple[list[int], list[str]]:
    """Numbers of the pairs of which x is so probable, and more so than y; a line for each other."""
    if not 0 <= probability <= 1:
        raise ConfigError(f"probability is {probability}. Give a number from 0 to 1.")
    numbers, dropped = [], []
    for number, (p_x, p_y) in enumerate(zip(*_probabilities(pairs, model), strict=True)):
        if p_x >= probability and (p_y is None or p_x > p_y):
            numbers.append(number)
        else:
            y = "" if p_y is None else f", y {p_y:.3g}"
            shown = pairs[number].describe()
            dropped.append(f"example {number}: {shown}, x has probability {p_x:.3g}{y}")
    if not numbers:
        raise PairsError(
            f"The model knows none of the {len(pairs)} pairs: with a probability of at least "
            f"{probability:g} it finds x more probable than y on none ({dropped[0]}). Lower "
            "probability, or trace another model."
        )
    return numbers, dropped


def _task(table: pd.DataFrame) -> _Line:
    n, compared = len(table), table["p_y"].notna()
    shown = f"Median probability of x {table['p_x'].median():.3g}"
    if not compared.any():
        share = table["p_x"].median()
        color = "green" if share >= 0.1 else "yellow" if share >= 0.01 else "red"
        return color, f"{shown}; there is no y to compare with."
    count, of = int(table["prefers_x"][compared].sum()), int(compared.sum())
    color = "green" if count >= 0.75 * of else "yellow" if count > 0.5 * of else "red"
    advice = "" if color == "green" else " pairs.known(model) keeps those that it knows."
    said = set(table["x"].where(table["prefers_x"].eq(True), table["y"]))
    if color != "green" and len(said) == 1 and of == n:
        color = "yellow"
        advice = (
            f" It prefers {said.pop()!r} whatever the prompt: a bias, no knowledge. "
            "Keep all pairs: differences of log-odds cancel it."
        )
    elif color == "green" and table["p_x"].median() < _LOW:
        color, advice = "yellow", " That is low: the model hardly says x at all."
    without = "" if of == n else f" ({n - of} have no y)"
    return color, f"The model prefers x to y on {count} of {of}{without}. {shown}.{advice}"


def _form(
    pairs: Sequence[PromptPair], table: pd.DataFrame, model: HookedModel, in_chat: bool
) -> _Line | None:
    """Whether x is likelier with or without its leading space, or after an empty think block.

    Compared is the probability of the whole text, as forms are of several numbers of tokens.
    """
    tokenizer = getattr(model, "tokenizer", None)
    if not callable(getattr(tokenizer, "decode", None)):
        return None
    tried = range(0, len(pairs), -(-len(pairs) // _TRIED))
    forms = [(n, *each) for n in tried for each in _other_forms(pairs[n], tokenizer, in_chat)]
    if not forms:
        return None
    means = _mean_probabilities([(prompt, ids) for *_, prompt, ids in forms], model, False)
    by_form: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (n, form, _, ids), mean in zip(forms, means, strict=True):
        whole = table["p_x"].iloc[n] ** len(pairs[n].x_ids)
        by_form[form].append((whole, mean ** len(ids)))
    likelier = {
        form: [(a, b) for a, b in each if b > _SURE * a or b > max(_LIKELIER * a, _LOW)]
        for form, each in by_form.items()
    }
    form = max(likelier, key=lambda form: (len(likelier[form]), np.sum(likelier[form])))
    own, other = np.median(likelier[form] or by_form[form], axis=0)
    count, of = len(likelier[form]), len(by_form[form])
    if count <= _OF_SOME * of:
        return "green", f"x has probability {own:.3g}, and {other:.3g} {form}."
    advice = "Give it so."
    if form == _THOUGHT:
        is_read = "enable_thinking" in str(getattr(tokenizer, "chat_template", ""))
        by = "chat={'enable_thinking': False}" if is_read else "a last message of the assistant"
        advice = f"Give the block by {by}."
    text = f"x is likelier {form}, on {count} of {of}: {other:.3g}, and {own:.3g} as it is."
    return "red" if 2 * count >= of else "yellow", f"{text} {advice}"


def _other_forms(pair: PromptPair, tokenizer: Any, in_chat: bool) -> Iterator[tuple[str, Ids, Ids]]:
    """Forms that x may be meant in: what each is, the prompt, and x."""
    prompt, x = (tokenizer.decode(list(ids)) for ids in (pair.prompt_ids, pair.x_ids))
    ids, encode = pair.prompt_ids, encoder(tokenizer)
    with suppress(PairsError):  # The tokenizer joins a form to the prompt.
        if (
            in_chat
            and "</think>" in str(tokenizer.chat_template)
            and "</think>" not in prompt[-20:]
        ):
            opening = "" if prompt.rstrip().endswith("<think>") else "<think>\n"
            yield _THOUGHT, (*ids, *encode(prompt, f"{opening}\n</think>\n\n")), pair.x_ids
        is_spaced = x.startswith(" ")
        other = tuple(encode(prompt, x[1:] if is_spaced else f" {x}"))
        if not x.strip() or tuple(encode(prompt, x)) != pair.x_ids or other in ((), pair.x_ids):
            return
        yield f"with{'out its' if is_spaced else ' a'} leading space", ids, other
        if len(ids) > 1 and not tokenizer.decode([ids[-1]]).strip(" "):
            label = "with a leading space, and none at the end of the prompt"
            yield label, ids[:-1], pair.x_ids if is_spaced else other


def _groups(pairs: Sequence[PromptPair]) -> _Line | None:
    """How many independent examples groups leave."""
    if all(pair.group is None for pair in pairs):
        return None
    n = len(set(independent(pairs)))
    shown = f"{len(pairs)} pairs in groups are {n} independent examples"
    if n >= _FEWEST:
        return "green", f"{shown}."
    return "yellow", f"{shown}: an interval needs {_FEWEST}. Give pairs of more groups."


def _tokens(table: pd.DataFrame) -> _Line:
    """Whether x and y are one token each; whether prompts are of one length."""
    longer = ((table["x_tokens"] > 1) | (table["y_tokens"] > 1)).sum()
    low, high = table["prompt_tokens"].min(), table["prompt_tokens"].max()
    of = f"Prompts have {low} tokens" if low == high else f"Prompts have {low} to {high} tokens"
    if not longer:
        return "green", f"x and y are one token each. {of}."
    shown = f"x or y is several tokens on {longer} of {len(table)}"
    return "yellow", f"{shown}; probabilities are means over them. {of}."


def _balance(pairs: Sequence[PromptPair], texts: Any) -> _Line:
    """Whether one x is much more frequent than the others."""
    first, count = Counter(pair.x_ids[0] for pair in pairs).most_common(1)[0]
    share = count / len(pairs)
    shown = f"The commonest x begins with {texts.get(first, first)!r}: {count} of {len(pairs)}."
    if share <= _MOST:
        return "green", shown
    return "yellow", f"{shown} What raises it everywhere looks like the task: balance x."


def _leak(pairs: Sequence[PromptPair], texts: Any) -> _Line:
    """Whether a length, or a token that the counterfactual leaves as it is, gives x away."""
    longer = [len(pair.x_ids) - len(pair.y_ids) for pair in pairs if pair.y_ids]
    if longer and (all(n > 0 for n in longer) or all(n < 0 for n in longer)):
        word = "more" if longer[0] > 0 else "fewer"
        return "yellow", f"x has {word} tokens than y on every example, which tells them apart."
    firsts = Counter(pair.x_ids[0] for pair in pairs)
    by_token: dict[int, list[int]] = defaultdict(list)
    for pair in pairs:
        other = pair.counterfactual_ids
        is_prompt = isinstance(pair.counterfactual, PromptCounterfactual)
        same = {a for a, b in zip(pair.prompt_ids, other, strict=False) if a == b}
        # A name that x repeats is the task, not a leak.
        for token in (same if is_prompt else set()) - {*pair.x_ids, *(pair.y_ids or ())}:
            by_token[token].append(pair.x_ids[0])
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
