"""The paper's tables and figures, each by name: jobs, their runs, and what is made of them.

`reproduce` plans the jobs of the experiments asked for, does those that are not in the store yet,
and writes tables (CSV, LaTeX), figures and notes. Jobs that experiments share are done once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracekit import figures
from tracekit.data.registry import describe
from tracekit.errors import (
    ConfigError,
    FigureExportError,
    NoRunError,
    UnknownExperimentError,
    UnknownOptionError,
)
from tracekit.paper import effect_tables, interaction_figures, training_figures
from tracekit.paper.experiment import Experiment, Report, Setting
from tracekit.paper.jobs import Job, ModelAt, Place
from tracekit.paper.run_store import Run
from tracekit.paper.worker import Failure, do_all

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *effect_tables.EXPERIMENTS,
        *interaction_figures.EXPERIMENTS,
        *training_figures.EXPERIMENTS,
    )
}

_RUNS = "runs"


@dataclass(eq=False)
class Written:
    """What `reproduce` wrote for an experiment."""

    experiment: Experiment
    folder: Path
    report: Report | None
    """None if no run of it could be done."""
    failures: list[Failure] = field(default_factory=list)
    """Jobs that could not be done."""

    @property
    def reasons(self) -> list[str]:
        """What could not be done, and why; each reason once."""
        found: dict[str, list[str]] = {}
        for one in self.failures:
            what = one.job.model if one.no_model else f"{one.job.model}, {one.job.dataset}"
            what += "" if one.no_model else f", {one.job.label or one.job.work}"
            found.setdefault(one.reason, []).append(what)
        return [f"{'; '.join(dict.fromkeys(w))}: {reason}" for reason, w in found.items()]


def chosen(names: Sequence[str]) -> list[Experiment]:
    """Experiments by name; `all` stands for all of them.

    Raises:
        UnknownExperimentError: No experiment of that name.
    """
    if "all" in names:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            raise UnknownExperimentError(name, [*EXPERIMENTS, "all"])
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]


def plan(experiments: Sequence[Experiment], setting: Setting) -> list[Job]:
    """The different jobs of some experiments."""
    jobs = [job for experiment in experiments for job in experiment.jobs(setting)]
    return list({job.identity: job for job in jobs}.values())


def place_of(experiments: Sequence[Experiment], setting: Setting, **options: object) -> Place:
    """Where the models of some experiments are."""
    models = [model for one in experiments for model in one.chosen_models(setting)]
    by_title: dict[str, ModelAt] = {}
    for model in models:
        other = by_title.setdefault(model.title, model)
        if other.source != model.source:
            raise ConfigError(
                f"{other.source} and {model.source} would both be called {model.title}. "
                "Give them names: NAME=DIRECTORY."
            )
    return Place(sources={model.title: model for model in models}, **options)  # type: ignore[arg-type]


def reproduce(
    names: Sequence[str],
    setting: Setting,
    output: Path,
    *,
    data_dir: Path | None = None,
    device: str | None = None,
    batch_size: int = 64,
    loading: Mapping[str, Any] | None = None,
    progress: bool = False,
    processes: int = 1,
    images: bool = True,
    tell: Callable[[Run | Failure], None] = lambda done: None,
) -> list[Written]:
    """Runs experiments and writes what they show.

    Every run is kept in `output/runs`; one that is there already is not repeated. The tables and
    figures of an experiment are in `output/NAME`.

    Args:
        names: Of experiments, or `all`.
        setting: Models, data sets, methods.
        output: Folder for everything.
        data_dir: Folder with data files, or with a folder per data set. None: downloads.
        device: E.g. `cuda:0`.
        batch_size: Examples per pass; changes no result.
        loading: Further options of `load_model`, e.g. `device_map`.
        progress: Whether searches show progress bars.
        processes: How many runs at the same time.
        images: Whether to write figures as PNG too, where a browser is at hand.
        tell: Hears of each run.

    Raises:
        UnknownExperimentError: No experiment of that name.
        UnknownOptionError: A data option that none of the data sets has.
        ConfigError: Two models of the same name.
        NoRunError: No run could be done; the message gives the first reason. Where only some
            failed, `Written.failures` says which.
    """
    experiments = chosen(names)
    _check_data_options(experiments, setting)
    place = place_of(
        experiments,
        setting,
        data_dir=data_dir,
        device=device,
        batch_size=batch_size,
        loading=loading or {},
        progress=progress,
    )
    jobs = plan(experiments, setting)
    done = do_all(jobs, place, output / _RUNS, processes=processes, tell=tell)
    by_job = {one.job.identity: one for one in done}
    if all(isinstance(one, Failure) for one in done):
        first = next(one.reason for one in done if isinstance(one, Failure))
        raise NoRunError(f"No run could be done. {first}")
    written = []
    for experiment in experiments:
        # Experiments may call the same run by other names.
        mine = [replace(by_job[job.identity], job=job) for job in experiment.jobs(setting)]
        runs = [one for one in mine if isinstance(one, Run)]
        report = experiment.report(setting, runs) if runs else None
        failures = [one for one in mine if isinstance(one, Failure)]
        written.append(Written(experiment, output / experiment.name, report, failures))
        if report is not None:
            _write(written[-1], report, runs)
    if images:
        _write_images(written)
    return written


def _check_data_options(experiments: Sequence[Experiment], setting: Setting) -> None:
    """Refuses an option that none of the data sets has: it would change nothing, in silence."""
    datasets = {
        dataset
        for one in experiments
        for model in one.chosen_models(setting)
        for dataset in one.chosen_datasets(setting, model)
    }
    known = {option for dataset in datasets for option in describe(dataset).options}
    for option in setting.data_options:
        if option not in known:
            raise UnknownOptionError(option, known)


def _write(one: Written, report: Report, runs: Sequence[Run]) -> None:
    for name, table in report.tables.items():
        table.save(one.folder, slug(name))
    drawn: dict[str | Path, Any] = {
        one.folder / f"{slug(name)}.html": figure for name, figure in report.figures.items()
    }
    figures.write_all(drawn)
    lines = [f"# {one.experiment.name}: {one.experiment.about}", ""]
    lines += [f"- {note}" for note in report.notes]
    lines += [f"- Not done: {reason}" for reason in one.reasons]
    lines += ["", "Runs:", "", *(f"- {_RUNS}/{run.folder.name}" for run in runs)]
    one.folder.mkdir(parents=True, exist_ok=True)
    (one.folder / "notes.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def slug(name: str) -> str:
    """A name as a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")


def _write_images(written: Sequence[Written]) -> None:
    """All figures as PNG at once, since starting a browser takes longer than drawing."""
    drawn: dict[str | Path, Any] = {
        one.folder / f"{slug(name)}.png": figure
        for one in written
        if one.report is not None
        for name, figure in one.report.figures.items()
    }
    try:
        figures.write_all(drawn)
    except FigureExportError:
        # The HTML files are there.
        return


__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Failure",
    "Job",
    "ModelAt",
    "Place",
    "Report",
    "Run",
    "Setting",
    "Written",
    "chosen",
    "plan",
    "reproduce",
]
