"""Shrinkage: single effects, estimated with what all components together say of them.

The mean effect of a component over a few dozen examples is uncertain, and the largest of many
means are large by chance, too. How far a component moves the examples is known far better than
whether it moves them all the same way. With u_ij the change that component i makes on example j,
of the quantity that is about linear in the mask (such as log-odds), over n examples:

    r_i = sqrt(mean_j u_ij^2)    how far the component moves the examples
    z_i = mean_j u_ij / r_i      how much they agree on the direction, in [-1, 1]

The variance of z_i by the choice of examples is about (1 - z_i^2) / (n - 1). If the ratios of all
components differ by no more than that, they tell nothing of single components, and each is shrunken
to their mean. If they differ by more, as in a model in which a few components always push one way,
each stays near its own value (empirical Bayes, as the estimator of James and Stein; Efron and
Morris, 1975, doi:10.1080/01621459.1975.10479864). The shrunken effect of a component is the mean
effect of its changes, all of them moved by the same amount to the shrunken mean.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.clusters import by_cluster
from tracekit.components.masks import Mask
from tracekit.engine.engine import Engine
from tracekit.engine.example_curves import ExampleCurves
from tracekit.search.targets import Target

_FEWEST = 3
"""Components from which on they tell something of each other."""
_TOGETHER = 1024
"""Components whose effects are computed together; bounds memory."""
_WIDEST = 30.0
"""How far the quantity may be taken to move, in nats."""


def shrunken_effects(engine: Target, effects: Float[Tensor, "component example"]) -> Mask:
    """Mean effects of single components, shrunken to what all have in common.

    They are the mean effects where the effect on an example depends on the other examples: with a
    constraint, and with objectives other than `mean` and `log-odds`.
    """
    if not isinstance(engine, Engine):
        return effects.mean(1)
    data = engine.data
    curves = ExampleCurves.of(data.metric, data.clean, data.pairs.weights)
    weights = _weights(engine)
    clusters = engine.pairs.clusters
    if curves is None:
        return shrunken_means(effects / weights, weights, clusters).float()
    start = curves.linearization.to_linear(curves.clean).double()
    parts = effects.split(_TOGETHER)
    changes = torch.cat([curves.quantity(part.double().T).T - start for part in parts])
    return _effects_of_shrunken(curves, changes, weights, clusters)


def shrunken_effects_by_slopes(engine: Target, slopes: Float[Tensor, "component example"]) -> Mask:
    """The same by gradients, for components that are too many to be measured one by one.

    The slopes are of the quantity of the metric's linearization; see
    `tracekit.engine.gradients.expand`.
    """
    data = engine.data
    curves = ExampleCurves.of(data.metric, data.clean, data.pairs.weights)
    weights = _weights(engine)
    clusters = engine.pairs.clusters
    if curves is None:
        # Those of the effect, times the weight of the example.
        return shrunken_means(slopes / weights, weights, clusters).float()
    return _effects_of_shrunken(curves, slopes, weights, clusters)


def shrunken_means(
    changes: Float[Tensor, "component example"],
    weights: Float[Tensor, " example"],
    clusters: Int[Tensor, " example"] | None = None,
) -> Float[Tensor, " component"]:
    """Mean changes, shrunken to the ratio to their root mean square that all have in common.

    Weights are 1 on average; `clusters` are those of `PromptPairs.clusters`.
    """
    means = _weighted_means(changes, weights)
    sizes = _weighted_means(changes.square(), weights).sqrt()
    is_moved = sizes > 0
    # Weights and groups make examples fewer (Kish's effective number).
    n_examples = (weights.sum().square() / by_cluster(weights, clusters).square().sum()).item()
    if n_examples <= 1 or int(is_moved.sum()) < _FEWEST:
        return means
    ratios = means[is_moved] / sizes[is_moved]
    errors = (1 - ratios.square()).clamp(min=0) / (n_examples - 1)
    true_variance = (ratios.var() - errors.mean()).clamp(min=0)
    # Of a component that moves all examples alike the ratio is certain.
    kept = (true_variance / (true_variance + errors)).nan_to_num(nan=1.0)
    common = ratios.mean()
    shrunken = means.clone()
    shrunken[is_moved] = sizes[is_moved] * (common + kept * (ratios - common))
    return shrunken


def _effects_of_shrunken(
    curves: ExampleCurves,
    changes: Float[Tensor, "component example"],
    weights: Float[Tensor, " example"],
    clusters: Int[Tensor, " example"] | None,
) -> Mask:
    """Mean effects of changes that are moved to their shrunken means."""
    start = curves.linearization.to_linear(curves.clean).double()
    moved = shrunken_means(changes, weights, clusters) - _weighted_means(changes, weights)
    effects = [
        curves.effects((start + part + by[:, None]).clamp(start - _WIDEST, start + _WIDEST).T).T
        for part, by in zip(changes.split(_TOGETHER), moved.split(_TOGETHER), strict=True)
    ]
    return torch.cat([part.mean(1) for part in effects]).float()


def _weighted_means(
    values: Float[Tensor, "component example"], weights: Float[Tensor, " example"]
) -> Float[Tensor, " component"]:
    parts = values.split(_TOGETHER)
    return torch.cat([part.to(weights.dtype) @ weights for part in parts]) / len(weights)


def _weights(engine: Target) -> Float[Tensor, " example"]:
    """Weight of each example; 1 on average."""
    weights = engine.pairs.weights
    return torch.ones(engine.n_examples).double() if weights is None else weights.double()
