"""Gradients with respect to masks, and predicted effects of adding or removing components.

`predict_changes` predicts the effect of adding a component to a set, or of removing it. The
quantity u of the metric's linearization, such as the log-odds, is differentiated at the binary mask
of the set. With J_i the gradient for component i, the mean over examples of
`effect(u +- J_i) - effect(u)` predicts the change when component i joins or leaves. This is first
order in u, while the curve from u to the effect is exact. A distance such as KL has gradient 0 at
the empty set; there it is differentiated halfway to the full mask instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask
from tracekit.engine.batch import Batch, to_device
from tracekit.engine.prepared import PreparedData
from tracekit.metrics import ContinuationLogProbs, Effects, Linearization, Metric
from tracekit.models.hooked import freeze

GradientWeight = Callable[[Effects], Effects]
"""Effects of some examples (detached, in any order) -> the weight of each one's gradient."""
Combine = Callable[..., Effects]
"""Effects of a mask, of its complement if computed, and numbers of examples -> scores of these."""


class Expansion(NamedTuple):
    """The quantity of the metric's linearization on some examples, to first order in their masks.

    Without a linearization the quantity is the effect, times the weight of the example.
    """

    quantity: Float[Tensor, " some"]
    gradients: Float[Tensor, "some component"]


@dataclass(frozen=True, eq=False)
class FirstOrderPrediction:
    """Predicted changes from adding or removing single components, to first order."""

    predicted_effects: Mask
    """How much adding a non-member would raise the mean effect, and removing a member lower it; to
    first order in the quantity of the metric's linearization, example by example."""
    gradient: Mask
    """Gradient of the mean effect: first order in the effect itself."""


class BatchPrediction(NamedTuple):
    """First-order predictions on the examples of a batch."""

    examples: Int[Tensor, " example"]
    predicted_effects: Float[Tensor, "example component"]
    """As in `FirstOrderPrediction`, for each example; times its weight if examples have weights."""
    gradients: Float[Tensor, "example component"]
    effects: Float[Tensor, " example"]


def gradient(
    data: PreparedData,
    mask: Mask,
    example_weights: GradientWeight,
    examples: Int[Tensor, " some"] | None = None,
    *,
    combine: Combine | None = None,
    with_complement: bool = False,
) -> tuple[Effects, Mask]:
    """Effects, and the gradient of their weighted sum; see `Engine.gradient`.

    With `combine`, scores take the place of effects. If `with_complement`, each batch runs under
    the mask and under its complement (1 - mask) in one pass, and scores depend on both.
    """
    if examples is None:
        examples = torch.arange(data.n_examples)
    leaf = mask.detach().float().to(data.device).requires_grad_(True)
    total = torch.zeros_like(leaf)
    effects = torch.zeros(data.n_examples, device=data.device)
    n_masks = 1 + with_complement
    with freeze(data.model), torch.enable_grad():
        for batch in data.batches_of(examples, n_masks=n_masks):
            source = data.counterfactual_cache.activations_for(batch)
            clean = data.clean_of(batch)
            masks = torch.stack([leaf, 1 - leaf][:n_masks])
            by_mask = data.effects_from(batch, data.log_probs(batch, source, masks), clean=clean)
            values = by_mask[0]
            if combine is not None:
                values = combine(*by_mask, batch.examples)
            total += data.mask_gradient(example_weights(values.detach()) * values, leaf)
            effects[batch.examples] = values.detach()
    data.account.add_examples(n_masks * len(examples), backward=True)
    effects, total = data.ranks.sum_ranks(effects, total)
    return effects[to_device(examples, data.device)].to(mask.device), total.to(mask.device)


def gradients_along_inputs(data: PreparedData, levels: Mapping[float, float]) -> Mask:
    """Weighted sum of gradients for each edge, along the input: EAP-IG (Hanna et al., 2024).

    `levels` maps how far the input of the clean run moves towards the counterfactual one, from 0
    to 1, to the weight of the gradient there: the gradient with respect to what the edge's receiver
    reads, times the change of its sender's output from the clean to the counterfactual run.
    """
    leaf = torch.zeros(data.n_components, device=data.device, requires_grad=True)
    total = torch.zeros_like(leaf)
    with freeze(data.model), torch.enable_grad():
        for batch in data.batches_of(None):
            source, clean = data.counterfactual_cache.activations_for(batch), data.clean_of(batch)
            with torch.no_grad():
                origin = data.forward_pass.activations(batch, [], source)
            patch = data.edge_patch(batch, source, origin)
            for level, weight in levels.items():
                hooks = [patch.make_input_hook(level), *patch.hooks(leaf)]
                moved = data.forward_pass.log_probs(batch, hooks, reads=data.metric.reads)
                effects = data.effects_from(batch, moved, clean=clean)
                total += weight * data.mask_gradient(effects, leaf)
    data.account.add_examples(len(levels) * data.n_examples, backward=True)
    (total,) = data.ranks.sum_ranks(total.detach())
    return total.cpu()


def predict_changes(
    data: PreparedData,
    members: ComponentSet,
    *,
    example_weights: Effects | None = None,
    examples: Int[Tensor, " some"] | None = None,
) -> FirstOrderPrediction:
    """The prediction at a set; see `Engine.predict_changes`. Example weights are 1 by default."""
    n_examples = data.n_examples if examples is None else len(examples)
    if data.metric.is_flat_at_clean and not members:
        half = torch.full((data.n_components,), 0.5, device=data.device)
        mean = gradient(data, half, torch.ones_like, examples)[1].cpu() / n_examples
        return FirstOrderPrediction(mean, mean)
    sums = torch.zeros(2, data.n_components, device=data.device)
    for batch in predictions_by_batch(data, members, data.rank_share(examples)):
        values = torch.stack([batch.predicted_effects, batch.gradients])
        if example_weights is not None:
            values = values * to_device(example_weights, data.device)[batch.examples, None]
        sums += values.sum(1)
    data.account.add_examples(n_examples, backward=True)
    (sums,) = data.ranks.sum_ranks(sums)
    return FirstOrderPrediction(*(sums / n_examples).cpu())


def expand(
    data: PreparedData,
    masks: Float[Tensor, "some component"],
    examples: Int[Tensor, " some"],
    *,
    is_linear: bool = True,
) -> Expansion:
    """The quantity that is about linear in the mask, and its gradients, one mask per example.

    Both are on the CPU, in the order of `examples`, which are all different. Unless `is_linear`,
    the quantity is the effect.
    """
    data.prepare_clean()
    masks = to_device(masks.float(), data.device)
    row_of = torch.zeros(data.n_examples, dtype=torch.long, device=data.device)
    row_of[to_device(examples, data.device)] = torch.arange(len(examples), device=data.device)
    quantity, gradients = torch.zeros(len(examples), device=data.device), torch.zeros_like(masks)
    for batch in data.batches_of(examples, shared=False):
        rows = row_of[batch.examples]
        expansion = _expand_batch(data, batch, masks[rows], is_linear)
        quantity[rows] = expansion.quantity.float()
        gradients[rows] = expansion.gradients.float()
    data.account.add_examples(len(examples), backward=True)
    quantity, gradients = data.ranks.sum_ranks(quantity, gradients)
    return Expansion(quantity.cpu(), gradients.cpu())


def stream_predictions(data: PreparedData, members: ComponentSet) -> Iterator[BatchPrediction]:
    """Yields the predictions of `predict_changes` for every example, batch by batch."""
    for batch in predictions_by_batch(data, members, None):
        data.account.add_examples(len(batch.examples), backward=True)
        yield BatchPrediction(*(part.cpu() for part in batch))


def predictions_by_batch(
    data: PreparedData, members: ComponentSet, examples: Int[Tensor, " some"] | None
) -> Iterator[BatchPrediction]:
    """Yields predictions for some examples, or all, on the device of the model."""
    data.prepare_clean()
    (mask,) = data.masks_of([members])
    # +1 for components that would join, -1 for those that would leave.
    direction = 1 - 2 * mask
    for batch in data.batches_of(examples, of_all_ranks=True, shared=False):
        quantity, gradients = _expand_batch(data, batch, mask.expand(len(batch.examples), -1))
        linearization = data.metric.linearization
        if linearization is None:
            yield BatchPrediction(batch.examples, gradients, gradients, quantity)
            continue
        clean = data.clean_of(batch)
        with torch.enable_grad():
            values = quantity.clone().requires_grad_(True)
            effects = linearization.to_effect(clean, values)
            (derivative,) = torch.autograd.grad(effects.sum(), values)
        with torch.no_grad():
            changed = linearization.to_effect(clean, quantity[:, None] + gradients * direction)
            changes = changed - effects[:, None]
        yield BatchPrediction(
            batch.examples,
            predicted_effects=data.weighted(batch, changes.T).T * direction,
            gradients=data.weighted(batch, derivative)[:, None] * gradients,
            effects=data.weighted(batch, effects.detach()),
        )


def _expand_batch(
    data: PreparedData,
    batch: Batch,
    masks: Float[Tensor, "example component"],
    is_linear: bool = True,
) -> Expansion:
    is_row_of = batch.rows_by_example.to(masks.dtype)
    with freeze(data.model), torch.enable_grad():
        # Each row has its own mask, so that one backward pass gives the gradient of each example.
        leaf = (is_row_of.T @ masks)[None].requires_grad_(True)
        log_probs = data.log_probs(batch, data.counterfactual_cache.activations_for(batch), leaf)
        linearization = data.metric.linearization
        if linearization is None or not is_linear:
            values = data.effects_from(batch, log_probs)[0]
        else:
            values = linearization.to_linear(log_probs)
        gradients = data.mask_gradient(values, leaf)
    # An example's gradient is the sum over the rows that its log-probabilities come from.
    return Expansion(values.detach(), is_row_of @ gradients[0])


_HALVINGS = 60
WIDEST = 30.0
"""How far the quantity may lie from its values without intervention, in nats."""


@dataclass(frozen=True, eq=False)
class ExampleCurves:
    """The curve of every example from the quantity of a linearization to the effect.

    For `odds-ratio` the quantity is the log-odds of y against x, and the curve is exact. Shapley
    values and empirical-Bayes shrinkage are computed in this quantity.
    """

    linearization: Linearization
    clean: ContinuationLogProbs
    """Log-probabilities of the run without patches."""
    weights: Float[Tensor, " example"]

    @classmethod
    def for_metric(
        cls, metric: Metric, clean: ContinuationLogProbs, weights: Float[Tensor, " example"] | None
    ) -> ExampleCurves | None:
        """Curves of a metric on the examples of a clean run; None where it has no linearization."""
        if metric.linearization is None:
            return None
        clean = clean.map(Tensor.cpu)
        weights = torch.ones(len(clean.x)) if weights is None else weights
        return cls(metric.linearization, clean, weights.cpu().double())

    def select(self, examples: slice | Int[Tensor, " select"]) -> ExampleCurves:
        """The curves of some examples."""
        clean = self.clean.map(lambda values: values[examples])
        return ExampleCurves(self.linearization, clean, self.weights[examples])

    def effects(self, quantity: Float[Tensor, "example ..."]) -> Float[Tensor, "example ..."]:
        """Effects of values of the quantity."""
        weights = self.weights.reshape(-1, *[1] * (quantity.ndim - 1))
        return weights * self.linearization.to_effect(self.clean, quantity)

    def quantity(
        self, effects: Float[Tensor, "example coalition"]
    ) -> Float[Tensor, "example coalition"]:
        """Values of the quantity at which the curve has these effects, by bisection."""
        start = self.linearization.to_linear(self.clean).double()[:, None]
        low, high = (start.expand_as(effects) + side for side in (-WIDEST, WIDEST))
        rises = (self.effects(high) >= self.effects(low)).any(1, keepdim=True)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_above = (self.effects(middle) > effects) == rises
            low, high = torch.where(is_above, low, middle), torch.where(is_above, middle, high)
        return (low + high) / 2

    def changes(self, effects: Float[Tensor, "set example"]) -> Float[Tensor, "set example"]:
        """Changes of the quantity behind effects, with their signs and times the weights."""
        start = self.linearization.to_linear(self.clean).double()
        sizes = (self.quantity(effects.T).T - start).abs()
        return torch.where(effects == 0, 0.0, sizes * effects.sign() * self.weights)

    def steepness(
        self, quantity: Float[Tensor, "example coalition"]
    ) -> Float[Tensor, "example coalition"]:
        """Derivative of the effect by the quantity."""
        with torch.enable_grad():
            leaf = quantity.detach().requires_grad_(True)
            return torch.autograd.grad(self.effects(leaf).sum(), leaf)[0].nan_to_num()
