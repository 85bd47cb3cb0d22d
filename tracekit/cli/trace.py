"""`tracekit trace`."""

from __future__ import annotations

import tracekit as tk
from tracekit._util.names import MethodName, choices_text
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import console
from tracekit.cli.files import check_folder, save_results, write_figures
from tracekit.cli.options import HOW, SEARCH_KEYS, SEVERAL, TRACE_KEYS, build_search, with_options
from tracekit.cli.parsing import goal_arguments, parse_options
from tracekit.cli.summaries import print_checks, print_estimates, print_results


@app.command()
@with_options(
    *(*TRACE_KEYS, *SEARCH_KEYS, "output", "config", "save_config_to", "seed", "dry_run", "quiet"),
    budget=HOW.option(list[str], "SIZE", f"A count (6) or a share (0.2){SEVERAL}"),
    target_effect=HOW.number("Instead of a budget: the effect to reach."),
    faithfulness=HOW.number("Instead of a budget: the smallest set as faithful as this, e.g. 0.9."),
    method=HOW.names(f"{choices_text(MethodName)}{SEVERAL} Default: pgb-ct+local."),
    option=HOW.settings(
        f"Option of a method as name=value, e.g. lambda1=0.001 or random:draws=200{SEVERAL}"
    ),
)
def trace(values: OptionValues) -> None:
    """Traces any model on any data set, and writes figures and results."""
    from tracekit.tracer.estimate import estimate_run
    from tracekit.tracer.request import Request
    from tracekit.tracer.search import run_search

    output, seed = values["output"], values["seed"]
    check_folder(output)
    methods = values["method"] or [tk.search.DEFAULT_METHOD]
    by_method = parse_options(values["option"] or [], methods)
    arguments = []
    for name in methods:
        goal = goal_arguments(values, by_method[name])
        arguments.append({"search": tk.search.make(name, by_method[name]), "seed": seed, **goal})
    tracer, request_options = build_search(values)
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
