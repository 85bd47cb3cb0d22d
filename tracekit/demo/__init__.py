"""A small trained language model with planted behaviours, and the grammar it was trained on.

Importing this package is cheap: the modules that need PyTorch are loaded only when asked for.

* `tracekit.demo.grammar`: the word lists, the planted behaviours and the training sentences.
* `tracekit.demo.examples`: data sets about the planted behaviours, ready to be traced.
* `tracekit.demo.evaluate`: how well a model shows each planted behaviour.
* `tracekit.demo.train`: trains the model from scratch (`python -m tracekit.demo.train`).
"""

from pathlib import Path

__all__ = ["MODEL_DIR"]

MODEL_DIR: Path = Path(__file__).resolve().parent / "model"
"""Folder of the trained model, in the layout that `from_pretrained` reads."""
