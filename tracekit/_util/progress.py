"""What runs and how far it is: a progress bar in notebooks and terminals, else lines in the log.

Lines come from a thread: one soon after a call begins, and one every half minute, also where a
single step takes longer or nothing counts the steps.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from threading import Event, Thread, local
from typing import Any, TypeVar

_T = TypeVar("_T")
OnNote = Callable[..., None] | None
"""Called with the values of each `report_values`, whether a bar is shown or not."""
_FORMAT = (
    "{desc}: {percentage:3.0f}% |{bar}| {n:.0f} of {total:.0f} {unit} "
    "[{elapsed}, {remaining} left{postfix}]"
)
_FORMAT_WITHOUT_END = "{desc}: {n:.0f} {unit} [{elapsed}{postfix}]"
_FEWEST_STEPS = 3
"""Steps below which a loop has no bar of its own."""
_FIRST_LINE_AFTER, _LINE_EVERY, _TICK = 1.0, 30.0, 0.25
"""Seconds before the first line about a call, between two lines, and between two looks."""


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


@dataclass(eq=False)
class _Work:
    """Something that runs and how far it is; replaces the bar outside of terminals."""

    label: str
    total: float | None = None
    unit: str = ""
    """What is counted; empty if nothing is."""
    n: float = 0.0
    start: float = field(default_factory=lambda: time.monotonic())

    def update(self, n: float) -> None:
        self.n += n

    def progress_text(self, now: float) -> str:
        """How far it is and how long it took, e.g. `: 9 of 36 passes in 10 s, about 30 s left`."""
        taken = now - self.start
        if not self.unit:
            return " ..." if taken < _LINE_EVERY else f": {duration_text(taken)} so far"
        of_all = f" of {self.total:.0f}" if self.total else ""
        left = taken * (self.total / self.n - 1) if self.total and self.n else 0.0
        more = f", about {duration_text(left)} left" if left > 0.5 else ""
        return f": {self.n:.0f}{of_all} {self.unit} in {duration_text(taken)}{more}"


class _Watch:
    """What is open in a thread, from the call of the user inwards, and the lines about it."""

    last_line, last_label = -inf, ""
    """When a line was last written about any call, and which call that was."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.quiet_since = time.monotonic()

    def write_if_due(self) -> None:
        """Writes a line if the call has run for a second; about the same call twice a minute."""
        now, work = time.monotonic(), list(self.open)
        # Bars of tqdm draw themselves.
        if not work or now - self.quiet_since < _FIRST_LINE_AFTER or any(map(_is_bar, work)):
            return
        label, *inner = dict.fromkeys(each.label for each in work)
        if label == _Watch.last_label and now - _Watch.last_line < _LINE_EVERY:
            return
        _Watch.last_line, _Watch.last_label = now, label
        shown = f"{label} ({', '.join(inner)})" if inner else label
        sys.stderr.write(f"{shown}{work[-1].progress_text(now)}\n")
        sys.stderr.flush()

    def run(self, done: Event) -> None:
        while not done.wait(_TICK):
            self.write_if_due()


_LOCAL = local()
"""Has the `watch` of what the user called in this thread, if something runs."""


@contextmanager
def _watching(shown: bool | None) -> Iterator[_Watch]:
    """The watch of this thread; the outermost call has a new one, which writes if `shown`."""
    outer: _Watch | None = getattr(_LOCAL, "watch", None)
    if outer is not None:
        yield outer
        return
    watch, done = _Watch(), Event()
    # Of the processes that a launcher has started, the first one writes.
    if shown is not False and os.environ.get("RANK", "0") == "0":
        # A daemon thread does not keep an interrupted program from ending.
        Thread(target=watch.run, args=[done], daemon=True).start()
    _LOCAL.watch = watch
    try:
        yield watch
    finally:
        done.set()
        _LOCAL.watch = None


@contextmanager
def _opened(
    label: str, total: float | None = None, unit: str = "", *, shown: bool | None = None
) -> Iterator[Any]:
    """A bar, or what replaces it in the log, on the watch of the thread; None if not `shown`."""
    with _watching(shown) as watch:
        bar: Any = None
        if unit and (shown or (shown is None and is_interactive())):
            bar = _import_tqdm()(
                desc=label,
                total=total,
                unit=unit,
                bar_format=_FORMAT_WITHOUT_END if total is None else _FORMAT,
                leave=False,
                mininterval=0.2,
                dynamic_ncols=not _in_notebook(),
            )
        elif shown is not False:
            bar = _Work(label, total, unit)
        watch.open += [] if bar is None else [bar]
        try:
            yield bar
        finally:
            if bar is not None:
                watch.open = [each for each in watch.open if each is not bar]
                if _is_bar(bar):
                    bar.close()
                    watch.quiet_since = time.monotonic()


def _is_bar(work: Any) -> bool:
    return not isinstance(work, _Work | None)


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
        if _is_bar(self.bar):
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
    with _opened(label, passes, "passes", shown=shown) as bar:
        progress = RunProgress(bar, passes, n_examples, on_note)
        token = _CURRENT.set(progress)
        try:
            yield progress
        finally:
            _CURRENT.reset(token)


@contextmanager
def report_waiting(label: str, *, shown: bool | None = None) -> Iterator[None]:
    """Says that a block runs: soon after its start and every half minute, with its inner bars."""
    with _opened(label, shown=shown):
        yield


def track(items: Iterable[_T], label: str, *, shown: bool | None) -> Iterator[_T]:
    """Shows a bar or lines for a loop, unless it is short or within a run that has a bar."""
    total = len(items) if hasattr(items, "__len__") else None  # type: ignore[arg-type]
    is_short = total is not None and total < _FEWEST_STEPS
    unit = "" if is_short or _CURRENT.get() is not None else "steps"
    with _opened(label, total, unit, shown=shown) as bar:
        for item in items:
            yield item
            if bar is not None:
                bar.update(1)


def _import_tqdm() -> Any:
    with warnings.catch_warnings():
        # Without ipywidgets, tqdm writes text in notebooks too, and warns of it.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    return tqdm
