"""Warnings that point to the user's line."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
"""Files below are tracekit's own."""


def warn(text: str, category: type[Warning]) -> None:
    """A warning that points to the line outside of tracekit from which it was called."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
