"""How the demonstration model is built and trained."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Size of the model and course of its training.

    Attributes:
        seed: Determines the first weights and the training sentences.
        steps: Number of updates.
        batch_size: Sentences in one update.
        peak_rate: Highest learning rate, reached at the end of the warm-up.
        warmup: Updates during which the learning rate rises from 0.
        weight_decay: Decay of the weight matrices in AdamW.
        layers: Number of transformer blocks.
        heads: Attention heads in one block.
        width: Size of the residual stream, a multiple of `heads`.
        positions: Longest input in tokens.
        threads: Processor threads; the weights are reproducible for one number of threads.
    """

    seed: int = 0
    steps: int = 4000
    batch_size: int = 256
    peak_rate: float = 2e-3
    warmup: int = 200
    weight_decay: float = 0.1
    layers: int = 4
    heads: int = 8
    width: int = 128
    positions: int = 48
    threads: int = 2
