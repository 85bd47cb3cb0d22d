"""The paper's tables and figures, each by name: plans their jobs, runs them and writes reports.

`reproduce` plans the jobs of the experiments asked for, runs those that are not in the store yet,
and writes tables (CSV, LaTeX), figures and notes. Jobs that experiments share run once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paper import effect_tables, interaction_figures, training_figures
from paper.experiment import Experiment, Report, Setting, notes_on_size
from tracekit import figures
from tracekit.data import describe
from tracekit.errors import FigureExportError, UnknownNameError, UnknownOptionError
from tracekit.runs import Failure, Job, Run, reasons, run_jobs
from tracekit.search import METHODS

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *effect_tables.EXPERIMENTS,
        *interaction_figures.EXPERIMENTS,
        *training_figures.EXPERIMENTS,
    )
}
"""By name."""


@dataclass(eq=False)
class Reproduction:
    """An experiment that `reproduce` ran and wrote."""

    experiment: Experiment
    folder: Path
    """Where its tables, figures and notes are."""
    report: Report | None
    """None if all of its runs failed."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def reasons(self) -> list[str]:
        """The failed jobs and the reason; a line for each different reason."""
        return reasons(self.failures)


def select_experiments(names: Sequence[str]) -> list[Experiment]:
    """Experiments by name; `all` stands for all of them.

    Raises:
        UnknownNameError: No experiment of that name.
    """
    if "all" in names:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            raise UnknownNameError("experiment", name, [*EXPERIMENTS, "all"])
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]


def plan(experiments: Sequence[Experiment], setting: Setting) -> list[Job]:
    """The jobs of several experiments; equal jobs once."""
    jobs = [job for experiment in experiments for job in experiment.jobs(setting)]
    return list({job.identity: job for job in jobs}.values())


def reproduce(
    names: Sequence[str],
    setting: Setting,
    output: Path,
    *,
    part: str | None = None,
    images: bool = True,
    on_done: Callable[[Run | Failure], object] = lambda outcome: None,
    **run_options: Any,
) -> list[Reproduction]:
    """Runs experiments, and writes the report of each one as soon as its runs are done.

    Every run is kept in `output/runs` and never repeated. The tables and figures of an experiment
    are in `output/NAME`; figures as PNG come last, for all experiments together.

    Args:
        names: Of experiments, or `all`.
        setting: Models, data sets, methods.
        output: Folder for everything.
        part: `3/16`: only every sixteenth run, beginning with the third, and no report.
        images: Whether to write figures as PNG too, where a browser is installed.
        on_done: Called with each run or failure.
        **run_options: Where and how the runs are done, e.g. `device` or `processes`: the other
            parameters of `tracekit.runs.run_jobs`.

    Returns:
        One entry per experiment, in the order of `names`; none with `part`.

    Raises:
        UnknownNameError: No experiment of that name, or an option that no data set or method has.
        ConfigError: Two models of the same name, or a part of another form.
        ConfigError, WorkerError: About the executor and its workers.
        NoResultError: All runs failed; the message gives the first reason. Where only some failed,
            `Reproduction.failures` lists them.
    """
    experiments = select_experiments(names)
    jobs = plan(experiments, setting)
    # An option that no data set or no method has would silently change nothing.
    methods: list[Any] = [METHODS[job.method] for job in jobs if job.method]
    _check_options(setting.data_options, {o for job in jobs for o in describe(job.dataset).options})
    _check_options(setting.method_options, {o.name for each in methods for o in fields(each)})
    models = [model for experiment in experiments for model in experiment.models_for(setting)]
    by_job: dict[tuple[str, ...], Run | Failure] = {}
    written: dict[str, Reproduction] = {}

    def keep(outcome: Run | Failure) -> None:
        by_job[outcome.job.identity] = outcome
        on_done(outcome)
        for experiment in experiments if part is None else ():
            needed = [job.identity for job in experiment.jobs(setting)]
            name = experiment.name
            if name not in written and all(job in by_job for job in needed):
                written[name] = _report(experiment, setting, by_job, output / name)

    run_jobs(jobs, models, output, part=part, on_done=keep, **run_options)
    if part is not None:
        return []
    reproductions = [written[experiment.name] for experiment in experiments]
    if images:
        _write_images(reproductions)
    return reproductions


def _check_options(given: Mapping[str, Any], allowed: set[str]) -> None:
    for name in given:
        if name not in allowed:
            raise UnknownOptionError(name, allowed or {"none"})


def _report(
    experiment: Experiment,
    setting: Setting,
    by_job: Mapping[tuple[str, ...], Run | Failure],
    folder: Path,
) -> Reproduction:
    """Makes the report of an experiment, and writes it to a folder.

    `by_job` holds outcomes by job identity.
    """
    # Experiments may call the same run by other names.
    outcomes = [replace(by_job[job.identity], job=job) for job in experiment.jobs(setting)]
    runs = [outcome for outcome in outcomes if isinstance(outcome, Run)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if not runs:
        return Reproduction(experiment, folder, None, failures)
    report = experiment.report(setting, runs)
    report = replace(report, notes=[*report.notes, *notes_on_size(setting)])
    folder.mkdir(parents=True, exist_ok=True)
    # Files are moved to the folder when all of them are complete; the notes come last.
    with TemporaryDirectory(dir=folder, prefix=".draft-") as draft:
        for path in _write_report(experiment, report, runs, failures, Path(draft)):
            path.replace(folder / path.name)
    return Reproduction(experiment, folder, report, failures)


def _write_report(
    experiment: Experiment,
    report: Report,
    runs: Sequence[Run],
    failures: Sequence[Failure],
    folder: Path,
) -> list[Path]:
    """Writes tables, figures as HTML, and `notes.md`; returns the paths, that of the notes last."""
    paths: list[Path] = []
    for name, table in report.tables.items():
        paths += table.save(folder, slug(name))
    drawn: dict[str | Path, Any] = {
        folder / f"{slug(name)}.html": figure for name, figure in report.figures.items()
    }
    figures.write_all(drawn)
    lines = [f"# {experiment.name}: {experiment.about}", ""]
    lines += [f"- {note}" for note in report.notes]
    lines += _left_out(runs)
    lines += [f"- Skipped: {reason}" for reason in reasons(failures)]
    lines += ["", "Runs:", "", *(f"- runs/{run.folder.name}" for run in runs)]
    notes = folder / "notes.md"
    notes.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [*paths, *map(Path, drawn), notes]


def _left_out(runs: Sequence[Run]) -> list[str]:
    """A line for each data set of which a model does not allow every example."""
    lines = [
        f"- {run.info.n_skipped} examples of {run.job.dataset} are left out with {run.job.model}: "
        + (
            f"it gives x a probability below {run.job.data_options['min_probability']}."
            if "min_probability" in run.job.data_options
            else "their prompts and counterfactuals differ in the number of tokens."
        )
        for run in runs
        if run.info.n_skipped
    ]
    return list(dict.fromkeys(lines))


def slug(name: str) -> str:
    """A name as a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")


def _write_images(reproductions: Sequence[Reproduction]) -> None:
    """Writes all figures as PNG at once, since starting a browser takes longer than drawing."""
    figures_by_path: dict[str | Path, Any] = {
        reproduction.folder / f"{slug(name)}.png": figure
        for reproduction in reproductions
        if reproduction.report is not None
        for name, figure in reproduction.report.figures.items()
    }
    # The HTML files are written.
    with suppress(FigureExportError):
        figures.write_all(figures_by_path)
