"""Names that users write, as types and for pages of help; tests compare them with the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

KindName = Literal[
    "attention-patterns",
    "head-outputs",
    "mlp-outputs",
    "mlp-neurons",
    "mlp-blocks",
    "attention-blocks",
    "queries",
    "keys",
    "values",
    "residual",
    "residual-before",
    "residual-between",
    "edges",
    "edges-by-head",
    "edges-by-block",
]
MetricName = Literal[
    "odds-ratio",
    "probability-drop",
    "probability-ratio",
    "logit-difference",
    "accuracy",
    "kl",
    "jensen-shannon",
    "entropy-change",
    "set-logit-difference",
    "set-probability-difference",
    "rank-change",
    "first-choice-change",
]
MethodName = Literal[
    "pgb-ct+local",
    "pgb-ct",
    "local-search",
    "dcm",
    "learned-ranking",
    "top-k",
    "empirical-bayes-top-k",
    "greedy",
    "random",
    "exhaustive",
    "mask-ig",
    "eap-ig",
    "attribution",
]
ObjectiveName = Literal[
    "mean", "log-odds", "trimmed-mean", "lower-bound", "median", "faithful", "auto"
]
ContinuationMean = Literal["geometric", "arithmetic"]
"""How the probabilities of the tokens of a continuation are averaged."""
Direction = Literal["noising", "denoising"]
"""Which run is patched: counterfactual values into the clean run, or the reverse."""
SignName = Literal["positive", "negative", "full"]
SourceName = Literal["counterfactual", "noise", "zero", "mean", "mean-positional", "resample"]

if TYPE_CHECKING:
    MethodChoice = MethodName
    MetricChoice = MetricName
else:
    # At run time a wrong name has an error of its own, with suggestions.
    MethodChoice = MethodName | str
    MetricChoice = MetricName | str


def choices_text(choices: Any) -> str:
    """Names of a type, as a page of help lists them."""
    return ", ".join(get_args(choices))
