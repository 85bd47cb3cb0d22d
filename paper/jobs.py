"""Models and data sets of the paper's jobs, and what takes their place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from paper.models import DEMO_SIZES, PAPER_MODELS, ModelSizes, PaperModel
from tracekit.errors import ComparisonError
from tracekit.runs import ModelSource

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
