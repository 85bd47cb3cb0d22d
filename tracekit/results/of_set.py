"""What everything that is said of a set shares: its components, and its file in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from tracekit.components import Component, ComponentRegistry, ComponentSet
from tracekit.results.storage import load, save

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, eq=False)
class OfSet:
    """A set of components."""

    FILE: ClassVar[str]
    """Name of its document in a folder."""

    registry: ComponentRegistry
    """Components by flat index."""
    members: ComponentSet
    """Flat indices of the set."""

    @property
    def components(self) -> list[Component]:
        """The members."""
        return [self.registry[index] for index in self.members]

    @property
    def labels(self) -> list[str]:
        """Their printed names."""
        return [self.registry.label(index) for index in self.members]

    def save(self, folder: str | Path) -> Path:
        """Writes it to a folder, such as that of its run; returns the folder."""
        save(self, Path(folder) / self.FILE)
        return Path(folder)

    @classmethod
    def load(cls: type[_T], folder: str | Path) -> _T:
        """Reads what `save` wrote.

        Raises:
            ResultNotFoundError: The folder holds none.
            ResultFormatError: It is of another format, damaged, or of several saves.
        """
        return load(cls, Path(folder) / cls.FILE)  # type: ignore[attr-defined]
