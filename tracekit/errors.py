"""Exceptions. Each says what is wrong with what was given, then what is allowed or what to do.

Every class derives from `TracekitError` and from the builtin it specialises, so both
``except tracekit.TracekitError`` and ``except ValueError`` work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar


class TracekitError(Exception):
    """Base class of every error that tracekit raises on purpose."""

    def __str__(self) -> str:
        # KeyError would print the repr of its argument.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Some are built from other things than their message; between processes that is enough.
        return _rebuilt, (type(self), str(self))


def _rebuilt(kind: type[TracekitError], text: str) -> TracekitError:
    error = kind.__new__(kind)
    error.args = (text,)
    return error


class SlowPathWarning(UserWarning):
    """A model on which a shortcut does not serve, so that the plain way is taken."""


class UnverifiedModelWarning(UserWarning):
    """A model whose numbers could not be compared with those of its wrapped form."""


class DatasetDiffersWarning(UserWarning):
    """A data set with another number of examples than the paper's."""


class TokenizationWarning(UserWarning):
    """A continuation that is scored as other tokens than it has in the text."""


class WeakEffectWarning(UserWarning):
    """The effect of all components is near zero, or is that of a single example."""


class NoStatisticsError(TracekitError, ValueError):
    """A front without held-out effects."""


class UnstableResultWarning(UserWarning):
    """A set whose effect is that of a single example, or that does not hold on fresh ones."""


class TrackerWarning(UserWarning):
    """A tracker that failed, and gets no further records of the run."""


class SearchStoppedWarning(UserWarning):
    """A search that was interrupted, and returns the best found so far."""


class UnreadableRunWarning(UserWarning):
    """A folder in a store that holds no readable run, and is left out."""


class CheckpointWarning(UserWarning):
    """A checkpoint that cannot be written; the search goes on without."""


class _UnknownNameError(TracekitError, ValueError):
    """A name that no registry knows; the message lists the known ones."""

    noun = "name"
    earlier: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Names of earlier versions, and what they are called now."""

    def __init__(self, name: object, known_names: Iterable[str], hint: str | None = None) -> None:
        """Makes the message.

        Args:
            name: As given.
            known_names: What it may be.
            hint: A sentence to say instead of the guess at what was meant.
        """
        names = sorted(known_names)
        renamed = [new for new in self.earlier.get(str(name), ()) if new in names]
        close = get_close_matches(str(name), names, n=1)
        close = close or [listed for listed in names if str(name) and str(name) in listed]
        if hint is None and renamed:
            hint = f"It is now called {renamed[0]!r}."
        elif hint is None and close:
            hint = f"Did you mean {close[0]!r}?"
        text = f"Unknown {self.noun} {name!r}. {hint or ''}".rstrip()
        super().__init__(f"{text} Known: {', '.join(names)}.")


class UnknownMetricError(_UnknownNameError):
    """No metric of that name."""

    noun = "metric"


class UnknownKindError(_UnknownNameError):
    """No component kind of that name."""

    noun = "component kind"
    earlier: ClassVar[Mapping[str, tuple[str, ...]]] = {"mlp-hidden": ("mlp-neurons",)}


class UnknownMethodError(_UnknownNameError):
    """No search method of that name."""

    noun = "method"
    earlier: ClassVar[Mapping[str, tuple[str, ...]]] = {"path": ("local-search",)}


class UnknownDatasetError(_UnknownNameError):
    """No data set of that name."""

    noun = "data set"
    earlier: ClassVar[Mapping[str, tuple[str, ...]]] = {"vbd": ("variable-binding",)}


class UnknownTableError(_UnknownNameError):
    """No published table for a model and a data set."""

    noun = "table"


class UnknownExperimentError(_UnknownNameError):
    """No experiment of that name."""

    noun = "experiment"


class TableMismatchError(TracekitError, ValueError):
    """A published table is about another model or data set than the one to be compared."""


class DisagreementError(TracekitError, ValueError):
    """A model's effects differ from those published for it."""


class NoRunError(TracekitError, RuntimeError):
    """No run of an experiment could be done."""


class RankError(TracekitError, RuntimeError):
    """The processes that share a trace do not fit together, or one of them has ended."""


class WorkerLostError(TracekitError, RuntimeError):
    """A process that did runs beside others was killed."""


class ExecutorError(TracekitError, ValueError):
    """An executor of an unknown kind, or with options that it does not take."""


class ExecutorUnreachableError(TracekitError, ConnectionError):
    """An executor that cannot be reached, that has no workers, or that is gone."""


class VersionsDifferError(TracekitError, RuntimeError):
    """A worker has another version of tracekit, or of what the numbers depend on."""


class FolderNotSharedError(TracekitError, OSError):
    """A worker does not see the folder that runs are to be written to."""


class FolderInUseError(TracekitError, BlockingIOError):
    """Another sweep works in the folder."""


class ModelMismatchError(TracekitError, ValueError):
    """A model has other sizes than the one whose name it was given."""


class UnknownArchitectureError(_UnknownNameError):
    """No architecture of that name."""

    noun = "architecture"


class UnknownOptionError(_UnknownNameError, TypeError):
    """A search method has no option of that name."""

    noun = "option"
    earlier: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "max_forwards": ("max_passes",),
        "mean": ("continuation_mean",),
        "batch_size": ("max_batch_size",),
        "schedule": ("penalty_schedule", "budget_sampling"),
    }


class UnknownKeyError(_UnknownNameError):
    """A file of options has a key that stands for none."""

    noun = "key"


class OptionsFileError(TracekitError, ValueError):
    """A file of options that is not TOML, or has a value that is none."""


class OptionsNotFoundError(TracekitError, FileNotFoundError):
    """There is no file of options of that name."""


class RenamedArgumentError(TracekitError, TypeError):
    """An argument was given by an earlier name."""


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


class ComponentError(TracekitError, ValueError):
    """A selection of components that is empty or lies outside the model."""


class PositionError(TracekitError, ValueError):
    """A position scope that is unknown or outside a prompt."""


class LengthMismatchError(TracekitError, ValueError):
    """A prompt and its counterfactual have different numbers of tokens."""


class EmptyContinuationError(TracekitError, ValueError):
    """A prompt or continuation encodes to no token."""


class PairsError(TracekitError, ValueError):
    """Prompt pairs that are empty, incomplete or contradictory."""


class SourceError(TracekitError, ValueError):
    """A source of values that is unknown, or does not suit the data or the components."""


class MissingContinuationError(TracekitError, ValueError):
    """The metric compares x with y, and an example has no y."""


class NonFiniteMetricError(TracekitError, ArithmeticError):
    """A metric gave NaN or infinity; the message names the examples."""


class NotDifferentiableError(TracekitError, TypeError):
    """A gradient method was asked to follow a metric without a gradient."""


class SpanError(TracekitError, ValueError):
    """A span that is not in the prompt, or spans that do not suit each other."""


class MibFormatError(TracekitError, ValueError):
    """Importances that are not in the format of the MIB benchmark, or cannot be."""


class NoTracerError(TracekitError, RuntimeError):
    """A result that was loaded, or whose tracer is gone, and can measure nothing."""


class RunMismatchError(TracekitError, ValueError):
    """A saved run is to be measured again, on another model or other data than its own."""


class NothingKeptError(TracekitError, RuntimeError):
    """No set that a search tried leaves what is to be kept within its bounds."""


class SideEffectsError(TracekitError, ValueError):
    """Other data for side effects that is none, or on which nothing can be compared."""


class MissingReadingError(TracekitError, ValueError):
    """A metric asks for something of a run that the run was not asked for."""


class MetricShapeError(TracekitError, ValueError):
    """A metric did not return one value per example."""


class MetricSideEffectError(TracekitError, ValueError):
    """A metric changed the log-probabilities that it was given."""


class MaskShapeError(TracekitError, ValueError):
    """A mask with another number of entries than there are components."""


class MaskRangeError(TracekitError, ValueError):
    """A mask with an entry outside [0, 1]."""


class BudgetError(TracekitError, ValueError):
    """A budget below one component or above all of them, or a contradictory request."""


class ConfigError(TracekitError, ValueError):
    """A hyper-parameter outside its range."""


class SpaceTooLargeError(TracekitError, ValueError):
    """Exhaustive search over more subsets than allowed."""


class EstimateError(TracekitError, ValueError):
    """What a search will take was asked for, and it does not say."""


class TargetNotReachedError(TracekitError, ValueError):
    """No set that the search saw reaches the wanted effect."""


class NothingMeasuredError(TracekitError, RuntimeError):
    """A search was stopped before it measured any set."""


class CheckpointError(TracekitError, ValueError):
    """A checkpoint that cannot be read, or that belongs to another search, model or data set."""


class ComparisonError(TracekitError, ValueError):
    """Results that cannot be compared: of different data, models, components or metrics."""


class NoResultError(TracekitError, LookupError):
    """A figure was asked for before any run."""


class ExplorationError(TracekitError, ValueError):
    """Something that is no set of an exploration, or an explorer of too many components."""


class MissingExtraError(TracekitError, ImportError):
    """A package is missing that an extra of tracekit installs."""


class DataNotFoundError(TracekitError, FileNotFoundError):
    """The files of a data set are not where they were looked for."""


class DataFormatError(TracekitError, ValueError):
    """A data file that does not have the expected form."""


class ResultNotFoundError(TracekitError, FileNotFoundError):
    """A folder that holds no saved run."""


class ResultFormatError(TracekitError, ValueError):
    """A saved run that is damaged or incomplete."""


class FormatVersionError(TracekitError, ValueError):
    """A saved run in a format that this version does not read."""


class OutputError(TracekitError, OSError):
    """A file or folder that was named for output and cannot be written."""


class FigureExportError(TracekitError, RuntimeError):
    """A figure could not be written as an image."""
