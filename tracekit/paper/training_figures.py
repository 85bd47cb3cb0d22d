"""Figures about how a mask is learned: penalties, DCM, sparsity over the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit import figures
from tracekit.paper.effect_tables import HEADS
from tracekit.paper.experiment import (
    Experiment,
    Report,
    Setting,
    effects_frame,
    trace_job,
    with_held_out,
)
from tracekit.paper.jobs import Job, ModelAt
from tracekit.paper.latex_table import Table
from tracekit.paper.run_store import Run

_GPT2 = ("DistilGPT2", "GPT2-small", "GPT2-medium", "GPT2-large", "GPT2-xl")
_LAMBDA = 1e-3
_SWEEP = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "pgb-ct": ("pgb-ct", {}),
    "without |m|": ("pgb-ct", {"lambda1": 0.0, "lambda2": _LAMBDA}),
    "without m(1-m)": ("pgb-ct", {"lambda2": 0.0}),
    "dcm": ("dcm", {}),
}
_NOTE = "The paper shows this as a figure; there are no published numbers to set beside."


def _plan_ablation(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    jobs = [
        trace_job(setting, model, dataset, "heads", method, HEADS, variant=variant, options=options)
        for variant, (method, options) in _VARIANTS.items()
    ]
    return with_held_out(setting, jobs)


def _report_ablation(setting: Setting, runs: list[Run]) -> Report:
    frame = effects_frame(setting, runs)
    axis = runs[0].result.metric_axis
    drawn = {
        f"ablation-{model}-{dataset}": figures.lines(
            part,
            x="budget",
            y="effect",
            series="method",
            titles=("number of heads", axis),
            title=f"{dataset}, {model}",
            subtitle="PGB-CT, without either penalty, and DCM",
            reference=(part["full_effect"].iloc[0], "all heads"),
        )
        for (dataset, model), part in frame.groupby(["dataset", "model"], sort=False)
    }
    table = Table(
        frame=frame,
        caption="PGB-CT, without either of its penalties, and DCM.",
        columns=["dataset", "model", "method", "budget", "effect", "held_out", "minutes"],
        best=["effect"],
        groups=["dataset", "model", "budget"],
    )
    return Report(tables={"ablation": table}, figures=drawn, notes=[_NOTE])


def _descent(
    setting: Setting, model: ModelAt, dataset: str, method: str, variant: str, lambda1: float
) -> Job:
    """One descent with a given lambda, to its last epoch."""
    return trace_job(
        setting, model, dataset, "heads", method, (), variant=variant, options={"lambda1": lambda1}
    )


def _plan_dcm(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    return [
        _descent(setting, model, dataset, method, f"{title}, {lambda1:g}", lambda1)
        for method, title, lambda1 in (
            ("pgb-ct", "PGB-CT", 1e-4),
            ("pgb-ct", "PGB-CT", 1e-3),
            ("dcm", "DCM", 1e-5),
        )
    ]


def _report_dcm(setting: Setting, runs: list[Run]) -> Report:
    frame = _epochs(runs)
    return Report(
        tables={"epochs": _epochs_table(frame)},
        figures=_over_epochs(frame, "method", ["model", "dataset"]),
        notes=[_NOTE],
    )


def _plan_mask(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    return [
        _descent(setting, model, dataset, "pgb-ct", f"PGB-CT, {lambda1:g}", lambda1)
        for lambda1 in _SWEEP
    ]


def _report_mask(setting: Setting, runs: list[Run]) -> Report:
    frame = _epochs(runs)
    fixed = frame[frame["lambda1"] == _LAMBDA]
    last = frame.groupby(["dataset", "model", "lambda1"], sort=False, as_index=False).last()
    drawn = _over_epochs(fixed, "model", ["dataset"])
    for dataset, part in last.groupby("dataset", sort=False):
        drawn[f"lambda-{dataset}"] = figures.lines(
            part,
            x="lambda1",
            y="share",
            series="model",
            titles=("lambda", "S/N"),
            title=str(dataset),
            subtitle="share of heads selected after the last epoch",
            log_x=True,
        )
    table = Table(
        frame=last, caption="Share of heads selected and binary violation after the last epoch."
    )
    return Report(
        tables={"epochs": _epochs_table(fixed), "lambda": table}, figures=drawn, notes=[_NOTE]
    )


def _epochs(runs: Sequence[Run]) -> Any:
    """A row per run and epoch."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for run in runs:
        n = run.result.n_components
        rows += [
            {
                "dataset": run.job.dataset,
                "model": run.job.model,
                "method": run.job.label,
                "lambda1": run.job.options["lambda1"],
                "epoch": line["epoch"] + 1,
                "share": line["n_selected"] / n,
                # N/4 at most, when every entry is 1/2.
                "binary_violation": line["binary_violation"] / n,
                "effect": line["effect"],
            }
            for line in (dict[str, Any](record) for record in run.result.history)
        ]
    return pd.DataFrame(rows)


def _epochs_table(frame: Any) -> Table:
    return Table(
        frame=frame,
        caption="Share of heads selected and binary violation, $m^T(1 - m) / N$, over epochs.",
        brief=False,
    )


def _over_epochs(frame: Any, series: str, apart: list[str]) -> dict[str, Any]:
    """Share selected and binary violation, a figure of each for every case."""
    drawn = {}
    for keys, part in frame.groupby(apart, sort=False):
        case = "-".join(map(str, keys))
        for column, title in (("share", "S/N"), ("binary_violation", "m(1 - m), mean over heads")):
            drawn[f"{column.replace('_', '-')}-{case}"] = figures.lines(
                part,
                x="epoch",
                y=column,
                series=series,
                titles=("epoch", title),
                title=", ".join(map(str, reversed(keys))),
            )
    return drawn


EXPERIMENTS = (
    Experiment(
        name="fig-ablation",
        about="PGB-CT, without either penalty, and DCM: WinoGender",
        models=("GPT2-small",),
        datasets=("winogender",),
        plan=_plan_ablation,
        report=_report_ablation,
    ),
    Experiment(
        name="fig-dcm",
        about="S/N and binary violation over epochs, PGB-CT against DCM: WinoGender",
        models=("GPT2-small",),
        datasets=("winogender",),
        plan=_plan_dcm,
        report=_report_dcm,
    ),
    Experiment(
        name="fig-mask",
        about="S/N and binary violation over epochs and lambda, GPT-2 sizes: WinoGender",
        models=_GPT2,
        datasets=("winogender",),
        plan=_plan_mask,
        report=_report_mask,
    ),
)
