"""`tracekit trace`."""

from __future__ import annotations

from tracekit._util.names import MethodName, listed
from tracekit.cli.app import app
from tracekit.cli.options import (
    HOW,
    SEARCHED,
    SEVERAL,
    TRACED,
    Given,
    build_constraint,
    build_tracer,
    check_data,
    names_option,
    number_option,
    option,
    save_config,
    settings_option,
    takes,
)
from tracekit.cli.output import (
    check_folder,
    console,
    print_estimates,
    print_results,
    print_tracer,
    save,
    write_figures,
)
from tracekit.cli.parsing import goal, parse_options


@app.command()
@takes(
    *(*TRACED, *SEARCHED, "output", "config", "save_config_to", "seed", "dry_run", "quiet"),
    budget=option(list[str], "SIZE", HOW, f"A count (6) or a share (0.2){SEVERAL}"),
    target_effect=number_option(HOW, "Instead of a budget: the effect to reach."),
    method=names_option(HOW, f"{listed(MethodName)}{SEVERAL} Default: pgb-ct+local."),
    option=settings_option(
        HOW,
        f"Option of a method as name=value, e.g. lambda1=0.001 or random:draws=200{SEVERAL}",
    ),
)
def trace(given: Given) -> None:
    """Traces any model on any data set, and writes figures and results."""
    from tracekit.search import DEFAULT_METHOD, make

    output, seed = given["output"], given["seed"]

    # Before anything slow: checks of everything that needs no model.
    check_folder(output)
    methods = given["method"] or [DEFAULT_METHOD]
    by_method = parse_options(given["option"] or [], methods)
    goals = {
        name: goal(given["budget"], given["target_effect"], by_method[name]) for name in methods
    }
    searches = {name: make(name, by_method[name]) for name in methods}
    check_data(given["constraint_dataset"])
    if not given["dry_run"]:
        save_config(given["save_config_to"], given)
    tracer = build_tracer(given, quiet=given["quiet"])
    sought = {name: given[name] for name in ("objective", "sign")}
    sought["constraint"] = build_constraint(tracer, given)
    print_tracer(tracer)
    if given["dry_run"]:
        print_estimates(
            tracer.estimate(searches[name], **(sought | goals[name])) for name in methods
        )
        return
    for name in methods:
        try:
            result = tracer.run(searches[name], seed=seed, **(sought | goals[name]))
        except KeyboardInterrupt:
            # Of earlier methods there are results, of this one there are none.
            if not tracer.results:
                raise
            break
        save(result, output)
        if tracer.results[-1].stopped == "interrupted":
            break
    if console.quiet:
        return
    print_results(tracer.results)
    write_figures({"heatmap": tracer.heatmap(), "curve": tracer.curve()}, output)
