"""What a model writes after prompts, by itself and with a set replaced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tracekit._util.deferred import pd
from tracekit._util.markup import clean_text
from tracekit.engine.setup import Setup
from tracekit.results.display import line
from tracekit.results.on_examples import OfSet


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Generations(OfSet):
    """Texts that a model goes on with, by itself and with a set replaced; `Tracer.generate`."""

    FILE: ClassVar[str] = "generations.json"

    prompts: tuple[str, ...]
    counterfactuals: tuple[str, ...] | None
    """The prompts that values come from; None if the source needs none."""
    clean: tuple[str, ...]
    """What the model writes after each prompt by itself."""
    intervened: tuple[str, ...]
    """What it writes with the set replaced."""
    setup: Setup
    """Kind of component, positions and source, by their names."""
    strength: float
    """1 takes the values of the source, 0 none of them."""
    max_new_tokens: int
    temperature: float
    """0 if the likeliest tokens were taken."""
    seed: int
    """Of the sampled tokens."""
    checkpoint_settings: bool
    """Whether settings of the checkpoint, such as a repetition penalty, acted on both texts."""
    model: str
    dataset: str
    """Name of the traced pairs, which sources such as means are of."""
    dataset_fingerprint: str

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per prompt: `prompt`, `counterfactual` if there are some, `clean`, `intervened`."""
        changed = {} if self.counterfactuals is None else {"counterfactual": self.counterfactuals}
        written = {"clean": self.clean, "intervened": self.intervened}
        return pd.DataFrame({"prompt": self.prompts, **changed, **written})

    @property
    def how(self) -> str:
        """The source, the strength and how tokens were chosen, in words."""
        chosen = "the likeliest ones"
        if self.temperature:
            chosen = f"sampled at temperature {self.temperature:g}, seed {self.seed}"
        if self.checkpoint_settings:
            chosen += ", with the settings of the checkpoint"
        return (
            f"Intervention: {self.setup.intervention}, pairs of {self.dataset}, strength "
            f"{self.strength:g}; at most {self.max_new_tokens} tokens, {chosen}."
        )

    def __repr__(self) -> str:
        rows = self.table.to_dict("records")
        width = max(map(len, self.table)) + 2
        texts = [[f"{name + ':':<{width}}{text!r}" for name, text in row.items()] for row in rows]
        return clean_text("\n\n".join(["\n".join(lines) for lines in texts] + [self.how]))

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False) + line(self.how)
