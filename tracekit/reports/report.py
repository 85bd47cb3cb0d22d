"""A report: what runs traced, what they found and how to repeat them, on one page."""

from __future__ import annotations

import re
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
from tracekit.data.display import make_shown_pair
from tracekit.data.pair import PromptPair, pairs_from_ids
from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import DATASETS
from tracekit.errors import ComparisonError, NoResultError, PairsError, ResultFormatError
from tracekit.measure import Attention, Explanation, Look, Paths, SideEffects
from tracekit.metrics import METRICS
from tracekit.reports.page import Section, write_page
from tracekit.results import tables
from tracekit.results.comparison import Comparable, Comparison, compare
from tracekit.results.curve import all_results, is_several
from tracekit.results.display import facts_table
from tracekit.results.generations import Generations
from tracekit.results.interactions import InteractionGrid
from tracekit.results.on_examples import OnExamples, largest_share
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult
from tracekit.search import METHODS, LocalSearch
from tracekit.search.base import config_of
from tracekit.search.objectives import ObjectiveName

OfRun = Explanation | Paths | Attention | SideEffects | Generations
"""What is measured of the set of a run, and saved beside it."""
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
    "zeros and ones. Each effect in this report is the mean of the effects on single examples. The "
    "files of every saved run match the digests that were saved with them."
)


@check_arguments
@report_waiting("Writing the report")
def report(results: Iterable[Reported] | Reported, path: str | Path) -> Path:
    """Writes a page on some results: setting, figures, sets, examples, and how to repeat the runs.

    Results of different data, models, components or metrics have parts of their own.

    Args:
        results: Results and what was measured of them, as in `Reported`; folders, of which all that
            was saved there or below is reported; and pairs, such as `tracer.pairs`, whose prompts
            stand in the table of examples. Results that were not loaded know theirs.
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
    data = {each.fingerprint: each for each in given if isinstance(each, PromptPairs)}
    sections = []
    for look in (each for each in given if isinstance(each, Look)):
        figures = [] if look.where is None else [look.where.heatmap(normalised=True)]
        figures += [largest.heatmap() for largest in look.sets[-1:]]
        sections.append(Section(heading="A first look", figures=figures, code=str(look)))
    sections += [s for group in groups for s in _sections(group, data, len(groups) > 1)]
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
    group: _Group, data: Mapping[str, PromptPairs], is_one_of_several: bool
) -> list[Section]:
    results = group.results
    comparison = compare(results)
    first = results[0]
    # Not by the held-out effect, which then would have been searched too.
    best = max(results, key=lambda result: result.effect)
    members = join_labels(best.labels, _MOST_LABELS)
    lead = f"{best.title} selects {best.n_selected} of {best.n_components} components: {members}."
    on = [(best.searched, "searched", "spread")]
    on = on if best.held_out is None else [(best.held_out, "held-out", "95 % interval"), *on]
    for where, name, brackets in on:
        lead += (
            f" On {where.n_text} {name} examples their {best.axis_label} is {where.mean:.4g} "
            f"({brackets} {interval_text(*where.interval)}), {100 * where.share:.0f} % of the "
            "effect of all components."
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
            table=_examples(
                comparison, first.searched.pairs or data.get(first.searched.fingerprint)
            ),
            note=" ".join(notes),
        ),
        Section(heading="To repeat", code=_code(group, best, data)),
    ]


def _setting(result: TraceResult) -> Table:
    setup = result.setup
    facts = [
        ("model", tables.facts_of_model(result)),
        ("data", tables.result_examples_text(result)),
        ("fingerprint of the data", result.dataset_fingerprint),
        ("components", result.registry.describe()),
        ("metric", f"{setup.metric}: {result.axis_label}"),
        ("answers of several tokens", f"{setup.continuation_mean} mean of token probabilities"),
        ("positions", setup.positions),
        ("intervention", setup.intervention),
        ("effect of all components", f"{result.full_effect:.4g} on the searched examples"),
        *((f"version of {package}", number) for package, number in result.run.versions.items()),
    ]
    return facts_table(facts, of="value")


def _figures(group: _Group, comparison: Comparison) -> list[go.Figure]:
    by_size = sorted(group.results, key=lambda result: result.n_selected)
    # The largest set of each search.
    drawn = list({result.series: result for result in by_size}.values())[-_MOST_PANELS:]
    figures = [comparison.curve(), compare(drawn).heatmap()]
    figures += [each.circuit() for each in drawn if each.registry.edges is not None]
    for front in group.fronts:
        figures += [front.curve(), front.heatmap()]
    return figures


def _examples(comparison: Comparison, pairs: PromptPairs | None) -> Table:
    """Effects on single examples, those with the largest first where not all have room."""
    results = comparison.results[-_MOST_COLUMNS:]
    labels = comparison.labels[-_MOST_COLUMNS:]
    order = results[-1].per_example.abs().argsort(descending=True)
    numbers = sorted(order[:_MOST_EXAMPLES].tolist())
    columns = [Column("example", "example", numbers)]
    if pairs is not None:
        texts = [_prompt(pairs[number], pairs.token_texts) for number in numbers]
        columns.append(Column("prompt", "prompt", texts))
    for result, label in zip(results, labels, strict=True):
        columns.append(Column(label, label, result.per_example[numbers].tolist()))
    return Table(columns)


def _prompt(pair: PromptPair, token_texts: Mapping[int, str]) -> str:
    tokens = [text for text, _ in make_shown_pair(pair, token_texts).prompt]
    return (pair.texts or {}).get("prompt") or " ".join(tokens)


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


def _code(group: _Group, best: TraceResult, data: Mapping[str, PromptPairs]) -> str:
    """Python that measures the best set and runs each search once more, as far as results say how.

    Names of folders are left out: they are those of one machine.
    """
    facts, searched, held_out = best.model_facts, best.searched, best.held_out
    dtype = f", dtype={facts.dtype!r}" if facts.dtype in ("bfloat16", "float16") else ""
    path = facts.path or best.model
    path += f"@{facts.revision}" if facts.revision and "@" not in path else ""
    model = f"model = tk.load_model({_without_folders(repr(path))}{dtype})"
    digest = f"assert tk.models.weights_digest(model) == {facts.weights_digest!r}"
    lines = ["import tracekit as tk", "", model, digest]
    lines += _pairs_lines("pairs", searched, data)
    lines += ["held_out = None"] if not held_out else _pairs_lines("held_out", held_out, data)
    setup, fields = best.setup, best.setup.code()
    # Where the code takes something of the reader's.
    notes = {"metric": "" if setup.metric in METRICS else "  # your function"}
    notes["source"] = f"  # {setup.source!r}" if fields.get("source") == "..." else ""
    options = [f"{name}={code},{notes.get(name, '')}" for name, code in fields.items()]
    lines += ["tracer = tk.Tracer(", "    model,", "    pairs,", "    tk.Setup("]
    lines += [f"        {_without_folders(option)}" for option in options]
    lines += [
        "    ),",
        "    held_out=held_out,",
        f"    extra_metrics={[*best.extra_metrics]!r},",
        ")",
        f"effect = tracer.evaluate({best.labels!r})",
        f"print(effect)  # {(held_out or searched).mean:.4g} in this report",
    ]
    of_fronts = {id(result) for front in group.fronts for result in front}
    by_run: dict[tuple[Any, ...], list[TraceResult]] = {}
    for result in group.results:
        if id(result) not in of_fronts:
            # Results of one run share what it took.
            key = (result.series, repr(result.config), result.seed)
            by_run.setdefault((*key, result.run.seconds, result.cost), []).append(result)
    lines += [*map(_run, by_run.values()), *map(_front_run, group.fronts)]
    return "\n".join(lines) + "\n"


def _without_folders(code: str) -> str:
    """Code with the last part of each absolute path alone."""
    return re.sub(r"(?<=['\"=])(?:[A-Za-z]:)?[/\\]+(?:[^'\",/\\]*[/\\]+)*", "", code)


def _pairs_lines(name: str, of: OnExamples, data: Mapping[str, PromptPairs]) -> list[str]:
    """Python that makes examples: by the name of their data set, or token by token."""
    origin, pairs = of.origin, of.pairs or data.get(of.fingerprint)
    code = f"...  # the {of.n_examples} examples of {of.dataset!r}; give their pairs to tk.report"
    if origin is not None:
        code = _without_folders(origin.code())
    is_local = origin is None or origin.dataset not in DATASETS or "data_dir" in origin.options
    if is_local and pairs is not None and (rows := _rows(pairs)):
        written = "".join(f"    {row!r},\n" for row in rows)
        code = f"tk.PromptPairs.from_ids([\n{written}], name={of.dataset!r})"
    return [f"{name} = {code}", f"assert {name}.fingerprint == {of.fingerprint!r}"]


def _rows(pairs: PromptPairs) -> list[dict[str, Any]]:
    """Rows for `from_ids`; empty where rows do not say all, as of noise or of implied spans."""
    rows = []
    names = ("prompt_ids", "x_ids", "y_ids", "x_set_ids", "y_set_ids", "weight", "group")
    for pair in pairs:
        row = {**(pair.texts or {}), **{name: getattr(pair, name) for name in names}}
        row["counterfactual_ids"] = getattr(pair.counterfactual, "ids", None)
        for name in ("spans", "counterfactual_spans"):
            spans = (getattr(pair, name) or {}).items()
            row[name] = {key: (at[0], at[-1] + 1) for key, at in spans}
        # What a row says by default is left out.
        rows.append({name: value for name, value in row.items() if value not in (None, 1.0, {})})
    with suppress(PairsError):
        if PromptPairs(pairs=tuple(pairs_from_ids(rows))).fingerprint == pairs.fingerprint:
            return rows
    return []


def _run(results: Sequence[TraceResult]) -> str:
    """Code that searches once more; `results` are those of one run."""
    first = results[0]
    if first.method not in METHODS:
        return f"tracer.evaluate({first.labels!r})  # of {first.method!r}"
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
    if result.run.training is not None:
        arguments.append(f"training_pairs={result.run.training.code or '...'}")
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
    if result.run.training and not result.run.training.code:
        notes.append("the training pairs are of no generated data set")
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


def read_saved(path: str | Path) -> list[Any]:
    """Results, and what was measured of sets, saved at a path or below it.

    Raises:
        ConfigError: It is no path.
        ResultNotFoundError, ResultFormatError: As of `TraceResult.load`.
    """
    path = as_path("path", path)
    if path.suffix == ".json":
        return [InteractionGrid.load(path)]
    explanations: list[Any] = []
    for kind in get_args(OfRun):
        for folder in [file.parent for file in sorted(path.rglob(kind.FILE))]:
            explanations.append(kind.load(folder))
            # It must be of the run beside it, if there is one.
            if (folder / "result.json").exists():
                check_of_run(explanations[-1], TraceResult.load(folder), folder)
    explanations += [Look.load(file.parent) for file in sorted(path.rglob(Look.FILE))]
    folders = [file.parent for file in sorted(path.rglob("pareto.json"))]
    fronts = [ParetoFront.load(folder) for folder in folders]
    files = sorted(path.rglob("result.json"))
    # Results of a front were read with it.
    runs = [TraceResult.load(file.parent) for file in files if not {*folders} & {*file.parents}]
    if not fronts and not runs and not explanations:
        # The error says what a folder must hold.
        runs.append(TraceResult.load(path))
    runs.sort(key=lambda result: (result.method, result.n_selected))
    return [*runs, *fronts, *explanations]


def check_of_run(saved: OfRun, result: TraceResult, folder: Path) -> None:
    """Refuses what was measured on another run than the one that it is saved beside.

    Raises:
        ResultFormatError: It is of another set, or of other data, another metric or model.
    """
    stem = Path(saved.FILE).stem.replace("_", " ")
    noun = stem if isinstance(saved, Explanation) else f"record of {stem}"
    pairs: list[tuple[Any, Any]] = [(saved.model, result.model)]
    if isinstance(saved, Generations):
        mine, theirs = (
            (each.source, each.source_seed, each.positions) for each in (saved.setup, result.setup)
        )
        pairs += [(saved.dataset_fingerprint, result.dataset_fingerprint), (mine, theirs)]
    else:
        measured = saved.target if isinstance(saved, SideEffects) else saved
        pairs += [
            # Of held-out examples, those that the set was selected on.
            (saved.selected_on or measured.dataset_fingerprint, result.dataset_fingerprint),
            (measured.metric, result.setup.metric),
        ]
        names = ("source", "source_seed", "direction", "positions")
        pairs += [(getattr(saved, name), getattr(result.setup, name)) for name in names]
    if isinstance(saved, Attention):
        # Only heads are read.
        pairs.append(({*saved.components} - {*result.components}, set()))
    else:
        pairs.append((saved.components, result.components))
    if any(mine != theirs for mine, theirs in pairs):
        raise ResultFormatError(
            f"The {noun} in {folder} is of another run than the one beside it. Measure it again, "
            f"or delete its {saved.FILE}."
        )
