"""`tracekit verify`."""

from __future__ import annotations

from rich.table import Table

from tracekit.cli.app import app
from tracekit.cli.options import REBUILT, Given, takes
from tracekit.cli.output import console, print_rows
from tracekit.cli.rebuild import OF_RUN, Run, rebuild_tracer
from tracekit.errors import ComparisonError

_TOLERANCE = 1e-4
"""Difference of an effect on an example, where effects are up to 1."""


@app.command()
@takes(*REBUILT, "quiet", **OF_RUN)
def verify(given: Given, run: Run) -> None:
    """Measures a saved run again, and says whether it agrees: model, data, every effect.

    Exit code 1 if anything differs: weights by their digest, data by their fingerprint, the effect
    on each example and that of all components by their numbers.
    """
    import tracekit as tk
    from tracekit.models import weights_digest

    result = tk.TraceResult.load(run)
    # Refuses other data, and a model with another effect.
    tracer = rebuild_tracer(result, given)
    allowed = _TOLERANCE * max(1.0, result.per_example.abs().max().item()) + result.noise_floor
    again = tracer.evaluate(result, per_example=True)
    digests = [result.model_facts.weights_digest, weights_digest(tracer.model)]
    rows = [
        ("weights", *(digest[:16] or "unknown" for digest in digests), digests[0] == digests[1]),
        ("data", *(2 * [result.dataset_fingerprint[:16]]), True),
    ]
    numbers = [
        ("effect", result.per_example, again),
        ("all components", result.full_effect, tracer.full_effect),
    ]
    for name, saved, now in numbers:
        saved, now = (value if isinstance(value, float) else value.mean() for value in (saved, now))
        rows.append((name, f"{saved:.6g}", f"{now:.6g}", abs(saved - now) <= allowed))
    largest = (again - result.per_example).abs().max().item()
    rows.append(("largest difference on an example", "", f"{largest:.2g}", largest <= allowed))
    table = Table("measured", "saved", "now", "agrees")
    for name, saved, now, agrees in rows:
        table.add_row(name, saved, now, "yes" if agrees else "NO")
    print_rows(table)
    wrong = [name for name, _, _, agrees in rows if not agrees]
    if wrong:
        raise ComparisonError(
            f"{run} does not agree with what is measured now: {', '.join(wrong)}. Give --model, "
            "--dtype and --model-option as for the run; other weights give other effects."
        )
    console.print(f"{run} agrees.", style="bold", highlight=False)
