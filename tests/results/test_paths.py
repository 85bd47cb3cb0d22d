"""Names that no file system takes are refused wherever a file or a folder is named."""

from __future__ import annotations

import pytest

import tracekit as tk
from tests import tiny
from tracekit.errors import ConfigError
from tracekit.figures import export
from tracekit.results import InteractionGrid, ParetoFront, TraceCurve, TraceResult

NAMES = {
    "one name": "x" * 5000,
    "the last of several": "d/" * 5 + "y" * 300,
    "character 0": "a\0b",
}


@pytest.fixture(scope="module")
def tracer(model):
    return tk.Tracer(model, tiny.pairs(6, seed=3), "head-outputs", "probability-drop")


@pytest.fixture(scope="module")
def measured(tracer):
    result = tracer.run("top-k", budget=2)
    return result, tracer.explain(result), tracer.interactions(result)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_that_no_file_system_takes(tracer, measured, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model, (result, explanation, grid) = tracer.model, measured
    uses = [
        lambda: result.save(name),
        lambda: TraceResult.load(name),
        lambda: TraceCurve((result,)).save(name),
        lambda: TraceCurve.load(name),
        lambda: ParetoFront.load(name),
        lambda: explanation.save(name),
        lambda: grid.save(f"{name}.csv"),
        lambda: InteractionGrid.load(f"{name}.json"),
        lambda: result.to_mib(name),
        lambda: tracer.from_mib(name),
        lambda: TraceCurve((result,)).to_mib(name),
        lambda: tracer.curve_from_mib(name),
        lambda: tracer.export(result, name),
        lambda: tracer.explore(result).save(name),
        lambda: tracer.pareto(max_budget=1, statistics=False, checkpoint=name),
        lambda: tk.report(result, name),
        lambda: export.write(result.heatmap(), f"{name}.html"),
        lambda: tk.load_runs(name),
        lambda: tk.load_model(name),
        lambda: tk.load_dataset(f"{name}.jsonl", model),
        lambda: tk.sweep(["demo"], ["demo-facts"], budgets=[1], output=name),
    ]
    for number, use in enumerate(uses):
        with pytest.raises(ConfigError, match="no file system takes. Give names of at most"):
            pytest.fail(f"{number} gave {use()}")
    assert list(tmp_path.iterdir()) == []
