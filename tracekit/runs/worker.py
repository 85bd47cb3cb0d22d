"""Workers run jobs, in this process or in several. No job is run twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from tqdm.auto import tqdm

from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import load_dataset
from tracekit.errors import HubUnreachableError, TracekitError, UnknownModelError
from tracekit.files import locked, remove_abandoned, remove_abandoned_locks
from tracekit.models.loading import HookedModel, load_model
from tracekit.processes import work_in_processes
from tracekit.results.interactions import InteractionGrid
from tracekit.results.result import TraceCurve, TraceResult
from tracekit.runs.jobs import Job, RunEnvironment
from tracekit.runs.store import (
    Run,
    configuration,
    folder_of,
    is_finished,
    save,
    weights_hash,
)
from tracekit.tracer import Tracer


@dataclass(frozen=True)
class Failure:
    """A job that failed."""

    job: Job
    reason: str
    no_model: bool = False
    """Whether its model could not be loaded."""


class Worker:
    """Runs jobs. It keeps the last model and the last tracer, which the next job often shares."""

    def __init__(self, environment: RunEnvironment, root: Path, processes: int = 1) -> None:
        """Loads nothing yet.

        Args:
            environment: Where models and data are.
            root: Folder of the store.
            processes: Number of parallel workers, which is recorded beside wall times.
        """
        self._environment = environment
        self._processes = processes
        self._root = root
        self._model: tuple[tuple[str, str], HookedModel, str] | None = None
        self._pairs: dict[str, PromptPairs] = {}
        self._tracer: tuple[tuple[str, ...], Tracer] | None = None

    def do(self, job: Job) -> Run:
        """Reads the run of a job from the store, or runs the job and saves it there.

        Raises:
            TracekitError: The model or the data cannot be loaded, or the run fails.
        """
        model, weights = self._load(job)
        pairs = self._load_pairs(job, model, job.data_options)
        config = configuration(job, weights, pairs.fingerprint)
        folder = folder_of(self._root, config)
        # A process that works on the same store may be at this run: then it is waited for.
        with locked(folder):
            if is_finished(folder):
                return Run(job, folder)
            return self._run(job, folder, config, model, pairs)

    def _run(
        self,
        job: Job,
        folder: Path,
        config: Mapping[str, Any],
        model: HookedModel,
        pairs: PromptPairs,
    ) -> Run:
        """Runs a job and saves it in its folder."""
        tracer = self._tracer_for(job, model, pairs)
        details: dict[str, Any] = {
            "device": str(tracer.engine.device),
            "processes": self._processes,
            "threads": torch.get_num_threads(),
        }
        results: TraceCurve | InteractionGrid
        if job.work == "pairs":
            results = tracer.interactions()
        else:
            results = _search(tracer, job)
            if any(result.stopped == "interrupted" for result in results):
                # The best sets so far are no finished run.
                raise KeyboardInterrupt
            details |= self._accuracies(job, tracer, results)
        save(folder, config, details, results)
        return Run(job, folder, fresh=True)

    def _load(self, job: Job) -> tuple[HookedModel, str]:
        """The model of a job and the hash of its weights."""
        key = (job.model, job.dtype)
        if self._model is None or self._model[0] != key:
            self._model, self._tracer = None, None
            self._pairs.clear()
            model_at = self._environment.sources[job.model]
            model = load_model(
                model_at.source,
                device=self._environment.device,
                dtype=job.dtype,
                **self._environment.loading,
            )
            model_at.check(model.cfg)
            self._model = (key, model, weights_hash(model))
        return self._model[1:]

    def _load_pairs(self, job: Job, model: HookedModel, options: Mapping[str, Any]) -> PromptPairs:
        """Examples of a job's data set, made with `options`; each data set is loaded once."""
        key = f"{job.dataset} {sorted(options.items())} {job.limit}"
        if key not in self._pairs:
            folder = self._environment.folder_of(job.dataset)
            location = {} if folder is None else {"data_dir": folder}
            pairs = load_dataset(job.dataset, model, **{**options, **location})
            self._pairs[key] = pairs if job.limit is None else pairs[: job.limit]
        return self._pairs[key]

    def _tracer_for(self, job: Job, model: HookedModel, pairs: PromptPairs) -> Tracer:
        """The last tracer if it fits the job, else a new one."""
        selection_pairs, held_out_pairs = pairs, None
        if job.held_out is not None:
            selection_pairs, held_out_pairs = pairs.split(1 - job.held_out, seed=job.seed)
        key = (
            *(job.model, job.dtype, job.components, job.metric, job.positions),
            *(str(job.relative_layers), selection_pairs.fingerprint),
        )
        if self._tracer is None or self._tracer[0] != key:
            tracer = Tracer(
                model,
                selection_pairs,
                job.components,
                job.metric,
                layers=_layers(job, int(model.cfg.n_layers)),
                positions=job.positions,  # type: ignore[arg-type]
                max_batch_size=self._environment.max_batch_size,
                progress=self._environment.progress,
                held_out=held_out_pairs,
            )
            self._tracer = (key, tracer)
        return self._tracer[1]

    def _accuracies(self, job: Job, tracer: Tracer, curve: TraceCurve) -> dict[str, Any]:
        """Share of the further examples whose foil y is the first choice, under each set."""
        accuracies: dict[str, list[float]] = {}
        clean: dict[str, float] = {}
        for name, options in job.accuracy_on.items():
            engine = Tracer(
                tracer.model,
                self._load_pairs(job, tracer.model, options),
                tracer.registry,
                "accuracy",
                positions=tracer.engine.config.positions,
                max_batch_size=self._environment.max_batch_size,
            ).engine
            clean[name] = _share(engine.clean.y_is_argmax)
            accuracies[name] = [
                _share(engine.log_probs(result.binary_mask).y_is_argmax) for result in curve
            ]
        return {"accuracies": accuracies, "clean_accuracies": clean} if accuracies else {}


def _layers(job: Job, n_layers: int) -> list[int] | None:
    """The layers that a job studies; None: all."""
    # The tolerance keeps 2/3 of 12 at 8.
    layers = {int(position * n_layers + 1e-9) for position in job.relative_layers}
    return sorted(layers) or None


def _share(is_true: torch.Tensor | None) -> float:
    assert is_true is not None  # The metric accuracy needs the argmax.
    return is_true.float().mean().item()


def _search(tracer: Tracer, job: Job) -> TraceCurve:
    goal: dict[str, Any] = {"budgets": list(job.budgets)} if job.budgets else {}
    results: Any = tracer.run(job.method, seed=job.seed, **goal, **job.options)
    return TraceCurve((results,)) if isinstance(results, TraceResult) else results


def do_all(
    jobs: Iterable[Job],
    environment: RunEnvironment,
    root: Path,
    *,
    processes: int = 1,
    on_done: Callable[[Run | Failure], None] = lambda outcome: None,
) -> list[Run | Failure]:
    """Runs jobs, each once, those of a model together.

    A job that fails does not stop the others. Ctrl-C stops them all; finished runs are kept. Two
    calls on one store share its runs: each is done by one of them, and the other waits for it.

    Args:
        jobs: In any order; equal jobs count once.
        environment: Where models and data are.
        root: Folder of the store.
        processes: Number of parallel workers, each with a model of its own.
        on_done: Called with the run or failure of each job.

    Returns:
        The run or failure of each different job, grouped by model.
    """
    unique = list({job.identity: job for job in jobs}.values())
    models = list(dict.fromkeys(job.model for job in unique))
    unique.sort(key=lambda job: models.index(job.model))
    root.mkdir(parents=True, exist_ok=True)
    _tidy(root)
    if processes > 1:
        return _in_processes(unique, environment, root, processes, on_done)
    worker = Worker(environment, root)
    outcomes = []
    missing: dict[str, str] = {}
    for job in unique:
        outcome = _try(worker, job, missing)
        on_done(outcome)
        outcomes.append(outcome)
    return outcomes


def _tidy(root: Path) -> None:
    """Removes what killed processes left in a store; their unfinished runs never count."""
    remove_abandoned(root)
    remove_abandoned_locks(root)


def _try(worker: Worker, job: Job, missing: dict[str, str]) -> Run | Failure:
    """Runs a job; `missing` collects the models that cannot be loaded, with the reasons."""
    if job.model in missing:
        return Failure(job, missing[job.model], no_model=True)
    try:
        return worker.do(job)
    except (UnknownModelError, HubUnreachableError) as error:
        missing[job.model] = str(error)
        return Failure(job, str(error), no_model=True)
    except TracekitError as error:
        return Failure(job, str(error))


# Of a worker process: its worker, and the models that it could not load.
_worker: Worker | None = None
_missing: dict[str, str] = {}


def _start_worker(environment: RunEnvironment, root: Path, threads: int, processes: int) -> None:
    global _worker
    torch.set_num_threads(threads)
    # Of its own, and not one between processes, which a worker that is ended would leave behind.
    tqdm.set_lock(RLock())
    _worker = Worker(environment, root, processes)


def _work(job: Job) -> Run | Failure:
    assert _worker is not None
    return _try(_worker, job, _missing)


def _in_processes(
    jobs: Sequence[Job],
    environment: RunEnvironment,
    root: Path,
    processes: int,
    on_done: Callable[[Run | Failure], None],
) -> list[Run | Failure]:
    threads = max(1, torch.get_num_threads() // processes)
    outcomes: dict[int, Run | Failure] = {}
    done = work_in_processes(
        _work,
        jobs,
        processes=processes,
        start=_start_worker,
        arguments=(environment, root, threads, processes),
    )
    try:
        with closing(done):
            for number, outcome in done:
                outcomes[number] = outcome
                on_done(outcome)
    finally:
        # Workers may have been ended while they wrote.
        _tidy(root)
    return [outcomes[number] for number in range(len(jobs))]
