"""Compares, or pins anew; see the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.golden import PINNED, PINNED_FEW, differences, numbers

folder = Path(sys.argv[1])
pinned = PINNED_FEW if "--few" in sys.argv else PINNED
if "--write" in sys.argv:
    pinned.write_text(json.dumps(numbers(folder), indent=0, sort_keys=True) + "\n")
else:
    lines = differences(numbers(folder), pinned)
    print("\n".join(lines) or "as pinned")  # noqa: T201
    sys.exit(bool(lines))
