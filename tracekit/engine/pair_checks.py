"""Refuses pairs that do not suit a model, a metric or components, before anything is run."""

from __future__ import annotations

from tracekit.components import ComponentRegistry
from tracekit.data.counterfactuals import NoCounterfactual
from tracekit.data.pair import PromptPair
from tracekit.data.pairs_report import check_padding
from tracekit.data.prompts import PromptPairs
from tracekit.errors import MissingContinuationError, PairsError
from tracekit.metrics import Metric
from tracekit.models.architectures import has_dynamic_rope
from tracekit.models.hooked import HookedModel, model_name


def check_traceable(
    pairs: PromptPairs, model: HookedModel, registry: ComponentRegistry, metric: Metric
) -> None:
    """Refuses pairs that cannot be traced."""
    check_continuations(pairs, metric)
    check_padding(pairs, getattr(model, "tokenizer", None))
    by_key = [kind.name for kind in registry.kinds_by_hook.values() if kind.key_dim is not None]
    vocabulary, d_model = int(model.cfg.d_vocab), int(model.cfg.d_model)
    context = int(getattr(model.cfg, "n_ctx", 0) or 0)
    for number, pair in enumerate(pairs):
        if by_key and pair.counterfactual_spans is not None:
            raise PairsError(
                f"Example {number} ({pair.describe()}) exchanges spans at different positions, and "
                f"{by_key[0]} are over the keys of one prompt. Use head-outputs."
            )
        ids = pair.prompt_ids + pair.counterfactual_ids + pair.x_ids + (pair.y_ids or ())
        ids += (pair.x_set_ids or ()) + (pair.y_set_ids or ())
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise PairsError(
                f"Example {number} ({pair.describe()}) has a token id outside the vocabulary. "
                f"Ids must be 0 to {vocabulary - 1}; encode with the model's own tokenizer."
            )
        read = max(len(pair.prompt_ids), len(pair.counterfactual_ids))
        longest = read + max(len(pair.x_ids), len(pair.y_ids or ())) - 1
        if context and longest > context:
            start = f"Example {number} ({pair.describe()}) needs {longest} positions. The model "
            if has_dynamic_rope(model):
                raise PairsError(
                    f"{start}reads more than {context} by rotary factors that the longest row of a "
                    "batch decides (rope type 'dynamic'), so an example's effect would depend on "
                    "the others. Shorten it, or give the model another rope type, such as 'yarn'."
                )
            raise PairsError(f"{start}has {context}; shorten it.")
        if isinstance(pair.counterfactual, NoCounterfactual):
            raise PairsError(
                f"Example {number} ({pair.describe()}) has no counterfactual. Give it one "
                "(counterfactual, counterfactual_ids or noise), or trace with source='zero', "
                "'mean', 'resample' or 'noise'."
            )
        noise = pair.counterfactual.added_to_embeddings()
        if noise is not None and noise.shape[1] != d_model:
            raise PairsError(
                f"{model_name(model)} cannot run the counterfactual of example {number}: its noise "
                f"is {noise.shape[1]} wide, the model's embeddings {d_model}. Make it for this "
                "model."
            )


def check_continuations(pairs: PromptPairs, metric: Metric) -> None:
    """Refuses a metric whose continuations an example lacks."""
    for number, pair in enumerate(pairs):
        if metric.needs_y and pair.y_ids is None:
            raise MissingContinuationError(
                f"The metric {metric.name!r} compares x with y, and example {number} "
                f"({pair.describe()}) has no y. Give every example a continuation y, or use "
                "probability-drop or probability-ratio."
            )
        if "answer-tokens" in metric.reads:
            check_distinguishable(number, pair, f"the metric {metric.name!r}")
        if "token-sets" in metric.reads:
            of_x, of_y = pair.token_sets
            both = sorted({*of_x} & {*of_y})
            if both:
                raise PairsError(
                    f"Token {both[0]} counts as x and as y in example {number} "
                    f"({pair.describe()}), whose x and y begin alike. Give it token sets (x_set, "
                    "y_set), or use logit-difference."
                )


def check_distinguishable(number: int, pair: PromptPair, asking: str) -> None:
    """Refuses a pair in which no token of x differs from that of y in its place."""
    if not pair.has_distinguishing_token:
        raise PairsError(
            f"In example {number} ({pair.describe()}) one of x and y is the beginning of the other "
            f"or equal to it, so no token tells them apart, and {asking} cannot be computed. Leave "
            "the example out, or end both with the same sign, such as a full stop."
        )
