"""What to cite for a result, in BibTeX."""

from __future__ import annotations

import json
from pathlib import Path

from tracekit._util.version import __version__

_ALWAYS = ("tracekit", "multi-component")
_ENTRIES: dict[str, str] = json.loads(
    Path(__file__).with_name("citations.json").read_text(encoding="utf-8")
)
"""BibTeX by what it is of: the software, the paper that it implements, methods and data sets."""


def bibtex(*names: str) -> str:
    """BibTeX of tracekit and its paper, and of methods and data sets that have an entry."""
    entries = [_ENTRIES[name] for name in (*_ALWAYS, *names) if name in _ENTRIES]
    return "\n\n".join(dict.fromkeys(entries)).replace("{version}", __version__)
