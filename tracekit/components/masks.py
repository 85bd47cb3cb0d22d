"""Masks over components: initial values, penalties, truncation. Pure torch, no model.

A mask has one entry per component in [0, 1]; 1 takes the counterfactual value. Penalties are those
of the paper (design of PGB-CT, its optimisation problem), with m the mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tracekit._util.options import short_repr
from tracekit.errors import MaskError

Mask = Float[Tensor, " component"]
BinaryMask = Bool[Tensor, " component"]


def l1(mask: Mask) -> Float[Tensor, ""]:
    """|m|_1, the size penalty."""
    return mask.abs().sum()


def binary_violation(mask: Mask) -> Float[Tensor, ""]:
    """m^T(1 - m), the other penalty: 0 exactly for a binary mask, N/4 at most."""
    return (mask * (1 - mask)).sum()


def truncate(mask: Mask, threshold: float = 0.5, *, inclusive: bool = False) -> BinaryMask:
    """Components whose entry is above the threshold (tau in the paper), or equal if `inclusive`.

    The published code includes entries equal to the threshold, the paper's text does not.
    """
    return mask >= threshold if inclusive else mask > threshold


def ranking(
    scores: Float[Tensor, " component"], tie_break: Float[Tensor, " component"] | None = None
) -> list[int]:
    """Components from the highest score to the lowest; ties by `tie_break`, then by index."""
    order = torch.arange(len(scores))
    for key in (tie_break, scores):
        if key is not None:
            order = order[torch.argsort(key.detach().cpu()[order], descending=True, stable=True)]
    return order.tolist()


def from_indices(indices: Sequence[int], n_components: int) -> BinaryMask:
    """Binary mask with the given components set."""
    mask = torch.zeros(n_components, dtype=torch.bool)
    mask[list(indices)] = True
    return mask


def members_of_mask(mask: BinaryMask) -> tuple[int, ...]:
    """Flat indices of the components that a binary mask selects, ascending."""
    return tuple(mask.nonzero()[:, 0].tolist())


def complement_of(indices: Sequence[int], n_components: int) -> tuple[int, ...]:
    """All other components, ascending."""
    return members_of_mask(~from_indices(indices, n_components))


def as_tensor(mask: object, n_components: int) -> Tensor:
    """A tensor, array or list as a tensor, whatever its shape and values; else a `MaskError`."""
    try:
        return torch.as_tensor(mask)
    except (TypeError, ValueError, RuntimeError) as error:
        raise MaskError(
            f"The mask is {short_repr(mask)}. Give a tensor, array or list with one number for "
            f"each of the {n_components} components, or name components by their labels."
        ) from error


def check(mask: object, n_components: int) -> Float[Tensor, "*set component"]:
    """A mask, or a stack, as float32: an entry in [0, 1] per component, else a `MaskError`."""
    values = as_tensor(mask, n_components)
    if values.ndim == 0 or values.shape[-1] != n_components:
        raise MaskError(
            f"The mask has shape {tuple(values.shape)}. "
            f"Its last axis needs one entry for each of the {n_components} components."
        )
    values = values.float()
    outside = ~((values >= 0) & (values <= 1))
    if outside.any():
        index = tuple(outside.nonzero()[0].tolist())
        raise MaskError(
            f"The mask holds {values[index].item():g} at {list(index)}. "
            "Entries must lie in [0, 1]: 0 keeps the clean value, 1 takes the counterfactual."
        )
    return values
