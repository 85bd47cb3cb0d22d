"""Exceptions. Each says what is wrong with what was given, then what is allowed or what to do.

They come in this order: warnings, errors about options, models, data and metrics, searches and
results, processes and packages.
Every class derives from `TracekitError` and from the builtin it specialises, so both
``except tracekit.errors.TracekitError`` and ``except ValueError`` work.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class TracekitError(Exception):
    """Base class of every error that tracekit raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Some are built from other things than their message; between processes that is enough.
        return copyreg.__newobj__, (type(self), str(self))  # type: ignore[attr-defined]


class ModelWarning(UserWarning):
    """A model on which an optimisation or a check is not supported; a slower path is used."""


class DataWarning(UserWarning):
    """A data set of another size than the paper's, or a text that tokens do not match."""


class UnreliableResultWarning(UserWarning):
    """An effect near zero, carried by a single example, or much smaller on fresh examples."""


class SearchStoppedWarning(UserWarning):
    """A search that was stopped, or whose limits do not bound all that is run."""


class RecordWarning(UserWarning):
    """A tracker, checkpoint or saved run that cannot be read or written; the work goes on."""


def near_miss(name: object, known_names: Iterable[str]) -> str:
    """The question whether a known name was meant, or nothing if none is like it."""
    names = sorted(known_names)
    close = [listed for listed in names if listed.startswith(f"{name} ")]
    close = close or get_close_matches(str(name), names, n=1)
    within = [listed for listed in names if str(name) and str(name) in listed]
    close = close or sorted(within, key=lambda listed: not listed.startswith(str(name)))
    return f"Did you mean {close[0]!r}?" if close else ""


class UnknownNameError(TracekitError, ValueError):
    """A name that no registry knows; the message lists the known ones."""

    def __init__(
        self, noun: str, name: object, known_names: Iterable[str], hint: str | None = None
    ) -> None:
        """Names what is meant by a noun such as `metric`; a hint replaces the guess at it."""
        names = sorted(known_names)
        hint = near_miss(name, names) if hint is None else hint
        text = f"Unknown {noun} {name!r}. {hint}".rstrip()
        super().__init__(f"{text} Known: {', '.join(names)}.")


class UnknownOptionError(UnknownNameError, TypeError):
    """A function, a search method, a data set or a model has no option of that name."""

    def __init__(self, name: object, known_names: Iterable[str], hint: str | None = None) -> None:
        """As `UnknownNameError`, of an option."""
        super().__init__("option", name, known_names, hint)


class ConfigError(TracekitError, ValueError):
    """A setting of the wrong type, outside its range, or at odds with another."""


class BudgetError(TracekitError, ValueError):
    """A budget below one component or above all of them, or a contradictory request."""


class ComponentError(TracekitError, ValueError):
    """A selection of components that is empty, too large, or lies outside the model."""


class MaskError(TracekitError, ValueError):
    """A mask with another number of entries than components, or with an entry outside [0, 1]."""


class SourceError(TracekitError, ValueError):
    """A source of values that is unknown, or does not suit the data or the components."""


class UnknownModelError(TracekitError, ValueError):
    """Something that is neither a model name, a model directory nor a model."""


class HubUnreachableError(TracekitError, ConnectionError):
    """A hub name was given, its files are not cached and the hub cannot be reached."""


class UnsupportedModelError(TracekitError, TypeError):
    """The model lacks something every trace needs."""


class HookPointError(TracekitError, RuntimeError):
    """A hook point is missing, does not fire as expected, or ignores what a hook returns."""


class IdentityCheckError(TracekitError, RuntimeError):
    """The empty mask changed the output, or the full mask did not."""


class PairsError(TracekitError, ValueError):
    """Prompt pairs that are empty, incomplete or contradictory, or spans that do not fit them."""


class MissingContinuationError(TracekitError, ValueError):
    """The metric compares x with y, and an example has no y."""


class DataNotFoundError(TracekitError, FileNotFoundError):
    """A file of data or options is not where it was looked for."""


class DataFormatError(TracekitError, ValueError):
    """A data file that does not have the expected form."""


class MetricError(TracekitError, ValueError):
    """A metric that returns another shape, changes its input, or reads what was not recorded.

    Also one by which all components together have no effect, or one of the wrong sign.
    """


class NonFiniteMetricError(TracekitError, ArithmeticError):
    """A metric gave NaN or infinity; the message names the examples."""


class NotDifferentiableError(TracekitError, TypeError):
    """A gradient method was asked to follow a metric without a gradient."""


class TargetNotReachedError(TracekitError, ValueError):
    """No set that the search measured reaches the wanted effect."""


class NothingFoundError(TracekitError, RuntimeError):
    """A search that stopped before it measured a set, or measured none within the bounds."""


class NoResultError(TracekitError, LookupError):
    """A figure, statistic or measurement was asked for that needs a run which is not there."""


class ComparisonError(TracekitError, ValueError):
    """Results that cannot be compared: of different data, models, components or metrics."""


class ResultNotFoundError(TracekitError, FileNotFoundError):
    """A folder that holds no saved run."""


class ResultFormatError(TracekitError, ValueError):
    """A saved run or checkpoint that is damaged, incomplete, or belongs to something else."""


class OutputError(TracekitError, OSError):
    """A file or folder that was named for output and cannot be written."""


class FigureExportError(TracekitError, RuntimeError):
    """A figure could not be written as an image."""


class WorkerError(TracekitError, RuntimeError):
    """A process that shares the work is lost, unreachable, or of another version or setting."""


class MissingExtraError(TracekitError, ImportError):
    """A package is missing that an extra of tracekit installs."""

    @classmethod
    def of(cls, user: str, error: ModuleNotFoundError, extra: str) -> MissingExtraError:
        """The error for a module that is not there: what needs it, and the extra that has it."""
        return cls(
            f"{user} needs {error.name}, which is not installed. "
            f"Run pip install 'tracekit-lm[{extra}]'."
        )
