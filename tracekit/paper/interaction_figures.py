"""Experiments about what components do: pairs, variable binding, signs of effects."""

from __future__ import annotations

from typing import Any

from tracekit import figures
from tracekit.data.registry import describe
from tracekit.paper.effect_tables import HEADS, NEURONS
from tracekit.paper.experiment import (
    Experiment,
    Report,
    Setting,
    data_options,
    trace_job,
    usual_kind,
    whole,
)
from tracekit.paper.jobs import Job, ModelAt
from tracekit.paper.latex_table import Table
from tracekit.paper.published import paper_joint
from tracekit.paper.run_store import Run

_DEPTHS = (1 / 2, 2 / 3, 3 / 4)
"""Layers 6, 8 and 9 of GPT-2 small's 12, and what corresponds to them."""
_DEMO_DEPTHS = (0.0, 1 / 4)
"""Layers 0 and 1 of the embedded model, where its heads act."""
_SIZES = (1, 2, 3, 5, 7, 10, 15, 20)
_SHOWN = (10, 15)
_LARGEST = 10
_GPT2 = ("DistilGPT2", "GPT2-small", "GPT2-medium", "GPT2-large", "GPT2-xl")


# ---- pairs ----------------------------------------------------------------------------------


def _plan_pairs(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    blocks = usual_kind(dataset) == "neurons"
    usual = describe(dataset)
    return [
        Job(
            work="pairs",
            model=model.title,
            dtype=setting.dtype,
            dataset=dataset,
            data_options=data_options(setting, dataset, {}),
            components="mlp-blocks" if blocks else "heads",
            metric=usual.metric,
            positions=usual.positions,
            depths=() if blocks else _DEMO_DEPTHS if model.is_demo else _DEPTHS,
            limit=setting.limit,
            seed=setting.seed,
        )
    ]


def _report_pairs(setting: Setting, runs: list[Run]) -> Report:
    import pandas as pd

    drawn, tables, rows = {}, {}, []
    for run in runs:
        job, grid = run.job, run.grid
        case = f"{job.model}-{job.dataset}-{job.components}"
        drawn[f"pairs-{case}"] = grid.heatmap()
        frame = grid.to_frame()
        tables[f"pairs-{case}"] = Table(
            frame=frame, caption=f"Pairs of {job.components}, largest interaction first."
        )
        rows.append(
            {
                "dataset": job.dataset,
                "model": job.model,
                "components": job.components,
                "pairs": len(frame),
                "largest": frame["interaction"].max(),
                "least": frame["interaction"].min(),
                "mean_size": frame["interaction"].abs().mean(),
                "mean_single": grid.singles.abs().mean().item(),
            }
        )
    tables["summary"] = Table(
        frame=pd.DataFrame(rows), caption="Interactions, $l(\\{i, j\\}) - l(\\{i\\}) - l(\\{j\\})$."
    )
    return Report(tables=tables, figures=drawn)


# ---- variable binding -----------------------------------------------------------------------


def _plan_binding(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    apart = {"split": "test"} if dataset == "vbd" else {}
    n = model.count("head-outputs+mlp-blocks")
    sizes = [size for size in _SIZES if n is None or size <= n]
    return [
        trace_job(
            setting,
            model,
            dataset,
            "head-outputs+mlp-blocks",
            method,
            sizes,
            data_options={"desideratum": "both"},
            accuracy_on={
                what: data_options(setting, dataset, {"desideratum": what, **apart})
                for what in ("value", "operation")
            },
        )
        for method in setting.methods or ["pgb-ct"]
    ]


def _report_binding(setting: Setting, runs: list[Run]) -> Report:
    import pandas as pd

    rows: list[dict[str, Any]] = []
    drawn: dict[str, Any] = {}
    sets = []
    published = {(entry["model"], entry["budget"]): entry for entry in paper_joint()}
    for run in runs:
        job = run.job
        case = f"{job.model}-{job.dataset}-{job.label}"
        for place, result in enumerate(run.curve):
            for what, values in run.accuracies.items():
                rows.append(
                    {
                        "dataset": job.dataset,
                        "model": job.model,
                        "method": job.label,
                        "budget": result.budget,
                        "n_selected": result.n_selected,
                        "intervention": what,
                        "accuracy": values[place],
                        "without": run.clean_accuracies[what],
                        "objective": result.effect,
                    }
                )
            if result.budget in _SHOWN:
                drawn[f"selected-{case}-{result.budget}"] = figures.heatmap(result)
                known = published.get((job.model, result.budget))
                line: dict[str, Any] = {
                    "model": job.model,
                    "method": job.label,
                    "budget": result.budget,
                    "selected": " ".join(result.labels),
                }
                ours = job.dataset == "vbd" and setting.is_papers(job.model)
                if known is not None and ours and setting.is_whole:
                    line["published"] = " ".join(known["components"])
                    line["in both"] = len({*known["components"]} & {*result.labels})
                sets.append(line)
        mine = (job.dataset, job.model, job.label)
        part = [r for r in rows if (r["dataset"], r["model"], r["method"]) == mine]
        drawn[f"accuracy-{case}"] = figures.lines(
            pd.DataFrame(part),
            x="budget",
            y="accuracy",
            series="intervention",
            titles=("number of components", "accuracy"),
            title=f"{job.dataset}, {job.model}",
            subtitle="answers to the counterfactual values; answers kept under the other operation",
        )
    return Report(
        tables={
            "accuracy": Table(
                frame=pd.DataFrame(rows),
                caption="Accuracy under value and operation interventions.",
            ),
            "selected": Table(frame=pd.DataFrame(sets), caption="Selected heads and blocks."),
        },
        figures=drawn,
        notes=[
            "Value: y is the answer for the counterfactual values. Operation: y is the clean "
            "answer. With the embedded model both are measured on the examples that the sets were "
            "chosen on; vbd has a test split."
        ],
    )


# ---- findings -------------------------------------------------------------------------------


def _plan_findings(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    components = usual_kind(dataset)
    budgets = NEURONS if components == "neurons" else HEADS
    # The same jobs as those of the tables.
    return [trace_job(setting, model, dataset, components, "top-k", budgets)]


def _report_findings(setting: Setting, runs: list[Run]) -> Report:
    import pandas as pd

    rows = []
    for run in whole(runs):
        scores = run.result.scores
        assert scores is not None  # top-k ranks by them.
        rows.append(
            {
                "dataset": run.job.dataset,
                "model": run.job.model,
                "components": run.job.components,
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
    drawn = {}
    for dataset, part in signs.groupby("dataset", sort=False):
        drawn[f"signs-{dataset}"] = figures.bars(
            part,
            x="model",
            y="share",
            series="sign",
            titles=("model", "share of components"),
            title=str(dataset),
            subtitle="components whose single effect is positive or negative",
        )
    drawn["size"] = figures.lines(
        frame,
        x="n_components",
        y="full_effect",
        series="dataset",
        titles=("number of components", "effect of all of them"),
        title="Effect against model size",
        log_x=True,
    )
    table = Table(
        frame=frame,
        caption="Share of components with a positive and a negative single effect.",
    )
    return Report(tables={"findings": table}, figures=drawn)


EXPERIMENTS = (
    Experiment(
        name="fig-nonadditivity",
        about="pairwise maps: heads of three layers on WinoBias, MLP layers on Professions",
        models=("GPT2-small",),
        datasets=("winobias", "professions"),
        plan=_plan_pairs,
        report=_report_pairs,
    ),
    Experiment(
        name="fig-binding",
        about="variable binding: accuracy under both interventions; sets of 10 and 15 components",
        models=("LLaMA-13B", "LLaMA-7B"),
        datasets=("vbd",),
        plan=_plan_binding,
        report=_report_binding,
    ),
    Experiment(
        name="findings",
        about="share of components with positive and negative effect; effect against model size",
        models=_GPT2,
        datasets=("winogender", "winobias"),
        plan=_plan_findings,
        report=_report_findings,
    ),
)
