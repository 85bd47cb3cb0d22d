"""A report: what runs traced, what they found and how to repeat them, on one page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, get_args

import plotly.graph_objects as go

from tracekit._util.arguments import check_arguments
from tracekit._util.markup import interval_text
from tracekit._util.options import as_path, short_repr
from tracekit._util.progress import report_waiting
from tracekit._util.table import Column, Table, join_labels
from tracekit.components import Component
from tracekit.data.display import make_shown_pair
from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import DATASETS
from tracekit.errors import ComparisonError, NoResultError
from tracekit.measure import Attention, Explanation, Look, Paths, SideEffects
from tracekit.metrics import METRICS
from tracekit.reports.page import Section, write_page
from tracekit.reports.saved import OfRun, read_saved
from tracekit.results import tables
from tracekit.results.comparison import Comparable, Comparison, compare
from tracekit.results.curve import all_results, is_several
from tracekit.results.display import facts_table
from tracekit.results.generations import Generations
from tracekit.results.interactions import InteractionGrid
from tracekit.results.on_examples import largest_share
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult
from tracekit.search import METHODS, LocalSearch
from tracekit.search.base import config_of
from tracekit.search.objectives import ObjectiveName

Anatomy = OfRun | Look
Reported = Comparable | InteractionGrid | Anatomy | PromptPairs
"""Results, curves, fronts, comparisons, grids, explanations, paths, attention, side effects,
generations; folders of these; and pairs, whose prompts stand beside the effects on them."""
_SINGLE = TraceResult | InteractionGrid | ParetoFront | PromptPairs | Anatomy

_MOST_PANELS = 4
"""Results whose sets are drawn side by side."""
_MOST_COLUMNS = 6
"""Results with a column in the table of examples."""
_MOST_EXAMPLES, _MOST_LABELS = 200, 8
_LARGEST = "largest example's share of the effect"
_CHECKED = (
    "A Tracer refuses to run unless, on the model that it was given, every hook point fires once "
    "and in the right shape, an empty mask changes no bit, an edit at every site moves the logits, "
    "a gradient arrives, and padding changes nothing. Every effect was measured with a mask of "
    "zeros and ones. Each effect in this report is the mean of its effects on single examples; of "
    "runs that were saved, the digests of all files agree."
)


@check_arguments
@report_waiting("Writing the report")
def report(results: Iterable[Reported] | Reported, path: str | Path) -> Path:
    """Writes a page on some results: setting, figures, sets, examples, and how to repeat the runs.

    Results of different data, models, components or metrics have parts of their own.

    Args:
        results: Results and what was measured of them, as in `Reported`; folders, of which all that
            was saved there or below is reported; and pairs, such as `tracer.pairs`, whose prompts
            stand in the table of examples.
        path: The HTML file, which is returned; it holds all it needs, and opens without a network.

    Raises:
        NoResultError: There are none.
        ResultNotFoundError, ResultFormatError: A folder holds none, or files that were changed.
        ConfigError: Something else was given.
    """
    path = as_path("path", path)
    is_single = isinstance(results, _SINGLE) or not is_several(results)
    given: list[Any] = []
    for each in [results] if is_single else results:  # type: ignore[union-attr]
        given += read_saved(each) if isinstance(each, (str, Path)) else [each]
    if not given:
        raise NoResultError("There is no result to report. Give at least one.")
    groups = _grouped(given)
    grids = [each for each in given if isinstance(each, InteractionGrid)]
    prompts = {each.fingerprint: _prompts(each) for each in given if isinstance(each, PromptPairs)}
    sections = []
    for look in (each for each in given if isinstance(each, Look)):
        figures = [] if look.where is None else [look.where.heatmap(normalised=True)]
        figures += [largest.heatmap() for largest in look.sets[-1:]]
        sections.append(Section(heading="A first look", figures=figures, code=str(look)))
    sections += [s for group in groups for s in _sections(group, prompts, len(groups) > 1)]
    sections += [_explanation_section(each) for each in given if isinstance(each, Explanation)]
    attention = [each for each in given if isinstance(each, Attention)]
    sections += [_paths_section(each, attention) for each in given if isinstance(each, Paths)]
    for each in attention:
        heading = f"What heads look at: {join_labels(each.labels, _MOST_LABELS)}"
        lines = str(each).splitlines()
        sections.append(Section(heading=heading, paragraphs=lines, figures=[each.figure()]))
    sections += [_side_effects_section(each) for each in given if isinstance(each, SideEffects)]
    sections += [_generations_section(each) for each in given if isinstance(each, Generations)]
    if grids:
        text = (
            "How much more (red) or less (blue) two components do together than the sum of what "
            "each does alone."
        )
        drawn = [grid.heatmap() for grid in grids]
        sections.append(Section(heading="Who acts together", paragraphs=[text], figures=drawn))
    first = groups[0].results[0] if groups else None
    title = f"tracekit: {first.dataset} data, {first.model} model" if first else "tracekit"
    return write_page(path, title, sections)


class _Group(NamedTuple):
    """Results that answer the same question, and the fronts among them."""

    results: list[TraceResult]
    fronts: list[ParetoFront]


def _grouped(given: Sequence[Reported]) -> list[_Group]:
    groups: list[_Group] = []
    for each in given:
        if isinstance(each, InteractionGrid | PromptPairs | Anatomy):
            continue
        results = all_results(each)
        if not results:
            raise NoResultError(f"There is no result in {short_repr(each)}. Leave it out.")
        for group in groups:
            with suppress(ComparisonError):
                tables.check_comparable([group.results[0], results[0]])
                break
        else:
            group = _Group([], [])
            groups.append(group)
        group.results.extend(results)
        if isinstance(each, ParetoFront):
            group.fronts.append(each)
    return groups


def _sections(
    group: _Group, prompts: Mapping[str, list[str]], is_one_of_several: bool
) -> list[Section]:
    results = group.results
    comparison = compare(results)
    first = results[0]
    # Not by the held-out effect, which then would have been searched too.
    best = max(results, key=lambda result: result.effect)
    lead = f"{best.title} selects {best.n_selected} of {best.n_components} components."
    on = [(best.searched, "searched", "spread")]
    on = on if best.held_out is None else [(best.held_out, "held-out", "95 % interval"), *on]
    for where, name, brackets in on:
        lead += (
            f" On the {where.n_text} {name} examples their effect is {where.mean:.4g} ({brackets} "
            f"{interval_text(*where.interval)}), {100 * where.share:.0f} % of the effect of all "
            "components."
        )
        lead += f" First choices: {where.choices_text}." if where.choices_text else ""
    for result in results:
        for certificate in result.certificates[-1:]:
            lead += f" {result.title}, {result.n_selected} components: {certificate.summary}"
    name = f"{first.dataset} data, {first.model} model, {first.setup.metric}"
    name += f", {first.setup.intervention}"
    shares = [largest_share(result.per_example)[1] for result in results]
    whole = comparison.table(most_labels=first.n_components)
    sets = Table([*whole.columns, Column("largest_share", _LARGEST, shares, ".0%")])
    effects = (*tables.effect_columns(results), _LARGEST)
    notes = [f"A row for each example, and its effect by each set: {first.axis_label}."]
    if first.searched.weights is not None:
        notes.append("Each is multiplied by the weight of its example.")
    if (n := len(first.per_example)) > _MOST_EXAMPLES:
        notes.append(f"The {_MOST_EXAMPLES} of {n} with the largest effects by the last result.")
    return [
        Section(heading=name if is_one_of_several else "", lead=lead),
        Section(heading="Setting", table=_setting(first), note=_CHECKED),
        Section(heading="Figures", figures=_figures(group, comparison)),
        Section(
            heading="Sets",
            table=sets.only("result", "budget", *effects, "passes", "seconds", "components"),
            note=f"{tables.legend(results)} Passes: forward and backward, over all data; the "
            "budgets of one run share them. Largest share: of the summed absolute effects on the "
            "searched examples, by one example.",
        ),
        Section(
            heading="Effects on the searched examples",
            table=_examples(comparison, prompts.get(first.searched.fingerprint, [])),
            note=" ".join(notes),
        ),
        Section(heading="To repeat", code=_code(group)),
    ]


def _setting(result: TraceResult) -> Table:
    setup = result.setup
    facts = [
        ("model", tables.facts_of_model(result)),
        ("data", tables.result_examples_text(result)),
        ("fingerprint of the data", result.dataset_fingerprint),
        ("components", result.registry.describe()),
        ("metric", f"{setup.metric}: {result.axis_label}"),
        ("continuations", f"{setup.continuation_mean} mean of token probabilities"),
        ("positions", setup.positions),
        ("source", f"{setup.source}: {setup.intervention}"),
        ("effect of all components", f"{result.full_effect:.4g} on the searched examples"),
        *((f"version of {package}", number) for package, number in result.run.versions.items()),
    ]
    return facts_table(facts, of="value")


def _figures(group: _Group, comparison: Comparison) -> list[go.Figure]:
    largest: dict[str, TraceResult] = {}
    for result in sorted(group.results, key=lambda result: result.n_selected):
        largest[result.series] = result
    drawn = list(largest.values())[-_MOST_PANELS:]
    figures = [comparison.curve(), compare(drawn).heatmap()]
    figures += [each.circuit() for each in drawn if each.registry.edges is not None]
    for front in group.fronts:
        figures += [front.curve(), front.heatmap()]
    return figures


def _examples(comparison: Comparison, texts: list[str]) -> Table:
    """Effects on single examples, those with the largest first where not all have room."""
    results = comparison.results[-_MOST_COLUMNS:]
    labels = comparison.labels[-_MOST_COLUMNS:]
    order = results[-1].per_example.abs().argsort(descending=True).tolist()[:_MOST_EXAMPLES]
    numbers = sorted(order)
    columns = [Column("example", "example", numbers)]
    if texts:
        columns.append(Column("prompt", "prompt", [texts[number] for number in numbers]))
    for result, label in zip(results, labels, strict=True):
        columns.append(Column(label, label, result.per_example[numbers].tolist()))
    return Table(columns)


def _prompts(pairs: PromptPairs) -> list[str]:
    texts = []
    for pair in pairs:
        given = (pair.texts or {}).get("prompt")
        tokens = [text for text, _ in make_shown_pair(pair, pairs.token_texts).prompt]
        texts.append(given if isinstance(given, str) and given else " ".join(tokens))
    return texts


def _explanation_section(why: Explanation) -> Section:
    return Section(
        heading=f"Why they act together: {join_labels(why.labels, _MOST_LABELS)}",
        paragraphs=str(why).splitlines(),
        figures=[why.waterfall(), why.heatmap(), why.network()],
        table=member_table(why),
        note="Alone: its effect if nothing else is patched. Last: what leaving it out of the set "
        "costs. Value: its Shapley value, what it brings averaged over all orders in which members "
        "join. Brackets: 95 % intervals over examples.",
    )


def _paths_section(paths: Paths, attention: list[Attention]) -> Section:
    """Takes the attention of the same set away, to show it beside the paths."""
    beside = [each for each in attention if {*each.components} <= {*paths.components}]
    for each in beside:
        attention.remove(each)
    return Section(
        heading=f"How they connect: {join_labels(paths.labels, _MOST_LABELS)}",
        paragraphs=[*str(paths).splitlines()[:1], *(str(each).splitlines()[0] for each in beside)],
        figures=[paths.network(), *(each.figure() for each in beside)],
        table=path_table(paths),
        note="Effect on the metric of the sender's change through the receiver alone, everything "
        "else clean; by query, key, value: only that of the receiver changes. p is corrected for "
        "all paths. Brackets: 95 % intervals over examples.",
    )


def _side_effects_section(side: SideEffects) -> Section:
    titles = {"control": "random sets", "control_selectivity": "of random sets"}
    forms = {"p": ".2g", "control_selectivity": ".3g"}
    facts = ("name", "dataset", "metric", "examples", "effect", "strength", "random sets", "p")
    table = Table.of_rows(side.table, titles, forms, joined=True)
    return Section(
        heading=f"Side effects of {join_labels(side.labels, _MOST_LABELS)}",
        figures=[side.figure()],
        table=table.only(*facts, "selectivity", "of random sets"),
        note="Strength: mean absolute effect, as a share of that of all components. Random sets: "
        "as many components of every kind in every layer; mean, and from least to greatest. p: "
        "share of random sets at least as strong. Selectivity: (target - other) / (target + other) "
        "of strengths; 1 if only the target moves, 0 if both move by the same share. The set was "
        "chosen on the examples of the target. Brackets: 95 % intervals over examples.",
    )


def _generations_section(written: Generations) -> Section:
    members = join_labels(written.labels, _MOST_LABELS) or "nothing"
    return Section(
        heading=f"What the model writes with {members} replaced",
        table=Table.of_rows(written.table),
        note=f"Clean: by itself; intervened: with the set replaced. {written.how}",
    )


def _code(group: _Group) -> str:
    """Python that builds the tracer and runs each search once more, as far as results say how."""
    first = group.results[0]
    n = len(first.per_example)
    facts = first.model_facts
    dtype = f", dtype={facts.dtype!r}" if facts.dtype in ("bfloat16", "float16") else ""
    model = f"model = tk.load_model({facts.path or first.model!r}{dtype})"
    lines = ["import tracekit as tk", "", model]
    pairs = f"...  # the {n} examples of {first.dataset!r}, which were made by hand"
    origin = first.searched.origin
    lines.append(f"pairs = {pairs if origin is None else origin.code()}")
    setup = first.setup.named(first.registry)
    lines += ["tracer = tk.Tracer(", "    model,", "    pairs,", "    tk.Setup("]
    fields = setup.code()
    # Where the code takes something of the reader's.
    notes = {"metric": "" if setup.metric in METRICS else "  # your function"}
    notes["source"] = f"  # {setup.source!r}" if fields.get("source") == "..." else ""
    lines += [f"        {name}={code},{notes.get(name, '')}" for name, code in fields.items()]
    lines.append("    ),")
    if first.held_out is not None and first.held_out.origin is not None:
        lines.append(f"    held_out={first.held_out.origin.code()},")
    if first.extra_metrics:
        lines.append(f"    extra_metrics={list(first.extra_metrics)!r},")
    lines.append(")")
    lines.append(f"assert tracer.pairs.fingerprint == {first.dataset_fingerprint!r}")
    of_fronts = {id(result) for front in group.fronts for result in front}
    by_run: dict[tuple[Any, ...], list[TraceResult]] = {}
    for result in group.results:
        if id(result) not in of_fronts:
            # Results of one run share what it took.
            key = (result.series, repr(result.config), result.seed)
            by_run.setdefault((*key, result.run.seconds, result.cost), []).append(result)
    lines += [*map(_run, by_run.values()), *map(_front_run, group.fronts)]
    return "\n".join(lines) + "\n"


def _run(results: Sequence[TraceResult]) -> str:
    """Code that searches once more; `results` are those of one run."""
    first = results[0]
    if first.method not in METHODS:
        members = ", ".join(map(_component_code, first.components))
        return f"tracer.evaluate([{members}])  # of {first.method!r}"
    arguments = [repr(first.method)]
    budgets = sorted({result.budget for result in results if result.budget is not None})
    if first.target_effect is not None:
        arguments.append(f"target_effect={first.target_effect!r}")
    elif len(budgets) > 1:
        arguments.append(f"budgets={budgets}")
    elif budgets:
        arguments.append(f"budget={budgets[0]}")
    arguments += _search_options(first)
    return f"tracer.run({', '.join(arguments)}){_note_on_run(first)}"


def _component_code(component: Component) -> str:
    if component.ends:
        return repr(str(component))
    span = f", {component.span!r}" if component.span else ""
    return f"tk.Component({component.kind!r}, {component.layer}, {component.index}{span})"


def _front_run(front: ParetoFront) -> str:
    # The sets of a front may be of two searches, between which halves of the examples chose.
    own = next((result for result in front if result.method == LocalSearch.name), front[0])
    was_chosen = any(len(row.cross_fitted_by or ()) > 1 for row in front.statistics)
    is_auto = was_chosen or any(result.method != own.method for result in front)
    arguments = [f"max_budget={front.largest}", *_search_options(own)]
    if own.run.objective == "mean":
        arguments.append(f"objective='{'auto' if is_auto else 'mean'}'")
    if not front.statistics:
        arguments.append("statistics=False")
    return f"tracer.pareto({', '.join(arguments)}){_note_on_run(own)}"


def _search_options(result: TraceResult) -> list[str]:
    """Arguments of a search, without its goal."""
    arguments = [f"seed={result.seed}"]
    if result.run.objective in get_args(ObjectiveName) and result.run.objective != "mean":
        arguments.append(f"objective={result.run.objective!r}")
    if result.run.sign != "positive" and result.target_effect is None:
        arguments.append(f"sign={result.run.sign!r}")
    if result.constraint is not None:
        held = result.constraint
        bound = f"metric={held.metric!r}, at_most={held.at_most!r}"
        if held.dataset_fingerprint != result.dataset_fingerprint:
            is_known = held.dataset in DATASETS
            pairs = f"tk.load_dataset({held.dataset!r}, model)" if is_known else "..."
            bound = f"pairs={pairs}, {bound}"
        arguments.append(f"constraint=tk.Constraint({bound})")
    usual = config_of(METHODS[result.method]()) if result.method in METHODS else {}
    options = {n: value for n, value in result.config.items() if value != usual.get(n)}
    return [*arguments, *(f"{name}={value!r}" for name, value in options.items())]


def _note_on_run(result: TraceResult) -> str:
    """Parts of a run that its code leaves out."""
    notes = []
    if result.run.objective not in get_args(ObjectiveName):
        notes.append(f"with the objective {result.run.objective!r}")
    held = result.constraint
    if held is not None and held.dataset_fingerprint != result.dataset_fingerprint:
        notes.append(f"the constraint is on examples of {held.dataset!r}")
    if result.stopped:
        notes.append(f"stopped by {result.stopped}")
    return f"  # {'; '.join(notes)}" if notes else ""


def member_table(why: Explanation) -> Table:
    """A row per member: its contribution alone, last and on average, and its verdict."""
    columns = ("component", "alone", "last", "value", "verdict")
    return Table.of_rows(why.table, joined=True).only(*columns)


def path_table(paths: Paths, most: int = 20) -> Table:
    """A row for each of the strongest paths: its effect, and that of each single input."""
    titles = {name: f"by {name}" for name in ("query", "key", "value")}
    table = Table.of_rows(paths.table.head(most), titles, {"q": ".2g"}, joined=True)
    inputs = [title for title in titles.values() if title in table.titles]
    return table.only("sender", "receiver", "effect", *inputs, "q")
