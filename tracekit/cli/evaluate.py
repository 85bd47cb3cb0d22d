"""`tracekit evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells
from tracekit._util.table import Table
from tracekit.cli import options
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import print_problem
from tracekit.cli.files import check_file
from tracekit.cli.parsing import read_masks
from tracekit.cli.summaries import print_tracer
from tracekit.cli.tables import print_table

_WARNING = (
    "{} was selected on {} of these {} examples, so its effect is larger here than on others, and "
    "the brackets are a spread, not a 95 % interval. Give other examples, or --held-out as for the "
    "run."
)
_OMITTED = ("split", "skip_mismatched")


@app.command()
@options.with_options(
    *(name for name in options.TRACE_KEYS if name not in _OMITTED),
    mask=options.WHAT.option(
        list[Path],
        "PATH",
        "Labels such as L1H4,L1H7; a JSON file with one entry in [0, 1] per component, or with a "
        f"list of such masks; or the folder of a run{options.SEVERAL}",
        default=options.REQUIRED,
    ),
    output=options.OPTIONAL_OUTPUT.with_help("CSV file for the effect on every example."),
)
def evaluate(values: OptionValues) -> None:
    """Measures the effects of given masks: soft or binary, 1 takes the counterfactual value."""
    from tracekit._util.clusters import count_text
    from tracekit._util.files import write_csv
    from tracekit.components.members import mask_of
    from tracekit.results import TraceResult, effect_interval

    output = values["output"]
    check_file(output)
    tracer = options.build_tracer(values)
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
        n_searched = (
            entries.searched.count_shared_pairs(engine.pairs_given)
            if isinstance(entries, TraceResult)
            else 0
        )
        if n_searched:
            print_problem("Warning", _WARNING.format(name, n_searched, len(pairs)), "yellow")
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
