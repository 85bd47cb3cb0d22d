"""The paper's models, and the names under which its data sets are published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracekit.components import ComponentRegistry, kind_of


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """The sizes of a model that are known before it is loaded."""

    n_layers: int
    n_heads: int
    """Query heads per layer."""
    d_model: int

    def count(self, kinds: str) -> int | None:
        """Number of components of a kind, or of several joined by `+`.

        None if that takes a size which only the model's configuration has.
        """
        widths = [kind_of(name).width for name in kinds.split("+")]
        if not all(hasattr(self, width) for width in widths if isinstance(width, str)):
            return None
        return len(ComponentRegistry.build(self, kinds))


@dataclass(frozen=True, kw_only=True)
class PaperModel(ModelSizes):
    """A model that the paper traces."""

    hub: str
    """Name on the hub."""
    title: str
    """Name in the paper's tables."""

    @property
    def prepends_bos(self) -> bool:
        """Whether the published scripts begin its prompts with a beginning-of-sequence token."""
        return "llama" in self.title.lower()


PAPER_MODELS: Mapping[str, PaperModel] = {
    title: PaperModel(hub=hub, title=title, n_layers=n_layers, n_heads=n_heads, d_model=d_model)
    for hub, title, n_layers, n_heads, d_model in (
        ("distilgpt2", "DistilGPT2", 6, 12, 768),
        ("gpt2", "GPT2-small", 12, 12, 768),
        ("gpt2-medium", "GPT2-medium", 24, 16, 1024),
        ("gpt2-large", "GPT2-large", 36, 20, 1280),
        ("gpt2-xl", "GPT2-xl", 48, 25, 1600),
        ("Qwen/Qwen3-1.7B", "Qwen3-1.7B", 28, 16, 2048),
        ("meta-llama/Llama-3.2-1B", "Llama-3.2-1B", 16, 32, 2048),
        ("huggyllama/llama-7b", "LLaMA-7B", 32, 32, 4096),
        ("huggyllama/llama-13b", "LLaMA-13B", 40, 40, 5120),
    )
}
"""By title."""

DEMO_SIZES = ModelSizes(n_layers=4, n_heads=8, d_model=128)
"""The sizes of the embedded model."""

GPT2_FAMILY = ("DistilGPT2", "GPT2-small", "GPT2-medium", "GPT2-large", "GPT2-xl")

SINGLE_HEAD_TABLES: Mapping[str, str] = {
    "winobias": "winobias-dev",
    "winogender": "winogender-bergsma",
}
"""Data set -> name of the pairs for which Vig et al. (2020) published single-head effects."""
