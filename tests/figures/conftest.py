from __future__ import annotations

import pytest

import tracekit as tk
from tests import tiny
from tests.explore.conftest import chromium as chromium


@pytest.fixture(scope="module")
def tracer(model):
    tracer = tk.Tracer(model, tiny.pairs(6), "head-outputs+mlp-blocks")
    tracer.run("top-k", budgets=[1, 4])
    tracer.run("greedy", budget=3)
    tracer.run("random", budgets=[2, 4], draws=3)
    return tracer
