"""What error messages have no room for. Sphinx makes the page `trouble.md` from this table.

Most messages say what is wrong and what to do. Only those that need more have an entry here. The
tests hold every excerpt against the source: each part of it between `...` stands in a string of a
module that names the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracekit import errors


@dataclass(frozen=True)
class Entry:
    """Help on one message."""

    error: type[Exception]
    excerpt: str
    """From the message, with `...` for values."""
    help: str
    """What the message does not say, in Markdown."""


ENTRIES = {
    "Loading a model": [
        Entry(
            errors.UnknownModelError,
            "The hub has no model ... that you may read.",
            "A name with one slash is taken for a hub name if there is no such directory. Start a "
            "relative path with `./`.",
        ),
        Entry(
            errors.UnsupportedModelError,
            "TransformerLens computes other logits than ... itself",
            "TransformerLens ignores a setting of the configuration, or leaves out a part or "
            "hook that you added. See [the model as you give it]"
            "(model.md#the-model-as-you-give-it).",
        ),
        Entry(
            errors.ModelWarning,
            "TransformerLens processed the weights of ...",
            "Folded norms and centred weights keep the logits and change activations, so zero "
            "ablation removes something else. Use `tk.load_model`, or `source='mean'`.",
        ),
        Entry(
            errors.ModelWarning,
            "... takes the slower way: ...",
            "The results are the same. To silence it: `warnings.filterwarnings('ignore', "
            "category=tracekit.errors.ModelWarning)`.",
        ),
    ],
    "Prompt pairs": [
        Entry(
            errors.PairsError,
            "The counterfactual of example ... has ... tokens, its prompt ...",
            "Choose words with equally many tokens, drop these pairs (`on_mismatch='skip'`), or "
            "name [spans](components.md#positions-as-components).",
        ),
        Entry(
            errors.DataFormatError,
            "Example ... of ... has an unknown column ...",
            "Map columns, first the name in the file and then the name here: "
            "`columns={'answer': 'x', 'id': None}`.",
        ),
        Entry(
            errors.DataWarning,
            "A continuation begins within a word; give it its leading space",
            "Most often `' he'` was meant and `'he'` was given, or the prompt ends with a space. "
            "`pairs.check(model)` measures both forms.",
        ),
        Entry(
            errors.DataWarning,
            "x and y begin with the same ... in ... of ... pairs",
            "Move what they share into the prompt and the counterfactual. "
            "[Answers that begin alike](metric.md#answers-that-begin-alike) says which token each "
            "metric reads.",
        ),
        Entry(
            errors.DataWarning,
            "...: an interval needs ..., so there is none.",
            "Pairs of one group count as one [independent example]"
            "(statistics.md#which-examples-are-independent). Give pairs of more groups.",
        ),
    ],
    "Building a tracer": [
        Entry(
            errors.IdentityCheckError,
            "The empty mask has an effect of ... on ...",
            "The model is not deterministic, a hook was left on it (`model.reset_hooks()`), its "
            "weights changed, or the metric is not 0 for two equal runs.",
        ),
        Entry(
            errors.IdentityCheckError,
            "The full mask over ... changes no score of ...",
            "The components cannot reach the scored tokens, or the counterfactuals equal the "
            "prompts. Often `positions='last'` is set and prompts differ only before it.",
        ),
    ],
    "Running": [
        Entry(
            errors.NonFiniteMetricError,
            "The metric ... is not finite on ... of ... examples: ...",
            "Usually the denominator of a ratio underflows. Use `logit-difference`, or `bfloat16` "
            "in place of `float16`.",
        ),
        Entry(
            errors.UnreliableResultWarning,
            "All components together have an effect of only ...",
            "The model does not show the behaviour on these examples. `tracer.n_prefers_x` says on "
            "how many it does.",
        ),
        Entry(
            errors.UnreliableResultWarning,
            "On examples that had no part in choosing it, a set of size ... has an effect of ...",
            "The search fitted few of the examples: see [sets that hold]"
            "(run.md#sets-that-hold-on-fresh-examples).",
        ),
        Entry(
            errors.UnreliableResultWarning,
            "Another set of size ..., found from all components downwards, has an effect of ...",
            "The examples do not single out one set. Report both (`front.to_frame()`), or give "
            "more examples.",
        ),
    ],
    "Comparing and saving": [
        Entry(
            errors.ComparisonError,
            "The results are of different ...",
            "`tk.compare(results).heatmap()` and `.jaccard` compare sets of different sources, "
            "directions, metrics or examples. One tracer can measure sets from anywhere: "
            "`tk.compare([tracer.as_result(each) for each in results])`.",
        ),
        Entry(
            errors.FigureExportError,
            "Could not write ...",
            "Install `tracekit-lm[figures]` and Chrome (`plotly_get_chrome` fetches it), or write "
            "`.html`. On a busy machine try again.",
        ),
        Entry(
            errors.WorkerError,
            "A worker process was killed; often the memory was full.",
            "Each process of `--jobs` holds a model. Use fewer, or a smaller `--max-batch-size`. "
            "Finished runs are kept.",
        ),
    ],
}
"""By section of the page."""

NO_ERROR = {
    "The effect is enormous": "A few examples carry the mean of an unbounded metric. Look at "
    "`result.per_example`, or use `logit-difference`.",
    "The set has a larger effect than all components": "Components outside the set [act against "
    "it](circuits.md).",
    "The effect is negative": "Patching moves the model towards x. Check that the *clean* prompt "
    "favours x, or say [which sign you mean](run.md#effects-below-0).",
    "`n_selected` is below `budget`": "A smaller set had the larger effect.",
    "PGB-CT is far below greedy": "Use `pgb-ct+local`, more `trials` or `epochs`.",
    "Memory is full": "Use a smaller `max_batch_size`, a `max_memory`, fewer `layers`; see [memory]"
    "(model.md#memory-and-precision).",
}
"""What surprises without an error."""


def page() -> str:
    """The page, in Markdown: definition lists, whose terms are messages."""
    lines = [
        "# Trouble",
        "",
        "Every error that tracekit raises on purpose derives from `tracekit.errors.TracekitError`, "
        "and its message says what to do. This page adds what a message has no room for. Search it "
        "for the words of the message; `...` stands for a value. [Errors](api/errors.md) lists all "
        "classes.",
    ]
    for section, entries in ENTRIES.items():
        lines += ["", f"## {section}"]
        for entry in entries:
            lines += ["", f"`{entry.excerpt}` ({entry.error.__name__})", f":   {entry.help}"]
    lines += ["", "## No error, but odd numbers"]
    for surprise, answer in NO_ERROR.items():
        lines += ["", surprise, f":   {answer}"]
    return "\n".join(lines) + "\n"


def write(path: Path) -> None:
    """Writes the page, unless it is there and the same."""
    text = page()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
