"""The fields of a `Setup`: each is written here once, with its default, its bounds and its help.

Options and help of the command line follow from these. The first paragraph of the docstring below
a field is the help of its option, so it says nothing that only holds in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveInt

from tracekit._util.names import ContinuationMean, Direction
from tracekit._util.options import Seed

if TYPE_CHECKING:
    from tracekit.components.registry import Components
    from tracekit.engine.layout import Positions
    from tracekit.engine.sources import AnySource
    from tracekit.metrics import Metric, MetricFunction

SplitBy = Literal["span", "position"]
"""Splits components further than layers and indices do."""
Indices = Sequence[int] | Mapping[int, Sequence[int]]
"""Numbers of heads, coordinates or neurons in every layer, or by layer."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SetupFields:
    """Base of `Setup`, without its methods."""

    components: Components = "attention-patterns"
    """Kind of component, or several kinds joined by `+`.

    Python also takes a list of kinds, a `Kind` of your own, or a registry (with `split_by` again,
    if it has spans). `tracekit.components.KINDS` has the kinds of tracekit.
    """
    metric: str | Metric | MetricFunction = "odds-ratio"
    """How the change of the model's answer is measured.

    Python also takes a `Metric`, or a function of the clean and the intervened
    `ContinuationLogProbs`. `tracekit.metrics.METRICS` has the metrics of tracekit.
    """
    layers: Sequence[int] | None = None
    """Layers to study; negative numbers count from the last layer. Default: all."""
    indices: Indices | None = None
    """Heads, coordinates or neurons to study, in every layer or by layer. Default: all."""
    split_by: SplitBy | str | None = None
    """Splits each component further: by `span` (named parts of the prompts) or by `position` (for
    prompts of one length). The name of a span instead, such as `subject`, lets components act on
    that span alone, and `subject:last` on its last token.

    `PromptPairs.from_text` reads the spans of prompts; `last` and `rest` are implied.
    """
    layer_window: PositiveInt = 1
    """Number of consecutive layers in which a component acts at once, around its own layer."""
    positions: Positions = "prompt"
    """Where to intervene: `prompt`, `last`, `all`, or positions in the prompt."""
    source: AnySource = "counterfactual"
    """Where the values come from that are patched in. Options of a source follow its name, as in
    `noise:spans=subject` or `mean:pairs=prompts.jsonl`.

    `counterfactual` takes the prompt or the noise that each pair has for that. Python also takes a
    `Noise` on spans, a `Mean` over other pairs, an `OtherModel`, or tensors by hook point
    (`tracekit.engine.sources`).
    """
    source_seed: Seed = 0
    """Seed of the noise of `noise` and of the examples of `resample`, both drawn for each example
    by its tokens. It is set to 0 where the source draws nothing."""
    direction: Direction = "noising"
    """`noising` patches counterfactual values into the clean run. `denoising` patches clean values
    into the counterfactual run; the effect is then the part of the difference that this undoes."""
    continuation_mean: ContinuationMean = "geometric"
    """How the probability of a continuation of several tokens is computed: `geometric` or
    `arithmetic` mean of the probabilities of its tokens."""
