"""Trackers are told what happens in a run, and cannot end it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tracekit as tk
from tests import tiny
from tracekit.errors import (
    BudgetError,
    ConfigError,
    RecordWarning,
)

METHODS = {
    "top-k": {},
    "greedy": {},
    "random": {"draws": 5},
    "exhaustive": {},
    "mask-ig": {"steps": 2},
    "pgb-ct": {"epochs": 2},
    "local-search": {"max_passes": 30},
}


@pytest.fixture(scope="module")
def tracer(model):
    return tk.Tracer(
        model,
        tiny.pairs(6, seed=3),
        layers=[0, 1],
        extra_metrics=["probability-drop"],
        held_out=tiny.pairs(4),
    )


class TestRecords:
    @pytest.mark.parametrize("method", METHODS)
    def test_of_a_run_come_in_order(self, tracer, method):
        records = []
        curve = tracer.run(method, budgets=[1, 2], observe=records.append, **METHODS[method])
        kinds = [record.kind for record in records]
        assert kinds[0] == "start"
        assert kinds[-3:] == ["result", "result", "end"]
        steps = [record for record in records if record.kind == "step"]
        assert len(steps) == len(records) - 4 > 0
        assert [record.step for record in steps] == list(range(1, len(steps) + 1))
        assert all(set(record.values) == {"size", "effect"} for record in steps)
        assert [record.result for record in records[-3:-1]] == list(curve)
        seconds = [record.seconds for record in records]
        assert seconds == sorted(seconds)
        assert records[-1].stopped == curve[-1].stopped

    def test_say_what_is_run_and_what_came_of_it(self, tracer):
        records = []
        tracer.run("random", budget=2, draws=3, observe=records.append)
        assert records[0].setting["options.draws"] == 3
        records.clear()
        result = tracer.run("greedy", budget=2, seed=7, observe=records.append)
        setting = records[0].setting
        assert all(record.setting == setting for record in records)
        assert (setting["method"], setting["budgets"], setting["seed"]) == ("greedy", [2], 7)
        assert setting["dataset_fingerprint"] == tracer.pairs.fingerprint
        assert records[-2].values == {
            "size": 2,
            "effect": result.effect,
            "full_effect": result.full_effect,
            "passes": result.cost.forward_equivalents,
            "held_out_effect": result.held_out_effect,
            "probability-drop": result.extra_effects["probability-drop"],
        }
        # The steps are those of the search.
        steps = [record.values["effect"] for record in records if record.kind == "step"]
        assert steps == [line["effect"] for line in result.history]

    @pytest.mark.slow
    def test_of_a_front_hold_all_of_its_sets(self, tracer):
        records = []
        front = tracer.pareto(max_budget=3, max_passes=30, observe=records.append)
        results = [record.result for record in records if record.kind == "result"]
        assert results == list(front.results)

    def test_an_error_of_the_search_is_the_end(self, tracer):
        records = []
        with pytest.raises(BudgetError):
            tracer.run("top-k", observe=records.append)
        assert [record.kind for record in records] in ([], ["start", "end"])
        with pytest.raises(tk.errors.TargetNotReachedError):
            tracer.run("top-k", target_effect=1e6, observe=records.append)
        assert records[-1].kind == "end"
        assert records[-1].stopped == "TargetNotReachedError"

    def test_no_tracker_changes_a_result(self, tracer):
        observed = tracer.run("pgb-ct", budget=2, epochs=2, observe=lambda record: None)
        plain = tracer.run("pgb-ct", budget=2, epochs=2)
        assert observed.labels == plain.labels
        assert observed.cost == plain.cost


class TestFailing:
    @pytest.mark.parametrize("kind", ["start", "step", "result", "end"])
    def test_costs_a_warning_and_not_the_search(self, tracer, kind):
        told = []

        def flaky(record):
            told.append(record.kind)
            if record.kind == kind:
                raise ConnectionError("lost \x1b[31m the server")

        with pytest.warns(
            RecordWarning,
            match=r"The tracker flaky failed \(ConnectionError: lost .\[31m the server\). It gets "
            "no further records of this run; the search goes on.",
        ) as caught:
            result = tracer.run("greedy", budget=2, observe=flaky)
        assert sum(each.category is RecordWarning for each in caught) == 1
        assert result.n_selected == 2
        assert tracer.results[-1] is result
        assert told[-1] == kind

    def test_the_next_run_is_told_again(self, tracer):
        told = []

        def flaky(record):
            told.append(record.kind)
            if len(told) == 1:
                raise OSError("disk full")

        with pytest.warns(RecordWarning):
            tracer.run("top-k", budget=1, observe=flaky)
        tracer.run("top-k", budget=1, observe=flaky)
        assert told == ["start", "start", "step", "result", "end"]

    def test_ctrl_c_in_a_tracker_is_heeded(self, tracer):
        def stopping(record):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tracer.run("top-k", budget=1, observe=stopping)

    def test_what_is_no_callable_is_refused(self, tracer, unchecked):
        with pytest.raises(ConfigError, match="observe is 'wandb'. Give a callable"):
            tracer.run("top-k", budget=1, observe="wandb")


def test_the_docs_send_records_to_weights_and_biases(tracer, monkeypatch):
    logged, settings = [], {}
    wandb = SimpleNamespace(
        init=lambda project, config: settings.update(config),
        define_metric=lambda name, step_metric: None,
        log=logged.append,
        finish=lambda: logged.append("finished"),
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    text = (Path(__file__).parents[2] / "docs" / "run.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import wandb\n.*?)```", text, re.DOTALL)
    names = {}
    exec(code.partition("\ntracer.run(")[0], names)
    result = tracer.run("greedy", budget=2, observe=names["to_wandb"])
    assert settings["method"] == "greedy"
    *steps, final, end = logged
    assert [line["step/effect"] for line in steps] == [line["effect"] for line in result.history]
    assert final["result/effect"] == result.effect
    assert end == "finished"
