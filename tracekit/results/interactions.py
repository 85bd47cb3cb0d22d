"""Interactions of pairs, in a grid or the strongest of many: how far two are from additive.

The interaction of components i and j is l({i, j}) - l({i}) - l({j}), with l the mean effect: 0 if
they add up, positive if together they do more than the sum of what each does alone. This is the
quantity of the paper's pairwise non-linearity maps. With components that are patched besides, l is
what a set adds to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, groupby
from typing import Any, Literal, get_args

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.markup import clean_text, number_text
from tracekit._util.options import check_choice, check_int
from tracekit._util.table import Table, join_labels, latex_text
from tracekit.components import Component, kind_of
from tracekit.errors import ConfigError
from tracekit.figures.cells import RING, Cell, PairMap, pair_map
from tracekit.figures.style import plain
from tracekit.results.display import InWords
from tracekit.results.significance import Mark, PValues, few_examples_note, is_unsure
from tracekit.results.storage import SavedTable

_ENDS = ["interaction_low", "interaction_high"]
_MARKS: Mapping[Mark, str] = {"q": "q", "family": "family-wise p"}
_MOST_DOTTED = 24
"""Components up to which significant pairs have a dot."""


def _pairs_latex(
    self: Any, *, caption: str | None = None, label: str = "tab:tracekit", rows: int | None = 10
) -> str:
    """The strongest pairs in LaTeX (booktabs), a column with its 95 % interval in one.

    By default these are the first 10 `rows` (None: all), and the caption says what was measured, on
    what, how many of the pairs are shown, and how many are significant.

    Raises:
        ConfigError: `rows` is no number from 1 on.
    """
    if rows is not None:
        check_int("rows", rows)
    shown = self.table.head(rows or len(self.table)).drop(columns="significant", errors="ignore")
    unit = re.sub("^(restored )?effect ?", "", self.axis_label)
    titles = {name: f"{name} {unit}".strip() for name in ("interaction", "proposed", "predicted")}
    titles |= {"effect": f"effect of both {unit}".strip(), "p_family": "family-wise p"}
    other = "noising" if self.intervention.endswith("denoising") else "denoising"
    names = (name.removeprefix("opposite_") for name in shown if name.startswith("opposite_"))
    titles |= {f"opposite_{name}": f"{titles.get(name, name)}, {other}" for name in names}
    forms = {name: ".2g" for name in shown if name.endswith(("p", "q", "p_family"))}
    if caption is None:
        besides = f"patched besides: {join_labels(self.given)}" if self.given else ""
        setting = "; ".join(filter(None, [self.axis_label, self.title, self.setting, besides]))
        which = f"The {len(shown)} strongest of {self.n_pairs}"
        which = f"All {self.n_pairs}" if len(shown) == self.n_pairs else which
        notes = "".join(f" {note.rstrip('.')}." for note in self._notes if note)
        brackets = " Brackets: 95 % intervals." if "interaction_low" in shown else ""
        caption = latex_text(
            "Interactions of pairs, what both components do together less what each does alone: "
            f"{setting}. {which} pairs.{notes}{brackets}"
        )
    return Table.of_rows(shown, titles, forms, joined=True).latex(caption, label)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InteractionGrid(InWords, SavedTable):
    """Effects of all pairs of some components."""

    labels: tuple[str, ...]
    """Printed names, in the order of the axes."""
    components: tuple[Component, ...] = ()
    """The components, in that order; empty if unknown."""
    singles: Float[Tensor, " component"]
    """l({i})."""
    pairs: Float[Tensor, "component component"]
    """l({i, j}), symmetric; the diagonal is l({i})."""
    axis_label: str = "effect"
    title: str = ""
    given: tuple[str, ...] = ()
    """Printed names of what is patched besides, in every set; l is what a set adds to it."""
    given_effect: float = 0.0
    """Mean effect of what is patched besides."""
    direction: str = "noising"
    """`noising` or `denoising`."""
    singles_interval: Float[Tensor, "component 2"] | None = None
    """Low and high end of the 95 % studentised bootstrap interval over examples of each l({i});
    None with fewer than three independent examples."""
    interaction_interval: Float[Tensor, "pair 2"] | None = None
    """The same of each interaction, for pairs in the order of `itertools.combinations`."""
    tests: PValues | None = None
    """P values of the hypothesis that mean interactions are 0 (`tracekit.results.significance`).
    None for a set that was selected on these examples: nothing can be tested on them. Interactions
    below 1e-4 of the effects that they are differences of count as 0: they may be rounding."""
    n_independent: int | None = None
    """Independent examples: equal ones, mirrors and groups count once."""
    opposite: InteractionGrid | None = None
    """The same pairs in the other direction, if they were measured so."""

    to_latex = _pairs_latex

    @property
    def significant(self) -> list[bool] | None:
        """Whether q of each pair is below 0.05; None if it was not tested."""
        return None if self.tests is None else self.tests.significant()

    @property
    def interaction(self) -> Float[Tensor, "component component"]:
        """l({i, j}) - l({i}) - l({j}); NaN on the diagonal, where there is no pair."""
        values = self.pairs - (self.singles[:, None] + self.singles[None, :])
        return values.fill_diagonal_(torch.nan)

    def __repr__(self) -> str:
        n = len(self.labels)
        text = f"{self.title + ': ' if self.title else ''}{n} components"
        for row in self.to_frame().head(1).itertuples():
            text += f"; strongest interaction {row.first}, {row.second}: {row.interaction:+.4g}"
        text += f"; measured as {self.axis_label}, {self.direction}"
        share, few = self._notes or ("", "")
        notes = (f"; {note}" for note in (share, self.setting, few) if note)
        return clean_text(f"InteractionGrid({text}{''.join(notes)})")

    @property
    def n_pairs(self) -> int:
        """How many pairs there are."""
        return len(self.index_pairs)

    @property
    def _notes(self) -> list[str]:
        if self.tests is None:
            return []
        passed = self.tests.significant()
        few = few_examples_note(self.n_independent, len(passed)) if self.n_independent else ""
        share = f"{sum(passed)} of {len(passed)} pairs have q < .05"
        return [share, self.tests.caution if any(passed) else few]

    @cached_property
    def table(self) -> Any:
        """A pandas DataFrame with a row per unordered pair, largest interaction first.

        Columns: `first`, `second`, `effect` (of both), `interaction`; where they were measured,
        its 95 % interval `interaction_low` and `interaction_high`; `p` of the pair, `q` (the false
        discovery rate), `p_family` (corrected for all pairs) and `significant` (q below 0.05); with
        both directions also `opposite_effect`, `opposite_interaction` and so on, and `kind` (see
        `kinds_of_pairs`).
        """
        frame = self._frame()
        if self.opposite is not None:
            others = self.opposite._frame().drop(columns=["first", "second"])
            others = others.drop(columns="significant", errors="ignore").add_prefix("opposite_")
            frame = frame.join(others).assign(kind=self.pair_kinds)
        return frame.sort_values("interaction", key=abs, ascending=False, ignore_index=True)

    def _frame(self, mark: Mark = "q") -> pd.DataFrame:
        """The rows of one direction, in the order of `index_pairs`."""
        i, j = torch.tensor(self.index_pairs).T
        frame = pd.DataFrame(
            {
                "first": [self.labels[first] for first in i],
                "second": [self.labels[second] for second in j],
                "effect": self.pairs[i, j].tolist(),
                "interaction": self.interaction[i, j].tolist(),
            }
        )
        if self.interaction_interval is not None:
            frame[_ENDS] = self.interaction_interval.tolist()
        return frame if self.tests is None else frame.assign(**self.tests.columns(mark))

    @property
    def pair_kinds(self) -> list[PairKind] | None:
        """A word for each pair (see `kinds_of_pairs`); None without the other direction."""
        return None if self.opposite is None else kinds_of_pairs(self, self.opposite)

    @property
    def index_pairs(self) -> list[tuple[int, int]]:
        """Positions of the two components of each pair on the axes."""
        return list(combinations(range(len(self.labels)), 2))

    def heatmap(self, *, clip: float = 1.0, mark: Mark = "q") -> go.Figure:
        """The pairwise map of l({i, j}) - l({i}) - l({j}): red above additive, blue below.

        A minus stands where the interaction is clearly below 0, for print in grey. With up to 24
        components, a dot in the corner of a cell says that q is below 0.05, a ring that only the
        interval leaves out 0. A second direction stands below the diagonal.

        Args:
            clip: Quantile of the sizes of interactions, in (0, 1], beyond which colours no longer
                change. Below 1 a single strong pair does not make all others pale; the ends of the
                colour bar then say that values lie beyond.
            mark: `family` for dots only where the family-wise p value is below 0.05.

        Raises:
            ConfigError: `clip` is not in (0, 1], or `mark` is another.
        """
        if not 0 < clip <= 1:
            raise ConfigError(f"clip is {clip}. It is a quantile, above 0 and at most 1.")
        check_choice("mark", mark, get_args(Mark))
        below = self if self.opposite is None else self.opposite
        values = self.interaction.triu() + below.interaction.tril(-1)
        sizes = values[~torch.eye(len(values), dtype=torch.bool)].abs()
        bound = sizes.quantile(clip).item() or sizes.max().item() or 1.0
        has_dots = self.tests is not None and len(self.labels) <= _MOST_DOTTED
        names, kinds = list(map(plain, self.labels)), self.pair_kinds
        singles = zip(names, self.singles.tolist(), strict=True)
        hover = [[f"{name}<br>alone: {effect:.4g}"] * len(names) for name, effect in singles]
        dotted: list[Cell] = []
        ringed: list[Cell] = []
        rows = (grid._frame(mark).to_dict("records") for grid in (self, below))
        for rank, (pair, *both) in enumerate(zip(self.index_pairs, *rows, strict=True)):
            for grid, row, (i, j) in zip((self, below), both, (pair, pair[::-1]), strict=True):
                kind = "" if kinds is None else f"<br>{grid.direction}; {kinds[rank]}"
                hover[i][j] = f"{names[i]} and {names[j]}<br>{_hover(grid, row, i, j)}{kind}"
                if has_dots:
                    dotted += [(i, j)] if row["significant"] else []
                    ringed += [(i, j)] if is_unsure(row, "interaction") else []
        note = f"dot: {_MARKS[mark]} &lt; .05" if has_dots else ""
        indices, groups, noun = _layers(self)
        drawn = PairMap(
            labels=indices or self.labels,
            groups=groups,
            noun=plain(noun),
            values=[[None if v != v else v for v in row] for row in values.tolist()],
            hover=hover,
            bound=bound,
            dotted=dotted,
            ringed=ringed,
            note=note + (f"<br>{RING}" if ringed else ""),
        )
        subtitle = f"l({{i, j}}) \u2212 l({{i}}) \u2212 l({{j}}), l: {plain(self.axis_label)}"
        if self.opposite is not None:
            subtitle += f"; above: {self.direction}; below: {self.opposite.direction}"
        if self.given:
            named = ", ".join(map(plain, self.given[:3])) + (", ..." if len(self.given) > 3 else "")
            subtitle += f"; given {named}"
        subtitle += f"; {plain(self.setting)}" if self.setting else ""
        title = f"Interactions: {plain(self.title)}" if self.title else "Interactions"
        return pair_map(drawn, title=title, subtitle=subtitle)


PairKind = Literal["none", "one-sided", "mixed", "and", "or", "xor", "inhibition"]
"""Kind of a pair, from both directions; see `kinds_of_pairs`."""


def kinds_of_pairs(first: InteractionGrid, second: InteractionGrid) -> list[PairKind]:
    """A word for each pair of components, from both directions of patching.

    In one direction, a pair shows one half of how the behaviour depends on it; see
    `docs/interactions.md`. An interaction counts if its q is below 0.05. The rule, in this order:

    - `none`: it counts in neither direction, so that nothing was shown;
    - `one-sided`: it counts in one direction only. The effect of the pair depends on the rest: a
      backup, for instance, is seen in noising only;
    - `mixed`: it counts in both, with the same sign, as of two out of three of which any two are
      enough;
    - `xor`: it counts with opposite signs, and in noising both effects of single components have
      the same sign and that of the pair is less than half of the smaller one, so that the second
      patch undoes the first;
    - `inhibition`: opposite signs, and in noising the interval of one single effect lies above 0
      and that of the other below 0: one of them holds the behaviour down;
    - `and`: negative in noising and positive in denoising: the behaviour needs both;
    - `or`: positive in noising and negative in denoising: either is enough.

    Pairs are in the order of `InteractionGrid.index_pairs`.
    """
    noising, denoising = (first, second) if first.direction == "noising" else (second, first)
    singles, pairs = noising.singles.tolist(), noising.pairs.tolist()
    ends = noising.singles_interval
    intervals = [(value, value) for value in singles] if ends is None else ends.tolist()

    def kind_of_pair(i: int, j: int, sign: float, other_sign: float) -> PairKind:
        if sign == 0 or other_sign == 0:
            return "one-sided" if sign or other_sign else "none"
        if sign == other_sign:
            return "mixed"
        smaller = min(abs(singles[i]), abs(singles[j]))
        if singles[i] * singles[j] > 0 and abs(pairs[i][j]) < smaller / 2:
            return "xor"
        (low_i, high_i), (low_j, high_j) = intervals[i], intervals[j]
        if low_i > 0 > high_j or low_j > 0 > high_i:
            return "inhibition"
        return "and" if sign < 0 else "or"

    signs = zip(_significant_signs(noising), _significant_signs(denoising), strict=True)
    both = zip(noising.index_pairs, signs, strict=True)
    return [kind_of_pair(*pair, *of_pair) for pair, of_pair in both]


def _significant_signs(grid: InteractionGrid) -> list[float]:
    """Sign of the interaction of each pair; 0 where it is not significant."""
    i, j = torch.tensor(grid.index_pairs).T
    counts = torch.tensor(grid.significant or [False] * len(i))
    return torch.where(counts, grid.interaction[i, j].sign(), 0.0).tolist()


def _hover(grid: InteractionGrid, row: Mapping[Any, Any], i: int, j: int) -> str:
    """What is known of a pair, of which a table has a row."""
    measured = grid.interaction_interval is not None
    value = number_text(row, "interaction", ".4g") if measured else f"{row['interaction']:.4g}"
    q = "" if grid.tests is None else f", q = {row['q']:.2g}"
    alone = f"{grid.singles[i]:.4g}, {grid.singles[j]:.4g}"
    return f"interaction: {value}{q}<br>together: {row['effect']:.4g}<br>alone: {alone}"


def _layers(grid: InteractionGrid) -> tuple[list[str], list[tuple[str, str, int]], str]:
    """Indices of components, their layers and their noun; nothing unless all are of one kind."""
    kinds = {component.kind for component in grid.components}
    if len(kinds) != 1 or kind_of(grid.components[0].kind).component_dim is None:
        return [], [], ""
    by_layer = groupby(component.layer for component in grid.components)
    groups = [(f"layer {layer}", f"L{layer}", len(list(members))) for layer, members in by_layer]
    indices = [str(component.index) for component in grid.components]
    return indices, groups, kind_of(grid.components[0].kind).noun


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StrongestPairs(InWords, SavedTable):
    """Pairs of components that interact most, the strongest first."""

    first: tuple[str, ...]
    """Printed name of one component of each pair."""
    second: tuple[str, ...]
    """Of the other."""
    effects: Float[Tensor, " pair"]
    """l of both together, on `examples`."""
    interactions: Float[Tensor, " pair"]
    """l({i, j}) - l({i}) - l({j}), on `examples`."""
    proposed: Float[Tensor, " pair"]
    """The same on the examples that proposed the pairs, whose size ranks them."""
    predicted: Float[Tensor, " pair"]
    """Interaction that gradients predicted."""
    intervals: Float[Tensor, "pair 2"] | None
    """Low and high end of the 95 % studentised bootstrap interval of the interaction over
    `examples`. None where these proposed the pairs too."""
    tests: PValues | None
    """P values on `examples` (see `InteractionGrid.tests`) of the first pairs: as many as one of
    which can have a q below 0.05 on so many examples."""
    n_components: int
    """Components whose pairs were in question."""
    n_measured: int
    """Pairs that were measured on all examples."""
    given: tuple[str, ...] = ()
    """Printed names of what is patched besides, in every set; l is what a set adds to it."""
    axis_label: str = "effect"
    title: str = ""

    to_latex = _pairs_latex

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per pair, the strongest first.

        Columns: `first`, `second`, `effect` (of both), `interaction`, `proposed` (on the examples
        that proposed the pairs), `predicted`; where there is one, the 95 % interval
        `interaction_low` and `interaction_high`; where pairs were tested, `p`, `q`, `p_family` and
        `significant` (q below 0.05), NaN of pairs that were not.
        """
        frame = pd.DataFrame(
            {
                "first": self.first,
                "second": self.second,
                "effect": self.effects.tolist(),
                "interaction": self.interactions.tolist(),
                "proposed": self.proposed.tolist(),
                "predicted": self.predicted.tolist(),
            }
        )
        if self.intervals is not None:
            frame[_ENDS] = self.intervals.tolist()
        if self.tests is None:
            return frame
        tests = pd.DataFrame(self.tests.columns()).reindex(frame.index)
        return frame.join(tests.assign(significant=tests["significant"].eq(True)))

    @property
    def n_pairs(self) -> int:
        """How many pairs were in question."""
        return self.n_components * (self.n_components - 1) // 2

    @property
    def _notes(self) -> list[str]:
        if self.tests is None:
            return []
        passed = self.tests.significant()
        share = f"{len(passed)} tested, {sum(passed)} with q < .05"
        return [share, self.tests.caution if any(passed) else ""]

    def __repr__(self) -> str:
        text = f"{self.title + ': ' if self.title else ''}{len(self.first)} of {self.n_pairs} pairs"
        strongest = f"{self.first[0]}, {self.second[0]}: {self.interactions[0]:+.4g}"
        text += f"; strongest interaction {strongest}"
        text += "".join(f"; {note}" for note in self._notes if note)
        return clean_text(f"StrongestPairs({text}; measured as {self.axis_label}; {self.setting})")
