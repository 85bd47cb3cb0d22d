"""Experiments on how a mask is learned: penalties, DCM, sparsity over the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd

from paper.effect_tables import HEADS
from paper.experiment import (
    PaperTable,
    Report,
    Setting,
    case_of,
    charts,
    declared,
    effects_frame,
    trace_job,
    with_held_out,
)
from paper.jobs import ModelAt
from tracekit import figures
from tracekit.runs import Job, Run
from tracekit.search import title_of

_LAMBDA = 1e-3
"""Of the ablation and of the curves over epochs."""
_SWEEP = [("pgb-ct", x) for x in (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)]
"""Methods and values of lambda1 in `fig-mask`."""
_COMPARED = [("pgb-ct", 1e-4), ("pgb-ct", 1e-3), ("dcm", 1e-5)]
"""Those in `fig-dcm`."""
_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "pgb-ct": ("pgb-ct", {}),
    "without |m|": ("pgb-ct", {"lambda1": 0.0, "lambda2": _LAMBDA}),
    "without m(1-m)": ("pgb-ct", {"lambda2": 0.0}),
    "dcm": ("dcm", {}),
}
"""Variants of the ablation: name -> method and options."""
_NOTE = "The paper shows this as a figure; there are no published numbers to set beside."


def _plan_ablation(setting: Setting, model: ModelAt, dataset: str) -> list[Job]:
    search = partial(trace_job, setting, model, dataset, "attention-patterns")
    jobs = [
        search(method, HEADS, variant=variant, options=options)
        for variant, (method, options) in _VARIANTS.items()
    ]
    return with_held_out(setting, jobs)


def _report_ablation(setting: Setting, runs: list[Run]) -> Report:
    frame = effects_frame(setting, runs)
    figures_by_name = charts(
        lambda chart: figures.lines(
            chart, reference=(chart.frame["full_effect"].iloc[0], "all heads")
        ),
        frame,
        ["dataset", "model"],
        "ablation-{model}-{dataset}",
        "{dataset}, {model}",
        x="budget",
        y="effect",
        series="method",
        title_of=title_of,
        axis_titles=("number of heads", runs[0].result.axis_label),
        subtitle="PGB-CT, without either penalty, and DCM",
    )
    table = PaperTable(
        frame=frame,
        caption="PGB-CT, without either of its penalties, and DCM.",
        columns=["dataset", "model", "method", "budget", "effect", "held_out", "minutes"],
        best=["effect"],
        groups=["dataset", "model", "budget"],
    )
    return Report(tables={"ablation": table}, figures=figures_by_name, notes=[_NOTE])


def _plan_masks(
    masks: Sequence[tuple[str, float]], setting: Setting, model: ModelAt, dataset: str
) -> list[Job]:
    """Trains masks, each by a method with a lambda1, to their last epoch."""
    train = partial(trace_job, setting, model, dataset, "attention-patterns")
    return [
        train(method, (), variant=f"{title_of(method)}, {x:g}", options={"lambda1": x})
        for method, x in masks
    ]


def _report_dcm(setting: Setting, runs: list[Run]) -> Report:
    frame = _epochs(runs)
    return Report(
        tables={"epochs": _epochs_table(frame)},
        figures=_over_epochs(frame, "method", ["model", "dataset"]),
        notes=[_NOTE],
    )


def _report_mask(setting: Setting, runs: list[Run]) -> Report:
    frame = _epochs(runs)
    fixed = frame[frame["lambda1"] == _LAMBDA]
    last = frame.groupby(["dataset", "model", "lambda1"], sort=False, as_index=False).last()
    figures_by_name = _over_epochs(fixed, "model", ["dataset"])
    figures_by_name |= charts(
        partial(figures.lines, log_x=True),
        last,
        ["dataset"],
        "lambda-{dataset}",
        "{dataset}",
        x="lambda1",
        y="share",
        series="model",
        axis_titles=("lambda", "S/N"),
        subtitle="share of heads selected after the last epoch",
    )
    table = PaperTable(
        frame=last, caption="Share of heads selected and binary violation after the last epoch."
    )
    return Report(
        tables={"epochs": _epochs_table(fixed), "lambda": table},
        figures=figures_by_name,
        notes=[_NOTE],
    )


def _epochs(runs: Sequence[Run]) -> Any:
    rows: list[dict[str, Any]] = []
    for run in runs:
        n_components = run.result.n_components
        rows += [
            {
                **case_of(run),
                "lambda1": run.job.options["lambda1"],
                "epoch": record["epoch"] + 1,
                "share": record["n_selected"] / n_components,
                # 1/4 at most, when every entry of the mask is 1/2.
                "binary_violation": record["binary_violation"] / n_components,
                "effect": record["effect"],
            }
            for record in (dict[str, Any](line) for line in run.result.history)
        ]
    return pd.DataFrame(rows)


def _epochs_table(frame: Any) -> PaperTable:
    return PaperTable(
        frame=frame,
        caption="Share of heads selected and binary violation, $m^T(1 - m) / N$, over epochs.",
        brief=False,
    )


def _over_epochs(frame: Any, series: str, case_columns: list[str]) -> dict[str, Any]:
    """Figures of share selected and binary violation over epochs, by name.

    The frame is that of `_epochs`: `series` names the lines, and each value of the case columns has
    a figure.
    """
    figures_by_name: dict[str, Any] = {}
    case = "-".join(f"{{{column}}}" for column in case_columns)
    title = ", ".join(f"{{{column}}}" for column in reversed(case_columns))
    for column, axis_title in (("share", "S/N"), ("binary_violation", "m(1 - m), mean over heads")):
        figures_by_name |= charts(
            figures.lines,
            frame,
            case_columns,
            f"{column.replace('_', '-')}-{case}",
            title,
            x="epoch",
            y=column,
            series=series,
            title_of=title_of,
            axis_titles=("epoch", axis_title),
        )
    return figures_by_name


EXPERIMENTS = declared(
    {
        "fig-ablation": (_plan_ablation, _report_ablation),
        "fig-dcm": (partial(_plan_masks, _COMPARED), _report_dcm),
        "fig-mask": (partial(_plan_masks, _SWEEP), _report_mask),
    }
)
