"""The configuration of the demonstration model: its size and its training."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoConfig:
    """Size of the model and course of its training.

    Attributes:
        seed: Seed of the first weights and of the training sentences.
        steps: Number of updates.
        batch_size: Sentences per update.
        peak_rate: Highest learning rate, at the end of the warm-up.
        warmup: Updates during which the learning rate rises from 0.
        weight_decay: Decay of the weight matrices in AdamW.
        layers: Number of transformer blocks.
        heads: Attention heads per block.
        width: Size of the residual stream, a multiple of `heads`.
        positions: Longest input in tokens.
        threads: Processor threads; the weights are reproducible only for the same number.
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
