"""Faithfulness and completeness: how much of the behaviour a set of components carries.

The effect of all components together, F, is the whole behaviour. With C the set and C' all others:

    share of the full effect = effect(C) / F
    faithfulness(C) = 1 - effect(C') / F    what is left when everything but the set is patched
    completeness(C) = 1 - effect(C) / F     what is left when the set is patched; 0 is complete

Faithfulness is that of the MIB benchmark (`docs/circuits.md` says when), completeness that of Marks
et al. 2024: the faithfulness of the complement. When clean values are put back (`denoising`), the
set's own effect over F is its faithfulness. The set is then copied in and not computed anew, so
that the areas are not MIB's: they are `area` and `distance`, and no CPR and CMD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from math import nan
from typing import Any, Literal

import plotly.graph_objects as go
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells, clean_text, number_text
from tracekit.errors import BudgetError, ConfigError
from tracekit.figures.charts import Line, size_lines
from tracekit.figures.style import STYLES, plain
from tracekit.metrics import Effects, bounds_of
from tracekit.results.display import InWords, Tabular
from tracekit.results.intervals import ratio_interval, row_intervals

MIB_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of components at which the MIB benchmark measures (Mueller et al. 2025)."""
MOST_OF_FULL = 1.1
"""Share of the full effect beyond which a set overshoots."""
STILL_DONE = 0.5
"""Share of the task from which on a set, or its complement, still does it."""
Ranking = Literal["signed", "absolute"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Faithfulness(InWords, Tabular):
    """Faithfulness and completeness of sets of several sizes."""

    sizes: tuple[int, ...]
    """Components of each set."""
    n_components: int
    """Components in all."""
    faithfulness: tuple[float, ...]
    """Of each set; 1 where the set does all that the model does. May lie outside [0, 1]."""
    faithfulness_intervals: tuple[tuple[float, float], ...]
    """95 % intervals over examples (`ratio_interval`): infinite where the whole effect does not
    differ from 0, NaN with fewer than three independent examples."""
    completeness: tuple[float, ...]
    """Of each set; 0 where nothing is left without it."""
    completeness_intervals: tuple[tuple[float, float], ...]
    """95 % intervals of the completeness, as those of the faithfulness."""
    effects: tuple[float, ...]
    """Mean effect of each set."""
    effect_intervals: tuple[tuple[float, float], ...]
    """95 % intervals over examples."""
    full_effect: float
    """Mean effect of all components together."""
    shares: tuple[float, ...] = ()
    """Share of all components that each set was made for; empty if the sets were given."""
    budgets: tuple[int, ...] = ()
    """Budget of each set, if a search made them for one each."""
    ranking: str = "sets"
    """How the sets were made: `signed` or `absolute` scores, highest first, or `sets`: given."""
    metric: str = ""
    """Metric of the effects."""
    method: str = ""
    """Search method of the sets."""
    data: str = ""
    """Names of the data set and the model, for titles."""
    direction: str = "noising"
    """`noising`, which computes the set anew among patched components, or `denoising`."""
    counts_like_mib: bool = True
    """Whether `shares` are of the edges that MIB counts. False for a curve of budgets where heads
    share keys: a budget counts an edge into a shared key once, MIB once for each head."""

    @classmethod
    def of(
        cls,
        effects: Float[Tensor, "set example"],
        of_others: Float[Tensor, "set example"],
        full: Effects,
        *,
        sizes: Sequence[int],
        n_components: int,
        metric: str,
        direction: str,
        weights: Float[Tensor, " example"] | None = None,
        clusters: Int[Tensor, " example"] | None = None,
        **labels: Any,
    ) -> Faithfulness:
        """Of measured effects: of sets, of all others, and of all components."""
        faithful, complete = own_and_missing_effects(effects, of_others, full, direction)
        intervals = partial(ratio_interval, denominators=full, clusters=clusters)
        ends = row_intervals(effects, weights=weights, clusters=clusters, bounds=bounds_of(metric))
        return cls(
            sizes=tuple(sizes),
            n_components=n_components,
            faithfulness=tuple((faithful.mean(1) / full.mean()).tolist()),
            faithfulness_intervals=tuple(map(intervals, faithful)),
            completeness=tuple((complete.mean(1) / full.mean()).tolist()),
            completeness_intervals=tuple(map(intervals, complete)),
            effects=tuple(effects.mean(1).tolist()),
            effect_intervals=tuple((low, high) for low, high in ends.tolist()),
            full_effect=full.mean().item(),
            metric=metric,
            direction=direction,
            **labels,
        )

    @property
    def shares_of_full(self) -> tuple[float, ...]:
        """Effect of each set over that of all components; above 1 it overshoots."""
        full = self.full_effect or nan
        return tuple(effect / full for effect in self.effects)

    @property
    def share_of_full_intervals(self) -> tuple[tuple[float, float], ...]:
        """95 % intervals of these shares."""
        if self.direction == "denoising":
            return self.faithfulness_intervals
        return tuple((1 - high, 1 - low) for low, high in self.completeness_intervals)

    @property
    def overshoots(self) -> tuple[bool, ...]:
        """Whether each set has beyond 1.1 of the full effect, and its interval is above 1."""
        ends = zip(self.shares_of_full, self.share_of_full_intervals, strict=True)
        return tuple(
            self.full_effect > 0 and share > MOST_OF_FULL and low > 1 for share, (low, _) in ends
        )

    @property
    def incomplete(self) -> tuple[bool, ...]:
        """Whether each set, and all others without it, do most of the task; by both intervals."""
        ends = zip(self.faithfulness_intervals, self.completeness_intervals, strict=True)
        return tuple(
            self.full_effect > 0 and min(own[0], others[0]) > STILL_DONE for own, others in ends
        )

    @property
    def cpr(self) -> float:
        """Area under faithfulness over the share of components (MIB); higher is better.

        Raises:
            BudgetError: The sets do not reach from the smallest share to all components.
            ConfigError: Clean values were put back, or shared keys are counted once, so that the
                area is not MIB's.
        """
        self._check_mib()
        return self.area

    @property
    def cmd(self) -> float:
        """Area between faithfulness and 1 over the share of components (MIB); lower is better."""
        self._check_mib()
        return self.distance

    def _check_mib(self) -> None:
        if self.direction == "denoising":
            raise ConfigError(
                "CPR and CMD are of noising, where the set is computed while all other components "
                "are patched. In denoising its clean values are copied in. Trace with "
                "direction='noising', or read area and distance."
            )
        if not self.counts_like_mib:
            raise ConfigError(
                "CPR and CMD count an edge into a shared key once for each head that reads it, and "
                "these budgets count it once. Give a ranking, "
                "tracer.faithfulness(result, ranking='signed'), or read area and distance."
            )

    @property
    def area(self) -> float:
        """Area under faithfulness over `shares`; MIB's CPR in noising, if `counts_like_mib`."""
        return self._area(lambda value: value)

    @property
    def distance(self) -> float:
        """Area between faithfulness and 1 over `shares`; MIB's CMD as `area` is its CPR."""
        return self._area(lambda value: abs(1 - value))

    def _area(self, height: Callable[[float], float]) -> float:
        if self.shares != MIB_SHARES:
            raise BudgetError(
                "CPR and CMD are areas over all shares of components from 0.001 to 1, and these "
                "sets do not cover them. Take a front without max_budget, or the ranking of a "
                "result of top-k, attribution or mask-ig: "
                "tracer.faithfulness(result, ranking='signed')."
            )
        points = list(zip(self.shares, map(height, self.faithfulness), strict=True))
        return sum((b - a) * (low + high) / 2 for (a, low), (b, high) in pairwise(points))

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per set."""
        columns: dict[str, Sequence[float]] = {"size": self.sizes}
        columns |= {"budget": self.budgets} if self.budgets not in ((), self.sizes) else {}
        if self.shares:
            columns["share"] = self.shares
        for name, values, intervals in (
            ("effect", self.effects, self.effect_intervals),
            ("share_of_full", self.shares_of_full, self.share_of_full_intervals),
            ("faithfulness", self.faithfulness, self.faithfulness_intervals),
            ("completeness", self.completeness, self.completeness_intervals),
        ):
            columns |= as_cells(name, values, zip(*intervals, strict=True))
        return pd.DataFrame(columns)

    def curve(self) -> go.Figure:
        """Faithfulness and completeness against the number of components, with their intervals.

        The numbers are those of `to_frame`.
        """
        lines = []
        for name, look in (("faithfulness", "local-search"), ("completeness", "greedy")):
            intervals = getattr(self, f"{name}_intervals")
            points = sorted(zip(self.sizes, getattr(self, name), intervals, strict=True))
            title, style = f"{name}, 95 % interval", STYLES[look]
            columns = zip(*points, strict=True)
            lines.append(Line.with_intervals(title, *columns, label=name, style=style))
        return size_lines(
            lines,
            n_components=self.n_components,
            largest=max(self.sizes),
            value_title="share of the whole effect",
            title=f"Faithfulness: {self.data}" if self.data else "Faithfulness",
            subtitle=plain(f"by {self.metric}; {self._sets_text}; {self.setting}"),
        )

    @property
    def _sets_text(self) -> str:
        """Where the sets come from, in words."""
        if self.ranking != "sets":
            form = "absolute scores" if self.ranking == "absolute" else "scores"
            return (
                f"components with the highest {form}{f' of {self.method}' if self.method else ''}"
            )
        by = "chosen by hand" if self.method in ("", "by-hand") else f"found by {self.method}"
        return f"{'a set' if len(self.sizes) == 1 else 'sets'} {by}"

    def __repr__(self) -> str:
        areas = ""
        if self.shares == MIB_SHARES:
            reason = "" if self.counts_like_mib else "shared keys are counted once"
            reason = "denoising" if self.direction == "denoising" else reason
            names = ("area", "distance") if reason else ("CPR", "CMD")
            areas = f"; {names[0]} {self.area:.4g}, {names[1]} {self.distance:.4g}"
            areas += f" ({reason}, not MIB's)" if reason else ""
        how = f"; {self.setting}; 95 % intervals" if self.setting else ""
        lines = [f"Faithfulness ({self.metric}) of {self._sets_text}{areas}{how}"]
        for row in self.table.to_dict("records"):
            both = [f"{n} {number_text(row, n)}" for n in ("faithfulness", "completeness")]
            name = f"{row['size']} component{'s' * (row['size'] != 1)}"
            name += f" (budget {row['budget']})" if "budget" in row else ""
            lines.append(f"  {name}: {', '.join(both)}")
        return clean_text("\n".join(lines))


def own_and_missing_effects(own: Any, others: Any, full: Any, direction: str) -> tuple[Any, Any]:
    """What is left with a set alone and without it, of effects of the set and of all others."""
    return (own, others) if direction == "denoising" else (full - others, full - own)


def check_level(faithfulness: float | None) -> float:
    """A level of faithfulness to reach, in (0, 1)."""
    if faithfulness is None or not 0 < faithfulness < 1:
        raise ConfigError(f"faithfulness is {faithfulness!r}. Give a level in (0, 1).")
    return faithfulness
