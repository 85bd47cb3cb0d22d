"""What commands print: tables of any rows, and what tracers, results and checks of pairs say.

Tables are printed without breaking words; with `--json`, they are added to the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rich.measure import Measurement, measure_renderables
from rich.table import Table as RichTable
from rich.text import Text

import tracekit as tk
from tracekit._util.table import Column, Table
from tracekit.cli.console import console

if TYPE_CHECKING:
    from tracekit.tracer.estimate import Estimate

_MOST_LABELS, _FEW_LABELS = 20, 6
"""Components of a result that a table names."""
_LIST_WIDTH = 12
"""Width below which a column of components is not narrowed."""
_FRAME = 3
"""Characters that the frame takes for each column: two spaces and a line."""


def record_table(name: str, table: Table) -> bool:
    """Puts a table into the document under a name; returns whether there is a document."""
    if console.document is None:
        return False
    console.document["tables"].setdefault(name, []).extend(table.records())
    return True


def print_facts(name: str, table: Table) -> None:
    """Prints a table of one row as a line for each column."""
    if not record_table(name, table):
        drawn = RichTable(show_header=False, box=None)
        for column in table.columns:
            drawn.add_row(column.title, *column.texts)
        console.print(drawn)


def print_table(
    name: str,
    table: Table,
    shown: Table | None = None,
    *,
    heading: str | None = None,
    n_names: int = 1,
) -> None:
    """Prints a table without breaking words; with `--json`, records it under a name.

    A table that is too wide for the terminal is printed in parts, one below the other, each with
    the first `n_names` columns, which name a row. Only a word that is wider than the terminal is
    folded. `shown` has the columns and rows that a terminal has room for; None: all.
    """
    if record_table(name, table):
        if heading is not None:
            console.print(heading)
        return
    columns = (table if shown is None else shown).columns
    widths = [_width_range(column) for column in columns]
    for part in _split([each.minimum for each in widths], n_names):
        console.print(_draw_table([columns[n] for n in part], [widths[n] for n in part], heading))


def _width_range(column: Column) -> Measurement:
    """Widths of a column from its longest word to its longest line; intervals are not broken."""
    title, *cells = (
        measure_renderables(console, console.options, [Text(text)])
        for text in (column.title, *column.texts)
    )
    longest_line = max([each.maximum for each in cells], default=0)
    longest_word = max([each.minimum for each in cells], default=0)
    kinds = {type(value) for value in column.values}
    if tuple in kinds:
        longest_word = longest_line
    elif list in kinds:
        longest_word = max(longest_word, min(longest_line, _LIST_WIDTH))
    return Measurement(max(title.minimum, longest_word), max(title.maximum, longest_line))


def _split(widths: Sequence[int], n_names: int) -> list[list[int]]:
    """Numbers of the columns of each part that the terminal has room for."""
    names = list(range(n_names))
    parts = [names]
    for number in range(n_names, len(widths)):
        width = sum(widths[each] + _FRAME for each in (*parts[-1], number)) + 1
        if width > console.width and len(parts[-1]) > n_names:
            parts.append(names)
        parts[-1] = [*parts[-1], number]
    return parts


def _draw_table(
    columns: Sequence[Column], ranges: Sequence[Measurement], heading: str | None
) -> RichTable:
    drawn = RichTable(title=heading, title_justify="left")
    room = console.width - sum(each.minimum + _FRAME for each in ranges) - 1
    widths = [each.minimum for each in ranges]
    # rich would narrow the widest columns first, and break their words. Here columns are widened
    # within their ranges: first the first one, then whichever lacks most.
    for _ in range(room):
        missing = [each.maximum - width for each, width in zip(ranges, widths, strict=True)]
        if max(missing) <= 0:
            break
        widths[0 if missing[0] > 0 else missing.index(max(missing))] += 1
    for number, column in enumerate(columns):
        drawn.add_column(
            column.title,
            justify="left" if number == 0 or column.is_text else "right",
            overflow="fold",
            width=widths[number] if room >= 0 else None,
        )
    for row, texts in enumerate(zip(*(column.texts for column in columns), strict=True)):
        styles = [column.styles.get(row, "") for column in columns]
        drawn.add_row(*map(Text, texts, styles))
    return drawn


def print_tracer(tracer: tk.Tracer) -> None:
    """Prints what is traced, and the effect of all components together."""
    from tracekit._util.clusters import count_text

    console.print(f"{tracer}")
    searched = "" if tracer.held_out is None else " searched"
    n = f"{count_text(tracer.engine.n_examples, tracer.engine.pairs.clusters)}{searched} examples"
    console.print(
        f"Effect of all components together ({tracer.engine.metric.name}, {n}): "
        f"{tracer.full_effect:.4g}"
    )
    if tracer.n_prefers_x is not None:
        run = "clean" if tracer.direction == "noising" else "counterfactual"
        console.print(f"The {run} model prefers x to y on {tracer.n_prefers_x} of the {n}.")


def print_checks(check: tk.data.PairsCheck, *, is_short: bool = False) -> None:
    """Prints the lines of a check as a table; if `is_short`, it counts those that are green."""
    lines = [line for line in check.lines if not (is_short and line.color == "green")]
    colors = [line.color for line in lines]
    columns = [
        Column("color", "color", colors, styles=dict(enumerate(colors))),
        Column("check", "check", [line.topic for line in lines]),
        Column("finding", "finding", [line.text for line in lines]),
    ]
    if lines:
        print_table("checks", Table(columns), n_names=2)
    n = len(check.lines)
    if is_short:
        console.print(f"{n - len(lines)} of {n} checks of the pairs are green.")


def print_estimates(estimates: Iterable[Estimate]) -> None:
    """Prints what runs will take, a line each, and all of them together."""
    from tracekit._util.progress import duration_text

    all_estimates = list(estimates)
    record_table("estimates", Table.of_rows([asdict(each) for each in all_estimates]))
    for each in all_estimates:
        console.print(f"{each.method}: {each.total}")
        if each.faster:
            console.print(f"  Faster: {each.faster}")
    memory = max((each.memory for each in all_estimates if each.memory is not None), default=None)
    memory_text = "" if memory is None else f"; {memory / 2**20:.0f} MiB of memory"
    seconds = duration_text(sum(each.seconds for each in all_estimates))
    console.print(f"Estimated: about {seconds} in all{memory_text}. Nothing was run or written.")


def print_results(results: Sequence[tk.TraceResult], *, is_full: bool = False) -> None:
    """Prints a row per result, by method and budget; the best effect of a budget is bold.

    Results of several settings have a table each. Above it stands what all of its rows share.
    Unless `is_full`, there are five columns and those of further metrics.
    """
    from tracekit.results.tables import legend, meaning_of_effects, metric_units, result_table

    by_setting: dict[tuple[str, str], list[tk.TraceResult]] = {}
    for result in results:
        setting = (_setting_text(result), result.dataset_fingerprint)
        by_setting.setdefault(setting, []).append(result)
    for (text, _), rows in by_setting.items():
        console.print(text)
        order = list(dict.fromkeys(result.series for result in rows))
        rows.sort(key=lambda result: (order.index(result.series), result.budget or 0))
        table = result_table(rows, most_labels=_MOST_LABELS if is_full else _FEW_LABELS)
        print_table("results", table, _shown_columns(rows, table, is_full=is_full), n_names=2)
    if is_full or len(results) == 1:
        _print_first_choices(results)
    if is_full:
        text = f"{legend(results)} Passes: forward and backward; budgets of a run share them."
    else:
        text = (
            f"{meaning_of_effects(results)} Brackets: a 95 % confidence interval if "
            "held out, only a spread if searched, as these examples selected the set. Faithful: "
            "how much of the behaviour remains when all other components are patched (1: all). "
            f"tracekit show --full: all columns.{metric_units(results)}"
        )
    console.print(text, style="dim")


def _setting_text(result: tk.TraceResult) -> str:
    """Model, data, components and metric of a result, and the setup's changes from the defaults."""
    from tracekit.results.tables import result_examples_text

    setup = result.setup
    parts = [result.model, result_examples_text(result), result.registry.describe()]
    parts += [setup.intervention, f"{setup.metric}: {result.axis_label}"]
    mean = f"{setup.continuation_mean} mean over the tokens of an answer"
    parts += [mean] if setup.continuation_mean != "geometric" else []
    parts += [f"seed of the source {setup.source_seed}"] if setup.source_seed else []
    return "; ".join(parts)


def _print_first_choices(results: Sequence[tk.TraceResult]) -> None:
    """Prints the first choices of the model before and after, where a metric counts them."""
    from tracekit.results.on_examples import choice_rows

    for result in results:
        for examples, name in ((result.searched, "searched"), (result.held_out, "held out")):
            if examples is None:
                continue
            row = {"method": result.series, "n_selected": result.n_selected, "examples": name}
            rows = [row | each for each in choice_rows(examples.choices, examples.n_examples)]
            if rows and not record_table("choices", Table.of_rows(rows)):
                which = f"{result.series}, {result.n_selected} selected, {name}"
                console.print(f"{which}: {examples.choices_text}.")


def _shown_columns(results: Sequence[tk.TraceResult], table: Table, *, is_full: bool) -> Table:
    """The columns of results for a terminal, with the best effect of each budget in bold.

    Unless `is_full`, there are five, whose effects are the held-out ones if all rows have them, and
    those of further metrics.
    """
    from tracekit.results.tables import effect_columns, rows_that_may_be_best

    metrics = {name for result in results for name in result.extra_effects}
    titles = [column.title for column in table.columns]
    further = [title for title in titles if title.removesuffix(" (metric)") in metrics]
    # Effects on the examples that selected a set do not rank methods.
    best = "effect" if None in table["held_out"].values else "held_out"
    ranked = table.ranked(best, ["budget"], among=rows_that_may_be_best(results))
    if is_full:
        columns = ["method", "budget", *effect_columns(results), *further]
        if table["budget"].values == table["n_selected"].values:
            columns.remove("budget")
        return ranked.only(*columns, "passes", "seconds", "components", brief=True)
    ends = table["95 % spread" if best == "effect" else "95 % interval"].values
    values = [(each, *end) for each, end in zip(ranked[best].values, ends, strict=True)]
    names = ranked.only("method", "n_selected").columns
    others = ranked.only("faithfulness", *further, "components", brief=True).columns
    return Table([*names, replace(ranked[best], values=values), *others])
