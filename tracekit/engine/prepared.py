"""A data set laid out on a model: everything that is made once and that every pass reads.

`PreparedData` holds rows, batches, the clean run, the counterfactual cache and the account of work.
It defines one pass (`log_probs`), and the one loop over batches that measures (`passes`).

There is no loop over examples, tokens or components in a pass; only over batches and layers. On an
accelerator nothing in a pass waits for the device: results are read when a caller asks for them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit._util import progress as _progress
from tracekit._util.files import json_digest
from tracekit._util.options import is_int, short_repr
from tracekit._util.ranks import Ranks
from tracekit._util.versions import __version__
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.data.prompts import PromptPairs
from tracekit.engine.batch import Batch, to_device
from tracekit.engine.capabilities import Capabilities, capabilities_of
from tracekit.engine.cost import Account
from tracekit.engine.counterfactual_cache import CounterfactualCache
from tracekit.engine.cuda_graphs import CudaGraphCache
from tracekit.engine.edge_patch import EdgePatch, max_edge_rows
from tracekit.engine.forward import CleanRun, ForwardPass, join_batches, repeat_log_probs
from tracekit.engine.layout import Layout, Positions, check_traceable
from tracekit.engine.patching import Activations, AnyMask, MaskedPatch
from tracekit.engine.skipping import PartSkipper, ResidualStream, replaced_parts
from tracekit.errors import ConfigError, NonFiniteMetricError, WorkerError
from tracekit.metrics import (
    ContinuationLogProbs,
    ContinuationMean,
    Effects,
    Metric,
    Reading,
    check_finite,
    no_gradient,
)
from tracekit.models.architectures import long_rope_limit
from tracekit.models.hooked import Hook, HookedModel, freeze, model_name, weights_digest

_T = TypeVar("_T")
_D = TypeVar("_D", bound="PreparedData")
Masks = Float[Tensor, "set component"]
"""A stack of masks on the model's device, entries in [0, 1]."""
DEFAULT_ROWS = 64
"""Examples per pass on a CPU; more would not make it faster."""
_PROBED_ROWS, _SHARE_OF_MEMORY = 8, 0.25
"""Examples whose memory is measured; part of a card's free memory that a pass may take."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of an engine; none of them can be changed once it is built."""

    positions: Positions = "prompt"
    continuation_mean: ContinuationMean = "geometric"
    """Mean of token probabilities that a continuation has: `geometric` or `arithmetic`."""
    max_batch_size: int | None = None
    """Examples per pass; changes results by rounding only, which is large in bfloat16
    (`effects.noise_floor`). None: 64 on a CPU; on a card as many, with their gradients, as fit into
    a quarter of its free memory, which is measured when an engine is built."""
    max_memory: int | None = None
    """Bytes that counterfactual activations may take on the model's device; beyond, they are kept
    in host memory, or computed again for every batch if the model is on the CPU. Clean
    distributions, for metrics that read them, and passes of more than 64 examples may each take as
    many. Changes no result. None: no bound."""
    progress: bool | None = False
    """Whether to show progress bars. None: in notebooks and terminals, else two lines a minute."""
    capabilities: Capabilities | None = None
    """Optimisations to use, with equal results; None: those that the model supports when tried."""

    def __post_init__(self) -> None:
        size = self.max_batch_size
        if size is not None and (not is_int(size) or size < 1):
            raise ConfigError(f"max_batch_size is {size!r}. It must be a whole number, at least 1.")
        bound = self.max_memory
        is_number = isinstance(bound, (int, float)) and not isinstance(bound, bool)
        if bound is not None and not (is_number and bound >= 0):
            shown = bound if is_number else short_repr(bound)
            raise ConfigError(f"max_memory is {shown} bytes. It must be a number of at least 0.")


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedData:
    """A data set laid out on a model, with the components and the metric of the question."""

    model: HookedModel
    pairs: PromptPairs
    """The pairs that are run: with the values of the source, in the direction of the setup."""
    pairs_given: PromptPairs
    """The pairs as the user gave them, which is what results name as their data."""
    registry: ComponentRegistry
    metric: Metric
    config: EngineConfig
    ranks: Ranks
    """The processes that share the examples out among themselves."""
    capabilities: Capabilities
    forward_pass: ForwardPass
    clean_run: CleanRun
    layout: Layout
    counterfactual_cache: CounterfactualCache
    cuda_graphs: CudaGraphCache
    """Captures and replays passes on a GPU while a search runs."""
    account: Account = field(default_factory=Account)
    """Interventional work so far; clean and counterfactual runs are not counted."""

    @classmethod
    def build(
        cls: type[_D],
        model: HookedModel,
        pairs: PromptPairs,
        registry: ComponentRegistry,
        metric: Metric,
        config: EngineConfig | None = None,
        pairs_given: PromptPairs | None = None,
    ) -> _D:
        """Lays the data set out; runs none of it yet. All ranks must give the same.

        `pairs_given` are those before a source, direction or split changed them (default: `pairs`).

        Raises:
            MissingContinuationError: The metric needs a y that an example lacks.
            PairsError: A token id outside the vocabulary, noise of another width, or a sequence
                longer than the model's context.
        """
        check_traceable(pairs, model, registry, metric)
        config, ranks = config or EngineConfig(), Ranks.current()
        capabilities = config.capabilities or capabilities_of(model)
        forward_pass = ForwardPass(model, capabilities, config.continuation_mean)
        bar = partial(_progress.track, shown=config.progress)
        # X and y share a row where the model supports that at the length needed.
        layout = _build_layout(model, pairs, registry.spans, config.positions, packed=True)
        has_branches = layout.sequences.has_branches
        if not capabilities.supports_packing(model, layout.longest_row, warns=has_branches):
            layout = _build_layout(model, pairs, registry.spans, config.positions)
        size = config.max_batch_size or _measure_max_rows(config, forward_pass, layout)
        if registry.edges is not None:
            bound = config.max_memory
            if bound is None and forward_pass.device.type == "cuda":
                # Norms and blocks keep as much as the changes of senders.
                bound = _available_bytes(forward_pass.device) // 2
            size = min(size, max_edge_rows(registry, model, layout.longest_row, bound))
        config, first = replace(config, max_batch_size=size), None
        if ranks.count > 1:
            own = _rank_part(ranks, layout, torch.arange(layout.n_examples))
            first = layout.row_sources[layout.rows[own]].unique()
        data = cls(
            model=model,
            pairs=pairs,
            pairs_given=pairs if pairs_given is None else pairs_given,
            registry=registry,
            metric=metric,
            config=config,
            ranks=ranks,
            capabilities=capabilities,
            forward_pass=forward_pass,
            clean_run=CleanRun(model, forward_pass, config.max_memory, bar, ranks),
            layout=layout,
            cuda_graphs=CudaGraphCache(model),
            counterfactual_cache=CounterfactualCache(
                model, layout, registry, size, config.max_memory, progress_bar=bar, first=first
            ),
        )
        data._check_ranks_agree()
        return data

    def _check_ranks_agree(self) -> None:
        if self.ranks.count == 1:
            return
        # Each process has as many rows as its own card holds.
        settings = replace(self.config, capabilities=None, progress=False, max_batch_size=None)
        self.ranks.check_same(
            version_of_tracekit=__version__,
            data_set=f"{self.pairs.name} ({self.pairs.fingerprint[:12]})",
            components=json_digest({"spec": self.registry.spec()})[:12],
            metric=self.metric.name,
            model=f"{model_name(self.model)} ({weights_digest(self.model)[:12]})",
            settings=repr(settings),
        )
        if self.n_examples < self.ranks.count:
            raise WorkerError(
                f"{self.ranks.count} processes share {self.n_examples} examples. Start at most as "
                "many processes as there are examples, or half as many for a front with statistics."
            )

    @property
    def n_components(self) -> int:
        """Number of components: the length of every mask."""
        return len(self.registry)

    @property
    def n_examples(self) -> int:
        """Number of examples."""
        return self.layout.n_examples

    @property
    def device(self) -> torch.device:
        """Device on which the model reads its tokens."""
        return self.forward_pass.device

    @property
    def max_rows(self) -> int:
        """Examples that a pass takes at most, each under one mask."""
        return self.config.max_batch_size or DEFAULT_ROWS

    def rank_share(self, examples: Int[Tensor, " example"] | None) -> Int[Tensor, " share"]:
        """This rank's part of some examples, or of all; similar lengths go to different ranks."""
        if examples is None:
            examples = torch.arange(self.n_examples)
        if self.ranks.count == 1:
            return examples
        if self.config.max_memory is not None and len(examples) < self.n_examples:
            # Each rank keeps the counterfactual activations of its own examples only.
            return examples[torch.isin(examples, self.rank_share(None))]
        return _rank_part(self.ranks, self.layout, examples)

    @cached_property
    def batches(self) -> list[Batch]:
        """This rank's part of the data set, in batches that are the same in every pass."""
        return list(self.batches_of(None))

    def batches_of(
        self,
        examples: Int[Tensor, " example"] | None,
        *,
        of_all_ranks: bool = False,
        n_masks: int = 1,
        shared: bool = True,
    ) -> Iterable[Batch]:
        """Batches of this rank's part of some examples, or all, with room for `n_masks` masks.

        Unless `shared`, each example has rows of its own.
        """
        numbers = examples if of_all_ranks else self.rank_share(examples)
        layout, filled = self.layout if shared else self.unshared_layout, self.cuda_graphs.is_on
        size = max(1, self.max_rows // n_masks)
        return layout.make_batches(size, device=self.device, examples=numbers, filled=filled)

    def chunks(self, items: Sequence[_T], batch: Batch) -> Iterator[Sequence[_T]]:
        """Splits items into groups for which a batch can be run at once."""
        size = max(1, self.max_rows // len(batch.examples))
        return (items[first : first + size] for first in range(0, len(items), size))

    @cached_property
    def unshared_layout(self) -> Layout:
        """A layout with the same sources in which no row serves two examples, for gradients."""
        packed = self.layout.sequences.needs_attention_mask
        spans, positions = self.registry.spans, self.config.positions
        unshared = _build_layout(
            self.model, self.pairs, spans, positions, packed=packed, shared=False
        )
        return self.layout if len(unshared.sequences) == len(self.layout.sequences) else unshared

    @cached_property
    def layers_of_components(self) -> list[int]:
        """Layer of each component."""
        return [site.layer for site in self.registry.sites for _ in range(site.start, site.stop)]

    @property
    def clean(self) -> ContinuationLogProbs:
        """Log-probabilities in the clean run, one per example."""
        return self._clean_log_probs(self.metric.reads)

    def prepare_clean(self) -> None:
        """Runs the prompts as they are, unless that was done before."""
        self._clean_log_probs(self.metric.reads)

    def clean_of(
        self, batch: Batch, reads: Sequence[Reading] | None = None
    ) -> ContinuationLogProbs:
        """The clean log-probabilities of a batch; by default what the metric reads."""
        reads = self.metric.reads if reads is None else reads
        return self.clean_run.log_probs_of(batch, self._clean_log_probs(reads), reads)

    def _clean_log_probs(self, reads: Sequence[Reading]) -> ContinuationLogProbs:
        return self.clean_run.log_probs_of_all(self.batches, reads, self.n_examples)

    def masks_of(self, sets: Sequence[ComponentSet]) -> Masks:
        """Binary masks of sets of components, on the model's device."""
        masks = torch.zeros(len(sets), self.n_components)
        for mask, members in zip(masks, sets, strict=True):
            mask[list(members)] = 1
        return to_device(masks, self.device)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Freezes parameters and gradients within the block, which must not hold a `yield`."""
        with freeze(self.model), torch.no_grad():
            yield

    def passes(
        self,
        masks: Masks,
        batches: Iterable[Batch] | None = None,
        *,
        reads: Sequence[Reading] | None = None,
    ) -> Iterator[tuple[Batch, slice, ContinuationLogProbs]]:
        """Runs batches under each of a few masks, as many masks at once as a batch has room for.

        By default it runs this rank's part of the data set and reads what the metric reads. Yields
        each batch, which masks were run on it, and its log-probabilities, mask after mask.
        """
        for batch in self.batches if batches is None else batches:
            source = self.counterfactual_cache.activations_for(batch)
            at_once = max(1, self.max_rows // len(batch.examples))
            for first in range(0, len(masks), at_once):
                some = slice(first, first + at_once)
                yield batch, some, self.log_probs(batch, source, masks[some], reads=reads)

    def log_probs(
        self,
        batch: Batch,
        source: Activations,
        masks: Float[Tensor, "set *row component"],
        *,
        reads: Sequence[Reading] | None = None,
        layers: set[int] | None = None,
        start: int = 0,
        residual: ResidualStream | None = None,
    ) -> ContinuationLogProbs:
        """Log-probabilities of a batch under each of a few masks, one after the other, in one pass.

        With `start` > 0 blocks from that one on are run, on `residual`: the rows of the batch for
        each mask in turn. Only `layers` get hooks; all by default.
        """
        reads = self.metric.reads if reads is None else reads
        keeps_few = self._keep_few(masks)
        if keeps_few.any() and not keeps_few.all():
            # In two passes, because masks that keep few components leave out other parts.
            n, parts = len(batch.examples), []
            for is_chosen in (~keeps_few, keeps_few):
                numbers, rows = is_chosen.nonzero()[:, 0], None
                if residual is not None:
                    rows = residual.unflatten(0, (len(masks), -1))[numbers].flatten(0, 1)
                log_probs = self.log_probs(
                    batch,
                    source,
                    masks[numbers],
                    reads=reads,
                    layers=layers,
                    start=start,
                    residual=rows,
                )
                at = (numbers[:, None] * n + torch.arange(n)).flatten()
                parts.append((to_device(at, self.device), log_probs))
            return join_batches(parts, len(masks) * n, Ranks())

        def run(
            masks: Tensor, batch: Batch, source: Activations, residual: ResidualStream | None
        ) -> ContinuationLogProbs:
            rows = batch.repeat(len(masks))
            hooks, skipping = self.hooks_and_skipping(batch, source, masks, layers)
            with skipping:
                return self.forward_pass.log_probs(
                    rows, hooks, reads=reads, start=start, residual=residual
                )

        name = ("log-probs", tuple(reads), start, None if layers is None else frozenset(layers))
        return self.cuda_graphs.run(run, name, masks, batch, source, residual)

    def hooks_and_skipping(
        self,
        batch: Batch,
        source: Activations,
        masks: AnyMask,
        layers: Container[int] | None = None,
    ) -> tuple[list[Hook], AbstractContextManager[None]]:
        """Hooks that apply masks to a batch, and a context that leaves parts out of their pass."""
        skipper, outputs = None, None
        if self.registry.edges is not None and self._skips_parts:
            skipper = self._edge_skipper if self._keep_few(masks).all() else None
            hooks, outputs = self.edge_patch(batch, source).sparse_pass(
                masks, starts_from_counterfactual=skipper is not None
            )
        else:
            hooks = self.hooks(batch, source, masks, layers)
            if self._skips_parts and self.patches_all_tokens:
                is_replaced = (masks == 1).flatten(0, -2).all(0).cpu()
                outputs = replaced_parts(self.model, self.registry, source, is_replaced)
                skipper = self.capabilities.part_skipper(self.model) if outputs else None
        if skipper is None or outputs is None or not self.patches_all_tokens:
            return hooks, nullcontext()
        return hooks, skipper.skip(self.model, outputs)

    def _keep_few(self, masks: AnyMask) -> Bool[Tensor, " set"]:
        """Which masks keep fewer components than they patch; none if no parts are left out."""
        if not self._skips_parts:
            return torch.zeros(len(masks), dtype=torch.bool)
        kept, patched = (masks != 1).flatten(1), (masks != 0).flatten(1)
        return (kept.sum(1) < patched.sum(1)).cpu()

    @property
    def _skips_parts(self) -> bool:
        """Whether passes leave parts out; a captured one is for other masks too, and has them."""
        is_captured = self.cuda_graphs.is_on or torch.is_grad_enabled()
        return self.capabilities.skips_parts and not is_captured

    @cached_property
    def patches_all_tokens(self) -> bool:
        """Whether components act at every token of every row."""
        return bool((self.layout.positions.sum(1) == self.layout.lengths).all())

    @cached_property
    def _edge_skipper(self) -> PartSkipper | None:
        """Leaves out what no kept edge leaves; None where some edges are kept in any case."""
        edges = self.registry.edges
        if edges is None or not self.registry.has_all_edges:
            return None
        return self.capabilities.part_skipper(self.model, edges.by)

    def hooks(
        self, batch: Batch, source: Activations, mask: AnyMask, layers: Container[int] | None = None
    ) -> list[Hook]:
        """Hooks that apply masks to a batch, in `layers` or in all; see `MaskedPatch.hooks`."""
        if self.registry.edges is not None:
            return self.edge_patch(batch, source).hooks(mask, layers)
        sites = [s for s in self.registry.sites if layers is None or s.layer in layers]
        names = dict.fromkeys(name for site in sites for name in site.hook_names)
        patch = MaskedPatch(
            registry=self.registry,
            counterfactual={name: source[name] for name in names},
            positions=batch.positions,
            span_numbers=batch.span_numbers,
            first_position=batch.first_position,
            constants=self.counterfactual_cache.constants,
        )
        return patch.hooks(mask)

    def edge_patch(
        self, batch: Batch, source: Activations, origin: Activations | None = None
    ) -> EdgePatch:
        """Interventions on edges in a batch."""
        return EdgePatch(
            model=self.model,
            registry=self.registry,
            counterfactual=source,
            positions=batch.positions,
            span_numbers=batch.span_numbers,
            first_position=batch.first_position,
            origin=origin,
        )

    def effects_from(
        self,
        batch: Batch,
        log_probs: ContinuationLogProbs,
        *,
        clean: ContinuationLogProbs | None = None,
    ) -> Float[Tensor, "set example"]:
        """Effects by the metric of one or several masks on a batch, times example weights."""
        n = len(batch.examples)
        clean = self.clean_of(batch) if clean is None else clean
        effects = self.metric(repeat_log_probs(clean, len(log_probs.x) // n), log_probs)
        return self.weighted(batch, effects.reshape(-1, n))

    def weighted(self, batch: Batch, effects: Tensor) -> Tensor:
        """Effects (examples last) times the weights of their examples, whose mean is 1."""
        return effects if self._weights is None else effects * self._weights[batch.examples]

    @cached_property
    def _weights(self) -> Float[Tensor, " example"] | None:
        return None if self.pairs.weights is None else self.pairs.weights.to(self.device)

    def check_finite(self, effects: Effects, metric: Metric | None = None) -> None:
        """Refuses effects that are not finite, or whose mean is not; names the examples."""
        named = metric or self.metric
        check_finite(effects, named, lambda number: self.pairs[number].describe())
        if not torch.isfinite(effects.mean()):
            raise NonFiniteMetricError(
                f"The mean of the metric {named.name!r} is not finite although its effects "
                "are. Use a bounded metric such as probability-drop."
            )

    def mask_gradient(self, values: Tensor, mask: Tensor) -> Tensor:
        """Gradient of the sum of values; refuses a metric through which none reaches the mask."""
        if values.requires_grad:
            (gradient,) = torch.autograd.grad(values.sum(), mask, allow_unused=True)
            if gradient is not None:
                return gradient
        raise no_gradient(self.metric.name)


def _build_layout(
    model: HookedModel, pairs: PromptPairs, spans: Sequence[str], positions: Positions, **how: bool
) -> Layout:
    limit = long_rope_limit(model)
    return Layout.build(pairs, positions, spans=spans, long_rope_limit=limit, **how)


def _measure_max_rows(config: EngineConfig, forward_pass: ForwardPass, layout: Layout) -> int:
    device = forward_pass.device
    if device.type != "cuda":
        return DEFAULT_ROWS
    longest = layout.lengths_of(torch.arange(layout.n_examples)).argsort(descending=True)
    of_row = forward_pass.measure_row_bytes(layout.make_batch(longest[:_PROBED_ROWS]).to(device))
    room = _available_bytes(device)
    if config.max_memory is not None:
        room = min(room, max(config.max_memory, DEFAULT_ROWS * of_row))
    return max(1, int(room / of_row))


def _available_bytes(card: torch.device) -> int:
    """Bytes of a GPU that a pass may take."""
    unused = torch.cuda.memory_reserved(card) - torch.cuda.memory_allocated(card)
    return int(_SHARE_OF_MEMORY * (torch.cuda.mem_get_info(card)[0] + unused))


def _rank_part(
    ranks: Ranks, layout: Layout, examples: Int[Tensor, " example"]
) -> Int[Tensor, " own"]:
    return ranks.take_share(examples[layout.lengths_of(examples).argsort(stable=True)])
