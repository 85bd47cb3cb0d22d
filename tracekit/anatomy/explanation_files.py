"""How an explanation is saved: `explanation.json` and a file of tensors, beside a run.

All effects are kept, so that tables and intervals are computed again from what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tracekit._util.options import is_whole
from tracekit.anatomy.member_pairs import PairInteractions
from tracekit.anatomy.shapley import MOST_EXACT, ShapleyValues
from tracekit.anatomy.side_effects import FILES as SIDE_EFFECTS_FILES
from tracekit.anatomy.side_effects import SideEffects
from tracekit.anatomy.stand_ins import Redundancy, StandIn
from tracekit.components import ComponentRegistry
from tracekit.components.masks import from_indices
from tracekit.engine.cost import Cost
from tracekit.errors import ResultFormatError, TracekitError
from tracekit.results.result import TraceResult
from tracekit.results.storage import damaged, read_run, write_run

if TYPE_CHECKING:
    from tracekit.anatomy.explanation import Explanation

FILES = ("explanation.json", "explanation.safetensors")
"""Names of the document and of the file of tensors."""
_PLAIN = (
    "tolerance",
    "axis_label",
    "dataset",
    "dataset_fingerprint",
    "metric",
    "source",
    "direction",
    "model",
)
_STAND_IN = ("without", "instead", "whole", "joined")


def write_explanation(why: Explanation, folder: Path) -> None:
    """Writes an explanation to a folder, which is made if need be.

    Args:
        why: The explanation.
        folder: Usually that of the run.
    """
    outsiders = why.outsiders
    entries = {
        # For people who open the file; loading ignores it.
        "selected": why.labels,
        "registry": why.registry.spec(),
        **{name: getattr(why, name) for name in _PLAIN},
        "n_orders": why.shapley.n_orders,
        "redundant": why.redundancy.players,
        "outsiders": None if outsiders is None else [(e.player, e.outsider) for e in outsiders],
        "cost": asdict(why.cost),
    }
    tensors = {
        "members": from_indices(why.members, len(why.registry)),
        "effect": why.effect,
        "alone": why.alone,
        "last": why.last,
        "values": why.shapley.per_example,
        "sampling_error": why.shapley.sampling_error,
        "pairs_alone": why.pairs.alone,
        "pairs_within": why.pairs.within,
        "pairs_averaged": why.pairs.averaged,
        "without_redundant": why.redundancy.effects,
        "weights": why.weights,
    }
    if outsiders:
        tensors["outsiders"] = torch.stack(
            [torch.stack([getattr(each, name) for name in _STAND_IN]) for each in outsiders]
        )
    present = {name: value for name, value in tensors.items() if value is not None}
    write_run(
        folder, entries, {name: value.clone() for name, value in present.items()}, files=FILES
    )


def read_explanation(kind: type[Explanation], folder: Path) -> Explanation:
    """Reads what `write_explanation` wrote.

    Args:
        kind: Class of the explanation.
        folder: The folder.

    Raises:
        ResultNotFoundError: The folder holds no explanation.
        ResultFormatError: It was written in another format.
        ResultFormatError: It is damaged, was changed, or its files are of several saves.
    """
    document, tensors = read_run(folder, files=FILES)
    try:
        _check_shapes(document, tensors)
        mask = tensors["members"]
        members = tuple(mask.nonzero()[:, 0].tolist())
        outsiders = None
        if document["outsiders"] is not None:
            effects = tensors.get("outsiders", torch.zeros(0, 4, 0))
            outsiders = tuple(
                StandIn(player=player, outsider=outsider, **dict(zip(_STAND_IN, four, strict=True)))
                for (player, outsider), four in zip(document["outsiders"], effects, strict=True)
            )
        return kind(
            registry=ComponentRegistry.from_spec(document["registry"], mask.numel()),
            members=members,
            effect=tensors["effect"],
            alone=tensors["alone"],
            last=tensors["last"],
            shapley=ShapleyValues(
                per_example=tensors["values"],
                sampling_error=tensors["sampling_error"],
                n_orders=document["n_orders"],
            ),
            pairs=PairInteractions(
                pairs=tuple(combinations(range(len(members)), 2)),
                alone=tensors["pairs_alone"],
                within=tensors["pairs_within"],
                averaged=tensors.get("pairs_averaged"),
            ),
            redundancy=Redundancy(
                players=tuple(document["redundant"]), effects=tensors["without_redundant"]
            ),
            outsiders=outsiders,
            weights=tensors.get("weights"),
            cost=Cost(**document["cost"]),
            **{name: document[name] for name in _PLAIN},
        )
    except (KeyError, TypeError, ValueError, AttributeError, TracekitError) as error:
        raise damaged(folder) from error


def _check_shapes(document: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuses files whose parts do not belong together.

    Raises:
        ValueError: They do not.
    """
    check_texts(document, [name for name in _PLAIN if name != "tolerance"])
    n_orders, tolerance = document["n_orders"], document["tolerance"]
    if not (n_orders is None or is_whole(n_orders)) or not 0 <= float(tolerance) < 1:
        raise ValueError(f"There are {n_orders} orders, and the tolerance is {tolerance}.")
    mask = tensors["members"]
    if mask.ndim != 1 or mask.dtype != torch.bool or mask.sum() < 2:
        raise ValueError("The members are no set of two or more components.")
    m, n_components, n = int(mask.sum()), mask.numel(), tensors["effect"].numel()
    n_pairs, outsiders = m * (m - 1) // 2, document["outsiders"] or []
    shapes = {
        "effect": (n,),
        "alone": (m, n),
        "last": (m, n),
        "values": (m, n),
        "sampling_error": (m,),
        "pairs_alone": (n_pairs, n),
        "pairs_within": (n_pairs, n),
        "without_redundant": (n,),
    }
    shapes |= {"pairs_averaged": (n_pairs, n)} if m <= MOST_EXACT else {}
    shapes |= {"outsiders": (len(outsiders), 4, n)} if outsiders else {}
    shapes |= {"weights": (n,)} if "weights" in tensors else {}
    if set(shapes) | {"members"} != set(tensors):
        raise ValueError(f"The tensors are {sorted(tensors)}.")
    for name, shape in shapes.items():
        value = tensors[name]
        if tuple(value.shape) != shape or value.dtype != torch.float32:
            raise ValueError(f"{name} is {value.dtype} of shape {tuple(value.shape)}.")
        if not torch.isfinite(value).all():
            raise ValueError(f"{name} is not finite.")
    players = [*document["redundant"], *(player for player, _ in outsiders)]
    if not all(is_whole(number) for number in (*players, *(i for _, i in outsiders))):
        raise ValueError("A number of a member or an outsider is none.")
    if not all(0 <= player < m for player in players):
        raise ValueError(f"The players are {players}, of {m}.")
    if any(not 0 <= i < n_components or mask[i] for _, i in outsiders):
        raise ValueError("An outsider is a member, or no component.")
    # Values of any orders sum to the effect of the set.
    missing = (tensors["values"].sum(0) - tensors["effect"]).abs().max()
    if missing > 1e-4 * (tensors["values"].abs().sum(0).max() + 1e-3):
        raise ValueError(f"The values miss the effect of the set by {missing}.")


def check_texts(document: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuses a document in which something is no text.

    Args:
        document: What was read.
        names: Of the entries that are texts.

    Raises:
        ValueError: One is not.
    """
    for name in names:
        if not isinstance(document[name], str):
            raise ValueError(f"{name} is {document[name]!r}.")


def check_of_run(saved: Explanation | SideEffects, result: TraceResult, folder: Path) -> None:
    """Refuses what was measured on another run than the one that it is saved beside.

    Args:
        saved: What was loaded.
        result: The run beside it.
        folder: Where both were saved.

    Raises:
        ResultFormatError: It is of another set, or of other data, another metric or model.
    """
    if isinstance(saved, SideEffects):
        asked, noun, name = saved.target, "record of side effects", SIDE_EFFECTS_FILES[0]
    else:
        asked, noun, name = saved, "explanation", FILES[0]
    pairs = [
        (asked.dataset_fingerprint, result.dataset_fingerprint),
        (asked.metric, result.metric),
        (saved.source, result.source),
        (saved.direction, result.direction),
        (saved.model, result.model),
        (saved.components, result.components),
    ]
    if any(mine != theirs for mine, theirs in pairs):
        raise ResultFormatError(
            f"The {noun} in {folder} is of another run than the one beside it. Measure it again, "
            f"or delete its {name}."
        )
