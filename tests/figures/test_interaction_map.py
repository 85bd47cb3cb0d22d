"""Maps of pairs against the interactions of their grid."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import ConfigError
from tracekit.results.significance import PValues


@pytest.mark.slow
def test_interaction_maps_are_centred_on_additive(tracer):
    grid = tracer.interactions(layers=[0])
    figure = grid.heatmap()
    trace = figure.data[0]
    assert trace.zmid == 0
    assert trace.zmin == -trace.zmax
    assert trace.z[0][0] is None
    assert trace.z[0][1] == pytest.approx(grid.interaction[0, 1].item())
    assert trace.text[0][1].startswith("L0H0 and L0H1<br>interaction: ")
    assert list(figure.layout.xaxis.ticktext) == list(grid.labels)


def test_interaction_maps_have_two_levels_of_labels_and_signs(model):
    grid = tk.Tracer(model, tiny.pairs(6)).interactions(layers=[0, 2])
    figure = grid.heatmap()
    assert list(figure.layout.xaxis.ticktext) == list("01230123")
    assert [note.text for note in figure.layout.annotations] == ["layer 0"] * 2 + ["layer 2"] * 2
    assert {(line.x0, line.y0) for line in figure.layout.shapes} == {(3.5, 0), (0, 3.5)}
    signs = figure.data[1]
    values = grid.interaction
    # All that is clearly below 0, so that it does not look like a test.
    least = -0.1 * figure.data[0].zmax
    below = {(i, j) for i in range(8) for j in range(8) if i != j and values[i, j] < least}
    assert 0 < len(below) < 56
    assert set(zip(signs.y, signs.x, strict=True)) == below
    assert {*signs.text} == {"\u2212"}
    _, says, *_ = figure.data[0].colorbar.title.text.split("<br>")
    named = says.removeprefix("\u2212: below ").replace("\u2212", "-")
    assert float(named) == pytest.approx(least, rel=0.05)


@pytest.mark.slow
def test_interaction_maps_are_clipped_if_asked(model):
    grid = tk.Tracer(model, tiny.pairs(6)).interactions(layers=[0, 2])
    upper = grid.interaction[tuple(torch.triu_indices(8, 8, 1))].abs()
    figure = grid.heatmap(clip=0.5)
    assert figure.data[0].zmax == pytest.approx(upper.quantile(0.5).item())
    assert figure.data[0].colorbar.ticktext[-1].startswith("\u25b2")
    assert grid.heatmap().data[0].zmax == pytest.approx(upper.max().item())
    assert grid.heatmap().data[0].colorbar.ticktext is None
    with pytest.raises(ConfigError, match="clip is 0. It is a quantile, above 0 and at most 1"):
        grid.heatmap(clip=0)


@pytest.mark.slow
def test_maps_of_both_directions_have_one_above_the_other(tracer):
    members = [tracer.registry[i] for i in (0, 1, 4, 6)]
    given = [tracer.registry[9]]
    grid = tracer.interactions(members, both_directions=True, given=given)
    p = torch.full((6,), 0.5)
    first, second = p.clone(), p.clone()
    first[1], second[4] = 0.01, 0.02
    tests = [PValues(row=each, q=each, family=each * 10) for each in (first, second)]
    grid = replace(grid, tests=tests[0], opposite=replace(grid.opposite, tests=tests[1]))
    by_family = grid.heatmap(mark="family").data
    assert not [trace for trace in by_family if trace.name == "dots" and len(trace.x)]
    with pytest.raises(ConfigError, match="mark is 'p'. Use one of q, family.$"):
        grid.heatmap(mark="p")
    with pytest.raises(ConfigError, match="mark is 'p'. Use one of q, family, None"):
        tracer.single_effects().heatmap(mark="p")
    with pytest.raises(ConfigError, match="^layers_on is 'z'. Use one of x, y.$"):
        tracer.single_effects().heatmap(layers_on="z")
    figure = grid.heatmap()
    cells, signs, dots, *_rings = figure.data
    kinds = grid.to_frame().set_index(["first", "second"])["kind"]
    for i, j in grid.index_pairs:
        assert cells.z[i][j] == pytest.approx(grid.interaction[i, j].item())
        assert cells.z[j][i] == pytest.approx(grid.opposite.interaction[i, j].item())
        kind = kinds[grid.labels[i], grid.labels[j]]
        assert cells.text[i][j].endswith(f"noising; {kind}")
        assert cells.text[j][i].endswith(f"denoising; {kind}")
    assert {(y > x) for x, y in zip(signs.x, signs.y, strict=True)} == {True, False}
    # The second pair above the diagonal, the fifth below it.
    (i, j), (k, m) = grid.index_pairs[1], grid.index_pairs[4]
    spots = {(round(y), round(x)) for x, y in zip(dots.x, dots.y, strict=True)}
    assert spots == {(i, j), (m, k)}
    assert figure.layout.title.subtitle.text.replace("<br>", " ") == (
        "l({i, j}) \u2212 l({i}) \u2212 l({j}), l: effect (odds ratio \u2212 1); "
        "above: noising; below: denoising; given L2H1; counterfactual patching, n = 6 searched"
    )
    low, high = grid.interaction_interval[1].tolist()
    assert f"({low:.3g} to {high:.3g}), q = 0.01" in cells.text[i][j]


def test_what_looks_white_has_no_sign(tracer):
    grid = tracer.interactions(layers=[0])
    pairs = grid.singles[:, None] + grid.singles[None, :]
    pairs[0, 1] = pairs[1, 0] = pairs[0, 1] - 1
    pairs[2, 3] = pairs[3, 2] = pairs[2, 3] - 1e-6
    pairs.diagonal().copy_(grid.singles)
    signs = replace(grid, pairs=pairs).heatmap().data[1]
    assert sorted(zip(signs.y, signs.x, strict=True)) == [(0, 1), (1, 0)]
