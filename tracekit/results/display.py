"""How results show themselves in a notebook: HTML without scripts, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tracekit._util.markup import MAX_ROWS, html_card, html_text, interval_text
from tracekit._util.table import Column, Table, join_labels, latex_text, value_text


class Tabular:
    """What has a `table`: as a frame, in a notebook, and in LaTeX."""

    table: Any

    def to_frame(self) -> Any:
        """A copy of the table; see there."""
        return self.table.copy()

    def to_latex(self, *, caption: str | None = None, label: str = "tab:tracekit") -> str:
        """The table in LaTeX (booktabs), a column with its 95 % interval in one."""
        text = latex_text(str(self).splitlines()[0].rstrip(":")) if caption is None else caption
        return Table.of_rows(self.table, joined=True).latex(text, label)

    def _repr_html_(self) -> str:
        n, shown = len(self.table), Table.of_rows(self.table.head(MAX_ROWS), joined=True)
        rest = [line(f"{MAX_ROWS} of {n} rows; to_frame() has all")] if n > MAX_ROWS else []
        return html_card(str(self).splitlines()[0], shown.html(), *rest)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InWords:
    """What says in words how its numbers were made."""

    intervention: str = ""
    """What was patched (`tracekit.engine.setup.intervention_text`)."""
    examples: str = ""
    """Which examples the numbers are of, whether a search selected the set on them, how many."""

    @property
    def setting(self) -> str:
        """Both, as far as they are known."""
        return ", ".join(filter(None, [self.intervention, self.examples]))


def line(text: str) -> str:
    """A line of text."""
    return f"<p>{html_text(text)}</p>"


def text_html(self: Any) -> str:
    """A card for notebooks that shows what `print` does."""
    first, *rest = str(self).splitlines()
    return html_card(first, *map(line, rest))


def effects_text(result: Any) -> str:
    """What was patched, and the effect beside that of all components, searched and held out."""
    text = (
        f"{result.setup.intervention}: {result.axis_label} {result.effect:.4g} "
        f"(all: {result.full_effect:.4g}) on {result.searched.n_text} searched"
    )
    if result.held_out is not None:
        text += f", {result.held_out.mean:.4g} (all: {result.held_out.full_mean:.4g})"
        text += f" on {result.held_out.n_text} held-out"
    return "; ".join([f"{text} examples", *search_notes(result)])


def search_notes(result: Any) -> list[str]:
    """What else decided which set was selected: a goal, a constraint, and an early end."""
    notes, level = list[str](), result.run.faithfulness
    if level is not None:
        sizes = {"sizes": [result.n_selected], "n_components": result.n_components}
        (reached,) = result.searched.faithfulness(**sizes).faithfulness
        notes.append(f"faithfulness {reached:.2f} on searched examples ({level:g} was asked for)")
    if result.constraint is not None:
        notes.append(f"constraint: {result.constraint}")
    if result.stopped:
        notes.append(f"the best set when the search was stopped ({result.stopped})")
    return notes


def result_html(result: Any) -> str:
    """A card for notebooks that shows a `TraceResult`: its numbers and its components."""
    facts = [effects_text(result), f"spread {interval_text(*result.spread)}"]
    if result.held_out_interval is not None:
        facts.append(f"95 % interval held out {interval_text(*result.held_out_interval)}")
    where = "searched" if result.held_out is None else "held out"
    for name, score in zip(("faithfulness", "completeness"), result.circuit_scores, strict=True):
        facts.append(f"{name}, {where}, {value_text(score, '.2f')}")
    facts += [f"{name} {effect:.4g}" for name, effect in result.extra_effects.items()]
    choices = (result.held_out or result.searched).choices_text
    if choices:
        facts.append(f"{where}: {choices}")
    facts.append(f"{result.cost.forward_equivalents:.0f} passes, {result.run.seconds:.1f} s")
    if result.noise_floor:
        facts.append(f"noise floor {result.noise_floor:.2g}")
    return html_card(
        f"{result.title}: {result.n_selected} of {result.n_components} components",
        line(f"{result.dataset} data, {result.model_text} model, {result.setup.metric}"),
        line(" \u00b7 ".join(facts)),
        line(join_labels(result.labels)),
        *(line(each.summary) for each in result.certificates[-1:]),
    )


def table_html(table: Table) -> str:
    """A table of at most a dozen rows, from the first to the last."""
    n = len(table)
    if n <= MAX_ROWS:
        return table.html()
    shown = [round(step * (n - 1) / (MAX_ROWS - 1)) for step in range(MAX_ROWS)]
    return table.rows(shown).html() + line(f"{MAX_ROWS} of {n} rows; to_frame() has all")


def model_text(name: str, dtype: str) -> str:
    """The name of a model, and the type of its weights where that is not float32."""
    return name if dtype in ("", "float32") else f"{name} ({dtype})"


def facts_table(facts: Iterable[tuple[str, object]], title: str = "", of: str = "") -> Table:
    """A table of names and values, under two titles."""
    names, values = zip(*facts, strict=True)
    return Table([Column("fact", title, names), Column("value", of, list(map(str, values)))])
