"""Planned beside actual passes and time: `python -m tools.studies.estimates KINDS METHOD ...`.

SmolLM2-135M, pairs of IOI and logit difference. Both the estimate's probe and the run are timed in
processor time, on one thread. The clean and the counterfactual run are made before.
"""

from __future__ import annotations

import time
import warnings
from typing import Annotated, Any

import torch
import typer

import tracekit as tk
from tracekit._util import progress
from tracekit.tracer import estimate as estimating

OPTIONS: dict[str, dict[str, Any]] = {
    "learned-ranking": {"epochs": 6, "steps": 4},
    "pgb-ct": {"epochs": 3},
    "pgb-ct+local": {"epochs": 3},
    "dcm": {"epochs": 3},
}
"""Shorter searches than by default."""


def row(tracer: tk.Tracer, method: Any, budget: int) -> str:
    """A row of the table, which is printed as it is measured."""
    options, n = OPTIONS.get(method, {}), len(tracer.pairs)
    planned = tracer.estimate(method, budget=budget, **options)
    begin = time.process_time()
    with progress.open_bar("study", None, 1, shown=False) as bar:
        result = tracer.run(method, budget=budget, **options)
    seconds, passes = time.process_time() - begin, bar.done / n
    total, own = planned.passes + planned.further, result.cost.forward_equivalents
    cells = [
        method,
        f"{planned.passes:.1f}, {own:.1f}",
        f"{planned.passes / own:.2f}",
        f"{total:.1f}, {passes:.1f}",
        f"{total / passes:.2f}",
        f"{planned.seconds:.1f}, {seconds:.1f}",
        f"{planned.seconds / seconds:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def main(
    kinds: Annotated[str, typer.Argument(help="Kinds of component, e.g. head-outputs.")],
    methods: Annotated[list[str], typer.Argument(help="Searches by name.")],
    pairs: Annotated[int, typer.Option(help="Pairs of IOI.")] = 16,
    budget: Annotated[int, typer.Option(help="Components to select.")] = 5,
) -> None:
    """Prints planned and actual passes of the search, of all that is measured, and seconds."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    setattr(estimating.time, "perf_counter", time.process_time)  # noqa: B010
    model = tk.load_model("smollm2-135m")
    tracer = tk.Tracer(model, tk.load_dataset("ioi", model)[:pairs], kinds, "logit-difference")
    _ = tracer.full_effect
    tracer.question.prepare_run()
    tracer.question.choices()
    typer.echo("| method | of the search | ratio | of all | ratio | seconds | ratio |")
    typer.echo("| --- " * 7 + "|")
    for method in methods:
        typer.echo(row(tracer, method, budget))


if __name__ == "__main__":
    typer.run(main)
