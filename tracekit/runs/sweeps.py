"""Sweeps: a grid of runs in one store, here or on many machines, and the table of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from inspect import signature
from math import isnan
from pathlib import Path
from typing import Any

from pydantic import PositiveInt
from tqdm.auto import tqdm

from tracekit._util.arguments import check_arguments
from tracekit._util.files import hold_lock, write_csv
from tracekit._util.markup import clean_text
from tracekit._util.options import as_path, check_int, check_names, convert, is_int
from tracekit._util.processes import exit_if_restarted
from tracekit._util.progress import is_interactive, report_waiting
from tracekit._util.table import Table, latex_text
from tracekit._util.warn import warn
from tracekit.engine.setup import SETUP_OPTIONS, Setup
from tracekit.errors import (
    ConfigError,
    NoResultError,
    OutputError,
    RecordWarning,
    ResultNotFoundError,
    TracekitError,
)
from tracekit.results.curve import TraceCurve
from tracekit.results.display import html_card
from tracekit.results.result import TraceResult
from tracekit.results.tables import effect_columns, latex_caption, result_table
from tracekit.runs.dispatch import run_jobs
from tracekit.runs.jobs import Grid, Job, options_text, part_of
from tracekit.runs.store import RUN_FOLDERS, Run, is_run_folder, read_run_folder
from tracekit.runs.worker import Failure

_TABLE = "runs.csv"
_LOCK = "sweep"
_LOCK_SECONDS = 30.0
"""How long a part waits while another part starts."""


@dataclass(frozen=True, eq=False)
class Runs(Sequence[Run]):
    """Finished runs, as `sweep` and `load_runs` return them."""

    runs: tuple[Run, ...]
    failures: tuple[Failure, ...] = ()
    """Jobs of the sweep that failed, with the reasons."""

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, item: Any) -> Any:
        return self.runs[item]

    def select(self, **fields: Any) -> Runs:
        """The runs whose jobs have these values of fields of `Job` or of its setup.

        E.g. `runs.select(model="gpt2", metric="kl")`.

        Raises:
            UnknownOptionError: There is no such field.
        """
        of_job, of_setup = (set(signature(each).parameters) for each in (Job, Setup))
        of_job |= {"label", "description"}
        check_names(fields, of_job | of_setup)

        def matches(job: Job) -> bool:
            values = {name: getattr(job if name in of_job else job.setup, name) for name in fields}
            return values == fields

        return Runs(tuple(run for run in self.runs if matches(run.job)))

    @property
    def results(self) -> list[TraceResult]:
        """The results of all searches, one for each budget."""
        return [result for run in self.runs if run.job.work == "trace" for result in run.curve]

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row for each result.

        Columns: what was run (`model`, which names the checkpoint, `dataset`, `kind` of component,
        `metric`, `positions`, `setting`: what differs from the defaults of a tracer, `method`,
        `options`, `objective`, `sign`, `seed`), `budget`, `n_selected` of `n_components`, the
        numbers of `docs/statistics.md`, further metrics, `passes`, `seconds` (of the run),
        `components`, `device`, `tracekit` (its version), and `folder`, which `TraceResult.load`
        reads. Grids of pairs have no row.
        """
        return self.table().frame()

    def table(self) -> Table:
        """A row for each result; see `to_frame`."""
        if not self.results:
            return Table([])
        jobs = Table.of_rows([row for run in self.runs for row in _job_rows(run)])
        columns = result_table(self.results).columns
        measures = [column for column in columns if column.key not in _JOB_COLUMNS]
        return Table([*jobs.without(*_STORED).columns, *measures, *jobs.only(*_STORED).columns])

    def shown(self) -> Table:
        """The columns of `table` that readers see: what differs between results, sizes, effects."""
        table, measured = self.table(), effect_columns(self.results)
        names = [n for n in _VARYING if n == "n_selected" or len({*table[n].texts}) > 1]
        if "budget" in names and table["budget"].values == table["n_selected"].values:
            names.remove("n_selected")
        return table.only(*names, *(each for each in _EFFECT_COLUMNS if each in measured))

    def to_latex(
        self, *, caption: str | None = None, label: str = "tab:tracekit", rows: int | None = 20
    ) -> str:
        """The columns of `shown` in LaTeX (booktabs).

        Of more results than `rows` (None: all), those with the largest share of the effect of all
        components are shown. By default the caption says how many of how many these are, on what
        they were measured, and what the columns mean.

        Raises:
            NoResultError: There are none.
            ConfigError: `rows` is no number from 1 on.
        """
        if not self.results:
            raise NoResultError("There is no result for a table. Load runs that have some.")
        if rows is not None:
            check_int("rows", rows)
        results = self.results
        shares = [(result.held_out or result.searched).share for result in results]
        strengths = [0.0 if isnan(share) else -abs(share) for share in shares]
        strongest = sorted(range(len(results)), key=strengths.__getitem__)[:rows]
        table = self.shown().rows(sorted(strongest))
        unit, *others = {result.axis_label.removeprefix("effect ") for result in results}
        if not others:
            of_effects = [each for each in table.columns if each.title.startswith("effect")]
            units = {each: replace(each, title=f"{each.title} {unit}") for each in of_effects}
            table = Table([units.get(each, each) for each in table.columns])
        which = f"The {len(strongest)} of {len(results)} results of a sweep with the largest share."
        which = f"All {len(results)} results of a sweep." if len(table) == len(results) else which
        text = latex_text(f"{which} {latex_caption(results, [each.key for each in table.columns])}")
        return table.latex(text if caption is None else caption, label)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        models = ", ".join(dict.fromkeys(run.job.model for run in self.runs))
        done = "".join(dict.fromkeys(f", {run.job.setup.intervention}" for run in self.runs))
        return clean_text(f"Runs({len(self)} of {models or 'no model'}{done}{failed})")

    def _repr_html_(self) -> str:
        return html_card(repr(self), self.shown().html())


@check_arguments
def load_runs(folder: str | Path) -> Runs:
    """Reads all runs of a sweep or of a reproduction, or all saved results below a folder.

    They are sorted by model (`step20` before `step100`), data set, method and seed. Runs that
    cannot be read are left out with a `RecordWarning`.

    Args:
        folder: The output folder, or its folder `runs`; or one with folders of `result.save`.

    Raises:
        ResultNotFoundError: The folder holds neither.
    """
    root = as_path("folder", folder)
    root = root / RUN_FOLDERS if (root / RUN_FOLDERS).is_dir() else root
    runs: list[Run] = []
    folders = sorted(filter(is_run_folder, root.iterdir())) if root.is_dir() else []
    for each in folders:
        try:
            runs.append(read_run_folder(each))
        except TracekitError as error:
            warn(f"{error} It is left out; the sweep that wrote it does it again.", RecordWarning)
    saved = [] if folders else sorted(path.parent for path in root.rglob("result.json"))
    runs += [_wrap_result(TraceResult.load(each), each) for each in saved]
    if not folders and not saved:
        raise ResultNotFoundError(
            f"The folder {folder} holds no runs. Give the output folder of a sweep or of a "
            "reproduction, or one with saved results."
        )
    return Runs(tuple(sorted(runs, key=_sort_key)))


def _wrap_result(result: TraceResult, folder: Path) -> Run:
    """A result that was saved by itself, as a run."""
    job = Job(
        model=result.model,
        dataset=result.dataset,
        setup=result.setup,
        method=result.method,
        options={name: value for name, value in result.config.items() if value is not None},
        objective=result.run.objective,
        sign=None if result.run.sign == "positive" else result.run.sign,
        budgets=() if result.budget is None else (result.budget,),
        seed=result.seed,
    )
    run = Run(job, folder.parent)
    vars(run).update(curve=TraceCurve((result,)), curve_folders=[folder.name], info=None)
    return run


@check_arguments
def sweep(
    models: Sequence[Any],
    datasets: Sequence[Any],
    methods: Sequence[Any] = (),
    budgets: Sequence[int | float] = (0.1,),
    *,
    output: str | Path,
    executor: Executor | None = None,
    jobs: int | None = None,
    part: str | None = None,
    data_dir: str | Path | None = None,
    device: str | None = None,
    max_batch_size: int | None = None,
    model_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    on_done: Callable[[Run | Failure], object] = lambda outcome: None,
    **further: Any,
) -> Runs:
    """Runs every method on every data set and model, each combination once.

    Every run is kept in `output/runs` as soon as it is finished, and `output/runs.csv` is the
    table of all of them. A sweep that is started again does what is missing. Runs that cannot be
    read are moved aside and done again.

    Args:
        models: As in `Grid`, like the three after it.
        datasets: Names, files, or mappings of `name` and options.
        methods: Names, mappings of `name` and options, or searches.
        budgets: Counts or shares; those of a method share a run.
        output: The folder; all workers must share it.
        executor: Where the runs are done. None: on this machine. It stays open. Of a Dask client:
            `client.get_executor(pure=False)`.
        jobs: Number of runs at a time. None: one, or as many as a pool of threads or processes
            has workers.
        part: `3/16`: only every sixteenth run, beginning with the third, and no table. For arrays
            of jobs, e.g. of Slurm; parts may run at the same time in one folder.
        data_dir: Folder with data files, or with a folder for each data set. None: downloads.
        device: As in `load_model`. Parallel workers take a CUDA device each, if it has no number.
        max_batch_size: Examples per pass; changes no result.
        model_options: Further options of `load_model`, e.g. `{"revision": "main"}`.
        progress: Whether to show a progress bar. None: in notebooks and terminals; elsewhere every
            run says twice a minute how far it is.
        on_done: Called with each run or failure, in this process.
        **further: The other fields of `Grid`, e.g. `components`, `metrics`, `seeds`, `limit`,
            `held_out`; and fields of `Setup` that all runs share, e.g. `source`.

    Returns:
        The runs of this sweep, and its failures.

    Raises:
        UnknownModelError, UnknownNameError, BudgetError, ConfigError: As in `Grid`, before
            anything runs.
        OutputError: The output folder cannot be made, or another sweep works in it.
        NoResultError: All runs failed; the message gives the first reason.
        ConfigError, WorkerError: About the executor and its workers. What is finished is kept.
    """
    if jobs is not None and (not is_int(jobs) or jobs < 1):
        raise ConfigError(f"jobs is {jobs!r}. Give the number of runs at a time, 1 or more.")
    if executor is not None or (jobs or 1) > 1:
        exit_if_restarted()
    parameters = {*signature(sweep).parameters, *signature(Grid).parameters}
    check_names(further, {*parameters, *SETUP_OPTIONS} - {"further", "setup"})
    further["setup"] = {name: further.pop(name) for name in SETUP_OPTIONS if name in further}
    grid = Grid(models=models, datasets=datasets, methods=methods, budgets=budgets, **further)
    planned = grid.jobs()
    if executor is None:
        grid.check_models()
    max_batch_size = convert("max_batch_size", max_batch_size, PositiveInt | None)
    device = convert("device", device, str | None)
    loading = dict(convert("model_options", model_options or {}, dict[str, Any]))
    shows_bar = is_interactive() if progress is None else progress
    folder = as_path("output", output)
    total = len(part_of(planned, part))
    bar = tqdm(total=total, disable=not shows_bar, unit="run", desc="sweep")
    waiting = report_waiting("sweep", shown=False if shows_bar else progress)
    with waiting, _make_folder(folder), _lock_output(folder, part), bar:

        def count(outcome: Run | Failure) -> None:
            bar.set_postfix_str(clean_text(outcome.job.description))
            bar.update()
            on_done(outcome)

        outcomes = run_jobs(
            planned,
            grid.sources().values(),
            folder,
            data_dir=None if data_dir is None else as_path("data_dir", data_dir),
            device=device,
            max_batch_size=max_batch_size,
            loading=loading,
            processes=jobs,
            executor=executor,
            part=part,
            progress=None if progress is None and not is_interactive() else False,
            on_done=count,
        )
        if part is None:
            write_csv(load_runs(folder).to_frame(), folder / _TABLE)
    runs = tuple(outcome for outcome in outcomes if isinstance(outcome, Run))
    return Runs(runs, tuple(outcome for outcome in outcomes if isinstance(outcome, Failure)))


@contextmanager
def _make_folder(folder: Path) -> Iterator[None]:
    """Makes a folder, and removes it again where the block fails and leaves it empty."""
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"The output {folder} cannot be written to ({error.strerror or error}). Give a folder "
            "that you can write to."
        ) from error
    try:
        yield
    except BaseException:
        for path in (folder / RUN_FOLDERS, folder) if is_new else ():
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def _lock_output(folder: Path, part: str | None) -> Iterator[None]:
    """Locks a folder against other sweeps; other parts of the same sweep may use it."""
    whole = folder / _LOCK
    with ExitStack() as locks:
        try:
            if part is None:
                locks.enter_context(hold_lock(whole, wait=False))
                for path in folder.glob(f".{_LOCK}-part-*.lock"):
                    with hold_lock(path.with_name(path.stem[1:]), wait=False):
                        pass
            else:
                name = f"{_LOCK}-part-{part.replace('/', '-of-')}"
                # Waits: another part may hold the lock of the whole sweep while it takes its own.
                with hold_lock(whole, wait=_LOCK_SECONDS):
                    locks.enter_context(hold_lock(folder / name, wait=False))
        except BlockingIOError as error:
            at_part = "" if part is None else f", or part {part} of it"
            raise OutputError(
                f"The folder {folder} is in use by another sweep{at_part}. Wait until that ends, "
                "or give another folder."
            ) from error
        yield


def _sort_key(run: Run) -> tuple[Any, ...]:
    job = run.job
    components_and_metric = str(job.setup.components), str(job.setup.metric)
    parts = re.split(r"(\d+)", job.model)
    name = tuple(int(part) if n % 2 else part for n, part in enumerate(parts))
    return name, job.dataset, *components_and_metric, job.method, job.seed, run.folder.name


_JOB_COLUMNS = ("method", "model", "dataset", "kind", "metric", "positions", "seed")
"""Columns of results whose values are taken from the job instead."""
_STORED = ("device", "tracekit", "folder")
_VARYING = ("model", "dataset", "kind", "metric", "positions", "setting", "method", "options")
_VARYING += ("objective", "sign", "seed", "budget", "n_selected")
"""Columns that are shown where they differ."""
_EFFECT_COLUMNS = ("effect", "95 % spread", "held_out", "95 % interval")


def _job_rows(run: Run) -> Iterator[dict[str, Any]]:
    """What the job of a run searched for and where its results are, for each budget."""
    job = run.job
    if job.work != "trace":
        return
    for name, result in zip(run.curve_folders, run.curve, strict=True):
        yield {
            "model": job.model,
            "dataset": job.dataset,
            "kind": job.setup.components,
            "metric": job.setup.metric,
            "positions": str(job.setup.positions),
            "setting": options_text(job.unusual),
            "method": job.method,
            "options": options_text(job.options),
            "objective": job.objective or result.run.objective,
            "sign": result.run.sign,
            "seed": job.seed,
            "device": run.info.device if run.info else None,
            "tracekit": result.run.versions["tracekit"],
            "folder": str(run.folder / name),
        }
