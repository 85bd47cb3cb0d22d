"""The pairs of components that interact most, among any number of components."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.markup import clean_text
from tracekit.results.display import InWords
from tracekit.results.interactions import INTERACTION_ENDS
from tracekit.results.significance import PValues
from tracekit.results.storage import SavedTable


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

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per pair, the strongest first.

        Columns: `first`, `second`, `effect` (of both), `interaction`, `proposed` (on the examples
        that proposed the pairs), `predicted`; where there is one, the 95 % interval
        `interaction_low` and `interaction_high`; where pairs were tested, `p`, `q`, `p_family` and
        `significant` (q below 0.05), NaN of pairs that were not.
        """
        columns = {
            "first": self.first,
            "second": self.second,
            "effect": self.effects.tolist(),
            "interaction": self.interactions.tolist(),
            "proposed": self.proposed.tolist(),
            "predicted": self.predicted.tolist(),
        }
        if self.intervals is not None:
            columns |= dict(zip(INTERACTION_ENDS, self.intervals.T.tolist(), strict=True))
        frame = pd.DataFrame(columns)
        if self.tests is None:
            return frame
        tests = pd.DataFrame(self.tests.columns()).reindex(frame.index)
        return frame.join(tests.assign(significant=tests["significant"].eq(True)))

    def __repr__(self) -> str:
        n_pairs = self.n_components * (self.n_components - 1) // 2
        text = f"{self.title + ': ' if self.title else ''}{len(self.first)} of {n_pairs} pairs"
        text += f"; strongest {self.first[0]}, {self.second[0]}: {self.interactions[0]:+.4g}"
        if self.tests is not None:
            passed, n = self.tests.significant(), len(self.tests.q)
            text += f"; {n} tested, {sum(passed)} with q < .05"
            text += f"; {self.tests.caution}" if any(passed) and self.tests.caution else ""
        return clean_text(f"StrongestPairs({text}; l: {self.axis_label}; {self.setting})")
