"""Effects of many sets of components, over a tree of what they share; see `prefix_tree.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util import progress as _progress
from tracekit.components import ComponentSet
from tracekit.engine.batch import PASS_OVERHEAD_TOKENS, Batch, to_device
from tracekit.engine.patching import Activations
from tracekit.engine.prefix_tree import PrefixNode, build_prefix_tree
from tracekit.engine.prepared import PreparedData
from tracekit.engine.skipping import ResidualStream

SetRecorder = Callable[[Sequence[ComponentSet], Float[Tensor, "set example"]], Any]
"""Gets the sets that were measured on all examples, and their effects."""
_FEWEST_SHOWN = 3
"""Sets below which there is no progress bar for them alone."""
_MOST_TOKENS = 2 * PASS_OVERHEAD_TOKENS["cuda"]
"""Tokens of sets and examples up to which a replayed pass runs all layers for each set."""
_FEW_EXAMPLES = 8
"""Examples for each rank below which candidate sets are shared out instead."""


def set_effects(
    data: PreparedData,
    sets: Sequence[ComponentSet],
    label: str = "effects",
    examples: Int[Tensor, " some"] | None = None,
    record: SetRecorder | None = None,
) -> Float[Tensor, "set example"]:
    """Effects of each set on every example, or on some; see `Engine.set_effects`."""
    own, batches = _divide_work(data, sets, examples)
    own_sets = [sets[number] for number in own]
    # A component that acts in several layers belongs to no single node of the tree. A few sets are
    # one replayed pass, where the tree would need many passes that are not replayed.
    widest = max((batch.sequences.tokens.numel() for batch in batches), default=0)
    is_small = data.cuda_graphs.is_on and len(sets) * widest <= _MOST_TOKENS
    if is_small or data.capabilities.block_skipper is None or data.registry.has_windows:
        tree = PrefixNode(0, leaves=list(range(len(own))))
    else:
        tree = build_prefix_tree(own_sets, data.layers_of_components, int(data.model.cfg.n_layers))
    n_measured = len(sets) * (data.n_examples if examples is None else len(examples))
    effects_of_own = torch.zeros(len(own), data.n_examples, device=data.device)
    n_done = torch.zeros(len(own), dtype=torch.long)
    is_shown = data.config.progress if len(sets) >= _FEWEST_SHOWN else False
    shown = _progress.open_bar(label, n_measured / data.n_examples, data.n_examples, shown=is_shown)
    with data.measuring(), shown:
        try:
            for batch in batches:
                source = data.counterfactual_cache.activations_for(batch)
                _TreeRun(data, own_sets, batch, source, effects_of_own, n_done).run([tree], None)
        except KeyboardInterrupt:
            if record is not None and data.ranks.count == 1:
                whole = (n_done == data.n_examples).nonzero()[:, 0].tolist()
                record([own_sets[number] for number in whole], effects_of_own[whole].cpu())
            raise
        # The progress bar already shows the batches of this rank.
        data.account.add_examples(n_measured, reported=int(n_done.sum()))
    effects = torch.zeros(len(sets), data.n_examples)
    effects[own] = effects_of_own.cpu()
    (effects,) = data.ranks.sum_ranks(effects)
    for row in effects[~torch.isfinite(effects.mean(1))]:
        data.check_finite(row)
    if examples is not None:
        return effects[:, examples]
    if record is not None:
        record(sets, effects)
    return effects


def _divide_work(
    data: PreparedData, sets: Sequence[ComponentSet], examples: Int[Tensor, " example"] | None
) -> tuple[list[int], Sequence[Batch]]:
    """Numbers of the sets that this rank measures, and the batches on which it measures them.

    Ranks share the examples out, or the sets where that would leave them a few examples each.
    """
    ranks, everything = data.ranks, list(range(len(sets)))
    n_examples = data.n_examples if examples is None else len(examples)
    is_small = n_examples < _FEW_EXAMPLES * ranks.count and len(sets) >= 2 * ranks.count
    # With a bound on memory, each rank has the counterfactual activations of its own examples only.
    if ranks.count > 1 and is_small and data.config.max_memory is None:
        # Sets that begin alike share most, so they stay together.
        alike = sorted(everything, key=lambda number: sets[number])
        start, stop = (len(sets) * part // ranks.count for part in (ranks.rank, ranks.rank + 1))
        return alike[start:stop], list(data.batches_of(examples, of_all_ranks=True))
    return everything, data.batches if examples is None else list(data.batches_of(examples))


@dataclass(frozen=True, eq=False)
class _TreeRun:
    data: PreparedData
    sets: Sequence[ComponentSet]
    batch: Batch
    source: Activations
    effects: Float[Tensor, "set example"]
    """Filled in."""
    n_done: Int[Tensor, " set"]
    """On how many examples each set was measured; filled in."""

    def run(self, nodes: Sequence[PrefixNode], residual: ResidualStream | None) -> None:
        """Fills in effects of all sets below some nodes; `residual` has rows node by node."""
        self._run_leaves(nodes, residual)
        by_layer: dict[int, list[tuple[int, PrefixNode]]] = {}
        start = nodes[0].layer
        for parent, node in enumerate(nodes):
            for child in node.children:
                by_layer.setdefault(child.layer, []).append((parent, child))
        for layer, below in by_layer.items():
            for chunk in self.data.chunks(below, self.batch):
                children = [child for _, child in chunk]
                prefixes = [child.prefix for child in children]
                masks, layers = self.data.masks_of(prefixes), self._layers_of(prefixes)
                hooks, skipping = self.data.hooks_and_skipping(
                    self.batch, self.source, masks, layers
                )
                picked = self._pick_rows(residual, [parent for parent, _ in chunk], len(nodes))
                rows = self.batch.repeat(len(chunk))
                with skipping:
                    carried = self.data.forward_pass.residual_at(
                        rows, hooks, layer, start=start, residual=picked
                    )
                self.run(children, carried)

    def _run_leaves(self, nodes: Sequence[PrefixNode], residual: ResidualStream | None) -> None:
        start = nodes[0].layer
        leaves = [(parent, leaf) for parent, node in enumerate(nodes) for leaf in node.leaves]
        for chunk in self.data.chunks(leaves, self.batch):
            numbers = [leaf for _, leaf in chunk]
            sets = [self.sets[number] for number in numbers]
            # Patches below the nodes are in the residual stream already.
            layers = {layer for layer in self._layers_of(sets) if layer >= start}
            masks = self.data.masks_of(sets)
            if self.data.cuda_graphs.is_on and not start:
                # A captured pass has all hooks and one of few numbers of masks: others can use it.
                layers, room = None, self.data.max_rows // len(self.batch.examples)
                size = max(len(sets), min(room, 1 << (len(sets) - 1).bit_length()))
                masks = torch.cat([masks, masks[-1:].expand(size - len(sets), -1)])
            picked = self._pick_rows(residual, [parent for parent, _ in chunk], len(nodes))
            log_probs = self.data.log_probs(
                self.batch, self.source, masks, layers=layers, start=start, residual=picked
            )
            rows = to_device(torch.tensor(numbers), self.data.device)
            values = self.data.effects_from(self.batch, log_probs)[: len(sets)]
            self.effects[rows[:, None], self.batch.examples] = values
            self.n_done[numbers] += len(self.batch.examples)
            _progress.current_run().advance(len(numbers) * len(self.batch.examples))

    @staticmethod
    def _pick_rows(
        residual: ResidualStream | None, parents: Sequence[int], n_nodes: int
    ) -> Float[Tensor, "picked pos d_model"] | None:
        """Input of the block for some of the nodes, one after the other."""
        if residual is None:
            return None
        of_nodes = rearrange(residual, "(node row) pos d -> node row pos d", node=n_nodes)
        return rearrange(of_nodes[list(parents)], "node row pos d -> (node row) pos d")

    def _layers_of(self, sets: Sequence[ComponentSet]) -> set[int]:
        layer_of = self.data.layers_of_components
        return {layer_of[index] for members in sets for index in members}
