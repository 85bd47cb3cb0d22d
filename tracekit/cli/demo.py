"""`tracekit demo`."""

from __future__ import annotations

from pathlib import Path

from tracekit.cli.app import app
from tracekit.cli.options import Output, Quiet, Seed
from tracekit.cli.output import (
    check_folder,
    console,
    load,
    print_table,
    print_tracer,
    progress_is_shown,
    save,
    write_tracer_figures,
)

_BUDGETS = (0.1, 0.2, 0.3, 0.4)
_DRAWS = 100
_PAIRED_LAYERS = (0, 1)


@app.command()
def demo(
    output: Output = Path("tracekit-demo"),
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Traces the embedded model: four methods, a heatmap, an effect curve and a pairwise map.

    Which attention heads decide, in the demo model, whom a pronoun refers to? Takes about half a
    minute on two processor cores, and no network.
    """
    import tracekit as tk

    check_folder(output)
    model = load("demo")
    pairs = tk.load_dataset("demo-bias", model)
    tracer = tk.Tracer(
        model, pairs, "attention-patterns", "odds-ratio", progress=progress_is_shown(quiet)
    )
    print_tracer(tracer)
    budgets = list(_BUDGETS)
    for method, options in (
        ("pgb-ct", {}),
        ("top-k", {}),
        ("greedy", {}),
        ("random", {"draws": _DRAWS}),
    ):
        save(tracer.run(method, budgets=budgets, seed=seed, **options), output)
    print_table(tracer.results)
    grid = tracer.interactions(layers=_PAIRED_LAYERS)
    result = next(r for r in tracer.results if r.method == "pgb-ct" and r.budget == 6)
    console.print(f"PGB-CT selects {', '.join(result.labels)} at a budget of {result.budget}.")
    write_tracer_figures(tracer, output, result, {"pairs": grid.heatmap()})
    grid.save(output / "pairs.csv")
