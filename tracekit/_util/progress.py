"""One progress bar for a whole run, with an estimate of the remaining time.

Outside of notebooks and terminals, e.g. in a batch system, it is one line per minute in the log.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from threading import Event, Thread
from typing import Any, TypeVar

_T = TypeVar("_T")
OnNote = Callable[..., None] | None
"""Called with the values of each `report_values`, whether a bar is shown or not."""
_FORMAT = (
    "{desc}: {percentage:3.0f}% |{bar}| {n:.0f} of {total:.0f} passes "
    "[{elapsed}, {remaining} left{postfix}]"
)
_FORMAT_WITHOUT_END = "{desc}: {n:.0f} passes [{elapsed}{postfix}]"
_FEWEST_STEPS = 3
"""Steps below which a loop has no bar of its own."""
_LINE_EVERY, _PAUSE = 60.0, 10.0
"""Seconds between two lines; seconds without a step after which the minute starts again."""
_FIRST_LINE_AFTER = 0.25
"""Seconds before the first line about a wait; shorter waits write nothing."""


def is_interactive() -> bool:
    """Whether the program runs in a notebook or terminal, where a bar is redrawn in place."""
    return _in_notebook() or sys.stderr.isatty()


def _in_notebook() -> bool:
    # Do not import IPython for this.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def duration_text(seconds: float) -> str:
    """A time for readers, e.g. `40 s`, `4 min` or `2.5 h`."""
    if seconds < 0.95:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _ProgressLines:
    """Replaces the bar outside of terminals: writes one line per minute to standard error."""

    last_line = last_step = -inf
    """When any bar last wrote a line, and last took a step."""

    def __init__(self, label: str, total: float | None, unit: str) -> None:
        self._label, self._total, self._unit, self.n = label, total, unit, 0.0
        self._start = time.monotonic()
        if self._start - _ProgressLines.last_step > _PAUSE:
            _ProgressLines.last_line = self._start

    def update(self, n: float) -> None:
        self.n += n
        _ProgressLines.last_step = now = time.monotonic()
        if now - _ProgressLines.last_line < _LINE_EVERY:
            return
        _ProgressLines.last_line = now
        taken = now - self._start
        of_all = f" of {self._total:.0f}" if self._total else ""
        left = taken * (self._total / self.n - 1) if self._total and self.n else 0.0
        more = f", about {duration_text(left)} left" if left > 0.5 else ""
        line = f"{self._label}: {self.n:.0f}{of_all} {self._unit} in {duration_text(taken)}{more}\n"
        sys.stderr.write(line)
        sys.stderr.flush()

    def set_postfix(self, values: object, refresh: bool) -> None: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class RunProgress:
    """Progress of a run so far; `bar` may be None, and other fields are as in `open_bar`."""

    bar: Any
    passes: float | None
    n_examples: int
    on_note: OnNote = None
    done: float = 0.0
    """Passes over the data so far."""

    def advance(self, n_examples: float) -> None:
        """Reports examples that were run, forward and backward alike."""
        self.done += n_examples / self.n_examples
        if self.bar is not None:
            # An estimate that was too low leaves a full bar, not one beyond its end.
            shown = self.done if self.passes is None else min(self.done, self.passes)
            self.bar.update(shown - self.bar.n)

    def report_values(self, **values: float) -> None:
        """Reports what a step reached, e.g. `size=4, effect=0.31`."""
        if self.bar is not None:
            shown = {name: f"{value:.3g}" for name, value in values.items()}
            self.bar.set_postfix(shown, refresh=False)
        if self.on_note is not None:
            self.on_note(**values)


_NOTHING = RunProgress(None, None, 1)
_CURRENT: ContextVar[RunProgress | None] = ContextVar("progress", default=None)


def current_run() -> RunProgress:
    """The progress of the current run, or a silent one if no run is open."""
    return _CURRENT.get() or _NOTHING


@contextmanager
def open_bar(
    label: str, passes: float | None, n_examples: int, *, shown: bool | None, on_note: OnNote = None
) -> Iterator[RunProgress]:
    """Opens the bar of a run; within another run, yields the bar of that run.

    `passes` is the largest number of passes over the data; if None, no end is shown. With
    `shown=None`, the run shows a bar in notebooks and terminals, else lines.
    """
    outer = _CURRENT.get()
    if outer is not None:
        yield outer
        return
    bar: Any = None
    if shown or (shown is None and is_interactive()):
        bar = _import_tqdm()(
            desc=label,
            total=passes,
            bar_format=_FORMAT_WITHOUT_END if passes is None else _FORMAT,
            leave=False,
            mininterval=0.2,
            dynamic_ncols=not _in_notebook(),
        )
    elif shown is None:
        bar = _ProgressLines(label, passes, "passes")
    progress = RunProgress(bar, passes, n_examples, on_note)
    token = _CURRENT.set(progress)
    try:
        yield progress
    finally:
        _CURRENT.reset(token)
        if bar is not None:
            bar.close()


@contextmanager
def report_waiting(label: str) -> Iterator[None]:
    """Reports a block without steps in the log: soon after its start, then every minute."""
    done, start = Event(), time.monotonic()

    def write_lines() -> None:
        text = ""
        while not done.wait(_LINE_EVERY if text else _FIRST_LINE_AFTER):
            text = f": {duration_text(time.monotonic() - start)} so far" if text else " ..."
            sys.stderr.write(f"{label}{text}\n")
            sys.stderr.flush()

    if not is_interactive():
        # A daemon thread does not keep an interrupted program from ending.
        Thread(target=write_lines, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def track(items: Iterable[_T], label: str, *, shown: bool | None) -> Iterator[_T]:
    """Shows a bar or lines for a loop, unless it is short or within a run that has a bar."""
    total = len(items) if hasattr(items, "__len__") else None  # type: ignore[arg-type]
    is_short = total is not None and total < _FEWEST_STEPS
    if shown is False or _CURRENT.get() is not None or is_short:
        yield from items
    elif shown or is_interactive():
        yield from _import_tqdm()(items, desc=label, leave=False)
    else:
        lines = _ProgressLines(label, total, "steps")
        for item in items:
            yield item
            lines.update(1)


def _import_tqdm() -> Any:
    with warnings.catch_warnings():
        # Without ipywidgets, tqdm writes text in notebooks too, and warns of it.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    return tqdm
