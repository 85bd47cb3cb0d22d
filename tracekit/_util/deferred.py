"""pandas, which is imported when it is first used: results are read without it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
else:

    class _Pandas:
        def __getattr__(self, name: str) -> Any:
            """What pandas has of this name."""
            return getattr(import_module("pandas"), name)

    pd = _Pandas()

__all__ = ["pd"]
