from __future__ import annotations

import json
from itertools import combinations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.latex import caption_of, check_latex
from tools.planted import planted_model
from tracekit.engine.engine import Engine
from tracekit.errors import ComponentError, ConfigError, NotDifferentiableError, ResultFormatError
from tracekit.measure.effects import _interacting
from tracekit.results import effect_interval
from tracekit.results.intervals import row_intervals
from tracekit.results.significance import most_testable_rows, p_values, zero_below_rounding


@pytest.fixture(scope="module")
def tracer():
    model = tk.load_model("demo")
    return tk.Tracer(model, tk.load_dataset("demo-facts", model)[:16], "attention-patterns")


@pytest.fixture(scope="module")
def all_pairs(tracer):
    """Interactions of all pairs on every example, and the size of what they are differences of."""
    n = len(tracer.registry)
    pairs = list(combinations(range(n), 2))
    effects = tracer.engine.set_effects([*((i,) for i in range(n)), *pairs], "").double()
    i, j = torch.tensor(pairs).T
    interactions = effects[n:] - effects[i] - effects[j]
    names = [frozenset(map(tracer.registry.label, pair)) for pair in pairs]
    return names, interactions, effects[n:].abs() + effects[i].abs() + effects[j].abs(), effects[n:]


@pytest.fixture(scope="module")
def pairs(tracer):
    return tracer.strongest_pairs(10, n_looked_at=12)


@pytest.mark.slow
def test_the_strongest_pairs_are_found(all_pairs, pairs):
    names, interactions, _, effects = all_pairs
    examples = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    proposing, testing = examples[:8], examples[8:]
    order = interactions[:, proposing].mean(1).abs().argsort(descending=True).tolist()
    listed = [frozenset(each) for each in zip(pairs.first, pairs.second, strict=True)]
    assert len({*listed} & {names[row] for row in order[:10]}) >= 9
    rows = [names.index(each) for each in listed]
    torch.testing.assert_close(
        pairs.interactions.double(), interactions[rows][:, testing].mean(1), atol=1e-6, rtol=1e-4
    )
    torch.testing.assert_close(
        pairs.effects.double(), effects[rows][:, testing].mean(1), atol=1e-6, rtol=1e-4
    )
    assert pairs.proposed.abs().diff().max() <= 0
    assert pairs.n_components == 32
    assert pairs.n_measured == 100


def test_components_that_bend_only_by_themselves_are_looked_at_last():
    """A quadratic function: of its 20 components four interact, others have large curvatures."""
    n = 20
    hessian = torch.zeros(n, n, dtype=torch.float64)
    hessian[[3, 11, 5, 16], [11, 3, 16, 5]] = 1.0
    hessian[range(6, 11), range(6, 11)] = 30.0
    slopes = torch.linspace(-50, 50, n, dtype=torch.float64)

    class Quadratic(Engine):
        n_components = n

        def __init__(self):
            pass

        def gradient(self, mask, weight, examples):
            return None, slopes + hessian @ mask.double()

    looked_at = _interacting(Quadratic(), range(n), (0,), None, 4, torch.Generator().manual_seed(0))
    assert sorted(looked_at) == [3, 5, 11, 16]


def test_predictions_come_close(pairs):
    both = torch.stack([pairs.predicted, pairs.proposed])
    assert torch.corrcoef(both)[0, 1] > 0.8


@pytest.mark.slow
def test_intervals_and_p_values_are_of_the_examples_that_proposed_nothing(tracer, all_pairs):
    names, interactions, scale, _ = all_pairs
    n = tracer.engine.n_examples
    order = torch.randperm(n, generator=torch.Generator().manual_seed(3))
    testing = order[n // 2 :].sort().values
    # All pairs are measured where there are few components.
    few = tracer.registry[:5]
    table = tracer.strongest_pairs(10, components=few, seed=3)
    assert table.n_measured == 10
    rows = [names.index(frozenset(each)) for each in zip(table.first, table.second, strict=True)]
    proposed = interactions[rows][:, order[: n // 2]].mean(1)
    torch.testing.assert_close(table.proposed, proposed.float(), atol=1e-5, rtol=1e-3)
    assert table.proposed.abs().tolist() == sorted(table.proposed.abs().tolist(), reverse=True)
    tested = interactions[rows][:, testing]
    torch.testing.assert_close(table.interactions, tested.mean(1).float(), atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(table.intervals, row_intervals(tested).float(), atol=1e-5, rtol=1e-3)
    most = most_testable_rows(len(testing))
    expected = p_values(zero_below_rounding(tested[:most], scale[rows][:most][:, testing]))
    torch.testing.assert_close(table.tests.q, expected.q, atol=2e-3, rtol=0)
    assert table.to_frame()["q"].notna().sum() == min(most, 10)
    assert table.examples == f"the half of the examples that proposed nothing, n = {len(testing)}"


@pytest.mark.slow
def test_held_out_examples_test_what_the_others_propose(tracer):
    own, fresh = tracer.pairs[:8], tracer.pairs[8:]
    both = tk.Tracer(tracer.model, own, "attention-patterns", layers=[1], held_out=fresh)
    table = both.strongest_pairs(8, seed=3)
    assert table.examples == f"held-out examples, n = {fresh.n_distinct}"
    named = {both.registry.label(n): n for n in range(len(both.registry))}
    sets = [(named[a], named[b]) for a, b in zip(table.first, table.second, strict=True)]
    for engine, values in (
        (both.engine, table.proposed),
        (both.question.held_out_engine, table.interactions),
    ):
        singles = engine.set_effects([(n,) for n in range(len(both.registry))])
        expected = engine.set_effects(sets) - torch.stack(
            [singles[i] + singles[j] for i, j in sets]
        )
        torch.testing.assert_close(values, expected.mean(1), atol=1e-5, rtol=1e-3)
    assert len(table.tests.q) == min(8, most_testable_rows(fresh.n_distinct))
    n_found = sum(table.tests.significant())
    count = (
        f"{len(table.tests.q)} tested, {n_found} with q < .05; measured as effect (odds ratio "
        "\u2212 1); "
    )
    assert f"{count}counterfactual patching, held-out examples" in repr(table)


@pytest.mark.slow
def test_proposals_see_one_half_of_the_examples_only(tracer, monkeypatch):
    seen = []
    for name in ("predict_changes", "gradient"):
        original = getattr(type(tracer.engine), name)

        def spy(engine, *arguments, original=original, **options):
            examples = options.get("examples", arguments[2] if len(arguments) > 2 else None)
            seen.append(tuple(examples.tolist()))
            return original(engine, *arguments, **options)

        monkeypatch.setattr(type(tracer.engine), name, spy)
    tracer.strongest_pairs(3, n_looked_at=4, seed=3)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    assert set(seen) == {tuple(order[:8].sort().values.tolist())}
    assert len(seen) == 33 + 5  # Signs and their middle; the clean run and four components.


@pytest.mark.slow
def test_what_is_patched_besides(tracer):
    condition = [tracer.registry[0], tracer.registry[9]]
    table = tracer.strongest_pairs(3, components=tracer.registry[1:6], given=condition)
    assert table.given == ("L0H0", "L1H1")
    examples = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    for half, values in ((examples[:8], table.proposed), (examples[8:], table.interactions)):
        of_half = tk.Tracer(tracer.model, tracer.pairs.subset(half.tolist()), "attention-patterns")
        grid = of_half.interactions(tracer.registry[1:6], given=condition).to_frame()
        grid = grid.set_index(["first", "second"])["interaction"]
        expected = [grid[pair] for pair in zip(table.first, table.second, strict=True)]
        assert values.tolist() == pytest.approx(expected, abs=1e-6, rel=1e-4)
    with pytest.raises(ComponentError, match="L0H0 is among those to be paired and patched in"):
        tracer.strongest_pairs(components=tracer.registry[:3], given=condition)


@pytest.mark.slow
def test_a_planted_pair_comes_first():
    planted = planted_model("or")
    table = planted.tracer().strongest_pairs(3)
    label = planted.tracer().registry.label
    registry = planted.tracer().registry
    assert {table.first[0], table.second[0]} == {
        label(registry.index(component)) for component in planted.components
    }
    assert table.interactions[0] == pytest.approx(1, abs=0.05)


@pytest.mark.slow
def test_a_distance_is_second_order(tracer):
    """By KL every single slope at the clean run is 0, and pairs still are found."""
    model = tracer.model
    by_kl = tk.Tracer(model, tracer.pairs, "attention-patterns", "kl", layers=[1])
    table = by_kl.strongest_pairs(5, n_looked_at=3)
    proposing = torch.randperm(16, generator=torch.Generator().manual_seed(0))[:8].tolist()
    of_half = tk.Tracer(
        model, by_kl.pairs.subset(proposing), "attention-patterns", "kl", layers=[1]
    )
    frame = of_half.interactions().to_frame()[:5]
    expected = {frozenset(each) for each in zip(frame["first"], frame["second"], strict=True)}
    listed = {frozenset(each) for each in zip(table.first, table.second, strict=True)}
    assert len(listed & expected) >= 4
    assert torch.corrcoef(torch.stack([table.predicted, table.proposed]))[0, 1] > 0.5


def test_weights_reach_the_intervals(model):
    rows = [{**row, "weight": 1 + 4 * (i % 2)} for i, row in enumerate(tiny.rows(16))]
    weighted = tk.Tracer(model, tk.PromptPairs.from_ids(rows), metric="logit-difference")
    few = weighted.registry[:3]
    table = weighted.strongest_pairs(3, components=few, seed=3)
    named = {weighted.registry.label(n): n for n in range(len(weighted.registry))}
    i, j = named[table.first[0]], named[table.second[0]]
    effects = weighted.engine.set_effects([(i, j), (i,), (j,)])
    testing = torch.randperm(16, generator=torch.Generator().manual_seed(3))[8:].sort().values
    values = (effects[0] - effects[1] - effects[2])[testing]
    expected = effect_interval(values, weights=weighted.pairs.weights[testing])
    assert table.intervals[0].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_few_examples_have_no_statistics(tracer):
    few = tk.Tracer(tracer.model, tracer.pairs[:4], "attention-patterns", layers=[1])
    table = few.strongest_pairs(2)
    assert table.tests is None
    assert table.examples == "the examples that proposed them, n = 4"
    assert table.intervals is None
    assert "p" not in table.to_frame()


@pytest.mark.slow
def test_it_is_repeatable_and_read_back(tracer, pairs, tmp_path):
    again = tracer.strongest_pairs(10, n_looked_at=12)
    assert again.to_frame().equals(pairs.to_frame())
    loaded = tk.results.StrongestPairs.load(pairs.save(tmp_path / "pairs.json"))
    assert loaded.to_frame().equals(pairs.to_frame())
    assert "10 of 496 pairs; strongest" in repr(loaded)
    assert (tmp_path / "pairs.csv") == pairs.save(tmp_path / "pairs.csv")
    assert len((tmp_path / "pairs.csv").read_text().splitlines()) == 11
    document = json.loads((tmp_path / "pairs.json").read_text())
    document["interactions"] = document["interactions"][1:]
    (tmp_path / "pairs.json").write_text(json.dumps(document))
    with pytest.raises(ResultFormatError):
        tk.results.StrongestPairs.load(tmp_path / "pairs.json")


def test_bad_input(tracer):
    for count in (0, -1, True):
        with pytest.raises(ConfigError, match=f"count is {count}. Give a whole number, at least 1"):
            tracer.strongest_pairs(count)
    with pytest.raises(ConfigError, match="n_looked_at is 0. Give a whole number, at least 1"):
        tracer.strongest_pairs(n_looked_at=0)
    with pytest.raises(ComponentError, match="1 components were chosen for pairs. Choose at least"):
        tracer.strongest_pairs(components=tracer.registry[:1])
    with pytest.raises(ComponentError, match="named twice among those to be paired"):
        tracer.strongest_pairs(components=[tracer.registry[0]] * 2)
    flat = tk.Tracer(tracer.model, tracer.pairs, "attention-patterns", "accuracy")
    with pytest.raises(NotDifferentiableError, match="strongest_pairs"):
        flat.strongest_pairs()


@pytest.mark.slow
def test_the_strongest_pairs_in_latex(tracer):
    table = tracer.strongest_pairs(4)
    text = table.to_latex(rows=3)
    check_latex(text)
    n = len(tracer.registry)
    assert f"The 3 strongest of {n * (n - 1) // 2} pairs. " in caption_of(text)
    assert text.count("\\\n") == 1 + 3
    assert table.first[0] in text
