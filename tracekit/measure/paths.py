"""How members of a set connect: the effect of each on the metric through each other one alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells, clean_text, number_text
from tracekit._util.options import short_repr
from tracekit.components.members import ComponentsLike, members_of
from tracekit.engine.path_effects import PathRow, PathRuns, path_place
from tracekit.errors import ComponentError, ConfigError
from tracekit.figures.members import Arrow, path_network
from tracekit.figures.style import data_and_model, plain
from tracekit.measure.question import Question
from tracekit.metrics import bounds_of
from tracekit.results.display import Tabular
from tracekit.results.intervals import row_intervals
from tracekit.results.on_examples import OfMembers
from tracekit.results.significance import RESOLUTION, PValues, p_text, p_values, zero_below_rounding

_EMBEDDING, _LOGITS = "embedding", "logits"
_MOST = 64
_NAMED = 5
"""Paths that the text names."""
_MOST_ARROWS = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Paths(OfMembers, Tabular):
    """Effects of senders on the metric through one receiver alone, everything else clean.

    Path patching (Wang et al., Interpretability in the Wild, 2023) with all other components
    frozen, MLPs too; `tracekit.engine.path_effects` defines it step by step. A path that is not
    there does not exist: the receiver does not read what the sender writes.
    """

    FILE: ClassVar[str] = "paths.json"

    rows: tuple[PathRow, ...]
    """What was measured: sender, receiver, and what the sender changes of the receiver's input."""
    effects: Float[Tensor, "row example"]
    """Of each row on every example; times its weight, if it has one."""
    has_embedding: bool
    """Whether the embedding is a sender: the source is a run of the model."""

    @property
    def places(self) -> list[tuple[int, int]]:
        """Of each member its layer, and 0 for a part of the attention, 1 for one of the MLP."""
        return [path_place(self.registry.site_of(index)) for index in self.members]

    @property
    def nodes(self) -> list[str]:
        """Names of all senders and receivers: the embedding, if it sends, members, the logits."""
        return [*([_EMBEDDING] if self.has_embedding else []), *self.labels, _LOGITS]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row for each path, the strongest first.

        Columns: `sender` and `receiver`, which are members, `embedding` or `logits`; the mean
        `effect` with its 95 % studentised bootstrap interval over examples, `effect_low` and
        `effect_high`; `p`, and over all paths `q` and `p_family` (`tracekit.results.significance`;
        NaN on the examples that the set was selected on); `significant`, whether q is below 0.05;
        `is_apart`, whether the interval leaves out 0 by more than rounding. For receivers that read
        by query, key and value: the effect where only that of the receiver changes, `query`, `key`
        and `value`, each with its interval and `..._q`, over all of these; and `strongest`, the
        name of the largest.
        """
        effects = self.effects.double()
        scale = effects.abs().max(0).values
        tests = pd.concat([pd.DataFrame(p.columns(), index=rows) for rows, p in self._tests])
        ends = row_intervals(effects, bounds=bounds_of(self.metric), **self.statistics_options)
        least = RESOLUTION * scale.mean().item()
        label, paths = self.registry.label, dict[Any, dict[str, Any]]()
        for row, mean, (low, high), test in zip(
            self.rows,
            effects.mean(1).tolist(),
            ends.tolist(),
            tests.sort_index().to_dict("records"),
            strict=True,
        ):
            path = paths.setdefault((row.sender, row.receiver), {})
            if row.input == "all":
                path["sender"] = _EMBEDDING if row.sender is None else label(row.sender)
                path["receiver"] = _LOGITS if row.receiver is None else label(row.receiver)
                path |= as_cells("effect", mean, (low, high)) | test
                path |= {"is_apart": low > least or high < -least, "strongest": ""}
            else:
                sizes = [abs(path[via]) for via in ("query", "key", "value") if via in path]
                if abs(mean) >= max(sizes, default=0.0):
                    path["strongest"] = row.input
                path |= as_cells(row.input, mean, (low, high))
                path[f"{row.input}_q"] = test["q"]
        frame = pd.DataFrame(list(paths.values()))
        return frame.sort_values("effect", key=abs, ascending=False, ignore_index=True)

    @cached_property
    def _tests(self) -> list[tuple[list[int], PValues]]:
        """Rows that are tested together, whole paths and those by one input, and their p values."""
        effects, tests = self.effects.double(), []
        tested = zero_below_rounding(effects, effects.abs().max(0).values.expand_as(effects))
        is_whole = torch.tensor([row.input == "all" for row in self.rows])
        for rows in (is_whole.nonzero()[:, 0], (~is_whole).nonzero()[:, 0]):
            if len(rows):
                values = PValues.none(len(rows))
                if self.is_tested:
                    values = p_values(tested[rows], **self.statistics_options)
                tests.append((rows.tolist(), values))
        return tests

    def network(self) -> go.Figure:
        """Members by layer, the embedding below and the logits above, joined by the paths.

        The width of an arrow is the size of its effect: orange and solid if the effect is above 0,
        blue and dashed if below. The letter at the head of an arrow says whether the query, key or
        value of the receiver alone has the largest effect. Only the 20 strongest paths whose
        interval leaves out 0 are drawn; those with q of 0.05 or more are half as wide, with an open
        head. The numbers are those of `table`.
        """
        apart = self.table[self.table["is_apart"]]
        drawn = apart.head(_MOST_ARROWS).to_dict("records")
        # An MLP stands above the attention of its layer.
        layers = [layer + 0.5 * part for layer, part in self.places]
        count = f"{len(drawn)}"
        if len(drawn) < len(apart):
            count += f" strongest of {len(apart)}"
        opened = "; open: p \u2265 .05" if self.is_tested else ""
        arrows = [
            Arrow(
                start=self.nodes.index(row["sender"]),
                end=self.nodes.index(row["receiver"]),
                value=row["effect"],
                letter=row["strongest"][:1],
                hover=f"{plain(row['sender'])} to {plain(row['receiver'])}: "
                f"{number_text(row, 'effect', '+.4g')}, {p_text(row)}",
                is_sure=row["significant"] or not self.is_tested,
            )
            for row in drawn
        ]
        return path_network(
            self.nodes,
            [*[None] * self.has_embedding, *layers, None],
            arrows,
            title=data_and_model(self.dataset, self.model),
            subtitle=f"{plain(self.axis_label)}; {count} paths whose 95 % interval leaves out 0, "
            f"{plain(self.setting)}{opened}",
        )

    def __str__(self) -> str:
        """The findings in a few lines, ready for a paper."""
        table = self.table
        apart, n = table[table["is_apart"]], len(self.members)
        how = f", {int(table['significant'].sum())} have q < .05" if self.is_tested else ""
        lines = [
            f"Paths among {n} component{'' if n == 1 else 's'} of {self.model} on {self.dataset}, "
            f"{self.setting}: {len(apart)} of {len(table)} have a 95 % interval (in brackets) "
            f"apart from 0{how}. A \u2192 B: {self.axis_label} of what patching A changes in B "
            "alone, everything else clean."
        ]
        for row in apart.head(_NAMED).to_dict("records"):
            name = row["strongest"]
            by = f"; by its {name} alone {number_text(row, name, '+.3g')}" if name else ""
            effect = number_text(row, "effect", "+.3g")
            lines.append(f"{row['sender']} \u2192 {row['receiver']}: {effect}{by}.")
        if not self.has_embedding:
            lines.append(
                f"The embedding is no sender: the source {self.source!r} is no run of the model."
            )
        cautions = dict.fromkeys(values.caution for _, values in self._tests)
        lines += filter(None, cautions if table["significant"].any() else ())
        return clean_text("\n".join([*lines, *self.notes_on_p]))

    def __repr__(self) -> str:
        return clean_text(
            f"Paths({len(self.table)} among {len(self.members)} components of {self.model} on "
            f"{self.dataset}, {self.intervention})"
        )


def paths(question: Question, members: ComponentsLike, *, by_input: bool = True) -> Paths:
    """How members connect: the effect of each on the metric through each other one alone.

    This is path patching, also from the embedding, where the source is a run of the model, and to
    the logits; see `Paths`. It is measured on the held-out examples, if the tracer has some. On the
    examples that the set was selected on there are no p values. In low precision, effects below
    `noise_floor` are rounding.

    Args:
        question: The question.
        members: As in `explain`, of parts of attention or MLP layers; one is enough.
        by_input: Whether to tell the query, key and value of receiving heads apart, which
            takes four times as many passes.

    Raises:
        ComponentError: Components at no place of a path, such as the residual stream, or more
            than 64.
        HookPointError: Paths cannot be followed in this model.
        MaskError, ConfigError: About the mask or the option.
        NonFiniteMetricError: The metric is not finite on a path; names the examples.
    """
    chosen, engine = members_of(members, question.registry, allow_empty=True), question.eval_engine
    if not 0 < len(chosen) <= _MOST:
        raise ComponentError(
            f"Paths among {len(chosen)} components were asked for. Give 1 to {_MOST}."
        )
    if not isinstance(by_input, bool):
        raise ConfigError(f"by_input is {short_repr(by_input)}. Give True or False.")
    before = engine.cost
    runs = PathRuns(data=engine, members=chosen, by_input=by_input)
    return Paths(
        members=runs.members,
        rows=tuple(runs.rows),
        effects=runs.effects(),
        has_embedding=runs.has_embedding,
        selected_on=question.selected_on(members),
        **question.facts_of(engine, before),
    )
