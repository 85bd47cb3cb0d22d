"""Files of the MIB benchmark (Mueller et al. 2025; EAP-IG's graphs).

A file names heads `a5.h3`, MLPs `m5` and edges `a5.h3->a7.h2<q>`, and says of each how important it
is and whether it is in the circuit. Heads are `head-outputs`, MLPs `mlp-blocks`, edges `edges`.
Other kinds have no counterpart there. A key that several heads share is one receiver here; in a
file each of the heads has an edge of its own, with an equal part of the importance. Shares of a
ranking count it once for each head, too.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from tracekit._util.files import write_atomically
from tracekit.components import Component, ComponentRegistry, ComponentSet
from tracekit.components.edges import EMBEDDING, LOGITS
from tracekit.components.masks import BinaryMask, Mask, members_of_mask, ranking
from tracekit.errors import DataFormatError
from tracekit.results.faithfulness import MIB_SHARES

_NODES = {"head-outputs": "a{layer}.h{index}", "mlp-blocks": "m{layer}"}
_BELOW_ALL = MIB_SHARES[:-1]
SIZES = ("n_layers", "n_heads", "d_model", "parallel_attn_mlp")
"""Fields of the model in a file."""


def model_sizes(cfg: Any) -> dict[str, int | bool]:
    """Fields of a model in a file, from its TransformerLens configuration."""
    sizes = {name: int(getattr(cfg, name)) for name in ("n_layers", "n_heads", "d_model")}
    return {**sizes, "parallel_attn_mlp": bool(getattr(cfg, "parallel_attn_mlp", False))}


def write_mib(path: Path, result: Any, scores: Mask) -> None:
    """Writes scores of the components of a result whose registry was checked.

    Nodes that are not under study have no score and stay in the circuit.
    """
    sizes, registry = result.model_facts.sizes, result.registry
    names = ["input"]
    for layer in range(int(sizes["n_layers"])):
        names += [f"a{layer}.h{head}" for head in range(int(sizes["n_heads"]))]
        names.append(f"m{layer}")
    nodes: dict[str, dict[str, Any]] = {name: {"in_graph": True} for name in [*names, "logits"]}
    entries: dict[str, dict[str, Any]] = {}
    rows = zip(registry, scores.tolist(), result.binary_mask.tolist(), strict=True)
    for component, score, is_selected in rows:
        names = _names(component, registry)
        entries |= {each: {"in_graph": is_selected, "score": score / len(names)} for each in names}
    are_edges = registry.edges is not None
    document = {"cfg": dict(sizes), "nodes": nodes if are_edges else nodes | entries}
    document["edges"] = entries if are_edges else {}
    write_atomically(path, json.dumps(document, indent=1) + "\n")


def write_mib_circuits(folder: Path, results: Sequence[Any]) -> Path:
    """Writes a circuit for each share below 1; see `Results.to_mib`."""
    check_registry(results[0].registry, all_edges=True)
    counts, names = count_mib_edges(results[0].registry), [f"{each:g}.json" for each in _BELOW_ALL]
    others = {each.name for each in folder.glob("*") if each.suffix in (".json", ".pt")} - {*names}
    if others:
        raise DataFormatError(
            f"{folder} holds {min(others)}, which MIB would read as a circuit. Name a folder "
            "without other .json and .pt files."
        )
    most = [int(share * sum(counts)) for share in _BELOW_ALL]
    result_of = {members_of_mask(result.binary_mask): result for result in results}
    circuits = largest_sets_counted_as_mib([*result_of], counts, most)
    if () in circuits:
        raise DataFormatError(
            f"No set has at most {most[circuits.index(())]} of the {sum(counts)} edges that MIB "
            "counts, where an edge into a key or value counts once for each head that reads it. "
            "Search with a smaller budget as well."
        )
    for name, result in zip(names, map(result_of.__getitem__, circuits), strict=True):
        # Read alone, the file is a ranking with the members first.
        write_mib(folder / name, result, result.binary_mask.float() * torch.tensor(counts))
    return folder


def read_mib_circuits(folder: Path, registry: ComponentRegistry, cfg: Any) -> list[BinaryMask]:
    """Reads the nine circuits of a folder, by their number of edges as MIB counts them."""
    check_registry(registry, all_edges=True)
    counts, paths = torch.tensor(count_mib_edges(registry)), sorted(folder.glob("*.json"))
    if len(paths) != len(_BELOW_ALL):
        raise DataFormatError(
            f"{folder} holds {len(paths)} .json files, and MIB evaluates nine circuits together. "
            "Name a folder with one for each share of the edges from 0.1 to 50 %."
        )
    n_inside = [read_mib(path, registry, cfg, "in_graph") for path in paths]
    for path, each in zip(paths, n_inside, strict=True):
        for index in ((each > 0) & (each < counts)).nonzero()[:1, 0].tolist():
            raise DataFormatError(
                f"{path} has {registry[index]} for some heads and not for others, which share this "
                "key or value. tracekit patches it for all of them or for none."
            )
    return [each > 0 for each in sorted(n_inside, key=lambda each: each.sum().item())]


def read_mib(path: Path, registry: ComponentRegistry, cfg: Any, field: str = "score") -> Mask:
    """Reads importances, or how many edges of each component are `in_graph`; `cfg` is traced."""
    check_registry(registry)
    sizes = model_sizes(cfg)
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        own, nodes = dict(document["cfg"]), dict(document["nodes"])
        entries = nodes if registry.edges is None else dict(document["edges"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataFormatError(
            f"{path} cannot be read as importances of MIB: a JSON file with the entries cfg, nodes "
            "and edges. Export it again."
        ) from error
    for name in SIZES:
        if name in SIZES[:2] and name not in own:
            raise DataFormatError(
                f"{path} lacks the {name} of its model, so nothing shows that the models are the "
                "same. Export the file with its cfg."
            )
        if name in own and own[name] != sizes[name]:
            raise DataFormatError(
                f"{path} is of another model: its {name} is {own[name]}, and that of the traced "
                f"model is {sizes[name]}. Trace the model that the file is of."
            )
    for name in nodes:
        node = re.fullmatch(r"(?:a(\d+)\.h(\d+)|m(\d+))", name)
        # Ten digits are too many anyway, and Python reads no number of thousands.
        texts = (None, None) if node is None else (node[1] or node[3], node[2])
        layer, head = (int((text or "0")[:10]) for text in texts)
        if layer >= sizes["n_layers"] or head >= sizes["n_heads"]:
            raise DataFormatError(
                f"{path} has the node {name}, and the traced model has {sizes['n_layers']} layers "
                f"of {sizes['n_heads']} heads. Trace the model that the file is of."
            )
    scores, largest = [], torch.finfo(torch.float32).max
    for component in registry:
        scores.append(0.0)
        for name in _names(component, registry):
            entry = entries.get(name)
            value: Any = entry.get(field) if isinstance(entry, dict) else None
            is_flag, is_number = isinstance(value, bool), isinstance(value, (int, float))
            if is_flag != (field == "in_graph") or not is_number or not abs(value) <= largest:
                raise DataFormatError(
                    f"{path} has no {field} of {name} ({component}). Score every node or edge, or "
                    "trace only those that have one."
                )
            scores[-1] += float(value)
    return torch.tensor(scores)


def count_mib_edges(registry: ComponentRegistry) -> list[int]:
    """How many nodes or edges of MIB each component is.

    That is one, but of an edge into a key or a value that several heads share: one for each head.
    """
    if registry.kinds != ("edges",):
        return [1] * len(registry)
    return [len(_names(component, registry)) for component in registry]


def top_sets_counted_as_mib(
    scores: Mask, counts: Sequence[int], most: Sequence[int]
) -> list[tuple[int, ...]]:
    """For each number in `most`, the first components that are at most so many edges of MIB.

    A component that stands for several edges of MIB counts once for each, and is ranked by its
    score divided by their number, as in a file.
    """
    order = ranking(scores / torch.tensor(counts))
    sizes = list(accumulate(counts[index] for index in order))
    return [tuple(sorted(order[: bisect_right(sizes, each)])) for each in most]


def largest_sets_counted_as_mib(
    sets: Sequence[ComponentSet], counts: Sequence[int], most: Sequence[int]
) -> list[ComponentSet]:
    """For each number in `most`, the largest set that is at most so many edges of MIB, or none."""
    sizes = [sum(counts[index] for index in each) for each in sets]
    rows = [[each for each, n in zip(sets, sizes, strict=True) if n <= limit] for limit in most]
    return [max(fitting, key=len, default=()) for fitting in rows]


def check_registry(registry: ComponentRegistry, *, all_edges: bool = False) -> None:
    """Refuses components that have no counterpart; with `all_edges`, any but all of a model."""
    for kind in registry.kinds:
        if kind not in (*_NODES, "edges"):
            raise DataFormatError(
                f"{kind} have no node in a MIB file, whose nodes are outputs of heads and MLPs. "
                "Trace head-outputs, mlp-blocks, or both; or edges."
            )
    if registry.spans or (registry.has_windows and registry.edges is None):
        raise DataFormatError(
            "Components of spans or windows have no node in a MIB file. Trace without them."
        )
    if all_edges and not registry.has_all_edges:
        raise DataFormatError(
            f"A folder of MIB has circuits of all edges of a model, and {registry.describe()} were "
            "traced. Trace components='edges' in all layers."
        )


def _names(component: Component, registry: ComponentRegistry) -> list[str]:
    """Names of a node; of an edge, one for each head that reads its receiver."""
    if registry.edges is None:
        return [_NODES[component.kind].format(layer=component.layer, index=component.index)]
    sender, receiver = component.ends.split(">")
    use = next((f"<{each.lower()}>" for each in "QKV" if each in receiver), "")
    return [f"{_node(sender)}->{_node(head)}{use}" for head in registry.edges.nodes_of(receiver)]


def _node(label: str) -> str:
    if label in (EMBEDDING, LOGITS):
        return "input" if label == EMBEDDING else label
    return f"m{label[3:]}" if label.startswith("MLP") else f"a{label[1:].replace('H', '.h')}"
