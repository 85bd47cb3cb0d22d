"""Workers run jobs, in this process or wherever an executor has them. No job is run twice."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import gethostname
from threading import get_ident
from typing import Any

import torch

from tracekit._util.files import hold_lock
from tracekit._util.names import MetricName
from tracekit._util.warn import name_job
from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import load_dataset
from tracekit.errors import TracekitError, WorkerError
from tracekit.measure.paths import Paths
from tracekit.models.loading import HookedModel, load_model
from tracekit.results.curve import TraceCurve
from tracekit.results.interactions import InteractionGrid
from tracekit.runs import store
from tracekit.runs.jobs import Job, RunEnvironment, device_for_worker
from tracekit.runs.store import Run, RunInfo, decisive_versions
from tracekit.search import make
from tracekit.tracer.request import Request
from tracekit.tracer.search import run_search
from tracekit.tracer.tracer import Tracer


@dataclass(frozen=True)
class Failure:
    """A job that failed."""

    job: Job
    reason: str
    no_model: bool = False
    """Whether its model could not be loaded."""


def reasons(failures: Iterable[Failure]) -> list[str]:
    """The failed jobs and the reason; a line for each different reason."""
    named: dict[str, dict[str, None]] = {}
    for failure in failures:
        name = failure.job.model if failure.no_model else failure.job.description
        named.setdefault(failure.reason, {})[name] = None
    return [f"{'; '.join(jobs)}: {reason}" for reason, jobs in named.items()]


@dataclass(eq=False)
class Worker:
    """Runs jobs. It keeps the last model and the last tracer, which the next job often shares."""

    environment: RunEnvironment
    root: Path
    processes: int = 1
    """Number of parallel workers, which is recorded beside wall times."""
    _model: tuple[tuple[str, str], HookedModel, str] | None = None
    _pairs: dict[str, PromptPairs] = field(default_factory=dict)
    _tracer: tuple[tuple[Any, ...], Tracer] | None = None

    def forget_model(self) -> None:
        """Drops the model and everything that was made for it."""
        self._model, self._tracer = None, None
        self._pairs.clear()

    def run_job(self, job: Job) -> Run:
        """Reads the run of a job from the store, or runs the job and saves it there."""
        model, weights = self.load_job_model(job)
        pairs = self._load_pairs(job, model, job.data_options)
        versions, data = decisive_versions(), pairs.fingerprint
        config = {"job": job.spec(), "weights": weights, "data": data, "versions": versions}
        folder = store.run_folder(self.root, config)
        # Wait for another process of the same store that may be doing this run.
        with hold_lock(folder):
            if store.is_finished(folder):
                return Run(job, folder)
            tracer = self._tracer_for_job(job, model, pairs)
            results = self._measure_job(job, tracer)

            def tracer_on(options: Mapping[str, Any], metric: MetricName) -> Tracer:
                return Tracer(
                    model,
                    self._load_pairs(job, model, options),
                    tracer.registry,
                    metric,
                    positions=tracer.setup.positions,
                    max_batch_size=self.environment.max_batch_size,
                )

            is_search = isinstance(results, TraceCurve)
            info = RunInfo(
                job=job,
                weights=weights,
                data=data,
                versions=versions,
                n_examples=len(pairs),
                n_skipped=len(pairs.skipped),
                device=str(tracer.engine.device),
                processes=self.processes,
                threads=torch.get_num_threads(),
                further=job.further,
                measured=job.measure(results, tracer_on) if is_search else {},
            )
            store.save_run(folder, info, results)
            return Run(job, folder, fresh=True)

    def _measure_job(self, job: Job, tracer: Tracer) -> TraceCurve | InteractionGrid | Paths:
        if job.work == "pairs":
            return tracer.interactions()
        request = Request(
            search=make(job.method, job.options),
            budgets=job.budgets or None,
            objective=job.objective,  # type: ignore[arg-type]
            sign=job.sign,  # type: ignore[arg-type]
            seed=job.seed,
        )
        curve = TraceCurve(tuple(run_search(tracer.question, request)))
        if any(result.stopped == "interrupted" for result in curve):
            # The best sets so far are not a finished run.
            raise KeyboardInterrupt
        return curve if job.work == "trace" else tracer.paths(curve[-1])

    def load_job_model(self, job: Job) -> tuple[HookedModel, str]:
        """The model of a job and the hash of its weights."""
        key = (job.model, job.dtype)
        if self._model is None or self._model[0] != key:
            self.forget_model()
            with _hide_loading_bar():
                model = load_model(
                    self.environment.resolve_path(self.environment.sources[job.model].source),
                    device=self.environment.device,
                    dtype=job.dtype,
                    **self.environment.loading,
                )
            self.environment.sources[job.model].check(model.cfg)
            self._model = (key, model, store.weights_hash(model))
        return self._model[1:]

    def _load_pairs(self, job: Job, model: HookedModel, options: Mapping[str, Any]) -> PromptPairs:
        """Examples of a job's data set, made with `options`; each data set is loaded once."""
        key = f"{job.dataset} {sorted(options.items())} {job.limit}"
        if key not in self._pairs:
            folder = self.environment.folder_of(job.dataset)
            location = {} if folder is None else {"data_dir": folder}
            name = self.environment.resolve_path(job.dataset)
            pairs = load_dataset(name, model, **{**options, **location})
            self._pairs[key] = pairs if job.limit is None else pairs[: job.limit]
        return self._pairs[key]

    def _tracer_for_job(self, job: Job, model: HookedModel, pairs: PromptPairs) -> Tracer:
        """The last tracer if it fits the job, else a new one."""
        held_out = None
        if job.held_out is not None:
            by_prompt = job.setup.source != "counterfactual"
            pairs, held_out = pairs.split(1 - job.held_out, seed=job.seed, by_prompt=by_prompt)
        setup = job.setup_on(int(model.cfg.n_layers))
        key = (job.model, job.dtype, setup, job.extra_metrics, pairs.fingerprint)
        if self._tracer is None or self._tracer[0] != key:
            tracer = Tracer(
                model,
                pairs,
                setup,
                max_batch_size=self.environment.max_batch_size,
                progress=self.environment.progress,
                held_out=held_out,
                extra_metrics=job.extra_metrics,  # type: ignore[arg-type]
            )
            self._tracer = (key, tracer)
        return self._tracer[1]


@contextmanager
def _hide_loading_bar() -> Iterator[None]:
    """Hides the bar of transformers for loading weights, which would disturb the bar of runs."""
    from transformers.utils import logging

    is_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if is_shown:
            logging.enable_progress_bar()


def try_job(
    worker: Worker, job: Job, missing: dict[str, str], *, in_worker: bool = False
) -> Run | Failure:
    """Runs a job; turns its error into a `Failure`, and begins its warnings with the job.

    `missing` collects the models that could not be loaded, whose jobs fail at once.
    """
    if job.model in missing:
        return Failure(job, missing[job.model], no_model=True)
    try:
        with name_job(job.description, in_worker=in_worker):
            try:
                worker.load_job_model(job)
            except TracekitError as error:
                missing[job.model] = str(error)
                return Failure(job, str(error), no_model=True)
            return worker.run_job(job)
    except TracekitError as error:
        return Failure(job, str(error))
    except (MemoryError, torch.OutOfMemoryError) as error:
        worker.forget_model()
        first = (str(error).splitlines() or ["no more is left"])[0]
        return Failure(job, f"The memory is full: {first} Lower max_batch_size.")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job sent to a worker of an executor, and all that it needs to run it."""

    job: Job
    environment: RunEnvironment
    root: Path
    """Folder of the store, absolute."""
    token: str
    """Name of a hidden file in that folder, which shows that the worker sees the same folder."""
    workers: int
    """Number of parallel workers, which is recorded beside wall times."""


def run_task(versions: Mapping[str, str], packed: bytes) -> Run | Failure:
    """Runs the job of a pickled `Task`; called by executors, in their workers.

    Any version of tracekit can read the arguments. The run is stored as soon as it is finished.

    Raises:
        WorkerError: The worker has other versions of the packages that numbers depend on than the
            process that sends the task, or does not see its output folder.
    """
    for package, version in decisive_versions().items():
        if versions[package] != version:
            raise WorkerError(
                f"The worker {gethostname()} has {package} {version}, this process has "
                f"{versions[package]}. Install the same versions in both, so that all runs can be "
                "compared."
            )
    task: Task = pickle.loads(packed)
    if not _file_appears(task.root / task.token):
        raise WorkerError(
            f"The worker {gethostname()} does not see the output folder {task.root}. Give a folder "
            "that all workers share, by the same path."
        )
    worker, missing = _worker_for(task)
    return try_job(worker, task.job, missing, in_worker=True)


def forget_models(token: str) -> None:
    """Drops the models that threads of this process keep as workers of a sweep."""
    for thread in [thread for thread, worker in _workers.items() if worker[0] == token]:
        _workers.pop(thread, None)


_SHARED_SECONDS = 10
"""How long a file may take to be seen from another machine."""


def _file_appears(path: Path) -> bool:
    end = time.monotonic() + _SHARED_SECONDS
    while not path.is_file():
        if time.monotonic() > end or not path.parent.is_dir():
            return False
        time.sleep(0.1)
    return True


_workers: dict[int, tuple[str, Worker, dict[str, str]]] = {}
"""Each thread's worker, with the token of its sweep and the models that it could not load."""


def _worker_for(task: Task) -> tuple[Worker, dict[str, str]]:
    """This thread's worker for the sweep of a task. A new sweep replaces the one before it."""
    thread = get_ident()
    if thread not in _workers or _workers[thread][0] != task.token:
        environment = task.environment
        device = device_for_worker(environment.device, environment.loading)
        environment = replace(environment, device=device)
        _workers[thread] = task.token, Worker(environment, task.root, task.workers), {}
    return _workers[thread][1:]
