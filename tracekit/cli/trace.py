"""`tracekit trace`, `tracekit pareto` and `tracekit evaluate`: sets, found or given."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import tracekit as tk
from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells
from tracekit._util.names import MethodName, choices_text
from tracekit._util.table import Table
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import (
    check_file,
    check_folder,
    console,
    print_problem,
    save_results,
    write_figures,
)
from tracekit.cli.options import (
    HOW,
    LIMITS,
    OPTIONAL_OUTPUT,
    REQUIRED,
    SEARCH_KEYS,
    SEVERAL,
    TRACE_KEYS,
    WHAT,
    build_search,
    build_tracer,
    goal_arguments,
    parse_budget,
    parse_options,
    read_masks,
    with_options,
)
from tracekit.cli.tables import (
    print_checks,
    print_estimates,
    print_results,
    print_table,
    print_tracer,
)
from tracekit.errors import SearchStoppedWarning


@app.command()
@with_options(
    *(*TRACE_KEYS, *SEARCH_KEYS, "output", "config", "save_config_to", "seed", "dry_run", "quiet"),
    budget=HOW.option(list[str], "SIZE", f"A count (6) or a share (0.2){SEVERAL}"),
    target_effect=HOW.number("Instead of a budget: the effect to reach."),
    faithfulness=HOW.number("Instead of a budget: the smallest set as faithful as this, e.g. 0.9."),
    method=HOW.names(
        f"{choices_text(MethodName)}{SEVERAL} Default: pgb-ct+local; for edges learned-ranking."
    ),
    new_pairs=HOW.flag(
        "Train on new pairs of a generated data set (learned-ranking, pgb-ct, dcm)."
    ),
    option=HOW.settings(
        f"Option of a method as name=value, e.g. lambda1=0.001 or random:draws=200{SEVERAL}"
    ),
)
def trace(values: OptionValues) -> None:
    """Traces any model on any data set, and writes figures and results."""
    from tracekit.data import further_pairs
    from tracekit.tracer.estimate import estimate_run
    from tracekit.tracer.request import Request
    from tracekit.tracer.search import run_search

    output, seed = values["output"], values["seed"]
    check_folder(output)
    methods = values["method"] or [tk.search.default_method(values["components"] or ())]
    by_method = parse_options(values["option"] or [], methods)
    arguments = []
    for name in methods:
        goal = goal_arguments(values, by_method[name])
        arguments.append({"search": tk.search.make(name, by_method[name]), "seed": seed, **goal})
    tracer, request_options = build_search(values)
    if values["new_pairs"]:
        request_options["training_pairs"] = further_pairs(tracer.pairs, tracer.model)
    requests = [Request(**each, **request_options) for each in arguments]
    if values["dry_run"]:
        parts = [tracer.pairs, *filter(None, [tracer.held_out])]
        print_checks(tracer.pairs.check(tracer.model, parts=parts), is_short=True)
        print_estimates(estimate_run(tracer.question, request) for request in requests)
        return
    for request in requests:
        try:
            results = run_search(tracer.question, request)
        except KeyboardInterrupt:
            if not tracer.results:
                raise
            break
        save_results(results, output)
        if results[-1].stopped == "interrupted":
            break
    if console.quiet:
        return
    print_results(tracer.results)
    # Random controls are drawn only if nothing else was run.
    shown = [each for each in tracer.results if each.method != "random"] or tracer.results
    write_figures({"heatmap": tracer.heatmap(shown), "curve": tracer.curve()}, output)


@app.command()
@with_options(
    *(*TRACE_KEYS, *SEARCH_KEYS, "output", "seed", "dry_run", "quiet"),
    max_budget=HOW.option(str, "SIZE", "Largest size: a count (6) or a share (0.2). Default: all."),
    max_passes=LIMITS.count(
        "Passes at most of each of its searches: on all examples, and on either half for "
        "statistics; --dry-run says how many there are in all.",
        min=1,
    ),
    max_seconds=LIMITS.number("Wall time at most of each search; the best so far is kept."),
    checkpoint=LIMITS.path("File to keep measurements in, and to go on from."),
    option=HOW.settings("Option of the local search as name=value; may be given several times."),
)
def pareto(values: OptionValues) -> None:
    """Finds the best set of every size, with held-out effects, random controls and stability."""
    from tracekit.search import LocalSearch, make
    from tracekit.tracer.estimate import estimate_front
    from tracekit.tracer.front import run_front
    from tracekit.tracer.request import Request

    output = values["output"]
    check_folder(output)
    limits = {name: values[name] for name in ("max_passes", "max_seconds", "checkpoint")}
    options = parse_options(values["option"] or [], [LocalSearch.name])[LocalSearch.name]
    options |= {name: value for name, value in limits.items() if value is not None}
    search = make(LocalSearch, options)  # Refuses a bad option before the model is loaded.
    largest = None if values["max_budget"] is None else parse_budget(values["max_budget"])
    tracer, request_options = build_search(values)
    request = Request(search=search, budget=largest, seed=values["seed"], **request_options)
    if values["dry_run"]:
        print_estimates([estimate_front(tracer.question, request)])
        return
    with warnings.catch_warnings():
        # `_print_front` says what stopped it, with the name of the option.
        warnings.filterwarnings("ignore", "Stopped|The limit", SearchStoppedWarning)
        front = run_front(tracer.question, request)
    if console.quiet:
        return
    front.save(output / "pareto")
    _print_front(front)
    write_figures({"pareto": front.curve(), "heatmap": tracer.heatmap(front[-1])}, output)


def _print_front(front: tk.ParetoFront) -> None:
    """Prints the sizes with statistics, or all sizes if there are none, and the cost."""
    from tracekit.results.tables import result_examples_text

    with_statistics = {row.size for row in front.statistics} or {*front.sizes}
    rows = [n for n, size in enumerate(front.sizes) if size in with_statistics]
    console.print(f"{result_examples_text(front[0])}; {front[0].axis_label}")
    print_table("front", front.table(), front.shown().rows(rows))
    console.print(
        f"{front.legend} Method: whose set it is; empirical-Bayes top-k where components ranked "
        "alone do better cross-fitted.",
        style="dim",
    )
    passes = front[0].cost.forward_equivalents
    extra = front.statistics_cost.forward_equivalents
    console.print(f"{passes:.0f} passes, and {extra:.0f} for the statistics.")
    if front.stopped:
        by = "Ctrl-C" if front.stopped == "interrupted" else f"--{front.stopped}".replace("_", "-")
        console.print(f"Stopped by {by}: these are the best sets found so far.")


@app.command()
@with_options(
    *(name for name in TRACE_KEYS if name not in ("split", "skip_mismatched")),
    mask=WHAT.option(
        list[Path],
        "PATH",
        "Labels such as L1H4,L1H7; a JSON file with one entry in [0, 1] per component, or with a "
        f"list of such masks; or the folder of a run{SEVERAL}",
        default=REQUIRED,
    ),
    output=OPTIONAL_OUTPUT.with_help("CSV file for the effect on every example."),
)
def evaluate(values: OptionValues) -> None:
    """Measures the effects of given masks: soft or binary, 1 takes the counterfactual value."""
    from tracekit._util.clusters import count_text
    from tracekit._util.files import write_csv
    from tracekit.components.members import mask_of
    from tracekit.results import effect_interval

    output = values["output"]
    check_file(output)
    tracer = build_tracer(values)
    print_tracer(tracer)
    names = [further.name for further in tracer.extra_metrics]
    mask_rows, example_rows = [], []
    engine = tracer.question.eval_engine
    pairs = engine.pairs
    named_masks = [named_mask for path in values["mask"] for named_mask in read_masks(path)]
    for name, entries in named_masks:
        effects: Any = tracer.evaluate(entries, per_example=True)
        further = pd.DataFrame(index=range(len(effects)))
        if names:
            further = tracer.evaluate(entries, metrics=names, per_example=True)  # type: ignore[arg-type]
        total = mask_of(entries, tracer.registry).sum().item()
        ends = effect_interval(
            effects, bounds=tracer.engine.metric.bounds, **pairs.statistics_options
        )
        n_searched = 0
        if isinstance(entries, tk.TraceResult):
            n_searched = entries.searched.count_shared_pairs(engine.pairs_given)
        if n_searched:
            text = (
                f"{name} was selected on {n_searched} of these {len(pairs)} examples, so its "
                "effect is larger here than on others, and the brackets are a spread, not a 95 % "
                "interval. Give other examples, or --held-out as for the run."
            )
            print_problem("Warning", text, "yellow")
        effects_of_mask = as_cells("effect", effects.mean().item(), ends)
        effects_of_mask |= {column: further[column].mean() for column in names}
        n = {"n_examples": len(pairs), "n_independent": pairs.n_distinct, "n_searched": n_searched}
        mask_rows.append({"mask": name, "sum": total, **effects_of_mask, **n})
        example_rows += [
            {"mask": name, "example": number, "effect": effect, **further.loc[number].to_dict()}
            for number, effect in enumerate(effects.tolist())
        ]
    forms = dict.fromkeys(("effect", *names), ".6g")
    kinds_of_ends = {"spread" if row["n_searched"] else "interval" for row in mask_rows}
    brackets = " or ".join(sorted(kinds_of_ends))
    titles = {name: name for name in names} | {"effect": f"effect (95 % {brackets})"}
    table = Table.of_rows(mask_rows, titles, forms, joined=True)
    held_out = "" if tracer.held_out is None else " held-out"
    n, metric = count_text(len(pairs), pairs.clusters), tracer.engine.metric.axis_label
    further = "".join(f"; {each.name}: {each.axis_label}" for each in tracer.extra_metrics)
    heading = f"On {n}{held_out} examples: {metric}{further}; ends: 95 % {brackets}"
    print_table("masks", table, table.without("n examples", "n independent"), heading=heading)
    if output is not None:
        write_csv(pd.DataFrame(example_rows), output)
