"""What everything that is said of a set shares: its components, and its values on examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, nan
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.clusters import EvidenceOptions, count_independent, count_text
from tracekit._util.markup import as_cells
from tracekit._util.table import value_text
from tracekit.components import Component, ComponentRegistry, ComponentSet
from tracekit.data.pair import identify_by_prompt
from tracekit.data.prompts import DataOrigin, PromptPairs
from tracekit.engine.cost import Cost
from tracekit.engine.setup import intervention_text
from tracekit.errors import NoResultError
from tracekit.metrics import Effects, bounds_of
from tracekit.results.display import InWords, text_html
from tracekit.results.faithfulness import Faithfulness
from tracekit.results.intervals import effect_interval
from tracekit.results.significance import NO_P, few_examples_note
from tracekit.results.storage import NOT_SAVED, InFolder


def examples_text(selected_on: str | None, measured_on: str, n: str) -> str:
    """On which examples a set was measured, by fingerprints and their number in words."""
    if selected_on is None:
        return f"n = {n}"
    if selected_on == measured_on:
        return f"on the examples that the set was selected on, n = {n}"
    return f"on held-out examples, n = {n}"


def largest_share(effects: Effects) -> tuple[int, float]:
    """The example with the largest effect, and its share of the effects of all."""
    largest = int(effects.abs().argmax())
    return largest, effects[largest].abs().item() / effects.abs().sum().clamp(min=1e-12).item()


def choice_rows(choices: Float[Tensor, "run 5"] | None, n: int) -> list[dict[str, Any]]:
    """A row for each run of n pairs, the set last; None for what there is not."""
    rows, measured = [], [] if choices is None else choices.tolist()
    for run, sums in zip(("clean", "counterfactual", "set"), measured, strict=False):
        x, *of_y, odds, far = (each if isfinite(each) else None for each in sums)
        if x is not None:
            y, neither = (None if each is None else int(each) for each in of_y)
            firsts = {"first_x": int(x), "first_y": y, "neither": neither}
            rows.append({"run": run, "n": n, **firsts, "log_odds": odds, "kl": far})
    return rows


@dataclass(frozen=True, kw_only=True, eq=False)
class OverExamples:
    """What has values on examples."""

    weights: Float[Tensor, " example"] | None = None
    """Weights of the examples, whose mean is 1; None if all count alike."""
    clusters: Int[Tensor, " example"] | None = None
    """Number of the independent example that each is part of; None if each stands for itself."""

    MEASURED: ClassVar[str] = "effects"
    """Name of the field with what was measured on each example."""

    @property
    def n_examples(self) -> int:
        """How many examples there are."""
        return getattr(self, self.MEASURED).shape[-1]

    @property
    def n_independent(self) -> int:
        """How many of the examples are independent: equal ones, mirrors and groups count once."""
        return count_independent(self.n_examples, self.clusters)

    @property
    def n_text(self) -> str:
        """Both numbers in words, the second only where it is another."""
        return count_text(self.n_examples, self.clusters)

    @property
    def statistics_options(self) -> EvidenceOptions:
        """Weights and clusters of the examples, as statistics take them."""
        return EvidenceOptions(weights=self.weights, clusters=self.clusters)


@dataclass(frozen=True, kw_only=True, eq=False)
class OnExamples(OverExamples):
    """Effects of a set on each of some examples, and what these examples are.

    Effects are times the weight of their example, if examples have weights: a plain mean of them is
    the weighted one. The direction of the metric is that of the setup.
    """

    effects: Effects
    """Effects of the set."""
    full: Effects
    """Effects of all components together."""
    complement: Effects | None = None
    """Effects of all components but those of the set; None if it was not measured."""
    dataset: str
    """Name of the data set."""
    fingerprint: str
    """Fingerprint of the examples as they were given: the same for every source and direction."""
    prompts: tuple[str, ...] = ()
    """Digest of the prompts of each example, by which it is found among others."""
    origin: DataOrigin | None = None
    """Where they are from; None: made by hand."""
    chat: Mapping[str, Any] | None = None
    """Arguments of the chat template that wrote the prompts, with the time that it read, if it did;
    None: no template did."""
    pairs: PromptPairs | None = field(default=None, repr=False, metadata=NOT_SAVED)
    """The examples as they were given; None in a result that was loaded."""
    metric: str
    """By which metric the effects are."""
    direction: str
    """`noising` or `denoising`."""
    choices: Float[Tensor, "run 5"] | None = None
    """First choices of the model alone and with the set (`count_choices`); None: not measured."""

    def count_shared_pairs(self, pairs: PromptPairs) -> int:
        """How many of some pairs, as they were given, are of the prompts of these examples."""
        own = {*self.prompts}
        # Under zeros, say, all pairs of one prompt are one example.
        both = zip(pairs, identify_by_prompt(pairs), strict=True)
        return sum(not own.isdisjoint(each.prompts_digest for each in forms) for forms in both)

    @property
    def mean(self) -> float:
        """Mean effect of the set."""
        return self.effects.mean().item()

    @property
    def full_mean(self) -> float:
        """Mean effect of all components together."""
        return self.full.mean().item()

    @property
    def share(self) -> float:
        """Effect of the set over that of all components; NaN if these have none together."""
        return self.mean / self.full_mean if self.full_mean else nan

    @cached_property
    def interval(self) -> tuple[float, float]:
        """How far the mean effect moves when the examples are resampled.

        95 %, by a studentised bootstrap; NaN with fewer than three independent examples. A
        confidence interval where the set was not selected on these examples, else a spread.
        """
        return effect_interval(
            self.effects, bounds=bounds_of(self.metric), **self.statistics_options
        )

    @property
    def choices_text(self) -> str:
        """Whether the set flips the behaviour, in words; empty where that was not measured."""
        if not (rows := choice_rows(self.choices, self.n_examples)):
            return ""

        def compared(name: str, unit: str = "", first: int = 0) -> str:
            values = [value_text(row[name], ".2g") for row in rows]
            beside = [f"{row['run']} {value}" for row, value in zip(rows, values, strict=True)]
            others = ", ".join(beside[first:-1])
            return f"{values[-1]}{unit} ({others})" if others else f"{values[-1]}{unit}"

        n, neither = self.n_examples, [row["neither"] for row in rows]
        text = f"x first on {compared('first_x', f' of {n}')}"
        if neither[-1] is not None:
            text += f", y on {compared('first_y')}, neither on {compared('neither')}"
            if 2 * neither[-1] > n >= 4 * max(neither[:-1]):
                text += ": the set breaks the model"
        return f"{text}; KL from clean {compared('kl', ' nats', 1)}"

    def row(self) -> dict[str, float]:
        """Entries of a table: `effect` and its ends, `full_effect` and `share` of it."""
        whole = {"full_effect": self.full_mean, "share": self.share}
        return as_cells("effect", self.mean, self.interval) | whole

    def faithfulness(self, **labels: Any) -> Faithfulness:
        """Faithfulness and completeness of the set; `labels` are other fields of these.

        Raises:
            NoResultError: The effects of the complement were not measured.
        """
        if self.complement is None:
            raise NoResultError(
                "This result does not hold the effects of its complement. Measure them: "
                "tracer.faithfulness(result)."
            )
        return Faithfulness.of(
            self.effects[None],
            self.complement[None],
            self.full,
            metric=self.metric,
            direction=self.direction,
            **self.statistics_options,
            **labels,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class OfSet(InFolder):
    """A set of components."""

    registry: ComponentRegistry
    """Components by flat index."""
    members: ComponentSet
    """Flat indices of the set."""

    @property
    def components(self) -> list[Component]:
        """The members."""
        return [self.registry[index] for index in self.members]

    @property
    def labels(self) -> list[str]:
        """Their printed names."""
        return [self.registry.label(index) for index in self.members]

    _repr_html_ = text_html


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchedSet(OfSet):
    """A set, how it was patched, and what that took."""

    model: str
    source: str
    """Where the values come from that are put in."""
    source_seed: int = 0
    """Seed of the source, if it draws its values."""
    direction: str
    """`noising` or `denoising`."""
    positions: str | tuple[int, ...]
    """Where it was patched: `prompt`, `last`, `all`, or prompt positions."""
    selected_on: str | None
    """Fingerprint of the examples that the set was selected on; None where nobody says. Effects on
    these examples have no p value: a search makes some pair look significant by chance in up to a
    third of data sets, and a set that was chosen for its effect does more than random ones."""
    cost: Cost
    """Passes that it took, each over the data that it measured."""

    @property
    def intervention(self) -> str:
        """Source, positions and direction in words; see `intervention_text`."""
        return intervention_text(self.source, self.positions, self.direction)


@dataclass(frozen=True, kw_only=True, eq=False)
class OfMembers(PatchedSet, OverExamples):
    """A set, and the examples and the metric that it was measured by."""

    axis_label: str
    """Axis title for the effect, with its unit."""
    dataset: str
    dataset_fingerprint: str
    metric: str

    @property
    def is_tested(self) -> bool:
        """Whether there are p values: not on the examples that the set was selected on."""
        return self.selected_on != self.dataset_fingerprint

    @property
    def notes_on_p(self) -> list[str]:
        """Why there are no p values, or none below .05: a sentence, or none."""
        note = few_examples_note(self.n_independent) if self.is_tested else NO_P
        return [note] if note else []

    setting = InWords.setting

    @property
    def examples(self) -> str:
        """On which examples it was measured, and on how many, in words."""
        return examples_text(self.selected_on, self.dataset_fingerprint, self.n_text)
