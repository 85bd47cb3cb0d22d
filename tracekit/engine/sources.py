"""Sources: where the values come from that an intervention puts in, for a whole data set.

A source turns the pairs of a data set into pairs with the counterfactuals that it stands for. Only
`counterfactual` reads their own; `noise`, `zero`, `mean`, `mean-positional` and `resample` do not.

Every source has a `name`, by which it is saved, printed and given on the command line: `NAME` or
`NAME:OPTION=VALUE`, as in `noise:spans=subject,factor=5`. Where this leaves something open, the
name has a digest. A new source is a class with an entry in `SOURCES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tracekit._util.files import json_digest, tensors_digest
from tracekit._util.options import join_first, short_repr
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
from tracekit.data.from_file import SUFFIXES, load_prompts
from tracekit.data.pair import PromptPair, draw_tokens
from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import load_dataset
from tracekit.data.spans import add_implied_spans
from tracekit.engine.batch import length_buckets, pad_ids
from tracekit.engine.edge_checks import check_other_model
from tracekit.engine.layout import Positions
from tracekit.engine.patching import SeenRows
from tracekit.errors import ModelWarning, SourceError
from tracekit.models import load_model
from tracekit.models.architectures import long_rope_limit, scores_hook
from tracekit.models.hooked import (
    HookedModel,
    device_of,
    embedding_std,
    freeze,
    has_processed_weights,
    model_name,
    record_pass,
    weights_digest,
)

_SHOWN_DIGITS = 8
"""Hexadecimal digits of a digest that stand in the name of a source."""
ToPairs = Callable[[PromptPairs], PromptPairs]
"""Gives pairs the counterfactuals of a source."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Binding:
    """The model, data and settings for which a source makes its values."""

    model: HookedModel
    pairs: PromptPairs
    """The data set, with its spans; means are taken over it."""
    registry: ComponentRegistry
    """Only hook points of these components get values."""
    positions: Positions
    seed: int
    """Draws noise and other examples."""
    max_batch_size: int


class Source:
    """Where the values come from that are patched in."""

    kind: ClassVar[str]
    """The first part of its name."""
    draws: ClassVar[bool] = False
    """Whether it draws random values, so that its seed matters."""

    @property
    def name(self) -> str:
        """The name that `parse_source` reads."""
        return self.kind

    @property
    def reads_spans(self) -> bool:
        """Whether it reads the spans that prompts name, whatever components are split by."""
        return False

    def with_options(self, options: Mapping[str, str]) -> Source:
        """The source with options as they stand in a name; refuses any that it lacks."""
        if options:
            raise SourceError(f"The source {self.kind!r} has no options. Give {self.kind!r} alone.")
        return self

    def code(self) -> str:
        """Python that makes it, after `import tracekit as tk`; `...` where nothing does."""
        return repr(self.name) if self.name in SOURCES else "..."

    def bind(self, at: Binding) -> ToPairs:
        """A function that gives pairs the counterfactuals of the source on a model.

        Raises:
            SourceError: The source does not suit the data, the components or the model.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class PairCounterfactual(Source):
    """The counterfactual of each pair: its own prompt, or noise."""

    kind: ClassVar[str] = "counterfactual"

    def bind(self, at: Binding) -> ToPairs:
        """Leaves pairs as they are."""
        return lambda pairs: pairs


@dataclass(frozen=True)
class Zero(Source):
    """Zeros."""

    kind: ClassVar[str] = "zero"

    def bind(self, at: Binding) -> ToPairs:
        """Zeros at every hook point."""
        kinds = at.registry.kinds_by_hook
        _check_constant(at.registry)
        if has_processed_weights(at.model):
            warn(
                f"TransformerLens processed the weights of {model_name(at.model)} (folded, "
                "centred), so an activation of zero is another one than in the Hugging Face model. "
                "Load it by tk.load_model for zero ablation, or use source='mean'.",
                ModelWarning,
            )
        values = {name: torch.zeros(shape) for name, shape in _get_shapes(at.model, kinds).items()}
        return _bind_constants(Constants(self.name, values))


@dataclass(frozen=True, kw_only=True, eq=False)
class Mean(Source):
    """Means over all prompt positions of all examples of a data set: the traced one, or another."""

    pairs: PromptPairs | str | Path | None = None
    """Pairs whose prompts are run, the name of a data set, or a file, which needs no answers (of a
    `.txt` file, each line is a prompt). None: the traced pairs."""
    positional: bool = False
    """Whether every prompt position has a mean of its own, over the examples."""
    digest: str | None = None
    """How the SHA-256 of the file begins, as names have it; None: whatever it holds."""

    def __post_init__(self) -> None:
        if not isinstance(self.pairs, PromptPairs | str | Path | None):
            raise SourceError(
                f"The mean is over {short_repr(self.pairs)}. Give PromptPairs, e.g. of "
                "tk.load_dataset, or the path of a file."
            )

    @property
    def kind(self) -> str:  # type: ignore[override]
        """`mean` or `mean-positional`."""
        return "mean-positional" if self.positional else "mean"

    @property
    def name(self) -> str:
        """Includes the file or data set, or the name of pairs, which need Python."""
        if isinstance(self.pairs, PromptPairs):
            fingerprint = self.pairs.fingerprint[:_SHOWN_DIGITS]
            return f"{self.kind} over {self.pairs.name} ({fingerprint})"
        if self.pairs is None:
            return self.kind
        digest = self.digest or self._file_digest()
        return f"{self.kind}:pairs={self.pairs}" + (f",digest={digest}" if digest else "")

    def _file_digest(self) -> str | None:
        file = Path(str(self.pairs))
        if not file.is_file():
            return None
        return hashlib.sha256(file.read_bytes()).hexdigest()[:_SHOWN_DIGITS]

    def with_options(self, options: Mapping[str, str]) -> Mean:
        """With `pairs`, a file or the name of a data set, and perhaps the `digest` of the file."""
        _check_options(self.kind, options, ("pairs", "digest"))
        return replace(self, pairs=options.get("pairs"), digest=options.get("digest"))

    def code(self) -> str:
        """Python that makes it; `...` for pairs."""
        if self.pairs is None:
            return repr(self.name)
        pairs = "..." if isinstance(self.pairs, PromptPairs) else repr(str(self.pairs))
        return f"tk.Mean(pairs={pairs}{', positional=True' if self.positional else ''})"

    def bind(self, at: Binding) -> ToPairs:
        """Means of every hook point."""
        over = self.pairs
        _check_constant(at.registry)
        if over is None:
            over = at.pairs
        elif not isinstance(over, PromptPairs):
            if self.digest not in (None, self._file_digest()):
                raise SourceError(
                    f"The mean is over the prompts of {over}, which has changed since: its digest "
                    f"is {self._file_digest()}, and {self.digest} was asked for. Restore the file, "
                    "or leave the digest out."
                )
            is_file = Path(over).suffix in (*SUFFIXES, ".txt")
            over = (load_prompts if is_file else load_dataset)(str(over), at.model)
        means = _mean_activations(at, over, positional=self.positional)
        length = len(over[0].prompt_ids) if self.positional else None
        return _bind_constants(Constants(self.name, means, self.positional), length)


@dataclass(frozen=True, kw_only=True)
class Noise(Source):
    """Fixed noise on the embeddings of the prompt, or of spans of it."""

    kind: ClassVar[str] = "noise"
    draws: ClassVar[bool] = True

    spans: tuple[str, ...] | None = None
    """The spans that are disturbed, e.g. `("subject",)` as in ROME; None: the whole prompt."""
    factor: float = 3.0
    """Standard deviation of the noise over that of the embeddings: 3 in the paper and in ROME."""

    def __post_init__(self) -> None:
        is_number = isinstance(self.factor, (int, float)) and isfinite(self.factor)
        if not is_number or isinstance(self.factor, bool) or self.factor <= 0:
            raise SourceError(f"The noise has a factor of {self.factor!r}. It must be positive.")
        if self.spans is None:
            return
        is_list = isinstance(self.spans, (tuple, list)) and len(self.spans) > 0
        if not is_list or not all(isinstance(name, str) for name in self.spans):
            raise SourceError(
                f"The spans of the noise are {self.spans!r}. Give a tuple of names, or None for "
                "the whole prompt."
            )
        object.__setattr__(self, "spans", tuple(self.spans))

    @property
    def name(self) -> str:
        """Includes the spans, and the factor if it is not 3."""
        options = [] if self.spans is None else [f"spans={'+'.join(self.spans)}"]
        if self.factor != 3:
            # As short as it can be without being another value.
            short = f"{self.factor:g}"
            factor = short if float(short) == self.factor else repr(self.factor)
            options.append(f"factor={factor}")
        return f"{self.kind}:{','.join(options)}" if options else self.kind

    @property
    def reads_spans(self) -> bool:
        """Whether the noise is limited to spans."""
        return self.spans is not None

    def with_options(self, options: Mapping[str, str]) -> Noise:
        """With `spans`, joined by `+`, and `factor`."""
        _check_options(self.kind, options, ("spans", "factor"))
        spans, factor = options.get("spans"), options.get("factor", "3")
        try:
            number = float(factor)
        except ValueError:
            raise SourceError(f"The factor of the noise is {factor!r}. Give a number.") from None
        return Noise(spans=None if spans is None else tuple(spans.split("+")), factor=number)

    def code(self) -> str:
        """Python that makes it."""
        return repr(self.name) if self == Noise() else f"tk.{self!r}"

    def bind(self, at: Binding) -> ToPairs:
        """Noise of every example by its tokens and the seed."""
        noise = GaussianNoise(std=self.factor * embedding_std(at.model), seed=at.seed)
        width = int(at.model.cfg.d_model)

        def apply(pairs: PromptPairs) -> PromptPairs:
            lengths = [len(pair.prompt_ids) for pair in pairs]
            draws = noise.draw(lengths, width, [draw_tokens(vars(pair)) for pair in pairs])
            counterfactuals = [
                NoiseCounterfactual(self._mask_to_spans(number, pair, draw))
                for number, (pair, draw) in enumerate(zip(pairs, draws, strict=True))
            ]
            return set_counterfactuals(pairs, counterfactuals)

        return apply

    def _mask_to_spans(self, number: int, pair: PromptPair, draw: Tensor) -> Tensor:
        if self.spans is None:
            return draw
        spans = add_implied_spans(pair.spans or {}, len(pair.prompt_ids), rest=True)
        lacking = [name for name in self.spans if name not in spans]
        if lacking:
            raise SourceError(
                f"The noise is on {lacking[0]!r}, and example {number} ({pair.describe()}) has "
                f"the spans {', '.join(spans) or 'none'}. Name one of these."
            )
        disturbed = torch.zeros(len(draw), 1)
        disturbed[[position for name in self.spans for position in spans[name]]] = 1
        return draw * disturbed


@dataclass(frozen=True, eq=False)
class OtherModel(Source):
    """Values from another model's run on the same tokens: base against fine-tuned, say."""

    kind: ClassVar[str] = "model"

    model: Any
    """A model, or what `load_model` takes; with the sizes and the tokens of the traced one."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, HookedModel):
            object.__setattr__(self, "model", load_model(self.model))

    @property
    def name(self) -> str:
        """Includes the model's name and a digest of its weights; only Python can make it."""
        return f"{self.kind} {model_name(self.model)} ({self.digest[:_SHOWN_DIGITS]})"

    @cached_property
    def digest(self) -> str:
        """Digest of its weights."""
        return weights_digest(self.model)

    def bind(self, at: Binding) -> ToPairs:
        """Every prompt is read by the other model."""
        other, model, kinds = self.model, at.model, at.registry.kinds_by_hook
        sizes, vocabulary = _get_shapes(model, kinds), int(model.cfg.d_vocab)
        lacking = [name for name in kinds if name not in other.hook_dict]
        if lacking or int(other.cfg.d_vocab) != vocabulary or _get_shapes(other, kinds) != sizes:
            raise SourceError(
                f"{model_name(other)} has other sizes than {model_name(model)}: its values do not "
                "fit. Give a checkpoint of the same architecture and vocabulary, e.g. the base "
                "model."
            )
        if at.registry.edges is not None:
            check_other_model(model, other, at.registry.edges.by)
        counterfactual = OtherModelCounterfactual(other, self.digest)
        return lambda given: set_counterfactuals(given, [counterfactual] * len(given))


@dataclass(frozen=True, eq=False)
class Tensors(Source):
    """Tensors of your own, by hook point."""

    kind: ClassVar[str] = "own tensors"

    values: Mapping[str, Tensor]
    """Each an activation without the axes of row and position."""

    @property
    def name(self) -> str:
        """Includes a digest of the tensors; only Python can make it."""
        if all(isinstance(each, Tensor) for each in self.values.values()):
            by_name = {str(name): each.detach().cpu() for name, each in self.values.items()}
            digest = tensors_digest(by_name)
        else:  # These are refused when the source is bound.
            digest = json_digest({"values": short_repr(self.values)})
        return f"{self.kind} ({digest[:_SHOWN_DIGITS]})"

    def bind(self, at: Binding) -> ToPairs:
        """The tensor of every hook point."""
        _check_constant(at.registry)
        kinds = at.registry.kinds_by_hook
        missing = sorted(set(kinds) - set(self.values))
        if missing:
            raise SourceError(
                f"The source has no tensor for the hook point {missing[0]}. It needs one for each "
                f"of {', '.join(sorted(kinds))}."
            )
        values: dict[str, Tensor] = {}
        for name, shape in _get_shapes(at.model, kinds).items():
            if kinds[name].key_dim is not None:
                raise SourceError(
                    "Attention patterns take no tensor of one's own: a row depends on the number "
                    "of keys. Use source='zero', 'mean' or 'resample', or head-outputs."
                )
            try:
                value = torch.as_tensor(self.values[name]).detach().float().cpu()
            except (TypeError, ValueError, RuntimeError) as error:
                raise SourceError(
                    f"The source has {short_repr(self.values[name])} at {name}. Give a tensor of "
                    f"shape {tuple(shape)}."
                ) from error
            if list(value.shape) != shape:
                raise SourceError(
                    f"The tensor of the source at {name} has shape {tuple(value.shape)}. It needs "
                    f"{tuple(shape)}: an activation without the axes of row and position."
                )
            if not torch.isfinite(value).all():
                raise SourceError(f"The tensor of the source at {name} is not finite.")
            values[name] = value
        return _bind_constants(Constants(self.name, values))


@dataclass(frozen=True)
class Resample(Source):
    """The activations of another example with as many tokens, drawn once for each."""

    kind: ClassVar[str] = "resample"
    draws: ClassVar[bool] = True

    def bind(self, at: Binding) -> ToPairs:
        """Prompts drawn by the seed."""
        return lambda pairs: _resample(pairs, at.seed)


_NAMED = (PairCounterfactual(), Noise(), Zero(), Mean(), Mean(positional=True), Resample())
SOURCES: Mapping[str, Source] = {source.name: source for source in _NAMED}
"""The sources that have a name; options are added to these."""
_PYTHON_ONLY = ("mean over ", "mean-positional over ", "model ", "own tensors ")
"""How names begin whose source only Python can give."""
WORDINGS = {
    "counterfactual": "counterfactual patching",
    "noise": "patching under noise",
    "zero": "zero ablation",
    "mean": "mean ablation",
    "mean-positional": "mean ablation by position",
    "resample": "resample ablation",
    "model": "patching from the model",
    "own": "patching of own",
}
"""What patching values of a source is called, by the first word of its name."""
AnySource = Source | str | Mapping[str, Tensor]
"""A source, its name, or tensors by hook point."""


def as_source(given: AnySource) -> Source:
    """The source that is given as an object, by its name, or as tensors by hook point."""
    if isinstance(given, str):
        return parse_source(given)
    if isinstance(given, Mapping):
        return Tensors(given)
    if not isinstance(given, Source):
        raise SourceError(
            f"The source is a {type(given).__name__}. Use one of {', '.join(SOURCES)}, a Mean, or "
            "a mapping from hook point to tensor."
        )
    return given


def parse_source(name: str) -> Source:
    """The source of a name, e.g. `zero` or `noise:spans=subject,factor=2.5`."""
    if name.startswith(_PYTHON_ONLY):
        raise SourceError(
            f"The source {name!r} takes more than its name. By name there are "
            f"{', '.join(SOURCES)}, with options as in 'noise:spans=subject' and "
            "'mean:pairs=prompts.jsonl'. Build the tracer in Python for others."
        )
    kind, colon, text = name.partition(":")
    if kind not in SOURCES:
        raise SourceError(
            f"Unknown source {name!r}. Use one of {', '.join(SOURCES)}, with options as in "
            "'noise:spans=subject' and 'mean:pairs=prompts.jsonl'."
        )
    options: dict[str, str] = {}
    for part in text.split(",") if colon else ():
        option, equals, value = part.partition("=")
        if not equals or not option or not value:
            raise SourceError(
                f"The source {name!r} has the option {part!r}. Write options as NAME=VALUE, as in "
                "'noise:spans=subject,factor=5'."
            )
        options[option] = value
    return SOURCES[kind].with_options(options) if options else SOURCES[kind]


def source_name(given: AnySource) -> str:
    """The name of a source."""
    if isinstance(given, str) and given.startswith(_PYTHON_ONLY):
        return given
    return as_source(given).name


def draws_values(given: AnySource) -> bool:
    """Whether a source draws random values, so that its seed matters; False if it is unknown."""
    if isinstance(given, str):
        kind = given.partition(":")[0]
        return kind in SOURCES and SOURCES[kind].draws
    return as_source(given).draws


def _check_options(kind: str, options: Mapping[str, str], allowed: Sequence[str]) -> None:
    for option in options:
        if option not in allowed:
            raise SourceError(
                f"The source {kind!r} has no option {option!r}. It takes {' and '.join(allowed)}."
            )


def _check_constant(registry: ComponentRegistry) -> None:
    """Refuses components to which a constant means nothing."""
    if any(site.kind.feature_layers for site in registry.sites):
        raise SourceError(
            "Features take their values from a run of the model. Use source='counterfactual', "
            "'noise' or 'resample'."
        )
    for name, kind in registry.kinds_by_hook.items():
        if kind.key_dim is not None and not kind.is_attention_pattern:
            raise SourceError(
                f"At {name} every query has values for all keys, the later ones included, and a "
                "constant would let it see these. Use source='counterfactual', 'noise' or "
                "'resample'."
            )


def _bind_constants(constants: Constants, length: int | None = None) -> ToPairs:
    counterfactual = ConstantCounterfactual(constants)

    def apply(pairs: PromptPairs) -> PromptPairs:
        for number, pair in enumerate(pairs):
            if length not in (None, len(pair.prompt_ids)):
                raise SourceError(
                    f"Example {number} ({pair.describe()}) has {len(pair.prompt_ids)} tokens, and "
                    f"the means at each position are of prompts of {length}. Use source='mean'."
                )
        return set_counterfactuals(pairs, [counterfactual] * len(pairs))

    return apply


def set_counterfactuals(
    pairs: PromptPairs, counterfactuals: Sequence[Counterfactual]
) -> PromptPairs:
    """Pairs with other counterfactuals, one by one."""
    changed = [
        replace(pair, counterfactual=to, counterfactual_spans=None, drawn_for=pair.prompt_ids)
        for pair, to in zip(pairs, counterfactuals, strict=True)
    ]
    return replace(pairs, pairs=tuple(changed))


def _resample(pairs: PromptPairs, seed: int) -> PromptPairs:
    # Every example ranks all prompts by a draw of its own and takes the first one that there is, so
    # that adding or removing a prompt changes only the draws of the examples that take it.
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
        ranks = keys[length] ^ draw_key(seed, draw_tokens(vars(pair)))
        # The mixer of splitmix64, by which ranks look random.
        for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
            # Arithmetic shifts of 64-bit numbers; products wrap around.
            ranks = (ranks ^ (ranks >> shift)) * factor
        # The prompt itself comes last.
        ranks[by_length[length].index(pair.prompt_ids)] = torch.iinfo(torch.int64).max
        if len(ranks) == 1:
            alone.append(f"example {number} ({pair.describe()}, {length} tokens)")
        counterfactuals.append(PromptCounterfactual(by_length[length][int(ranks.argmin())]))
    if alone:
        raise SourceError(
            f"source='resample' takes the activations of another prompt with as many tokens, and "
            f"there is none for {join_first(alone)}. Leave these examples out, or use "
            "source='mean'."
        )
    return set_counterfactuals(pairs, counterfactuals)


def _mean_activations(at: Binding, over: PromptPairs, *, positional: bool) -> dict[str, Tensor]:
    """Mean activations over the prompts of `over`, by hook point, without a row axis."""
    model, kinds = at.model, at.registry.kinds_by_hook
    _check_seen_keys(model, kinds)
    _check_prompts(over, at, positional=positional)
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
        for numbers in length_buckets(all_lengths, beyond, at.max_batch_size, device):
            part, lengths = [prompts[n] for n in numbers.tolist()], all_lengths[numbers]
            is_token = torch.arange(int(lengths.max())) < lengths[:, None]
            hooks = [(name, partial(add, name=name, is_token=is_token)) for name in kinds]
            model.run_with_hooks(pad_ids(part).to(device), fwd_hooks=hooks)
    count = len(prompts) if positional else sum(map(len, prompts))
    return {name: (total / count).float() for name, total in sums.items()}


def _check_seen_keys(model: HookedModel, kinds: Mapping[str, Kind]) -> None:
    for name in (name for name, kind in kinds.items() if kind.is_attention_pattern):
        rows = SeenRows(Constants("", {name: torch.ones(1, 2)}), name)
        record_pass(model, torch.zeros(1, 2, dtype=torch.long), (), [rows.recording_hook])
        seen = (rows(2, slice(None), slice(None)) > 0).cpu()
        if not torch.equal(seen, torch.ones_like(seen).tril()):
            raise SourceError(
                f"{scores_hook(name)} does not say which keys a query sees in "
                f"{model_name(model)}, and a mean row is over these. Use source='zero', "
                "'counterfactual' or 'resample', or head-outputs."
            )


def _check_prompts(over: PromptPairs, at: Binding, *, positional: bool) -> None:
    cfg = at.model.cfg
    vocabulary, context = int(cfg.d_vocab), int(getattr(cfg, "n_ctx", 0) or 0)
    for number, pair in enumerate(over):
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
    if not positional:
        return
    lengths = {len(pair.prompt_ids) for pair in (*over, *at.pairs)}
    if len(lengths) > 1:
        raise SourceError(
            f"A mean at each position needs prompts of one length; these have {min(lengths)} to "
            f"{max(lengths)} tokens, so that a position means something else in each. "
            "Use source='mean'."
        )
    if any(kind.key_dim is not None for kind in at.registry.kinds_by_hook.values()):
        raise SourceError(
            "A mean at each position of attention patterns averages rows over different numbers "
            "of keys. Use source='mean', or head-outputs."
        )
    if at.positions == "all":
        raise SourceError(
            "A mean at each position covers the prompt, and positions='all' intervenes on the "
            "continuations too. Use positions='prompt' or source='mean'."
        )


def _get_shapes(model: HookedModel, kinds: Mapping[str, Kind]) -> dict[str, list[int]]:
    """Sizes of an activation without the axes of row and position, by hook point."""
    _, recorded = record_pass(model, torch.zeros(1, 1, dtype=torch.long), kinds)
    return {
        name: [size for axis, size in enumerate(recorded[name].shape) if axis not in (0, pos)]
        for name, pos in ((name, kind.position_dim) for name, kind in kinds.items())
    }
