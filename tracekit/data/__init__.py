"""Data: prompt pairs, and the data sets that give them."""

from tracekit.data.from_file import load_pairs
from tracekit.data.prompts import GaussianNoise, PromptPair, PromptPairs
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
