"""Published numbers, for comparison with ours.

`paper.json` has the tables of "Multi-component Causal Tracing in Large Language Models" (ACL
2026); `single_heads.json` the effect of every single attention head that Vig et al. (2020)
published for the real GPT-2 family.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.errors import UnknownNameError


@dataclass(frozen=True, kw_only=True, eq=False)
class SingleHeads:
    """The effect of every single head of a model."""

    model: str
    """Name on the hub."""
    dataset: str
    """Name of the pairs, as `PromptPairs.name`."""
    n_examples: int
    all_heads: float
    """Mean effect of all heads together."""
    singles: Float[Tensor, "layer head"]
    """Mean effect of each head alone."""
    source: str
    """The publication, or the file."""


def single_heads(model: str, dataset: str) -> SingleHeads:
    """The published effects of a model's heads.

    Args:
        model: Name on the hub.
        dataset: `winobias-dev` or `winogender-bergsma`.

    Raises:
        UnknownNameError: There is no such table; the message lists those that there are.
    """
    document = _read("single_heads.json")
    tables = {(table["model"], table["dataset"]): table for table in document["tables"]}
    if (model, dataset) not in tables:
        names = [f"{hub_name} on {pairs}" for hub_name, pairs in tables]
        raise UnknownNameError("table", f"{model} on {dataset}", names)
    return table_of_heads(tables[model, dataset], document["source"])


def paper_effects() -> Any:
    """The paper's tables as a pandas DataFrame: a row per model, data set, method and share.

    Columns: `table` (heads, neurons or facts), `dataset`, `model`, `method`, `share`,
    `effect`, `minutes` (on one A6000).
    """
    frame = pd.DataFrame(_read("paper.json")["tables"])
    frame = frame.set_index(["table", "dataset", "model", "method", "minutes"])
    frame = frame.explode(["shares", "effects"]).astype(float).reset_index()
    return frame.rename(columns={"shares": "share", "effects": "effect"})


def paper_singles() -> Any:
    """Effect of the paper's best single components, as a pandas DataFrame.

    Columns: `model`, `dataset`, `optimum`, `pgb-ct`.
    """
    return pd.DataFrame(_read("paper.json")["single"])


def paper_joint() -> list[dict[str, Any]]:
    """The paper's sets of heads and blocks for variable binding.

    Each is a mapping with `model`, `budget` and `components` (printed names).
    """
    return _read("paper.json")["joint"]


def paper_similarity() -> Any:
    """Jaccard similarities between methods' selections, as a pandas DataFrame.

    Columns: `model`, `dataset`, `share`, `first`, `second` (methods), `jaccard`.
    """
    return pd.DataFrame(_read("paper.json")["similarity"])


@cache
def _read(name: str) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def table_of_heads(entry: dict[str, Any], source: str) -> SingleHeads:
    """A table from an entry of `single_heads.json`, and who published it."""
    return SingleHeads(
        model=entry["model"],
        dataset=entry["dataset"],
        n_examples=int(entry["n_examples"]),
        all_heads=float(entry["all_heads_effect"]),
        singles=torch.tensor(entry["single_head_effect"], dtype=torch.float32),
        source=source,
    )
