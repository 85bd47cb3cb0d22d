"""Certificates: what fresh pairs say of claims about a set; `tracer.certify` makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import plotly.graph_objects as go
from pydantic import TypeAdapter

from tracekit._util.deferred import pd
from tracekit._util.files import write_atomically
from tracekit._util.markup import clean_text
from tracekit._util.options import as_path
from tracekit._util.table import join_labels
from tracekit.data.prompts import DataOrigin
from tracekit.errors import ResultFormatError
from tracekit.figures.charts import Chart, lines
from tracekit.figures.style import data_and_model, plain
from tracekit.results.display import Tabular

Verdict = Literal["holds", "fails", "undecided"]
Bounds = tuple[int, float | None, float | None]
"""Number of examples, lower and upper bound; None: there is none yet."""


@dataclass(frozen=True, kw_only=True)
class PairsBatch:
    """Fresh pairs that were measured together."""

    wording: str
    """Source of the pairs; empty if there is only one."""
    fingerprint: str
    origin: DataOrigin | None
    """Where they are from; None: made by hand."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim about one quantity of a set, and what fresh pairs say of it."""

    quantity: str
    """`faithfulness`, `completeness`, `share` or `effect`."""
    wording: str
    """Source of the pairs that it is about; empty: all of them."""
    value: float
    """Claimed bound: the largest completeness, or the smallest of another quantity."""
    verdict: Verdict
    n_needed: int | None
    """Examples by which it would be decided if further ones are like these; None: not known."""
    bounds: tuple[Bounds, ...]
    """After each example; all of them hold together."""

    def __str__(self) -> str:
        """The claim in words."""
        which = "most" if self.quantity == "completeness" else "least"
        where = f" on {self.wording}" if self.wording else ""
        return f"{self.quantity} at {which} {self.value:.3g}{where}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Certificate(Tabular):
    """What fresh pairs say of claims about a set: `print` says it in words."""

    FILE: ClassVar[str] = "certificate.json"
    """Its name in the folder of a run."""
    claims: tuple[Claim, ...]
    level: float
    """Probability that no bound of any claim is ever wrong."""
    is_assumed: bool
    """Whether it assumes that no example is twice as extreme as all before (unbounded metrics)."""
    labels: tuple[str, ...]
    """Members of the set."""
    n_examples: int
    """Independent examples that were measured."""
    n_left_out: int
    """Pairs that were left out because a search, or an earlier batch, had them."""
    dataset: str
    batches: tuple[PairsBatch, ...]
    """The pairs, in the order in which they were measured."""
    max_examples: int
    """Independent examples after which open claims stay undecided."""
    metric: str
    intervention: str
    """What was patched, in words."""
    source_seed: int = 0
    continuation_mean: str = "geometric"
    model: str
    weights_digest: str
    versions: Mapping[str, str]

    @property
    def verdict(self) -> Verdict:
        """`fails` if a claim fails, `holds` if all hold, else `undecided`."""
        verdicts = {claim.verdict for claim in self.claims}
        if "fails" in verdicts:
            return "fails"
        return "undecided" if "undecided" in verdicts else "holds"

    @property
    def summary(self) -> str:
        """The verdicts on all fresh pairs, and on wordings where a claim fails, in one line."""
        shown = [claim for claim in self.claims if not claim.wording or claim.verdict == "fails"]
        verdicts = "; ".join(f"{claim}: {claim.verdict}" for claim in shown)
        return clean_text(
            f"Certificate ({100 * self.level:g} %, {self.n_examples} fresh examples of "
            f"{self.dataset}): {verdicts}."
        )

    def is_of(self, result: Any) -> bool:
        """Whether it is about the set of a `TraceResult`, on its model and by its metric."""
        names = ("metric", "intervention", "source_seed", "continuation_mean")
        is_same = all(getattr(self, name) == getattr(result.setup, name) for name in names)
        is_same_model = self.weights_digest == result.model_facts.weights_digest
        return is_same and is_same_model and self.labels == tuple(result.labels)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per claim: its last bounds and its verdict."""
        rows = [
            {"claim": str(claim), "low": low, "high": high, "verdict": claim.verdict}
            for claim in self.claims
            for _, low, high in claim.bounds[-1:]
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        text = [
            f"{self.verdict.capitalize()} for {join_labels(self.labels)}: {self.n_examples} fresh "
            f"examples of {self.dataset}, {self.model}, {self.metric}, {self.intervention}."
        ]
        for claim in self.claims:
            line = f"  {claim}: {claim.verdict}"
            for _, *ends in claim.bounds[-1:]:
                named = zip(("lower bound", "upper bound"), ends, strict=True)
                bounds = [f"{side} {end:.3g}" for side, end in named if end is not None]
                line += f"; {', '.join(bounds) or 'no bounds yet'}"
            if claim.n_needed is not None:
                line += f"; about {claim.n_needed} examples would decide it"
            text.append(line)
        assumed = ", if no example is more than twice as extreme as all before it"
        text.append(
            f"With a probability of {self.level:g}, all bounds are right, however early or late "
            f"the measurement ends{assumed if self.is_assumed else ''}."
        )
        return clean_text("\n".join(text))

    def figure(self, claim: int = 0) -> go.Figure:
        """The bounds of a claim as they narrow, and the claimed value.

        Args:
            claim: Its number in `claims`.
        """
        drawn = self.claims[claim]
        bounds = pd.DataFrame(drawn.bounds, columns=["n", "lower bound", "upper bound"])
        chart = Chart(
            frame=bounds.astype(float).melt("n", var_name="line", value_name="bound"),
            x="n",
            y="bound",
            series="line",
            axis_titles=("fresh examples", drawn.quantity),
            title=data_and_model(self.dataset, self.model),
            subtitle=plain(
                f"{drawn}: {drawn.verdict}; {len(self.labels)} components, {self.intervention}"
            ),
        )
        return lines(chart, reference=(drawn.value, "claimed"))

    def save(self, path: str | Path) -> Path:
        """Writes the certificate as JSON; makes the folder of the file if needed."""
        file = as_path("path", path)
        write_atomically(file, TypeAdapter(Certificate).dump_json(self, indent=1))
        return file

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Reads a certificate that `save` wrote.

        Raises:
            ResultFormatError: The file is no certificate.
        """
        try:
            return TypeAdapter(cls).validate_json(as_path("path", path).read_bytes())
        except ValueError as error:
            raise ResultFormatError(
                f"{path} is not a certificate. Give one that `tracekit certify` wrote, or the "
                "folder of a run."
            ) from error
