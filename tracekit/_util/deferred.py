"""What is imported when it is first used: slow libraries, and the public names of a package."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx
    import pandas as pd
    import transformers
else:

    class _LazyModule:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    networkx, pd, transformers = map(_LazyModule, ("networkx", "pandas", "transformers"))

__all__ = ["lazy_exports", "networkx", "pd", "transformers"]


def lazy_exports(
    package: str, file: str, more: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the `__init__.pyi` beside its file.

    `more` names modules that are attributes too. No public name may equal a module's name.
    """
    homes = {
        alias.name: str(node.module)
        for node in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = sorted(homes)

    def __getattr__(name: str) -> Any:
        if name in more or homes.get(name) == package:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__, lambda: names, names
