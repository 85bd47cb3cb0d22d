"""What a model writes with a set replaced, beside what it writes by itself; steering."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tracekit._util import progress
from tracekit._util.options import check_seed, is_int, short_repr
from tracekit.components import ComponentRegistry
from tracekit.components.masks import from_indices
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.chat import Chat
from tracekit.data.prompts import PromptPairs
from tracekit.data.tokenization import require_tokenizer
from tracekit.engine.capabilities import Capabilities
from tracekit.engine.patching import constant_hooks
from tracekit.errors import ComponentError, ConfigError, UnsupportedModelError
from tracekit.measure.question import Question
from tracekit.models import HookedModel, model_name
from tracekit.models.hooked import Hook, freeze
from tracekit.results.generations import Generations


def _check_no_edges(registry: ComponentRegistry) -> None:
    if registry.edges is not None:
        raise ComponentError(
            "Edges are patched on prompts that have counterfactual ones, not while text is "
            "written. Trace the heads and MLPs that they join, which result.nodes names."
        )


@contextmanager
def hooked(model: HookedModel, hooks: list[Hook]) -> Iterator[HookedModel]:
    """Within the block every pass of the model has the hooks; other threads wait."""
    with freeze(model), model.hooks(fwd_hooks=hooks):  # type: ignore[attr-defined]
        yield model


def steer(
    question: Question, members: ComponentsLike, strength: float = 1.0
) -> AbstractContextManager[HookedModel]:
    """A block in which every pass of the model has a set replaced, at every token.

    Args:
        question: The question.
        members: As in `explain`; one component is enough.
        strength: 0 is the model as it is, 1 the values of the source; others interpolate.

    Raises:
        ConfigError: A source other than zeros, means and tensors, or components split by span.
        MaskError, ComponentError: About the set.
    """
    registry = question.registry
    _check_no_edges(registry)
    mask = from_indices(members_of(members, registry), len(registry)).float()
    constants = question.search_engine.counterfactual_cache.constants
    if constants is None or constants.positional:
        raise ConfigError(
            f"The source {question.source!r} has values for prompts of its own only, and "
            "steering acts on any text. Use source='zero', 'mean' or tensors, or "
            "generate(..., counterfactuals=...)."
        )
    if registry.spans:
        raise ConfigError("Spans act at some tokens only. Steer with a trace without split_by.")
    return hooked(question.model, constant_hooks(registry, constants, strength * mask))


def generate(
    question: Question,
    members: ComponentsLike,
    prompts: str | Sequence[Any],
    counterfactuals: str | Sequence[Any] | None = None,
    *,
    max_new_tokens: int = 20,
    temperature: float = 0.0,
    strength: float = 1.0,
    chat: Chat = False,
    seed: int = 0,
    checkpoint_settings: bool = False,
) -> Generations:
    """What the model writes after prompts, by itself and with a set replaced, side by side.

    With `positions="all"` zeros, means and tensors act on the new tokens too. Else the set is
    replaced in the prompt, and the new tokens read its keys and values.

    Args:
        question: The question.
        members: As in `explain`; one component is enough.
        prompts: A text or several; with `chat`, what the user says, or messages.
        counterfactuals: With `source="counterfactual"`, one for each prompt, of as many tokens.
        max_new_tokens: Tokens to write at most.
        temperature: 0 takes the likeliest token, more samples.
        strength: As in `steer`.
        chat: As in `PromptPairs.from_text`.
        seed: Draws the sampled tokens: the same for both.
        checkpoint_settings: Whether settings of the checkpoint, such as beams, act on both.

    Raises:
        ConfigError: About the options, or counterfactuals that are lacking or of no use.
        PairsError, SourceError: The prompts do not suit the setup.
        MaskError, ComponentError: About the set.
    """
    check_seed(seed)
    _check_no_edges(question.registry)
    selection = members_of(members, question.registry)
    if question.setup.split_by not in (None, "position"):
        raise ConfigError(
            "The components are split by span, and a new prompt does not say where its spans are. "
            "Build a tracer without split_by, e.g. with positions='last', and generate with that."
        )
    if not is_int(max_new_tokens) or max_new_tokens < 1 or not temperature >= 0:
        raise ConfigError(
            f"max_new_tokens is {short_repr(max_new_tokens)} and the temperature "
            f"{short_repr(temperature)}. Give at least one token, and 0 for the likeliest one."
        )
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    other_prompts = [counterfactuals] if isinstance(counterfactuals, str) else counterfactuals
    if (other_prompts is None) == (question.source == "counterfactual") or (
        other_prompts is not None and len(other_prompts) != len(prompts)
    ):
        raise ConfigError(
            f"There are {len(prompts)} prompts and {len(other_prompts or ())} counterfactuals. "
            "With source='counterfactual', give each prompt a counterfactual of as many tokens; "
            "with other sources, give no counterfactuals."
        )
    tokenizer, model = require_tokenizer(question.model), question.model
    # Pairs need a continuation. Any will do, as only the prompts are used.
    rows = [{"prompt": prompt, "x": "a"} for prompt in prompts]
    if other_prompts is not None:
        both = zip(rows, other_prompts, strict=True)
        rows = [row | {"counterfactual": other} for row, other in both]
    pairs = PromptPairs.from_text(rows, tokenizer, chat=chat, warn=False)
    if other_prompts is not None:
        pairs.report.without("repeated").warn()
    single = tuple(replace(pair, x_ids=pair.x_ids[:1]) for pair in pairs)
    if question.source == "resample":
        # One by one: no prompt is drawn for another.
        pools = [replace(question.pairs, pairs=(pair, *question.pairs)) for pair in single]
        single = tuple(question.apply_source(pool)[0] for pool in pools)
        question = replace(question, apply_source=lambda pairs: pairs)
    config = replace(question.config, capabilities=Capabilities.none())
    engine = replace(question, config=config).engine_of(
        replace(pairs, pairs=single), metric="probability-drop", direction="noising"
    )
    mask = strength * from_indices(selection, engine.n_components).float()
    constants = engine.counterfactual_cache.constants
    texts_of_prompts = []
    for number in progress.track(range(len(prompts)), "generate", shown=question.config.progress):
        (batch,) = engine.batches_of(torch.tensor([number]), of_all_ranks=True)
        if constants is not None and not constants.positional and question.setup.positions == "all":
            hooks = constant_hooks(question.registry, constants, mask)
        else:
            with engine.measuring():
                source = engine.counterfactual_cache.activations_for(batch)
            hooks = engine.hooks(batch, source, mask.to(engine.device))
        ids = torch.tensor([single[number].prompt_ids], device=engine.device)
        options = (max_new_tokens, temperature, seed, checkpoint_settings)
        texts_of_prompts.append(
            [_generate_text(model, tokenizer, ids, each, *options) for each in ([], hooks)]
        )
    texts = [pair.texts or {} for pair in pairs]
    other_texts = [] if other_prompts is None else [each["counterfactual"] for each in texts]
    return Generations(
        registry=question.registry,
        members=selection,
        prompts=tuple(each["prompt"] for each in texts),
        counterfactuals=None if other_prompts is None else tuple(other_texts),
        clean=tuple(clean for clean, _ in texts_of_prompts),
        intervened=tuple(intervened for _, intervened in texts_of_prompts),
        setup=question.named_setup,
        strength=float(strength),
        max_new_tokens=int(max_new_tokens),
        temperature=float(temperature),
        seed=int(seed),
        checkpoint_settings=checkpoint_settings,
        model=model_name(model),
        dataset=question.pairs.name,
        dataset_fingerprint=question.search_engine.fingerprint,
    )


def _generate_text(
    model: HookedModel,
    tokenizer: Any,
    ids: Tensor,
    hooks: list[Hook],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    checkpoint_settings: bool,
) -> str:
    original: Any = getattr(model, "original_model", None)
    if original is None:
        raise UnsupportedModelError("Only models of Hugging Face generate. Use tk.load_model.")
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": bool(temperature)}
    options["pad_token_id"] = tokenizer.eos_token_id
    if temperature:
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    with hooked(model, hooks), torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        settings = original.generation_config
        if not checkpoint_settings:
            # Of the checkpoint's, which transformers would add, only what ends a text.
            original.generation_config = type(settings)(eos_token_id=settings.eos_token_id)
        try:
            whole = original.generate(ids, attention_mask=torch.ones_like(ids), **options)
        finally:
            original.generation_config = settings
    return str(tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True))
