"""Two-component interaction grids: how far two components are from additive.

The interaction of components i and j is l({i, j}) - l({i}) - l({j}), with l the mean effect: 0 if
they add up, positive if together they do more than the sum of what each does alone. This is the
quantity of the paper's pairwise non-linearity maps. With components that are patched besides, l is
what a set adds to them.

Patched in one direction, a pair shows one half of how the behaviour depends on it. *Noising* puts
counterfactual values into the clean run: what breaks without i, without j, without both?
*Denoising* puts clean values into the counterfactual run: what do i, j, or both bring back? An AND
of two components (the behaviour needs both) has noising effects 1, 1, 1 and denoising effects 0, 0,
1; an OR (either is enough) has 0, 0, 1 and 1, 1, 1 (Heimersheim and Nanda, How to use and interpret
activation patching, 2024). `kinds_of_pairs` says which of these a pair looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.files import write_csv
from tracekit._util.markup import printable
from tracekit.components import Component, ComponentRegistry, ComponentSet
from tracekit.engine.engine import Engine
from tracekit.errors import ComponentError
from tracekit.results.intervals import row_intervals
from tracekit.results.significance import max_t_p_values, without_rounding
from tracekit.results.storage import damaged, read_document, write_document

if TYPE_CHECKING:
    import plotly.graph_objects as go

LEVEL = 0.05
"""Corrected p value below which an interaction counts."""
_MOST_EFFECTS = 2**29
"""Effects of sets on examples that are held at once: 2 GiB in float32."""
_STATISTICS = ("singles_interval", "interaction_interval", "p")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InteractionGrid:
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
    """Low and high end of the 95 % studentised bootstrap interval over examples of each l({i})."""
    interaction_interval: Float[Tensor, "pair 2"] | None = None
    """The same of each interaction, for pairs in the order of `itertools.combinations`."""
    p: Float[Tensor, " pair"] | None = None
    """Two-sided p values of the hypothesis that interactions are symmetric around 0 over examples:
    sign flips, corrected for all pairs of the grid (step-down maxT; Westfall and Young, 1993).
    Interactions below 1e-4 of the effects that they are differences of count as 0: they may be
    rounding."""
    opposite: InteractionGrid | None = None
    """The same pairs in the other direction, if they were measured so."""

    @property
    def significant(self) -> list[bool] | None:
        """Whether the corrected p value of each pair is below 0.05; None if there is none."""
        return None if self.p is None else (self.p < LEVEL).tolist()

    @property
    def interaction(self) -> Float[Tensor, "component component"]:
        """l({i, j}) - l({i}) - l({j}); NaN on the diagonal, where there is no pair."""
        values = self.pairs - (self.singles[:, None] + self.singles[None, :])
        return values.fill_diagonal_(torch.nan)

    def __repr__(self) -> str:
        n = len(self.labels)
        text = f"{self.title + ': ' if self.title else ''}{n} components"
        for row in self.to_frame().head(1).itertuples():
            text += f"; strongest {row.first}, {row.second}: {row.interaction:+.4g}"
        return printable(f"InteractionGrid({text})")

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from tracekit.results.display import grid_html

        return grid_html(self)

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per unordered pair, largest interaction first.

        Columns: `first`, `second`, `effect` (of both), `interaction`; where they were measured,
        its 95 % interval `low` and `high`, `p` (corrected for all pairs) and `significant` (below
        0.05); with both directions also `opposite_effect`, `opposite_interaction`,
        `opposite_low`, `opposite_high`, `opposite_p`, and `kind` (see `kinds_of_pairs`).
        """
        import pandas as pd

        columns = self._columns()
        if self.opposite is not None:
            theirs = self.opposite._columns()
            names = ("effect", "interaction", "low", "high", "p")
            columns |= {f"opposite_{name}": theirs[name] for name in names if name in theirs}
            columns["kind"] = kinds_of_pairs(self, self.opposite)
        frame = pd.DataFrame(columns)
        return frame.sort_values("interaction", key=abs, ascending=False, ignore_index=True)

    def _columns(self) -> dict[str, list[Any]]:
        pairs = self.index_pairs
        interaction = self.interaction
        columns: dict[str, list[Any]] = {
            "first": [self.labels[i] for i, _ in pairs],
            "second": [self.labels[j] for _, j in pairs],
            "effect": [self.pairs[i, j].item() for i, j in pairs],
            "interaction": [interaction[i, j].item() for i, j in pairs],
        }
        if self.interaction_interval is not None:
            columns["low"], columns["high"] = self.interaction_interval.T.tolist()
        if self.p is not None:
            columns |= {"p": self.p.tolist(), "significant": (self.p < LEVEL).tolist()}
        return columns

    @property
    def index_pairs(self) -> list[tuple[int, int]]:
        """Positions of the two components of each pair on the axes."""
        return list(combinations(range(len(self.labels)), 2))

    def heatmap(self, *, clip: float = 1.0) -> go.Figure:
        """The pairwise map as a plotly figure.

        Args:
            clip: Quantile beyond which colours no longer change, as in
                `figures.interaction_heatmap`.
        """
        from tracekit import figures

        return figures.interaction_heatmap(self, clip=clip)

    def save(self, path: str | Path) -> Path:
        """Writes all effects and returns the path.

        Args:
            path: `.json`, which `load` reads, or `.csv`, a row per pair.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            write_document(path, self._entries())
        else:
            write_csv(self.to_frame(), path)
        return path

    def _entries(self) -> dict[str, Any]:
        return {
            "labels": self.labels,
            "components": [asdict(component) for component in self.components],
            "singles": self.singles.tolist(),
            "pairs": self.pairs.tolist(),
            "axis_label": self.axis_label,
            "title": self.title,
            "given": self.given,
            "given_effect": self.given_effect,
            "direction": self.direction,
            **{
                name: None if value is None else value.tolist()
                for name, value in ((name, getattr(self, name)) for name in _STATISTICS)
            },
            "opposite": None if self.opposite is None else self.opposite._entries(),
        }

    @classmethod
    def load(cls, path: str | Path) -> InteractionGrid:
        """Reads the `.json` file that `save` wrote.

        Raises:
            ResultNotFoundError: There is no such file.
            ResultFormatError: It is damaged, or of another version.
        """
        path = Path(path)
        document = read_document(path.parent, path.name)
        try:
            return cls._of(document)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise damaged(path.parent) from error

    @classmethod
    def _of(cls, document: dict[str, Any]) -> InteractionGrid:
        """The grid of a document.

        Raises:
            KeyError, TypeError, ValueError, RuntimeError: Its parts do not belong together.
        """
        statistics = {
            name: None if document[name] is None else torch.tensor(document[name])
            for name in _STATISTICS
        }
        opposite = document["opposite"]
        grid = cls(
            labels=tuple(document["labels"]),
            components=tuple(Component(**entry) for entry in document["components"]),
            singles=torch.tensor(document["singles"]),
            pairs=torch.tensor(document["pairs"]),
            axis_label=document["axis_label"],
            title=document["title"],
            given=tuple(document["given"]),
            given_effect=float(document["given_effect"]),
            direction=document["direction"],
            opposite=None if opposite is None else cls._of(opposite),
            **statistics,
        )
        n, n_pairs = len(grid.labels), len(grid.labels) * (len(grid.labels) - 1) // 2
        if len(grid.components) not in (0, n):
            raise ValueError(f"There are {len(grid.components)} components of {n} labels.")
        for name, shape in (
            ("singles", (n,)),
            ("pairs", (n, n)),
            ("singles_interval", (n, 2)),
            ("interaction_interval", (n_pairs, 2)),
            ("p", (n_pairs,)),
        ):
            value = getattr(grid, name)
            if value is None:
                continue
            if value.shape != shape or not torch.isfinite(value).all():
                raise ValueError(f"{name} has shape {tuple(value.shape)} or is not finite.")
        is_symmetric = torch.equal(grid.pairs, grid.pairs.T)
        if not is_symmetric or not torch.equal(grid.pairs.diag(), grid.singles):
            raise ValueError("The effects of pairs are not symmetric.")
        if grid.p is not None and not ((grid.p > 0) & (grid.p <= 1)).all():
            raise ValueError("A p value lies outside (0, 1].")
        if grid.opposite is not None and grid.opposite.labels != grid.labels:
            raise ValueError("The two directions are of different components.")
        return grid


PairKind = Literal["none", "one-sided", "mixed", "and", "or", "xor", "inhibition"]
"""What the two directions say of a pair; see `kinds_of_pairs`."""


def kinds_of_pairs(first: InteractionGrid, second: InteractionGrid) -> list[PairKind]:
    """How the behaviour depends on each pair of components, from both directions of patching.

    An interaction counts if its corrected p value is below 0.05. The rule, in this order:

    - `none`: it counts in neither direction;
    - `one-sided`: it counts in one direction only. What the pair does depends on the rest: a
      backup, for instance, is seen in noising only;
    - `mixed`: it counts in both, with the same sign, so that the relation itself depends on the
      rest, as of two out of three of which any two are enough;
    - `xor`: it counts with opposite signs, and in noising both effects of single components have
      the same sign and that of the pair is less than half of the smaller one, so that the second
      patch undoes the first;
    - `inhibition`: opposite signs, and in noising the interval of one single effect lies above 0
      and that of the other below 0: one of them holds the behaviour down;
    - `and`: negative in noising and positive in denoising: the behaviour needs both;
    - `or`: positive in noising and negative in denoising: either is enough.

    "None" says that nothing was shown, and not that there is no interaction.

    Args:
        first: The pairs in one direction.
        second: The same pairs in the other.

    Returns:
        A word for each pair, in the order of `InteractionGrid.index_pairs`.
    """
    noising, denoising = (first, second) if first.direction == "noising" else (second, first)
    singles, pairs = noising.singles.tolist(), noising.pairs.tolist()
    intervals = noising.singles_interval
    intervals = [(value, value) for value in singles] if intervals is None else intervals.tolist()
    signs = zip(_significant_signs(noising), _significant_signs(denoising), strict=True)
    return [
        _kind_of_pair(of_pair, (singles[i], singles[j]), pairs[i][j], intervals[i], intervals[j])
        for of_pair, (i, j) in zip(signs, noising.index_pairs, strict=True)
    ]


def _significant_signs(grid: InteractionGrid) -> list[float]:
    """Sign of the interaction of each pair; 0 where it is not significant."""
    if grid.p is None:
        return [0.0] * len(grid.index_pairs)
    interaction, i_and_j = grid.interaction, torch.tensor(grid.index_pairs).T
    return torch.where(grid.p < LEVEL, interaction[i_and_j[0], i_and_j[1]].sign(), 0.0).tolist()


def _kind_of_pair(
    signs: tuple[float, float],
    singles: tuple[float, float],
    together: float,
    first: Sequence[float],
    second: Sequence[float],
) -> PairKind:
    """A word for a pair.

    Args:
        signs: Of its significant interactions, in noising and in denoising; 0 if not significant.
        singles: Effects of either component in noising.
        together: That of both.
        first: Interval of the first single effect.
        second: Interval of the second one.
    """
    if 0 in signs:
        return "one-sided" if any(signs) else "none"
    if signs[0] == signs[1]:
        return "mixed"
    if singles[0] * singles[1] > 0 and abs(together) < min(map(abs, singles)) / 2:
        return "xor"
    if (first[0] > 0 > second[1]) or (second[0] > 0 > first[1]):
        return "inhibition"
    return "and" if signs[0] < 0 else "or"


MOST_IN_GRID = 256
"""Components whose pairs a grid shows at most."""


def chosen_for_pairs(
    registry: ComponentRegistry,
    components: Sequence[Component] | None,
    *,
    given: ComponentSet = (),
    layers: Sequence[int] | None = None,
    most: int | None = None,
) -> list[int]:
    """Flat indices of the components whose pairs are asked for.

    Args:
        registry: The components under study.
        components: Those asked for; None: all that are not patched besides.
        given: Flat indices of what is patched besides.
        layers: Only those in these layers.
        most: How many there may be; None: any number.

    Raises:
        ComponentError: One is named twice or patched besides, or there are too few or too many.
    """
    if components is not None and len(set(components)) < len(components):
        raise ComponentError(
            "A component is named twice among those to be paired. Name each one once."
        )
    rest = [i for i in range(len(registry)) if i not in set(given)]
    paired = rest if components is None else [registry.index(c) for c in components]
    both = sorted(set(paired) & set(given))
    if both:
        raise ComponentError(
            f"{registry.label(both[0])} is among those to be paired and patched in every "
            "set by given. Leave it out of one of them."
        )
    if layers is not None:
        paired = [i for i in paired if registry[i].layer in layers]
    if len(paired) < 2 and most is None:
        raise ComponentError(f"{len(paired)} components were chosen for pairs. Choose at least 2.")
    if most is not None and not 2 <= len(paired) <= most:
        raise ComponentError(
            f"{len(paired)} components were chosen for pairs. Choose 2 to {most}, "
            f"for instance by layers; there are components in layers "
            f"{', '.join(map(str, registry.layers))}. Of more components, "
            "strongest_pairs finds the pairs that interact most."
        )
    return paired


def measure_pairs(
    engine: Engine,
    components: Sequence[int],
    *,
    title: str = "",
    given: ComponentSet = (),
) -> InteractionGrid:
    """Measures every component and every pair of components.

    Effects on single examples are held in float32 while intervals and p values are computed from
    them, and no longer.

    Args:
        engine: The engine.
        components: Flat indices, in the order wanted on the axes.
        title: What the figure says above the grid.
        given: Flat indices of what is patched besides, in every set.

    Raises:
        ComponentError: So many sets and examples that their effects would take over 2 GiB.
    """
    order = list(components)
    n = len(order)
    sets: list[tuple[int, ...]] = [(i,) for i in order]
    sets += list(combinations(order, 2))
    check_size(len(sets), engine.n_examples)
    effects, context = added_effects(engine, sets, given, "pairs")
    means, rank = effects.mean(1), torch.triu_indices(n, n, offset=1)
    grid = torch.diag(means[:n])
    grid[rank[0], rank[1]] = means[n:]
    grid[rank[1], rank[0]] = means[n:]
    weights = engine.pairs.weights
    interactions = effects[n:].double() - effects[rank[0]].double() - effects[rank[1]].double()
    scale = effects[n:].abs() + effects[rank[0]].abs() + effects[rank[1]].abs()
    return InteractionGrid(
        labels=tuple(engine.registry.label(i) for i in order),
        components=tuple(engine.registry[i] for i in order),
        singles=means[:n],
        pairs=grid,
        axis_label=engine.metric.axis_label,
        title=title,
        given=tuple(engine.registry.label(i) for i in given),
        given_effect=context,
        direction=engine.metric.direction,
        singles_interval=row_intervals(effects[:n], weights=weights).float(),
        interaction_interval=row_intervals(interactions, weights=weights).float(),
        p=max_t_p_values(without_rounding(interactions, scale.double())).float(),
    )


def added_effects(
    engine: Engine,
    sets: Sequence[ComponentSet],
    given: ComponentSet,
    label: str,
    *,
    examples: Int[Tensor, " example"] | None = None,
) -> tuple[Float[Tensor, "set example"], float]:
    """What sets add to what is patched besides, on every example, and the mean effect of that.

    Args:
        engine: The data set.
        sets: The sets, which share nothing with what is patched besides.
        given: What is patched besides.
        label: Names the progress bar.
        examples: The examples; all by default.
    """
    if not given:
        return engine.set_effects(sets, label, examples=examples), 0.0
    joined = [given, *(tuple(sorted((*given, *members))) for members in sets)]
    effects = engine.set_effects(joined, label, examples=examples)
    return effects[1:] - effects[0], effects[0].mean().item()


def check_size(n_sets: int, n_examples: int) -> None:
    """Refuses so many sets that their effects on all examples would take over 2 GiB.

    Args:
        n_sets: Sets.
        n_examples: Examples.

    Raises:
        ComponentError: They are too many.
    """
    if n_sets * n_examples > _MOST_EFFECTS:
        raise ComponentError(
            f"{n_sets} sets on {n_examples} examples have {n_sets * n_examples} effects, which are "
            f"held at once; at most {_MOST_EFFECTS} are. Choose fewer components or examples."
        )
