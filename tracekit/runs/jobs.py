"""Jobs: all that decides the numbers of one run; where its model and data are, and its device."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from filelock import FileLock, Timeout

from tracekit._util.names import MetricName
from tracekit.data.registry import describe
from tracekit.demo import DEMO
from tracekit.engine.setup import Setup
from tracekit.errors import ConfigError
from tracekit.models.hooked import short_name

if TYPE_CHECKING:
    from tracekit.results.curve import TraceCurve
    from tracekit.tracer.tracer import Tracer


def options_text(options: Mapping[str, Any]) -> str:
    """Options as text, e.g. `epochs=8, lr=0.1`."""
    return ", ".join(f"{name}={value}" for name, value in options.items())


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run.

    A subclass may add fields, choose layers by the depth of the model, and measure more. A saved
    run gives back a plain `Job`; its `RunInfo` has the rest. Fields without a description are as
    in `Tracer`, `Tracer.run` and `load_model`.
    """

    work: Literal["trace", "pairs", "paths"] = "trace"
    """`trace`: a search, whose sets are measured. `pairs`: a grid of pairs of components. `paths`:
    a search, and how the members of its largest set connect."""
    model: str
    """Name in tables."""
    dtype: str = "float32"
    dataset: str
    data_options: Mapping[str, Any] = field(default_factory=dict)
    setup: Setup
    """The setup, with all values by their names."""
    method: str = ""
    """The search method."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method."""
    objective: str | None = None
    sign: str | None = None
    budgets: tuple[int | float, ...] = ()
    """Counts (int) or shares (float). Empty: the method decides its own size."""
    extra_metrics: tuple[str, ...] = ()
    limit: int | None = None
    """Number of first examples to use. None: all."""
    held_out: float | None = None
    """Share of the examples that the method does not see."""
    seed: int = 0

    def spec(self) -> dict[str, Any]:
        """Every field that decides the numbers, as JSON-ready values."""
        spec = {each.name: getattr(self, each.name) for each in fields(Job)}
        return {**spec, **self.further, "setup": self.setup.spec()}

    @property
    def further(self) -> dict[str, Any]:
        """The fields of a subclass that decide the numbers, as JSON-ready values."""
        return {}

    def setup_on(self, n_layers: int) -> Setup:
        """The setup for a model with this number of layers."""
        return self.setup

    def measure(
        self, curve: TraceCurve, tracer_on: Callable[[Mapping[str, Any], MetricName], Tracer]
    ) -> dict[str, Any]:
        """Measures more about the results of a search; returns JSON-ready values, which are saved.

        `tracer_on` makes a tracer of the same components on other examples of the data set, from
        their options and a metric.
        """
        return {}

    @property
    def unusual(self) -> dict[str, Any]:
        """Options of the data, and fields of job and setup that are not at their defaults."""
        names = ("dtype", "limit", "held_out")
        usual = {each.name: each.default for each in fields(Job)}
        of_job = {n: getattr(self, n) for n in names if getattr(self, n) != usual[n]}
        shown = ("components", "metric", "positions", "source_seed")
        of_setup = {n: v for n, v in self.setup.changes.items() if n not in shown}
        return {**self.data_options, **of_setup, **of_job}

    @property
    def label(self) -> str:
        """Name of the method in tables and figures."""
        return self.method

    @property
    def description(self) -> str:
        """The job in a few words."""
        parts = [
            self.model,
            self.dataset,
            options_text(self.data_options),
            self.setup.components,
            self.setup.metric,
            self.label or self.work,
            # Another label stands for the options.
            options_text(self.options) if self.label == self.method else "",
            f"seed {self.seed}" if self.seed else "",
        ]
        return ", ".join(str(part) for part in parts if part)

    @property
    def identity(self) -> tuple[str, ...]:
        """Equal for jobs that give the same numbers."""
        return tuple(f"{name}={value!r}" for name, value in self.spec().items())


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model: its name in tables, and where it is loaded from."""

    title: str
    source: str
    """Directory, hub name or `demo`."""

    @classmethod
    def parse(cls, text: str) -> ModelSource:
        """Reads a model from `demo`, a hub name, a directory, or `NAME=` one of these."""
        title, equals, source = text.partition("=")
        if not equals:
            title, source = short_name(text, is_on_hub=not Path(text).expanduser().exists()), text
        return cls(title=title, source=source)

    def check(self, cfg: Any) -> None:
        """Refuses the configuration of a wrong model; this class accepts every model."""


_M = TypeVar("_M", bound=ModelSource)


def models_by_title(models: Iterable[_M]) -> dict[str, _M]:
    """Models by their names in tables; refuses two of one name."""
    named: dict[str, _M] = {}
    for model in models:
        namesake = named.setdefault(model.title, model)
        if namesake.source != model.source:
            raise ConfigError(
                f"{namesake.source} and {model.source} would both be called {model.title}. "
                "Give them names: NAME=DIRECTORY."
            )
    return named


@dataclass(frozen=True, kw_only=True)
class RunEnvironment:
    """Where models and data are, and the device that runs them. It changes no number.

    Fields without a description are as in `load_model` and `Tracer`.
    """

    sources: Mapping[str, ModelSource]
    """Models, by the names that jobs use."""
    data_dir: Path | None = None
    """Folder with data files, or with a folder for each data set. None: downloads."""
    device: str | None = None
    max_batch_size: int | None = None
    progress: bool | None = False
    loading: Mapping[str, Any] = field(default_factory=dict)
    """Further options of `load_model`."""
    working_dir: Path | None = None
    """Where relative paths of models and data begin. None: where each process works."""

    def resolve_path(self, name: str) -> str:
        """Name of a model or data set; a relative path is made absolute."""
        if self.working_dir is None or name == DEMO:
            return name
        path = self.working_dir / Path(name).expanduser()
        return str(path) if path.exists() else name

    def folder_of(self, dataset: str) -> Path | None:
        """Folder with the files of a data set; None if it is not read from one."""
        if self.data_dir is None or "data_dir" not in describe(dataset).options:
            return None
        data_dir = (self.working_dir or Path()) / self.data_dir
        for name in (dataset, dataset.replace("-", "_")):
            if (data_dir / name).is_dir():
                return data_dir / name
        return data_dir


_worker_locks: dict[int, tuple[int, FileLock]] = {}
"""The number of each thread that is a worker, and its lock, held until the process ends."""


def device_for_worker(device: str | None, loading: Mapping[str, Any]) -> str | None:
    """A device for this thread that no other worker of this machine uses, if there are enough.

    The workers are those of all sweeps of the same user. With more workers than devices, devices
    are shared evenly. A device with a number, e.g. `cuda:1`, is kept; options of `load_model` that
    spread a model over devices leave every device to it.
    """
    if device not in (None, "cuda") or {"device_map", "n_devices"} & set(loading):
        return device
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return device if n_devices < 2 else f"cuda:{_worker_number() % n_devices}"


def _worker_number() -> int:
    """The smallest number that no other worker of this user and machine holds."""
    thread = get_ident()
    if thread in _worker_locks:
        return _worker_locks[thread][0]
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"tracekit-workers-{user}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    number = 0
    while True:  # The system lets go of a lock when the process ends, however that ends.
        lock = FileLock(folder / f"{number}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            number += 1
            continue
        except (NotImplementedError, OSError):
            return 0  # Without locks, all workers take the first device.
        _worker_locks[thread] = number, lock
        return number
