"""A set beside random sets, against effects that are measured one by one."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.masks import complement_of
from tracekit.engine.cost import Cost
from tracekit.errors import ComponentError, ConfigError
from tracekit.measure.controls import Controls, control_sets
from tracekit.results.faithfulness import Faithfulness

DRAWS = 12


@pytest.fixture(scope="module")
def tracer(model):
    pairs = tiny.pairs(12)
    return tk.Tracer(
        model, pairs[:6], "head-outputs+mlp-blocks", "logit-difference", held_out=pairs[6:]
    )


@pytest.fixture(scope="module")
def members(tracer):
    return [tracer.registry.label(i) for i in (0, 5, len(tracer.registry) - 1)]


@pytest.fixture(scope="module")
def controls(tracer, members):
    return tracer.controls(members, draws=DRAWS, seed=3)


@pytest.mark.parametrize("like", ["layers", "kinds", "size"])
def test_every_number_is_measured(tracer, members, like):
    controls = tracer.controls(members, draws=DRAWS, like=like, seed=3)
    engine, registry = tracer.question.held_out_engine, tracer.registry
    full, n = engine.full_effects.mean(), len(registry)

    def measured(chosen):
        alone = engine.set_effects([chosen])[0].mean()
        rest = engine.set_effects([complement_of(chosen, n)])[0].mean()
        return torch.stack([alone, 1 - rest / full, 1 - alone / full])

    chosen = (0, 5, n - 1)
    own, table = measured(chosen), controls.table.set_index("quantity")
    sets = control_sets(registry, chosen, DRAWS, torch.Generator().manual_seed(3), like)
    expected = torch.stack([measured(each) for each in sets], 1)
    torch.testing.assert_close(controls.random, expected, atol=1e-5, rtol=1e-3)
    for name, value, row in zip(
        ("effect", "faithfulness", "completeness"), own, expected, strict=True
    ):
        shown = table.loc[name]
        assert shown["value"] == pytest.approx(value.item(), abs=1e-5)
        assert shown["control"] == pytest.approx(row.mean().item(), abs=1e-5)
        assert shown["control_high"] == pytest.approx(row.max().item(), abs=1e-5)
        above, below = 1 + int((row >= value).sum()), 1 + int((row <= value).sum())
        hits = {"faithfulness": above, "completeness": below}.get(name, 2 * min(above, below))
        assert shown["p"] == pytest.approx(min(1, hits / (1 + len(sets))))
        assert shown["draws"] == len(sets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mean", "full", "direction"),
    [(0.0, 5.0, "noising"), (-1.0, 0.1, "noising"), (4.0, -0.1, "denoising")],
)
def test_p_of_a_set_that_is_one_more_random_set_is_uniform(mean, full, direction):
    """Of exchangeable sets a share of at most a has p <= a, wherever their effects lie."""
    n_tables, draws, generator = 700, 39, torch.Generator().manual_seed(0)
    values = mean + torch.randn(2, n_tables, draws + 1, generator=generator)
    p = {"effect": [], "faithfulness": [], "completeness": []}
    for effects, others in values.unbind(1):
        own = Faithfulness.of(
            effects[:1, None].expand(1, 2),
            others[:1, None].expand(1, 2),
            torch.full((2,), full),
            sizes=[3],
            n_components=12,
            metric="logit-difference",
            direction=direction,
        )
        sides = (others, effects) if direction == "noising" else (full - effects, full - others)
        shares = [1 - side[1:] / full for side in sides]
        table = Controls(
            labels=("a",),
            searched=own,
            random=torch.stack([effects[1:], *shares]),
            like="size",
            is_tested=True,
            examples="",
            metric="logit-difference",
            cost=Cost(),
        ).table
        for name, value in zip(table["quantity"], table["p"], strict=True):
            p[name].append(value)
    for name, each in p.items():
        for level in (0.05, 0.1, 0.2, 0.5):
            share = (torch.tensor(each) <= level + 1e-6).float().mean().item()
            error = (level * (1 - level) / n_tables) ** 0.5
            assert level - 4 * error < share < level + 3.5 * error, (name, level)


def test_random_sets_have_the_form_of_the_set(tracer):
    registry, chosen = tracer.registry, (0, 5, 11)

    def layers(members):
        return sorted((registry[i].layer, registry[i].kind) for i in members)

    def kinds(members):
        return sorted(registry[i].kind for i in members)

    for like, form in (("layers", layers), ("kinds", kinds), ("size", len)):
        drawn = control_sets(registry, chosen, 20, torch.Generator().manual_seed(1), like)
        assert {str(form(each)) for each in drawn} == {str(form(chosen))}
        assert chosen not in drawn
        assert len(set(drawn)) == len(drawn)


def test_the_text_says_that_all_sets_of_the_form_were_drawn(tracer):
    label = tracer.registry.label(0)
    everything = tracer.controls([label], draws=1000)
    site = tracer.registry.sites[0]
    n = site.stop - site.start - 1
    text = str(everything)
    assert f"Random sets: {n}, all that were found (like= has other forms), with as many" in text
    assert everything.are_all
    assert not tracer.controls([label], draws=n - 1).are_all


def test_the_text_says_examples_brackets_and_p(controls):
    first, *quantities, form, last = str(controls).splitlines()
    how = "3 components by logit-difference, counterfactual patching"
    assert first.startswith(f"{how}, held-out examples, n = ")
    form_in_words = "with as many components of every kind in every layer."
    assert form == f"Random sets: {DRAWS} (draws=) {form_in_words}"
    assert [line.split(":")[0] for line in quantities] == controls.table["quantity"].tolist()
    assert all("(95 % interval " in line and ", p = " in line for line in quantities)
    least, of_effect = 1 / (DRAWS + 1), 2 / (DRAWS + 1)
    assert last.endswith(f"random sets is {least:.2g}, for the effect {of_effect:.2g}.")
    latex = controls.to_latex()
    assert "toprule" in latex
    assert "held-out examples" in latex


def test_a_set_that_was_searched_on_these_examples_has_no_p(model):
    tracer = tk.Tracer(model, tiny.pairs(6), metric="logit-difference")
    controls = tracer.controls(tracer.run("top-k", budget=2), draws=5)
    assert controls.table["p"].isna().all()
    assert "searched examples" in str(controls)
    assert "p = " not in str(controls)
    assert tracer.controls(["L0H0"], draws=5).table["p"].notna().all()


def test_examples_of_groups_are_counted_beside_the_independent_ones(model):
    pairs = tiny.pairs(6).grouped([0, 0, 1, 2, 3, 4])
    tracer = tk.Tracer(model, pairs, metric="logit-difference")
    n = "n = 6 (5 independent)"
    assert n in str(tracer.controls(["L0H0"], draws=5))
    assert tracer.strongest_pairs(2).examples == f"the examples that proposed them, {n}"


def test_bad_input(tracer, members):
    for draws in (0, -1):
        with pytest.raises(ConfigError, match=r"draws is .*Give a whole number, at least 1"):
            tracer.controls(members, draws=draws)
    with pytest.raises(ConfigError, match="like is 'paths'. Give one of .*; paths are of edges"):
        tracer.controls(members, like="paths")
    labels = [tracer.registry.label(index) for index in range(len(tracer.registry))]
    with pytest.raises(
        ComponentError, match="No other set exists with as many components of every kind "
    ):
        tracer.controls([label for label in labels if "L0" in label])
    for chosen in ([], "all"):
        with pytest.raises(ComponentError, match="cannot be compared with random sets"):
            tracer.controls(chosen)
