"""Data: prompt pairs, counterfactuals, and the data sets by name."""

from tracekit.data.counterfactuals import GaussianNoise
from tracekit.data.from_file import load_pairs
from tracekit.data.pair import PromptPair
from tracekit.data.pairs_report import Finding, PairsReport
from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import DATASETS, Dataset, load_dataset

__all__ = [
    "DATASETS",
    "Dataset",
    "Finding",
    "GaussianNoise",
    "PairsReport",
    "PromptPair",
    "PromptPairs",
    "load_dataset",
    "load_pairs",
]
