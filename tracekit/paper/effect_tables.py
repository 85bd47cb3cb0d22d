"""Tables and figures about the sets that methods find at given budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit import figures
from tracekit.errors import UnknownTableError
from tracekit.figures.style import shown
from tracekit.paper.experiment import (
    NOT_PUBLISHED,
    Experiment,
    Report,
    Setting,
    effects_frame,
    notes_on_sameness,
    trace_job,
    usual_kind,
    whole,
    with_held_out,
)
from tracekit.paper.jobs import Job, ModelAt
from tracekit.paper.latex_table import Table
from tracekit.paper.published import paper_similarity, paper_singles, single_heads
from tracekit.paper.run_store import Run
from tracekit.results.pareto_front import jaccard

HEADS = (0.1, 0.2, 0.3, 0.4)
NEURONS = (0.025, 0.05, 0.1, 0.15)
_GREEDY_UP_TO = 384
_TOPK_UP_TO = 24_576
"""Components beyond which the paper does not run greedy (heads) and top-k (neurons)."""
_WIDE = 100
"""Ratio of effects from which a curve is drawn on a logarithmic scale."""
_GPT2 = ("DistilGPT2", "GPT2-small", "GPT2-medium", "GPT2-large", "GPT2-xl")
_SEVEN = (*_GPT2, "Qwen3-1.7B", "Llama-3.2-1B")


def _methods(setting: Setting, model: ModelAt, components: str) -> list[str]:
    """The paper's methods, less those that it leaves out for a model of that size."""
    if setting.methods:
        return list(setting.methods)
    n = model.count(components)
    if components == "heads":
        greedy = n is None or n <= _GREEDY_UP_TO
        return ["random", "top-k", *(["greedy"] if greedy else []), "pgb-ct"]
    return ["random", *(["top-k"] if n is None or n <= _TOPK_UP_TO else []), "pgb-ct"]


def _plan(components: str, budgets: Sequence[float]) -> Any:
    def plan(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
        jobs = [
            trace_job(setting, model, dataset, components, method, budgets)
            for method in _methods(setting, model, components)
        ]
        return with_held_out(setting, jobs)

    return plan


def _table(kind: str) -> Any:
    def report(setting: Setting, runs: list[Run]) -> Report:
        frame = effects_frame(setting, runs, kind)
        return Report(
            tables={"effects": _long(frame), "summary": _wide(frame)},
            notes=notes_on_sameness(setting, frame),
        )

    return report


def _long(frame: Any) -> Table:
    """Everything that is known of every budget."""
    return Table(
        frame=frame,
        caption="Effect, intervals (95 per cent, bootstrap over examples) and passes.",
        columns=["dataset", "model", "method", "budget", "effect", "low", "high", "held_out"],
        best=["effect"],
        groups=["dataset", "model", "budget"],
        brief=False,
    )


def _wide(frame: Any) -> Table:
    """A column per share, as in the paper."""
    shares = list(dict.fromkeys(frame["share"]))
    rows = []
    for (dataset, model, method), part in frame.groupby(["dataset", "model", "method"], sort=False):
        by_share = part.set_index("share")
        row: dict[str, Any] = {"dataset": dataset, "model": model, "method": shown(str(method))}
        row |= {_percent(share): by_share["effect"].get(share) for share in shares}
        row["minutes"] = part["minutes"].iloc[0]
        if frame["published"].notna().any():
            for share in shares:
                row[f"{_percent(share)} published"] = by_share["published"].get(share)
                row[f"{_percent(share)} difference"] = by_share["difference"].get(share)
            row["minutes published"] = part["published_minutes"].iloc[0]
        rows.append(row)
    import pandas as pd

    return Table(
        frame=pd.DataFrame(rows),
        caption="Effect at shares of the components; best in bold, second underlined.",
        best=[_percent(share) for share in shares],
        groups=["dataset", "model"],
    )


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


# ---- figures about selections -------------------------------------------------------------


def _cases(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs on all examples, by model and data set."""
    found: dict[str, list[Run]] = {}
    for run in whole(runs):
        found.setdefault(f"{run.job.model}-{run.job.dataset}", []).append(run)
    return found


def _curves(runs: Sequence[Run]) -> dict[str, Any]:
    drawn = {}
    for case, some in _cases(runs).items():
        results = [result for run in some for result in run.curve]
        effects = [result.effect for result in results]
        # Ratios of probabilities grow over orders of magnitude.
        wide = min(effects) > 0 and max(effects) > _WIDE * min(effects)
        drawn[f"curve-{case}"] = figures.curve(results, log_y=wide)
    return drawn


def _at(run: Run, share: float) -> Any:
    """The result at a share that was run."""
    return run.curve[run.job.budgets.index(share)]


def _fig_heads(setting: Setting, runs: list[Run]) -> Report:
    import pandas as pd

    drawn, tables = _curves(runs), {}
    for case, some in _cases(runs).items():
        chosen = {run.job.label: _at(run, 0.2) for run in some}
        for method, result in chosen.items():
            drawn[f"selected-{case}-{method}"] = figures.heatmap(result)
        sets = {m: r.binary_mask.nonzero()[:, 0].tolist() for m, r in chosen.items()}
        matrix = pd.DataFrame(
            {b: {a: jaccard(sets[a], sets[b]) for a in sets} for b in sets},
            columns=list(sets),
            index=list(sets),
        )
        first = some[0].job
        drawn[f"similarity-{case}"] = figures.similarities(
            matrix, title=f"{first.dataset}, {first.model}", subtitle="20 % of the heads"
        )
        tables[f"similarity-{case}"] = Table(
            frame=_similarity_rows(setting, first, matrix),
            caption="Jaccard similarity of the heads selected at 20 per cent.",
        )
    return Report(
        tables=tables, figures=drawn, notes=notes_on_sameness(setting, effects_frame(setting, runs))
    )


def _similarity_rows(setting: Setting, job: Job, matrix: Any) -> Any:
    import pandas as pd

    published = paper_similarity()
    here = (published["model"] == job.model) & (published["dataset"] == job.dataset)
    pair = published[here & setting.is_whole & setting.is_papers(job.model)]
    rows = []
    for i, first in enumerate(matrix.columns):
        for second in matrix.columns[i + 1 :]:
            match = [
                row.jaccard
                for row in pair.itertuples()
                if {row.first, row.second} == {first, second}
            ]
            rows.append(
                {
                    "first": first,
                    "second": second,
                    "jaccard": matrix.loc[first, second],
                    "published": match[0] if match else None,
                    "difference": matrix.loc[first, second] - match[0] if match else None,
                }
            )
    columns = ["first", "second", "jaccard", "published", "difference"]
    return pd.DataFrame(rows, columns=columns)


def _fig_neurons(setting: Setting, runs: list[Run]) -> Report:
    import pandas as pd

    drawn, rows = _curves(runs), []
    for case, some in _cases(runs).items():
        here = []
        for run in some:
            result = _at(run, 0.05)
            per_layer = result.to_frame().groupby("layer")["selected"].sum()
            for layer, count in per_layer.items():
                here.append(
                    {
                        "dataset": run.job.dataset,
                        "model": run.job.model,
                        "method": run.job.label,
                        "layer": layer,
                        "share": count / result.n_selected,
                    }
                )
        rows += here
        drawn[f"layers-{case}"] = figures.lines(
            pd.DataFrame(here),
            x="layer",
            y="share",
            series="method",
            titles=("layer", "share of the selected neurons"),
            title=f"{some[0].job.dataset}, {some[0].job.model}",
            subtitle="5 % of the neurons",
        )
    table = Table(
        frame=pd.DataFrame(rows), caption="Share of the selected neurons that lie in each layer."
    )
    return Report(
        tables={"layers": table},
        figures=drawn,
        notes=notes_on_sameness(setting, effects_frame(setting, runs)),
    )


def _fig_time(setting: Setting, runs: list[Run]) -> Report:
    frame = effects_frame(setting, runs)
    frame = frame.drop_duplicates(["dataset", "model", "method"])
    where = {(r.job.dataset, r.job.model, r.job.label): r.info for r in whole(runs)}
    cases = [where[row.dataset, row.model, row.method] for row in frame.itertuples()]
    for name in ("device", "processes", "threads"):
        frame[name] = [info[name] for info in cases]
    columns = ["dataset", "model", "method", "minutes", "forward", "backward", "n_components"]
    columns += ["device", "processes", "threads"]
    drawn = {
        f"time-{dataset}": figures.bars(
            part,
            x="model",
            y="minutes",
            series="method",
            titles=("model", "minutes"),
            title=str(dataset),
            subtitle="wall time of a search for all budgets",
            log_y=True,
        )
        for dataset, part in frame.groupby("dataset", sort=False)
    }
    table = Table(
        frame=frame[columns], caption="Wall time and passes over the data, all budgets together."
    )
    notes = [
        "Wall times are of the machine that ran this; the paper's are of one A6000. Runs that "
        "shared the machine (`processes`) took longer than they would have alone."
    ]
    return Report(tables={"time": table}, figures=drawn, notes=notes)


# ---- the best single component --------------------------------------------------------------


def _plan_single(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    return [
        trace_job(setting, model, dataset, usual_kind(dataset), method, [1])
        for method in setting.methods or ["top-k", "pgb-ct"]
    ]


def _report_single(setting: Setting, runs: list[Run]) -> Report:
    import pandas as pd

    published = paper_singles().set_index(["model", "dataset"])
    rows = []
    for some in _cases(runs).values():
        found = {run.job.method: run.result for run in some}
        job = some[0].job
        row: dict[str, Any] = {"dataset": job.dataset, "model": job.model}
        for method, result in found.items():
            label = "optimum" if method == "top-k" else method
            row[label] = result.effect
            row[f"{label} component"] = ", ".join(result.labels)
        known = (job.model, job.dataset) in published.index and setting.is_papers(job.model)
        if known and setting.is_whole:
            line = published.loc[(job.model, job.dataset)]
            for label in ("optimum", "pgb-ct"):
                row[f"{label} paper"] = line[label]
                row[f"{label} difference"] = row.get(label, float("nan")) - line[label]
            row["optimum Vig et al."] = _vig(job)
        rows.append(row)
    table = Table(
        frame=pd.DataFrame(rows),
        caption="Effect of the best single component (by trying all of them) and PGB-CT's.",
    )
    notes = [
        "For WinoBias the paper's optimum of a single head (0.105 for GPT2-small, 0.377 for "
        "medium) is not the largest single-head effect that Vig et al. published for the same "
        "models and data (0.031, 0.064). Both are shown."
    ]
    compared = any("optimum paper" in row for row in rows)
    return Report(tables={"single": table}, notes=notes if compared else [NOT_PUBLISHED])


def _vig(job: Job) -> float | None:
    """The largest single-head effect that Vig et al. published."""
    from tracekit.checks.architectures import PAPER_MODELS

    name = {"winobias": "winobias-dev", "winogender": "winogender-bergsma"}.get(job.dataset)
    if name is None:
        return None
    try:
        return single_heads(PAPER_MODELS[job.model].hub, name).singles.max().item()
    except UnknownTableError:
        return None


EXPERIMENTS = (
    Experiment(
        name="table-heads",
        about="effect at 10, 20, 30, 40 % of the heads, and time: WinoGender and WinoBias",
        models=_SEVEN,
        datasets=("winogender", "winobias"),
        plan=_plan("heads", HEADS),
        report=_table("heads"),
    ),
    Experiment(
        name="fig-heads",
        about="effect against number of heads; heads selected at 20 %; similarity of methods",
        models=("GPT2-small",),
        datasets=("winogender", "winobias"),
        plan=_plan("heads", HEADS),
        report=_fig_heads,
    ),
    Experiment(
        name="table-neurons",
        about="effect at 2.5, 5, 10, 15 % of the neurons, and time: Professions",
        models=_SEVEN,
        datasets=("professions",),
        plan=_plan("neurons", NEURONS),
        report=_table("neurons"),
    ),
    Experiment(
        name="fig-neurons",
        about="effect against number of neurons; share of selected neurons per layer: Professions",
        models=("GPT2-small",),
        datasets=("professions",),
        plan=_plan("neurons", NEURONS),
        report=_fig_neurons,
    ),
    Experiment(
        name="table-facts",
        about="effect at 2.5, 5, 10, 15 % of the neurons, and time: CounterFact",
        models=("DistilGPT2", "GPT2-small"),
        datasets=("counterfact",),
        plan=_plan("neurons", NEURONS),
        report=_table("facts"),
    ),
    Experiment(
        name="fig-facts",
        about="effect against number of neurons; share of selected neurons per layer: CounterFact",
        models=("GPT2-small",),
        datasets=("counterfact",),
        plan=_plan("neurons", NEURONS),
        report=_fig_neurons,
    ),
    Experiment(
        name="fig-time",
        about="wall time per method and model: Professions and CounterFact",
        models=("DistilGPT2", "GPT2-small"),
        datasets=("professions", "counterfact"),
        plan=_plan("neurons", NEURONS),
        report=_fig_time,
    ),
    Experiment(
        name="table-single",
        about="the best single component: PGB-CT against trying all of them",
        models=("DistilGPT2", "GPT2-small", "GPT2-medium"),
        datasets=("winogender", "winobias", "professions"),
        plan=_plan_single,
        report=_report_single,
    ),
)
