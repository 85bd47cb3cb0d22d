"""The paper's tables and figures, each by name: jobs, their runs, and what is made of them.

`reproduce` plans the jobs of the experiments asked for, does those that are not in the store yet,
and writes tables (CSV, LaTeX), figures and notes. Jobs that experiments share are done once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit import figures
from tracekit.errors import FigureExportError, HubUnreachableError, UnknownExperimentError
from tracekit.experiments import learning, selections, structure
from tracekit.experiments.base import Experiment, Report, Setting
from tracekit.experiments.jobs import Job, ModelAt, Place
from tracekit.experiments.store import Run
from tracekit.experiments.work import Failure, do_all

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *(one for one in structure.EXPERIMENTS if one.name == "fig-nonadditivity"),
        *selections.EXPERIMENTS,
        *(one for one in structure.EXPERIMENTS if one.name == "fig-binding"),
        *learning.EXPERIMENTS,
        *(one for one in structure.EXPERIMENTS if one.name == "findings"),
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
    missing: dict[str, str] = field(default_factory=dict)
    """Models that cannot be had, and why."""


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
    return Place(sources={model.title: model for model in models}, **options)  # type: ignore[arg-type]


def reproduce(
    names: Sequence[str],
    setting: Setting,
    output: Path,
    *,
    data_dir: Path | None = None,
    device: str | None = None,
    batch_size: int = 64,
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
        progress: Whether searches show progress bars.
        processes: How many runs at the same time.
        images: Whether to write figures as PNG too, where a browser is at hand.
        tell: Hears of each run.

    Raises:
        UnknownExperimentError: No experiment of that name.
        HubUnreachableError: No model at all can be had; the message gives the first reason.
        TracekitError: A data set cannot be loaded, or a run fails.
    """
    experiments = chosen(names)
    place = place_of(
        experiments,
        setting,
        data_dir=data_dir,
        device=device,
        batch_size=batch_size,
        progress=progress,
    )
    jobs = plan(experiments, setting)
    done = do_all(jobs, place, output / _RUNS, processes=processes, tell=tell)
    by_job = {one.job.identity: one for one in done}
    if all(isinstance(one, Failure) for one in done):
        raise HubUnreachableError(
            f"No model can be had. {next(o.reason for o in done if isinstance(o, Failure))}"
        )
    written = []
    for experiment in experiments:
        mine = [by_job[job.identity] for job in experiment.jobs(setting)]
        runs = [one for one in mine if isinstance(one, Run)]
        report = experiment.report(setting, runs) if runs else None
        folder = output / experiment.name
        missing = {one.job.model: one.reason for one in mine if isinstance(one, Failure)}
        written.append(Written(experiment, folder, report, missing))
        if report is not None:
            _write(experiment, folder, report, missing, runs)
    if images:
        _write_images(written)
    return written


def _write(
    experiment: Experiment,
    folder: Path,
    report: Report,
    missing: Mapping[str, str],
    runs: Sequence[Run],
) -> None:
    for name, table in report.tables.items():
        table.save(folder, name)
    figures.write_all({folder / f"{name}.html": one for name, one in report.figures.items()})
    lines = [f"# {experiment.name}: {experiment.about}", ""]
    lines += [f"- {note}" for note in report.notes]
    lines += [f"- {model} is missing: {reason}" for model, reason in missing.items()]
    lines += ["", "Runs:", "", *(f"- {_RUNS}/{run.folder.name}" for run in runs)]
    (folder / "notes.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_images(written: Sequence[Written]) -> None:
    """All figures as PNG at once, since starting a browser takes longer than drawing."""
    drawn: dict[str | Path, Any] = {
        one.folder / f"{name}.png": figure
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
