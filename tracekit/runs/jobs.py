"""Jobs: everything that decides the numbers of one run, and where its model and data are.

A `Job` says which search runs on which data and model. A `RunEnvironment` says where these are and
which device runs them; it changes no number. Plans that need the same run hold equal jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tracekit.data.registry import describe


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
class ModelSource:
    """A model: its name in tables, and where it is loaded from."""

    title: str
    """Name in tables."""
    source: str
    """Directory, hub name or `demo`."""

    def check(self, cfg: Any) -> None:
        """Refuses a loaded model that is not the one meant; any model is.

        Args:
            cfg: Configuration of the loaded model.
        """


@dataclass(frozen=True, kw_only=True)
class RunEnvironment:
    """Where models and data are, and the device that runs them. It changes no number."""

    sources: Mapping[str, ModelSource]
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
