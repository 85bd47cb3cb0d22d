"""Sets of components, in every form in which they are given, as masks and flat indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.options import as_ints, is_int, short_repr
from tracekit.components import masks
from tracekit.components.registry import Component, ComponentRegistry, ComponentSet
from tracekit.errors import MaskError


class HasComponents(Protocol):
    """A result, or whatever else has selected some components of a registry."""

    @property
    def registry(self) -> ComponentRegistry:
        """What was studied."""
        ...

    @property
    def components(self) -> Sequence[Component]:
        """The selected ones."""
        ...


if TYPE_CHECKING:
    import numpy as np

    _Name = Component | str | tuple[int, int]
    _Names = _Name | Sequence[_Name] | AbstractSet[_Name] | Mapping[int, Sequence[int] | None]
    _Mask = Tensor | np.ndarray | Sequence[float] | Sequence[Sequence[float]]
    ComponentsLike = HasComponents | _Names | _Mask
else:
    # At run time anything else has an error of its own.
    ComponentsLike = Any
"""A set of components, as in `flat_indices_by_name`, or a mask, as in `mask_of`."""


def mask_of(given: ComponentsLike, registry: ComponentRegistry) -> Tensor:
    """The mask of a set of components (see `flat_indices_by_name`), or a mask as it is.

    A mask has an entry for each component, or the axes layer and component, where one kind is
    studied whole in every layer.
    """
    named = flat_indices_by_name(given, registry)
    if named is None:
        entries = masks.as_tensor(given, len(registry))
        return entries.flatten() if tuple(entries.shape) == registry.grid_shape else entries
    return masks.from_indices(named, len(registry)).float()


def flat_indices_by_name(given: Any, registry: ComponentRegistry) -> list[int] | None:
    """Flat indices of components that are named, in the order given; None if they are numbers.

    A name is a component, its label, or its layer and index as a tuple. Names come alone, in a list
    or set, as labels joined by commas, as `{layer: [indices]}`, as `"all"`, or as a result, which
    names its selected components. An empty list, set or mapping is the empty set.

    Raises:
        ComponentError: A name of no component, or of several.
        MaskError: Pairs of numbers that could be a mask as well.
    """
    other = getattr(given, "registry", None)
    if isinstance(other, ComponentRegistry):
        # Another registry of the same size may number other components, so indices do not do.
        registry.check_same(given.components, other)
        return [registry.index(component) for component in given.components]
    if isinstance(given, str) and given == "all":
        return list(range(len(registry)))
    if isinstance(given, str) and "," in given and given not in registry.flat_by_label:
        given = [label.strip() for label in given.split(",")]
    if isinstance(given, Mapping):
        by_layer = {layer: as_ints(indices) for layer, indices in given.items()}
        given = [
            (layer, index)
            for layer, indices in by_layer.items()
            for index in ([given[layer]] if indices is None else indices)
        ]
    elif isinstance(given, AbstractSet):
        given = sorted(given, key=str)
    is_one = _is_component_reference(given)
    names = [given] if is_one else given
    if isinstance(names, Sequence) and not names:
        return []
    if not isinstance(names, Sequence) or not _is_component_reference(names[0]):
        return None
    as_mask = (2,) if is_one else (len(names), 2)
    if isinstance(names[0], tuple) and as_mask in (registry.grid_shape, (len(registry),)):
        raise MaskError(
            f"{short_repr(given)} may be a mask, or name components by layer and index. Give the "
            "mask as a tensor, or components by their labels."
        )
    return [registry.index(name) for name in names]


def flat_indices_in_order(given: ComponentsLike, registry: ComponentRegistry) -> list[int]:
    """As `members_of`, in the order in which the components are named."""
    named = flat_indices_by_name(given, registry)
    return list(members_of(given, registry)) if named is None else named


def members_of(
    given: Any, registry: ComponentRegistry, *, allow_empty: bool = False
) -> ComponentSet:
    """Flat indices of a set or binary mask, as in `mask_of`; it may be empty with `allow_empty`."""
    if allow_empty and (given is None or (isinstance(given, Sequence) and not len(given))):
        return ()
    entries = mask_of(given, registry)
    if entries.ndim != 1 or not ((entries == 0) | (entries == 1)).all():
        raise MaskError(
            "A set of components is needed here, not a soft mask or several masks. Give a result, "
            "a list of components or labels, or one mask of zeros and ones."
        )
    return masks.members_of_mask(entries != 0)


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
            f"A ranking needs a score for each component, and {short_repr(given)} was given. "
            f"Give a result, or one number for each of the {len(registry)} components."
        ) from error
    if scores.shape != (len(registry),) or not torch.isfinite(scores).all():
        raise MaskError(
            f"The scores have shape {tuple(scores.shape)} or are not finite. Give one number "
            f"for each of the {len(registry)} components."
        )
    return scores


def _is_component_reference(given: Any) -> bool:
    is_place = isinstance(given, tuple) and len(given) == 2
    return isinstance(given, (str, Component)) or (is_place and all(map(is_int, given)))
