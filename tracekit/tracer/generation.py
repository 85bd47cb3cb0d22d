"""What a model writes with a set replaced, beside what it writes by itself; steering."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tracekit._util import progress
from tracekit._util.options import check_seed, is_whole, shortened
from tracekit.components import ComponentSet
from tracekit.components.masks import from_indices
from tracekit.data.chat import Chat
from tracekit.data.counterfactuals import Constants, constants_of
from tracekit.data.prompts import PromptPairs
from tracekit.data.tokenization import tokenizer_of
from tracekit.engine.capabilities import Capabilities
from tracekit.engine.patching import constant_hooks
from tracekit.engine.setup import BoundSetup
from tracekit.errors import ConfigError, UnsupportedModelError
from tracekit.models import HookedModel, model_name
from tracekit.models.hooked import Hook, frozen
from tracekit.results.generations import Generations


def constants_at_every_token(pairs: PromptPairs, source: object) -> Constants:
    """What the source puts in at every token of every text; refuses other sources."""
    constants = constants_of([pair.counterfactual for pair in pairs])
    if constants is None or constants.positional:
        raise ConfigError(
            f"The source {source!r} has values for prompts of its own only, and steering acts on "
            "any text. Use source='zero', 'mean' or tensors, or generate(..., counterfactuals=...)."
        )
    return constants


@contextmanager
def hooked(model: HookedModel, hooks: list[Hook]) -> Iterator[HookedModel]:
    """Within the block every pass of the model has the hooks; other threads wait."""
    with frozen(model), model.hooks(fwd_hooks=hooks):  # type: ignore[attr-defined]
        yield model


def generate(
    bound: BoundSetup,
    members: ComponentSet,
    prompts: Sequence[Any],
    *,
    counterfactuals: Sequence[Any] | None,
    others: PromptPairs,
    fingerprint: str,
    strength: float,
    max_new_tokens: int,
    temperature: float,
    chat: Chat,
    seed: int,
) -> Generations:
    """Generates; see `Tracer.generate`.

    `others` are the traced pairs, which `resample` draws from, as they were given; with their
    counterfactuals they have the `fingerprint`.
    """
    check_seed(seed)
    if not is_whole(max_new_tokens) or max_new_tokens < 1 or not temperature >= 0:
        raise ConfigError(
            f"max_new_tokens is {shortened(max_new_tokens)} and the temperature "
            f"{shortened(temperature)}. Give at least one token, and 0 for the likeliest one."
        )
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    changed = [counterfactuals] if isinstance(counterfactuals, str) else counterfactuals
    if (changed is None) == (bound.setup.source == "counterfactual") or (
        changed is not None and len(changed) != len(prompts)
    ):
        raise ConfigError(
            f"There are {len(prompts)} prompts and {len(changed or ())} counterfactuals. Give each "
            "prompt one of as many tokens with source='counterfactual', and none with other "
            "sources."
        )
    tokenizer, model = tokenizer_of(bound.model), bound.model
    # A continuation, which pairs have, does not matter.
    rows = [{"prompt": prompt, "x": "a"} for prompt in prompts]
    rows = [
        r | ({} if changed is None else {"counterfactual": changed[n]}) for n, r in enumerate(rows)
    ]
    pairs = PromptPairs.from_text(rows, tokenizer, chat=chat, warn=False)
    if changed is not None:
        pairs.report.without("repeated").warn()
    single = tuple(replace(pair, x_ids=pair.x_ids[:1]) for pair in pairs)
    if bound.setup.source == "resample":
        single += others.pairs
    plain = replace(bound, config=replace(bound.config, capabilities=Capabilities.none()))
    engine = plain.engine(
        replace(pairs, pairs=single), metric="probability-drop", direction="noising"
    )
    data = engine.data
    mask = strength * from_indices(members, data.n_components).float()
    constants = constants_of([pair.counterfactual for pair in engine.pairs])
    written = []
    bar = progress.steps(range(len(prompts)), "generate", shown=bound.config.progress)
    for number in bar:
        (batch,) = data.batches_of(torch.tensor([number]), of_all_ranks=True)
        if constants is not None and not constants.positional and bound.setup.positions == "all":
            hooks = constant_hooks(bound.registry, constants, mask)
        else:
            with data.measuring():
                source = data.counterfactual_cache.activations_for(batch)
            hooks = data.hooks(batch, source, mask.to(data.device))
        ids = torch.tensor([single[number].prompt_ids], device=data.device)
        texts = [
            _continued(model, tokenizer, ids, each, max_new_tokens, temperature, seed)
            for each in ([], hooks)
        ]
        written.append(texts)
    shown = [pair.texts or {} for pair in pairs]
    return Generations(
        registry=bound.registry,
        members=members,
        prompts=tuple(texts["prompt"] for texts in shown),
        counterfactuals=None if changed is None else tuple(t["counterfactual"] for t in shown),
        clean=tuple(clean for clean, _ in written),
        intervened=tuple(intervened for _, intervened in written),
        setup=bound.named,
        strength=float(strength),
        max_new_tokens=int(max_new_tokens),
        temperature=float(temperature),
        seed=int(seed),
        model=model_name(model),
        dataset=others.name,
        dataset_fingerprint=fingerprint,
    )


def _continued(
    model: HookedModel,
    tokenizer: Any,
    ids: Tensor,
    hooks: list[Hook],
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> str:
    """The text that a model goes on with, from the cache of keys and values."""
    original: Any = getattr(model, "original_model", None)
    if original is None:
        raise UnsupportedModelError("Only models of Hugging Face generate. Use tk.load_model.")
    sampled = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    with hooked(model, hooks), torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        whole = original.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=bool(temperature),
            pad_token_id=tokenizer.eos_token_id,
            **sampled,
        )
    return str(tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True))
