"""The store: a folder for each finished run, named by a hash of all that decides its numbers."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tracekit._util.files import draft_folder, json_digest, tensors_digest
from tracekit._util.versions import versions
from tracekit.errors import TracekitError
from tracekit.measure.paths import Paths
from tracekit.models.loading import HookedModel
from tracekit.results import storage
from tracekit.results.curve import CURVE, CurveRuns, TraceCurve
from tracekit.results.interactions import InteractionGrid
from tracekit.results.result import TraceResult
from tracekit.results.storage import load_dataclass
from tracekit.runs.jobs import Job

RUN_FOLDERS = "runs"
"""Name of the store in an output folder."""
_INFO = "run.json"
_GRID = "grid.json"
_NAME_LENGTH = 16
"""Hexadecimal digits of the hash that make a folder's name."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Everything that decides a run's numbers, and what ran it."""

    job: Job
    weights: str
    """Hash of the weights."""
    data: str
    """Hash of the examples."""
    versions: Mapping[str, str]
    """Versions of the packages that decide numbers."""
    n_examples: int
    n_skipped: int
    """Examples of the data set that the tokenizer does not allow or the model does not know."""
    device: str
    processes: int
    threads: int
    further: Mapping[str, Any]
    """`Job.further`: the fields that a subclass of `Job` adds."""
    measured: Mapping[str, Any]
    """What `Job.measure` returned."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    job: Job
    folder: Path
    fresh: bool = False
    """Whether it was run now rather than read from the store."""

    @cached_property
    def info(self) -> RunInfo:
        """Configuration, hashes, versions, and the device and processes that ran it."""
        return load_dataclass(RunInfo, self.folder / _INFO)

    @cached_property
    def curve(self) -> TraceCurve:
        """Results of a search, one per budget."""
        return TraceCurve.load(self.folder)

    def read(self) -> TraceCurve | InteractionGrid | Paths:
        """Reads and keeps everything that the run measured."""
        return getattr(self, {"trace": "curve", "pairs": "grid", "paths": "paths"}[self.job.work])

    @property
    def result(self) -> TraceResult:
        """The only result, or that of the largest budget."""
        return self.curve[-1]

    @cached_property
    def curve_folders(self) -> list[str]:
        """Names of the folders of the results; `TraceResult.load` reads each."""
        return list(load_dataclass(CurveRuns, self.folder / CURVE).runs)

    @cached_property
    def grid(self) -> InteractionGrid:
        """The grid of a run that measured pairs."""
        return InteractionGrid.load(self.folder / _GRID)

    @cached_property
    def paths(self) -> Paths:
        """The effects of paths, of a run that measured them."""
        return Paths.load(self.folder)


def weights_hash(model: HookedModel) -> str:
    """SHA-256 over names, shapes and values of all parameters, and over the configuration."""
    config = getattr(getattr(model, "original_model", None), "config", None)
    settings = dict(vars(model.cfg)) if config is None else config.to_dict()
    irrelevant = ("_name_or_path", "model_name", "tracekit_name", "transformers_version", "device")
    settings = {name: value for name, value in settings.items() if name not in irrelevant}
    state: Mapping[str, Any] = model.state_dict()  # type: ignore[attr-defined]
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return json_digest({"config": settings, "weights": tensors_digest(tensors)})


def decisive_versions() -> dict[str, str]:
    """Versions, by package, of what decides a run's numbers."""
    return {name: value for name, value in versions().items() if name != "python"}


def run_folder(root: Path, config: Mapping[str, Any]) -> Path:
    """Folder of the run with this configuration, whether it exists or not."""
    return root / json_digest(config)[:_NAME_LENGTH]


def save_run(folder: Path, info: RunInfo, results: TraceCurve | InteractionGrid | Paths) -> None:
    """Writes a complete run, or nothing."""
    with draft_folder(folder) as partial:
        results.save(partial / _GRID if isinstance(results, InteractionGrid) else partial)
        storage.save_dataclass(info, partial / _INFO)
        while True:
            try:
                partial.rename(folder)
                return
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            if is_finished(folder):  # Another process has finished the same run meanwhile.
                return


def is_run_folder(path: Path) -> bool:
    """Whether a path of a store has a name that `run_folder` gives."""
    return path.is_dir() and re.fullmatch(f"[0-9a-f]{{{_NAME_LENGTH}}}", path.name) is not None


def read_run_folder(folder: Path) -> Run:
    """Reads a finished run, and all of its results."""
    run = Run(load_dataclass(RunInfo, folder / _INFO).job, folder)
    run.read()
    return run


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished run; a damaged one is moved to `NAME.damaged-1`, `-2`."""
    if not os.path.lexists(folder):
        return False
    try:
        read_run_folder(folder)
    except TracekitError:
        number = 1
        while os.path.lexists(aside := folder.with_name(f"{folder.name}.damaged-{number}")):
            number += 1
        # Another process may have moved it already.
        with suppress(FileNotFoundError):
            folder.rename(aside)
        return False
    return True
