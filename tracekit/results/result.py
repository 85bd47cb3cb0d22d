"""Results: frozen, complete, and saved as JSON and safetensors.

A run folder holds `result.json` (everything but tensors, with a format version) and
`tensors.safetensors` (masks and effects). Nothing is pickled, so opening a run from elsewhere
executes nothing.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.components import Component, ComponentRegistry
from tracekit.engine.engine import Cost
from tracekit.errors import BudgetError, FormatVersionError, ResultFormatError, ResultNotFoundError
from tracekit.masks import BinaryMask, Mask
from tracekit.metrics import Effects
from tracekit.search.base import Record

FORMAT_VERSION = 1

_JSON = "result.json"
_TENSORS = "tensors.safetensors"
_CURVE = "curve.json"
_RESAMPLES = 2000
_TENSOR_FIELDS = ("binary_mask", "soft_mask", "per_example", "scores", "held_out")


@dataclass(frozen=True, kw_only=True, eq=False)
class TraceResult:
    """One set of components, how it was found, and what it does."""

    method: str
    """Name of the search."""
    config: Mapping[str, Any]
    """Every option of the search."""
    registry: ComponentRegistry
    """What mask entries stand for."""
    binary_mask: BinaryMask
    """The selection: True takes the counterfactual value."""
    soft_mask: Mask
    """The relaxed mask it was cut from, or that refinement started from, in [0, 1]; the selection
    itself for methods without."""
    scores: Mask | None = None
    """What the components were ranked by (for top-k, their single effects)."""
    effect: float
    """Mean effect of the selection, measured with the binary mask."""
    per_example: Effects
    """Effect on each example."""
    full_effect: float
    """Mean effect of all components together."""
    held_out: Float[Tensor, " held_out_example"] | None = None
    """Effect on each of the examples that were held out, if there are any."""
    budget: int | None = None
    """Largest number of components allowed, if there was a limit."""
    target_effect: float | None = None
    """Effect asked for, if that was the goal."""
    history: tuple[Record, ...] = ()
    """What the search recorded on its way: a line per epoch, step or budget."""
    seed: int = 0
    cost: Cost
    """Interventional passes over the data that the run took; budgets of one run share them."""
    seconds: float
    """Wall time of the run."""
    stopped: str | None = None
    """What cut the search short, if anything: `max_forwards`, `max_seconds` or `interrupted`."""
    metric: str
    metric_axis: str = "effect"
    """Axis title for the effect, with its unit."""
    mean: str = "geometric"
    """Mean over the tokens of a continuation."""
    positions: str | tuple[int, ...] = "prompt"
    model: str
    dataset: str
    dataset_fingerprint: str
    versions: Mapping[str, str]

    @property
    def components(self) -> list[Component]:
        """The selected components, in flat order."""
        return [self.registry[i] for i in self.binary_mask.nonzero()[:, 0].tolist()]

    @property
    def labels(self) -> list[str]:
        """Their printed names."""
        return [self.registry.label(i) for i in self.binary_mask.nonzero()[:, 0].tolist()]

    @property
    def interval(self) -> tuple[float, float]:
        """95 % bootstrap interval of the effect over examples."""
        return effect_interval(self.per_example)

    @property
    def held_out_effect(self) -> float | None:
        """Mean effect of the selection on examples that had no part in choosing it."""
        return None if self.held_out is None else self.held_out.mean().item()

    @property
    def held_out_interval(self) -> tuple[float, float] | None:
        """95 % bootstrap interval of it over those examples."""
        return None if self.held_out is None else effect_interval(self.held_out)

    @property
    def n_selected(self) -> int:
        """How many components are selected."""
        return int(self.binary_mask.sum())

    @property
    def n_components(self) -> int:
        """How many there are."""
        return len(self.registry)

    def history_frame(self) -> Any:
        """The history as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame([dict(record) for record in self.history])

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per component: name, place, masks, score."""
        import pandas as pd

        return pd.DataFrame(
            {
                "component": [self.registry.label(i) for i in range(self.n_components)],
                "kind": [component.kind for component in self.registry],
                "layer": [component.layer for component in self.registry],
                "index": [component.index for component in self.registry],
                "selected": self.binary_mask.numpy(),
                "soft_mask": self.soft_mask.numpy(),
                "score": None if self.scores is None else self.scores.numpy(),
            }
        )

    def __repr__(self) -> str:
        names = ", ".join(self.labels[:12]) + (", ..." if self.n_selected > 12 else "")
        return (
            f"TraceResult({self.method} on {self.dataset}, {self.model}: "
            f"{self.n_selected} of {self.n_components} components, "
            f"effect {self.effect:.4g} (all: {self.full_effect:.4g}); {names})"
        )

    def save(self, folder: str | Path) -> Path:
        """Writes the run to a folder, which is made if need be; returns it."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: getattr(self, name).contiguous()
            for name in _TENSOR_FIELDS
            if getattr(self, name) is not None
        }
        save_file(tensors, folder / _TENSORS)
        entry = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in _TENSOR_FIELDS
        }
        entry["registry"] = self.registry.spec()
        entry["cost"] = asdict(self.cost)
        # Labels are for people who open the file; loading ignores them.
        write_document(folder / _JSON, {"selected": self.labels, **entry})
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> TraceResult:
        """Reads a run that `save` wrote.

        Raises:
            ResultNotFoundError: The folder holds no run.
            FormatVersionError: It was written in another format.
            ResultFormatError: It is damaged or incomplete.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(folder)
        document = read_document(folder, _JSON)
        try:
            del document["selected"]
            document["registry"] = ComponentRegistry.from_spec(document["registry"])
            document["cost"] = Cost(**document["cost"])
            document["history"] = tuple(document["history"])
            if not isinstance(document["positions"], str):
                document["positions"] = tuple(document["positions"])
            document.update(load_file(folder / _TENSORS))
            return cls(**document)
        except (KeyError, TypeError, OSError, SafetensorError) as error:
            raise _damaged(folder) from error


@dataclass(frozen=True, eq=False)
class TraceCurve(Sequence[TraceResult]):
    """Results of one run at several budgets, ascending."""

    results: tuple[TraceResult, ...]

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, item: Any) -> Any:
        return self.results[item]

    def at(self, n_components: int) -> TraceResult:
        """The result for a budget of that many components.

        Raises:
            BudgetError: The curve has no such budget.
        """
        for result in self.results:
            if result.budget == n_components:
                return result
        known = ", ".join(str(result.budget) for result in self.results)
        raise BudgetError(f"The curve has no budget of {n_components}. It has {known}.")

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per budget."""
        import pandas as pd

        return pd.DataFrame(
            {
                "method": [result.method for result in self.results],
                "budget": [result.budget for result in self.results],
                "n_selected": [result.n_selected for result in self.results],
                "effect": [result.effect for result in self.results],
            }
        )

    def save(self, folder: str | Path) -> Path:
        """Writes one run folder per budget; returns the folder that holds them."""
        folder = Path(folder)
        sizes = [r.n_selected if r.budget is None else r.budget for r in self.results]
        names = [f"budget-{size}" for size in sizes]
        for name, result in zip(names, self.results, strict=True):
            result.save(folder / name)
        write_document(folder / _CURVE, {"runs": names})
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> TraceCurve:
        """Reads what `save` wrote.

        Raises:
            ResultNotFoundError, FormatVersionError: As in `TraceResult.load`.
        """
        document = read_document(Path(folder), _CURVE)
        return cls(tuple(TraceResult.load(Path(folder) / name) for name in document["runs"]))


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"python": platform.python_version()}
    for package in ("tracekit", "torch", "transformer-lens", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def effect_interval(
    per_example: Float[Tensor, " example"], *, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the mean effect over examples (TransformerLens' own, if it has one)."""
    generator = torch.Generator().manual_seed(seed)
    try:
        from transformer_lens.utilities.statistics import bootstrap_ci
    except ModuleNotFoundError:  # TransformerLens 3 has none.
        n = len(per_example)
        picks = torch.randint(n, (_RESAMPLES, n), generator=generator)
        tail = (1 - confidence) / 2
        ends = per_example[picks].mean(1).quantile(torch.tensor([tail, 1 - tail]))
        return ends[0].item(), ends[1].item()
    low, high = bootstrap_ci(per_example, confidence=confidence, generator=generator)
    return float(low), float(high)


def _damaged(folder: Path) -> ResultFormatError:
    return ResultFormatError(
        f"The run in {folder} is damaged or incomplete. Run it again, or restore "
        f"{_JSON} and {_TENSORS}."
    )


def write_document(path: Path, entries: Mapping[str, Any]) -> None:
    """Writes a JSON file with the format version."""
    document = {"format_version": FORMAT_VERSION, **entries}
    path.write_text(json.dumps(document, indent=1, default=str) + "\n")


def read_document(folder: Path, name: str) -> dict[str, Any]:
    """Reads a JSON file of this format.

    Raises:
        ResultNotFoundError: The folder has no such file.
        ResultFormatError: It is damaged.
        FormatVersionError: It is of another format version.
    """
    path = folder / name
    if not path.exists():
        raise ResultNotFoundError(
            f"The folder {folder} holds no {name}. Give a folder that a run was saved to."
        )
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise _damaged(folder) from error
    found = document.pop("format_version", None)
    if found != FORMAT_VERSION:
        raise FormatVersionError(
            f"The run in {folder} has format version {found}; this tracekit reads version "
            f"{FORMAT_VERSION}. Open it with the tracekit that wrote it, or run it again."
        )
    return document
