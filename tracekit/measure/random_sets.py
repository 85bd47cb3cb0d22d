"""Random sets of the same form as a set, which say what any such set would do."""

from __future__ import annotations

from math import comb, prod
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components.connected import EdgePaths

Like = Literal["layers", "kinds", "size"]


def control_sets(
    registry: ComponentRegistry,
    members: ComponentSet,
    draws: int,
    generator: torch.Generator,
    like: Like = "layers",
) -> list[ComponentSet]:
    """Different random sets with as many components of every kind in every layer as a set has.

    With `like="kinds"` as many of every kind, with `size` as many in all. Each is ascending, and
    none is the set itself. There are fewer than `draws` if no more have this form: all of them.
    """
    groups, counts = _groups(registry, like), _counts(registry, members, like)
    count = min(draws, n_controls(registry, members, like))
    drawn = dict.fromkeys([tuple(sorted(members))])
    while len(drawn) <= count:
        picks = [
            group[pick]
            for group, (size, n_members) in zip(groups, counts, strict=True)
            for pick in torch.randperm(size, generator=generator)[:n_members].tolist()
        ]
        drawn[tuple(sorted(picks))] = None
    return list(drawn)[1:]


def connected_control_sets(
    paths: EdgePaths, members: ComponentSet, draws: int, generator: torch.Generator
) -> list[ComponentSet]:
    """Different random sets of as many edges as a set has, all of them on paths within their set.

    Fewer where ten times as many draws find no others.
    """
    drawn = dict.fromkeys([tuple(sorted(members))])
    for _ in range(10 * draws):
        order = torch.randperm(paths.n_edges, generator=generator).tolist()
        control = tuple(sorted(paths.first(order, len(members))))
        if len(control) == len(members):
            drawn[control] = None
        if len(drawn) > draws:
            break
    return list(drawn)[1:]


def n_controls(registry: ComponentRegistry, members: ComponentSet, like: Like = "layers") -> int:
    """How many other sets have the form of `control_sets`; 10^15 if more."""
    return min(prod(comb(n, count) for n, count in _counts(registry, members, like)) - 1, 10**15)


def control_overlap(registry: ComponentRegistry, members: ComponentSet) -> float:
    """Share of the members that such another set has on average; NaN if there is none."""
    others = n_controls(registry, members)
    if not others:
        return float("nan")
    shared = sum(count * count / n for n, count in _counts(registry, members)) / len(members)
    # Of all such sets one is the set itself.
    return shared - (1 - shared) / others


def share_reaching(own: float, drawn: Float[Tensor, " draw"]) -> float:
    """Share of sets, the own one among them, of which a value is at least that of the own one."""
    # Sets that do the same differ by rounding.
    least = own - 1e-6 * max(abs(own), drawn.abs().max().item())
    return (1 + int((drawn >= least).sum())) / (1 + len(drawn))


def _groups(registry: ComponentRegistry, like: Like) -> list[list[int]]:
    """Components among which members may be exchanged."""
    groups: dict[Any, list[int]] = {}
    for number, site in enumerate(registry.sites):
        key = {"layers": number, "kinds": site.kind.name, "size": None}[like]
        groups.setdefault(key, []).extend(range(site.start, site.stop))
    return list(groups.values())


def _counts(
    registry: ComponentRegistry, members: ComponentSet, like: Like = "layers"
) -> list[tuple[int, int]]:
    chosen = {*members}
    return [(len(group), len(chosen.intersection(group))) for group in _groups(registry, like)]
