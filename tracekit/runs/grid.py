"""The grid of a sweep: models x data sets x kinds x metrics x seeds x methods, as jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_type_hints

from tracekit._util.names import ObjectiveName, SignName
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
from tracekit.runs.jobs import Job, ModelSource, models_by_title
from tracekit.search import DEFAULT_METHOD, METHODS, make


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
    methods: Sequence[Any] = (DEFAULT_METHOD,)
    """Each is a name, a mapping of `name` and options, or a search: `tk.search.PGBCT(epochs=8)`."""
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
        for name in ("models", "datasets", "methods", "seeds"):
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
            self.sources(), self.datasets, kinds, metrics, self.seeds, self.methods
        )
        jobs: dict[tuple[str, ...], Job] = {}
        for model, dataset, kind, metric, seed, method in combinations:
            dataset_name, data_options = _parse_dataset(dataset)
            usual = describe(dataset_name)
            shared = {n: value for n, value in self.data_options.items() if n in usual.options}
            method_name, options = _parse_method(method)
            setup = {
                "components": kind or usual.components,
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
