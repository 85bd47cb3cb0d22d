"""`tracekit certify` and `tracekit verify`: a saved run on fresh pairs, and measured again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tracekit as tk
from tracekit import models
from tracekit._util.table import Table
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import console
from tracekit.cli.files import check_file
from tracekit.cli.options import (
    DATA,
    HOW,
    LIMITS,
    OPTIONAL_OUTPUT,
    SAVED_RUN_KEYS,
    SEVERAL,
    with_options,
)
from tracekit.cli.rebuild import RUN_OPTIONS, RunFolder, rebuild_tracer
from tracekit.cli.tables import print_table
from tracekit.errors import ComparisonError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

_EXIT_CODES = {"holds": 0, "fails": 1, "undecided": 3}
RunOrCertificate = Annotated[
    Path, typer.Argument(help="Folder that a run was saved to, or the certificate in it.")
]
_TOLERANCE = 1e-4
"""Difference of an effect on an example, where effects are up to 1."""


@app.command()
@with_options(
    *SAVED_RUN_KEYS,
    "quiet",
    **RUN_OPTIONS,
    faithful=HOW.number("Claim that the faithfulness is at least this, e.g. 0.8."),
    complete=HOW.number("Claim that the completeness is at most this, e.g. 0.2."),
    share=HOW.number("Claim that the effect is at least this share of the full effect."),
    effect=HOW.number("Claim that the mean effect is at least this, in units of the metric."),
    level=HOW.number("Probability that no bound is ever wrong.", default=0.95),
    fresh=DATA.names(
        "Fresh pairs: a .csv, .json or .jsonl file, or a data set. Of several, the claims are "
        "tested on each alone too. Default: further seeds of the run's data set, or its held-out "
        f"examples{SEVERAL}"
    ),
    wordings=DATA.flag("Fresh pairs of each wording of the run's data set, e.g. of ioi."),
    max_examples=LIMITS.count("Fresh examples at most.", default=1000, min=1),
    output=OPTIONAL_OUTPUT.with_help(
        "File for the certificate. Default: certificate.json in the folder."
    ),
)
def certify(values: OptionValues, run: RunFolder) -> None:
    """Measures fresh pairs until claims about the set of a saved run hold or fail.

    Exit code 0 if all claims hold, 1 if one fails, and 3 if they are undecided. `tracekit verify`
    measures the saved certificate again, also on another model.
    """
    file = values["output"] or run / tk.results.Certificate.FILE
    check_file(file)
    result, tracer = rebuild_tracer(run, values, is_same_model=values["model"] is None)
    if values["wordings"] and values["fresh"]:
        raise ConfigError("--fresh and --wordings both say which pairs are measured. Give one.")
    names = ("faithful", "complete", "share", "effect", "level", "max_examples")
    pairs = _fresh_pairs(tracer, values["fresh"] or [], values["wordings"])
    certificate = tracer.certify(result, pairs=pairs, **{name: values[name] for name in names})
    certificate.save(file)
    _print(certificate)


def _fresh_pairs(tracer: tk.Tracer, names: list[str], is_each_wording: bool) -> Any:
    """Pairs as `tracer.certify` takes them; None: the held-out ones."""
    from tracekit.data import describe, endless_pairs, wordings

    if names:
        sources = {name: tk.load_dataset(name, tracer.model) for name in names}
        return sources if len(names) > 1 else sources[names[0]]
    origin = tracer.pairs.origin
    drawn = {"n", "seed"} | ({"wording"} if is_each_wording else set())
    if origin is None or not (is_each_wording or drawn <= {*describe(origin.dataset).options}):
        return None
    options = {name: origin.options[name] for name in {*origin.options} - drawn}
    first_seed = 1 + origin.options.get("seed", 0)
    draw = wordings if is_each_wording else endless_pairs
    return draw(origin.dataset, tracer.model, first_seed=first_seed, **options)


def _print(certificate: Any, before: str = "") -> None:
    rows = certificate.table.to_dict("records")
    print_table("claims", Table.of_rows(rows, forms={"low": ".3g", "high": ".3g"}))
    console.print(f"{certificate}")
    if before:
        console.print(f"The saved certificate: {before}.")
    code = _EXIT_CODES[certificate.verdict]
    if code:
        raise typer.Exit(code)


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
        return _verify_certificate(values, run)
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


def _verify_certificate(values: OptionValues, file: Path) -> None:
    """Measures the claims of a certificate again, on its pairs; ends as `certify` does."""
    from tracekit.measure.certificate import recorded_pairs

    certificate = tk.results.Certificate.load(file)
    result, tracer = rebuild_tracer(file.parent, values, is_same_model=False)
    pairs = recorded_pairs(certificate, tracer.model)
    arguments = {"faithfulness": "faithful", "completeness": "complete"}
    claims = {
        arguments.get(each.quantity, each.quantity): each.value for each in certificate.claims
    }
    level, most = certificate.level, certificate.max_examples
    again = tracer.certify(result, pairs=pairs, level=level, max_examples=most, **claims)
    _print(again, certificate.verdict)
