"""Components: their kinds, the registry that numbers them, and masks over it."""

from tracekit.components import masks
from tracekit.components.kinds import KINDS, Kind, KindName, kind_of
from tracekit.components.registry import (
    Component,
    ComponentGrid,
    ComponentRegistry,
    ComponentSet,
    Site,
)

__all__ = [
    "KINDS",
    "Component",
    "ComponentGrid",
    "ComponentRegistry",
    "ComponentSet",
    "Kind",
    "KindName",
    "Site",
    "kind_of",
    "masks",
]
