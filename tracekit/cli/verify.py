"""`tracekit verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit import models
from tracekit._util.table import Table
from tracekit.cli.app import OptionValues, app
from tracekit.cli.certify import verify_certificate
from tracekit.cli.console import console
from tracekit.cli.options import SAVED_RUN_KEYS, with_options
from tracekit.cli.rebuild import RUN_OPTIONS, rebuild_tracer
from tracekit.cli.tables import print_table
from tracekit.errors import ComparisonError

if TYPE_CHECKING:
    from torch import Tensor

RunOrCertificate = Annotated[
    Path, typer.Argument(help="Folder that a run was saved to, or the certificate in it.")
]
_TOLERANCE = 1e-4
"""Difference of an effect on an example, where effects are up to 1."""


@app.command()
@with_options(*SAVED_RUN_KEYS, "quiet", **RUN_OPTIONS)
def verify(values: OptionValues, run: RunOrCertificate) -> None:
    """Measures a saved run again, and says whether it agrees: model, data, every effect.

    The certificate of a run, `certificate.json` in its folder, is measured again on its pairs, on
    this or another model, with the exit codes of `tracekit certify`.

    Exit code 1 if anything differs: the digest of the weights, the fingerprint of the data, the
    effect of all components, or the effect on any searched or held-out example.
    """
    if run.is_file():
        return verify_certificate(values, run)
    result, tracer = rebuild_tracer(run, values)
    allowed = _TOLERANCE * max(1.0, result.per_example.abs().max().item()) + result.noise_floor
    digests = [result.model_facts.weights_digest, models.weights_digest(tracer.model)]
    full = (result.full_effect, tracer.full_effect)
    now = tracer.evaluate(result, per_example=True, held_out=False)
    rows: list[tuple[Any, ...]] = [
        ("weights", *(digest[:16] or "unknown" for digest in digests), digests[0] == digests[1]),
        ("data", *(2 * [result.dataset_fingerprint[:16]]), True),
        ("all components", *full, abs(full[0] - full[1]) <= allowed),
        *_comparison_rows("", result.per_example, now, allowed),
    ]
    held_out = result.held_out
    if held_out is not None and tracer.held_out is not None:
        now = tracer.evaluate(result, per_example=True, held_out=True)
        rows += _comparison_rows("held-out ", held_out.effects, now, allowed)
    names = ("measured", "saved", "now", "agrees")
    rows_by_name = [dict(zip(names, row, strict=True)) for row in rows]
    print_table("measured", Table.of_rows(rows_by_name, forms=dict.fromkeys(names, ".6g")))
    differing = [name for name, _, _, agrees in rows if not agrees]
    if differing:
        raise ComparisonError(
            f"{run} does not agree with what is measured now: {', '.join(differing)}. Give "
            "--model, --dtype and --model-option as for the run; other weights give other effects."
        )
    if held_out is not None and tracer.held_out is None:
        console.print("Its held-out examples were not measured. Give --dataset and --held-out.")
    console.print(f"{run} agrees.", style="bold")


def _comparison_rows(
    kind: str, saved: Tensor, now: Tensor, allowed: float
) -> list[tuple[str, float | None, float, bool]]:
    """The mean effect on examples of a kind, and the largest difference on one of them."""
    before, after = saved.mean().item(), now.mean().item()
    largest = (now - saved).abs().max().item()
    example = f"a {kind}example" if kind else "an example"
    return [
        (f"{kind}effect", before, after, abs(before - after) <= allowed),
        (f"largest difference on {example}", None, largest, largest <= allowed),
    ]
