"""Experiments on pairs, variable binding, signs of single effects, and a published circuit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd

from paper.effect_tables import HEADS, NEURONS
from paper.experiment import (
    PaperTable,
    Report,
    Setting,
    case_of,
    charts,
    data_options,
    declared,
    on_all_examples,
    trace_job,
    usual_kind,
)
from paper.jobs import ModelAt, PaperJob
from paper.published import paper_joint
from tracekit import Setup, TraceResult, figures
from tracekit.data import describe
from tracekit.errors import ConfigError
from tracekit.runs import Job, Run

_RELATIVE_LAYERS = (1 / 2, 2 / 3, 3 / 4)
"""Layers 6, 8 and 9 of GPT-2 small's 12, and those at the same height of other models."""
_DEMO_RELATIVE_LAYERS = (0.0, 1 / 4)
"""Layers 0 and 1 of the embedded model, where its heads act."""
_SIZES = (1, 2, 3, 5, 7, 10, 15, 20)
"""Budgets for variable binding."""
_LISTED_SIZES = (10, 15)
"""Those whose sets are listed and drawn."""
_CIRCUIT = (1 / 24, 1 / 12, 1 / 8, 13 / 72)
"""Budgets for IOI: of 144 heads 6, 12, whose paths are measured, 18, and 26, as published."""


def _plan_pairs(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    usual = describe(dataset)
    has_blocks = usual_kind(dataset) == "mlp-outputs"
    relative_layers = _DEMO_RELATIVE_LAYERS if model.is_demo else _RELATIVE_LAYERS
    return [
        PaperJob(
            work="pairs",
            model=model.title,
            dtype=setting.dtype,
            dataset=dataset,
            data_options=data_options(setting, model, dataset, {}),
            setup=Setup(
                components="mlp-blocks" if has_blocks else "attention-patterns",
                metric=usual.metric,
                positions=usual.positions,  # type: ignore[arg-type]
            ),
            relative_layers=() if has_blocks else relative_layers,
            limit=setting.limit,
            seed=setting.seed,
        )
    ]


def _report_pairs(setting: Setting, runs: list[Run]) -> Report:
    figures_by_name, tables, rows = {}, {}, []
    for run in runs:
        job, grid = run.job, run.grid
        case = f"{job.model}-{job.dataset}-{job.setup.components}"
        figures_by_name[f"pairs-{case}"] = grid.heatmap()
        frame = grid.to_frame()
        tables[f"pairs-{case}"] = PaperTable(
            frame=frame, caption=f"Pairs of {job.setup.components}, largest interaction first."
        )
        rows.append(
            {
                "dataset": job.dataset,
                "model": job.model,
                "components": job.setup.components,
                "pairs": len(frame),
                "largest": frame["interaction"].max(),
                "least": frame["interaction"].min(),
                "mean_size": frame["interaction"].abs().mean(),
                "mean_single": grid.singles.abs().mean().item(),
            }
        )
    tables["summary"] = PaperTable(
        frame=pd.DataFrame(rows), caption="Interactions, $l(\\{i, j\\}) - l(\\{i\\}) - l(\\{j\\})$."
    )
    return Report(tables=tables, figures=figures_by_name)


_BINDING_NOTE = (
    "The published objective differs: operation invariance is there the mean of the squared change "
    "of a logit difference, so a change in either direction costs. Here it is the signed effect, "
    "which rewards a push towards the clean answer. The published code takes two Adam steps an "
    "iteration (values with penalties, then operations without), 100 iterations over all of 45 "
    "examples of each desideratum, in float16."
)


def _plan_binding(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    # Accuracy is measured on other examples than the sets were selected on, if there are any.
    other_split = {"split": "test"} if dataset == "variable-binding" else {}
    count = model.count("head-outputs+mlp-blocks")
    sizes = [size for size in _SIZES if count is None or size <= count]
    accuracy_on = {
        name: data_options(setting, model, dataset, {"desideratum": name, **other_split})
        for name in ("value", "operation")
    }
    search = partial(trace_job, setting, model, dataset, "head-outputs+mlp-blocks")
    both = {"desideratum": "both"}
    return [
        search(method, sizes, data_options=both, accuracy_on=accuracy_on)
        for method in setting.methods or ["pgb-ct"]
    ]


def _report_binding(setting: Setting, runs: list[Run]) -> Report:
    rows: list[dict[str, Any]] = []
    figures_by_name: dict[str, Any] = {}
    sets = []
    for run in runs:
        job = run.job
        case = f"{job.model}-{job.dataset}-{job.label}"
        measured = run.info.measured
        for rank, result in enumerate(run.curve):
            rows += [
                {
                    **case_of(run),
                    "budget": result.budget,
                    "n_selected": result.n_selected,
                    "intervention": intervention,
                    "accuracy": accuracies[rank],
                    "without": measured["clean_accuracies"][intervention],
                    "objective": result.effect,
                }
                for intervention, accuracies in measured["accuracies"].items()
            ]
            if result.budget in _LISTED_SIZES:
                figures_by_name[f"selected-{case}-{result.budget}"] = result.heatmap()
                sets.append(_set_row(setting, job, result))
        of_run = case_of(run).items()
        chart = figures.Chart(
            frame=pd.DataFrame([row for row in rows if of_run <= row.items()]),
            x="budget",
            y="accuracy",
            series="intervention",
            axis_titles=("number of components", "accuracy"),
            title=f"{job.dataset} data, {job.model} model",
            subtitle="answers to the counterfactual values; answers kept under the other operation",
        )
        figures_by_name[f"accuracy-{case}"] = figures.lines(chart)
    caption = "Accuracy under value and operation interventions."
    return Report(
        tables={
            "accuracy": PaperTable(frame=pd.DataFrame(rows), caption=caption),
            "selected": PaperTable(frame=pd.DataFrame(sets), caption="Selected heads and blocks."),
        },
        figures=figures_by_name,
        notes=[
            "Value: the foil y is the answer for the counterfactual values. Operation: y is the "
            "clean answer. With the embedded model both are measured on the examples that the sets "
            "were chosen on; variable-binding has a test split.",
            *([_BINDING_NOTE] if any(r.job.dataset == "variable-binding" for r in runs) else []),
        ],
    )


def _set_row(setting: Setting, job: Job, result: TraceResult) -> dict[str, Any]:
    """The selected components, and the published ones where model and data are the paper's."""
    row: dict[str, Any] = {
        "model": job.model,
        "method": job.label,
        "budget": result.budget,
        "selected": " ".join(result.labels),
    }
    published = {(entry["model"], entry["budget"]): entry for entry in paper_joint()}
    paper = published.get((job.model, result.budget))
    is_paper_run = job.dataset == "variable-binding" and setting.is_paper_model(job.model)
    if paper is not None and is_paper_run and setting.keeps_paper_data:
        row["published"] = " ".join(paper["components"])
        row["in both"] = len({*paper["components"]} & {*result.labels})
    return row


def _plan_findings(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    components = usual_kind(dataset)
    budgets = NEURONS if components == "mlp-outputs" else HEADS
    # Equal to the jobs of the tables, whose runs it shares.
    return [trace_job(setting, model, dataset, components, "top-k", budgets)]


def _report_findings(setting: Setting, runs: list[Run]) -> Report:
    rows = []
    for run in on_all_examples(runs):
        scores = run.result.component_scores
        assert scores is not None  # Top-k ranks by them.
        rows.append(
            {
                "dataset": run.job.dataset,
                "model": run.job.model,
                "components": run.job.setup.components,
                "n_components": len(scores),
                "positive": (scores > 0).float().mean().item(),
                "negative": (scores < 0).float().mean().item(),
                "full_effect": run.result.full_effect,
            }
        )
    frame = pd.DataFrame(rows)
    signs = frame.melt(
        id_vars=["dataset", "model"],
        value_vars=["positive", "negative"],
        var_name="sign",
        value_name="share",
    )
    figures_by_name = charts(
        figures.bars,
        signs,
        ["dataset"],
        "signs-{dataset}",
        "{dataset}",
        x="model",
        y="share",
        series="sign",
        axis_titles=("model", "share of components"),
        subtitle="components whose single effect is positive or negative",
    )
    chart = figures.Chart(
        frame=frame,
        x="n_components",
        y="full_effect",
        series="dataset",
        axis_titles=("number of components", "effect of all of them"),
        title="Effect against model size",
    )
    figures_by_name["size"] = figures.lines(chart, log_x=True)
    table = PaperTable(
        frame=frame, caption="Share of components with a positive and a negative single effect."
    )
    return Report(tables={"findings": table}, figures=figures_by_name)


def _plan_circuit(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    held_out = 0.5 if setting.held_out else None
    search = partial(trace_job, setting, model, dataset, "head-outputs", held_out=held_out)
    return [
        search("mask-ig", _CIRCUIT, objective="faithful"),
        search("top-k", _CIRCUIT),
        search("mask-ig", _CIRCUIT[1:2], objective="faithful", work="paths"),
    ]


def _report_circuit(setting: Setting, runs: list[Run]) -> Report:
    tables, drawn, notes, sets = {}, {}, list[str](), []
    for run in runs:
        name, case = run.job.model, f"{run.job.model}-{run.job.dataset}-{run.job.method}"
        if run.job.work == "paths":
            frame, drawn[f"paths-{case}"] = run.paths.table, run.paths.network()
            tables[f"paths-{case}"] = PaperTable(frame=frame, caption="Paths.", brief=False)
            notes += str(run.paths).splitlines()
            continue
        result, outline = run.result, None
        notes.append(repr(result))
        sets.append(run.curve.to_frame().assign(precision=None, recall=None))
        try:
            beside = [each.against("ioi") for each in run.curve]
        except ConfigError as error:
            notes.append(f"The published heads are not of {name}. {error}")
        else:
            outline, frame = "ioi", beside[-1].table
            sets[-1][["precision", "recall"]] = [(each.precision, each.recall) for each in beside]
            tables[f"heads-{case}"] = PaperTable(frame=frame, caption=beside[-1].name)
            heads = frame[frame["role"] != ""].itertuples()
            said = ", ".join(f"{row.component} ({row.role}) {row.score:+.3g}" for row in heads)
            notes += [*str(beside[-1]).splitlines(), f"Each, by {result.score_title}: {said}."]
            if not setting.is_paper_model(name):
                notes.append(f"{name} has the shape of GPT-2 small, and is not said to be it.")
        drawn[f"heads-{case}"] = result.heatmap(outline=outline)
        drawn[f"sizes-{case}"] = run.curve.curve()
    tables["sets"] = PaperTable(
        frame=pd.concat(sets).drop(columns="seconds"),
        caption="Sets of heads beside the published circuit.",
        columns=["model", "method", "n_selected", "share", "faithfulness", "precision", "recall"],
    )
    return Report(tables=tables, figures=drawn, notes=[*dict.fromkeys(notes)])


EXPERIMENTS = declared(
    {
        "ioi-circuit": (_plan_circuit, _report_circuit),
        "fig-nonadditivity": (_plan_pairs, _report_pairs),
        "fig-binding": (_plan_binding, _report_binding),
        "findings": (_plan_findings, _report_findings),
    }
)
