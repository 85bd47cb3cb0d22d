"""Every command of `tools` can be started: what it imports is there."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
MODULES = [
    ".".join(path.relative_to(TOOLS.parent).with_suffix("").parts)
    for path in sorted(TOOLS.rglob("*.py"))
]


@pytest.mark.parametrize("module", MODULES)
def test_its_imports_are_there(module):
    import_module(module)
