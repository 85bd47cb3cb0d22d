"""Prompt pairs: token ids of prompts, continuations and counterfactuals."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.arguments import check_arguments
from tracekit._util.clusters import EvidenceOptions
from tracekit._util.markup import clean_text
from tracekit._util.options import as_ints, check_choice, check_seed, is_int, join_first, short_repr
from tracekit.data.chat import Chat, make_chat_template
from tracekit.data.counterfactuals import GaussianNoise
from tracekit.data.display import pairs_html
from tracekit.data.pair import (
    PromptPair,
    check_groups,
    cluster_ids,
    describe_misaligned,
    describe_pairs,
    draw_tokens,
    identify_by_prompt,
    pairs_from_ids,
    parse_group,
    split_by_span,
    split_disjoint,
    warn_of_groups,
    warn_of_overlap,
)
from tracekit.data.pairs_report import (
    PairsCheck,
    PairsReport,
    check_pairs,
    make_report,
    select_known,
)
from tracekit.data.spans import all_span_names, position_names
from tracekit.data.templates import Template
from tracekit.data.tokenization import embedding_width, encode_rows, require_tokenizer, token_texts
from tracekit.errors import ConfigError, PairsError
from tracekit.models import HookedModel

OnMismatch = Literal["error", "skip"]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class DataOrigin:
    """Where pairs are from: what `load_dataset` was given, and which of its pairs they are."""

    dataset: str
    """Name of the data set, or the path of a file."""
    options: Mapping[str, Any]
    examples: tuple[int, ...]
    """Numbers of the pairs among all that it gives."""

    def code(self) -> str:
        """Python that loads the pairs for a `model`."""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        n = len(self.examples)
        chosen = f"[:{n}]" if self.examples == tuple(range(n)) else f".subset({[*self.examples]})"
        return f"tk.load_dataset({self.dataset!r}, model{options}){chosen}"


@check_arguments
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PromptPairs(Sequence[PromptPair]):
    """A data set of pairs, ready to trace. Make one with `from_text` or `from_ids`."""

    pairs: tuple[PromptPair, ...]
    name: str = "pairs"
    """Shown in tables and figures."""
    skipped: tuple[str, ...] = ()
    """One line per example dropped under `on_mismatch="skip"`."""
    is_split: bool = False
    """Whether components are split by span."""
    token_texts: Mapping[int, str] = field(default_factory=dict)
    """Text of each token in use, to show; empty where no tokenizer was given."""
    origin: DataOrigin | None = None
    """Where they are from; None: made by hand."""
    chat: Mapping[str, Any] | None = None
    """Arguments of the chat template that wrote the prompts, with the time that it read, if it did;
    None: no template did."""

    def __post_init__(self) -> None:
        if not self.pairs:
            dropped = f" All {len(self.skipped)} were skipped." if self.skipped else ""
            raise PairsError(f"There are no prompt pairs.{dropped} Give at least one.")
        if problems := describe_misaligned(self.pairs):
            raise PairsError(
                f"{len(problems)} of {len(self)} counterfactuals differ in length from their "
                f"prompts ({join_first(problems, 5)}). Align them token by token, give both spans, "
                'or drop them with on_mismatch="skip" (--skip-mismatched).'
            )
        # File names may not be valid text, which saved results need.
        object.__setattr__(self, "name", self.name.encode("utf-8", "replace").decode())
        if self.weights is not None and not (self.weights > 0).all():
            raise PairsError(
                "The weights span so many orders of magnitude that the smallest would count "
                "nothing. Leave out what is to count for nothing."
            )

    def __repr__(self) -> str:
        # The repr of a dataclass would print all noise.
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        shown = f"{describe_pairs(self.pairs)}{skipped}{self.report.summary}"
        return f"PromptPairs({clean_text(self.name)}: {shown})"

    def _repr_html_(self) -> str:
        return pairs_html(repr(self), self.pairs, self.token_texts)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, item: Any) -> Any:
        """The pair of a number, or the pairs of a slice or of a list of numbers."""
        if isinstance(item, slice):
            return self.subset(range(len(self))[item])
        if is_int(item):
            return self.pairs[item]
        numbers = as_ints(item)
        if numbers is None:
            text = f"{short_repr(item)} selects no pairs."
            raise PairsError(f"{text} Give a number, a slice or a list of numbers.")
        return self.subset(numbers)

    def subset(self, indices: Sequence[int]) -> PromptPairs:
        """The pairs at `indices`, in that order."""
        origin = self.origin
        if origin is not None:
            origin = replace(origin, examples=tuple(origin.examples[i] for i in indices))
        return replace(self, pairs=tuple(self.pairs[i] for i in indices), origin=origin)

    def grouped(self, groups: Sequence[str | int | None]) -> PromptPairs:
        """The pairs with other groups: a label for each pair, None for one that stands for itself.

        Pairs of one group, say of one template, do not count as independent. Intervals resample
        groups, sign flips flip them, and splits and halves of a search keep them whole.

        Raises:
            PairsError: Not as many labels as pairs, or one label for all of them.
        """
        if len(groups) != len(self):
            raise PairsError(
                f"{len(groups)} groups were given for {len(self)} pairs. Give the group of each "
                "pair, in their order."
            )
        labels = [parse_group(group, number) for number, group in enumerate(groups)]
        pairs = tuple(replace(p, group=label) for p, label in zip(self, labels, strict=True))
        check_groups(pairs)
        return replace(self, pairs=pairs, origin=None)

    def reversed(self) -> PromptPairs:
        """The pairs with prompts and counterfactuals exchanged: what denoising starts from.

        Raises:
            PairsError: A counterfactual is no run of the model that could be started from.
        """
        return replace(self, pairs=tuple(pair.reversed() for pair in self.pairs))

    def split(
        self, share: float, *, seed: int = 0, by_prompt: bool = False
    ) -> tuple[PromptPairs, PromptPairs]:
        """Two disjoint random parts; the first holds `share` of the pairs, rounded.

        Pairs of the same prompts, and groups, stay in one part: the share is met as they allow.

        Args:
            share: Between 0 and 1.
            seed: Draws the parts.
            by_prompt: Keep pairs of one clean prompt in one part, whatever their counterfactuals
                are: for a source such as zeros or means, which does not read them.

        Raises:
            ConfigError: A share that leaves a part empty, or an invalid seed.
        """
        check_seed(seed)
        count = round(share * len(self)) if 0 < share < 1 else 0
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator).tolist()
        pairs = identify_by_prompt(self) if by_prompt else self.pairs
        first, rest = split_disjoint(pairs, order, count)
        if not (first and rest):
            raise ConfigError(
                f"A share of {short_repr(share)} leaves one part of the {len(self)} pairs empty. "
                "Use a share strictly between 0 and 1 that gives each part a pair; pairs of the "
                "same prompts, and groups, stay in one part."
            )
        parts = self.subset(first), self.subset(rest)
        warn_of_groups(parts[0], " of the first part")
        warn_of_groups(parts[1], " of the second part")
        return parts

    def by_span(self, only: str | None = None) -> PromptPairs:
        """The pairs with all spans, `last` and `rest` too; or `only` one, as `subject:last`."""
        return replace(self, pairs=split_by_span(self.pairs, only), is_split=True)

    def by_position(self, names: Sequence[str] | None = None) -> PromptPairs:
        """The pairs with a span for every position, named by `names` in order or by number.

        Raises:
            PairsError: The prompts have several lengths, or another one than there are names.
        """
        names = position_names([pair.prompt_ids for pair in self]) if names is None else names
        for number, pair in enumerate(self):
            if {len(pair.prompt_ids), len(pair.counterfactual_ids)} != {len(names)}:
                raise PairsError(
                    f"Example {number} ({pair.describe()}) has {len(pair.prompt_ids)} tokens, and "
                    f"there are {len(names)} positions to tell apart. Give prompts of one length, "
                    "or name spans, and use split_by='span'."
                )
        spans = {name: (position,) for position, name in enumerate(names)}
        pairs = tuple(replace(pair, spans=spans, counterfactual_spans=None) for pair in self)
        return replace(self, pairs=pairs, is_split=True)

    @property
    def span_names(self) -> tuple[str, ...]:
        """Spans that some example has, in order of their first token; `last` and `rest` last."""
        return all_span_names(pair.spans or {} for pair in self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the pairs in their order, without texts, names and the origin."""
        digest = hashlib.sha256(b"".join(pair.content() for pair in self.pairs))
        if self.weights is not None:
            digest.update(self.weights.numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def examples(self) -> Int[Tensor, " example"]:
        """Number of the independent example that each pair is part of, in order of first pairs.

        Equal pairs, mirrors (prompts exchanged) and pairs of a group are one example.
        """
        return torch.tensor(cluster_ids(self.pairs))

    @property
    def n_distinct(self) -> int:
        """Independent examples: pairs of the same two prompts count once, and so do groups."""
        return int(self.examples.max()) + 1

    @property
    def clusters(self) -> Int[Tensor, " example"] | None:
        """`examples` if pairs repeat or have groups, for intervals; None where all differ."""
        return None if self.n_distinct == len(self) else self.examples.clone()

    @property
    def statistics_options(self) -> EvidenceOptions:
        """Weights and clusters, as keyword arguments of intervals."""
        return EvidenceOptions(weights=self.weights, clusters=self.clusters)

    @cached_property
    def report(self) -> PairsReport:
        """Peculiarities to look at before the pairs are traced, by kind and with examples."""
        return make_report(self.pairs, self.token_texts)

    def check(
        self, model: HookedModel, *, parts: Sequence[PromptPairs] = (), progress: bool | None = None
    ) -> PairsCheck:
        """Does the model do the task, and do the pairs show it? A line with a colour for each.

        The model is run on every prompt with x and with y. The lines say whether it prefers x;
        whether x, y or a token set is likelier with or without its leading space; how many tokens x
        and y are; whether one x is commonest; whether a length or a word gives x away; whether
        there are enough groups; what `report` remarks on.

        Args:
            model: The model to be traced.
            parts: Searched and held-out pairs, if they are split: groups are counted in each.
            progress: Whether to show a progress bar. None: in notebooks and terminals.
        """
        return check_pairs(self, model, parts, self.token_texts, self.chat is not None, progress)

    def known(self, model: HookedModel, probability: float = 0.1) -> PromptPairs:
        """The pairs that the model knows: x has at least this probability, and a larger one than y.

        Args:
            model: The model to be traced.
            probability: Of x, from 0 to 1; of several tokens the geometric mean.

        Returns:
            These pairs; `skipped` has a line for each other one.

        Raises:
            ConfigError: Another probability.
            PairsError: The model knows none.
        """
        numbers, dropped = select_known(self.pairs, model, probability)
        return replace(self.subset(numbers), skipped=(*self.skipped, *dropped))

    @property
    def weights(self) -> Float[Tensor, " example"] | None:
        """Weights with a mean of 1; None if all are equal."""
        weights = torch.tensor([pair.weight for pair in self.pairs], dtype=torch.float64)
        if (weights == weights[0]).all():
            return None
        # Divided first: the sum of large weights may be infinite.
        weights = weights / weights.max()
        return (weights / weights.mean()).float()

    @classmethod
    def from_ids(
        cls, rows: Rows, *, name: str = "pairs", on_mismatch: OnMismatch = "error"
    ) -> PromptPairs:
        """Pairs from token ids.

        Args:
            rows: Mappings with `prompt_ids`, `x_ids`, and optionally `y_ids`, `weight`, `group`
                (see `grouped`), `x_set_ids` and `y_set_ids` (first tokens that count as x and y),
                `spans` (name of each -> [first token, one past the last]; `counterfactual_spans`
                where the counterfactual prompt has others) and one of `counterfactual_ids` and
                `noise` (a list or tensor of shape `pos d_model`); without one, only sources that
                need none can be traced (`Tracer(..., source="zero")`).
                `prompt`, `counterfactual`, `x` and `y` are kept as texts. Nobody reads other keys:
                those like a known one are refused, others warned of.
            name: Name of the data set.
            on_mismatch: `error` refuses examples whose counterfactual has another length than
                the prompt and lists them; `skip` drops them and lists them in `skipped`.

        Raises:
            ConfigError: Another value of `on_mismatch`.
            PairsError: There is no example, or one that cannot be traced; the message names it.
        """
        pairs = cls._build(rows, name, on_mismatch)
        warn_of_overlap(pairs.pairs, {})
        return pairs

    @classmethod
    def _build(cls, rows: Rows, name: str, on_mismatch: OnMismatch) -> PromptPairs:
        check_choice("on_mismatch", on_mismatch, get_args(OnMismatch))
        pairs, skipped = pairs_from_ids(rows), ()
        if on_mismatch == "skip":
            skipped = describe_misaligned(pairs)
            pairs = [pair for pair in pairs if pair.is_aligned]
        check_groups(pairs)
        return cls(pairs=tuple(pairs), name=name, skipped=skipped)

    @classmethod
    def from_text(
        cls,
        rows: Rows,
        model: Any,
        *,
        noise: GaussianNoise | None = None,
        name: str = "pairs",
        on_mismatch: OnMismatch = "error",
        prepend_bos: bool | None = None,
        chat: Chat = False,
        warn: bool = True,
    ) -> PromptPairs:
        """Pairs from text.

        Prompt and continuations are encoded one by one, so a continuation that starts a new word
        needs its leading space. Tokenizers of the first Llamas put a space before every text; there
        a continuation is the tokens that it adds to those of the prompt.

        Args:
            rows: Mappings with `prompt`, `x`, optionally `y`, `weight`, `group` (see `grouped`),
                `x_set` and `y_set` (lists of first tokens that count as x and y), `spans` (name of
                each -> its text in the prompt, or a range of tokens; `counterfactual_spans` where
                the counterfactual has others), and `counterfactual` unless `noise` is given or the
                source of the Tracer needs none.
            model: The model to be traced, for its tokenizer and width; or a tokenizer.
            noise: Draws the counterfactual of every row as noise on the embeddings.
            name: Name of the data set.
            on_mismatch: As in `from_ids`.
            prepend_bos: Start prompts and counterfactuals with the tokenizer's
                beginning-of-sequence token, where the text does not. None: if the tokenizer does
                so by itself, before TransformerLens changes that. No other special token is added.
            chat: Write prompts and counterfactuals by the model's chat template, up to where its
                answer begins. Each is what the user says, or a list of messages with `role` and
                `content`; x and y are answers, mostly without a leading space. Spans are looked for
                in what the user says last, then in the other turns. The template says whether a
                beginning-of-sequence token comes first. A mapping gives the template arguments,
                `{"enable_thinking": False}`; with `strftime_now`, the time that it reads.
            warn: Whether to warn where a prompt and its continuation are encoded otherwise than
                they stand in one text, e.g. as the continuation lacks its leading space; and where
                x and y begin with the same token.

        Raises:
            UnsupportedModelError: The model has no tokenizer, or no chat template.
            PairsError: As in `from_ids`.
        """
        tokenizer = require_tokenizer(model)
        writer = make_chat_template(tokenizer, chat)
        encoded = encode_rows(rows, tokenizer, writer, prepend_bos=prepend_bos, warn=warn)
        if noise is not None:
            lengths = [len(entry["prompt_ids"]) for entry in encoded]
            examples = [draw_tokens(entry) for entry in encoded]
            draws = noise.draw(lengths, embedding_width(model), examples)
            for entry, drawn in zip(encoded, draws, strict=True):
                entry["noise"] = drawn
        pairs = cls._build(encoded, name, on_mismatch)
        shown = token_texts(tokenizer, {token for pair in pairs for token in pair.tokens})
        if warn:
            warn_of_overlap(pairs.pairs, shown)
        return replace(pairs, token_texts=shown, chat=writer.arguments if writer else None)

    @classmethod
    def from_template(
        cls,
        template: str | Sequence[str],
        model: Any,
        *,
        x: str,
        y: str | None = None,
        x_set: Sequence[str] = (),
        y_set: Sequence[str] = (),
        counterfactual: Mapping[str, str] | str | Sequence[str] | None = MappingProxyType({}),
        values: Mapping[Any, Sequence[Any]],
        n: int = 100,
        one_token: bool | Sequence[str] = False,
        chat: Chat = False,
        prepend_bos: bool | None = None,
        name: str = "template",
        seed: int = 0,
    ) -> PromptPairs:
        """Pairs from a sentence with named fields, such as `"{A} met {B}, and {A} thanked"`.

        Every field takes each of its values about equally often; the fields of an example have
        different values. Only counterfactuals with the fields at the same positions are taken.
        Spans are called as the fields; a field that stands twice has the spans `A1` and `A2`.

        Args:
            template: The prompt, with fields as `{name}`; several are taken in turn.
            model: The model to be traced, or a tokenizer.
            x: The target continuation, with fields. A space is put before a word that follows a
                letter or a sign such as a comma.
            y: The foil.
            x_set: Answers of one token that count as x in metrics of token sets, with fields.
            y_set: Those that count as y.
            counterfactual: Which field has the value of which other; one without values of its own
                takes another of the field that it replaces. Or a template of its own, for each
                prompt one. None: none, for sources that need none.
            values: The values of every field. Fields that belong together have rows of values:
                `{("country", "capital"): [("France", "Paris"), ...]}`; where the counterfactual
                replaces both, by `country2` and `capital2`, the foil can be `{capital2}`.
            n: Pairs wanted. Where there are fewer, that is a warning.
            one_token: Leave out values of several tokens of these fields; True: of all answers'.
            chat: As in `from_text`.
            prepend_bos: As in `from_text`.
            name: Name of the data set.
            seed: Draws the values.

        Returns:
            The pairs; `skipped` has a line for each example that was drawn and dropped.

        Raises:
            PairsError: About the template or the values; or no example can be made.
            ConfigError: About `n` or the seed.
            UnsupportedModelError: As in `from_text`.
        """
        filled = Template(
            prompts=[template] if isinstance(template, str) else list(template),
            counterfactual=counterfactual,
            answers={"x": [x], "y": [] if y is None else [y], "x_set": x_set, "y_set": y_set},
            values=values,
            one_token=one_token,
        )
        rows, chat, dropped = filled.make_rows(n, model, prepend_bos, chat, seed=seed)
        pairs = cls.from_text(rows, model, name=name, prepend_bos=prepend_bos, chat=chat)
        return replace(pairs, skipped=tuple(dropped))


def published_pairs(
    rows: Rows,
    model: Any,
    name: str,
    bos: bool | None,
    on_mismatch: OnMismatch,
    noise: GaussianNoise | None = None,
) -> PromptPairs:
    """Makes the pairs of a published data set, without warnings about its texts."""
    return PromptPairs.from_text(
        rows, model, noise=noise, name=name, on_mismatch=on_mismatch, prepend_bos=bos, warn=False
    )
