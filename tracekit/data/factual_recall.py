"""CounterFact and the facts of Meng et al. 2022, as `docs/data.md` describes them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tracekit._util.options import check_int
from tracekit.data.counterfactuals import GaussianNoise
from tracekit.data.download import check_size, read_file
from tracekit.data.formats import FORMATS, subject_span
from tracekit.data.prompts import OnMismatch, PromptPairs, published_pairs
from tracekit.demo import rows as demo_rows
from tracekit.errors import ConfigError, DataFormatError
from tracekit.models.hooked import HookedModel, embedding_std

_N_PUBLISHED = {"counterfact": 200, "known-facts": 1209}


def load(
    dataset: str,
    file_name: str,
    to_row: Callable[[Mapping[str, Any]], dict[str, Any]],
    model: Any,
    *,
    data_dir: Path | None = None,
    n: int | None = None,
    seed: int | None = 0,
    noise_std: float | None = None,
    noise_seed: int = 42,
    leading_space: bool = True,
    min_probability: float | None = None,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Loads `n` facts that `seed` draws, or the first ones without a seed; by default all.

    `to_row` makes rows with `prompt`, `x` and perhaps `y` of the records in the JSON file.
    `noise_std` is in the units of the embeddings, by default three times that of the input of the
    model's first block; the noise seed of the published code is 42. Facts below `min_probability`
    are left out, as in `PromptPairs.known`. The published Llama scripts prepend BOS.
    """
    if n is not None:
        check_int("n", n)
    text = read_file(dataset, data_dir, file_name)
    try:
        rows = [to_row(record) for record in json.loads(text)]
    except (ValueError, KeyError, TypeError) as error:
        raise DataFormatError(
            f"{file_name} is not the list of records that is expected. Get it again."
        ) from error
    if n is not None and n < len(rows):
        indices = range(n) if seed is None else random.Random(seed).sample(range(len(rows)), n)
        rows = [rows[i] for i in sorted(indices)]
    # The published facts of CounterFact are a sample.
    if n is None or dataset == "counterfact":
        check_size(dataset, len(rows), _N_PUBLISHED[dataset])
    space = " " if leading_space else ""
    rows = [
        {key: space + text.strip() if key in ("x", "y") else text for key, text in row.items()}
        for row in rows
    ]
    if noise_std is None:
        use = f"The noise of {dataset} is three times the size of the model's embeddings"
        _check_is_model(model, use, "noise_std")
        noise_std = 3 * embedding_std(model)
    noise = GaussianNoise(std=noise_std, seed=noise_seed, in_order=True)
    pairs = published_pairs(rows, model, dataset, prepend_bos, on_mismatch, noise)
    if min_probability is None:
        return pairs
    _check_is_model(model, "min_probability is one that the model gives", "no min_probability")
    return pairs.known(model, min_probability)


def _check_is_model(model: Any, use: str, instead: str) -> None:
    if not isinstance(model, HookedModel):
        raise ConfigError(
            f"{use}, and a {type(model).__name__} cannot be run. Give the model, or {instead}."
        )


def _counterfact_row(record: Mapping[str, Any]) -> dict[str, Any]:
    row = FORMATS["counterfact"](record, str) or {}
    return {**row, "group": record["requested_rewrite"].get("relation_id")}


def _known_fact_row(record: Mapping[str, Any]) -> dict[str, Any]:
    row = {"prompt": record["prompt"], "x": record["attribute"]}
    span = subject_span(record["prompt"], record.get("subject", ""))
    return {**row, "group": record.get("relation_id"), **span}


load_counterfact: partial[PromptPairs] = partial(
    load, "counterfact", "counterfact.json", _counterfact_row, n=_N_PUBLISHED["counterfact"]
)
"""Loads 200 facts of CounterFact, as the paper does; arguments as in `load`."""

load_known: partial[PromptPairs] = partial(load, "known-facts", "known_1000.json", _known_fact_row)
"""Loads the 1209 facts that GPT-2 xl knows; arguments as in `load`."""


def load_demo(
    model: Any, *, noise_factor: float = 3.0, seed: int = 0, on_mismatch: OnMismatch = "error"
) -> PromptPairs:
    """Facts that the embedded model knows; the counterfactual is noise on their embeddings.

    `noise_factor` is the standard deviation of the noise over that of the first block's input.
    """
    # Drawn in order, as for the published numbers.
    noise = GaussianNoise(std=noise_factor * embedding_std(model), seed=seed, in_order=True)
    return published_pairs(demo_rows("facts"), model, "demo-facts", None, on_mismatch, noise)
