"""Effects of masks on a data set, soft or binary, every layer with its hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, nan
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.ranks import Ranks
from tracekit.components import ComponentSet
from tracekit.components import masks as masks_module
from tracekit.components.members import ComponentsLike
from tracekit.engine.batch import Batch, to_device
from tracekit.engine.forward import join_batches, repeat_log_probs
from tracekit.engine.layout import check_continuations
from tracekit.engine.prepared import Masks, PreparedData
from tracekit.errors import MetricError
from tracekit.metrics import ContinuationLogProbs, Effects, Metric, Reading, kl
from tracekit.models.architectures import residual_hook
from tracekit.models.hooked import Hook, is_exact


class BatchEffects(NamedTuple):
    """Effects of a mask on the examples of a batch."""

    examples: Int[Tensor, " example"]
    effects: Effects
    """Effect on each; times its weight if examples have weights."""
    x: Float[Tensor, " example"]
    """Log-probability of its x under the mask."""
    y: Float[Tensor, " example"] | None


_MAX_ALONE = 64
"""Largest number of rows that run alone for a noise floor."""


def metric_effects(
    data: PreparedData, mask: ComponentsLike, metrics: Sequence[Metric]
) -> dict[str, Effects]:
    """Effects of one mask by each of several metrics of the data's direction, by their names."""
    for metric in metrics:
        check_continuations(data.pairs, metric)
    reads: list[Reading] = [reading for metric in metrics for reading in metric.reads]
    effects = torch.zeros(len(metrics), data.n_examples, device=data.device)
    with data.measuring():
        for batch, _, log_probs in data.passes(_as_stack(data, mask), reads=reads):
            clean = data.clean_of(batch, reads)
            for row, metric in zip(effects, metrics, strict=True):
                row[batch.examples] = data.weighted(batch, metric(clean, log_probs))
                if data.ranks.count == 1:
                    _check_independence(data, batch, metric, clean, log_probs)
    data.account.add_examples(data.n_examples)
    (effects,) = data.ranks.sum_ranks(effects.cpu())
    for row, metric in zip(effects, metrics, strict=True):
        data.check_finite(row, metric)
    return dict(zip([metric.name for metric in metrics], effects, strict=True))


def stream_effects(data: PreparedData, mask: ComponentsLike) -> Iterator[BatchEffects]:
    """Effects of one mask by batch; between batches the model may be used for something else."""
    stack = _as_stack(data, mask)
    for batch in data.batches_of(None, of_all_ranks=True):
        with data.measuring():
            ((_, _, log_probs),) = data.passes(stack, [batch])
            effects = data.effects_from(batch, log_probs)[0]
        data.account.add_examples(len(batch.examples))
        y = None if log_probs.y is None else log_probs.y.float().cpu()
        numbers, x = batch.examples.cpu(), log_probs.x.float().cpu()
        measured = BatchEffects(numbers, effects.float().cpu(), x, y)
        # At their numbers in the data set, so that a message names the right examples.
        so_far = torch.zeros(data.n_examples).index_put((measured.examples,), measured.effects)
        data.check_finite(so_far)
        yield measured


def check_metric(data: PreparedData) -> None:
    """Refuses a metric whose effect on an example depends on the other examples of a batch.

    Several ranks skip the check: if one raised an error, the others would wait for it.
    """
    if data.ranks.count > 1:
        return
    batch = data.batches[0]
    with data.measuring():
        ((_, _, moved),) = data.passes(_as_stack(data, torch.ones(data.n_components)), [batch])
        _check_independence(data, batch, data.metric, data.clean_of(batch), moved)


def _check_independence(data: PreparedData, batch: Batch, metric: Metric, *runs: Any) -> None:
    """Compares effects among other examples with effects among copies, which are rounded alike."""
    few = [vars(run.map(itemgetter(slice(4)))) for run in runs]
    read = [name for name, value in few[0].items() if value is not None is not few[1][name]]
    # The others are the same examples with their runs exchanged: a batch may have a single row.
    both = [
        ContinuationLogProbs(**{name: torch.cat([first[name], second[name]]) for name in read})
        for first, second in (few, few[::-1])
    ]
    together = metric(*both)
    for n, number in enumerate(batch.examples[:4].tolist()):
        alone = metric(*(run.map(itemgetter([n] * len(together))) for run in both))[n]
        if together[n].isfinite() and not alone.isclose(together[n], rtol=1e-3, atol=3e-6):
            raise MetricError(
                f"The metric {metric.name!r} must depend on one example alone: it is random, or "
                f"gives {data.pairs[number].describe()} {alone:.4g} alone and {together[n]:.4g} in "
                "a batch."
            )


def masked_log_probs(data: PreparedData, mask: ComponentsLike) -> ContinuationLogProbs:
    """Log-probabilities of every example's continuations under a mask; not counted as work."""
    with data.measuring():
        parts = [(batch.examples, under) for batch, _, under in data.passes(_as_stack(data, mask))]
    return join_batches(parts, data.n_examples, data.ranks)


def empty_mask_effect(data: PreparedData) -> float:
    """Largest effect of the empty mask on the first batch; 0 unless the model has changed."""
    if not data.batches:
        return 0.0  # There are more ranks than examples; another rank looks.
    batch = data.batches[0]
    with data.measuring():
        ((_, _, now),) = data.passes(_as_stack(data, torch.zeros(data.n_components)), [batch])
        clean = data.clean_of(batch)
        effect = data.metric(clean, now).abs().max()
        # A metric may hide a change, or read a distribution that is computed again.
        return torch.maximum(effect, (now.x - clean.x).abs().max()).item()


def count_choices(
    data: PreparedData, other: PreparedData | None, sets: Sequence[ComponentSet]
) -> Float[Tensor, "run 5"]:
    """First choices of the model in the clean run, the counterfactual run, and with sets patched.

    Columns: on how many pairs the first choice is x, y, or neither; the mean of log P(x) / P(y);
    the mean KL divergence from the clean run at the first token that differs. x is chosen if every
    token of x is the first choice or, for a metric of token sets, if one that counts as x is; if y
    begins with x, both can be chosen. Values are NaN without a y, and in the second row without a
    counterfactual run (`other`, whose clean run it is).
    """
    reads: list[Reading] = ["argmax", "distribution"]
    if "token-sets" in data.metric.reads:
        reads.append("token-sets")
    masks = data.masks_of(sets)
    sums = torch.zeros(2 + len(sets), 5, device=data.device)
    with data.measuring():
        for batch in data.batches:
            runs = [data.forward_pass.log_probs(batch, [], reads=reads)]
            if other is not None:
                parts = []
                for part in other.batches_of(batch.examples.cpu(), of_all_ranks=True):
                    order = (part.examples[:, None] == batch.examples).nonzero()[:, 1]
                    parts.append((order, other.forward_pass.log_probs(part, [], reads=reads)))
                runs.append(join_batches(parts, len(batch.examples), Ranks()))
            if data.metric.direction == "denoising":
                runs.reverse()
            for row, run in enumerate(runs):
                sums[row] += _sum_choices(batch, runs[0], run)[0]
            # Without a set, `passes` would still run the counterfactual prompts.
            for _, some, run in data.passes(masks, [batch] if sets else [], reads=reads):
                sums[2:][some] += _sum_choices(batch, runs[0], run)
    data.account.add_examples(len(sets) * data.n_examples)
    (sums,) = data.ranks.sum_ranks(sums.cpu())
    sums[:, 3:] /= data.n_examples
    if other is None:
        sums[1] = nan
    return sums


def _sum_choices(
    batch: Batch, clean: ContinuationLogProbs, run: ContinuationLogProbs
) -> Float[Tensor, "run 5"]:
    """Sums of the columns of `count_choices` over a batch; `run` may be several runs in a row."""
    n, is_x, is_y = len(batch.examples), run.require("x_is_argmax"), run.y_is_argmax
    if run.x_set is not None:
        choices = run.require("set_choice").reshape(-1, n, 1, 1)
        is_x, is_y = (batch.token_sets == choices).any(-1).unbind(-1)
        if run.y_set is None:
            is_y = None
    is_neither = None if is_y is None else ~(is_x | is_y)
    log_ratio = None if run.y is None else run.x - run.y
    divergence = kl(repeat_log_probs(clean, len(run.x) // n), run)
    columns = []
    for values in (is_x, is_y, is_neither, log_ratio, divergence):
        values = torch.full_like(run.x, nan) if values is None else values
        columns.append(values.to(run.x).reshape(-1, n).sum(1))
    return torch.stack(columns, 1)


def noise_floor(data: PreparedData) -> float:
    """Mean effect that the rounding of the model alone can have, 0 in float32 and float64.

    In a lower precision, the scores of a row depend on the other rows of its batch and on the last
    bits of its inputs. So the clean run is repeated with at most 64 rows one by one, with every
    batch doubled, and with random last bits of the embeddings. The result is the largest mean of
    the effects of these against the clean run, or of two standard errors of the mean over all
    examples. Differences between sets are more precise, because all sets share one clean run.
    """
    if is_exact(data.model):
        return 0.0
    random_bits = [(residual_hook(0), _randomize_last_bits)]
    moments, n_alone = torch.zeros(3, 3, dtype=torch.float64), 0
    with data.measuring(), torch.random.fork_rng():
        torch.manual_seed(0)
        for batch in data.batches:
            # Each entry: number of the way, batch, copies of it, hooks.
            runs: list[tuple[int, Batch, int, list[Hook]]] = [(1, batch, 2, [])]
            rows = batch.examples.cpu()[: _MAX_ALONE - n_alone]
            n_alone += len(rows)
            if len(rows):
                alone = data.layout.make_batches(1, device=data.device, examples=rows)
                runs = [*((0, single, 1, []) for single in alone), *runs]
            for _ in range(ceil(_MAX_ALONE / data.n_examples)):
                runs.append((2, batch, 1, random_bits))
            for way, some, copies, hooks in runs:
                repeat = some.repeat(copies)
                run = data.forward_pass.log_probs(repeat, hooks, reads=data.metric.reads)
                effects = data.effects_from(some, run)[0].cpu().double()
                powers = (effects**power for power in range(3))
                moments[way] += torch.stack([each.sum() for each in powers])
    (moments,) = data.ranks.sum_ranks(moments)
    n, total, squares = moments.T
    errors = (squares / n / data.n_examples).sqrt()
    return torch.maximum((total / n).abs(), 2 * errors).max().item()


def _randomize_last_bits(activation: Tensor, hook: Any = None) -> Tensor:
    draw = torch.randn_like(activation.float()) * torch.finfo(activation.dtype).eps / 2
    return (activation.float() * (1 + draw)).to(activation.dtype)


def _as_stack(data: PreparedData, mask: ComponentsLike) -> Masks:
    return to_device(masks_module.check(mask, data.n_components)[None], data.device)
