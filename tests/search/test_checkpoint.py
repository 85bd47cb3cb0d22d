"""Checkpoints of a local search."""

from __future__ import annotations

import shutil
from itertools import count

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

import tracekit as tk
from tests import tiny
from tracekit._util.files import tensors_digest
from tracekit.errors import (
    ConfigError,
    RecordWarning,
    ResultFormatError,
    SearchStoppedWarning,
)
from tracekit.search import checkpoint


def interrupted_after(calls, monkeypatch):
    """Ctrl-C, once, in the middle of a measurement."""
    number = count()

    def counted(name):
        original = getattr(tk.search.Target, name)

        def call(*given, **options):
            if next(number) == calls:
                raise KeyboardInterrupt
            return original(*given, **options)

        return call

    for name in ("set_effects", "predict_changes"):
        monkeypatch.setattr(tk.search.Target, name, counted(name))


@pytest.mark.slow
@pytest.mark.parametrize("components", ["attention-patterns", "mlp-outputs"])
def test_a_checkpoint_goes_on_where_the_search_stopped(model, monkeypatch, tmp_path, components):
    def fresh():
        return tk.Tracer(model, tiny.pairs(6, seed=3), components=components)

    options = {"max_budget": 10, "statistics": False, "max_passes": 90}
    whole = fresh().pareto(**options)
    file = tmp_path / "front.ckpt"
    first = fresh()
    interrupted_after(12, monkeypatch)
    with pytest.warns(SearchStoppedWarning):
        part = first.pareto(checkpoint=file, **options)
    monkeypatch.undo()
    second = fresh()
    full = second.full_effect
    before = second.engine.cost
    resumed = second.pareto(checkpoint=file, **options)
    assert full == second.full_effect
    assert resumed.to_frame().equals(whole.to_frame())
    assert resumed[0].cost == whole[0].cost
    # Of every set its complement is measured too, and its first choices.
    done = (second.engine.cost - before).forward_equivalents - 2 * len(resumed)
    assert 0 < done <= whole[0].cost.forward_equivalents - 10
    # Sets of results are measured again.
    again = part[0].cost.forward_equivalents + done - whole[0].cost.forward_equivalents
    assert 0 <= again <= len(resumed)
    third = fresh()
    assert third.pareto(checkpoint=file, **options).to_frame().equals(whole.to_frame())
    assert third.engine.cost.forward_equivalents <= 1 + 3 * len(whole)


def test_a_search_goes_on_with_more_passes(model, tmp_path):
    file = tmp_path / "front.ckpt"
    options = {"max_budget": 4, "statistics": False, "checkpoint": file, "objective": "mean"}
    tracer = tk.Tracer(model, tiny.pairs(6, seed=3))
    few = tracer.pareto(max_passes=40, **options)
    more = tracer.pareto(max_passes=170, **options)
    assert 40 < more[0].cost.forward_equivalents <= 170
    for size in few.sizes:
        assert more.at(size).effect >= few.at(size).effect


@pytest.mark.slow
def test_checkpoints_of_other_searches_are_refused(model, tmp_path):
    file = tmp_path / "front.ckpt"
    data = tiny.pairs(6, seed=3)
    tk.Tracer(model, data).pareto(statistics=False, max_passes=40, checkpoint=file)
    text = r"front\.ckpt is of another search, model or data set.*another file, or delete it"
    other_model = tk.load_model(tiny.hf_model("gpt2", seed=9))
    for tracer, options in (
        (tk.Tracer(model, tiny.pairs(6, seed=4)), {}),
        (tk.Tracer(model, data, metric="probability-drop"), {}),
        (tk.Tracer(model, data), {"max_budget": 5}),
        (tk.Tracer(other_model, data), {}),
    ):
        with pytest.raises(ResultFormatError, match=text):
            tracer.pareto(statistics=False, max_passes=40, checkpoint=file, **options)
    file.write_bytes(b"cut short")
    with pytest.raises(ResultFormatError, match="cannot be read. Delete it to start afresh"):
        tk.Tracer(model, data).pareto(statistics=False, max_passes=40, checkpoint=file)
    with pytest.raises(ResultFormatError, match="cannot be written. Name a file in a folder of"):
        tk.Tracer(model, data).pareto(checkpoint=tmp_path)


def test_a_metric_of_the_same_name_does_not_pass_for_another(model, tmp_path):
    def tracer(sign):
        metric = tk.Metric("mine", lambda clean, after: sign * (clean.x - after.x))
        return tk.Tracer(model, tiny.pairs(6, seed=3), metric=metric)

    options = {"statistics": False, "max_passes": 40, "checkpoint": tmp_path / "kept"}
    tracer(1).pareto(**options)
    with pytest.raises(ResultFormatError):
        tracer(2).pareto(**options)


@pytest.mark.slow
def test_a_checkpoint_with_a_flipped_bit_is_refused(model, tmp_path):
    file, data = tmp_path / "front.ckpt", tiny.pairs(6, seed=3)
    options = {"statistics": False, "max_passes": 40, "checkpoint": file}
    tk.Tracer(model, data).pareto(**options)
    content = file.read_bytes()
    generator = torch.Generator().manual_seed(0)
    for place in torch.randint(len(content), (12,), generator=generator).tolist():
        file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(ResultFormatError, match="cannot be read|is of another search"):
            tk.Tracer(model, data).pareto(**options)
    file.write_bytes(content)
    tk.Tracer(model, data).pareto(**options)


def forged(file, change):
    """A checkpoint with other tensors, whose digest fits."""
    with safe_open(file, framework="pt") as opened:
        metadata, tensors = (
            opened.metadata(),
            {
                name: opened.get_tensor(name)
                for name in opened.keys()  # noqa: SIM118
            },
        )
    change(tensors)
    metadata["sha256"] = tensors_digest(tensors)
    file.write_bytes(save(tensors, metadata=metadata))


def test_effects_that_a_checkpoint_makes_up_are_found_out(model, tmp_path):
    file, data = tmp_path / "front.ckpt", tiny.pairs(6, seed=3)
    options = {"statistics": False, "max_passes": 40, "checkpoint": file}
    tk.Tracer(model, data).pareto(**options)
    forged(file, lambda tensors: tensors["effects"].mul_(3))
    with pytest.raises(ResultFormatError, match="holds other effects than the model has. Delete"):
        tk.Tracer(model, data).pareto(**options)


FORGED = {
    "no effects": lambda tensors: tensors.pop("effects"),
    "no proof": lambda tensors: tensors.pop("proof"),
    "fewer effects": lambda tensors: tensors.update(effects=tensors["effects"][:-1]),
    "other examples": lambda tensors: tensors.update(effects=tensors["effects"][:, :-1].clone()),
    "other types": lambda tensors: tensors.update(effects=tensors["effects"].double()),
    "fewer sets": lambda tensors: tensors.update(measured=tensors["measured"][:-1]),
    "members": lambda tensors: tensors.update(measured=tensors["measured"].float()),
    "fewer components": lambda tensors: tensors.update(measured=tensors["measured"][:, 1:].clone()),
    "gradients": lambda tensors: tensors.update(gradients=tensors["gradients"][:, :3].clone()),
    "shares": lambda tensors: tensors.update(soft_shares=torch.zeros(3, 3)),
    "prices": lambda tensors: tensors.update(prices=torch.zeros(1)),
    "proof": lambda tensors: tensors.update(proof=torch.zeros(7)),
}


@pytest.fixture(scope="module")
def written(model, tmp_path_factory):
    """A checkpoint, and how to go on with it."""
    file = tmp_path_factory.mktemp("checkpoint") / "front.ckpt"
    options = {"statistics": False, "max_passes": 40}
    tk.Tracer(model, tiny.pairs(6, seed=3)).pareto(checkpoint=file, **options)
    return file, options


@pytest.mark.parametrize("change", FORGED)
def test_a_checkpoint_of_another_form_is_refused(model, written, tmp_path, change):
    original, options = written
    file = tmp_path / "front.ckpt"
    shutil.copy(original, file)
    forged(file, FORGED[change])
    with pytest.raises(ResultFormatError, match="cannot be read. Delete it to start afresh"):
        tk.Tracer(model, tiny.pairs(6, seed=3)).pareto(checkpoint=file, **options)


def test_a_full_disk_costs_the_checkpoint_and_not_the_search(model, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    data = tiny.pairs(6, seed=3)
    options = {"statistics": False, "max_passes": 40}
    whole = tk.Tracer(model, data).pareto(**options)
    monkeypatch.setattr(checkpoint, "write_atomically", full)
    with pytest.warns(RecordWarning, match=r"cannot be written \(No space left on device\)"):
        front = tk.Tracer(model, data).pareto(checkpoint=tmp_path / "kept", **options)
    assert front.to_frame().equals(whole.to_frame())
    assert not list(tmp_path.iterdir())


TRAINING = {"epochs": 12, "batch_size": 4, "steps": 2, "budgets": [2, 5]}


class TestLearnedRankings:
    """Checkpoints of a training."""

    @staticmethod
    def tracer(model, seed=3):
        return tk.Tracer(model, tiny.pairs(12, seed=seed), "head-outputs", "kl")

    @staticmethod
    def new_pairs():
        return (tiny.pairs(12, seed=seed) for seed in count(50))

    @pytest.mark.parametrize("has_new_pairs", [False, True])
    def test_training_goes_on_where_it_stopped(self, model, monkeypatch, tmp_path, has_new_pairs):
        def run(**options):
            tracer = self.tracer(model)
            pairs = self.new_pairs() if has_new_pairs else None
            curve = tracer.run("learned-ranking", training_pairs=pairs, **TRAINING, **options)
            return curve, tracer.engine.cost

        (whole, _), file = run(), tmp_path / "training"
        calls, gradient = count(), tk.search.LearnedRanking._gradient

        def interrupted(self, *args):
            if next(calls) == 25:
                raise KeyboardInterrupt
            return gradient(self, *args)

        monkeypatch.setattr(tk.search.LearnedRanking, "_gradient", interrupted)
        part, _ = run(checkpoint=file)
        assert [each.run.stopped for each in part] == ["interrupted"] * 2
        monkeypatch.undo()
        resumed, cost = run(checkpoint=file)
        for one, other in zip(resumed, whole, strict=True):
            assert one.run.stopped is None
            assert one.labels == other.labels
            assert torch.equal(one.soft_mask, other.soft_mask)
            assert one.run.training == other.run.training
            # Pairs that were drawn are drawn again, and prepared in two passes.
            again = 2 * 6 if has_new_pairs else 0
            passes = other.cost.forward_equivalents + again
            assert one.cost.forward_equivalents == pytest.approx(passes)
        assert cost.forward_equivalents < 0.8 * resumed[0].cost.forward_equivalents
        finished, cost = run(checkpoint=file)
        assert [each.labels for each in finished] == [each.labels for each in whole]
        assert cost.forward_equivalents < 0.4 * finished[0].cost.forward_equivalents

    def test_training_goes_on_with_the_same_pairs_only(self, model, monkeypatch, tmp_path):
        options = {**TRAINING, "checkpoint": tmp_path / "training"}
        tracer = self.tracer(model)
        tracer.run("learned-ranking", training_pairs=self.new_pairs(), **options)
        others = {"training_pairs": (tiny.pairs(12, seed=seed) for seed in count(500))}
        with pytest.raises(ResultFormatError, match="is of a training on other pairs. Give the sa"):
            tracer.run("learned-ranking", **options, **others)
        held_out = tk.Tracer(
            model, tracer.pairs, "head-outputs", "kl", held_out=tiny.pairs(12, seed=50)
        )
        with pytest.raises(ResultFormatError, match="is of a training on other pairs. Give the sa"):
            held_out.run("learned-ranking", training_pairs=self.new_pairs(), **options)

    def test_it_keeps_no_constraint(self, model, tmp_path):
        options = {**TRAINING, "checkpoint": tmp_path / "training"}
        constraint = tk.Constraint(pairs=tiny.pairs(8, seed=9), at_most=9.0)
        with pytest.raises(ConfigError, match="does not hold a constraint. Give one of both"):
            self.tracer(model).run("learned-ranking", constraint=constraint, **options)

    def test_checkpoints_of_other_trainings_are_refused(self, model, tmp_path):
        options = {**TRAINING, "checkpoint": tmp_path / "training"}
        self.tracer(model).run("learned-ranking", **options)
        for tracer, other in (
            (self.tracer(model), {"seed": 1}),
            (self.tracer(model), {"temperature": 1.0}),
            (self.tracer(model), {"budgets": [2, 6]}),
            (self.tracer(model), {"training_pairs": self.new_pairs()}),
            (self.tracer(model, seed=4), {}),
        ):
            with pytest.raises(ResultFormatError, match="is of another search, model or data set"):
                tracer.run("learned-ranking", **{**options, **other})
