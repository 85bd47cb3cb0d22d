"""Sets of components, in every form in which they are given, as masks and flat indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.options import shortened
from tracekit.components import masks
from tracekit.components.registry import Component, ComponentRegistry, ComponentSet
from tracekit.errors import MaskError


def mask_of(given: Any, registry: ComponentRegistry) -> Tensor:
    """The mask of a set, or a mask as it is.

    A set is a result, whose selected components are taken; a list of components; or a mask, with an
    entry for each component or with the axes layer and component, where one kind is studied whole
    in every layer.
    """
    other = getattr(given, "registry", None)
    # By component: another registry may have as many entries that mean something else.
    members = given.components if isinstance(other, ComponentRegistry) else given
    if isinstance(other, ComponentRegistry):
        registry.check_same(members, other)
    elif not _is_list_of_components(given):
        entries = masks.as_tensor(given, len(registry))
        return entries.flatten() if tuple(entries.shape) == registry.grid_shape else entries
    entries = torch.zeros(len(registry))
    entries[[registry.index(component) for component in members]] = 1
    return entries


def members_of(given: Any, registry: ComponentRegistry, *, or_none: bool = False) -> ComponentSet:
    """Flat indices of the components of a set, as in `mask_of`; a mask holds zeros and ones.

    If `or_none`, nothing or an empty list is the empty set.
    """
    if or_none and (given is None or (isinstance(given, Sequence) and not len(given))):
        return ()
    entries = mask_of(given, registry)
    if entries.ndim != 1 or not ((entries == 0) | (entries == 1)).all():
        raise MaskError(
            "Only sets of components can be asked about here. Give a result, a list of "
            "components, or one mask of zeros and ones."
        )
    return tuple(entries.nonzero()[:, 0].tolist())


def scores_of(given: Any, registry: ComponentRegistry) -> Float[Tensor, " component"]:
    """A score for each component: those by which a result ranked them, or numbers as they are."""
    other = getattr(given, "registry", None)
    if isinstance(other, ComponentRegistry):
        ranked_by = given.ranked_by
        registry.check_same(registry, other)
        return ranked_by[[other.index(component) for component in registry]]
    try:
        scores = torch.as_tensor(given, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MaskError(
            f"A ranking is of scores, and {shortened(given)} was given. Give a result, or "
            f"one number for each of the {len(registry)} components."
        ) from error
    if scores.shape != (len(registry),) or not torch.isfinite(scores).all():
        raise MaskError(
            f"The scores have shape {tuple(scores.shape)} or are not finite. Give one number "
            f"for each of the {len(registry)} components."
        )
    return scores


def _is_list_of_components(given: Any) -> bool:
    return isinstance(given, Sequence) and bool(given) and isinstance(given[0], Component)
