"""Data: prompt pairs, counterfactuals, and the data sets by name."""

from tracekit.data.counterfactuals import GaussianNoise
from tracekit.data.from_file import load_pairs
from tracekit.data.pair import PromptPair
from tracekit.data.pairs_check import CheckLine, PairsCheck
from tracekit.data.pairs_report import Finding, PairsReport
from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import DATASETS, Dataset, load_dataset

__all__ = [
    "DATASETS",
    "CheckLine",
    "Dataset",
    "Finding",
    "GaussianNoise",
    "PairsCheck",
    "PairsReport",
    "PromptPair",
    "PromptPairs",
    "load_dataset",
    "load_pairs",
]
