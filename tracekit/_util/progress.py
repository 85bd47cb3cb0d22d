"""One progress bar for a whole run, with an estimate of the time that is left.

Whoever begins a run opens the bar (`run`); everything below only reports to it: engines what they
have read (`advance`), searches what they have reached (`note`). What is opened while a bar is shown
belongs to it, so bars are never nested.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")
_FORMAT = (
    "{desc}: {percentage:3.0f}% |{bar}| {n:.0f} of {total:.0f} passes "
    "[{elapsed}, {remaining} left{postfix}]"
)
_FORMAT_WITHOUT_END = "{desc}: {n:.0f} passes [{elapsed}{postfix}]"
_FEWEST_STEPS = 3
"""Steps below which a loop has no bar of its own."""


def is_wanted() -> bool:
    """Whether somebody watches: in notebooks and terminals, where a bar is redrawn in place."""
    return _in_notebook() or sys.stderr.isatty()


def _in_notebook() -> bool:
    # IPython is asked only if it runs already.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


class Progress:
    """Progress of a run so far."""

    def __init__(
        self,
        bar: Any,
        passes: float | None,
        n_examples: int,
        on_note: Callable[..., None] | None = None,
    ) -> None:
        """Starts at nothing.

        `bar` shows it, if there is one. `passes` over the data are the most that the run takes, if
        known. `on_note` is told what each step reached.
        """
        self._on_note = on_note
        self._bar, self._passes, self._n_examples = bar, passes, n_examples
        self.done = 0.0
        """Passes over the data so far."""

    def advance(self, n_examples: float) -> None:
        """Reports examples that were run, forward and backward alike."""
        self.done += n_examples / self._n_examples
        if self._bar is not None:
            # An estimate that was too low leaves a full bar, not one beyond its end.
            shown = self.done if self._passes is None else min(self.done, self._passes)
            self._bar.update(shown - self._bar.n)

    def note(self, **values: float) -> None:
        """Reports what a step reached, e.g. `size=4, effect=0.31`."""
        if self._bar is not None:
            shown = {name: f"{value:.3g}" for name, value in values.items()}
            self._bar.set_postfix(shown, refresh=False)
        if self._on_note is not None:
            self._on_note(**values)


_NOTHING = Progress(None, None, 1)
_CURRENT: ContextVar[Progress | None] = ContextVar("progress", default=None)


def current() -> Progress:
    """The run that is going on; one that shows nothing if there is none."""
    return _CURRENT.get() or _NOTHING


@contextmanager
def run(
    label: str,
    passes: float | None,
    n_examples: int,
    *,
    shown: bool,
    on_note: Callable[..., None] | None = None,
) -> Iterator[Progress]:
    """Opens the bar of a run; within another run, that one's.

    `passes` over the data are the most that it takes; unknown, no end is shown. `on_note` is told
    what each step reached, shown or not.
    """
    outer = _CURRENT.get()
    if outer is not None:
        yield outer
        return
    bar = _bar(label, passes) if shown else None
    progress = Progress(bar, passes, n_examples, on_note)
    token = _CURRENT.set(progress)
    try:
        yield progress
    finally:
        _CURRENT.reset(token)
        if bar is not None:
            bar.close()


def steps(items: Iterable[_T], label: str, *, shown: bool) -> Iterable[_T]:
    """A loop with a bar, if it is long enough and no run has one."""
    total = len(items) if hasattr(items, "__len__") else _FEWEST_STEPS  # type: ignore[arg-type]
    if not shown or _CURRENT.get() is not None or total < _FEWEST_STEPS:
        return items
    return _tqdm()(items, desc=label, leave=False)


def _tqdm() -> Any:
    with warnings.catch_warnings():
        # Without ipywidgets, tqdm writes text in notebooks too, and warns of it.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    return tqdm


def _bar(label: str, passes: float | None) -> Any:
    bar_format = _FORMAT_WITHOUT_END if passes is None else _FORMAT
    options: dict[str, Any] = {"bar_format": bar_format, "leave": False, "mininterval": 0.2}
    if not _in_notebook():
        options["dynamic_ncols"] = True
    return _tqdm()(desc=label, total=passes, **options)
