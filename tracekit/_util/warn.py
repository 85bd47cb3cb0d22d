"""Warnings that point to the user's line, and say which job they are about."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_LIBRARY_FILES = (str(Path(__file__).parents[1]) + os.sep, functools.__file__)
"""Files of tracekit, and functools, which has frames of its cached properties."""
_CURRENT_JOB: ContextVar[tuple[str, bool]] = ContextVar("about", default=("", False))
"""The job that runs, in words, and whether an executor's worker runs it."""


@contextmanager
def name_job(job: str, *, in_worker: bool = False) -> Iterator[None]:
    """Begins warnings within the block with a job. In a worker they point to no user's line."""
    token = _CURRENT_JOB.set((job, in_worker))
    try:
        yield
    finally:
        _CURRENT_JOB.reset(token)


def warn(text: str, category: type[Warning]) -> None:
    """Warns, and points to the line outside of tracekit from which the code was called."""
    job, in_worker = _CURRENT_JOB.get()
    text = f"{job}: {text}" if job else text
    if in_worker:
        warnings.warn_explicit(text, category, "<worker>", 1)
        return
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY_FILES):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
