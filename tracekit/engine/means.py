"""Mean activations over the prompts of a data set, for mean ablation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tracekit.components import Kind
from tracekit.data.counterfactuals import Constants
from tracekit.data.prompts import PromptPairs
from tracekit.engine.layout import Positions
from tracekit.engine.packing import length_buckets, pad_ids
from tracekit.engine.patching import SeenRows
from tracekit.errors import SourceError
from tracekit.models.architectures import long_rope_limit, scores_hook
from tracekit.models.hooked import HookedModel, device_of, freeze, model_name, recording_hooks


def mean_activations(
    model: HookedModel,
    over: PromptPairs,
    pairs: PromptPairs,
    kinds: Mapping[str, Kind],
    positional: bool,
    positions: Positions,
    max_batch_size: int,
) -> dict[str, Tensor]:
    """Mean activations over the prompts of `over`, by hook point, without a row axis.

    With `positional` every prompt position has a mean of its own, which must suit `pairs`: they are
    what the means are patched into.

    Raises:
        SourceError: The model cannot run the prompts, or the means would mean something else in
            each of them.
    """
    _check_counterfactual_runs(over, model)
    _check_seen_keys(model, kinds)
    if positional:
        _check_positional(over, pairs, kinds, positions)
    prompts = [pair.prompt_ids for pair in over]
    all_lengths = torch.tensor([len(prompt) for prompt in prompts])
    longest = int(all_lengths.max())
    beyond = all_lengths > (long_rope_limit(model) or float("inf"))
    sums: dict[str, Tensor] = {}
    device = device_of(model)

    def add(activation: Tensor, hook: Any = None, *, name: str, is_token: Tensor) -> Tensor:
        kind, values = kinds[name], activation.detach().cpu().double()
        shape = [1] * values.ndim
        shape[0], shape[kind.position_dim] = is_token.shape
        values = torch.where(is_token.reshape(shape), values, 0.0)
        if kind.key_dim is not None:
            # Rows of attention over different numbers of keys: the missing keys get none.
            values = torch.nn.functional.pad(values, (0, longest - values.shape[-1]))
        sums[name] = sums.get(name, 0) + values.sum(0 if positional else (0, kind.position_dim))
        return activation

    with freeze(model), torch.no_grad():
        for numbers in length_buckets(all_lengths, beyond, max_batch_size, device):
            part, lengths = [prompts[n] for n in numbers.tolist()], all_lengths[numbers]
            is_token = torch.arange(int(lengths.max())) < lengths[:, None]
            hooks = [(name, partial(add, name=name, is_token=is_token)) for name in kinds]
            model.run_with_hooks(pad_ids(part).to(device), fwd_hooks=hooks)
    count = len(prompts) if positional else sum(map(len, prompts))
    return {name: (total / count).float() for name, total in sums.items()}


def _check_seen_keys(model: HookedModel, kinds: Mapping[str, Kind]) -> None:
    names = [name for name, kind in kinds.items() if kind.is_attention_pattern]
    for name in names:
        rows = SeenRows(Constants("", {name: torch.ones(1, 2)}), name)
        tokens = torch.zeros(1, 2, dtype=torch.long, device=device_of(model))
        with freeze(model), torch.no_grad():
            model.run_with_hooks(tokens, fwd_hooks=[rows.recording_hook])
        seen = (rows(2, slice(None), slice(None)) > 0).cpu()
        if not torch.equal(seen, torch.ones_like(seen).tril()):
            raise SourceError(
                f"{scores_hook(name)} does not say which keys a query sees in "
                f"{model_name(model)}, and a mean row is over these. Use source='zero', "
                "'counterfactual' or 'resample', or head-outputs."
            )


def _check_counterfactual_runs(pairs: PromptPairs, model: HookedModel) -> None:
    vocabulary, context = int(model.cfg.d_vocab), int(getattr(model.cfg, "n_ctx", 0) or 0)
    for number, pair in enumerate(pairs):
        if context and len(pair.prompt_ids) > context:
            raise SourceError(
                f"The mean is over a prompt of {len(pair.prompt_ids)} tokens (example {number}, "
                f"{pair.describe()}), and the model takes {context}. Leave it out."
            )
        if max(pair.prompt_ids) >= vocabulary:
            raise SourceError(
                f"The mean is over a prompt with the token {max(pair.prompt_ids)} (example "
                f"{number}), and the model has {vocabulary} tokens. Give pairs of this model."
            )


def _check_positional(
    over: PromptPairs, pairs: PromptPairs, kinds: Mapping[str, Kind], positions: Positions
) -> None:
    lengths = {len(pair.prompt_ids) for pair in (*over, *pairs)}
    if len(lengths) > 1:
        raise SourceError(
            f"A mean at each position needs prompts of one length; these have {min(lengths)} to "
            f"{max(lengths)} tokens, so that a position means something else in each. "
            "Use source='mean'."
        )
    if any(kind.key_dim is not None for kind in kinds.values()):
        raise SourceError(
            "A mean at each position of attention patterns averages rows over different numbers "
            "of keys. Use source='mean', or head-outputs."
        )
    if positions == "all":
        raise SourceError(
            "A mean at each position covers the prompt, and positions='all' intervenes on the "
            "continuations too. Use positions='prompt' or source='mean'."
        )


def get_shapes(model: HookedModel, kinds: Mapping[str, Kind]) -> dict[str, list[int]]:
    """Sizes of an activation without the axes of row and position, by hook point."""
    hooks, recorded = recording_hooks(kinds)
    tokens = torch.zeros(1, 1, dtype=torch.long, device=device_of(model))
    with freeze(model), torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=hooks)
    return {
        name: [size for axis, size in enumerate(recorded[name][-1].shape) if axis not in (0, pos)]
        for name, pos in ((name, kind.position_dim) for name, kind in kinds.items())
    }
