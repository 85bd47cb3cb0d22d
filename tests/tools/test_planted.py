"""Planted models do what they are built to do, and the anatomy says exactly that."""

from __future__ import annotations

import warnings
from itertools import combinations

import pytest
import torch

import tracekit as tk
from tools.planted import PlantedName, planted_model
from tracekit.errors import ConfigError
from tracekit.results.significance import (
    sign_flip_p_values,
    zero_below_rounding,
)

NAMES = PlantedName.__args__
MODELS = [
    *((name, "head-outputs") for name in NAMES),
    *((name, "mlp-neurons") for name in NAMES if name != "backup"),
]
CASES = [
    pytest.param(name, kind, marks=() if kind == "head-outputs" else pytest.mark.slow)
    for name, kind in MODELS
]
BEHAVIOURS = {
    "and": lambda a, b, c: a and b,
    "or": lambda a, b, c: a or b,
    "xor": lambda a, b, c: a == b,
    "majority": lambda a, b, c: a + b + c >= 2,
    "inhibition": lambda a, b, c: a * (0.5 if b else 1.0),
    "sum": lambda a, b, c: 0.5 * a + 0.25 * b,
}
WEIGHTS = (0.1, 0.08, 0.06, 0.04)


@pytest.fixture(scope="module")
def built():
    """Each model, with its tracer, built once."""
    made = {}

    def build(name, kind="head-outputs"):
        if (name, kind) not in made:
            planted = planted_model(name, kind)
            made[name, kind] = planted, planted.tracer()
        return made[name, kind]

    return build


def log_odds(name, clean, direction):
    """By the formula of the documentation, from which heads hold clean values."""
    a, b, c = (head in clean for head in range(3))
    if name == "backup":
        backup_is_clean = "backup" in clean
        # It reads the second signal, while the first head is patched; its own clean value is 0.
        awake_and_reads = not a and direction == "noising"
        behaviour = 1.0 if a else float(awake_and_reads and backup_is_clean)
    else:
        behaviour = float(BEHAVIOURS[name](a, b, c))
    return behaviour + sum(w for rank, w in enumerate(WEIGHTS) if 3 + rank in clean) - 0.5


@pytest.mark.parametrize("direction", ["noising", "denoising"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_pair_does_what_the_formula_says(built, name, kind, direction):
    tracer = built(name, kind)[1]
    players = [*range(7), "backup"] if name == "backup" else list(range(7))
    component_of = {p: tk.Component(kind, 0, p) for p in range(7)}
    component_of["backup"] = tk.Component(kind, 1, 0)
    everything = frozenset(players)
    start = everything if direction == "noising" else frozenset()
    sets = [s for size in (1, 2, 3) for s in combinations(players, size)]
    engine = (
        tracer.engine if direction == tracer.direction else tracer.question.opposite.search_engine
    )
    flat = [
        tuple(sorted(tracer.registry.index(component_of[p]) for p in members)) for members in sets
    ]
    sign = 1 if direction == "noising" else -1
    base = log_odds(name, start, direction)
    expected = [sign * (base - log_odds(name, start ^ frozenset(s), direction)) for s in sets]
    effects = engine.set_effects(flat)
    scales = torch.linspace(0.8, 1.2, 16)
    wanted = torch.tensor(expected)[:, None] * scales
    torch.testing.assert_close(effects, wanted, atol=1e-4, rtol=1e-4)


VERDICTS = {
    "and": ["can be left out", "overlaps"],
    "or": ["with others", "with others"],
    "xor": ["can be left out", "overlaps"],
    "majority": ["can be left out", "with some", "with some"],
    "inhibition": ["can be left out", "with others"],
    "backup": ["with others", "with others"],
    "sum": ["by itself", "by itself"],
}
INTERACTIONS = {  # alone, averaged, within
    "and": (-1, -1, -1),
    "or": (1, 1, 1),
    "xor": (-2, -2, -2),
    "majority": (1, 0, -1),
    "inhibition": (0.5, 0.5, 0.5),
    "backup": (1, 1, 1),
    "sum": (0, 0, 0),
}
KINDS = {
    "and": "and",
    "or": "or",
    "xor": "xor",
    "majority": "mixed",
    "inhibition": "inhibition",
    "backup": "one-sided",
    "sum": "none",
}


@pytest.mark.pairwise
@pytest.mark.parametrize(("name", "kind"), MODELS)
def test_explain_says_what_was_planted(built, name, kind):
    planted, tracer = built(name, kind)
    decoy = planted.decoys[0]
    why = tracer.explain([*planted.components, decoy])
    names = set(map(str, planted.components))
    verdicts = why.table.set_index("component")["verdict"]
    assert sorted(verdicts[label] for label in names) == VERDICTS[name]
    if name != "xor":
        # Without one of the two of an XOR, the decoy may go as well.
        assert verdicts[str(decoy)] == "by itself"
    for row in why.interactions.to_dict("records"):
        is_planted = {row["first"], row["second"]} <= names
        values = [row[context] for context in ("alone", "averaged", "within")]
        expected = INTERACTIONS[name] if is_planted else (0, 0, 0)
        assert values == pytest.approx(expected, abs=1e-4)
        assert row["significant"] == (abs(expected[1]) > 0)
    assert why.backups.empty or not why.backups["significant"].any()
    value = why.table.set_index("component")["value"]
    assert value[str(decoy)] == pytest.approx(0.1, abs=1e-4)
    if name == "inhibition":
        second = str(planted.components[1])
        assert value[second] == pytest.approx(-0.25, abs=1e-4)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_both_directions_tell_the_kinds_apart(built, name, kind):
    planted, tracer = built(name, kind)
    members = [*planted.components, *planted.decoys[:2]]
    frame = tracer.interactions(members, both_directions=True).to_frame()
    names = set(map(str, planted.components))
    for row in frame.to_dict("records"):
        is_planted = {row["first"], row["second"]} <= names
        assert row["kind"] == (KINDS[name] if is_planted else "none")


def test_the_backup_of_a_head_is_named(built):
    planted, tracer = built("backup")
    primary, backup = planted.components
    why = tracer.explain([primary, planted.decoys[0]])
    assert why.backups[["component", "backup"]].to_numpy().tolist() == [[str(primary), str(backup)]]
    assert why.backups["rise"].item() == pytest.approx(1, abs=1e-4)
    assert why.backups["p"].isna().all()
    where = "interval above 0, on the examples that proposed them"
    assert f"is patched ({where}): {backup} +1 once {primary} is." in str(why)


def test_the_backup_of_a_head_is_significant_on_held_out_examples():
    planted = planted_model("backup", n_examples=32)
    own, held_out = planted.pairs.split(0.5)
    tracer = tk.Tracer(planted.model, own, "head-outputs", "logit-difference", held_out=held_out)
    primary, backup = planted.components
    why = tracer.explain([primary, planted.decoys[0]])
    significant = why.backups[why.backups["significant"]]
    assert significant[["component", "backup"]].to_numpy().tolist() == [[str(primary), str(backup)]]
    assert significant["p"].item() < 0.01
    assert f"is patched (q < .05): {backup} +0.981 once {primary} is." in str(why)


# Name, largest effect of the two best single effects, and of any two.
PAIRS = [
    ("or", 0.18, 1.0),
    ("majority", 0.18, 1.0),
    ("backup", 0.18, 1.0),
    # The second best of the single effects undoes the best, or adds nothing to it.
    ("xor", 0.0, 1.1),
    ("and", 1.0, 1.1),
    ("sum", 0.75, 0.75),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "top_k", "best", "kind"),
    [
        pytest.param(
            *case,
            kind,
            marks=()
            if kind == "head-outputs" and case[0] in ("or", "backup", "xor")
            else pytest.mark.slow,
        )
        for case in PAIRS
        for kind in ("head-outputs", "mlp-neurons")
        if (case[0], kind) in MODELS
    ],
)
def test_joint_search_finds_what_single_effects_miss(built, name, top_k, best, kind):
    planted, tracer = built(name, kind)
    size = 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert tracer.run("top-k", budget=size).effect == pytest.approx(top_k, abs=1e-4)
        front = tracer.pareto(max_budget=2, statistics=False)
    result = front.at(size)
    assert result.effect == pytest.approx(best, abs=1e-4)
    if name in ("or", "backup"):
        assert result.components == list(planted.components)
    if name == "majority":
        assert set(result.components) <= set(planted.components)


def test_bad_input(unchecked):
    for arguments, text in (
        (("nor",), "'nor' of 'head-outputs'.*and, or, xor"),
        (("or", "heads"), "'heads'.*and, or, xor, majority, inhibition, backup, sum; "),
        (("backup", "mlp-neurons"), "backup is a head.*Leave the kind out, or use "),
    ):
        with pytest.raises(ConfigError, match=text):
            planted_model(*arguments)
    with pytest.raises(ConfigError, match="n_examples is 1. Give a whole number, at least 2."):
        planted_model("or", n_examples=1)


def test_they_take_more_examples_and_options():
    planted = planted_model("or", n_examples=40)
    tracer = planted.tracer(metric="probability-drop", direction="denoising", layers=[0])
    assert len(tracer.pairs) == 40
    assert tracer.direction == "denoising"
    assert repr(planted) == "PlantedModel(or: L0H0, L0H1; either is enough)"


def test_rounding_is_not_significant():
    """Differences of 1e-7 with the same sign on all examples, of effects of 1."""
    effects = torch.ones(2, 16)
    tiny = torch.full((2, 16), 2e-7)
    assert (sign_flip_p_values(tiny)[1] < 0.001).all()
    assert (sign_flip_p_values(zero_below_rounding(tiny, effects))[1] == 1).all()
    # They are kept where effects are as small themselves, unless another row's are large.
    assert torch.equal(zero_below_rounding(tiny, 1e-6 * effects), tiny)
    mixed = torch.stack([torch.full((16,), 1e-6), torch.ones(16)])
    assert (zero_below_rounding(tiny, mixed) == 0).all()
    large = torch.full((2, 16), 0.01)
    assert torch.equal(zero_below_rounding(large, effects), large)
