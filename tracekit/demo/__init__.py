"""A small trained language model with planted behaviours, and the grammar it was trained on.

Importing this package loads none of its modules, some of which need PyTorch.

* `tracekit.demo.grammar`: the word lists and the planted behaviours.
* `tracekit.demo.examples`: data sets about the planted behaviours.

`python -m tools.demo_model.train`, in a checkout, trains the model from scratch.
"""

from pathlib import Path

__all__ = ["DEMO", "MODEL_DIR"]

DEMO = "demo"
"""Name of the trained model."""

MODEL_DIR: Path = Path(__file__).resolve().parent / "model"
"""Folder of the trained model, in the layout that `from_pretrained` reads."""
