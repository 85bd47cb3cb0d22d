"""Gradients with respect to masks, and what they predict of changing single components.

`gradient` is that of a weighted sum of effects, for searches that train a soft mask.

`predict_changes` says what adding or removing single components of a set would bring. The gradient
is taken at the binary mask of the set, for every example by itself, of the quantity u of the
metric's linearization (such as log-odds). With J_i its entry for component i, the mean over
examples of `effect(u +- J_i) - effect(u)` predicts the change when component i joins or leaves:
first order in u, while the curve from u to the effect is exact. Predictions only propose; sets are
compared by measured effects. A distance, such as KL, is least at the empty set and its gradient 0
there: it is taken halfway to the full mask instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.devices import to_device
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices
from tracekit.engine.batch import Batch
from tracekit.engine.prepared import PreparedData
from tracekit.metrics import Effects
from tracekit.models.hooked import frozen

GradientWeight = Callable[[Effects], Effects]
"""Effects of some examples (detached, in any order) -> the weight of each one's gradient."""
Combine = Callable[..., Effects]
"""Effects of a mask on some examples, those of its complement where it is asked for, and the
numbers of the examples -> a score of each example."""


class Expansion(NamedTuple):
    """The quantity of the metric's linearization on some examples, to first order in their masks.

    Where the metric has no linearization the quantity is the effect, times the example's weight.
    """

    quantity: Float[Tensor, " some"]
    slopes: Float[Tensor, "some component"]


@dataclass(frozen=True, eq=False)
class FirstOrderPrediction:
    """Predicted changes from adding or removing single components, to first order."""

    gains: Mask
    """Predicted value of having a component in the set: for those outside what adding it would
    bring, for those inside what removing it would cost. First order in the quantity of the
    metric's linearization, example by example."""
    gradient: Mask
    """Gradient of the mean effect: first order in the effect itself."""


class BatchPrediction(NamedTuple):
    """First-order predictions on the examples of a batch."""

    examples: Int[Tensor, " example"]
    gains: Float[Tensor, "example component"]
    """As in `FirstOrderPrediction`, for each; times its weight if examples have weights."""
    slopes: Float[Tensor, "example component"]
    """Gradient of the effect on each."""
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

    With `combine`, scores take the place of effects; `with_complement`, each batch runs under the
    mask and under its complement (1 - mask) in one pass, and scores are of both.
    """
    if examples is None:
        examples = torch.arange(data.n_examples)
    leaf = mask.detach().float().to(data.device).requires_grad_(True)
    total = torch.zeros_like(leaf)
    effects = torch.zeros(data.n_examples, device=data.device)
    n_masks = 1 + with_complement
    with frozen(data.model), torch.enable_grad():
        for batch in data.batches_of(examples, n_masks=n_masks):
            source = data.counterfactual_cache.activations_for(batch)
            clean = data.clean_of(batch)
            masks = torch.stack([leaf, 1 - leaf][:n_masks])
            of_masks = data.effects_from(batch, data.log_probs(batch, source, masks), clean=clean)
            values = of_masks[0]
            if combine is not None:
                values = combine(*of_masks, batch.examples)
            total += data.slopes(example_weights(values.detach()) * values, leaf)
            effects[batch.examples] = values.detach()
    data.account.count(n_masks * len(examples), backward=True)
    effects, total = data.ranks.add(effects, total)
    return effects[to_device(examples, data.device)].to(mask.device), total.to(mask.device)


def slopes_along_inputs(data: PreparedData, levels: Mapping[float, float]) -> Mask:
    """Weighted sum of gradients for each edge, along the input: EAP-IG (Hanna et al., 2024).

    At each level, by its weight, the clean run's input moves so far towards the counterfactual
    one. The gradient is that of what a receiver reads, times the change of the sender's output
    from the clean to the counterfactual run.
    """
    leaf = torch.zeros(data.n_components, device=data.device, requires_grad=True)
    total = torch.zeros_like(leaf)
    with frozen(data.model), torch.enable_grad():
        for batch in data.batches_of(None):
            source, clean = data.counterfactual_cache.activations_for(batch), data.clean_of(batch)
            with torch.no_grad():
                origin = data.forward_pass.activations(batch, [], source)
            patch = data.edge_patch(batch, source, origin)
            for level, weight in levels.items():
                hooks = [patch.moved_input(level), *patch.hooks(leaf)]
                moved = data.forward_pass.log_probs(batch, hooks, reads=data.metric.reads)
                total += weight * data.slopes(data.effects_from(batch, moved, clean=clean), leaf)
    data.account.count(len(levels) * data.n_examples, backward=True)
    (total,) = data.ranks.add(total.detach())
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
        # Halfway to the full mask: a distance has no gradient of its own at the clean run.
        half = torch.full((data.n_components,), 0.5, device=data.device)
        slopes = gradient(data, half, torch.ones_like, examples)[1].cpu() / n_examples
        return FirstOrderPrediction(slopes, slopes)
    gains, total = torch.zeros(2, data.n_components, device=data.device)
    for batch in predictions_by_batch(data, members, data.rank_share(examples)):
        gains_of_batch, slopes = batch.gains, batch.slopes
        if example_weights is not None:
            weights = to_device(example_weights, data.device)[batch.examples, None]
            gains_of_batch, slopes = gains_of_batch * weights, slopes * weights
        gains += gains_of_batch.sum(0)
        total += slopes.sum(0)
    data.account.count(n_examples, backward=True)
    gains, total = data.ranks.add(gains, total)
    return FirstOrderPrediction((gains / n_examples).cpu(), (total / n_examples).cpu())


def expand(
    data: PreparedData, masks: Float[Tensor, "some component"], examples: Int[Tensor, " some"]
) -> Expansion:
    """The quantity that is about linear in the mask, and its slopes, one mask per example.

    Both are on the CPU, in the order of `examples`, which has each number once.
    """
    data.prepare_clean()
    masks = to_device(masks.float(), data.device)
    row_of = torch.zeros(data.n_examples, dtype=torch.long, device=data.device)
    row_of[to_device(examples, data.device)] = torch.arange(len(examples), device=data.device)
    quantity, slopes = torch.zeros(len(examples), device=data.device), torch.zeros_like(masks)
    for batch in _unshared_batches(data, data.rank_share(examples)):
        rows = row_of[batch.examples]
        of_batch = _expanded(data, batch, masks[rows])
        quantity[rows], slopes[rows] = of_batch.quantity.float(), of_batch.slopes.float()
    data.account.count(len(examples), backward=True)
    quantity, slopes = data.ranks.add(quantity, slopes)
    return Expansion(quantity.cpu(), slopes.cpu())


def stream_changes(data: PreparedData, members: ComponentSet) -> Iterator[BatchPrediction]:
    """The prediction of `predict_changes` on every example; batches are as in `stream_effects`.

    A metric that is flat at the clean run has no gradient of single examples at the empty set.
    """
    for batch in predictions_by_batch(data, members, None):
        data.account.count(len(batch.examples), backward=True)
        yield BatchPrediction(*(part.cpu() for part in batch))


def predictions_by_batch(
    data: PreparedData, members: ComponentSet, examples: Int[Tensor, " some"] | None
) -> Iterator[BatchPrediction]:
    """The prediction on some examples, or all, where the model is."""
    data.prepare_clean()
    mask = from_indices(members, data.n_components).to(data.device).float()
    for batch in _unshared_batches(data, examples):
        expansion = _expanded(data, batch, mask.expand(len(batch.examples), -1))
        yield _batch_prediction(data, batch, expansion, mask)


def _unshared_batches(data: PreparedData, examples: Int[Tensor, " some"] | None) -> Iterator[Batch]:
    """Some examples, or all, in batches of which no row serves two of them."""
    return data.unshared_layout.batches(
        data.rows, device=data.device, examples=examples, filled=data.recorder.is_on
    )


def _expanded(
    data: PreparedData, batch: Batch, masks: Float[Tensor, "example component"]
) -> Expansion:
    """The expansion of every example of a batch at a mask of its own."""
    of_rows = batch.rows_of_examples.to(masks.dtype)
    with frozen(data.model), torch.enable_grad():
        # Every row has a mask of its own, so that one backward pass tells examples apart.
        leaf = (of_rows.T @ masks)[None].requires_grad_(True)
        log_probs = data.log_probs(batch, data.counterfactual_cache.activations_for(batch), leaf)
        linearization = data.metric.linearization
        if linearization is None:
            values = data.effects_from(batch, log_probs)[0]
        else:
            values = linearization.to_linear(log_probs)
        slopes = data.slopes(values, leaf)
    # By row; an example's gradient is the sum over the rows that its log-probabilities come from.
    return Expansion(values.detach(), of_rows @ slopes[0])


def _batch_prediction(
    data: PreparedData, batch: Batch, expansion: Expansion, mask: Mask
) -> BatchPrediction:
    linearization, (quantity, slopes) = data.metric.linearization, expansion
    if linearization is None:
        return BatchPrediction(batch.examples, slopes, slopes, quantity)
    clean = data.clean_of(batch)
    # +1 for components that would join, -1 for those that would leave.
    direction = 1 - 2 * mask
    with torch.enable_grad():
        values = quantity.clone().requires_grad_(True)
        effects = linearization.to_effect(clean, values)
        (curvature,) = torch.autograd.grad(effects.sum(), values)
    with torch.no_grad():
        changed = linearization.to_effect(clean, quantity[:, None] + slopes * direction)
        changes = changed - effects[:, None]
    gains = data.weighted(batch, changes.T).T * direction
    of_effect = data.weighted(batch, curvature)[:, None] * slopes
    return BatchPrediction(batch.examples, gains, of_effect, data.weighted(batch, effects.detach()))
