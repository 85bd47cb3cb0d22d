"""What everything that is said of a set shares: its components, and its file in a folder."""

from __future__ import annotations

from dataclasses import dataclass

from tracekit.components import Component, ComponentRegistry, ComponentSet
from tracekit.engine.cost import Cost
from tracekit.engine.setup import intervention_text
from tracekit.results.display import InWords, text_html
from tracekit.results.on_examples import OverExamples, examples_text
from tracekit.results.significance import NO_P, few_examples_note
from tracekit.results.storage import InFolder


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
