"""What heads of a set look at, clean and counterfactual, and what they write to the logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells, clean_text, interval_text, number_text
from tracekit.components import ComponentSet
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.prompts import PromptPairs
from tracekit.data.spans import LAST, REST, Spans, add_implied_spans, position_names
from tracekit.engine.head_reads import HeadActivity, direct_contributions, measure_heads
from tracekit.errors import ComponentError, PairsError
from tracekit.figures.charts import HeadRow, attention_map
from tracekit.figures.style import data_and_model, plain
from tracekit.measure.question import Question, token_text_of
from tracekit.metrics import Bounds
from tracekit.results.display import Tabular
from tracekit.results.intervals import UNBOUNDED, row_intervals
from tracekit.results.on_examples import OfMembers

_FIRST = "first"
"""The first token, where it is of no span: many heads rest there."""
_HOOKS = ("attn.hook_z", "attn.hook_pattern")


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention(OfMembers, Tabular):
    """Attention of heads from a token of each prompt, and their direct contributions.

    The direct contribution of a head is the change of the logit of x less that of y (their first
    tokens that differ; without y the first token of x) that its output alone makes through all
    norms behind it and the unembedding, where that token is predicted: at the last token of the
    prompt, or of the beginning that x and y share. The scales of these norms (the final one, and
    one behind the attention where the model has it) are those of the clean run, so the
    contributions of the heads of a layer add up to that of their attention block without its
    biases. Logits are those before a final soft cap. `direction` does not matter here: `clean` is
    of the prompts, `counterfactual` of what takes their place.
    """

    FILE: ClassVar[str] = "attention.json"
    MEASURED: ClassVar[str] = "direct"

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
    def query_text(self) -> str:
        """Which token attends, in words."""
        return "from the last token" + (f" of {self.at}" if self.at != LAST else "")

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row for each head and place.

        Columns: `component`, `place`, and the mean attention `clean` and `counterfactual`, each
        with its 95 % studentised bootstrap interval over examples, `..._low` and `..._high`.
        """
        frame = self._frame([self.clean, self.counterfactual], Bounds(0.0, 1.0))
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

    def _frame(self, of_runs: Sequence[Tensor | None], bounds: Bounds = UNBOUNDED) -> pd.DataFrame:
        columns: dict[str, Any] = {}
        for name, rows in zip(("clean", "counterfactual"), of_runs, strict=True):
            if rows is not None:
                rows = rows.double().reshape(-1, rows.shape[-1])
                ends = row_intervals(rows, bounds=bounds, **self.statistics_options).T.tolist()
                columns |= as_cells(name, rows.mean(1).tolist(), ends)
        return pd.DataFrame(columns)

    def figure(self) -> go.Figure:
        """A row for each head and run: attention by place, and the direct contribution beside it.

        The numbers are those of `table` and `contributions`.
        """
        rows = []
        runs = {"clean": ""}
        if self.counterfactual is not None:
            runs["counterfactual"] = "cf."
        for of_head in self.contributions.to_dict("records"):
            head = of_head["component"]
            table: Any = self.table[self.table["component"] == head]
            cells = table.to_dict("records")
            for name, shown in runs.items():
                contribution = number_text(of_head, name, "+.4g")
                row = HeadRow(
                    head=head,
                    run=shown,
                    values=[cell[name] for cell in cells],
                    beside=f"{of_head[name]:+.2f}".replace("-", "\u2212"),
                    hover=[
                        f"{head}, {name} to {plain(cell['place'])}: "
                        f"{number_text(cell, name, '+.4g')}<br>contribution: {contribution}"
                        for cell in cells
                    ],
                )
                rows.append(row)
        return attention_map(
            rows,
            self.places,
            beside="logits",
            title=data_and_model(self.dataset, self.model),
            subtitle=f"attention {self.query_text}; {plain(self.setting)}"
            f"{'; cf.: counterfactual' if len(runs) > 1 else ''}; logits: direct contribution, "
            "scales of norms frozen at the clean run",
        )

    def __str__(self) -> str:
        """The findings, a line for each head."""
        change = "" if self.counterfactual is None else ", \u2192 in the counterfactual run"
        lines = [
            f"Attention of {len(self.labels)} heads of {self.model} on {self.dataset}, "
            f"{self.query_text}, {self.setting}: in the clean run{change}. Contributions are to "
            "the logit of x less that of y (their first tokens that differ), before a final soft "
            "cap, with the scale of every norm frozen at the clean run; brackets: the 95 % "
            "interval in the clean run."
        ]
        for row in self.contributions.to_dict("records"):
            of_head: Any = self.table[self.table["component"] == row["component"]]
            places = sorted(of_head.to_dict("records"), key=lambda each: -each["clean"])
            seen = [f"{each['place']} {_change(each, '.2f')}" for each in places[:2]]
            lines.append(
                f"{row['component']} attends to {' and '.join(seen)}; contributes "
                f"{_change(row, '+.3g')} ({interval_text(row['clean_low'], row['clean_high'])})."
            )
        if self.counterfactual is None:
            lines.append(f"The source {self.source!r} is no run of the model: all is clean.")
        if self.left_out:
            names = ", ".join(map(self.registry.label, self.left_out))
            lines.append(f"No heads, so left out: {names}.")
        return clean_text("\n".join(lines))

    def __repr__(self) -> str:
        return clean_text(
            f"Attention({len(self.labels)} heads of {self.model} on {self.dataset}, "
            f"{len(self.places)} places, {self.intervention})"
        )


def _change(row: Mapping[Any, Any], form: str) -> str:
    """A mean in the clean run, and what it becomes."""
    after = f" \u2192 {row['counterfactual']:{form}}" if "counterfactual" in row else ""
    return f"{row['clean']:{form}}{after}"


def attention(question: Question, members: ComponentsLike, *, at: str = "last") -> Attention:
    """What heads attend to from a token of each prompt, and what they write to the logits.

    Attention is by span where all pairs have spans, else by position, in both runs. Direct
    contributions are those of `Attention`. On the held-out examples, if the tracer has some.

    Args:
        question: The question.
        members: As in `explain`; members that are no heads are left out.
        at: Span, or name of a position, whose last token attends. Contributions ignore this.

    Raises:
        ComponentError: No member is a head.
        PairsError: The prompts differ in length and have no spans, or no such place; or no token
            tells x and y of a pair apart.
        MaskError: About the mask.
        UnsupportedModelError: A block of the model does more to the stream than to add to it.
    """
    engines = {question.direction: question.eval_engine}
    # Else the source is no run of the model.
    with suppress(PairsError):
        engines[question.opposite.direction] = question.opposite.eval_engine
    clean, counterfactual = engines["noising"], engines.get("denoising")
    asked, chosen = question.eval_engine, members_of(members, question.registry, allow_empty=True)
    registry, before = asked.registry, asked.cost
    is_head = {member: registry.site_of(member).kind.hook in _HOOKS for member in chosen}
    heads: dict[tuple[int, int], int] = {}
    for member in filter(is_head.__getitem__, chosen):
        heads.setdefault((registry[member].layer, registry[member].index), member)
    if not heads:
        names = ", ".join(map(registry.label, chosen)) or "none"
        raise ComponentError(
            f"No member ({names}) is a head. Give head-outputs or attention-patterns."
        )
    engines = [clean] if counterfactual is None else [clean, counterfactual]
    spans = [_spans(engine.pairs, clean.pairs, token_text_of(question.model)) for engine in engines]
    places = tuple(dict.fromkeys(name for of_pair in spans[0] for name in of_pair))
    reads: list[HeadActivity] = []
    for engine, of_run in zip(engines, spans, strict=True):
        queries, frozen_at = _queries(of_run, places, at), reads[0] if reads else None
        reads.append(measure_heads(engine, list(heads), queries, frozen_at=frozen_at))
    weights = 1.0 if clean.pairs.weights is None else clean.pairs.weights
    patterns = [
        weights * _sum_attention_by_place(of_run, places, read.patterns)
        for of_run, read in zip(spans, reads, strict=True)
    ]
    direct = [weights * direct_contributions(clean, r.outputs, reads[0].streams) for r in reads]
    return Attention(
        members=tuple(heads.values()),
        at=at,
        places=places,
        clean=patterns[0],
        counterfactual=patterns[1] if counterfactual else None,
        direct=direct[0],
        counterfactual_direct=direct[1] if counterfactual else None,
        left_out=tuple(member for member in chosen if not is_head[member]),
        selected_on=question.selected_on(members),
        **question.facts_of(asked, before),
    )


def _spans(pairs: PromptPairs, clean: PromptPairs, token_text: Any) -> list[Spans]:
    """Places of each prompt: spans and implied ones, else positions as `clean` names them."""
    if all(pair.spans is not None for pair in pairs):
        named = []
        for pair in pairs:
            spans = add_implied_spans(pair.spans or {}, len(pair.prompt_ids), rest=True)
            # With the first token every token is of a span.
            if 0 in (rest := spans.get(REST, ())):
                spans = {_FIRST: (0,), **spans, REST: rest[1:]}
            named.append({name: positions for name, positions in spans.items() if positions})
        return named
    lengths = {len(pair.prompt_ids) for pair in (*pairs, *clean)}
    if len(lengths) > 1:
        raise PairsError(
            f"The prompts have {min(lengths)} to {max(lengths)} tokens, and no spans. Give every "
            "example spans, or prompts of one length."
        )
    names = position_names([pair.prompt_ids for pair in clean], token_text)
    return [{name: (position,) for position, name in enumerate(names)}] * len(pairs)


def _queries(
    spans: Sequence[Spans], places: Sequence[str], at: str
) -> Int[Tensor, " example"] | None:
    """Position that attends in each prompt; None: the last."""
    if at == LAST:
        return None
    if at not in places:
        raise PairsError(f"The prompts have no place {at!r}. Give one of {', '.join(places)}.")
    for number, of_pair in enumerate(spans):
        if at not in of_pair:
            raise PairsError(f"Example {number} has no token of {at!r}. Give another place.")
    return torch.tensor([of_pair[at][-1] for of_pair in spans])


def _sum_attention_by_place(
    spans: Sequence[Spans], places: Sequence[str], patterns: Float[Tensor, "head example key"]
) -> Float[Tensor, "head place example"]:
    by_place = torch.zeros(len(patterns), len(places), len(spans))
    for number, of_pair in enumerate(spans):
        for name, positions in of_pair.items():
            by_place[:, places.index(name), number] = patterns[:, number, list(positions)].sum(-1)
    return by_place
