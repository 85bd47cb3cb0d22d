"""Tables of several results, whether one table may hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from tracekit._util.deferred import pd
from tracekit._util.table import Column, Table, join_labels
from tracekit.errors import ComparisonError
from tracekit.metrics import METRICS
from tracekit.results.result import TraceResult


def curve_data(results: Sequence[TraceResult]) -> pd.DataFrame:
    """The table behind an effect curve: a row per method and number of components.

    Methods whose history holds an effect for each of several sizes contribute all of them. Where
    two runs of a method measured the same size, the larger effect counts.

    Returns:
        A DataFrame with the columns `method`, `n_selected` and `effect`.
    """
    rows = []
    for result in results:
        rows.append((result.series, result.n_selected, result.effect))
        if result.run.records_every_size:
            rows += [
                (result.series, int(record["n_selected"]), float(record["effect"]))
                for record in result.history
            ]
    frame = pd.DataFrame(rows, columns=["method", "n_selected", "effect"])
    frame["method"] = pd.Categorical(frame["method"], categories=frame["method"].unique())
    groups = frame.groupby(["method", "n_selected"], observed=True, as_index=False)
    return groups.agg({"effect": "max"}).astype({"method": str})


def effect_columns(results: Sequence[TraceResult]) -> tuple[str, ...]:
    """Columns of `result_table` that say what sets do; of held-out examples where there are some.

    Shares are of the examples that faithfulness and completeness are of.
    """
    fresh = [result.held_out is not None for result in results]
    held_out = ("held_out", "95 % interval", "held_out_share") if any(fresh) else ()
    share = () if all(fresh) else ("share",)
    columns = ("n_selected", "effect", "95 % spread", *share, *held_out)
    mixed = ("measured on",) if any(fresh) and not all(fresh) else ()
    return (*columns, "faithfulness", "completeness", *mixed)


def result_examples_text(result: TraceResult) -> str:
    """How many examples a result was searched and measured on, e.g. for a heading."""
    own, fresh = result.searched, result.held_out
    held_out = "" if fresh is None else f" and {fresh.n_text} held-out"
    return f"{own.n_text} searched{held_out} examples of {result.dataset}"


_WORDS = {
    "held_out": "Held out: on examples that no search saw, with a 95 % confidence interval. ",
    "share": "Share: the effect as a share of that of all components together. ",
    "faithfulness": "Faithful: how much remains when all others are patched (1: all). ",
    "completeness": "Complete: how much remains when the set is patched (0: nothing). ",
}
"""What columns mean, by the name of the column or its end."""


def legend(results: Sequence[TraceResult], columns: Sequence[str] | None = None) -> str:
    """What the words of columns mean, of `effect_columns` by default."""
    columns = effect_columns(results) if columns is None else columns
    words = [text for end, text in _WORDS.items() if any(name.endswith(end) for name in columns)]
    return (
        f"{meaning_of_effects(results)} Searched: on the examples that selected the set; therefore "
        f"their spread is not a valid confidence interval. {''.join(words)}Brackets: 95 % "
        f"intervals.{metric_units(results)}"
    )


def latex_caption(results: Sequence[TraceResult], columns: Sequence[str] | None = None) -> str:
    """What a table of results is of: their effects, examples, models, components, and its words."""
    quantity, components = distinct(results, "axis_label"), [r.registry.describe() for r in results]
    return (
        f"{quantity[:1].upper()}{quantity[1:]} on "
        f"{' / '.join(dict.fromkeys(map(result_examples_text, results)))}, "
        f"{data_and_models(results)[1]}: {' / '.join(dict.fromkeys(components))}. "
        f"{legend(results, columns)}"
    )


def metric_units(results: Sequence[TraceResult]) -> str:
    """What further metrics of results are in, and on which examples; a sentence for each."""
    units = [(name, METRICS[name].axis_label) for name in _extras(results) if name in METRICS]
    return "".join(f" {name}: {unit}, searched." for name, unit in units)


def rows_that_may_be_best(results: Sequence[TraceResult]) -> list[int]:
    """Rows of results that may be best: random sets are a control."""
    return [row for row, result in enumerate(results) if result.method != "random"]


def result_table(results: Sequence[TraceResult], *, most_labels: int = 6) -> Table:
    """A row per result, with all that tables, figures and JSON say of results.

    Readers see so many `most_labels` of its components.
    """
    scores = [result.circuit_scores for result in results]
    sizes = {result.n_components for result in results}
    shown = partial(join_labels, most=most_labels)
    # Rows of different models or kinds have no number in common that could stand in each.
    of_all = f"{{}} of {min(sizes)}".format if len(sizes) == 1 else str
    intervals = [result.held_out_interval or (None, None) for result in results]
    fresh = [result.held_out for result in results]
    independent = [each and each.n_independent for each in fresh]
    places = ["searched" if each is None else "held out" for each in fresh]
    on = f", {places[0]}" if len({*places}) == 1 else ""

    def column(key: str, title: str, value: Callable[[TraceResult], Any], form: Any = ".4g") -> Any:
        return Column(key, title, [value(result) for result in results], form)

    table = Table(
        [
            column("method", "method", lambda r: r.series),
            column("budget", "budget", lambda r: r.budget),
            column("n_selected", "selected", lambda r: r.n_selected, of_all),
            column("n_components", "of", lambda r: r.n_components),
            column("effect", "effect, searched", lambda r: r.effect),
            column("effect", "95 % spread", lambda r: r.spread),
            column("full_effect", "all", lambda r: r.full_effect),
            column("share", "share, searched", lambda r: r.share_of_full_effect, ".0%"),
            Column("faithfulness", f"faithful{on}", [own for own, _ in scores], ".2f"),
            Column("completeness", f"complete{on}", [rest for _, rest in scores], ".2f"),
            Column("measured_on", "measured on", places),
            column("held_out", "effect, held out", lambda r: r.held_out_effect),
            Column("held_out", "95 % interval", intervals),
            Column("held_out_share", "share, held out", [e and e.share for e in fresh], ".0%"),
            column("passes", "passes", lambda r: float(r.cost.forward_equivalents), ".0f"),
            column("seconds", "seconds", lambda r: r.run.seconds, ".1f"),
            column("components", "components", lambda r: r.labels, shown),
            column("n_examples", "n, searched", lambda r: r.searched.n_examples),
            column("n_independent", "independent, searched", lambda r: r.searched.n_independent),
            Column("n_held_out", "n, held out", [e and e.n_examples for e in fresh]),
            Column("n_held_out_independent", "independent, held out", independent),
            column("model", "model", lambda r: r.model),
            column("dataset", "data", lambda r: r.dataset),
            column("kind", "kind", lambda r: "+".join(r.registry.kinds)),
            *(column(n, n, attrgetter(f"setup.{n}")) for n in ("metric", "source", "direction")),
            column("positions", "positions", lambda r: str(r.setup.positions)),
            column("seed", "seed", lambda r: r.seed),
        ]
    )
    taken = {*table.titles, *(each.key for each in table.columns)}
    at = table.titles.index("passes")
    added = []
    for name in _extras(results):
        # A metric of somebody's own may be called what a column is.
        key = "_".join(name.split())
        is_taken = bool({name, key} & taken)
        values = [result.extra_effects.get(name) for result in results]
        title = f"{name} (metric)" if is_taken else name
        added.append(Column(f"{key}_metric" if is_taken else key, title, values))
    return Table([*table.columns[:at], *added, *table.columns[at:]])


def _extras(results: Sequence[TraceResult]) -> list[str]:
    """Further metrics of any of the results."""
    return [*dict.fromkeys(name for result in results for name in result.extra_effects)]


def facts_of_model(result: TraceResult) -> str:
    """Name, revision and weights of the model of a result, and what may blur its numbers."""
    facts = result.model_facts
    parts = [result.model, f"weights {facts.weights_digest[:12] or 'not read'}"]
    parts += [f"revision {facts.revision[:12]}"] if facts.revision else []
    parts += [f"hooks left at {', '.join(facts.foreign_hooks[:3])}"] if facts.foreign_hooks else []
    parts += [f"noise floor {result.noise_floor:.2g}"] if result.noise_floor else []
    return "; ".join(parts)


def distinct(results: Sequence[TraceResult], fact: str, joint: str = " / ") -> str:
    """The different values of a fact of several results in one text."""
    return joint.join(dict.fromkeys(map(attrgetter(fact), results)))


def data_and_models(results: Sequence[TraceResult]) -> tuple[str, str]:
    """Names of the data sets and of the models of results, for a title."""
    models = list(dict.fromkeys(result.model for result in results))
    shown = models if len(models) < 4 else [models[0], "\u2026", models[-1]]
    return distinct(results, "dataset"), " / ".join(shown)


def interventions(results: Sequence[TraceResult]) -> str:
    """What was patched in each of several results, in words."""
    return distinct(results, "setup.intervention")


def meaning_of_effects(results: Sequence[TraceResult]) -> str:
    """What the effects of results are of, and which way those above 0 move the model."""
    of_direction = {"noising": "away from", "denoising": "back to"}
    ways = dict.fromkeys(of_direction[result.setup.direction] for result in results)
    text = f"Effects are of {interventions(results)}; above 0, they move the model"
    return f"{text} {' / '.join(ways)} its clean answer x."


def check_comparable(
    results: Sequence[TraceResult], *, of_sets: bool = False, any_dtype: bool = False
) -> None:
    """Refuses results of different questions, data or models, and says which.

    `of_sets`, which are compared and not their effects, all but the components may differ, and
    models whose names do. One model may be loaded in `any_dtype`.
    """
    of_components, may_differ = {"models", "dtypes", "weights", "components"}, set[str]()
    dtypes = [result.model_facts.dtype for result in results]
    models = [(r.model, d if any_dtype else "") for r, d in zip(results, dtypes, strict=True)]
    weights = {*zip(models, [r.model_facts.weights_digest for r in results], strict=True)}
    if len(weights) == len({*models}):
        may_differ |= {"models"} if of_sets else set()
        may_differ |= {"weights"} if of_sets or any_dtype else set()
    for name, values in (
        ("models", [result.model for result in results]),
        ("dtypes", [] if any_dtype or "weights" in may_differ else dtypes),
        ("weights", [result.model_facts.weights_digest[:12] for result in results]),
        ("data sets", [result.dataset for result in results]),
        ("sources", [result.setup.source for result in results]),
        ("seeds of the source", [result.setup.source_seed for result in results]),
        ("directions", [result.setup.direction for result in results]),
        ("examples", [result.dataset_fingerprint for result in results]),
        ("metrics", [result.setup.metric for result in results]),
        ("continuation means", [result.setup.continuation_mean for result in results]),
        ("positions", [result.setup.positions for result in results]),
        ("components", [result.registry for result in results]),
    ):
        others = [value for value in values if value != values[0]]
        if others and name not in may_differ and (name in of_components or not of_sets):
            is_long = name in ("examples", "components")
            shown = "" if is_long else f" ({values[0]} and {others[0]})"
            also = " Or give any_dtype=True." if name == "dtypes" and of_sets else ""
            if name == "weights" and of_sets:
                also = (
                    " The sets of two models can be compared if these have different names: "
                    'tk.load_model(..., name="...").'
                )
            if not of_sets and (name == "models" or name not in of_components):
                also = " The heatmap and `jaccard` of tk.compare(...) compare the sets themselves."
            raise ComparisonError(
                f"The results are of different {name}{shown}, so one figure or table would mix "
                "numbers that mean different things. Make one for each. Or measure every set with "
                "one tracer, which has all their components: tk.compare([tracer.as_result(each) "
                f"for each in results]).{also}"
            )
