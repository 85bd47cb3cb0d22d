"""The paper's jobs, their models and data sets, and what takes the place of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from paper.models import DEMO_SIZES, PAPER_MODELS, ModelSizes, PaperModel
from tracekit import Setup, Tracer
from tracekit.errors import ComparisonError
from tracekit.results import TraceCurve
from tracekit.runs import Job, ModelSource

DEMO_DATASETS = {
    "winogender": "demo-bias",
    "winobias": "demo-bias",
    "professions": "demo-professions",
    "counterfact": "demo-facts",
    "variable-binding": "demo-binding",
    "ioi": "demo-binding",
}
"""Data set of the paper -> the one that takes its place with the embedded model."""


@dataclass(frozen=True, kw_only=True)
class PaperJob(Job):
    """A run of the paper, which may have a name of its own and measure accuracies besides."""

    relative_layers: tuple[float, ...] = ()
    """Layers to study, each as layer / number of layers, in [0, 1). Empty: those of the setup."""
    variant: str = ""
    """Name of the method in figures, if it runs with options of its own."""
    accuracy_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further examples on which accuracy under the intervention is measured: name -> options of
    the data set."""

    @property
    def label(self) -> str:
        """Name of the method in tables and figures."""
        return self.variant or self.method

    @property
    def further(self) -> dict[str, Any]:
        """The fields that decide the numbers; the name of the variant does not."""
        return {"relative_layers": self.relative_layers, "accuracy_on": self.accuracy_on}

    def setup_on(self, n_layers: int) -> Setup:
        """The setup, with the relative layers of a model of so many layers."""
        if not self.relative_layers:
            return self.setup
        # The tolerance keeps 2/3 of 12 at 8.
        layers = {int(position * n_layers + 1e-9) for position in self.relative_layers}
        return replace(self.setup, layers=tuple(sorted(layers)))

    def measure(self, curve: TraceCurve, tracer_on: Callable[..., Tracer]) -> dict[str, Any]:
        """Measures how often the foil y is the first choice on the further examples.

        Returns:
            `accuracies` with the set of each budget, and `clean_accuracies` with no intervention,
            both by the name of the examples.
        """
        accuracies: dict[str, list[float]] = {}
        clean_accuracies: dict[str, float] = {}
        for name, options in self.accuracy_on.items():
            tracer = tracer_on(options, "accuracy")
            clean = tracer.engine.clean.y_is_argmax
            assert clean is not None  # The metric accuracy reads it.
            clean_accuracies[name] = clean.float().mean().item()
            # The effect on an example is its change.
            accuracies[name] = [
                (clean + tracer.evaluate(result.binary_mask, per_example=True)).mean().item()
                for result in curve
            ]
        return {"accuracies": accuracies, "clean_accuracies": clean_accuracies}


@dataclass(frozen=True, kw_only=True)
class ModelAt(ModelSource):
    """A model, and which of the paper's it is claimed to be."""

    paper: PaperModel | None = None
    """The paper's model that it is claimed to be, if any."""

    @classmethod
    def parse(cls, text: str) -> ModelAt:
        """Reads a model from the command line.

        The text is `demo`, a hub name, a directory, a name of the paper's tables (which stands for
        its hub name), or `NAME=DIRECTORY`: a name for tables, and if it is one of the paper's, the
        claim that the directory holds that model.
        """
        by_hub = {model.hub: model for model in PAPER_MODELS.values()}
        name, equals, source = text.partition("=")
        paper = PAPER_MODELS.get(name) or by_hub.get(name)
        if equals:
            return cls(title=name if paper is None else paper.title, source=source, paper=paper)
        if paper is not None and not Path(text).is_dir():
            return cls(title=paper.title, source=paper.hub, paper=paper)
        title = Path(text).name or text
        # A directory of that name need not hold the paper's model.
        return cls(title=text if title in PAPER_MODELS else title, source=text)

    @property
    def is_demo(self) -> bool:
        """Whether it is the embedded model."""
        return self.source == "demo"

    def count(self, kinds: str) -> int | None:
        """Number of components of a kind, or of several joined by `+`.

        None where only the loaded model has the sizes.
        """
        sizes = self.paper or _sizes_on_disk(self.source)
        return None if sizes is None else sizes.count(kinds)

    def check(self, cfg: Any) -> None:
        """Compares the sizes of the loaded model with those of the one it is claimed to be.

        Raises:
            ComparisonError: A size differs; the message names it.
        """
        if self.paper is None:
            return
        for name in ("n_layers", "n_heads", "d_model"):
            size, expected = int(getattr(cfg, name)), getattr(self.paper, name)
            if size != expected:
                raise ComparisonError(
                    f"{self.source} is not {self.title}: its {name} is {size} instead of "
                    f"{expected}. Give the model itself, or leave the name out."
                )


@cache
def _sizes_on_disk(source: str) -> ModelSizes | None:
    """Sizes from the configuration file of a model directory; None if there is none."""
    if source == "demo":
        return DEMO_SIZES
    folder = Path(source).expanduser()
    if not (folder / "config.json").is_file():
        return None
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        return ModelSizes(
            n_layers=config.num_hidden_layers,
            n_heads=config.num_attention_heads,
            d_model=config.hidden_size,
        )
    except (ValueError, KeyError, OSError, AttributeError):
        # Loading the model reports the problem.
        return None
