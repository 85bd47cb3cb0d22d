"""An experiment: the jobs of a table or figure of the paper, and the report made of their runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from paper.jobs import DEMO_DATASETS, ModelAt, PaperJob
from paper.models import GPT2_FAMILY, PAPER_MODELS
from paper.published import paper_effects
from tracekit import Setup, TraceResult, figures
from tracekit.data import describe
from tracekit.results import Table
from tracekit.runs import Job, Run
from tracekit.search import METHODS, make

_HELD_OUT = 0.2
_DEMO_DRAWS = 100
_EPOCHS = {"professions": 30}
"""Data set -> epochs of PGB-CT and DCM, where they are not 15."""
_RATIO = {"counterfact", "known-facts", "demo-facts"}
"""Data sets whose published numbers are ratios of probabilities."""
_NOISE_STD = 3 * 0.2015
"""Three times the standard deviation of GPT-2's embeddings, which the code has for every model."""
_AS_PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "counterfact": {
        "seed": None,
        "noise_seed": 42,
        "noise_std": _NOISE_STD,
        "leading_space": False,
    },
    "known-facts": {"noise_std": _NOISE_STD},
    "variable-binding": {"wording": "code"},
}
"""Data set -> options that make it the one that the published code reads."""
_KNOWN = 0.1
"""Probability of its attribute from which on a model that is none of the paper's knows a fact."""
_FEWEST = 5
"""Examples needed to hold a fifth out."""
_PUBLISHED_EXAMPLES = {"professions": 2873}
"""Data set -> number of examples of the published numbers, where the published files have fewer."""
NOT_PUBLISHED = (
    "No published value is about this model and data: this is the paper's experiment, not a "
    "reproduction of its numbers."
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The options of a reproduction."""

    models: Sequence[ModelAt] = ()
    """Empty: those of each experiment."""
    datasets: Sequence[str] = ()
    """Empty: those of each experiment."""
    methods: Sequence[str] = ()
    """Empty: those of each experiment."""
    seed: int = 0
    """Seed of every search and of the held-out examples."""
    limit: int | None = None
    """Only the first so many examples of each data set. None: all."""
    draws: int | None = None
    """Random sets per budget. None: 1000, 100 with the embedded model."""
    held_out: bool = True
    """Whether methods also run without a fifth of the examples, and their sets are measured on
    that fifth."""
    dtype: str = "float32"
    """As in `load_model`."""
    data_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the data sets; each gets those that it has."""
    method_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the methods; each gets those that it has. An experiment's own count more."""

    def is_paper_model(self, title: str) -> bool:
        """Whether a model, by its name in tables, is the paper's or is claimed to be."""
        if not self.models:
            return title in PAPER_MODELS
        return any(model.title == title and model.paper is not None for model in self.models)

    @property
    def keeps_paper_data(self) -> bool:
        """Whether it leaves the paper's data as they are: all examples, no other options."""
        return self.limit is None and not self.data_options


@dataclass(frozen=True, kw_only=True, eq=False)
class PaperTable:
    """A pandas DataFrame, written as CSV and as a LaTeX table."""

    frame: Any
    """The CSV file holds all of it."""
    caption: str
    """In LaTeX."""
    columns: Sequence[str] = ()
    """Columns that are shown. Empty: all."""
    best: Sequence[str] = ()
    """Columns in which, within each group, the largest value is bold and the second underlined."""
    groups: Sequence[str] = ()
    """Rows that agree in these columns are a group. Empty: all rows are one group."""
    brief: bool = True
    """Whether it is short enough for a terminal."""

    @property
    def shown(self) -> Table:
        """The columns that are shown."""
        return Table.of_rows(self.frame[list(self.columns)] if self.columns else self.frame)

    def latex(self) -> str:
        """The LaTeX table, for a document that loads booktabs."""
        table = self.shown.aligned()
        for title in self.best:
            table = table.ranked(title, self.groups, second=True)
        return table.latex(self.caption)

    def save(self, folder: Path, name: str) -> list[Path]:
        """Writes `name.csv` and `name.tex`; returns both paths."""
        paths = [folder / f"{name}.csv", folder / f"{name}.tex"]
        folder.mkdir(parents=True, exist_ok=True)
        self.frame.to_csv(paths[0], index=False, lineterminator="\n")
        paths[1].write_text(self.latex(), encoding="utf-8")
        return paths


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """The tables, figures and notes of an experiment."""

    tables: Mapping[str, PaperTable] = field(default_factory=dict)
    """By name."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Plotly figures, by name."""
    notes: Sequence[str] = ()
    """Sentences for readers, above all where the numbers are no reproduction."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    about: str
    """One line for lists."""
    models: Sequence[str] = ("GPT2-small",)
    """Titles of the paper's models."""
    datasets: Sequence[str]
    """The paper's data sets."""
    plan: Callable[[Setting, ModelAt, str], list[Job]]
    """Jobs for a model and a data set."""
    report: Callable[[Setting, list[Run]], Report]
    """Makes the report from the finished runs, of which there is at least one."""

    def models_for(self, setting: Setting) -> list[ModelAt]:
        """The models of the setting, else the paper's."""
        return list(setting.models) or [ModelAt.parse(title) for title in self.models]

    def datasets_for(self, setting: Setting, model: ModelAt) -> list[str]:
        """The data sets of the setting, else the paper's.

        With the embedded model, those of `DEMO_DATASETS` take the place of the paper's.
        """
        if setting.datasets:
            return list(setting.datasets)
        if model.is_demo:
            return list(dict.fromkeys(DEMO_DATASETS[name] for name in self.datasets))
        return list(self.datasets)

    def jobs(self, setting: Setting) -> list[Job]:
        """The jobs for all models and data sets."""
        return [
            job
            for model in self.models_for(setting)
            for dataset in self.datasets_for(setting, model)
            for job in self.plan(setting, model, dataset)
        ]


def declared(made: Mapping[str, tuple[Any, Any]]) -> tuple[Experiment, ...]:
    """Experiments by name, from their plans and reports and the entries of `experiments.json`."""
    entries = json.loads(Path(__file__).with_name("experiments.json").read_text(encoding="utf-8"))
    return tuple(
        Experiment(name=name, plan=plan, report=report, **entries[name])
        for name, (plan, report) in made.items()
    )


def trace_job(
    setting: Setting,
    model: ModelAt,
    dataset: str,
    components: str,
    method: str,
    budgets: Sequence[int | float],
    **changes: Any,
) -> Job:
    """A search with the paper's options; `components` are kinds joined by `+`.

    On facts the metric is the ratio of probabilities, as in the published numbers, and with another
    model than the paper's the drop of the probability, which is bounded. `changes` are
    fields of `Job` that differ; `options` and `data_options` among them are added to the paper's.
    """
    options: dict[str, Any] = {}
    if method in ("pgb-ct", "dcm") and dataset in _EPOCHS:
        options["epochs"] = _EPOCHS[dataset]
    if method == "random":
        default = _DEMO_DRAWS if model.is_demo else 1000
        options["draws"] = default if setting.draws is None else setting.draws
    # The setting's options of methods, of those that this one has, as values of their types.
    own = {each.name for each in fields(METHODS[method])}  # type: ignore[arg-type]
    given = {name: value for name, value in setting.method_options.items() if name in own}
    options |= {name: getattr(make(method, given), name) for name in given}
    usual = describe(dataset)
    # Of another model nothing is published, and its ratios may be too large for a float32.
    is_ratio = dataset in _RATIO and (model.paper is not None or model.is_demo)
    return PaperJob(
        **{
            "model": model.title,
            "dtype": setting.dtype,
            "dataset": dataset,
            "data_options": data_options(setting, model, dataset, changes.pop("data_options", {})),
            "setup": Setup(
                components=components,
                metric="probability-ratio" if is_ratio else usual.metric,
                positions=usual.positions,  # type: ignore[arg-type]
            ),
            "method": method,
            "options": {**options, **changes.pop("options", {})},
            "budgets": tuple(budgets),
            "limit": setting.limit,
            "seed": setting.seed,
            **changes,
        }
    )


def data_options(
    setting: Setting, model: ModelAt, dataset: str, further: Mapping[str, Any]
) -> dict[str, Any]:
    """Options of a data set: the published code's, the experiment's (`further`), the setting's.

    Options of the setting that the data set lacks are left out. The paper's Llamas read a
    beginning-of-sequence token first. With another model than the paper's, examples that its
    tokenizer makes unequal and facts that it does not know are left out, noise is that of its own
    embeddings, and targets have their leading space.
    """
    allowed = describe(dataset).options
    requested = {name: value for name, value in setting.data_options.items() if name in allowed}
    published = dict(_AS_PUBLISHED.get(dataset, {}))
    if model.paper is not None and model.paper.prepends_bos and "prepend_bos" in allowed:
        published["prepend_bos"] = True
    if model.paper is None and not model.is_demo:
        for name in ("noise_std", "leading_space"):
            published.pop(name, None)
        published["on_mismatch"] = "skip"
        if "min_probability" in allowed:
            published["min_probability"] = _KNOWN
    return {**published, **further, **requested}


def usual_kind(dataset: str) -> str:
    """`mlp-outputs` for data sets that are usually traced with them, else `attention-patterns`."""
    is_usual = describe(dataset).components == "mlp-outputs"
    return "mlp-outputs" if is_usual else "attention-patterns"


def with_held_out(setting: Setting, jobs: Sequence[Job]) -> list[Job]:
    """The jobs, and if the setting asks for it the same with a fifth of the examples held out."""
    if not (setting.held_out and (setting.limit is None or setting.limit >= _FEWEST)):
        return list(jobs)
    return [*jobs, *(replace(job, held_out=_HELD_OUT) for job in jobs)]


def on_all_examples(runs: Sequence[Run]) -> list[Run]:
    """The runs that held no example out."""
    return [run for run in runs if run.job.held_out is None]


def charts(
    draw: Callable[[figures.Chart], Any],
    frame: Any,
    by: list[str],
    name: str,
    title: str,
    **chart: Any,
) -> dict[str, Any]:
    """A figure, by its name, of the rows that agree in some columns.

    Args:
        draw: Draws a chart, e.g. `figures.lines`.
        frame: All rows, as a pandas DataFrame.
        by: The columns.
        name: Of each figure, with values of the columns in braces: `layers-{model}`.
        title: Of each figure, likewise.
        **chart: Other fields of a chart.
    """
    drawn = {}
    for values, part in frame.groupby(by, sort=False):
        case = dict(zip(by, values, strict=True))
        drawn[name.format(**case)] = draw(
            figures.Chart(frame=part, title=title.format(**case), **chart)
        )
    return drawn


def case_of(run: Run) -> dict[str, Any]:
    """What a row of a table is about."""
    return {"dataset": run.job.dataset, "model": run.job.model, "method": run.job.label}


def effects_frame(setting: Setting, runs: Sequence[Run], table: str | None = None) -> Any:
    """A pandas DataFrame with a row per model, data set, method and budget.

    The runs are searches, with and without held-out examples. Beside their effects stand those of a
    table of the paper: `heads`, `neurons` or `facts`.
    """
    held_out_runs = [run for run in runs if run.job.held_out is not None]
    rows = []
    for run in on_all_examples(runs):
        job, case = run.job, case_of(run)
        counterpart = next((each for each in held_out_runs if case_of(each) == case), None)
        for rank, result in enumerate(run.curve):
            share = job.budgets[rank] if job.budgets else float("nan")
            rows.append(
                {
                    **case_of(run),
                    "share": float(share) if share < 1 else share / result.n_components,
                    "budget": result.budget,
                    "n_selected": result.n_selected,
                    "n_components": result.n_components,
                    "effect": result.effect,
                    "low": result.spread[0],
                    "high": result.spread[1],
                    "full_effect": result.full_effect,
                    "forward": result.cost.forward,
                    "backward": result.cost.backward,
                    "minutes": result.run.seconds / 60,
                    "n_examples": len(result.per_example),
                    **_held_out_columns(None if counterpart is None else counterpart.curve[rank]),
                }
            )
    frame = pd.DataFrame(rows)
    return frame if table is None else _with_published(setting, frame, table)


def _held_out_columns(result: TraceResult | None) -> dict[str, float | None]:
    """Effects of a set that was selected without the held-out examples, if there is one."""
    names = ("chosen_without", "held_out", "held_out_low", "held_out_high")
    if result is None:
        return dict.fromkeys(names)
    ends = result.held_out_interval or (None, None)
    return dict(zip(names, (result.effect, result.held_out_effect, *ends), strict=True))


def _with_published(setting: Setting, frame: Any, table: str) -> Any:
    """Adds columns `published`, `difference` and `published_minutes`.

    They have values where model and data are the paper's.
    """
    published = paper_effects()
    published = published[published["table"] == table].drop(columns="table")
    published = published.rename(columns={"effect": "published", "minutes": "published_minutes"})
    comparable = published["model"].map(setting.is_paper_model) & setting.keeps_paper_data
    frame = frame.assign(share=frame["share"].round(6))
    keys = ["dataset", "model", "method", "share"]
    merged = frame.merge(published[comparable], on=keys, how="left")
    return merged.assign(difference=merged["effect"] - merged["published"])


def notes_on_size(setting: Setting) -> list[str]:
    """Sentences on what was made smaller or varied, whatever the experiment."""
    notes = []
    if setting.limit is not None:
        notes.append(f"Only the first {setting.limit} examples of each data set were used.")
    if setting.method_options:
        given = ", ".join(f"{name}={value}" for name, value in setting.method_options.items())
        notes.append(f"Methods that have these options ran with {given}.")
    return notes


def notes_on_sameness(setting: Setting, frame: Any, *, has_heads: bool = False) -> list[str]:
    """Sentences on why the numbers are, or are not, a reproduction."""
    notes = []
    if "published" not in frame or not frame["published"].notna().any():
        return [NOT_PUBLISHED]
    compared = frame[frame["published"].notna()]
    for dataset, n_published in _PUBLISHED_EXAMPLES.items():
        counts = compared[compared["dataset"] == dataset]["n_examples"].unique()
        if len(counts) and counts[0] != n_published:
            notes.append(
                f"The published numbers on {dataset} are of {n_published} examples, these of "
                f"{counts[0]}."
            )
    if (compared["dataset"] == "counterfact").any():
        notes.append(
            "CounterFact as in the published code: the first 200 records, targets without their "
            "leading space, noise of seed 42 drawn prompt by prompt in order."
        )
    paper_models = [PAPER_MODELS[title] for title in compared["model"].unique()]
    if any(model.prepends_bos for model in paper_models):
        notes.append(
            "Prompts of the Llamas begin with their beginning-of-sequence token, as in the "
            "published scripts."
        )
    if has_heads and any(model.title not in GPT2_FAMILY for model in paper_models):
        notes.append(
            "The published scripts for heads of Llama and Qwen leave padding tokens between a "
            "prompt and its continuation, so these published numbers depend on which prompts "
            "shared a batch. Ours do not, and cannot equal them."
        )
    if (compared["method"] == "random").any() and setting.draws is not None:
        notes.append(f"Random is the best of {setting.draws} sets of each size.")
    if setting.dtype != "float32":
        notes.append(f"The model ran in {setting.dtype}.")
    return notes
