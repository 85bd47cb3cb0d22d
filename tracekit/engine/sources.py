"""Sources: where the values come from that an intervention puts in, for a whole data set.

A source turns the pairs of a data set into pairs with the counterfactuals that it stands for.
`counterfactual` leaves them as they are. The others need no counterfactual prompt:

    noise             fixed noise on the embeddings of the prompt, three times as large as these;
                      a `Noise` says of which spans, and another factor
    zero              zeros
    mean              one vector a component: the mean over every prompt position of every example
    mean-positional   the mean over examples at each prompt position
    resample          the activations of another example with as many tokens, drawn once for each
    an `OtherModel`   the activations of another model on the same tokens
    a mapping         tensors of one's own, by hook point
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isfinite
from typing import Any, cast, get_args

import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import assert_never

from tracekit._util.files import digest_of, tensors_digest
from tracekit._util.names import SourceName
from tracekit._util.options import check_seed, first_few, shortened
from tracekit._util.warn import warn
from tracekit.components import ComponentRegistry, Kind
from tracekit.data.counterfactuals import (
    ConstantCounterfactual,
    Constants,
    Counterfactual,
    GaussianNoise,
    Ids,
    NoiseCounterfactual,
    OtherModelCounterfactual,
    PromptCounterfactual,
    draw_key,
)
from tracekit.data.pair import PromptPair, drawn_by
from tracekit.data.prompts import PromptPairs
from tracekit.data.spans import with_implied
from tracekit.engine.edge_checks import check_other
from tracekit.engine.layout import Positions, buckets
from tracekit.engine.packing import pad
from tracekit.engine.patching import SeenRows
from tracekit.errors import ModelWarning, SourceError
from tracekit.models import load_model
from tracekit.models.architectures import long_rope_limit, scores_hook
from tracekit.models.hooked import (
    Hook,
    HookedModel,
    device_of,
    embedding_std,
    frozen,
    is_processed,
    model_name,
    recording_hooks,
    weights_digest,
)

_OWN_TENSORS = "own tensors"
_SHOWN_DIGITS = 8
"""Hexadecimal digits of a digest that stand in the name of a source."""
ToPairs = Callable[[PromptPairs], PromptPairs]


@dataclass(frozen=True, kw_only=True, eq=False)
class Mean:
    """Means over the prompts of other pairs than those that are traced."""

    pairs: PromptPairs
    """Whose prompts are run; their counterfactuals and continuations do not matter."""
    positional: bool = False
    """Whether every prompt position has a mean of its own."""

    def __post_init__(self) -> None:
        if not isinstance(self.pairs, PromptPairs):
            raise SourceError(
                f"The mean is over {shortened(self.pairs)}. Give PromptPairs, e.g. of "
                "tk.load_dataset."
            )


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Fixed noise on the embeddings of the prompt, or of spans of it."""

    spans: tuple[str, ...] | None = None
    """The spans that are disturbed, e.g. `("subject",)` as in ROME; None: the whole prompt."""
    factor: float = 3.0
    """Standard deviation of the noise over that of the embeddings: 3 in the paper and in ROME."""

    def __post_init__(self) -> None:
        is_number = isinstance(self.factor, (int, float)) and isfinite(self.factor)
        if not is_number or isinstance(self.factor, bool) or self.factor <= 0:
            raise SourceError(f"The noise has a factor of {self.factor!r}. It must be positive.")
        is_list = isinstance(self.spans, (tuple, list)) and len(self.spans) > 0
        if self.spans is None:
            return
        if not is_list or not all(isinstance(name, str) for name in self.spans):
            raise SourceError(
                f"The spans of the noise are {self.spans!r}. Give a tuple of names, or None for "
                "the whole prompt."
            )
        object.__setattr__(self, "spans", tuple(self.spans))

    def describe(self) -> str:
        """Its name in results; `source_of_name` understands it."""
        on = "" if self.spans is None else f" on {', '.join(self.spans)}"
        # As short as it can be without another value.
        short = f"{self.factor:g}"
        factor = short if float(short) == self.factor else repr(self.factor)
        return f"noise{on}" + ("" if self.factor == 3 else f" times {factor}")


@dataclass(frozen=True, eq=False)
class OtherModel:
    """Values from another model's run on the same tokens: base against fine-tuned, say.

    ```python
    tracer = tk.Tracer(tuned, pairs, "head-outputs", source=tk.OtherModel("gpt2"))
    ```
    """

    model: Any
    """A model, or what `load_model` takes; with the sizes and the tokens of the traced one."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, HookedModel):
            object.__setattr__(self, "model", load_model(self.model))

    @cached_property
    def digest(self) -> str:
        """Digest of its weights."""
        return weights_digest(self.model)


Source = SourceName | Mean | Noise | OtherModel | Mapping[str, Tensor]


def draws(source: Source | str) -> bool:
    """Whether a source draws, so that its seed matters."""
    if isinstance(source, str):
        return source == "resample" or source.startswith("noise")
    return isinstance(source, Noise)


def name_of(source: Source | str) -> str:
    """The name that results give a source.

    What its words leave open is in brackets, as a digest: the pairs of a mean, the weights of
    another model, the user's tensors. Two sources of one name give the same values.
    """
    if isinstance(source, str):
        return source
    if isinstance(source, Noise):
        return source.describe()
    if isinstance(source, Mean):
        named = f"{'mean-positional' if source.positional else 'mean'} of {source.pairs.name}"
        digest = source.pairs.fingerprint
    elif isinstance(source, OtherModel):
        named, digest = f"model {model_name(source.model)}", source.digest
    else:
        named, digest = _OWN_TENSORS, _digest_of_tensors(source)
    return f"{named} ({digest[:_SHOWN_DIGITS]})"


def _digest_of_tensors(values: Mapping[str, Tensor]) -> str:
    """Equal for equal tensors; of anything else, which is refused later, by its text."""
    if isinstance(values, Mapping) and all(isinstance(v, Tensor) for v in values.values()):
        return tensors_digest({str(name): each.detach().cpu() for name, each in values.items()})
    return digest_of({"values": shortened(values)})


def source_of_name(name: str) -> Source:
    """The source that results call by a name, e.g. `zero` or `noise on subject times 2.5`."""
    if name in get_args(SourceName):
        return cast(SourceName, name)
    noise = re.fullmatch(r"noise(?: on (?P<spans>.+?))?(?: times (?P<factor>[\d.e+-]+))?", name)
    if noise is not None:
        spans, factor = noise["spans"], noise["factor"]
        with suppress(ValueError):
            return Noise(
                spans=None if spans is None else tuple(spans.split(", ")),
                factor=3.0 if factor is None else float(factor),
            )
    by_name = ", ".join(get_args(SourceName))
    if re.match(rf"(mean(-positional)? of|model|{_OWN_TENSORS}) ", name):
        raise SourceError(
            f"The source {name!r} takes more than its name. By name there are {by_name}, and noise "
            "on spans, e.g. 'noise on subject'. Build the tracer in Python for others."
        )
    raise SourceError(
        f"Unknown source {name!r}. Use one of {by_name}, or noise on spans, e.g. "
        "'noise on subject'."
    )


def resolve_source(
    source: Source | str,
    model: HookedModel,
    pairs: PromptPairs,
    registry: ComponentRegistry,
    *,
    positions: Positions = "prompt",
    seed: int = 0,
    max_batch_size: int = 64,
) -> ToPairs:
    """A function that gives pairs the counterfactuals of a source.

    `mean` is taken over the prompts of `pairs`; only hook points of `registry` get values. The seed
    draws noise and other examples.
    """
    check_seed(seed)
    kinds = registry.kinds_by_hook
    if isinstance(source, str):
        source = source_of_name(source)
    if isinstance(source, OtherModel):
        return _of_other_model(source.model, model, registry)
    if not isinstance(source, (str, Mean, Noise)):
        _refuse_features(registry)
        return _constant(Constants(_OWN_TENSORS, _checked(source, model, kinds)))
    named = cast("SourceName | Mean | Noise", source)
    if named == "counterfactual":
        return lambda given: given
    if named == "resample":
        return lambda given: _resampled(given, seed)
    if named == "noise" or isinstance(named, Noise):
        return _noise(named if isinstance(named, Noise) else Noise(), model, seed)
    _refuse_features(registry)
    _refuse_scores(kinds)
    if named == "zero":
        if is_processed(model):
            warn(
                f"TransformerLens processed the weights of {model_name(model)} (folded, centred), "
                "so an activation of zero is another one than in the Hugging Face model. Load it "
                "by tk.load_model for zero ablation, or use source='mean'.",
                ModelWarning,
            )
        values = {name: torch.zeros(shape) for name, shape in _shapes(model, kinds).items()}
        return _constant(Constants("zero", values))
    if named == "mean" or named == "mean-positional" or isinstance(named, Mean):
        over = named.pairs if isinstance(named, Mean) else pairs
        _check_runs(over, model)
        _check_seen(model, kinds)
        positional = named.positional if isinstance(named, Mean) else named == "mean-positional"
        if positional:
            _check_positional(over, pairs, kinds, positions)
        means = _means(model, over, kinds, positional, max_batch_size)
        length = len(over[0].prompt_ids) if positional else None
        return _constant(Constants(name_of(named), means, positional), length)
    assert_never(named)  # A new name needs a branch of its own.


def _refuse_features(registry: ComponentRegistry) -> None:
    if any(site.kind.feature_layers for site in registry.sites):
        raise SourceError(
            "Features take their values from a run of the model. Use source='counterfactual', "
            "'noise' or 'resample'."
        )


def _constant(constants: Constants, length: int | None = None) -> ToPairs:
    counterfactual = ConstantCounterfactual(constants)

    def apply(pairs: PromptPairs) -> PromptPairs:
        for number, pair in enumerate(pairs):
            if length not in (None, len(pair.prompt_ids)):
                raise SourceError(
                    f"Example {number} ({pair.describe()}) has {len(pair.prompt_ids)} tokens, and "
                    f"the means at each position are of prompts of {length}. Use source='mean'."
                )
        return with_counterfactuals(pairs, [counterfactual] * len(pairs))

    return apply


def with_counterfactuals(
    pairs: PromptPairs, counterfactuals: Sequence[Counterfactual]
) -> PromptPairs:
    """Pairs with other counterfactuals, one by one."""
    changed = [
        replace(pair, counterfactual=to, counterfactual_spans=None, drawn_for=pair.prompt_ids)
        for pair, to in zip(pairs, counterfactuals, strict=True)
    ]
    return replace(pairs, pairs=tuple(changed))


def _noise(source: Noise, model: HookedModel, seed: int) -> ToPairs:
    noise = GaussianNoise(std=source.factor * embedding_std(model), seed=seed)
    width = int(model.cfg.d_model)

    def in_spans(number: int, pair: PromptPair, draw: Tensor) -> Tensor:
        if source.spans is None:
            return draw
        spans = with_implied(pair.spans or {}, len(pair.prompt_ids), rest=True)
        lacking = [name for name in source.spans if name not in spans]
        if lacking:
            raise SourceError(
                f"The noise is on {lacking[0]!r}, and example {number} ({pair.describe()}) has "
                f"the spans {', '.join(spans) or 'none'}. Name one of these."
            )
        disturbed = torch.zeros(len(draw), 1)
        disturbed[[position for name in source.spans for position in spans[name]]] = 1
        return draw * disturbed

    def apply(pairs: PromptPairs) -> PromptPairs:
        lengths = [len(pair.prompt_ids) for pair in pairs]
        draws = noise.draw(lengths, width, [drawn_by(vars(pair)) for pair in pairs])
        drawn = [in_spans(n, *each) for n, each in enumerate(zip(pairs, draws, strict=True))]
        return with_counterfactuals(pairs, [NoiseCounterfactual(draw) for draw in drawn])

    return apply


def _resampled(pairs: PromptPairs, seed: int) -> PromptPairs:
    """Every prompt gets another one of as many tokens as its counterfactual, drawn once.

    Every example ranks all prompts by a draw of its own and takes the first one that there is, so
    that a prompt more or less changes the draws of those alone who take it.
    """
    by_length: dict[int, list[Ids]] = {}
    for prompt in dict.fromkeys(pair.prompt_ids for pair in pairs):
        by_length.setdefault(len(prompt), []).append(prompt)
    keys = {
        length: torch.tensor([draw_key(seed, prompt) for prompt in prompts])
        for length, prompts in by_length.items()
    }
    counterfactuals: list[Counterfactual] = []
    alone = []
    for number, pair in enumerate(pairs):
        length = len(pair.prompt_ids)
        ranks = _mixed(keys[length], draw_key(seed, drawn_by(vars(pair))))
        # The prompt itself comes last.
        ranks[by_length[length].index(pair.prompt_ids)] = torch.iinfo(torch.int64).max
        if len(ranks) == 1:
            alone.append(f"example {number} ({pair.describe()}, {length} tokens)")
        counterfactuals.append(PromptCounterfactual(by_length[length][int(ranks.argmin())]))
    if alone:
        raise SourceError(
            f"source='resample' takes the activations of another prompt with as many tokens, and "
            f"there is none for {first_few(alone)}. Leave these examples out, or use "
            "source='mean'."
        )
    return with_counterfactuals(pairs, counterfactuals)


def _mixed(keys: Int[Tensor, " prompt"], key: int) -> Int[Tensor, " prompt"]:
    """Keys with another one mixed in, as numbers that look random (the mixer of splitmix64)."""
    mixed = keys ^ key
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
        # Arithmetic shifts of 64-bit numbers; products wrap around.
        mixed = (mixed ^ (mixed >> shift)) * factor
    return mixed


def _of_other_model(other: HookedModel, model: HookedModel, registry: ComponentRegistry) -> ToPairs:
    """Every prompt is read by another model, which has the same tokens and sizes."""
    kinds = registry.kinds_by_hook
    own, vocabulary = _shapes(model, kinds), int(model.cfg.d_vocab)
    lacking = [name for name in kinds if name not in other.hook_dict]
    if lacking or int(other.cfg.d_vocab) != vocabulary or _shapes(other, kinds) != own:
        raise SourceError(
            f"{model_name(other)} has other sizes than {model_name(model)}: its values do not fit. "
            "Give a checkpoint of the same architecture and vocabulary, e.g. the base model."
        )
    if registry.edges is not None:
        check_other(model, other, registry.edges.by)
    counterfactual = OtherModelCounterfactual(other, weights_digest(other))
    return lambda given: with_counterfactuals(given, [counterfactual] * len(given))


def _refuse_scores(kinds: Mapping[str, Kind]) -> None:
    """Refuses constants where keys may be seen that a query must not see."""
    for name, kind in kinds.items():
        if kind.key_dim is not None and not kind.is_attention_pattern:
            raise SourceError(
                f"At {name} every query has values for all keys, the later ones included, and a "
                "constant would let it see these. Use source='counterfactual', 'noise' or "
                "'resample'."
            )


def _check_seen(model: HookedModel, kinds: Mapping[str, Kind]) -> None:
    """Refuses mean rows of attention where the model does not say which keys a query sees."""
    for name in (name for name, kind in kinds.items() if kind.is_attention_pattern):
        rows = SeenRows(Constants("", {name: torch.ones(1, 2)}), name)
        previous: list[Tensor] = []

        def cut(pattern: Tensor, hook: Any = None, *, rows: SeenRows, into: list[Tensor]) -> Tensor:
            into.append(rows(2, slice(None), slice(None)) > 0)
            return pattern

        hooks = [rows.hook, (name, partial(cut, rows=rows, into=previous))]
        tokens = torch.zeros(1, 2, dtype=torch.long, device=device_of(model))
        with frozen(model), torch.no_grad():
            model.run_with_hooks(tokens, fwd_hooks=hooks)
        if not torch.equal(previous[0].cpu(), torch.ones_like(previous[0].cpu()).tril()):
            raise SourceError(
                f"{scores_hook(name)} does not say which keys a query sees in "
                f"{model_name(model)}, and a mean row is over these. Use source='zero', "
                "'counterfactual' or 'resample', or head-outputs."
            )


def _check_runs(pairs: PromptPairs, model: HookedModel) -> None:
    """Refuses prompts for means that the model cannot run."""
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


def _means(
    model: HookedModel,
    pairs: PromptPairs,
    kinds: Mapping[str, Kind],
    positional: bool,
    max_batch_size: int,
) -> dict[str, Tensor]:
    """Mean activations over prompt positions and examples, by hook point, without a row axis."""
    prompts = [pair.prompt_ids for pair in pairs]
    all_lengths = torch.tensor([len(prompt) for prompt in prompts])
    longest = int(all_lengths.max())
    beyond = all_lengths > (long_rope_limit(model) or float("inf"))
    sums: dict[str, Tensor] = {}
    device = device_of(model)
    with frozen(model), torch.no_grad():
        for numbers in buckets(all_lengths, beyond, max_batch_size, device):
            part, lengths = [prompts[n] for n in numbers.tolist()], all_lengths[numbers]
            is_token = torch.arange(int(lengths.max())) < lengths[:, None]
            hooks = [
                _summing(name, kind, is_token, positional, longest, sums)
                for name, kind in kinds.items()
            ]
            model.run_with_hooks(pad(part).to(device), fwd_hooks=hooks)
    count = len(prompts) if positional else sum(map(len, prompts))
    return {name: (total / count).float() for name, total in sums.items()}


def _summing(
    name: str, kind: Kind, is_token: Tensor, positional: bool, longest: int, sums: dict[str, Tensor]
) -> Hook:
    """A hook that adds an activation, at the positions that hold tokens, to a sum."""

    def add(activation: Tensor, hook: Any = None) -> Tensor:
        values = activation.detach().cpu().double()
        shape = [1] * values.ndim
        shape[0], shape[kind.position_dim] = is_token.shape
        values = torch.where(is_token.reshape(shape), values, 0.0)
        if kind.key_dim is not None:
            # Rows of attention over different numbers of keys: the missing keys get none.
            values = torch.nn.functional.pad(values, (0, longest - values.shape[-1]))
        total = values.sum(0) if positional else values.sum((0, kind.position_dim))
        sums[name] = sums[name] + total if name in sums else total
        return activation

    return name, add


def _shapes(model: HookedModel, kinds: Mapping[str, Kind]) -> dict[str, list[int]]:
    """Sizes of an activation without the axes of row and position, by hook point."""
    hooks, recorded = recording_hooks(kinds)
    tokens = torch.zeros(1, 1, dtype=torch.long, device=device_of(model))
    with frozen(model), torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=hooks)
    return {
        name: [size for axis, size in enumerate(recorded[name][-1].shape) if axis not in (0, pos)]
        for name, pos in ((name, kind.position_dim) for name, kind in kinds.items())
    }


def _checked(tensors: Any, model: HookedModel, kinds: Mapping[str, Kind]) -> dict[str, Tensor]:
    """A user's tensors, one for each hook point, of the shape that is needed there."""
    if not isinstance(tensors, Mapping):
        raise SourceError(
            f"The source is a {type(tensors).__name__}. Use one of "
            f"{', '.join(get_args(SourceName))}, a Mean, or a mapping from hook point to tensor."
        )
    missing = sorted(set(kinds) - set(tensors))
    if missing:
        raise SourceError(
            f"The source has no tensor for the hook point {missing[0]}. It needs one for each of "
            f"{', '.join(sorted(kinds))}."
        )
    values: dict[str, Tensor] = {}
    for name, shape in _shapes(model, kinds).items():
        if kinds[name].key_dim is not None:
            raise SourceError(
                "Attention patterns take no tensor of one's own: a row depends on the number of "
                "keys. Use source='zero', 'mean' or 'resample', or head-outputs."
            )
        try:
            value = torch.as_tensor(tensors[name]).detach().float().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise SourceError(
                f"The source has {shortened(tensors[name])} at {name}. Give a tensor of shape "
                f"{tuple(shape)}."
            ) from error
        if list(value.shape) != shape:
            raise SourceError(
                f"The tensor of the source at {name} has shape {tuple(value.shape)}. It needs "
                f"{tuple(shape)}: an activation without the axes of row and position."
            )
        if not torch.isfinite(value).all():
            raise SourceError(f"The tensor of the source at {name} is not finite.")
        values[name] = value
    return values
