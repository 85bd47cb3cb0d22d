"""Values of a wrong type: one error of tracekit, which has the value, wherever they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, getmembers, isfunction, signature
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np
import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit._util.arguments import check_arguments, fits_annotation
from tracekit.errors import ConfigError, TracekitError


class Wrong:
    def __repr__(self):
        return "<a wrong object>"


WRONG: list[Any] = [True, 3.5, "x", Wrong(), [], {}]
"""Values of different types."""


@pytest.fixture(scope="module")
def tracer(model):
    pairs = tiny.pairs(8)
    return tk.Tracer(model, pairs[:5], "head-outputs", "logit-difference", held_out=pairs[5:])


@pytest.fixture(scope="module")
def result(tracer):
    return tracer.run("top-k", budget=2)


def wrong(*fitting: type) -> list[Any]:
    """All of the values but those of some types."""
    return [value for value in WRONG if type(value) not in fitting]


CALLS = {
    "model": (lambda t, r, v: tk.load_model(v), wrong(str)),
    "tokenizer": (lambda t, r, v: tk.load_model("demo", device=v), wrong(str)),
    "dtype": (lambda t, r, v: tk.load_model("demo", dtype=v), WRONG),
    "data set": (lambda t, r, v: tk.load_dataset(v, t.model), WRONG),
    "model of a data set": (lambda t, r, v: tk.load_dataset("demo-facts", v), wrong(str)),
    "rows": (lambda t, r, v: tk.load_pairs(v, t.model), WRONG),
    "columns": (lambda t, r, v: tk.load_pairs(tiny.rows(2), t.model, columns=v), wrong(list, dict)),
    "name": (lambda t, r, v: tk.load_pairs(tiny.rows(2), t.model, name=v), wrong(str, list, dict)),
    "ids": (lambda t, r, v: tk.PromptPairs.from_ids(v), WRONG),
    "share": (lambda t, r, v: t.pairs.split(v), WRONG),
    "rows of LaTeX": (
        lambda t, r, v: t.interactions(["L0H0", "L1H1"]).to_latex(rows=v),
        wrong(int, type(None)),
    ),
    "groups": (lambda t, r, v: t.pairs.grouped(v), WRONG),
    "pairs": (lambda t, r, v: tk.Tracer(t.model, v), WRONG),
    "held_out": (lambda t, r, v: tk.Tracer(t.model, t.pairs, held_out=v), WRONG),
    "components": (lambda t, r, v: tk.Tracer(t.model, t.pairs, v), WRONG),
    "metric": (lambda t, r, v: tk.Tracer(t.model, t.pairs, metric=v), WRONG),
    "extra_metrics": (
        lambda t, r, v: tk.Tracer(t.model, t.pairs, extra_metrics=v),
        [True, 3.5, Wrong(), [Wrong()], [3]],
    ),
    "max_batch_size": (lambda t, r, v: tk.Tracer(t.model, t.pairs, max_batch_size=v), WRONG),
    "progress": (lambda t, r, v: tk.Tracer(t.model, t.pairs, progress=v), wrong(bool)),
    "layers": (lambda t, r, v: tk.Tracer(t.model, t.pairs, layers=v), WRONG),
    "positions": (lambda t, r, v: tk.Tracer(t.model, t.pairs, positions=v), WRONG),
    "source": (lambda t, r, v: tk.Tracer(t.model, t.pairs, source=v), WRONG),
    "direction": (lambda t, r, v: tk.Tracer(t.model, t.pairs, direction=v), WRONG),
    "at_most": (lambda t, r, v: tk.Constraint(pairs=t.pairs, at_most=v), wrong(float)),
    "method": (lambda t, r, v: t.run(v, budget=1), WRONG),
    "budget": (lambda t, r, v: t.run("top-k", budget=v), WRONG),
    "budgets": (lambda t, r, v: t.run("top-k", budgets=v), WRONG),
    "target_effect": (lambda t, r, v: t.run("greedy", target_effect=v), wrong(float)),
    "objective": (lambda t, r, v: t.run("top-k", budget=1, objective=v), WRONG),
    "sign": (lambda t, r, v: t.run("top-k", budget=1, sign=v), WRONG),
    "constraint": (lambda t, r, v: t.run("top-k", budget=1, constraint=v), WRONG),
    "observe": (lambda t, r, v: t.run("top-k", budget=1, observe=v), WRONG),
    "seed": (lambda t, r, v: t.run("random", budget=1, seed=v), WRONG),
    "option": (lambda t, r, v: t.run("random", budget=1, draws=v), WRONG),
    "statistics": (lambda t, r, v: t.pareto(max_passes=9, statistics=v), wrong(bool)),
    "compared": (lambda t, r, v: tk.compare(v), WRONG),
    "labels": (lambda t, r, v: tk.compare([r, r], v), wrong()),
    "reported": (lambda t, r, v: tk.report(v, "never.html"), WRONG),
    "report": (lambda t, r, v: tk.report([r], v), wrong(str)),
    "folder of runs": (lambda t, r, v: tk.load_runs(v), WRONG),
    "models": (lambda t, r, v: tk.sweep(v, ["demo-facts"], output="never"), WRONG),
    "data sets": (lambda t, r, v: tk.sweep(["demo"], v, output="never"), WRONG),
    "folder": (lambda t, r, v: r.save(v), wrong(str)),
    "color": (lambda t, r, v: r.heatmap(color=v), WRONG),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_value_of_a_wrong_type_is_one_error(tracer, result, name):
    call, values = CALLS[name]
    for value in values:
        with pytest.raises(TracekitError) as caught:
            call(tracer, result, value)
        assert str(caught.value)


METHODS = {
    "evaluate": {"metrics": wrong(list), "per_example": wrong(bool), "held_out": wrong(bool)},
    "estimate": {"method": wrong(str)},
    "faithfulness": {"ranking": WRONG},
    "minimality": {"tolerance": WRONG},
    "controls": {"draws": WRONG, "seed": WRONG},
    "explain": {"max_sets": WRONG, "look_outside": wrong(bool)},
    "side_effects": {"others": WRONG},
    "paths": {"by_input": wrong(bool)},
    "generate": {"prompts": wrong(str, list, dict)},
    "steer": {"strength": wrong(float, bool)},
    "interactions": {"layers": wrong(list, dict), "both_directions": wrong(bool)},
    "strongest_pairs": {"count": WRONG},
    "explore": {"front": wrong(list, dict, str), "paths": WRONG},
    "heatmap": {"result": wrong(list, dict)},
    "curve": {"results": wrong(list, dict)},
    "look": {"say": WRONG},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "name"), [(method, name) for method, names in METHODS.items() for name in names]
)
def test_methods_of_a_tracer_name_the_argument(tracer, result, method, name):
    called = getattr(tracer, method)
    given = {each: result for each in ("members", "mask") if each in signature(called).parameters}
    for value in METHODS[method][name]:
        with pytest.raises(TracekitError):
            called(**given, **{name: value})


def test_public_methods_are_all_checked():
    for owner in (tk.Tracer, tk.PromptPairs, tk.TraceResult):
        for name, method in getmembers(owner, isfunction):
            if not name.startswith("_") and name in vars(owner):
                assert hasattr(method, "__wrapped__"), name


def test_what_fits_an_annotation():
    def function(a: int, b: float | None, c: Sequence[str], d: Mapping[str, int], e: Path): ...

    hints = get_type_hints(function)
    right = {"a": [1, np.int64(2)], "b": [1, 2.5, None, np.float32(1)], "c": [["x"], ()]}
    right |= {"d": [{}, {"x": 1}], "e": [Path("x")]}
    bad = {"a": [1.0, "1"], "b": ["1"], "c": [[1], {}, 3], "d": [[]], "e": ["x"]}
    for name, hint in hints.items():
        assert all(fits_annotation(value, hint) for value in right[name]), name
        assert not any(fits_annotation(value, hint) for value in bad[name]), name
    for value in (True, np.bool_(False)):
        assert fits_annotation(value, bool)
    assert fits_annotation("a", Literal["a", "b"])
    assert not fits_annotation(1, Literal["a", "b"])
    assert fits_annotation(torch.zeros(2), Any)


def test_errors_are_translated_only_where_an_argument_does_not_fit():
    @check_arguments
    def function(count: int, callback: Any = None, *rest: int, flag: bool = False) -> int:
        return callback(count) if callback else len(range(count))

    assert function(3) == 3
    with pytest.raises(ConfigError, match=r"count is 'x'. Pass int\.") as caught:
        function("x")
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(ConfigError, match=r"flag is 1. Pass bool\."):
        function(3, flag=1)
    with pytest.raises(ZeroDivisionError):
        function(3, lambda count: count / 0)
    with pytest.raises(KeyError):  # An error of the callback, not of an argument.
        function(3, lambda count: {}[count])
    assert "count" in signature(function).parameters
    assert signature(function).parameters["flag"].kind is Parameter.KEYWORD_ONLY
