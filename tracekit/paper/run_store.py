"""The store: one folder per finished run, named by a hash of all that decides its numbers.

A run is written beside its place and moved there when it is complete, so a folder that exists is
a finished run, also if the command was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tracekit.models.loading import HookedModel
from tracekit.paper.jobs import Job
from tracekit.results.interactions import InteractionGrid
from tracekit.results.result import TraceCurve, TraceResult, read_document, versions, write_document

_INFO = "run.json"
_GRID = "grid.json"
_NAME = 16


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    job: Job
    folder: Path
    fresh: bool = False
    """Whether it was run now, and not found."""

    @cached_property
    def info(self) -> dict[str, Any]:
        """Configuration, hashes, versions, and what it was run on."""
        return read_document(self.folder, _INFO)

    @cached_property
    def curve(self) -> TraceCurve:
        """Results of a search, one per budget."""
        return TraceCurve.load(self.folder)

    @property
    def result(self) -> TraceResult:
        """The only result, or that of the largest budget."""
        return self.curve[-1]

    @cached_property
    def grid(self) -> InteractionGrid:
        """Of a run that measured pairs."""
        return InteractionGrid.load(self.folder / _GRID)

    @property
    def accuracies(self) -> dict[str, list[float]]:
        """Accuracy under the set of each budget, by the name of the examples."""
        return self.info["accuracies"]

    @property
    def clean_accuracies(self) -> dict[str, float]:
        """Accuracy with no intervention, by the name of the examples."""
        return self.info["clean_accuracies"]


def weights_hash(model: HookedModel) -> str:
    """SHA-256 over the configuration, and names, shapes and values of all parameters."""
    digest = hashlib.sha256(json.dumps(_config(model), sort_keys=True, default=str).encode())
    state: Mapping[str, Any] = model.state_dict()  # type: ignore[attr-defined]
    for name in sorted(state):
        value = state[name]
        if not isinstance(value, torch.Tensor):
            continue
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        flat = value.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _config(model: Any) -> dict[str, Any]:
    """What a model computes beside its parameters: activations, windows, scalings."""
    config = getattr(getattr(model, "original_model", None), "config", None)
    found = dict(vars(model.cfg)) if config is None else config.to_dict()
    names = ("_name_or_path", "model_name", "transformers_version", "device")
    return {name: value for name, value in found.items() if name not in names}


def configuration(job: Job, weights: str, data: str) -> dict[str, Any]:
    """Everything that decides a run's numbers.

    Args:
        job: What is run.
        weights: Hash of the model's weights.
        data: Fingerprint of the examples.
    """
    kept = {name: value for name, value in versions().items() if name != "python"}
    return {"job": job.spec(), "weights": weights, "data": data, "versions": kept}


def folder_of(root: Path, config: Mapping[str, Any]) -> Path:
    """Folder of a run, whether it exists or not."""
    text = json.dumps(config, sort_keys=True, default=str)
    return root / hashlib.sha256(text.encode()).hexdigest()[:_NAME]


def save(folder: Path, config: Mapping[str, Any], about: Mapping[str, Any], found: Any) -> None:
    """Writes a run, all or nothing.

    Args:
        folder: Where it belongs.
        config: As in `configuration`.
        about: What else is to be known of it.
        found: A `TraceCurve` or an `InteractionGrid`.
    """
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if isinstance(found, InteractionGrid):
        found.save(partial / _GRID)
    else:
        found.save(partial)
    write_document(partial / _INFO, {**config, **about})
    try:
        partial.rename(folder)
    except OSError:
        # Another process has finished the same run meanwhile.
        shutil.rmtree(partial)


def is_finished(folder: Path) -> bool:
    """Whether a run is there."""
    return (folder / _INFO).is_file()
