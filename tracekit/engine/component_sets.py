"""Effects of many sets of components, over a prefix tree.

What sets share is computed once (see `prefix_tree.py`): the residual stream is carried to the
block at which sets part, and only the blocks above are run for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from tracekit.components import ComponentSet
from tracekit.engine.batch import Batch
from tracekit.engine.block_skipping import ResidualStream
from tracekit.engine.patching import Activations
from tracekit.engine.prefix_tree import PrefixNode, build_prefix_tree
from tracekit.masks import from_indices
from tracekit.models.hooked import frozen, to_device

if TYPE_CHECKING:
    from tracekit.engine.engine import Engine


def set_effects(
    engine: Engine,
    sets: Sequence[ComponentSet],
    label: str,
    examples: Int[Tensor, " some"] | None = None,
) -> Float[Tensor, "set example"]:
    """Effects of each set on every example, or on some; see `Engine.set_effects`."""
    # A component that acts in several layers belongs to no single node of the tree.
    if engine.capabilities.block_skipper is None or engine.registry.has_windows:
        tree = PrefixNode(0, leaves=list(range(len(sets))))
    else:
        n_layers = int(engine.model.cfg.n_layers)
        tree = build_prefix_tree(sets, engine.layers_of_components, n_layers)
    effects = torch.zeros(len(sets), engine.n_examples, device=engine.device)
    batches = engine.batches if examples is None else list(engine.batches_of(examples))
    progress_bar = tqdm(
        total=len(sets) * len(batches),
        desc=label,
        leave=False,
        disable=not engine.config.progress or len(sets) < 3,
    )
    with frozen(engine.model), torch.no_grad(), progress_bar:
        for batch in batches:
            source = engine.counterfactual_cache.activations_for(batch)
            _Descent(engine, sets, batch, source, effects, progress_bar).run(tree, None)
    n_examples = engine.n_examples if examples is None else len(examples)
    engine.count_forward(len(sets) * n_examples / engine.n_examples)
    (effects,) = engine.ranks.add(effects.cpu())
    for row in effects[~torch.isfinite(effects.mean(1))]:
        engine.check_finite(row)
        raise engine.mean_not_finite()
    return effects if examples is None else effects[:, examples]


@dataclass(frozen=True, eq=False)
class _Descent:
    """Runs a batch down the tree."""

    engine: Engine
    sets: Sequence[ComponentSet]
    batch: Batch
    source: Activations
    """Counterfactual activations of the batch."""
    effects: Float[Tensor, "set example"]
    """Filled in."""
    progress_bar: Any

    def run(self, node: PrefixNode, residual: ResidualStream | None) -> None:
        """Fills in the effects of all sets below a node; `residual` enters its block."""
        self._run_leaves(node, residual)
        for child in node.children:
            hooks = self.engine.hooks(
                self.batch, self.source, self._masks([child.prefix]), self._layers(child.prefix)
            )
            carried = self.engine.forward_pass.residual_at(
                self.batch, hooks, child.layer, start=node.layer, residual=residual
            )
            self.run(child, carried)

    def _run_leaves(self, node: PrefixNode, residual: ResidualStream | None) -> None:
        """Several sets at a time, as far as they fit into a batch."""
        max_batch_size = self.engine.config.max_batch_size
        sets_per_pass = max(1, max_batch_size // len(self.batch.examples))
        for first in range(0, len(node.leaves), sets_per_pass):
            numbers = node.leaves[first : first + sets_per_pass]
            sets = [self.sets[number] for number in numbers]
            # Patches below this node are in the residual stream already.
            layers = {layer for members in sets for layer in self._layers(members)}
            values = self.engine.batch_effects(
                self.batch,
                self.source,
                self._masks(sets),
                layers={layer for layer in layers if layer >= node.layer},
                start=node.layer,
                residual=residual,
            )
            rows = to_device(torch.tensor(numbers), self.engine.device)
            self.effects[rows[:, None], self.batch.examples] = values
            self.progress_bar.update(len(numbers))

    def _layers(self, members: ComponentSet) -> set[int]:
        return {self.engine.layers_of_components[index] for index in members}

    def _masks(self, sets: Sequence[ComponentSet]) -> Float[Tensor, "set component"]:
        masks = [from_indices(members, self.engine.n_components) for members in sets]
        return to_device(torch.stack(masks), self.engine.device).float()
