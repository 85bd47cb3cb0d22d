"""Stability: searches on resampled examples, compared with running them one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.figures.gallery import legend_of
from tracekit.engine.resampled import ResampledEngine
from tracekit.errors import BudgetError, ComponentError, ConfigError
from tracekit.search.base import Selection


@pytest.fixture(scope="module")
def tracer(model):
    return tk.Tracer(model, tiny.pairs(12, seed=3), "head-outputs", "probability-drop")


@dataclass(frozen=True)
class Scripted:
    """Selects one set after the other, whatever it is asked, and notes the examples."""

    sets: tuple[tuple[int, ...], ...]
    calls: list
    name = "scripted"

    def search(self, target, goal, seed):
        self.calls.append((target.pairs, seed))
        chosen = self.sets[len(self.calls) - 1]
        if chosen == ():
            raise KeyboardInterrupt
        return [Selection.measured(target, chosen)]


SETS = ((0, 1), (0, 2), (0, 1), (0, 3))


def test_frequencies_are_shares_of_the_resamples(tracer):
    stability = tracer.stability(Scripted(SETS, []), budget=2, resamples=4, threshold=0.5, seed=3)
    assert stability.frequencies[:5].tolist() == [1, 0.5, 0.25, 0.25, 0]
    assert stability.members == (0, 1)
    assert stability.table["frequency"].tolist() == [1, 0.5, 0.25, 0.25]
    assert stability.table["stable"].tolist() == [True, True, False, False]
    assert (stability.n_resamples, stability.n_selected) == (4, 2)
    names = [[tracer.registry.label(index) for index in members] for members in SETS]
    expected = [tracer.evaluate(members) for members in names]
    assert stability.mean_effect == pytest.approx(sum(expected) / 4, rel=1e-4)
    assert stability.effects.mean().item() == pytest.approx(expected[0], rel=1e-4)


@pytest.mark.slow
def test_resamples_are_drawn_with_replacement_and_keep_groups_together(model):
    groups = [0, 0, 0, 1, 1, 2, 3, 4, 5, 5, 6, 7]
    pairs = tiny.pairs(12, seed=3).grouped(groups)
    members_of_group = {str(group): groups.count(group) for group in groups}
    tracer = tk.Tracer(model, pairs, "head-outputs", "probability-drop")
    search = Scripted(((0,),) * 20, [])
    tracer.stability(search, budget=1, seed=3)
    assert [seed for _, seed in search.calls] == list(range(3, 23))
    has_repeated = has_missed = False
    for resample, _ in search.calls:
        counts = {}
        for pair in resample:
            counts[pair.group] = counts.get(pair.group, 0) + 1
        times = {group: count / members_of_group[group] for group, count in counts.items()}
        assert all(each.is_integer() for each in times.values())
        assert sum(times.values()) == len(members_of_group)
        has_repeated |= max(times.values()) > 1
        has_missed |= len(times) < len(members_of_group)
    assert has_repeated
    assert has_missed


def test_a_seed_repeats_it(tracer):
    first, again, other = (
        tracer.stability("attribution", budget=3, resamples=5, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first.frequencies, again.frequencies)
    assert not torch.equal(first.frequencies, other.frequencies)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "objective"),
    [
        ("mask-ig", "faithful"),
        ("attribution", "log-odds"),
        ("top-k", None),
        ("greedy", None),
        ("local-search", "median"),
        ("pgb-ct", None),
    ],
)
def test_shared_measurements_change_no_selection(model, monkeypatch, method, objective):
    metric = "kl" if objective == "faithful" else "probability-drop"
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), "head-outputs", metric)
    options = {"epochs": 3} if method == "pgb-ct" else {}
    call = partial(tracer.stability, method, budget=3, resamples=4, objective=objective, **options)
    shared = call()
    monkeypatch.setattr(
        ResampledEngine,
        "draw",
        lambda shared, numbers: shared.engine.with_pairs(shared.engine.pairs.subset(numbers)),
    )
    alone = call()
    assert torch.equal(shared.frequencies, alone.frequencies)
    assert shared.cost.forward_equivalents < alone.cost.forward_equivalents


@pytest.mark.slow
def test_rankings_by_gradients_take_no_pass_for_further_resamples(tracer):
    few, many = (tracer.stability("attribution", budget=3, resamples=n) for n in (2, 20))
    assert few.cost.backward == many.cost.backward == pytest.approx(1)
    # All that is measured for further ones is their sets.
    assert many.cost.forward - few.cost.forward < 2 * 20


def test_ctrl_c_keeps_the_resamples_so_far(tracer):
    stability = tracer.stability(Scripted((*SETS[:3], ()), []), budget=2, resamples=9)
    assert (stability.n_resamples, stability.members) == (3, (0,))
    with pytest.raises(KeyboardInterrupt):
        tracer.stability(Scripted((SETS[0], ()), []), budget=2)


def test_no_component_may_be_stable(tracer):
    stability = tracer.stability(Scripted(((0,), (1,)), []), budget=1, resamples=2)
    assert stability.members == ()
    assert "0 are in at least 90 % of the sets." in repr(stability)
    assert stability.effects.mean() == 0


def test_held_out_examples_are_measured(model):
    tracer = tk.Tracer(model, tiny.pairs(6, seed=3), "head-outputs", held_out=tiny.pairs(9, seed=5))
    stability = tracer.stability("attribution", budget=3, resamples=3)
    assert len(stability.effects) == 9
    assert "on held-out examples, n = 9" in repr(stability)


@pytest.mark.slow
def test_sets_of_edges_are_connected(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model)[:6]
    tracer = tk.Tracer(demo_model, pairs, "edges", "logit-difference")
    members, paths = tiny.members_of(tracer.run("attribution", budget=20)), tracer.engine.edge_paths
    edges = range(tracer.engine.n_components)
    idle = next(n for n in edges if n not in paths.edges_on_paths([*members, n]))
    search = Scripted(((*members, idle),) * 2, [])
    stability = tracer.stability(search, budget=21, resamples=2)
    assert stability.members == tuple(sorted(members))
    with pytest.raises(ConfigError, match="Layers of so many components have no cells"):
        stability.heatmap()


@pytest.mark.slow
def test_arrows_are_as_wide_as_edges_are_frequent(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model)[:6]
    tracer = tk.Tracer(demo_model, pairs, "edges", "logit-difference")
    members = tiny.members_of(tracer.run("attribution", budget=20))
    some = tiny.members_of(tracer.run("attribution", budget=10))
    search = Scripted((members, some, some, some), [])
    stability = tracer.stability(search, budget=20, resamples=4, threshold=0.75)
    figure = stability.circuit(n=30)
    shares = {}
    for trace in figure.data:
        values = re.findall(r"share of resamples ([\d.]+)", trace.text or "")
        if values and trace.mode == "lines":
            shares[trace.line.width] = max(map(float, values))
    assert len(shares) > 1
    widest = max(shares)
    for width, share in shares.items():
        assert width == pytest.approx(widest * share / shares[widest])
    name, widest_share, *_ = legend_of(figure)
    assert (name, widest_share) == ("share of resamples", "share of resamples 1")
    assert "strongest of" in figure.layout.title.subtitle.text
    with pytest.raises(ComponentError, match="only edges make a circuit"):
        tracer_of_heads(demo_model).stability("attribution", budget=3, resamples=2).circuit()


def tracer_of_heads(model):
    return tk.Tracer(model, tk.load_dataset("demo-facts", model)[:4], "head-outputs")


def test_a_heatmap_has_the_frequencies(tracer):
    stability = tracer.stability(Scripted(SETS, []), budget=2, resamples=4, threshold=0.5)
    cells_of_layers = [each.z for each in stability.heatmap().data if each.type == "heatmap"]
    values = [value for cells in cells_of_layers for row in cells for value in row]
    assert sorted(value for value in values if value)[-4:] == [0.25, 0.25, 0.5, 1]
    assert stability.heatmap().layout.title.subtitle.text.endswith("4 resamples")
    assert legend_of(stability.heatmap()) == ["in at least 50 %"]


def test_what_cannot_be_is_refused(tracer):
    for options, text in [
        ({"resamples": 1}, "resamples is 1"),
        ({"threshold": 0.0}, r"threshold is 0.0. Give a share in \(0, 1\]"),
        ({"threshold": 1.5}, "threshold is 1.5"),
    ]:
        with pytest.raises(ConfigError, match=text):
            tracer.stability("attribution", budget=3, **options)
    with pytest.raises(BudgetError):
        tracer.stability("attribution", budget=0)


def test_it_is_saved(tracer, tmp_path):
    stability = tracer.stability("attribution", budget=3, resamples=3)
    loaded = tk.results.Stability.load(stability.save(tmp_path / "stability.json"))
    assert repr(loaded) == repr(stability)
    assert torch.equal(loaded.frequencies, stability.frequencies)
