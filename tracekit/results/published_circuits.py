"""Circuits from the literature, and a set beside one: hits, misses and extras."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit._util.deferred import pd
from tracekit._util.markup import clean_text
from tracekit.components.masks import BinaryMask
from tracekit.components.members import mask_of
from tracekit.errors import ConfigError, UnknownNameError
from tracekit.results.display import InWords, Tabular

_CIRCUITS = Path(__file__).with_name("published_circuits.json")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Against(InWords, Tabular):
    """A set beside a circuit that somebody has published, or named; `TraceResult.against`."""

    name: str
    """What the circuit is called, and where it stands."""
    table: pd.DataFrame
    """A row for each component of either: `component`; `verdict`, a `hit` if it is in both, a
    `miss` in the circuit alone, an `extra` in the set alone; its `role` in the circuit; `score`,
    what the method ranked it by (of top-k its single effect; of spans the largest)."""
    not_studied: tuple[str, ...]
    """Members of the circuit that are no component of the tracer: they count for nothing."""

    def __getitem__(self, verdict: str) -> list[str]:
        """The components of a verdict."""
        return self.table["component"][self.table["verdict"] == verdict].tolist()

    @property
    def precision(self) -> float:
        """Share of the set that is in the circuit; NaN of an empty set."""
        return len(self["hit"]) / (len(self["hit"] + self["extra"]) or float("nan"))

    @property
    def recall(self) -> float:
        """Share of what is studied of the circuit that is in the set; NaN if nothing is."""
        return len(self["hit"]) / (len(self["hit"] + self["miss"]) or float("nan"))

    def __repr__(self) -> str:
        shares = f"precision {self.precision:.2f}, recall {self.recall:.2f}"
        lines = [f"{self.name}: {shares}; set by {self.intervention}"]
        by_verdict = {f"{each}s": self[each] for each in ("hit", "extra")}
        by_verdict |= {"misses": self["miss"], "not studied": [*self.not_studied]}
        lines += [f"  {len(each)} {name}: {', '.join(each)}" for name, each in by_verdict.items()]
        return clean_text("\n".join(lines))


def name_and_roles(circuit: str | Sequence[str], result: Any) -> tuple[str, dict[str, str]]:
    """What a circuit is called, and the role of each of its members, by label without span."""
    if not isinstance(circuit, str):
        chosen = mask_of(circuit, result.registry).nonzero()[:, 0].tolist()
        return "circuit", dict.fromkeys((_labels(result)[i] for i in chosen), "")
    circuits = json.loads(_CIRCUITS.read_text(encoding="utf-8"))
    if circuit not in circuits:
        raise UnknownNameError("circuit", circuit, circuits)
    entry, sizes = circuits[circuit], result.model_facts.sizes
    wanted, own = (f"{e['n_layers']} layers of {e['n_heads']} heads" for e in (entry, sizes))
    roles = {label: role for role, labels in entry["roles"].items() for label in labels.split()}
    if wanted != own or not {*roles} & {*_labels(result)}:
        raise ConfigError(
            f"The circuit {circuit!r} is of heads of a model of {wanted}, and the result is of "
            f"{result.registry.describe()} of {own}. Give labels of these: ['L0H1', 'L1H4']."
        )
    return f"{circuit} ({entry['source']})", roles


def mask_of_circuit(circuit: str | Sequence[str], result: Any) -> BinaryMask:
    """Which components of a result are of a circuit."""
    _, roles = name_and_roles(circuit, result)
    return result.binary_mask.new_tensor([label in roles for label in _labels(result)])


def against(result: Any, circuit: str | Sequence[str], name: str | None) -> Against:
    """A result beside a circuit; a component is in the set if it is at any span."""
    called, roles = name_and_roles(circuit, result)
    frame = result.to_frame().assign(component=_labels(result)).astype({"score": float})
    whole = frame.groupby("component", sort=False).agg({"selected": "any", "score": "max"})
    table = whole[whole["selected"] | whole.index.isin(roles)].reset_index()
    in_circuit = table["component"].isin(roles)
    table["verdict"] = in_circuit.map({True: "hit", False: "extra"}).where(
        table["selected"], "miss"
    )
    table["role"] = table["component"].map(roles).fillna("")
    table = table[["component", "verdict", "role", "score"]]
    others = tuple(label for label in roles if label not in whole.index)
    how = result.setup.intervention
    return Against(name=name or called, intervention=how, table=table, not_studied=others)


def _labels(result: Any) -> list[str]:
    """Labels of all components, without spans."""
    return [result.registry.label(i).partition("@")[0] for i in range(result.n_components)]
