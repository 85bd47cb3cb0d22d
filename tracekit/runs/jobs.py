"""Jobs: all that decides the numbers of one run; and grids of them, as sweeps take them."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from itertools import product
from math import isfinite
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

import torch
from filelock import FileLock, Timeout

from tracekit._util.names import MetricName, ObjectiveName, SignName
from tracekit._util.options import check_names, check_seed, convert, is_int, short_repr
from tracekit.components.kinds import kind_of
from tracekit.data.registry import describe
from tracekit.demo import DEMO
from tracekit.engine.setup import Setup
from tracekit.engine.sources import parse_source, source_name
from tracekit.errors import (
    BudgetError,
    ConfigError,
    HubUnreachableError,
    UnknownModelError,
    UnknownNameError,
)
from tracekit.metrics import resolve_metric as resolve_metric
from tracekit.models.checkpoint import locate
from tracekit.models.hooked import short_name
from tracekit.search import METHODS, default_method, make

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


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Grid of a sweep: every combination of the lists. Budgets share a run.

    `objective` and `sign` are as in `Tracer.run`, `dtype` is as in `load_model`.
    """

    models: Sequence[Any]
    """Each is `demo`, a directory, or a hub name with or without a revision, such as a checkpoint
    of a training run (`gpt2@main`); or `NAME=` one of these, to name it in tables."""
    datasets: Sequence[Any]
    """Each is a name, a `.csv` or `.jsonl` file, or a mapping of `name` and options."""
    methods: Sequence[Any] = ()
    """Each is a name, a mapping of `name` and options, or a search. Empty: as in `Tracer.run`."""
    budgets: Sequence[Any] = (0.1,)
    """Counts (int) or shares (float). Empty: the methods decide their own sizes."""
    components: Sequence[str] = ()
    """Kinds of component, one or several joined by `+` each. Empty: as is usual for a data set."""
    metrics: Sequence[str] = ()
    """Empty: as is usual for a data set."""
    seeds: Sequence[int] = (0,)
    """Seeds of the searches, of held-out examples, and of noise."""
    limit: int | None = None
    """Number of first examples of each data set to use. None: all."""
    held_out: float | None = None
    """Share of the examples that no method sees, on which every set is measured too."""
    setup: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `Setup` for all runs. By default, positions are as usual for the data."""
    extra_metrics: Sequence[str] = ()
    """Further metrics by which every set is measured."""
    objective: ObjectiveName | None = None
    sign: SignName | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the data sets that have them."""

    def __post_init__(self) -> None:
        """Checks every entry.

        Raises:
            UnknownNameError: A name, or an option of a method or a data set.
            BudgetError: A budget.
            ConfigError: An empty list, a value of another type, two models of one name.
        """
        for name, hint in get_type_hints(type(self)).items():
            value, is_list = getattr(self, name), str(hint).startswith("collections.abc.Sequence")
            if is_list and (isinstance(value, (str, bytes)) or not isinstance(value, Sequence)):
                raise ConfigError(
                    f"The option {name} is {short_repr(value)}. Give a list, even of one entry."
                )
            object.__setattr__(self, name, convert(name, value, hint))
        for name in ("models", "datasets", "seeds"):
            if not getattr(self, name):
                raise ConfigError(f"A sweep needs {name}, and none are given. Name at least one.")
        self.sources()
        for each in self.budgets:
            is_share = isinstance(each, float) and isfinite(each) and 0 < each <= 1
            if not is_share and not (is_int(each) and each >= 1):
                raise BudgetError(
                    f"A budget of {short_repr(each)} is not a number of components. Give a count "
                    "such as 6, or a share (float) that is above 0 and at most 1."
                )
        for seed in self.seeds:
            check_seed(seed)
        for kinds in self.components:
            for name in kinds.split("+"):
                kind_of(name)
        for metric in (*self.metrics, *self.extra_metrics):
            resolve_metric(metric)
        # Workers make a source by its name.
        parse_source(source_name(Setup(**self.setup).source))
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"The limit is {self.limit}. Give the number of examples, 1 or more.")
        if self.held_out is not None and not 0 < self.held_out < 1:
            raise ConfigError(
                f"held_out is {self.held_out}. Give a share of the examples between 0 and 1."
            )
        for method in self.methods:
            _parse_method(method)
        options = [describe(_parse_dataset(entry)[0]).options for entry in self.datasets]
        check_names(self.data_options, set().union(*options))

    def sources(self) -> dict[str, ModelSource]:
        """The models by their names in tables; refuses two of one name."""
        for entry in self.models:
            if not isinstance(entry, (str, Path)) or not str(entry).strip():
                raise ConfigError(
                    f"The model {short_repr(entry)} is not a name. Workers load models themselves: "
                    "give a directory, a hub name, or NAME=DIRECTORY."
                )
        return models_by_title(ModelSource.parse(str(entry)) for entry in self.models)

    def check_models(self) -> None:
        """Refuses models that this machine cannot find.

        If the hub cannot be reached, a hub name is accepted: the workers may have the model.

        Raises:
            UnknownModelError: No such directory or model.
        """
        for model in self.sources().values():
            path, names = Path(model.source).expanduser(), [DEMO]
            if path.parent.is_dir() and str(path.parent) != ".":
                names += [str(each) for each in path.parent.iterdir() if each.is_dir()]
            close = get_close_matches(str(path), names, n=1, cutoff=0.7)
            guess = f"Did you mean {close[0]!r}?" if close and close[0] != model.source else ""
            try:
                locate(model.source, files=["config.json"])
            except HubUnreachableError as error:
                if guess:
                    raise UnknownModelError(f"{error} {guess}") from error
            except UnknownModelError as error:
                raise UnknownModelError(f"{error} {guess}".rstrip()) from error

    def jobs(self) -> list[Job]:
        """All jobs, those of a model together."""
        kinds, metrics = self.components or (None,), self.metrics or (None,)
        combinations = product(
            self.sources(), self.datasets, kinds, metrics, self.seeds, self.methods or (None,)
        )
        jobs: dict[tuple[str, ...], Job] = {}
        for model, dataset, kind, metric, seed, method in combinations:
            dataset_name, data_options = _parse_dataset(dataset)
            usual = describe(dataset_name)
            shared = {n: value for n, value in self.data_options.items() if n in usual.options}
            components = self.setup.get("components") or kind or usual.components
            method_name, options = _parse_method(method or default_method(components))
            setup = {
                "components": components,
                "metric": metric or usual.metric,
                "positions": "prompt" if self.setup.get("split_by") else usual.positions,
                "source_seed": seed,
                **self.setup,
                "source": source_name(Setup(**self.setup).source),
            }
            job = Job(
                model=model,
                dtype=self.dtype,
                dataset=dataset_name,
                data_options={**shared, **data_options},
                setup=Setup(**setup),
                extra_metrics=tuple(self.extra_metrics),
                method=method_name,
                options=options,
                objective=self.objective,
                sign=self.sign,
                budgets=tuple(sorted(self.budgets, key=lambda b: (isinstance(b, float), b))),
                limit=self.limit,
                held_out=self.held_out,
                seed=seed,
            )
            jobs[job.identity] = job
        return list(jobs.values())


def part_of(jobs: Sequence[Job], part: str | None) -> list[Job]:
    """The jobs of one of several processes that share a store; None: all jobs.

    Part `3/16` has the third job, the nineteenth and so on, in the order that all processes share.
    """
    if part is None:
        return list(jobs)
    match = re.fullmatch(r"(\d+)/(\d+)", part) if isinstance(part, str) else None
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise ConfigError(
            f"The part {part!r} is not of the form NUMBER/COUNT. Give one such as 3/16: a whole "
            "number from 1 to the count."
        )
    return list(jobs[number - 1 :: count])


def _parse_method(entry: Any) -> tuple[str, dict[str, Any]]:
    if is_dataclass(entry) and not isinstance(entry, type):
        name = getattr(entry, "name", "")
        if METHODS.get(name) is not type(entry):
            hint = "Workers know only the methods of tracekit."
            raise UnknownNameError("method", name, METHODS, hint)
        usual = type(entry)()
        values = {each.name: getattr(entry, each.name) for each in fields(entry)}
        options = {n: value for n, value in values.items() if value != getattr(usual, n)}
        return name, _json_options(options)
    name, options = _name_and_options("method", entry)
    make(name, options)
    return name, options


def _parse_dataset(entry: Any) -> tuple[str, dict[str, Any]]:
    name, options = _name_and_options("data set", entry)
    check_names(options, describe(name).options)
    return name, options


def _name_and_options(noun: str, entry: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
        return entry["name"], _json_options({n: v for n, v in entry.items() if n != "name"})
    raise ConfigError(
        f"The {noun} {short_repr(entry)} has no name. Give a name, or a table with the key name."
    )


def _json_options(options: Mapping[str, Any]) -> dict[str, Any]:
    texts = {n: str(v) if isinstance(v, Path) else v for n, v in options.items()}
    return {n: list(v) if isinstance(v, tuple) else v for n, v in texts.items()}
