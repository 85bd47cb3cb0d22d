"""Facts: a prompt that a model completes with an attribute, against noise on its embeddings.

Two sources: CounterFact, which the paper uses (200 of its records), and the 1209 facts of Meng et
al. 2022 (ROME) that GPT-2 xl knows. The counterfactual run reads the same prompt with Gaussian
noise of standard deviation 3 x 0.2015 added to token and position embeddings, drawn once per
example. x is the true attribute; CounterFact also has a false one, y.

The paper's text writes the attribute as a word of its own, with its leading space; the published
code encodes it without (`leading_space=False`), and takes the first 200 records instead of drawing
them (`seed=None`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.data.download import Files, check_count
from tracekit.data.prompts import GaussianNoise, OnMismatch, PromptPairs
from tracekit.errors import ConfigError, DataFormatError

NOISE_STD = 3 * 0.2015
"""Of the paper: three times the standard deviation of GPT-2's embeddings."""

_COUNTERFACT = Files(
    dataset="counterfact",
    origin="rome.baulab.info (data/dsets, Meng et al. 2022; 45 MB)",
)
_KNOWN = Files(
    dataset="known-facts",
    origin="rome.baulab.info (data/dsets, Meng et al. 2022)",
)
_N_KNOWN = 1209
_N_SAMPLED = 200


def load_counterfact(
    model: Any,
    *,
    data_dir: Path | None = None,
    n: int | None = _N_SAMPLED,
    seed: int | None = 0,
    noise_std: float = NOISE_STD,
    leading_space: bool = True,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Loads 200 facts of CounterFact, as the paper.

    Args:
        model: Its tokenizer encodes the text; its width is the noise's.
        data_dir: Folder with `counterfact.json`.
        n: Number of records. None: all.
        seed: Draws the records and the noise. None: the first records, and noise of seed 0.
        noise_std: Standard deviation of the noise.
        leading_space: Whether the attribute begins with a space.
        on_mismatch: As in `PromptPairs.from_text`.

    Raises:
        DataNotFoundError: The file is missing.
        DataFormatError: It is not a list of records of CounterFact.
    """
    source = _Source(_COUNTERFACT, "counterfact.json", _from_counterfact)
    rows = source.rows(data_dir, n, seed, leading_space=leading_space)
    check_count("counterfact", len(rows), _N_SAMPLED)
    return source.pairs(rows, model, noise_std, seed, on_mismatch)


def load_known(
    model: Any,
    *,
    data_dir: Path | None = None,
    n: int | None = None,
    seed: int | None = 0,
    noise_std: float = NOISE_STD,
    leading_space: bool = True,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Loads the 1209 facts that GPT-2 xl knows.

    Args:
        model: Its tokenizer encodes the text; its width is the noise's.
        data_dir: Folder with `known_1000.json`.
        n: Number of facts. None: all.
        seed: Draws the facts and the noise. None: the first facts, and noise of seed 0.
        noise_std: Standard deviation of the noise.
        leading_space: Whether the attribute begins with a space.
        on_mismatch: As in `PromptPairs.from_text`.

    Raises:
        DataNotFoundError: The file is missing.
        DataFormatError: It is not a list of facts.
    """
    source = _Source(_KNOWN, "known_1000.json", _from_known)
    rows = source.rows(data_dir, n, seed, leading_space=leading_space)
    if n is None:
        check_count("known-facts", len(rows), _N_KNOWN)
    return source.pairs(rows, model, noise_std, seed, on_mismatch)


def _from_counterfact(record: Mapping[str, Any]) -> dict[str, str]:
    rewrite = record["requested_rewrite"]
    return {
        "prompt": rewrite["prompt"].format(rewrite["subject"]),
        "x": rewrite["target_true"]["str"],
        "y": rewrite["target_new"]["str"],
    }


def _from_known(record: Mapping[str, Any]) -> dict[str, str]:
    return {"prompt": record["prompt"], "x": record["attribute"]}


@dataclass(frozen=True)
class _Source:
    """A file of records, and how one becomes a row."""

    files: Files
    name: str
    row: Callable[[Mapping[str, Any]], dict[str, str]]

    def rows(
        self, data_dir: Path | None, n: int | None, seed: int | None, *, leading_space: bool
    ) -> list[dict[str, str]]:
        """Rows of some records, in the order of the file."""
        if n is not None and n < 1:
            raise ConfigError(f"n is {n}. It must be at least 1.")
        text = self.files.read(data_dir, self.name)
        try:
            rows = [self.row(record) for record in json.loads(text)]
        except (ValueError, KeyError, TypeError) as error:
            raise DataFormatError(
                f"{self.name} is not the list of records that is expected. Get it again."
            ) from error
        if n is not None and n < len(rows):
            chosen = range(n) if seed is None else random.Random(seed).sample(range(len(rows)), n)
            rows = [rows[i] for i in sorted(chosen)]
        space = " " if leading_space else ""
        return [
            {key: text if key == "prompt" else space + text.strip() for key, text in one.items()}
            for one in rows
        ]

    def pairs(
        self,
        rows: list[dict[str, str]],
        model: Any,
        noise_std: float,
        seed: int | None,
        on_mismatch: OnMismatch,
    ) -> PromptPairs:
        """Pairs with noise as their counterfactual."""
        noise = GaussianNoise(std=noise_std, seed=seed or 0)
        name = self.files.dataset
        return PromptPairs.from_text(rows, model, noise=noise, name=name, on_mismatch=on_mismatch)
