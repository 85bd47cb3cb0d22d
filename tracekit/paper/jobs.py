"""Jobs: everything that decides the numbers of one run, and where models and data are.

A `Job` says what is run on what; a `Place` where it is found and on what device, which changes no
result. Jobs that several tables and figures need are the same job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from tracekit.checks.architectures import PAPER_MODELS, PaperModel
from tracekit.components import ComponentRegistry
from tracekit.data.registry import describe
from tracekit.demo import MODEL_DIR
from tracekit.errors import ModelMismatchError
from tracekit.models.loading import DEMO

DEMO_DATASETS = {
    "winogender": "demo-bias",
    "winobias": "demo-bias",
    "professions": "demo-professions",
    "counterfact": "demo-facts",
    "vbd": "demo-binding",
}
"""What stands in for the paper's data sets where the embedded model is traced."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    work: Literal["trace", "pairs"] = "trace"
    """`trace`: a search, its sets measured. `pairs`: a grid of pairs."""
    model: str
    """Name in tables."""
    dtype: str = "float32"
    dataset: str
    data_options: Mapping[str, Any] = field(default_factory=dict)
    components: str
    metric: str
    positions: str = "prompt"
    depths: tuple[float, ...] = ()
    """Layers to study, as shares of the way up; all if there are none."""
    method: str = ""
    """For a search."""
    variant: str = ""
    """What the method is called in figures, if it runs with options of its own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the method."""
    budgets: tuple[int | float, ...] = ()
    """Counts or shares; none if the method decides its own size."""
    limit: int | None = None
    """Only the first examples."""
    held_out: float | None = None
    """Share of the examples that the method does not see."""
    accuracy_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further sets of examples on which accuracy under the intervention is measured: names, and
    the options of the data set that make them."""
    seed: int = 0

    def spec(self) -> dict[str, Any]:
        """All that decides the numbers, as JSON-ready values."""
        return {name: value for name, value in asdict(self).items() if name != "variant"}

    @property
    def label(self) -> str:
        """Name of the method in tables and figures."""
        return self.variant or self.method

    @property
    def identity(self) -> tuple[str, ...]:
        """What makes jobs the same."""
        return tuple(f"{name}={value!r}" for name, value in self.spec().items())

    def outside(self, share: float) -> Job:
        """The same, with a share of the examples held out."""
        return replace(self, held_out=share)


@dataclass(frozen=True, kw_only=True)
class ModelAt:
    """A model and where it is."""

    title: str
    """Name in tables."""
    source: str
    """Directory, hub name or `demo`."""
    paper: PaperModel | None = None
    """The paper's model that it is, or is said to be."""

    @classmethod
    def parse(cls, text: str) -> ModelAt:
        """From the command line.

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
        # A folder of that name need not hold the paper's model.
        return cls(title=text if title in PAPER_MODELS else title, source=text)

    @property
    def is_demo(self) -> bool:
        """Whether it is the embedded one."""
        return self.source == DEMO

    def count(self, kind: str) -> int | None:
        """Number of components of a kind, if it is known before the model is loaded."""
        if self.paper is not None:
            return self.paper.count(kind)
        sizes = _sizes(self.source)
        return None if sizes is None else len(ComponentRegistry.build(sizes, kind))

    def check(self, cfg: Any) -> None:
        """Refuses a model of other sizes than the one it is said to be.

        Raises:
            ModelMismatchError: Says which.
        """
        if self.paper is None:
            return
        for name in ("n_layers", "n_heads", "d_model"):
            found, wanted = int(getattr(cfg, name)), getattr(self.paper, name)
            if found != wanted:
                raise ModelMismatchError(
                    f"{self.source} is not {self.title}: its {name} is {found} instead of "
                    f"{wanted}. Give the model itself, or leave the name out."
                )


@cache
def _sizes(source: str) -> Any:
    """Sizes of a model on disk, from its configuration; None for others."""
    folder = MODEL_DIR if source == DEMO else Path(source).expanduser()
    if not (folder / "config.json").is_file():
        return None
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(folder))
        return SimpleNamespace(
            n_layers=config.num_hidden_layers,
            n_heads=config.num_attention_heads,
            d_model=config.hidden_size,
            d_mlp=None,
        )
    except (ValueError, KeyError, OSError, AttributeError):
        # Loading it will say what is wrong.
        return None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where models and data are, and what runs them."""

    sources: Mapping[str, ModelAt]
    """Models, by the names that jobs use."""
    data_dir: Path | None = None
    """Folder with data files, or with a folder for each data set."""
    device: str | None = None
    batch_size: int = 64
    progress: bool = False
    loading: Mapping[str, Any] = field(default_factory=dict)
    """Further options of `load_model`."""

    def folder_of(self, dataset: str) -> Path | None:
        """Folder with the files of a data set."""
        if self.data_dir is None or "data_dir" not in describe(dataset).options:
            return None
        for name in (dataset, dataset.replace("-", "_")):
            if (self.data_dir / name).is_dir():
                return self.data_dir / name
        return self.data_dir
