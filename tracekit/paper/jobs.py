"""Jobs: everything that decides the numbers of one run, and where its model and data are.

A `Job` says which search runs on which data and model. A `RunEnvironment` says where these are and
which device runs them; it changes no number. Tables and figures that need the same run plan equal
jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tracekit.data.registry import describe
from tracekit.demo import MODEL_DIR
from tracekit.errors import ModelMismatchError
from tracekit.models.loading import DEMO
from tracekit.paper.models import PAPER_MODELS, ModelSizes, PaperModel

DEMO_DATASETS = {
    "winogender": "demo-bias",
    "winobias": "demo-bias",
    "professions": "demo-professions",
    "counterfact": "demo-facts",
    "variable-binding": "demo-binding",
}
"""Data set of the paper -> the one that takes its place with the embedded model."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    work: Literal["trace", "pairs"] = "trace"
    """`trace`: a search, whose sets are measured. `pairs`: a grid of pairs of components."""
    model: str
    """Name in tables."""
    dtype: str = "float32"
    dataset: str
    data_options: Mapping[str, Any] = field(default_factory=dict)
    components: str
    metric: str
    positions: str = "prompt"
    relative_layers: tuple[float, ...] = ()
    """Layers to study, each as layer / number of layers, in [0, 1). Empty: all."""
    method: str = ""
    """Of a search."""
    variant: str = ""
    """Name of the method in figures, if it runs with options of its own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the method."""
    budgets: tuple[int | float, ...] = ()
    """Counts (int) or shares (float). Empty: the method decides its own size."""
    limit: int | None = None
    """Only the first so many examples. None: all."""
    held_out: float | None = None
    """Share of the examples that the method does not see."""
    accuracy_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further examples on which accuracy under the intervention is measured: name -> options of
    the data set."""
    seed: int = 0

    def spec(self) -> dict[str, Any]:
        """Every field that decides the numbers, as JSON-ready values."""
        return {name: value for name, value in asdict(self).items() if name != "variant"}

    @property
    def label(self) -> str:
        """Name of the method in tables and figures."""
        return self.variant or self.method

    @property
    def identity(self) -> tuple[str, ...]:
        """Equal for jobs that give the same numbers."""
        return tuple(f"{name}={value!r}" for name, value in self.spec().items())

    def holding_out(self, share: float) -> Job:
        """The same job with a share of the examples held out."""
        return replace(self, held_out=share)


@dataclass(frozen=True, kw_only=True)
class ModelAt:
    """A model: its name in tables, and where it is loaded from."""

    title: str
    """Name in tables."""
    source: str
    """Directory, hub name or `demo`."""
    paper: PaperModel | None = None
    """The paper's model that it is claimed to be, if any."""

    @classmethod
    def parse(cls, text: str) -> ModelAt:
        """Reads a model from the command line.

        Args:
            text: `demo`, a hub name, a directory, a name of the paper's tables (which stands for
                its hub name), or `NAME=DIRECTORY`: a name for tables, and if it is one of the
                paper's, the claim that the directory holds that model.
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
        return self.source == DEMO

    def count(self, kinds: str) -> int | None:
        """Number of components of a kind, or of several joined by `+`.

        None where only the loaded model has the sizes.
        """
        sizes = self.paper or _sizes_on_disk(self.source)
        return None if sizes is None else sizes.count(kinds)

    def check(self, cfg: Any) -> None:
        """Compares the sizes of the loaded model with those of the one it is claimed to be.

        Args:
            cfg: Configuration of the loaded model.

        Raises:
            ModelMismatchError: A size differs; the message names it.
        """
        if self.paper is None:
            return
        for name in ("n_layers", "n_heads", "d_model"):
            size, expected = int(getattr(cfg, name)), getattr(self.paper, name)
            if size != expected:
                raise ModelMismatchError(
                    f"{self.source} is not {self.title}: its {name} is {size} instead of "
                    f"{expected}. Give the model itself, or leave the name out."
                )


@cache
def _sizes_on_disk(source: str) -> ModelSizes | None:
    """Sizes from the configuration file of a model directory; None if there is none."""
    folder = MODEL_DIR if source == DEMO else Path(source).expanduser()
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


@dataclass(frozen=True, kw_only=True)
class RunEnvironment:
    """Where models and data are, and the device that runs them. It changes no number."""

    sources: Mapping[str, ModelAt]
    """Models, by the names that jobs use."""
    data_dir: Path | None = None
    """Folder with data files, or with a folder for each data set. None: downloads."""
    device: str | None = None
    """As in `load_model`."""
    max_batch_size: int = 64
    """Examples per pass."""
    progress: bool = False
    """Whether searches show progress bars."""
    loading: Mapping[str, Any] = field(default_factory=dict)
    """Further options of `load_model`."""

    def folder_of(self, dataset: str) -> Path | None:
        """Folder with the files of a data set; None if it is not read from one."""
        if self.data_dir is None or "data_dir" not in describe(dataset).options:
            return None
        for name in (dataset, dataset.replace("-", "_")):
            if (self.data_dir / name).is_dir():
                return self.data_dir / name
        return self.data_dir
