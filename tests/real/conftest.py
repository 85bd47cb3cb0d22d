"""SmolLM2-135M a second time, bare: for what tracekit is compared with."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

import tracekit as tk
from tracekit.models.checkpoint import locate
from tracekit.models.gguf import GGUFModel


@pytest.fixture(scope="session")
def bare_model(real_model):
    """The same weights in transformers, which TransformerLens has not touched."""
    file = GGUFModel.read(locate("smollm2-135m"))
    return file.load(AutoModelForCausalLM, torch.float32).eval()


@pytest.fixture(scope="session")
def halves(real_model):
    """By name of a data set, 24 examples of one half and 32 of the other."""

    def of(name):
        searched, fresh = tk.load_dataset(name, real_model).split(0.5, seed=0)
        return searched[:24], fresh[:32]

    return of
