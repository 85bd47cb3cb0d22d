"""Counterfactuals: the two that are there, and a third that needs one class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.masks import from_indices
from tracekit.data.counterfactuals import (
    COUNTERFACTUALS,
    Counterfactual,
    NoiseCounterfactual,
    PromptCounterfactual,
    counterfactual_from_row,
)
from tracekit.errors import PairsError
from tracekit.models.hooked import recording_hooks


@dataclass(frozen=True, eq=False)
class ScaledCounterfactual(Counterfactual):
    """The prompt itself, with every activation multiplied by a factor; 0 is zero ablation."""

    row_key: ClassVar[str] = "factor"
    factor: float

    @property
    def n_tokens(self) -> None:
        return None

    def reads(self, prompt_ids):
        return prompt_ids

    def differs_from(self, prompt_ids) -> bool:
        return self.factor != 1

    def content(self) -> bytes:
        return repr(self.factor).encode()

    def values_from(self, activation: torch.Tensor) -> torch.Tensor:
        return self.factor * activation

    @classmethod
    def from_row(cls, value: Any, example: int) -> ScaledCounterfactual:
        return cls(float(value))


def scaled_pairs(factor: float) -> tk.PromptPairs:
    pairs = tiny.pairs(5, seed=6)
    return replace(
        pairs,
        pairs=tuple(replace(p, counterfactual=ScaledCounterfactual(factor)) for p in pairs),
    )


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", ["head-outputs", "mlp-outputs", "mlp-neurons", "mlp-blocks"])
@pytest.mark.parametrize("factor", [0.0, -0.5])
def test_a_third_counterfactual_needs_one_class_only(any_model, kind, factor):
    """Layout, cache, checks and searches ask the object: equal to hooks that scale."""
    pairs = scaled_pairs(factor)
    tracer = tk.Tracer(any_model, pairs, kind)
    members = (0, len(tracer.registry) - 1)
    effects = tracer.engine.effects(from_indices(members, len(tracer.registry)))

    def scaling_hook(component, pair):
        """Puts in the activation of the plain run, scaled, at every prompt position."""
        kind = tk.components.KINDS[component.kind]
        hooks, recorded = recording_hooks([f"blocks.{component.layer}.{kind.hook}"])
        any_model.run_with_hooks(torch.tensor([pair.prompt_ids]), fwd_hooks=hooks)
        (name,) = recorded

        def scale(activation, hook=None):
            activation = activation.clone()
            index = [slice(None)] * activation.ndim
            index[kind.position_dim] = slice(0, len(pair.prompt_ids))
            if kind.component_dim is not None:
                index[kind.component_dim] = component.index
            own = [slice(None)] * activation.ndim
            if kind.component_dim is not None:
                own[kind.component_dim] = component.index
            activation[tuple(index)] = factor * recorded[name][0][tuple(own)]
            return activation

        return name, scale

    def log_prob(pair, ids, hooks):
        """Geometric mean over the tokens of a continuation, one sequence at a time."""
        tokens = torch.tensor([[*pair.prompt_ids, *ids[:-1]]])
        with torch.no_grad():
            logits = any_model.run_with_hooks(tokens, fwd_hooks=hooks)[0]
        rows = logits[len(pair.prompt_ids) - 1 :].log_softmax(-1)
        return rows.gather(1, torch.tensor(ids)[:, None]).mean()

    for pair, effect in zip(pairs, effects, strict=True):
        hooks = [scaling_hook(tracer.registry[i], pair) for i in members]
        odds = [log_prob(pair, pair.y_ids, h) - log_prob(pair, pair.x_ids, h) for h in ([], hooks)]
        torch.testing.assert_close(effect, torch.expm1(odds[1] - odds[0]), rtol=1e-3, atol=1e-5)
    assert tracer.run("top-k", budget=2).n_selected == 2


def test_a_third_counterfactual_is_read_from_rows(monkeypatch):
    monkeypatch.setattr(
        "tracekit.data.counterfactuals.COUNTERFACTUALS",
        (*COUNTERFACTUALS, ScaledCounterfactual),
    )
    row = {"prompt_ids": [1, 2], "x_ids": [3], "factor": 0.0}
    pairs = tk.PromptPairs.from_ids([row])
    assert pairs[0].counterfactual.factor == 0
    assert pairs.fingerprint != tk.PromptPairs.from_ids([{**row, "factor": 2}]).fingerprint
    with pytest.raises(PairsError, match="Give it one of counterfactual_ids, noise, fac"):
        counterfactual_from_row({"factor": 0.0, "counterfactual_ids": [1, 2]}, 0)


def test_equal_prompts_share_a_run_and_noise_never_does():
    prompts = [PromptCounterfactual((1, 2)) for _ in range(2)]
    noises = [NoiseCounterfactual(torch.ones(2, 3)) for _ in range(2)]
    assert prompts[0].sharing_key == prompts[1].sharing_key
    assert noises[0].sharing_key != noises[1].sharing_key
    assert not prompts[0].differs_from((1, 2))
    assert prompts[0].differs_from((1, 3))
    assert noises[0].differs_from((1, 2))
