"""Doing jobs: in this process or in several, none twice."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import load_dataset
from tracekit.errors import HubUnreachableError, TracekitError, UnknownModelError
from tracekit.models.loading import HookedModel, load_model
from tracekit.paper.jobs import Job, Place
from tracekit.paper.run_store import (
    Run,
    configuration,
    folder_of,
    is_finished,
    save,
    weights_hash,
)
from tracekit.results.result import TraceCurve, TraceResult
from tracekit.tracer import Tracer


@dataclass(frozen=True)
class Failure:
    """A job that could not be done."""

    job: Job
    reason: str
    no_model: bool = False
    """Whether its model cannot be had."""


class Worker:
    """Does jobs; keeps the last model and the last tracer, which the next job often shares."""

    def __init__(self, place: Place, root: Path, processes: int = 1) -> None:
        """Loads nothing yet.

        Args:
            place: Where models and data are.
            root: Folder of the store.
            processes: How many workers there are, to be noted beside wall times.
        """
        self._place = place
        self._processes = processes
        self._root = root
        self._model: tuple[tuple[str, str], HookedModel, str] | None = None
        self._pairs: dict[str, PromptPairs] = {}
        self._tracer: tuple[tuple[str, ...], Tracer] | None = None

    def do(self, job: Job) -> Run:
        """Finds the run of a job, or runs it.

        Raises:
            TracekitError: The model or the data cannot be loaded, or the run fails.
        """
        model, weights = self._load(job)
        pairs = self._data(job, model, job.data_options, job.limit)
        config = configuration(job, weights, pairs.fingerprint)
        folder = folder_of(self._root, config)
        if is_finished(folder):
            return Run(job, folder)
        tracer = self._trace(job, model, pairs)
        found: Any
        about: dict[str, Any] = {
            "device": str(tracer.engine.device),
            "processes": self._processes,
            "threads": torch.get_num_threads(),
        }
        if job.work == "pairs":
            found = tracer.interactions()
        else:
            found = _searched(tracer, job)
            if any(result.stopped == "interrupted" for result in found):
                # The best so far is no finished run.
                raise KeyboardInterrupt
            about |= self._accuracies(job, tracer, found)
        save(folder, config, about, found)
        return Run(job, folder, fresh=True)

    def _load(self, job: Job) -> tuple[HookedModel, str]:
        key = (job.model, job.dtype)
        if self._model is None or self._model[0] != key:
            self._model, self._tracer = None, None
            self._pairs.clear()
            at = self._place.sources[job.model]
            model = load_model(
                at.source, device=self._place.device, dtype=job.dtype, **self._place.loading
            )
            at.check(model.cfg)
            self._model = (key, model, weights_hash(model))
        return self._model[1:]

    def _data(self, job: Job, model: HookedModel, options: Any, limit: int | None) -> PromptPairs:
        key = f"{job.dataset} {sorted(options.items())} {limit}"
        if key not in self._pairs:
            given = dict(options)
            folder = self._place.folder_of(job.dataset)
            if folder is not None:
                given["data_dir"] = folder
            pairs = load_dataset(job.dataset, model, **given)
            self._pairs[key] = pairs if limit is None else pairs[:limit]
        return self._pairs[key]

    def _trace(self, job: Job, model: HookedModel, pairs: PromptPairs) -> Tracer:
        """A tracer, the last one if it is the same."""
        inside, outside = pairs, None
        if job.held_out is not None:
            inside, outside = pairs.split(1 - job.held_out, seed=job.seed)
        shared = (
            *(job.model, job.dtype, job.components, job.metric, job.positions),
            *(str(job.depths), inside.fingerprint),
        )
        if self._tracer is None or self._tracer[0] != shared:
            tracer = Tracer(
                model,
                inside,
                job.components,
                job.metric,
                layers=_layers(job, int(model.cfg.n_layers)),
                positions=job.positions,  # type: ignore[arg-type]
                batch_size=self._place.batch_size,
                progress=self._place.progress,
                held_out=outside,
            )
            self._tracer = (shared, tracer)
        return self._tracer[1]

    def _accuracies(self, job: Job, tracer: Tracer, curve: TraceCurve) -> dict[str, Any]:
        """How often y is the first choice under each set, on other examples."""
        found: dict[str, list[float]] = {}
        clean: dict[str, float] = {}
        for name, options in job.accuracy_on.items():
            pairs = self._data(job, tracer.model, options, job.limit)
            engine = Tracer(
                tracer.model,
                pairs,
                tracer.registry,
                "accuracy",
                positions=tracer.engine.positions,
                batch_size=self._place.batch_size,
            ).engine
            clean[name] = _mean_choice(engine.clean.y_chosen)
            found[name] = [
                _mean_choice(engine.intervened(result.binary_mask).y_chosen) for result in curve
            ]
        return {"accuracies": found, "clean_accuracies": clean} if found else {}


def _layers(job: Job, n_layers: int) -> list[int] | None:
    """The layers that a job is about; the tolerance keeps 2/3 of 12 at 8."""
    found = sorted({int(depth * n_layers + 1e-9) for depth in job.depths})
    return found or None


def _mean_choice(chosen: torch.Tensor | None) -> float:
    assert chosen is not None  # The metric reads choices.
    return chosen.float().mean().item()


def _searched(tracer: Tracer, job: Job) -> TraceCurve:
    goal: dict[str, Any] = {"budgets": list(job.budgets)} if job.budgets else {}
    found: Any = tracer.run(job.method, seed=job.seed, **goal, **job.options)
    return TraceCurve((found,)) if isinstance(found, TraceResult) else found


def do_all(
    jobs: Iterable[Job],
    place: Place,
    root: Path,
    *,
    processes: int = 1,
    tell: Callable[[Run | Failure], None] = lambda done: None,
) -> list[Run | Failure]:
    """Does jobs, each once, those of a model together.

    A job that fails costs only itself. Ctrl-C ends everything; what was finished is kept.

    Args:
        jobs: In any order, some perhaps twice.
        place: Where models and data are.
        root: Folder of the store.
        processes: How many work at the same time, each with a model of its own.
        tell: Hears of each job that is done.

    Returns:
        What became of each different job.
    """
    unique = list({job.identity: job for job in jobs}.values())
    order = list(dict.fromkeys(job.model for job in unique))
    unique.sort(key=lambda job: order.index(job.model))
    root.mkdir(parents=True, exist_ok=True)
    if processes > 1:
        return _in_processes(unique, place, root, processes, tell)
    worker = Worker(place, root)
    done = []
    missing: dict[str, str] = {}
    for job in unique:
        one = _try(worker, job, missing)
        tell(one)
        done.append(one)
    return done


def _try(worker: Worker, job: Job, missing: dict[str, str]) -> Run | Failure:
    if job.model in missing:
        return Failure(job, missing[job.model], no_model=True)
    try:
        return worker.do(job)
    except (UnknownModelError, HubUnreachableError) as error:
        missing[job.model] = str(error)
        return Failure(job, str(error), no_model=True)
    except TracekitError as error:
        return Failure(job, str(error))


_worker: Worker | None = None
_missing: dict[str, str] = {}


def _begin(place: Place, root: Path, threads: int, processes: int) -> None:
    global _worker
    torch.set_num_threads(threads)
    _worker = Worker(place, root, processes)


def _work(job: Job) -> Run | Failure:
    assert _worker is not None
    return _try(_worker, job, _missing)


def _in_processes(
    jobs: Sequence[Job],
    place: Place,
    root: Path,
    processes: int,
    tell: Callable[[Run | Failure], None],
) -> list[Run | Failure]:
    threads = max(1, torch.get_num_threads() // processes)
    # Forked processes cannot use CUDA.
    context = multiprocessing.get_context("spawn")
    done: dict[int, Run | Failure] = {}
    pool = ProcessPoolExecutor(
        processes,
        mp_context=context,
        initializer=_begin,
        initargs=(place, root, threads, processes),
    )
    with pool:
        waiting = {pool.submit(_work, job): number for number, job in enumerate(jobs)}
        try:
            for future in as_completed(waiting):
                done[waiting[future]] = future.result()
                tell(done[waiting[future]])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [done[number] for number in range(len(jobs))]
