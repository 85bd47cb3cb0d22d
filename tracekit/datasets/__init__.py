"""Data sets by name: one loader a file, each following the paper's protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.datasets import demo, professions, winobias, winogender
from tracekit.errors import UnknownDatasetError, UnknownOptionError
from tracekit.prompts import PromptPairs


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A named data set."""

    load: Callable[..., PromptPairs]
    """From the model (and, for data on disk, `data_dir`) to pairs."""
    components: str
    """Kind of component it is usually traced with."""
    metric: str
    """Metric it is usually traced with."""
    about: str
    """One line for lists."""
    options: tuple[str, ...] = ()
    """Further keyword arguments of `load`."""
    positions: str = "prompt"
    """Where it is usually intervened on."""


DATASETS: Mapping[str, Dataset] = {
    "demo-bias": Dataset(
        load=demo.load_bias,
        components="heads",
        metric="odds-ratio",
        about="embedded: whom does a pronoun refer to, by stereotype",
    ),
    "demo-professions": Dataset(
        load=demo.load_professions,
        components="neurons",
        metric="odds-ratio",
        about="embedded: pronoun after an occupation",
    ),
    "demo-facts": Dataset(
        load=demo.load_facts,
        components="neurons",
        metric="probability-drop",
        options=("noise_factor", "seed"),
        about="embedded: invented facts, counterfactual by noise",
    ),
    "demo-binding": Dataset(
        load=demo.load_binding,
        components="head-outputs+mlp-blocks",
        metric="logit-difference",
        positions="last",
        about="embedded: arithmetic on two bound variables",
    ),
    "winobias": Dataset(
        load=winobias.load,
        components="heads",
        metric="odds-ratio",
        options=("data_dir", "split", "keep_case"),
        about="WinoBias type 1 (Zhao et al. 2018): 160 dev, 130 test examples",
    ),
    "winogender": Dataset(
        load=winogender.load,
        components="heads",
        metric="odds-ratio",
        options=("data_dir", "statistic"),
        about="WinoGender (Rudinger et al. 2018), structure-filtered: 44 examples",
    ),
    "professions": Dataset(
        load=professions.load,
        components="neurons",
        metric="odds-ratio",
        options=("data_dir",),
        about="Professions (Vig et al. 2020): 2703 examples",
    ),
}


def load_dataset(name: str, model: Any, **options: Any) -> PromptPairs:
    """Loads a data set for a model.

    Args:
        name: One of `DATASETS`.
        model: The model to be traced, for its tokenizer.
        **options: `data_dir` for data on disk, and what the loader of the data set takes, e.g.
            `split="test"` for `winobias`. `on_mismatch="skip"` drops examples whose
            counterfactual has another number of tokens than the prompt; every loader takes it.

    Raises:
        UnknownDatasetError: No data set of that name.
        UnknownOptionError: The data set has no such option.
        DataNotFoundError: Its files are not in `data_dir`.
    """
    if name not in DATASETS:
        raise UnknownDatasetError(name, DATASETS)
    dataset = DATASETS[name]
    for option in options:
        if option not in (*dataset.options, "on_mismatch"):
            raise UnknownOptionError(option, (*dataset.options, "on_mismatch"))
    if isinstance(options.get("data_dir"), str):
        options["data_dir"] = Path(options["data_dir"])
    return dataset.load(model, **options)


__all__ = ["DATASETS", "Dataset", "load_dataset"]
