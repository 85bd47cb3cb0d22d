"""What heads of a set look at, clean and counterfactual, and what they write to the logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.markup import interval_text, printable
from tracekit.anatomy.of_members import OfMembers, facts_of
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.data.pair import PromptPair
from tracekit.data.prompts import PromptPairs
from tracekit.data.spans import LAST, REST, position_names, with_implied
from tracekit.engine.engine import Engine
from tracekit.engine.head_reads import contributions, head_reads
from tracekit.errors import ComponentError, PairsError
from tracekit.results.display import text_html
from tracekit.results.intervals import check_clusters, row_intervals
from tracekit.results.storage import load, save

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

ATTENTION = "attention.json"
"""Name of its document in a folder."""
_FIRST = "first"
"""The first token, where it is of no span: many heads rest there."""
_HOOKS = ("attn.hook_z", "attn.hook_pattern")


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention(OfMembers):
    """Attention of heads from a token of each prompt, and their direct contributions.

    The direct contribution of a head is the logit of x less that of y (their first tokens; without
    y the logit of x) that its output at the last token alone gives through the final norm and the
    unembedding, the scale of the norm frozen at that of the clean run (folded norm). `direction`
    does not matter here: `clean` is of the prompts, `counterfactual` of what takes their place.
    """

    at: str
    """Place whose last token attends."""
    places: tuple[str, ...]
    """What is attended to: spans of the prompts, or their positions."""
    clean: Float[Tensor, "head place example"]
    """Attention in the clean run, summed over the tokens of a place; this and all others times the
    weight of the example, if it has one."""
    counterfactual: Float[Tensor, "head place example"] | None
    """The same in the counterfactual run; None where the source is no run of the model."""
    direct: Float[Tensor, "head example"]
    """Direct contribution of each head in the clean run."""
    counterfactual_direct: Float[Tensor, "head example"] | None
    """Of its output in the counterfactual run."""
    left_out: ComponentSet
    """Members of the set that are no heads."""

    @property
    def labels(self) -> list[str]:
        """Printed names of the heads."""
        return [f"L{each.layer}H{each.index}" for each in self.components]

    @property
    def said_at(self) -> str:
        """Which token attends, in words."""
        return "from the last token" + (f" of {self.at}" if self.at != LAST else "")

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row for each head and place.

        Columns: `component`, `place`, and the mean attention `clean` and `counterfactual`, each
        with its 95 % studentised bootstrap interval over examples, `..._low` and `..._high`.
        """
        frame = self._frame([self.clean, self.counterfactual])
        n_heads, n_places = len(self.labels), len(self.places)
        frame.insert(0, "component", [each for each in self.labels for _ in range(n_places)])
        frame.insert(1, "place", [*self.places] * n_heads)
        return frame

    @cached_property
    def contributions(self) -> pd.DataFrame:
        """A pandas DataFrame with a row for each head: `component`, and its direct contribution.

        Columns as in `table`; in logits.
        """
        frame = self._frame([self.direct, self.counterfactual_direct])
        frame.insert(0, "component", self.labels)
        return frame

    def to_frame(self) -> pd.DataFrame:
        """The table; see there."""
        return self.table

    def _frame(self, of_runs: Sequence[Tensor | None]) -> pd.DataFrame:
        import pandas as pd

        columns: dict[str, Any] = {}
        for name, rows in zip(("clean", "counterfactual"), of_runs, strict=True):
            if rows is not None:
                rows = rows.double().reshape(-1, rows.shape[-1])
                low, high = row_intervals(rows, **self.over).T.tolist()
                columns |= {name: rows.mean(1).tolist()}
                columns |= {f"{name}_low": low, f"{name}_high": high}
        return pd.DataFrame(columns)

    def figure(self) -> go.Figure:
        """A row for each head and run: attention by place, and the direct contribution beside it.

        The numbers are those of `table` and `contributions`.
        """
        from tracekit.anatomy.figures import attention_figure

        return attention_figure(self)

    def save(self, folder: str | Path) -> Path:
        """Writes it to a folder, such as that of its run; returns the folder."""
        save(self, Path(folder) / ATTENTION)
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Attention:
        """Reads what `save` wrote.

        Raises:
            ResultNotFoundError: The folder holds none.
            ResultFormatError: It is of another format, damaged, or of several saves.
        """
        return load(cls, Path(folder) / ATTENTION)

    def check_consistent(self) -> None:
        """Refuses parts that do not belong together.

        Raises:
            ValueError: They do not.
        """
        check_clusters(self.clusters)
        shape = (len(self.members), len(self.places))
        if not self.members or self.clean.shape[:2] != shape:
            raise ValueError(f"the attention is of other heads or places than {shape}")
        indices = {*self.members, *self.left_out}
        if not all(0 <= index < len(self.registry) for index in indices):
            raise ValueError(f"the members are of {len(self.registry)} components")

    def __str__(self) -> str:
        """The findings, a line for each head."""
        examples = f", {self.examples}" if self.examples else ""
        lines = [
            f"Attention of {len(self.labels)} heads of {self.model} on {self.dataset}, "
            f"{self.said_at}{examples}; contributions in logits, the final norm's scale frozen."
        ]
        for row in self.contributions.to_dict("records"):
            of_head: Any = self.table[self.table["component"] == row["component"]]
            places = sorted(of_head.to_dict("records"), key=lambda each: -each["clean"])
            seen = [f"{each['place']} {_change(each, '.2f')}" for each in places[:2]]
            ends = interval_text(row["clean_low"], row["clean_high"])
            lines.append(
                f"{row['component']} attends to {' and '.join(seen)}; contributes "
                f"{_change(row, '+.3g')} (clean {ends})."
            )
        if self.counterfactual is None:
            lines.append(f"The source {self.source!r} is no run of the model: all is clean.")
        if self.left_out:
            names = ", ".join(map(self.registry.label, self.left_out))
            lines.append(f"No heads, so left out: {names}.")
        return printable("\n".join(lines))

    _repr_html_ = text_html

    def __repr__(self) -> str:
        return printable(
            f"Attention({len(self.labels)} heads of {self.model} on {self.dataset}, "
            f"{len(self.places)} places)"
        )


def _change(row: Mapping[Any, Any], form: str) -> str:
    """A mean in the clean run, and what it becomes."""
    after = f" \u2192 {row['counterfactual']:{form}}" if "counterfactual" in row else ""
    return f"{row['clean']:{form}}{after}"


def read_attention(
    asked: Engine,
    clean: Engine,
    counterfactual: Engine | None,
    members: ComponentSet,
    *,
    at: str,
    token_text: Any,
    **facts: Any,
) -> Attention:
    """What heads look at; see `Tracer.attention`.

    Args:
        asked: The engine of the tracer: one of the others.
        clean: Starts from the prompts.
        counterfactual: Starts from the counterfactuals; None where they are no runs of the model.
        members: Of which heads are read.
        at: Place whose last token attends.
        token_text: Text of a token, which names positions; None: numbers do.
        **facts: Model, source and where the set was selected, as an `Attention` holds them.
    """
    registry, before = asked.registry, asked.cost
    heads = _heads_of(registry, members)
    if not heads:
        names = ", ".join(map(registry.label, members)) or "none"
        raise ComponentError(
            f"No member ({names}) is a head. Give head-outputs or attention-patterns."
        )
    engines = [clean] if counterfactual is None else [clean, counterfactual]
    names, weights = _place_names(clean.pairs, token_text), clean.pairs.weights
    weights = 1.0 if weights is None else weights
    if at not in (*names, LAST):
        raise PairsError(f"The prompts have no place {at!r}. Give one of {', '.join(names)}.")
    runs = [
        head_reads(engine.data, list(heads), _queries(engine.pairs, names, at))
        for engine in engines
    ]
    patterns = [
        weights * _by_place(engine.pairs, names, read.patterns)
        for engine, read in zip(engines, runs, strict=True)
    ]
    direct = [weights * contributions(clean.data, read.outputs, runs[0].streams) for read in runs]
    return Attention(
        members=tuple(heads.values()),
        at=at,
        places=names,
        clean=patterns[0],
        counterfactual=patterns[1] if counterfactual else None,
        direct=direct[0],
        counterfactual_direct=direct[1] if counterfactual else None,
        left_out=tuple(m for m in members if registry.site_of(m).kind.hook not in _HOOKS),
        **facts,
        **facts_of(asked, before),
    )


def _heads_of(registry: ComponentRegistry, members: ComponentSet) -> dict[tuple[int, int], int]:
    """Layer and index of each head, and the first member that it is."""
    heads: dict[tuple[int, int], int] = {}
    for member in members:
        component = registry[member]
        if registry.site_of(member).kind.hook in _HOOKS:
            heads.setdefault((component.layer, component.index), member)
    return heads


def _place_names(pairs: PromptPairs, token_text: Any) -> tuple[str, ...]:
    """Spans if all pairs have some, with the implied ones; else positions."""
    if _has_spans(pairs):
        order = [_FIRST, *(pairs[0].spans or {}), LAST, REST]
        names = {name for pair in pairs for name in _spans_of(pair)}
        return tuple(
            sorted(names, key=lambda name: (name not in order, [*order, name].index(name)))
        )
    lengths = {len(ids) for pair in pairs for ids in (pair.prompt_ids, pair.counterfactual_ids)}
    if len(lengths) > 1:
        raise PairsError(
            f"The prompts have {min(lengths)} to {max(lengths)} tokens, and no spans. Give every "
            "example spans, or prompts of one length."
        )
    return position_names([pair.prompt_ids for pair in pairs], token_text)


def _has_spans(pairs: PromptPairs) -> bool:
    return all(pair.spans is not None for pair in pairs)


def _spans_of(pair: PromptPair) -> dict[str, tuple[int, ...]]:
    """Positions of the spans of a prompt, the implied ones too: each is of one."""
    spans = with_implied(pair.spans or {}, len(pair.prompt_ids), rest=True)
    rest = spans.pop(REST, ())
    if rest[:1] == (0,):
        spans[_FIRST], rest = (0,), rest[1:]
    return spans | ({REST: rest} if rest else {})


def _queries(pairs: PromptPairs, names: Sequence[str], at: str) -> Int[Tensor, " example"] | None:
    """Position that attends in each prompt; None: the last."""
    if at == LAST:
        return None
    if not _has_spans(pairs):
        return torch.full((len(pairs),), names.index(at))
    lacking = [number for number, pair in enumerate(pairs) if at not in _spans_of(pair)]
    if lacking:
        raise PairsError(f"Example {lacking[0]} has no token of {at!r}. Give another place.")
    return torch.tensor([_spans_of(pair)[at][-1] for pair in pairs])


def _by_place(
    pairs: PromptPairs, names: Sequence[str], patterns: Float[Tensor, "head example key"]
) -> Float[Tensor, "head place example"]:
    """Attention to each place, summed over its tokens."""
    if not _has_spans(pairs):
        return patterns[..., : len(names)].transpose(1, 2)
    by_place = torch.zeros(len(patterns), len(names), len(pairs))
    for number, pair in enumerate(pairs):
        for name, positions in _spans_of(pair).items():
            by_place[:, names.index(name), number] = patterns[:, number, list(positions)].sum(-1)
    return by_place
