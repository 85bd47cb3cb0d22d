"""Tables and figures about the sets that methods select at given budgets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

import pandas as pd

from paper.experiment import (
    NOT_PUBLISHED,
    PaperTable,
    Report,
    Setting,
    case_of,
    charts,
    declared,
    effects_frame,
    notes_on_sameness,
    on_all_examples,
    trace_job,
    usual_kind,
    with_held_out,
)
from paper.jobs import ModelAt
from paper.models import PAPER_MODELS, SINGLE_HEAD_TABLES
from paper.published import paper_similarity, paper_singles, single_heads
from tracekit import TraceResult, compare, figures
from tracekit.errors import UnknownNameError
from tracekit.results import effect_curve
from tracekit.runs import Job, Run
from tracekit.search import title_of

HEADS = (0.1, 0.2, 0.3, 0.4)
NEURONS = (0.025, 0.05, 0.1, 0.15)
"""Budgets, as shares of the paper's heads (`attention-patterns`) and neurons (`mlp-outputs`)."""
_GREEDY_UP_TO = 384
_TOPK_UP_TO = 24_576
"""Components beyond which the paper does not run greedy (heads) and top-k (neurons)."""
_WIDE_RANGE = 100
"""Ratio of effects beyond which a curve has a logarithmic scale."""


def _methods(setting: Setting, model: ModelAt, components: str) -> list[str]:
    """The methods of the setting, else the paper's, which depend on the size of the model."""
    if setting.methods:
        return list(setting.methods)
    count, is_heads = model.count(components), components == "attention-patterns"
    methods = ["random"]
    if is_heads or count is None or count <= _TOPK_UP_TO:
        methods.append("top-k")
    if is_heads and (count is None or count <= _GREEDY_UP_TO):
        methods.append("greedy")
    return [*methods, "pgb-ct"]


def _plan(
    components: str, budgets: Sequence[float], setting: Setting, model: ModelAt, dataset: str
) -> list[Job]:
    jobs = [
        trace_job(setting, model, dataset, components, method, budgets)
        for method in _methods(setting, model, components)
    ]
    return with_held_out(setting, jobs)


_plan_heads = partial(_plan, "attention-patterns", HEADS)
_plan_neurons = partial(_plan, "mlp-outputs", NEURONS)


def _table(published: str, setting: Setting, runs: list[Run]) -> Report:
    """The report of a table; `published` is its name among the published numbers."""
    frame = effects_frame(setting, runs, published)
    long = PaperTable(
        frame=frame,
        caption="Effect, its spread (95 per cent of resamples of the examples) and passes.",
        columns=["dataset", "model", "method", "budget", "effect", "low", "high", "held_out"],
        best=["effect"],
        groups=["dataset", "model", "budget"],
        brief=False,
    )
    return Report(
        tables={"effects": long, "summary": _wide(frame)},
        notes=notes_on_sameness(setting, frame, has_heads=published == "heads"),
    )


def _wide(frame: Any) -> PaperTable:
    """A column per share, as in the paper."""
    shares = list(dict.fromkeys(frame["share"]))
    rows = []
    for (dataset, model, method), part in frame.groupby(["dataset", "model", "method"], sort=False):
        by_share = part.set_index("share")
        row: dict[str, Any] = {"dataset": dataset, "model": model, "method": title_of(str(method))}
        row |= {_percent(share): by_share["effect"].get(share) for share in shares}
        row["minutes"] = part["minutes"].iloc[0]
        if frame["published"].notna().any():
            for share in shares:
                row[f"{_percent(share)} published"] = by_share["published"].get(share)
                row[f"{_percent(share)} difference"] = by_share["difference"].get(share)
            row["minutes published"] = part["published_minutes"].iloc[0]
        rows.append(row)
    return PaperTable(
        frame=pd.DataFrame(rows),
        caption="Effect at shares of the components; best in bold, second underlined.",
        best=[_percent(share) for share in shares],
        groups=["dataset", "model"],
    )


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _cases(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs on all examples, by model and data set."""
    cases: dict[str, list[Run]] = {}
    for run in on_all_examples(runs):
        cases.setdefault(f"{run.job.model}-{run.job.dataset}", []).append(run)
    return cases


def _curves(runs: Sequence[Run]) -> dict[str, Any]:
    """An effect curve of each case, by name."""
    curves = {}
    for case, case_runs in _cases(runs).items():
        results = [result for run in case_runs for result in run.curve]
        effects = [result.effect for result in results]
        # Ratios of probabilities grow over orders of magnitude.
        is_wide = min(effects) > 0 and max(effects) > _WIDE_RANGE * min(effects)
        curves[f"curve-{case}"] = effect_curve(results, log_y=is_wide)
    return curves


def _result_at(run: Run, share: float) -> TraceResult:
    return run.curve[run.job.budgets.index(share)]


def _fig_heads(setting: Setting, runs: list[Run]) -> Report:
    figures_by_name, tables = _curves(runs), {}
    for case, case_runs in _cases(runs).items():
        results = {run.job.label: _result_at(run, 0.2) for run in case_runs}
        comparison = compare(results.values(), [title_of(method) for method in results])
        figures_by_name[f"selected-{case}"] = comparison.heatmap()
        matrix = comparison.jaccard
        job = case_runs[0].job
        figures_by_name[f"similarity-{case}"] = figures.similarities(
            matrix,
            title=f"{job.dataset} data, {job.model} model",
            subtitle="20 % of the heads",
        )
        tables[f"similarity-{case}"] = PaperTable(
            frame=_similarity_rows(setting, job, matrix.to_numpy(), list(results)),
            caption="Jaccard similarity of the heads selected at 20 per cent.",
        )
    return Report(
        tables=tables,
        figures=figures_by_name,
        notes=notes_on_sameness(setting, effects_frame(setting, runs)),
    )


def _similarity_rows(setting: Setting, job: Job, matrix: Any, methods: list[str]) -> Any:
    """A DataFrame with a row per pair of methods, and the published similarity beside ours."""
    published = paper_similarity()
    same_case = (published["model"] == job.model) & (published["dataset"] == job.dataset)
    comparable = setting.keeps_paper_data and setting.is_paper_model(job.model)
    jaccard_of = {
        frozenset((row.first, row.second)): row.jaccard
        for row in published[same_case & comparable].itertuples()
    }
    rows = []
    for (i, first), (j, second) in combinations(enumerate(methods), 2):
        paper = jaccard_of.get(frozenset((first, second)))
        difference = None if paper is None else matrix[i, j] - paper
        rows.append((first, second, matrix[i, j], paper, difference))
    return pd.DataFrame(rows, columns=["first", "second", "jaccard", "published", "difference"])


def _fig_neurons(setting: Setting, runs: list[Run]) -> Report:
    figures_by_name, rows = _curves(runs), []
    for run in on_all_examples(runs):
        result = _result_at(run, 0.05)
        rows += [
            {**case_of(run), "layer": layer, "share": count / result.n_selected}
            for layer, count in result.to_frame().groupby("layer")["selected"].sum().items()
        ]
    frame: Any = pd.DataFrame(rows)
    figures_by_name |= charts(
        figures.bars,
        frame,
        ["dataset", "model"],
        "layers-{model}-{dataset}",
        "{dataset} data, {model} model",
        x="layer",
        y="share",
        series="method",
        title_of=title_of,
        axis_titles=("layer", "share of the selected neurons"),
        subtitle="5 % of the neurons",
    )
    table = PaperTable(frame=frame, caption="Share of the selected neurons that lie in each layer.")
    return Report(
        tables={"layers": table},
        figures=figures_by_name,
        notes=notes_on_sameness(setting, effects_frame(setting, runs)),
    )


def _fig_time(setting: Setting, runs: list[Run]) -> Report:
    frame = effects_frame(setting, runs)
    frame = frame.drop_duplicates(["dataset", "model", "method"])
    info_of = {(r.job.dataset, r.job.model, r.job.label): r.info for r in on_all_examples(runs)}
    infos = [info_of[row.dataset, row.model, row.method] for row in frame.itertuples()]
    for name in ("device", "processes", "threads"):
        frame[name] = [getattr(info, name) for info in infos]
    columns = ["dataset", "model", "method", "minutes", "forward", "backward", "n_components"]
    columns += ["device", "processes", "threads"]
    figures_by_name = charts(
        partial(figures.bars, log_y=True),
        frame,
        ["dataset"],
        "time-{dataset}",
        "{dataset}",
        x="model",
        y="minutes",
        series="method",
        title_of=title_of,
        axis_titles=("model", "minutes"),
        subtitle="wall time of a search for all budgets",
    )
    table = PaperTable(
        frame=frame[columns], caption="Wall time and passes over the data, all budgets together."
    )
    notes = [
        "Wall times are of the machine that ran this; the paper's are of one A6000. Runs that "
        "shared the machine (`processes`) took longer than they would have alone."
    ]
    return Report(tables={"time": table}, figures=figures_by_name, notes=notes)


def _plan_single(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    return [
        trace_job(setting, model, dataset, usual_kind(dataset), method, [1])
        for method in setting.methods or ["top-k", "pgb-ct"]
    ]


def _report_single(setting: Setting, runs: list[Run]) -> Report:
    published = paper_singles().set_index(["model", "dataset"])
    rows = []
    for case_runs in _cases(runs).values():
        job = case_runs[0].job
        row: dict[str, Any] = {"dataset": job.dataset, "model": job.model}
        for run in case_runs:
            # Top-k measures every single component.
            label = "optimum" if run.job.method == "top-k" else run.job.method
            row[label] = run.result.effect
            row[f"{label} component"] = ", ".join(run.result.labels)
        is_published = (job.model, job.dataset) in published.index
        if is_published and setting.is_paper_model(job.model) and setting.keeps_paper_data:
            paper = published.loc[(job.model, job.dataset)]
            for label in ("optimum", "pgb-ct"):
                row[f"{label} paper"] = paper[label]
                row[f"{label} difference"] = row.get(label, float("nan")) - paper[label]
            row["optimum Vig et al."] = _largest_of_vig(job)
        rows.append(row)
    table = PaperTable(
        frame=pd.DataFrame(rows),
        caption="Effect of the best single component (by trying all of them) and PGB-CT's.",
    )
    notes = [
        "For WinoBias the paper's optimum of a single head (0.105 for GPT2-small, 0.377 for "
        "medium) is not the largest single-head effect that Vig et al. published for the same "
        "models and data (0.031, 0.064). Both are shown."
    ]
    is_compared = any("optimum paper" in row for row in rows)
    return Report(tables={"single": table}, notes=notes if is_compared else [NOT_PUBLISHED])


def _largest_of_vig(job: Job) -> float | None:
    name = SINGLE_HEAD_TABLES.get(job.dataset)
    if name is None:
        return None
    try:
        return single_heads(PAPER_MODELS[job.model].hub, name).singles.max().item()
    except UnknownNameError:
        return None


EXPERIMENTS = declared(
    {
        "table-heads": (_plan_heads, partial(_table, "heads")),
        "fig-heads": (_plan_heads, _fig_heads),
        "table-neurons": (_plan_neurons, partial(_table, "neurons")),
        "fig-neurons": (_plan_neurons, _fig_neurons),
        "table-facts": (_plan_neurons, partial(_table, "facts")),
        "fig-facts": (_plan_neurons, _fig_neurons),
        "fig-time": (_plan_neurons, _fig_time),
        "table-single": (_plan_single, _report_single),
    }
)
