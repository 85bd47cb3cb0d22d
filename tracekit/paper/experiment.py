"""What an experiment is: jobs to run, and a report of what came of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracekit.checks.architectures import PAPER_MODELS
from tracekit.data.registry import describe
from tracekit.paper.jobs import DEMO_DATASETS, Job, ModelAt
from tracekit.paper.latex_table import Table
from tracekit.paper.published import paper_effects
from tracekit.paper.run_store import Run

_HELD_OUT = 0.2
_DEMO_DRAWS = 100
_EPOCHS = {"professions": 30}
"""Of PGB-CT, where they are not 15."""
_RATIO = {"counterfact", "known-facts", "demo-facts"}
"""Data sets whose published numbers are ratios of probabilities."""
_AS_PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "counterfact": {"seed": None, "leading_space": False},
    "vbd": {"form": "code"},
}
"""Options under which a data set is the one that the published code reads."""
_FEWEST = 5
"""Examples of which a fifth can be held out."""
_PUBLISHED_EXAMPLES = {"professions": 2873}
NOT_PUBLISHED = (
    "No published value is about this model and data: this is the paper's experiment, not a "
    "reproduction of its numbers."
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What was asked for."""

    models: Sequence[ModelAt] = ()
    """None: those of each experiment."""
    datasets: Sequence[str] = ()
    """None: those of each experiment."""
    methods: Sequence[str] = ()
    """None: those of each experiment."""
    seed: int = 0
    limit: int | None = None
    """Only the first examples of each data set."""
    draws: int | None = None
    """Random sets per budget. None: 1000, 100 with the embedded model."""
    held_out: bool = True
    """Whether methods are also run without a fifth of the examples, and measured on those."""
    dtype: str = "float32"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the data sets; each gets those that it has."""

    def is_papers(self, model: str) -> bool:
        """Whether a model, by its name in tables, is the paper's, or is said to be."""
        if not self.models:
            return model in PAPER_MODELS
        return any(one.title == model and one.paper is not None for one in self.models)

    @property
    def is_whole(self) -> bool:
        """Whether the data are the paper's, as far as this setting goes."""
        return self.limit is None and not self.data_options


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """What an experiment shows."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Plotly figures."""
    notes: Sequence[str] = ()
    """What a reader must know, above all where this is no reproduction."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    about: str
    models: Sequence[str]
    """Titles of the paper's models."""
    datasets: Sequence[str]
    plan: Callable[[Setting, ModelAt, str], list[Job]]
    """Jobs for a model and a data set."""
    report: Callable[[Setting, list[Run]], Report]

    def chosen_models(self, setting: Setting) -> list[ModelAt]:
        """Those asked for, else the paper's."""
        return list(setting.models) or [ModelAt.parse(title) for title in self.models]

    def chosen_datasets(self, setting: Setting, model: ModelAt) -> list[str]:
        """Those asked for, else the paper's; for the embedded model what stands in for them."""
        if setting.datasets:
            return list(setting.datasets)
        if model.is_demo:
            return list(dict.fromkeys(DEMO_DATASETS[name] for name in self.datasets))
        return list(self.datasets)

    def jobs(self, setting: Setting) -> list[Job]:
        """All jobs."""
        return [
            job
            for model in self.chosen_models(setting)
            for dataset in self.chosen_datasets(setting, model)
            for job in self.plan(setting, model, dataset)
        ]


def trace_job(
    setting: Setting,
    model: ModelAt,
    dataset: str,
    components: str,
    method: str,
    budgets: Sequence[int | float],
    **changes: Any,
) -> Job:
    """A search with the paper's options.

    PGB-CT runs as in the paper, without refinement; on facts the metric is the ratio of
    probabilities, which the published numbers are of.
    """
    options: dict[str, Any] = {}
    if method == "pgb-ct":
        options["refine"] = False
    if method in ("pgb-ct", "dcm") and dataset in _EPOCHS:
        options["epochs"] = _EPOCHS[dataset]
    if method == "random":
        default = _DEMO_DRAWS if model.is_demo else 1000
        options["draws"] = default if setting.draws is None else setting.draws
    usual = describe(dataset)
    return Job(
        **{
            "model": model.title,
            "dtype": setting.dtype,
            "dataset": dataset,
            "data_options": data_options(setting, dataset, changes.pop("data_options", {})),
            "components": components,
            "metric": "probability-ratio" if dataset in _RATIO else usual.metric,
            "positions": usual.positions,
            "method": method,
            "options": {**options, **changes.pop("options", {})},
            "budgets": tuple(budgets),
            "limit": setting.limit,
            "seed": setting.seed,
            **changes,
        }
    )


def data_options(setting: Setting, dataset: str, further: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a data set: as published, an experiment's own, and those asked for."""
    known = describe(dataset).options
    asked = {name: value for name, value in setting.data_options.items() if name in known}
    return {**_AS_PUBLISHED.get(dataset, {}), **further, **asked}


def usual_kind(dataset: str) -> str:
    """`neurons` for data sets that are usually traced with them, else `heads`."""
    return "neurons" if describe(dataset).components == "neurons" else "heads"


def with_held_out(setting: Setting, jobs: Sequence[Job]) -> list[Job]:
    """The jobs, and if that is wanted the same with a fifth of the examples held out."""
    wanted = setting.held_out and (setting.limit is None or setting.limit >= _FEWEST)
    return [*jobs, *(job.outside(_HELD_OUT) for job in jobs if wanted)]


def whole(runs: Sequence[Run]) -> list[Run]:
    """The runs on all examples."""
    return [run for run in runs if run.job.held_out is None]


def effects_frame(setting: Setting, runs: Sequence[Run], table: str | None = None) -> Any:
    """A pandas DataFrame with a row per model, data set, method and budget.

    Args:
        setting: Says which models are the paper's.
        runs: Searches, with and without held-out examples.
        table: Kind of the paper's table to set published effects beside.
    """
    import pandas as pd

    outside = {
        (run.job.model, run.job.dataset, run.job.label): run
        for run in runs
        if run.job.held_out is not None
    }
    rows = []
    for run in whole(runs):
        job = run.job
        held = outside.get((job.model, job.dataset, job.label))
        for place, result in enumerate(run.curve):
            other = held.curve[place] if held is not None else None
            interval = other.held_out_interval if other is not None else None
            share = job.budgets[place] if job.budgets else float("nan")
            rows.append(
                {
                    "dataset": job.dataset,
                    "model": job.model,
                    "method": job.label,
                    "share": float(share) if share < 1 else share / result.n_components,
                    "budget": result.budget,
                    "n_selected": result.n_selected,
                    "n_components": result.n_components,
                    "effect": result.effect,
                    "low": result.interval[0],
                    "high": result.interval[1],
                    "full_effect": result.full_effect,
                    "forward": result.cost.forward,
                    "backward": result.cost.backward,
                    "minutes": result.seconds / 60,
                    "n_examples": len(result.per_example),
                    "chosen_without": other.effect if other is not None else None,
                    "held_out": other.held_out_effect if other is not None else None,
                    "held_out_low": interval[0] if interval else None,
                    "held_out_high": interval[1] if interval else None,
                }
            )
    frame = pd.DataFrame(rows)
    return frame if table is None else _beside_published(setting, frame, table)


def _beside_published(setting: Setting, frame: Any, table: str) -> Any:
    """The same with columns `published`, `difference` and `published_minutes`.

    Only where the model is the paper's and no example was left out on purpose.
    """
    published = paper_effects()
    published = published[published["table"] == table].drop(columns="table")
    published = published.rename(columns={"effect": "published", "minutes": "published_minutes"})
    same = published["model"].map(setting.is_papers) & setting.is_whole
    frame = frame.assign(share=frame["share"].round(6))
    keys = ["dataset", "model", "method", "share"]
    merged = frame.merge(published[same], on=keys, how="left")
    return merged.assign(difference=merged["effect"] - merged["published"])


def notes_on_sameness(setting: Setting, frame: Any) -> list[str]:
    """Why the numbers are, or are not, a reproduction."""
    found = []
    if setting.limit is not None:
        found.append(f"Only the first {setting.limit} examples of each data set were used.")
    if "published" not in frame or not frame["published"].notna().any():
        return [NOT_PUBLISHED, *found]
    beside = frame[frame["published"].notna()]
    for dataset, wanted in _PUBLISHED_EXAMPLES.items():
        counts = beside[beside["dataset"] == dataset]["n_examples"].unique()
        if len(counts) and counts[0] != wanted:
            found.append(
                f"The published numbers on {dataset} are of {wanted} examples, these of "
                f"{counts[0]}."
            )
    if (beside["dataset"] == "counterfact").any():
        found.append(
            "CounterFact as in the published code: the first 200 records, targets without their "
            "leading space. The noise of the published numbers is not known; it is drawn anew."
        )
    if (beside["method"] == "random").any() and setting.draws is not None:
        found.append(f"Random is the best of {setting.draws} sets of each size.")
    if setting.dtype != "float32":
        found.append(f"The model ran in {setting.dtype}.")
    return found
