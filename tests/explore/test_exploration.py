"""The exploration without a browser: sets, history, measurements, and what they are of."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tracekit as tk
from tests import tiny
from tracekit.components.masks import from_indices
from tracekit.engine.effects import masked_log_probs, stream_effects
from tracekit.errors import (
    ComponentError,
    ConfigError,
    IdentityCheckError,
    MissingExtraError,
    NonFiniteMetricError,
)
from tracekit.explore import Exploration, Measurement, Prediction
from tracekit.explore import exploration as module
from tracekit.explore.exploration import Circuit, Progress, Unpredicted, members_of_key, set_key
from tracekit.explore.explorer import entry_of
from tracekit.measure.evaluation import measure_faithfulness


@pytest.fixture
def engine(model):
    """Twelve heads, seven weighted examples in three batches."""
    rows = [row | {"weight": 1.0 + n} for n, row in enumerate(tiny.rows(7, seed=4))]
    pairs = tk.PromptPairs.from_ids(rows)
    return tiny.engine(model, pairs, metric="odds-ratio", max_batch_size=3)


def test_batches_give_the_effects_and_probabilities_of_the_whole(engine):
    mask = from_indices((1, 4, 7), 12)
    before = engine.cost
    effects, x, y = torch.full((3, 7), torch.nan)
    for batch in stream_effects(engine, mask):
        effects[batch.examples], x[batch.examples] = batch.effects, batch.x
        y[batch.examples] = batch.y
    assert (engine.cost - before).forward == 1
    assert torch.equal(effects, engine.effects(mask))
    scores = masked_log_probs(engine, mask)
    assert torch.equal(x, scores.x)
    assert torch.equal(y, scores.y)


def test_batches_name_failing_examples_by_their_numbers_in_the_data(model):
    n_calls = 0

    def fails_on_the_last(clean, intervened):
        nonlocal n_calls
        n_calls += 1
        effects = clean.x - intervened.x
        return effects * torch.nan if n_calls == 3 else effects

    metric = tk.Metric("fragile", fails_on_the_last, needs_y=False)
    engine = tiny.engine(model, tiny.pairs(7), metric=metric, max_batch_size=3)
    last = engine.batches[2].examples.tolist()
    with pytest.raises(NonFiniteMetricError) as error:
        list(stream_effects(engine, torch.ones(12)))
    assert "not finite on 1 of 7 examples: " in str(error.value)
    assert f"example {last[0]} (" in str(error.value)
    assert last != [0]


OTHERS = (0, 2, 3, 5, 6, 8, 9, 10, 11)


def test_the_set_is_measured_first_then_its_complement_and_its_members_alone(engine):
    exploration = Exploration(engine, [7, 1, 4])
    events = list(exploration.steps())
    progress, rest = events[:2], events[2:]
    assert [(e.members, e.n_done, e.n_batches) for e in progress] == [
        ((1, 4, 7), 1, 3),
        ((1, 4, 7), 2, 3),
    ]
    effects = engine.effects(from_indices((1, 4, 7), 12))
    first = engine.batches[0].examples
    assert progress[0].effect == pytest.approx(effects[first].mean().item())
    measured = [event for event in rest if isinstance(event, Measurement)]
    assert [m.members for m in measured] == [(1, 4, 7), OTHERS, (1,), (4,), (7,)]
    # Of the whole it is said once the complement is measured, and before predictions.
    kinds = [type(event) for event in rest if not isinstance(event, Progress)]
    assert kinds[:4] == [Measurement, Measurement, Circuit, Prediction]
    scores = exploration.circuits[(1, 4, 7)].scores
    expected = measure_faithfulness(engine, [(1, 4, 7)])
    assert scores.to_frame().equals(expected.to_frame())
    assert scores.shares_of_full == (effects.mean().item() / engine.full_effects.mean().item(),)
    assert torch.equal(measured[0].effects, effects)
    assert measured[0].spread == tk.results.effect_interval(effects, weights=engine.pairs.weights)
    assert exploration.alone(4) == engine.effects(from_indices((4,), 12)).mean().item()
    (prediction,) = [event for event in rest if isinstance(event, Prediction)]
    expected = engine.predict_changes((1, 4, 7)).predicted_effects
    torch.testing.assert_close(prediction.gains, expected)
    torch.testing.assert_close(prediction.per_example.mean(0), expected)
    # All is known: nothing is left to do.
    assert list(exploration.steps()) == []
    assert exploration.measure() is measured[0]


def test_work_that_is_left_measures_nothing_and_a_return_begins_anew(engine):
    exploration = Exploration(engine, [2])
    steps = exploration.steps()
    assert isinstance(next(steps), Progress)
    exploration.select([3])
    assert exploration.measurement is None
    assert exploration.measure().members == (3,)
    exploration.undo()
    assert exploration.measurement is None
    # Neither is the complement of a set that was left.
    for event in exploration.steps():
        if isinstance(event, Measurement):
            exploration.select([3])
            break
    assert set(exploration.measurements) == {(2,), (3,)}
    exploration.undo()
    expected = engine.effects(from_indices((2,), 12))
    assert exploration.measure().effect == expected.mean().item()


def test_effects_of_searches_count_until_probabilities_are_asked_for(engine):
    effects = engine.effects(from_indices((2,), 12))
    exploration = Exploration(engine, [2], measured=[Measurement((2,), effects)])
    assert exploration.measure().x is None
    measured = next(event for event in exploration.steps() if isinstance(event, Measurement))
    assert torch.equal(measured.x, masked_log_probs(engine, from_indices((2,), 12)).x)
    assert exploration.measure(complete=True) is measured


def test_undo_redo_complement_and_pins(engine):
    exploration = Exploration(engine, [0])
    exploration.select([3])
    assert exploration.members == (3,)
    exploration.complement()
    assert exploration.members == (0, 1, 2, *range(4, 12))
    exploration.undo()
    exploration.pin("A")
    exploration.undo()
    exploration.undo()
    assert exploration.members == (0,)
    exploration.redo()
    assert exploration.members == (3,) == exploration.pins["A"]
    exploration.select(range(12))
    exploration.redo()
    assert (exploration.members, exploration.position) == (tuple(range(12)), 2)
    exploration.select(())
    exploration.select(())
    assert exploration.history == ((0,), (3,), tuple(range(12)), ())
    for number in range(150):
        exploration.select([number % 12])
    assert len(exploration.history) == 100
    assert exploration.position == 99


@given(st.sets(st.integers(0, 300)))
def test_keys_of_sets_come_back(members):
    ordered = tuple(sorted(members))
    assert members_of_key(set_key(ordered)) == ordered


def test_states_come_back_and_others_are_refused(engine):
    exploration, other = Exploration(engine, [0, 1, 2, 9]), Exploration(engine)
    exploration.pin("B")
    exploration.select([0, 1, 2])
    exploration.example = 3
    state = json.loads(json.dumps(exploration.state()))
    assert state["history"] == ["0-2,9", "0-2"]
    other.restore(state)
    assert (other.members, other.pins, other.example) == ((0, 1, 2), {"B": (0, 1, 2, 9)}, 3)
    other.undo()
    assert other.members == (0, 1, 2, 9)
    of_none = (
        "cannot be read, or has a position, a pin or an example that there is not. Give what "
        "state() gave."
    )
    for change, text in [
        ({"history": ["0-12"]}, "12 is no component. Give flat indices, 0 to 11."),
        ({"history": ["x"]}, of_none),
        ({"history": ["0-99999999999"]}, of_none),
        ({"history": 5}, of_none),
        ({"position": 2}, of_none),
        ({"position": -1}, of_none),
        ({"pins": {"C": "1"}}, of_none),
        ({"example": 7}, of_none),
        ({"example": True}, of_none),
    ]:
        with pytest.raises(ComponentError, match=re.escape(text)):
            other.restore({**state, **change})
        assert other.members == (0, 1, 2, 9)


@pytest.mark.usefixtures("unchecked")
def test_sets_and_pins_that_are_none_are_refused(engine):
    with pytest.raises(ComponentError, match=r"^12 is no component\. Give flat indices, 0 to 11"):
        Exploration(engine, [12])
    with pytest.raises(ComponentError, match=r"^'L1H4' is no component"):
        Exploration(engine).select(["L1H4"])
    with pytest.raises(ComponentError, match=r"^Unknown pin 'C'\. Use 'A' or 'B'\."):
        Exploration(engine).pin("C")


def test_what_cannot_be_predicted_is_measured_all_the_same(model):
    engine = tiny.engine(model, tiny.pairs(4), metric="accuracy")
    exploration = Exploration(engine, [5])
    measured, unpredicted = list(exploration.steps())
    assert isinstance(measured, Measurement)
    assert isinstance(unpredicted, Unpredicted)
    assert unpredicted.reason.startswith("No gradient reaches the mask through the metric")
    assert list(exploration.steps()) == []


def test_a_distance_has_only_a_rough_prediction_at_the_empty_set(model):
    engine = tiny.engine(model, tiny.pairs(4), metric="kl")
    exploration = Exploration(engine)
    prediction = exploration.predict()
    assert prediction.is_rough
    exploration.select([3])
    assert not exploration.predict().is_rough
    # That of single examples is kept for the latest set only.
    exploration.select([4])
    exploration.predict()
    assert exploration.predictions[(3,)].per_example is None
    assert exploration.predictions[(4,)].per_example is not None


def test_singles_are_those_of_the_engine(engine):
    exploration = Exploration(engine, [4])
    kept = exploration.measure()
    exploration.select([4])
    exploration.measure_sets([(i,) for i in range(12)])
    alone = torch.tensor([exploration.alone(i) for i in range(12)])
    expected = engine.set_effects([(i,) for i in range(12)]).mean(1)
    torch.testing.assert_close(alone, expected)
    assert exploration.measurements[(4,)] is kept


@pytest.mark.slow
def test_likely_sets_begin_with_the_first_click_and_follow_the_strongest(engine):
    exploration = Exploration(engine, [7, 1], front=[(1,), (1, 7)])
    kinds = {}
    for kind, sets in exploration.likely_sets():
        exploration.measure_sets(sets)
        assert exploration.missing_of(sets) == []
        kinds[kind] = sets
    everything = tuple(range(12))
    assert list(kinds) == [
        "sets of the buttons and the slider",
        "sets with one member less",
        "single components",
        "pairs of the 12 strongest",
        "sets with one component more",
    ]
    buttons, less, singles, pairs, more = kinds.values()
    assert buttons == [(), everything, (1,), (1, 7)]
    assert less == [(7,), (1,)]
    assert singles == [(i,) for i in everything]
    assert sorted(pairs) == list(combinations(everything, 2))
    # Once singles are measured, the strongest come first.
    alone = engine.set_effects(singles).mean(1).abs()
    order = alone.argsort(descending=True, stable=True).tolist()
    assert pairs[0] == tuple(sorted(order[:2]))
    assert more == [tuple(sorted((1, 7, i))) for i in order if i not in (1, 7)]
    # Measured together, and equal to what one pass each gives.
    for members, measured in exploration.measurements.items():
        expected = engine.effects(from_indices(members, 12))
        torch.testing.assert_close(measured.effects, expected, rtol=1e-5, atol=1e-6)
        assert measured.seconds > 0


def test_sets_are_measured_as_long_as_there_is_time(engine, monkeypatch):
    """By a clock on which a pass over the examples takes a second."""
    exploration = Exploration(engine, [4])
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock.now)
    real, calls = engine.set_effects, []

    def slow(data, sets, label):
        calls.append(len(sets))
        clock.now += len(sets)
        return real(sets, label)

    monkeypatch.setattr(type(engine), "set_effects", slow)
    exploration._record(Measurement((4,), engine.effects(from_indices((4,), 12)), seconds=2.0))
    assert exploration.pace == 2
    sets = [(i,) for i in range(12)]
    exploration.measure_sets(sets, end=0.5)
    assert calls == []
    # The first guess is what the set on screen took, then what the last sets took.
    exploration.measure_sets(sets, end=7.0)
    assert (calls, clock.now) == ([3, 4], 7)
    assert len(exploration.missing_of(sets)) == 4
    assert exploration.pace == 1
    exploration.measure_sets(sets)
    assert exploration.missing_of(sets) == []


# ---- the widget, without a browser ------------------------------------------------------------


def demo_of(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model)[:8]
    return tk.Tracer(demo_model, pairs, metric="probability-drop", layers=[0, 1])


@pytest.fixture
def demo(demo_model):
    return demo_of(demo_model)


@pytest.fixture(scope="module")
def searched(demo_model):
    """A tracer, with a result, a curve and a front of it."""
    tracer = demo_of(demo_model)
    return (
        tracer,
        tracer.run("top-k", budget=3),
        tracer.run("greedy", budgets=[1, 2]),
        tracer.pareto(max_budget=2, statistics=False, max_passes=20),
    )


@pytest.mark.parametrize("start", ["nothing", "components", "result", "mask", "curve", "front"])
def test_where_an_explorer_starts(searched, start):
    pytest.importorskip("anywidget")
    demo, result, curve, front = searched
    given, expected = {
        "nothing": (None, []),
        "components": (result.components, result.components),
        "result": (result, result.components),
        "mask": (result.binary_mask, result.components),
        "curve": (curve, curve[-1].components),
        "front": (front, front[-1].components),
    }[start]
    view = demo.explore(given)
    assert view.components == expected
    mask = from_indices([demo.registry.index(c) for c in expected], 16)
    assert view.effect == pytest.approx(demo.evaluate(mask), abs=1e-6)
    torch.testing.assert_close(view.per_example, demo.evaluate(mask, per_example=True))
    slides = {"curve": curve, "front": front}.get(start)
    sizes = None if slides is None else [r.n_selected for r in slides]
    assert (view.setup["front"] and view.setup["front"]["sizes"]) == sizes
    # What the tracer measured before is at hand.
    known = view.exploration.measurements
    assert all(tiny.members_of(r) in known for r in [result, *curve, *(slides or [])])


@pytest.mark.slow
def test_results_of_other_data_are_sets_to_be_measured_and_no_effects(demo, demo_model):
    pytest.importorskip("anywidget")
    others = tk.load_dataset("demo-facts", demo_model)[8:24]
    result = tk.Tracer(demo_model, others, metric="probability-drop", layers=[0, 1]).run(
        "top-k", budget=2
    )
    view = demo.explore(result)
    assert view.components == result.components
    assert view.effect == pytest.approx(demo.evaluate(result), abs=1e-6)
    assert abs(view.effect - result.effect) > 1e-3
    view = demo.explore(front=tk.results.TraceCurve((replace(result, budget=2),)))
    assert list(view.exploration.measurements) == [()]
    view.select(result)
    assert view.effect == pytest.approx(demo.evaluate(result), abs=1e-6)


def test_complements_of_results_are_at_hand_and_cost_no_pass(demo):
    pytest.importorskip("anywidget")
    result = demo.run("top-k", budget=3)
    view = demo.explore(result)
    sent = []
    view.send = lambda content, buffers=None: sent.append(content)
    before = demo.engine.cost
    assert view.faithfulness().to_frame().equals(result.faithfulness().to_frame())
    assert demo.engine.cost == before
    (said,) = sent
    frame = result.faithfulness().to_frame().iloc[0]
    assert {name: said[name] for name in frame.index} == frame.to_dict()
    # Another set's is measured, once, and the browser is told of it.
    view.select([demo.registry[0]])
    scores = view.faithfulness()
    assert scores.to_frame().equals(demo.faithfulness([demo.registry[0]]).to_frame())
    measured = [content["key"] for content in sent if content["kind"] == "measured"]
    assert measured == ["0", "1-15"]


def test_sets_that_overshoot_or_are_not_complete_are_said_to_be():
    def said(effects, of_others):
        ones = torch.ones(1, 6)
        scores = tk.results.Faithfulness.of(
            effects * ones,
            of_others * ones,
            ones[0],
            sizes=[1],
            n_components=9,
            metric="logit-difference",
            direction="noising",
        )
        return entry_of(Circuit((4,), scores))

    assert said(1.2, 0.0)["warning"] == "overshoots: it leaves out components that push back"
    assert said(1.05, 0.0)["warning"] == ""
    entry = said(0.25, 0.25)
    assert entry["warning"] == "not complete: all others without it still do the task"
    names = ("faithfulness", "completeness_low", "share_of_full_high", "key")
    assert [entry[name] for name in names] == [0.75, 0.75, 0.25, "4"]


def test_shares_of_nothing_are_not_measured(model):
    nothing = tk.Metric("nothing", lambda clean, _: clean.x * 0, needs_y=False)
    engine = tiny.engine(model, tiny.pairs(4), metric=nothing)
    exploration = Exploration(engine, [2])
    assert not any(isinstance(event, Circuit) for event in exploration.steps())
    assert set(exploration.measurements) == {(2,)}


@pytest.mark.slow
def test_paths_go_to_the_view_and_those_of_another_question_do_not(demo):
    pytest.importorskip("anywidget")
    paths = demo.paths(["L0H4", "L1H4", "L1H7"])
    shown = demo.explore(paths=paths).setup["paths"]
    rows = paths.table[paths.table["is_apart"]].to_dict("records")
    assert [each["effect"] for each in shown] == [row["effect"] for row in rows] != []
    for each, row in zip(shown, rows, strict=True):
        ends = [
            None if end is None else demo.registry.label(end) for end in (each["from"], each["to"])
        ]
        assert ends[0] == (None if row["sender"] == "embedding" else row["sender"])
        assert ends[1] == (None if row["receiver"] == "logits" else row["receiver"])
        assert each["sure"] == row["significant"]
    others = [replace(paths, metric="odds-ratio"), replace(paths, dataset_fingerprint="0")]
    others.append(replace(paths, positions="last"))
    for other in others:
        text = f"by {other.metric} and {other.intervention}, and this"
        with pytest.raises(
            ConfigError, match=f"^The paths are of demo-facts data and demo, {text}"
        ):
            demo.explore(paths=other)
    assert demo.explore().setup["paths"] == []


@pytest.mark.slow
def test_prompts_are_answered_for_the_set_and_measuring_goes_on(demo_model):
    pytest.importorskip("anywidget")
    pairs = tk.load_dataset("demo-facts", demo_model)[:8]
    tracer = tk.Tracer(demo_model, pairs, layers=[1], source="zero", max_batch_size=2)
    view = tracer.explore()
    assert not view.setup["needs_other"]
    sent = []
    view.send = lambda content, buffers=None: sent.append(content)

    async def scenario():
        view.select(tracer.registry[1:])
        while not sent:
            await asyncio.sleep(0)
        # The last one is answered, between two batches.
        for prompt in ("the cat", "the tower of velm lies in the land of"):
            view._on_message(view, {"kind": "prompt", "prompt": prompt, "other": None}, [])
        await view._task
        view._on_message(view, {"kind": "prompt", "prompt": "the", "other": "a"}, [])
        await view._task

    asyncio.run(scenario())
    kinds = [(m["kind"], m.get("done")) for m in sent[:4]]
    assert kinds == [("progress", 1), ("written", None), ("progress", 2), ("progress", 3)]
    prompt = "the tower of velm lies in the land of"
    row = tracer.generate(tracer.registry[1:], prompt).table.iloc[0]
    assert sent[1] == {"kind": "written", "key": "1-7", "other": None, **row.to_dict()}
    assert row["clean"] != row["intervened"]
    # What was measured meanwhile is what is measured without.
    effect = tracer.evaluate(tracer.registry[1:])
    (found,) = [m["effect"] for m in sent if m["kind"] == "measured" and m["key"] == "1-7"]
    assert found == pytest.approx(effect, abs=1e-7)
    assert sent[-1]["problem"].startswith("ConfigError: There are 1 prompts and 1 counterfactuals.")


@pytest.mark.slow
def test_the_set_can_be_changed_from_python(demo):
    pytest.importorskip("anywidget")
    view = demo.explore()
    members = [tk.Component("attention-patterns", 1, 4), tk.Component("attention-patterns", 1, 7)]
    view.components = members
    assert view.components == members
    assert view.labels == ["L1H4", "L1H7"]
    assert view.effect == demo.evaluate(members)
    assert view.spread == tk.results.effect_interval(view.per_example)
    assert view.view_state["history"][view.view_state["position"]] == "12,15"
    view.pin("A")
    view.complement()
    assert len(view.components) == 14
    view.undo()
    view.redo()
    assert view.pins == {"A": members}
    assert view.effect == demo.evaluate(view.components)
    text = (
        f"Explorer(demo-facts, demo: 14 of 16 components, effect {view.effect:.4g}; "
        "16 attention-patterns in layers 0-1; probability-drop; counterfactual patching)"
    )
    assert repr(view) == text
    result = view.result()
    assert (result.method, result.components) == ("by-hand", view.components)
    assert torch.equal(result.per_example, view.per_example)
    assert view.figure().to_dict() == result.heatmap().to_dict()
    edges = tk.Tracer(demo.model, demo.pairs[:2], "edges-by-block").explore()
    edges.components = ["E>logits"]
    assert edges.figure().to_dict() == edges.result().circuit().to_dict()
    with pytest.raises(tk.errors.ComponentError):
        view.select([tk.Component("attention-patterns", 3, 0)])
    assert len(view.components) == 14
    view.components = []
    assert (view.components, view.effect) == ([], 0.0)


def test_a_model_that_changed_is_refused(model):
    pytest.importorskip("anywidget")
    own = tk.load_model(tiny.hf_model("gpt2"))
    view = tk.Tracer(own, tiny.pairs(4)).explore()
    weight = next(p for p in own.parameters() if p.ndim == 2)
    with torch.no_grad():
        weight.mul_(1.1)
    view.select([view.exploration.engine.registry[0]])
    with pytest.raises(IdentityCheckError):
        _ = view.effect
    assert view.exploration.measurement is None


def test_clicks_in_a_running_loop_measure_only_the_last_set(demo, monkeypatch):
    """As in a notebook: the work goes on between two messages."""
    pytest.importorskip("anywidget")
    view = demo.explore()
    seen = []
    measure = Exploration._measure

    def counted(exploration, members):
        seen.append(members)
        yield from measure(exploration, members)

    monkeypatch.setattr(Exploration, "_measure", counted)

    async def scenario():
        for index in range(8):
            view._on_state({"new": {**view.exploration.state(), "history": [str(index)]}})
        await view._task

    asyncio.run(scenario())
    assert seen == [(7,), (*range(7), *range(8, 16))]
    assert view.exploration.members == (7,)


def test_a_click_ends_the_work_on_the_set_before(demo_model):
    pytest.importorskip("anywidget")
    pairs = tk.load_dataset("demo-facts", demo_model)[:8]
    tracer = tk.Tracer(demo_model, pairs, layers=[1], max_batch_size=2)
    view = tracer.explore()
    sent = []
    view.send = lambda content, buffers=None: sent.append(content)

    async def scenario():
        view.select([tracer.registry[0]])
        while not sent:
            await asyncio.sleep(0)
        view.select([tracer.registry[1]])
        await view._task

    asyncio.run(scenario())
    measured = [content["key"] for content in sent if content["kind"] == "measured"]
    assert measured == ["1", "0,2-7"]
    progress = [(m["key"], m["done"]) for m in sent if m["kind"] == "progress"]
    assert progress == [("0", 1), *((key, done) for key in measured for done in (1, 2, 3))]


def test_states_from_a_browser_that_are_none_change_nothing(demo):
    pytest.importorskip("anywidget")
    view = demo.explore([demo.registry[3]])
    sent = []
    view.send = lambda content, buffers=None: sent.append(content)
    view.view_state = {"history": ["0-99"], "position": 0, "pins": {}, "example": None, "stamp": 1}
    assert view.components == [demo.registry[3]]
    (problem,) = sent
    assert problem["kind"] == "problem"
    assert problem["text"] == "ComponentError: 16 is no component. Give flat indices, 0 to 15."


def test_where_no_widget_can_run_there_is_a_card(demo):
    pytest.importorskip("anywidget")
    view = demo.explore([tk.Component("attention-patterns", 1, 4)])
    data, _ = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert repr(view) in data["text/html"]
    assert f"<p>{view.components[0]}</p>" in data["text/html"]
    assert data["text/plain"] == repr(view)


def test_saved_pages_hold_what_was_measured(demo, tmp_path):
    pytest.importorskip("anywidget")
    view = demo.explore(demo.registry[:2])
    view.measure_singles()
    text = view.save(tmp_path / "deep" / "explore.html", seconds=0).read_text()
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    data = json.loads(found)
    entries = {entry["key"]: entry for entry in data["table"]["measured"]}
    assert set(entries) == {"0-1", "2-15", *map(str, range(16))}
    assert [c["key"] for c in data["table"]["circuits"]] == ["0-1", "2-15"]
    assert entries["0-1"]["effect"] == demo.evaluate(demo.registry[:2])
    assert text.count("</script") == 2
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.slow
def test_saving_measures_what_a_reader_is_likely_to_click(demo, tmp_path):
    pytest.importorskip("anywidget")
    view = demo.explore(demo.registry[:2])
    around = "Measured around the first set (a set may be of two kinds): "
    of_none = "0 of 2 sets of the buttons and the slider, 0 of 2 sets with one member less, "
    assert view.coverage.startswith(f"{around}{of_none}0 of 16 single components, 1 of 66 pairs ")
    # A set that is of two kinds is measured once.
    n = len({each for _, sets in view.exploration.likely_sets() for each in sets})
    assert n < 2 + 2 + 16 + 66 + 14
    rest = (
        rf" With the model, the {n - 1} others of these take about [\d.]+ s; view = tracer\.explore"
        rf"\(\.\.\.\) and view\.save\(path, seconds=\d+\) measure all {n}\.$"
    )
    assert re.search(rest, view.coverage)
    page = view.save(tmp_path / "none.html", seconds=0)
    assert "0 of 16 single components" in page.read_text()
    page = view.save(tmp_path / "all.html")
    assert view.coverage == (
        f"{around}2 of 2 sets of the buttons and the slider, 2 of 2 sets with one member less, "
        "16 of 16 single components, 66 of 66 pairs of the 12 strongest, 14 of 14 sets with one "
        "component more."
    )
    assert view.coverage in page.read_text()
    view.select([])
    assert "less" not in view.coverage
    with pytest.raises(ConfigError, match=r"^The option seconds is 'long'\. .* valid number"):
        view.save(tmp_path / "bad.html", seconds="long")
    with pytest.raises(ConfigError, match=r"^The option seconds is nan\. .* equal to 0\.$"):
        view.save(tmp_path / "bad.html", seconds=math.nan)
    assert not (tmp_path / "bad.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("are_grouped", [False, True])
def test_the_view_says_on_which_examples_its_numbers_are(demo_model, are_grouped):
    """Searched ones, and of sets that a search found the held-out ones beside them."""
    pytest.importorskip("anywidget")
    pairs = tk.load_dataset("demo-facts", demo_model)[:20]
    if are_grouped:
        pairs = pairs.grouped([str(number // 2) for number in range(20)])
    options = {"metric": "probability-drop", "layers": [0, 1]}
    tracer = tk.Tracer(demo_model, pairs[:8], held_out=pairs[8:], **options)
    result = tracer.run("top-k", budget=2)
    setup = tracer.explore(result).setup
    n, n_held_out = (4, 6) if are_grouped else (8, 12)
    assert setup["basis"] == (
        f"Mean effect (drop of P(x)) on 8 searched examples, {n} of them independent. [ ]: 95 % "
        "spread of the mean over resampled examples; no confidence interval where a set was "
        "chosen on them."
    )
    expected = [12, n_held_out, result.held_out_effect, *result.held_out_interval]
    assert setup["held_out"] == {set_key(tiny.members_of(result)): expected}
    without = tk.Tracer(demo_model, pairs[:8], **options)
    assert without.explore(without.run("top-k", budget=2)).setup["held_out"] == {}


def test_without_anywidget_the_error_says_what_to_install(demo, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "tracekit.explore.explorer", raising=False)
    text = "The explorer needs anywidget, which is not installed"
    with pytest.raises(MissingExtraError, match=rf"{text}\. Run pip .*'tracekit-lm\[explore\]'"):
        demo.explore()


def test_more_components_than_can_be_shown_are_refused(demo_model):
    pytest.importorskip("anywidget")
    pairs = tk.load_dataset("demo-facts", demo_model)[:2]
    tracer = tk.Tracer(demo_model, pairs, "mlp-neurons+mlp-outputs", "probability-drop")
    n = len(tracer.registry)
    text = (
        rf"^The explorer shows up to 2048 components, and this tracer has {n} \({n - 512} mlp-neu"
    )
    with pytest.raises(ComponentError, match=text):
        tracer.explore()


def test_metrics_that_fail_raise_where_the_effect_is_asked_for(demo_model):
    pytest.importorskip("anywidget")
    is_broken = False

    def fragile(clean, intervened):
        effects = clean.x - intervened.x
        return torch.where(effects != 0, torch.nan, effects) if is_broken else effects

    pairs = tk.load_dataset("demo-facts", demo_model)[:4]
    view = tk.Tracer(demo_model, pairs, metric=fragile, layers=[1]).explore()
    is_broken = True
    view.select(view.exploration.engine.registry[:1])
    with pytest.raises(NonFiniteMetricError, match="'fragile' is not finite on 4 of 4 examples"):
        _ = view.effect
