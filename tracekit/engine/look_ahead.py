"""Looking ahead: what adding or removing single components would bring, from one gradient.

The gradient is taken at the binary mask of a set, for every example by itself, of the quantity u
of the metric's linearization (such as log-odds). With J_i its entry for component i, the mean over
examples of `effect(u +- J_i) - effect(u)` predicts the change when component i joins or leaves:
first order in u, while the curve from u to the effect is exact. Predictions only propose; sets are
compared by measured effects. A distance, such as KL, is least at the empty set and its gradient 0
there: it is taken halfway to the full mask instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices
from tracekit.engine.batch import Batch
from tracekit.engine.example_curves import ExampleCurves
from tracekit.metrics import Effects
from tracekit.models.hooked import frozen, to_device

if TYPE_CHECKING:
    from tracekit.engine.engine import Engine


class Expansion(NamedTuple):
    """The quantity of the metric's linearization on some examples, to first order in their masks.

    Where the metric has no linearization the quantity is the effect, times the example's weight.
    """

    quantity: Float[Tensor, " some"]
    """Its values."""
    slopes: Float[Tensor, "some component"]
    """Its gradients."""


@dataclass(frozen=True, eq=False)
class FirstOrderPrediction:
    """What changing single components of a set would bring, to first order."""

    gains: Mask
    """Predicted value of having a component in the set: for those outside what adding it would
    bring, for those inside what removing it would cost. First order in the quantity of the
    metric's linearization, example by example."""
    gradient: Mask
    """Gradient of the mean effect: first order in the effect itself."""


class BatchPrediction(NamedTuple):
    """What changing single components of a set would bring on the examples of a batch."""

    examples: Int[Tensor, " example"]
    """Their numbers."""
    gains: Float[Tensor, "example component"]
    """As in `FirstOrderPrediction`, for each; times its weight if examples have weights."""
    slopes: Float[Tensor, "example component"]
    """Gradient of the effect on each."""


def predict_changes(
    engine: Engine,
    members: ComponentSet,
    *,
    example_weights: Effects | None = None,
    examples: Int[Tensor, " some"] | None = None,
) -> FirstOrderPrediction:
    """The prediction at a set; see `Engine.predict_changes`.

    Args:
        engine: The data set.
        members: The set.
        example_weights: What each example counts for in the mean, 1 by default.
        examples: Numbers of the examples to predict on; all by default.
    """
    if engine.metric.is_flat_at_clean and not members:
        return _halfway(engine, examples)
    gains, gradient = torch.zeros(2, engine.n_components, device=engine.device)
    for batch in _changes_of(engine, members, engine.own(examples)):
        gains_of_batch, slopes = batch.gains, batch.slopes
        if example_weights is not None:
            weights = to_device(example_weights, engine.device)[batch.examples, None]
            gains_of_batch, slopes = gains_of_batch * weights, slopes * weights
        gains += gains_of_batch.sum(0)
        gradient += slopes.sum(0)
    n_examples = engine.n_examples if examples is None else len(examples)
    engine.count_forward(n_examples / engine.n_examples, backward=True)
    gains, gradient = engine.ranks.add(gains, gradient)
    return FirstOrderPrediction((gains / n_examples).cpu(), (gradient / n_examples).cpu())


def prediction_of(
    engine: Engine, members: ComponentSet, expansion: Expansion
) -> FirstOrderPrediction:
    """The prediction at a set that all examples were expanded at, which takes no pass.

    Args:
        engine: The data set; the metric is not flat at the clean run, or the set not empty.
        members: The set.
        expansion: There, of all examples in their order.
    """
    curves, (quantity, slopes) = ExampleCurves.of(engine), expansion
    if curves is None:
        mean = slopes.mean(0)
        return FirstOrderPrediction(mean, mean)
    direction = 1 - 2 * from_indices(members, engine.n_components).float()
    changed = curves.effects(quantity[:, None] + slopes * direction)
    gains = (changed - curves.effects(quantity[:, None])) * direction
    of_effect = curves.steepness(quantity[:, None]) * slopes
    return FirstOrderPrediction(gains.mean(0).float(), of_effect.mean(0).float())


def expand(
    engine: Engine, masks: Float[Tensor, "some component"], examples: Int[Tensor, " some"]
) -> Expansion:
    """The expansion of each example at a mask of its own; see `Engine.expand`."""
    _ = engine.clean
    masks = to_device(masks.float(), engine.device)
    row_of = torch.zeros(engine.n_examples, dtype=torch.long, device=engine.device)
    row_of[to_device(examples, engine.device)] = torch.arange(len(examples), device=engine.device)
    quantity, slopes = torch.zeros(len(examples), device=engine.device), torch.zeros_like(masks)
    for batch in _unshared_batches(engine, engine.own(examples)):
        rows = row_of[batch.examples]
        of_batch = _expanded(engine, batch, masks[rows])
        quantity[rows], slopes[rows] = of_batch.quantity.float(), of_batch.slopes.float()
    engine.count_forward(len(examples) / engine.n_examples, backward=True)
    quantity, slopes = engine.ranks.add(quantity, slopes)
    return Expansion(quantity.cpu(), slopes.cpu())


def changes_by_batch(engine: Engine, members: ComponentSet) -> Iterator[BatchPrediction]:
    """The prediction on every example, a batch at a time; `Engine.predict_changes_by_batch`."""
    for batch in _changes_of(engine, members, None):
        engine.count_forward(len(batch.examples) / engine.n_examples, backward=True)
        yield BatchPrediction(*(part.cpu() for part in batch))


def _changes_of(
    engine: Engine, members: ComponentSet, examples: Int[Tensor, " some"] | None
) -> Iterator[BatchPrediction]:
    """The prediction on some examples, or all, where the model is."""
    _ = engine.clean
    mask = from_indices(members, engine.n_components).to(engine.device).float()
    for batch in _unshared_batches(engine, examples):
        expansion = _expanded(engine, batch, mask.expand(len(batch.examples), -1))
        yield _batch_prediction(engine, batch, expansion, mask)


def _unshared_batches(engine: Engine, examples: Int[Tensor, " some"] | None) -> Iterable[Batch]:
    """Some examples, or all, in batches of which no row serves two of them."""
    return engine.unshared_layout.batches(
        engine.config.max_batch_size, device=engine.device, examples=examples
    )


def _expanded(engine: Engine, batch: Batch, masks: Float[Tensor, "example component"]) -> Expansion:
    """The expansion of every example of a batch at a mask of its own."""
    of_rows = batch.rows_of_examples.to(masks.dtype)
    with frozen(engine.model), torch.enable_grad():
        # Every row has a mask of its own, so that one backward pass tells examples apart.
        leaf = (of_rows.T @ masks)[None].requires_grad_(True)
        source = engine.counterfactual_cache.activations_for(batch)
        log_probs = engine.forward_pass.log_probs(
            batch, engine.hooks(batch, source, leaf), reads=engine.metric.reads
        )
        linearization = engine.metric.linearization
        if linearization is None:
            values = engine.weighted(batch, engine.metric(engine.clean_of(batch), log_probs))
        else:
            values = linearization.to_linear(log_probs)
        if not values.requires_grad:
            raise engine.no_gradient()
        (slopes,) = torch.autograd.grad(values.sum(), leaf)
    # By row; an example's gradient is the sum over the rows that its log-probabilities come from.
    return Expansion(values.detach(), of_rows @ slopes[0])


def _halfway(engine: Engine, examples: Int[Tensor, " example"] | None) -> FirstOrderPrediction:
    """The gradient halfway to the full mask, for a distance, whose own at the clean run is 0."""
    half = torch.full((engine.n_components,), 0.5, device=engine.device)
    n_examples = engine.n_examples if examples is None else len(examples)
    gradient = engine.gradient(half, torch.ones_like, examples)[1].cpu() / n_examples
    return FirstOrderPrediction(gradient, gradient)


def _batch_prediction(
    engine: Engine, batch: Batch, expansion: Expansion, mask: Mask
) -> BatchPrediction:
    linearization, (quantity, slopes) = engine.metric.linearization, expansion
    if linearization is None:
        return BatchPrediction(batch.examples, slopes, slopes)
    clean = engine.clean_of(batch)
    # +1 for components that would join, -1 for those that would leave.
    direction = 1 - 2 * mask
    with torch.enable_grad():
        values = quantity.clone().requires_grad_(True)
        effects = linearization.to_effect(clean, values)
        (curvature,) = torch.autograd.grad(effects.sum(), values)
    with torch.no_grad():
        changed = linearization.to_effect(clean, quantity[:, None] + slopes * direction)
        changes = changed - effects[:, None]
    gains = engine.weighted(batch, changes.T).T * direction
    of_effect = engine.weighted(batch, curvature)[:, None] * slopes
    return BatchPrediction(batch.examples, gains, of_effect)
