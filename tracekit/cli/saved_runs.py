"""Commands on saved runs: `explain`, `side-effects`, `show`, `certify`, `verify`, `report`.

The tracer of a run is built again from its setup: the same model, data and question.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tracekit as tk
from tracekit import models
from tracekit._util.deferred import transformers
from tracekit._util.table import Table
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import check_file, check_folder, console, write_figures
from tracekit.cli.options import (
    DATA,
    EXAMPLE_KEYS,
    HOW,
    LIMITS,
    OPTIONAL_OUTPUT,
    OPTIONS,
    OUTPUT,
    REQUIRED,
    SAVED_RUN_KEYS,
    SEVERAL,
    WHAT,
    build_tracer,
    load_quietly,
    parse_named_values,
    with_options,
)
from tracekit.cli.tables import (
    print_estimates,
    print_facts,
    print_results,
    print_table,
    record_table,
)
from tracekit.demo import DEMO
from tracekit.errors import ComparisonError, ConfigError, DataNotFoundError, TracekitError

if TYPE_CHECKING:
    from torch import Tensor

_TOLERANCE = 1e-3
"""Share of the mean absolute effect by which a set may differ when it is measured again."""

RunFolder = Annotated[Path, typer.Argument(help="Folder that a run was saved to.")]
RUN_OPTIONS = {
    "model": OPTIONS["model"].with_help(
        "The model of the run: `demo`, a directory in Hugging Face layout, or a hub name. "
        "Default: that of the run.",
        default=None,
    ),
    "dataset": OPTIONS["dataset"].with_help(
        "The data of the run: a data set, or a .csv or .jsonl file of pairs. Default: that of the "
        "run, its options and examples.",
        default=None,
    ),
}
"""Options of a command on a saved run, where they differ from those that trace."""


def rebuild_tracer(
    run: Path, values: dict[str, Any], *folders: Path | None, is_same_model: bool = True
) -> tuple[tk.TraceResult, tk.Tracer]:
    """A saved run and its tracer, with the options of a command.

    First checks that the command can write to `folders`. The effect of the set is only compared if
    the model is to be the same.

    Raises:
        DataNotFoundError: No data set has the name of the run's data.
        ComparisonError: The examples, or the effect of the set, differ from the run.
    """
    result = tk.TraceResult.load(run)
    for folder in folders:
        check_folder(folder)
    facts = result.model_facts
    has_other_data = any(values[name] for name in ("dataset", *EXAMPLE_KEYS))
    origin = None if has_other_data else result.searched.origin
    if origin is None and values["dataset"] is None and result.dataset not in tk.data.DATASETS:
        raise DataNotFoundError(
            f"The run used {result.dataset!r}, which is not a data set of tracekit. Give its file "
            "by --dataset."
        )
    if values["limit"] is None and values["held_out"] is None:
        values = {**values, "limit": result.searched.n_examples}
    model_and_data = {
        "model": values["model"] or facts.path or result.model,
        "dataset": values["dataset"] or (result.dataset if origin is None else origin.dataset),
    }
    if values["dtype"] == "auto" and facts.dtype in ("float32", "bfloat16", "float16"):
        model_and_data["dtype"] = facts.dtype
    setup = result.setup.with_registry(result.registry)
    if values["split_by"] is not None:
        setup = replace(setup, split_by=values["split_by"])
    values = {**values, **model_and_data, "seed": result.seed, "origin": origin}
    saved = result.held_out
    values["held_out_origin"] = None if has_other_data or saved is None else saved.origin
    values["run_chat"] = result.searched.chat if has_other_data else None
    tracer = build_tracer(values, setup)
    if tracer.pairs.fingerprint != result.dataset_fingerprint:
        raise ComparisonError(
            f"The run used {result.searched.n_examples} examples of {result.dataset!r}, and these "
            f"{len(tracer.pairs)} are different ones. Give --dataset, --split, --limit, --held-out "
            "and --data-option as for the run."
        )
    examples = tracer.held_out
    if saved is not None and examples is not None and examples.fingerprint != saved.fingerprint:
        raise ComparisonError(
            f"The {len(examples)} held-out examples are not those of the run. Give "
            "--dataset, --split, --limit, --held-out and --data-option as for the run."
        )
    if is_same_model:
        effect = tracer.evaluate(result, held_out=False)
        allowed = _TOLERANCE * result.per_example.abs().mean().item() + 1e-6
        if not abs(effect - result.effect) <= allowed:
            raise ComparisonError(
                f"The set of the run has an effect of {effect:.6g} here and had "
                f"{result.effect:.6g} in the run, so this is not the same model. Give --model, "
                "--dtype and --model-option as for the run."
            )
    return result, tracer


_TABLES = ("table", "interactions", "replacements", "backups")
"""Tables of an explanation, and the names of their files; the first is that of its members."""


@app.command()
@with_options(
    *(*SAVED_RUN_KEYS, "seed", "dry_run", "quiet"),
    **RUN_OPTIONS,
    max_sets=LIMITS.count(
        "Subsets to measure at most for the values of more than 12 components.", default=2000, min=1
    ),
    tolerance=HOW.number(
        "Share of the effect that may be lost without redundant components.", default=0.02
    ),
    output=OPTIONAL_OUTPUT.with_help("Folder for tables (CSV) and figures; made if missing."),
)
def explain(values: OptionValues, run: RunFolder) -> None:
    """Says why the set of a saved run acts together, and saves that beside the run."""
    from tracekit._util.files import write_atomically, write_csv
    from tracekit.reports.report import member_table

    output, max_sets = values["output"], values["max_sets"]
    result, tracer = rebuild_tracer(run, values, run, output)
    if values["dry_run"]:
        print_estimates([tracer.estimate_explain(result, max_sets=max_sets)])
        return
    why = tracer.explain(
        result, max_sets=max_sets, tolerance=values["tolerance"], seed=values["seed"]
    )
    why.save(run)
    console.print(f"{why}", soft_wrap=True)
    tables = _explanation_tables(why)
    print_table("members", tables["members"], member_table(why))
    for name, table in tables.items():
        if name != "members":
            record_table(name, table)
    console.print(
        "Alone: nothing else is patched. Last: what leaving it out costs. Value: the Shapley "
        "value. Brackets: 95 % intervals over examples.",
        style="dim",
    )
    passes = f"{why.cost.forward_equivalents:.0f} passes."
    console.print(f"{passes} The explanation is saved in {run}/.", soft_wrap=True)
    if output is None:
        return
    rows = {name: table.records() for name, table in tables.items()}
    write_atomically(output / "findings.json", json.dumps(rows, indent=1))
    del tables["explanation"]
    for name, table in tables.items():
        write_csv(table.frame(), output / f"{name}.csv")
    figures = {"waterfall": why.waterfall(), "heatmap": why.heatmap(), "network": why.network()}
    write_figures(figures, output)


def _explanation_tables(why: tk.measure.Explanation) -> dict[str, Table]:
    """Tables by name; `explanation` has one row for the whole set."""
    explanation = {
        **{"model": why.model, "dataset": why.dataset, "metric": why.metric},
        **why.additivity.to_dict(),
        **{"members": why.labels, "redundant": list(map(str, why.redundant))},
        **{"n_orders": why.shapley.n_orders, "passes": why.cost.forward_equivalents},
    }
    tables = {"explanation": Table.of_rows([explanation])}
    for name in _TABLES:
        frame = getattr(why, name)
        if frame is not None:
            tables[name.replace("table", "members")] = Table.of_rows(frame)
    return tables


@app.command("side-effects")
@with_options(
    *(*SAVED_RUN_KEYS, "seed", "dry_run", "quiet"),
    **RUN_OPTIONS,
    other=WHAT.settings(
        f"Other data as NAME=DATASET or NAME=FILE (.csv, .jsonl){SEVERAL}", default=REQUIRED
    ),
    other_metric=HOW.settings(
        "Metric of other data as NAME=METRIC, e.g. neutral=kl. Default: that of the run."
    ),
    other_limit=HOW.count("Use only the first N examples of each other data.", min=1),
    draws=HOW.count("Random sets to compare with.", default=20, min=0),
    output=OPTIONAL_OUTPUT.with_help("Folder for the table and the figure."),
)
def side_effects(values: OptionValues, run: RunFolder) -> None:
    """Says what the set of a saved run does to other data, and saves that beside the run."""
    from tracekit._util.files import write_csv

    output, limit = values["output"], values["other_limit"]
    named = _parse_names("--other", values["other"])
    metrics = _parse_names("--other-metric", values["other_metric"] or [])
    unknown = [name for name in metrics if name not in named]
    if unknown:
        raise ConfigError(f"--other-metric names {unknown[0]!r}, and no --other has this name.")
    result, tracer = rebuild_tracer(run, values, run, output)
    others: dict[str, Any] = {}
    for name, source in named.items():
        pairs = tk.load_dataset(source, tracer.model)[:limit]
        others[name] = (pairs, metrics[name]) if name in metrics else pairs
    if values["dry_run"]:
        print_estimates([tracer.estimate_side_effects(result, others, draws=values["draws"])])
        return
    effects = tracer.side_effects(result, others, draws=values["draws"], seed=values["seed"])
    effects.save(run)
    console.print(f"{effects}", soft_wrap=True)
    record_table("side_effects", Table.of_rows(effects.table))
    console.print(f"Saved in {run}/.", soft_wrap=True)
    if output is not None:
        write_csv(effects.table, output / "side_effects.csv")
        write_figures({"side_effects": effects.figure()}, output)


def _parse_names(option: str, texts: list[str]) -> dict[str, str]:
    """Parses texts `NAME=VALUE`; refuses a name that occurs twice."""
    named: dict[str, str] = {}
    for text in texts:
        name, value = next(iter(parse_named_values([text]).items()))
        if name in named:
            raise ConfigError(f"{option} names {name!r} twice. Give each its own name.")
        named[name] = value
    return named


_MOST_LABELS = 40
"""Components that are listed without `--all`."""


@app.command()
@with_options(
    all_components=OUTPUT.flag("List every selected component, however many.", "--all"),
    full=OUTPUT.flag("Print all columns of the table, and what they mean."),
)
def show(values: OptionValues, run: RunFolder) -> None:
    """Prints a saved run, or all runs below a folder."""
    from tracekit.results.curve import load_saved
    from tracekit.results.display import search_notes
    from tracekit.results.tables import facts_of_model, result_examples_text

    results = load_saved(run)
    print_results(results, is_full=values["full"])
    if len(results) > 1:
        return
    (result,) = results
    options = {name: value for name, value in result.config.items() if value is not None}
    facts = {
        "model": facts_of_model(result),
        "data": result_examples_text(result),
        "metric": result.setup.metric,
        "positions": str(result.setup.positions),
        "intervention": result.setup.intervention,
        "search": "; ".join(search_notes(result)) or "complete",
        "seed": result.seed,
        "options": ", ".join(f"{name}={value}" for name, value in options.items()),
        "versions": ", ".join(f"{package} {v}" for package, v in result.run.versions.items()),
    }
    print_facts("setting", Table.of_rows([facts]))
    labels = result.labels if values["all_components"] else result.labels[:_MOST_LABELS]
    more = "" if len(labels) == result.n_selected else ", ... (--all lists the rest)"
    console.print(f"Selected: {', '.join(labels)}{more}")


_EXIT_CODES = {"holds": 0, "fails": 1, "undecided": 3}
RunOrCertificate = Annotated[
    Path, typer.Argument(help="Folder that a run was saved to, or the certificate in it.")
]
_EFFECT_TOLERANCE = 1e-4
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
    from tracekit.data import describe, further_pairs

    if names:
        sources = {name: tk.load_dataset(name, tracer.model) for name in names}
        return sources if len(names) > 1 else sources[names[0]]
    origin = tracer.pairs.origin
    is_drawn = origin is not None and {"n", "seed"} <= {*describe(origin.dataset).options}
    if origin is None or not (is_each_wording or is_drawn):
        return None
    return further_pairs(tracer.pairs, tracer.model, by_wording=is_each_wording)


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
    allowed = (
        _EFFECT_TOLERANCE * max(1.0, result.per_example.abs().max().item()) + result.noise_floor
    )
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
    from tracekit.measure.certificate import certify, recorded_pairs

    certificate = tk.results.Certificate.load(file)
    result, tracer = rebuild_tracer(file.parent, values, is_same_model=False)
    pairs = recorded_pairs(certificate, tracer.model)
    arguments = {"faithfulness": "faithful", "completeness": "complete"}
    claims = {
        arguments.get(each.quantity, each.quantity): each.value for each in certificate.claims
    }
    level, most = certificate.level, certificate.max_examples
    # The pairs may be those that the run held out, which are not fresh beside them.
    question = replace(tracer.question, held_out_pairs=None)
    again = certify(question, result, pairs=pairs, level=level, max_examples=most, **claims)
    _print(again, certificate.verdict)


@app.command()
@with_options(
    output=OPTIONS["output"].with_help("The HTML file to write.", default=Path("report.html"))
)
def report(
    values: OptionValues,
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders that runs, curves or fronts were saved to, or that hold such folders; "
            "and .json files of interaction grids."
        ),
    ],
) -> None:
    """Writes a page on saved runs: setting, figures, sets, why they act together, how to repeat."""
    from tracekit.reports.report import read_saved

    output = values["output"]
    check_file(output)
    results = [result for path in runs for result in read_saved(path)]
    page = tk.report([*results, *_load_examples(results)], output)
    console.print(f"The report: {page.resolve().as_uri()}", soft_wrap=True)


def _load_examples(results: list[Any]) -> list[tk.PromptPairs]:
    """The pairs of results, for their prompts, where data and tokenizer are on this machine."""
    from tracekit.data.registry import load_origin

    by_data: dict[str, tk.PromptPairs] = {}
    for each in results:
        first = each[0] if isinstance(each, Sequence) else each
        parts = (first.searched, first.held_out) if isinstance(first, tk.TraceResult) else ()
        for part in parts:
            if part is None or part.origin is None:
                continue
            path = first.model_facts.path or first.model
            # Some data sets, such as those with noise, need the model and not only its tokenizer.
            with suppress(TracekitError, OSError, ValueError, AttributeError):
                if first.model == DEMO:
                    model = load_quietly(DEMO)
                else:
                    model = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
                by_data[part.fingerprint] = load_origin(part.origin, model)
    return list(by_data.values())
