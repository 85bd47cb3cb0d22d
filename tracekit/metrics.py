"""Metrics: the log-probabilities of two runs -> one effect per example.

The *effect* is the change of a metric when components take their counterfactual values, against
the clean run. With P the probability of a continuation in the clean run and P_int under the
intervention:

    odds-ratio         (P_int(y) / P_int(x)) / (P(y) / P(x)) - 1
    probability-drop   P(x) - P_int(x)
    probability-ratio  P(x) / P_int(x) - 1
    logit-difference   log P_int(y) - log P_int(x) - (log P(y) - log P(x))
    accuracy           [y is the model's choice] under the intervention, less the same when clean

A larger effect is a move away from x, towards y. The probability of a continuation of several
tokens is the geometric mean of its token probabilities (the published code) or their arithmetic
mean (the paper's formula); for one token `logit-difference` is the difference of two logits.

Others read the distribution P over a single token: the first token of x that differs from that of
y, after the prompt and what x and y share before it. Where y begins with all of x, this is the last
token of x; without a y it is the first. P(X) is the summed probability of all tokens that count as
x (`x_set_ids` of a pair, or the first token of x), always as the first token after the prompt:

    kl                          sum P log (P / P_int), the divergence from the clean run
    jensen-shannon              the mean divergence of P and P_int from their mean
    entropy-change              H(P_int) - H(P)
    set-logit-difference        log P_int(Y) - log P_int(X) - (log P(Y) - log P(X))
    set-probability-difference  P_int(Y) - P_int(X) - (P(Y) - P(X))
    rank-change                 rank of that token of x under the intervention, less when clean
    first-choice-change         1 where the model's first choice is another token, else 0
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf, log
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from tracekit._util.markup import clean_text
from tracekit._util.names import ContinuationMean as ContinuationMean
from tracekit._util.names import Direction as Direction
from tracekit._util.names import MetricName as MetricName
from tracekit._util.options import join_first
from tracekit.errors import (
    ConfigError,
    MetricError,
    MissingContinuationError,
    NonFiniteMetricError,
    NotDifferentiableError,
    UnknownNameError,
)

_F = TypeVar("_F", bound=Callable[..., Any])
Effects = Float[Tensor, " example"]
Reading = Literal["argmax", "distribution", "token-sets", "rank", "answer-tokens"]
"""What a metric can read of a run besides log P(x) and log P(y)."""


@dataclass(frozen=True, eq=False)
class ContinuationLogProbs:
    """Log-probabilities of the continuations of each example in one run, clean or intervened.

    Fields after `y` are None unless the metric `reads` what stands in parentheses.
    """

    x: Float[Tensor, " example"]
    """log P(x) of the target continuation, in nats; at most 0."""
    y: Float[Tensor, " example"] | None = None
    """log P(y) of the foil continuation; None unless every example has a y."""
    x_is_argmax: Bool[Tensor, " example"] | None = None
    """Whether every token of x is the model's first choice (`argmax`)."""
    y_is_argmax: Bool[Tensor, " example"] | None = None
    """The same for y."""
    distribution: Float[Tensor, "example d_vocab"] | None = None
    """Log-probabilities of all tokens where x and y first differ (`distribution`)."""
    x_set: Float[Tensor, " example"] | None = None
    """Log of the summed probability of the first tokens that count as x (`token-sets`)."""
    y_set: Float[Tensor, " example"] | None = None
    """The same for y; None also if some example has neither a y nor a token set for y."""
    set_choice: Int[Tensor, " example"] | None = None
    """The most probable first token after the prompt (`token-sets`)."""
    x_rank: Int[Tensor, " example"] | None = None
    """Rank, from 1, of the first token of x that differs from that of y (`rank`)."""
    first_choice: Int[Tensor, " example"] | None = None
    """The most probable token in its place (`rank`)."""
    answer_tokens: Int[Tensor, "example answer"] | None = None
    """The first tokens of x and y that differ, or of x if some have no y (`answer-tokens`)."""

    def map(self, change: Callable[[Tensor], Tensor]) -> ContinuationLogProbs:
        """Log-probabilities with every tensor changed."""
        tensors = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: change(value) for name, value in tensors.items()})

    def require(self, field: str) -> Tensor:
        """A field that only some metrics read, such as `distribution`; an error if it is None."""
        value = getattr(self, field)
        if value is None:
            raise MetricError(
                f"The log-probabilities of this run have no {field}. Say that the metric reads it: "
                f"Metric(name, function, reads=({_READING_OF[field]!r},))."
            )
        return value

    def require_y(self) -> Float[Tensor, " example"]:
        """The log-probability of y, in nats."""
        if self.y is None:
            raise MissingContinuationError(_NO_Y.format(metric="This metric"))
        return self.y

    def require_y_set(self) -> Float[Tensor, " example"]:
        """The log-probability of the tokens that count as y, in nats."""
        self.require("x_set")
        if self.y_set is None:
            raise MissingContinuationError(_NO_Y.format(metric="This metric"))
        return self.y_set


_READING_OF = {
    "x_is_argmax": "argmax",
    "y_is_argmax": "argmax",
    "distribution": "distribution",
    "x_set": "token-sets",
    "set_choice": "token-sets",
    "x_rank": "rank",
    "first_choice": "rank",
    "answer_tokens": "answer-tokens",
}


def _versions(log_probs: ContinuationLogProbs) -> list[int]:
    """How often each tensor was changed in place."""
    tensors = [value for value in vars(log_probs).values() if value is not None]
    return [0 if value.is_inference() else value._version for value in tensors]


MetricFunction = Callable[[ContinuationLogProbs, ContinuationLogProbs], Effects]
"""Takes the log-probabilities of the clean and the intervened run, returns one effect per example.

A function whose first parameter is called `logits` is treated like a metric of TransformerLens. It
gets the logits of one run (log-probabilities of shape `example 1 d_vocab`, after the prompt and the
tokens that x and y share) and the answer tokens (the first ones of x and y that differ, of shape
`example 2`), and returns one value per example: the effect is clean value minus intervened value.
"""

_NO_Y = (
    "{metric} compares x with y, and not every example has a y. "
    "Give every example a continuation y, or use probability-drop or probability-ratio."
)


@dataclass(frozen=True)
class Linearization:
    """A metric as a known curve over a quantity that changes about linearly with the mask.

    Linearising the metric itself fails where the model is certain, because the gradient vanishes,
    and underestimates large changes of the odds. So the log-odds are linearised instead.
    """

    to_linear: Callable[[ContinuationLogProbs], Float[Tensor, " example"]]
    """The quantity, from the log-probabilities of the intervened run."""
    to_effect: Callable[[ContinuationLogProbs, Tensor], Tensor]
    """Effects from the clean log-probabilities and values of the quantity (examples first)."""
    to_restored: Callable[[ContinuationLogProbs, Tensor], Tensor] | None = None
    """`to_effect` with the two runs exchanged; None: the effect is taken to be linear instead."""


class Bounds(NamedTuple):
    """Range of possible effects, which means and the ends of intervals never leave."""

    low: float = -inf
    high: float = inf
    counts: bool = False
    """Whether effects on single examples are whole numbers."""

    def of_sum(self, added: int, subtracted: int) -> Bounds:
        """Bounds of a sum in which so many effects are added and so many subtracted."""
        low = sum([self.low] * added + [-self.high] * subtracted)
        return Bounds(low, sum([self.high] * added + [-self.low] * subtracted), self.counts)


@dataclass(frozen=True, repr=False)
class Metric:
    """A named metric; `resolve_metric` makes one of any callable like `MetricFunction`."""

    name: str
    function: MetricFunction
    needs_y: bool = True
    differentiable: bool = True
    """Whether gradients reach the intervened log-probabilities."""
    reads: tuple[Reading, ...] = ()
    """Readings beside x and y: `argmax` (`x_is_argmax`, `y_is_argmax`), `distribution`,
    `token-sets` (`x_set`, `y_set`), `rank` (`x_rank`, `first_choice`), `answer-tokens`."""
    is_flat_at_clean: bool = False
    """Whether the gradient vanishes at the empty mask, as the gradient of a distance does."""
    lower_bound: float | None = None
    """Smallest possible effect; None: unbounded. From -1 on, 1/(1 + effect) has no pole."""
    upper_bound: float | None = None
    counts: bool = False
    """Whether effects on single examples are whole numbers, as for `accuracy`."""
    axis_label: str = "effect"
    """Axis title in figures, with the unit."""
    linearization: Linearization | None = None
    """Curve for predictions from a gradient; None: the effect itself is taken to be linear."""
    direction: Direction = "noising"
    """Whether counterfactual values are patched into the clean run, or clean ones put back."""

    def __post_init__(self) -> None:
        unknown = [reading for reading in self.reads if reading not in get_args(Reading)]
        if isinstance(self.reads, str) or unknown:
            raise ConfigError(
                f"The metric {self.name!r} reads {self.reads!r}. Give a tuple of "
                f"{', '.join(map(repr, get_args(Reading)))}."
            )

    @property
    def bounds(self) -> Bounds:
        """The range of possible effects."""
        low, high = self.lower_bound, self.upper_bound
        return Bounds(-inf if low is None else low, inf if high is None else high, self.counts)

    def __repr__(self) -> str:
        direction = "" if self.direction == "noising" else f", {self.direction}"
        return clean_text(f"Metric({self.name}: {self.axis_label}{direction})")

    def denoising(self) -> Metric:
        """The metric for clean values that are put back into the counterfactual run.

        Its first argument is the counterfactual run, its second the run with restored values: it
        measures how far these lead back from the counterfactual towards the clean run.
        """
        if self.direction == "denoising":
            return self
        function, curve = self.function, self.linearization
        reverse = None
        if curve is not None and curve.to_restored is not None:
            reverse = Linearization(curve.to_linear, curve.to_restored, curve.to_effect)
        return replace(
            self,
            function=lambda base, restored: function(restored, base),
            linearization=reverse,
            direction="denoising",
            axis_label=self.axis_label.replace("effect", "restored effect", 1),
        )

    def __call__(self, clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
        """One effect per example.

        Raises:
            MetricError: The function did not return one effect per example, changed its arguments
                in place, or needs a reading that `reads` does not name.
            NotDifferentiableError: A gradient is needed, and the function converts to NumPy.
            MissingContinuationError: It reads y, and some example has none.
        """
        versions = _versions(clean), _versions(intervened)
        try:
            effects = self.function(clean, intervened)
        except (TypeError, AttributeError) as error:
            if "NoneType" not in str(error):
                raise
            missing = [name for name, value in vars(clean).items() if value is None]
            raise MetricError(
                f"The metric {self.name!r} cannot be computed: {error}. The log-probabilities of "
                f"this run have no {', '.join(missing)}. Name in `reads` what the metric needs, "
                "e.g. Metric(name, function, reads=('distribution',)); y is only there if "
                "every example has one."
            ) from error
        except RuntimeError as error:
            if "requires grad" not in str(error):
                raise
            # NumPy refuses tensors that require a gradient.
            raise no_gradient(self.name) from error
        if (_versions(clean), _versions(intervened)) != versions:
            raise MetricError(
                f"The metric {self.name!r} changes the log-probabilities that it is given, which "
                "are used again. Compute with new tensors, without operations such as mul_()."
            )
        _check_values(self.name, effects, clean.x)
        # A metric with parameters returns a gradient even if none is needed.
        return (effects if torch.is_grad_enabled() else effects.detach()).to(clean.x)


def no_gradient(name: str) -> NotDifferentiableError:
    """The error for a metric through which no gradient reaches the mask."""
    return NotDifferentiableError(
        f"No gradient reaches the mask through the metric {name!r}. Compute it with differentiable "
        "torch operations, or use a search that needs no gradient, such as top-k."
    )


def _check_values(name: str, values: Any, like: Effects) -> None:
    if not isinstance(values, Tensor):
        problem = type(values).__name__
    elif values.is_nested:
        problem = "tensors of several shapes"
    elif values.shape != like.shape:
        problem = str(tuple(values.shape))
    elif values.is_complex():
        problem = "complex numbers"
    elif values.is_meta and not like.is_meta:
        problem = "a tensor without data (its device is 'meta')"
    else:
        return
    raise MetricError(
        f"The metric {name!r} returned {problem}. It must return a tensor of shape "
        f"{tuple(like.shape)}: one effect per example, a real number."
    )


def _divergence_from_mean(first: Tensor, second: Tensor) -> Tensor:
    """KL(first || mean of both) of log-probabilities; exactly 0 where they are equal."""
    # Larger ratios would overflow; the probability that they multiply is 0 there.
    ratio = torch.expm1(_log_ratio(first, second).clamp(max=80.0))
    return -(first.exp() * torch.log1p(ratio / 2)).sum(-1)


def _log_ratio(first: Tensor, second: Tensor) -> Tensor:
    """log(second / first); 0 where the first probability is 0, which then contributes nothing."""
    # -inf - -inf and its gradient would be NaN.
    return torch.where(first > -torch.inf, second - first, 0.0)


def _entropy(logs: Tensor) -> Tensor:
    return -(logs.exp() * torch.where(logs > -torch.inf, logs, 0.0)).sum(-1)


def _log_odds(log_probs: ContinuationLogProbs) -> Tensor:
    return log_probs.require_y() - log_probs.x


def _log_odds_against_x(log_probs: ContinuationLogProbs) -> Tensor:
    """Log-odds against x: log (1 - P(x)) - log P(x)."""
    # At P(x) = 1 the logarithm would be infinite, and its gradient NaN.
    return torch.log(-torch.expm1(log_probs.x.clamp(max=_CERTAIN))) - log_probs.x


def _per_example(clean: Tensor, values: Tensor) -> Tensor:
    """Values of the clean run, shaped to broadcast against several values of each example."""
    return clean.reshape(-1, *[1] * (values.ndim - 1))


_CERTAIN = -1e-7
_ODDS = Linearization(
    _log_odds,
    lambda clean, u: torch.expm1(u - _per_example(_log_odds(clean), u)),
    lambda base, u: torch.expm1(_per_example(_log_odds(base), u) - u),
)
_DROP = Linearization(
    _log_odds_against_x,
    lambda clean, u: _per_example(clean.x.exp(), u) - torch.sigmoid(-u),
    lambda base, u: torch.sigmoid(-u) - _per_example(base.x.exp(), u),
)
_RATIO = Linearization(
    _log_odds_against_x,
    lambda clean, u: torch.expm1(_per_example(clean.x, u) + functional.softplus(u)),
    lambda base, u: torch.expm1(-functional.softplus(u) - _per_example(base.x, u)),
)

METRICS: dict[str, Metric] = {}
"""Metrics by name. A new one is a function like those below, and a name in `MetricName`."""


def _metric(**facts: Any) -> Callable[[_F], _F]:
    """Marks a function as the metric of its name, with hyphens; facts are fields of `Metric`."""

    def register(function: _F) -> _F:
        name = function.__name__.replace("_", "-")
        METRICS[name] = Metric(name, function, **facts)
        return function

    return register


_without_y = partial(_metric, needs_y=False)
_of_distribution = partial(_without_y, reads=("distribution",))
_distance = partial(_of_distribution, is_flat_at_clean=True, lower_bound=0.0)
_of_token_sets = partial(_without_y, reads=("token-sets",))
_of_ranks = partial(_without_y, reads=("rank",), differentiable=False, counts=True)


@_metric(axis_label="effect (odds ratio \u2212 1)", lower_bound=-1.0, linearization=_ODDS)
def odds_ratio(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Relative change of the odds of y against x; at least -1."""
    return torch.expm1(_log_odds(intervened) - _log_odds(clean))


@_without_y(
    axis_label="effect (drop of P(x))", lower_bound=-1.0, upper_bound=1.0, linearization=_DROP
)
def probability_drop(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Drop of the probability of x; in [-1, 1]."""
    return clean.x.exp() - intervened.x.exp()


@_without_y(
    axis_label="effect (probability ratio \u2212 1)", lower_bound=-1.0, linearization=_RATIO
)
def probability_ratio(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Factor by which x became less probable, less 1; at least -1."""
    return torch.expm1(clean.x - intervened.x)


@_metric(axis_label="effect (logit difference, nats)")
def logit_difference(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Change of log P(y) - log P(x), in nats; unbounded."""
    return _log_odds(intervened) - _log_odds(clean)


@_metric(
    axis_label="effect (change of accuracy)",
    differentiable=False,
    reads=("argmax",),
    lower_bound=-1.0,
    upper_bound=1.0,
    counts=True,
)
def accuracy(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Change of the indicator that the model's first choice is y; -1, 0 or 1, no gradient."""
    if clean.y_is_argmax is None or intervened.y_is_argmax is None:
        raise MissingContinuationError(_NO_Y.format(metric="The metric 'accuracy'"))
    return intervened.y_is_argmax.float() - clean.y_is_argmax.float()


@_distance(axis_label="effect (KL divergence, nats)")
def kl(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Kullback-Leibler divergence of the intervened from the clean distribution, in nats."""
    before, after = clean.require("distribution"), intervened.require("distribution")
    return -(before.exp() * _log_ratio(before, after)).sum(-1).clamp(max=0.0)


@_distance(axis_label="effect (Jensen-Shannon divergence, nats)", upper_bound=log(2))
def jensen_shannon(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Jensen-Shannon divergence of the two distributions, in nats; in [0, log 2]."""
    before, after = clean.require("distribution"), intervened.require("distribution")
    return (_divergence_from_mean(before, after) + _divergence_from_mean(after, before)) / 2


@_of_distribution(axis_label="effect (change of entropy, nats)")
def entropy_change(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Change of the entropy of the distribution, in nats."""
    before, after = clean.require("distribution"), intervened.require("distribution")
    return _entropy(after) - _entropy(before)


@_of_token_sets(axis_label="effect (logit difference of token sets, nats)")
def set_logit_difference(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Change of log P(Y) - log P(X), the token sets that count as y and as x, in nats."""
    return (intervened.require_y_set() - intervened.require("x_set")) - (
        clean.require_y_set() - clean.require("x_set")
    )


@_of_token_sets(
    axis_label="effect (probability difference of token sets)", lower_bound=-2.0, upper_bound=2.0
)
def set_probability_difference(
    clean: ContinuationLogProbs, intervened: ContinuationLogProbs
) -> Effects:
    """Change of P(Y) - P(X), the token sets that count as y and as x; in [-2, 2]."""
    return (intervened.require_y_set().exp() - intervened.require("x_set").exp()) - (
        clean.require_y_set().exp() - clean.require("x_set").exp()
    )


@_of_ranks(axis_label="effect (ranks that x falls)")
def rank_change(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """By how many ranks the first token of x that differs from that of y falls; no gradient."""
    return (intervened.require("x_rank") - clean.require("x_rank")).float()


@_of_ranks(axis_label="effect (share of changed first choices)", lower_bound=0.0, upper_bound=1.0)
def first_choice_change(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """1 where another token is the most probable one in its place, else 0; no gradient."""
    return (intervened.require("first_choice") != clean.require("first_choice")).float()


def resolve_metric(metric: str | Metric | MetricFunction) -> Metric:
    """The metric of a name, or made of a function of clean and intervened log-probabilities.

    Raises:
        UnknownNameError: No metric has this name.
        MetricError: The argument is neither a metric, a name nor a function of two arguments.
    """
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        if metric not in METRICS:
            raise UnknownNameError("metric", metric, METRICS)
        return METRICS[metric]
    if not callable(metric):
        raise MetricError(f"The metric is {metric!r}. Pass a name, a tk.Metric or a function.")
    name = getattr(metric, "__name__", type(metric).__name__)
    try:
        arguments = inspect.signature(metric).bind(None, None).arguments
    except ValueError:
        arguments = {}  # A function written in C may not say what it takes.
    except TypeError as error:
        raise MetricError(
            f"The metric {name} cannot be called with two arguments ({error}). Give a function of "
            "the log-probabilities of the clean and the intervened run, or of logits and answers."
        ) from None
    if next(iter(arguments), "") == "logits":
        reads = ("distribution", "answer-tokens")
        label = f"effect ({name}, clean \u2212 intervened)"
        return Metric(name, _drop_of(name, metric), needs_y=False, reads=reads, axis_label=label)
    return Metric(name, metric, needs_y=False, reads=("argmax",), axis_label=f"effect ({name})")


def _drop_of(name: str, function: Any) -> MetricFunction:
    """The metric "value of a function in the clean run, minus its value in the intervened run"."""

    def drop(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
        values = [
            function(run.require("distribution")[:, None], run.require("answer_tokens"))
            for run in (clean, intervened)
        ]
        for each in values:
            _check_values(name, each, clean.x)
        return values[0].to(clean.x) - values[1].to(clean.x)

    return drop


def bounds_of(metric: object) -> Bounds:
    """Range of effects of a built-in metric, by its name; for other metrics it is unbounded."""
    return METRICS[metric].bounds if isinstance(metric, str) and metric in METRICS else Bounds()


def continuation_log_prob(
    token_log_probs: Float[Tensor, "*batch token"],
    valid: Bool[Tensor, "*batch token"],
    mean: ContinuationMean,
) -> Float[Tensor, "*batch"]:
    """Log-probability (nats) of continuations from the log-probabilities of their tokens.

    `valid` says which tokens exist; others may be anything finite. Without any token it is 0.
    """
    lengths = valid.sum(-1).clamp(min=1)
    if mean == "geometric":
        return torch.where(valid, token_log_probs, 0.0).sum(-1) / lengths
    if mean == "arithmetic":
        missing = ~valid.any(-1, keepdim=True)
        logs = torch.where(valid, token_log_probs, -torch.inf)
        # A row of -inf would have a NaN gradient.
        logs = torch.where(missing, 0.0, logs)
        return torch.where(missing[..., 0], 0.0, logs.logsumexp(-1) - lengths.log())
    raise ConfigError(f"Unknown mean {mean!r}. Use 'geometric' or 'arithmetic'.")


def check_finite(effects: Effects, metric: Metric, describe: Callable[[int], str]) -> None:
    """Raises a `NonFiniteMetricError` for NaN and infinity; `describe` returns a prompt."""
    bad = (~torch.isfinite(effects)).nonzero()[:, 0].tolist()
    if bad:
        named = [f"example {i} ({describe(i)}): {effects[i].item():g}" for i in bad]
        raise NonFiniteMetricError(
            f"The metric {metric.name!r} is not finite on {len(bad)} of {len(effects)} examples: "
            f"{join_first(named, 5)}. Leave them out, or use a bounded metric such as "
            "probability-drop."
        )
