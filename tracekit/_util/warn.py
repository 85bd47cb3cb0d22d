"""Warnings that point to the user's line."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from pathlib import Path

_OWN = (str(Path(__file__).parents[1]) + os.sep, functools.__file__)
"""Files below are tracekit's own; a cached property is one of its frames."""


def warn(text: str, category: type[Warning]) -> None:
    """A warning that points to the line outside of tracekit from which it was called."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
