"""Data: prompt pairs, counterfactuals, and the data sets by name."""

from tracekit.data.counterfactuals import GaussianNoise
from tracekit.data.from_file import load_pairs
from tracekit.data.prompts import PromptPair, PromptPairs
from tracekit.data.registry import DATASETS, Dataset, load_dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "GaussianNoise",
    "PromptPair",
    "PromptPairs",
    "load_dataset",
    "load_pairs",
]
