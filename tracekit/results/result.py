"""Results of searches: frozen, complete, and saved as JSON and safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from pathlib import Path
from typing import Any, ClassVar

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.arguments import check_arguments
from tracekit._util.deferred import networkx, pd
from tracekit._util.markup import clean_text
from tracekit._util.options import as_path, check_keywords, short_repr
from tracekit._util.versions import __version__
from tracekit.components import Component, ComponentRegistry
from tracekit.components.masks import BinaryMask, Mask, members_of_mask
from tracekit.components.members import ComponentsLike
from tracekit.engine.cost import Cost
from tracekit.engine.setup import Setup
from tracekit.errors import ConfigError
from tracekit.figures.cells import SelectionPanel, draw_panels
from tracekit.figures.style import data_and_model, plain
from tracekit.metrics import Effects
from tracekit.results import circuits
from tracekit.results.certificate import Certificate
from tracekit.results.display import effects_text, model_text, result_html
from tracekit.results.faithfulness import Faithfulness
from tracekit.results.mib import check_registry, write_mib
from tracekit.results.on_examples import OnExamples, examples_text
from tracekit.results.panels import CellColor, has_cells, result_panels, scale_of
from tracekit.results.scores import compare_scores
from tracekit.results.storage import InFolder
from tracekit.search.base import Record, Stop
from tracekit.search.targets import ConstraintEffect

_CITATIONS: dict[str, str] = json.loads(
    Path(__file__).with_name("citations.json").read_text("utf-8")
)
"""BibTeX by what it is of: the software, the paper that it implements, methods and data sets."""
_ALWAYS_CITED = ("tracekit", "multi-component")


@dataclass(frozen=True, kw_only=True)
class TrainingPairs:
    """Pairs that a search drew to train on, none of them searched or held out."""

    n_pairs: int
    fingerprint: str
    """Digest of the fingerprints of all batches, in the order in which they were drawn."""
    code: str | None = None
    """Python that draws them again for a `model`; None if they are of no generated data set."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """How a set was found, and the work that it took."""

    method: str
    """Name of the search."""
    title: str
    """Its name in figures and tables."""
    records_every_size: bool
    """Whether the history holds an effect for each of several sizes."""
    objective: str
    """Quantity that the search maximised over the examples; `mean`: the mean effect."""
    sign: str = "positive"
    """Sign of the effects that the search sought: `positive` or `negative`."""
    config: Mapping[str, Any]
    """Every option of the search."""
    seed: int
    cost: Cost
    """Interventional passes over the data that the run took; budgets of one run share them."""
    seconds: float
    """Wall time of the run."""
    stopped: Stop | None
    """Limit that cut the search short, if one did."""
    faithfulness: float | None = None
    """Level that was asked for on the searched examples, if that was the goal."""
    n_skipped: int = 0
    """Edges ranked as high as the members that were skipped, as they lie on no path with them."""
    held_out_by: Mapping[str, float] | None = None
    """With `objective="auto"`, the mean effect of each search's selection from one half of the
    examples on the other half, by method; part of the choice between them (`search/auto.py`)."""
    training: TrainingPairs | None = None
    """Pairs that were drawn to train on, if there were some."""
    seen_prompts: tuple[str, ...] = ()
    """Digests of prompts, counterfactuals and groups of all pairs that it selected by, trained on
    or measured its constraint on (`tracekit.data.pair.SeenPrompts`)."""
    versions: Mapping[str, str]
    """Versions of Python and of the packages that numbers depend on."""

    def __post_init__(self) -> None:
        if self.sign not in ("positive", "negative"):
            raise ValueError(f"sign is {short_repr(self.sign)}, which is none")
        # They become code in a report.
        if not all(map(str.isidentifier, self.config)):
            raise ValueError(f"config names {short_repr(list(self.config))}, which are no options")

    @property
    def unusual(self) -> tuple[str, ...]:
        """The objective if not the mean, the sign if negative, and that Ctrl-C ended the search."""
        ended = "interrupted" if self.stopped == "interrupted" else "finished"
        sought = {"mean": self.objective, "positive": self.sign, "finished": ended}
        return tuple(value for usual, value in sought.items() if value != usual)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Which model it was, beside its name."""

    weights_digest: str
    """Digest of the weights (`tracekit.models.weights_digest`)."""
    revision: str | None
    """Commit of the hub's repository, if it is from there."""
    foreign_hooks: tuple[str, ...]
    """Hook points and modules with hooks that somebody had left on the model."""
    sizes: Mapping[str, int | bool]
    """Layers, heads and width, for files of the MIB benchmark."""
    path: str = ""
    """What `load_model` was given; of a directory its absolute path."""
    dtype: str = ""
    """Type of its weights, as `load_model` takes it."""
    explained_variance: Mapping[str, float] = field(default_factory=dict)
    """By kind of features and layer, the share of the variance of activations they rebuild."""


@check_arguments
@dataclass(frozen=True, kw_only=True, eq=False)
class TraceResult(InFolder):
    """One set of components, how it was found, and its effect."""

    FILE: ClassVar[str] = "result.json"

    setup: Setup
    """The components and their values, with metric and source by their names."""
    run: RunFacts
    """How the set was found."""
    registry: ComponentRegistry
    """The components that mask entries stand for."""
    binary_mask: BinaryMask
    """The selection: True takes the counterfactual value."""
    soft_mask: Mask
    """The relaxed mask it was cut from or refined from, in [0, 1]; without one, the selection."""
    component_scores: Mask | None = None
    """Scores by which the components were ranked (for top-k, their single effects)."""
    searched: OnExamples
    """Effects of the selection, measured with the binary mask, on the searched examples."""
    held_out: OnExamples | None = None
    """Effects of the selection on the examples that were held out, if there are any."""
    extra_metrics: tuple[str, ...] = ()
    """Further metrics by which the selection was measured."""
    extra_per_example: Float[Tensor, "metric example"] | None = None
    """Effect on each of the searched examples by each of them, times its weight."""
    constraint: ConstraintEffect | None = None
    """The metric that the search had to leave within bounds, if there was one."""
    budget: int | None = None
    """Largest number of components allowed, if there was a limit."""
    target_effect: float | None = None
    """Effect asked for, if that was the goal."""
    history: tuple[Record, ...] = ()
    """Records of the search on its way: one per epoch, step or budget."""
    axis_label: str = "effect"
    """Axis title for the effect, with its unit."""
    model: str
    model_facts: ModelFacts
    """Weights and sizes of the model."""
    noise_floor: float = 0.0
    """Effect that rounding alone can make; 0 in float32."""

    @cached_property
    def certificates(self) -> list[Certificate]:
        """What `tracer.certify` said of it, on this model; the last one is saved with it."""
        return []

    def save(self, folder: str | Path) -> Path:
        """Writes it to a folder, which is made if need be; returns the folder."""
        super().save(folder)
        for certificate in self.certificates[-1:]:
            certificate.save(Path(folder) / Certificate.FILE)
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> TraceResult:
        """Reads what `save` wrote.

        Raises:
            ResultNotFoundError: The folder holds no result.
            ResultFormatError: A file was damaged or changed, or is of another run or version.
        """
        result = super().load(folder)
        file = Path(folder) / Certificate.FILE
        certificates = [Certificate.load(file)] if file.exists() else []
        result.certificates.extend(each for each in certificates if each.is_of(result))
        return result

    def cite(self) -> str:
        """BibTeX of tracekit and its paper, and of the method and the data set if they have one."""
        origin = self.searched.origin
        names = (*_ALWAYS_CITED, self.method, "" if origin is None else origin.dataset)
        entries = dict.fromkeys(_CITATIONS[name] for name in names if name in _CITATIONS)
        return "\n\n".join(entries).replace("{version}", __version__)

    @property
    def method(self) -> str:
        """Name of the search."""
        return self.run.method

    @property
    def config(self) -> Mapping[str, Any]:
        """Every option of the search."""
        return self.run.config

    @property
    def seed(self) -> int:
        """Seed of the search."""
        return self.run.seed

    @property
    def cost(self) -> Cost:
        """Interventional passes over the data that the run took; budgets of one run share them."""
        return self.run.cost

    @property
    def stopped(self) -> Stop | None:
        """Limit that cut the search short, if one did."""
        return self.run.stopped

    @property
    def title(self) -> str:
        """Name of the method in figures and tables, with what is unusual in what it sought."""
        unusual = ", ".join(self.run.unusual)
        return f"{self.run.title} ({unusual})" if unusual else self.run.title

    @property
    def series(self) -> str:
        """Name of a line in a figure: the method, and what is unusual in what it sought."""
        return ", ".join((self.method, *self.run.unusual))

    @property
    def components(self) -> list[Component]:
        """The selected components, in flat order."""
        return [self.registry[i] for i in members_of_mask(self.binary_mask)]

    @property
    def labels(self) -> list[str]:
        """Their printed names."""
        return [self.registry.label(i) for i in members_of_mask(self.binary_mask)]

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return self.searched.dataset

    @property
    def dataset_fingerprint(self) -> str:
        """Fingerprint of the searched examples."""
        return self.searched.fingerprint

    @property
    def per_example(self) -> Effects:
        """Effect on each of the searched examples, times its weight."""
        return self.searched.effects

    @property
    def effect(self) -> float:
        """Mean effect of the selection on the searched examples."""
        return self.searched.mean

    @property
    def full_effect(self) -> float:
        """Mean effect of all components together on these."""
        return self.searched.full_mean

    @property
    def share_of_full_effect(self) -> float:
        """Effect of the selection over the full effect: may exceed 1, NaN where that is 0."""
        return self.searched.share

    @property
    def spread(self) -> tuple[float, float]:
        """How far the effect moves when the examples are resampled (95 %, studentised bootstrap).

        No confidence interval: the set was selected for its effect on these examples. On others
        it has less; `held_out_interval`, and the statistics of a front, say how much. NaN with
        fewer than three independent examples.
        """
        return self.searched.interval

    @property
    def held_out_effect(self) -> float | None:
        """Mean effect of the selection on examples that had no part in choosing it."""
        return None if self.held_out is None else self.held_out.mean

    @property
    def held_out_interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of it, by a studentised bootstrap over those examples.

        None with fewer than three independent ones.
        """
        if self.held_out is None or isnan(self.held_out.interval[0]):
            return None
        return self.held_out.interval

    @property
    def ranked_by(self) -> Mask:
        """Scores that the components were ranked by, or else the soft mask.

        Raises:
            ConfigError: There is neither, but only the selection.
        """
        if self.component_scores is None and torch.equal(self.soft_mask, self.binary_mask.float()):
            how = f" by {self.run.objective}" if self.run.objective != "mean" else ""
            how = " within bounds" if self.constraint is not None else how
            searched = f", searched{how}," if how else ""
            raise ConfigError(
                f"This result of {self.method}{searched} has no scores of components, only a "
                "selection, which ranks nothing. Use a result of top-k, attribution, mask-ig or "
                "pgb-ct, without constraint and objective."
            )
        return self._scores

    @property
    def extra_effects(self) -> dict[str, float]:
        """Mean effect of the selection by each of the further metrics."""
        if self.extra_per_example is None:
            return {}
        return dict(zip(self.extra_metrics, self.extra_per_example.mean(1).tolist(), strict=True))

    @property
    def n_selected(self) -> int:
        """How many components are selected."""
        return int(self.binary_mask.sum())

    @property
    def n_components(self) -> int:
        """How many there are."""
        return len(self.registry)

    def history_frame(self) -> Any:
        """The history as a pandas DataFrame."""
        return pd.DataFrame([dict(record) for record in self.history])

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per component: name, place (and span), masks, score."""
        places = ["kind", "layer", "index", *(["span"] if self.registry.spans else [])]
        return pd.DataFrame(
            {
                "component": [self.registry.label(i) for i in range(self.n_components)],
                **{name: [getattr(each, name) for each in self.registry] for name in places},
                "selected": self.binary_mask.numpy(),
                "soft_mask": self.soft_mask.numpy(),
                "score": None if self.component_scores is None else self.component_scores.numpy(),
            }
        )

    @property
    def model_text(self) -> str:
        """Name of the model, and the type of its weights where that is not float32."""
        return model_text(self.model, self.model_facts.dtype)

    def __repr__(self) -> str:
        names = ", ".join(self.labels[:12]) + (", ..." if self.n_selected > 12 else "")
        skipped = f", {self.run.n_skipped} edges on no path left out" if self.run.n_skipped else ""
        return clean_text(
            f"TraceResult({self.method} on {self.dataset}, {self.model_text}: {self.n_selected} of "
            f"{self.n_components} components{skipped}, {effects_text(self)}; {names})"
            + "".join(f"\n{each.summary}" for each in self.certificates[-1:])
        )

    _repr_html_ = result_html
    compare_scores = compare_scores

    @property
    def circuit_scores(self) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
        """Faithfulness and completeness, each with its interval; None if they were not measured."""
        if (self.held_out or self.searched).complement is None:
            return (None, None, None), (None, None, None)
        scores = self.faithfulness()
        (faithful,), (complete,) = scores.faithfulness_intervals, scores.completeness_intervals
        return (scores.faithfulness[0], *faithful), (scores.completeness[0], *complete)

    def faithfulness(self) -> Faithfulness:
        """Effect, faithfulness and completeness of the selected components, with intervals.

        On the held-out examples, if there are some. Nothing is measured, also of a loaded result.

        Raises:
            NoResultError: The effects of the complement were not measured.
        """
        return self._faithfulness

    @cached_property
    def _faithfulness(self) -> Faithfulness:
        # Tables and warnings ask for it again and again, and intervals take time.
        measured = self.held_out or self.searched
        return measured.faithfulness(
            sizes=[self.n_selected],
            n_components=self.n_components,
            method=self.method,
            data=data_and_model(self.dataset, self.model),
            intervention=self.setup.intervention,
            examples=examples_text(self.dataset_fingerprint, measured.fingerprint, measured.n_text),
        )

    def to_mib(self, path: str | Path) -> Path:
        """Writes the importance of every component as a file of the MIB benchmark.

        That is what the method ranked by: its scores, or else the soft mask.

        Raises:
            DataFormatError: Components that have no counterpart there, such as attention patterns.
            ConfigError: The method ranked nothing.
        """
        check_registry(self.registry)
        path, scores = as_path("path", path), self.ranked_by
        write_mib(path, self, scores)
        return path

    def against(self, circuit: ComponentsLike, *, name: str | None = None) -> circuits.Against:
        """The selection beside a known circuit: precision, recall, hits, misses and extras.

        Args:
            circuit: A published one, `ioi`, `greater-than` or `docstring`; labels; or a result.
            name: What to call it.

        Raises:
            UnknownNameError, ConfigError: About the name, or it is of a model of another shape.
            ComponentError: About the labels.
        """
        return circuits.against(self, circuit, name)

    @check_keywords
    def heatmap(
        self,
        *,
        color: CellColor | None = None,
        outline: str | Sequence[str] | None = None,
        fold: bool = False,
    ) -> go.Figure:
        """Which components are selected, layer by layer.

        Args:
            color: What colours say: `selected`, `soft` (entry of the soft mask), `score` (what the
                method ranked by; of top-k the effect alone), `rank` (by that) or `none`. But for
                the first, selected components have a frame. None: `score` or `selected`.
            outline: The circuit whose members have a frame instead, as in `against`.
            fold: Whether a run of layers without a selected or framed component is one row.

        Raises:
            ConfigError: An unknown `color`, or scores of a result that has none.
        """
        has_scores = self.component_scores is not None and has_cells(self.registry)
        if color is None:
            color = "score" if has_scores and outline is None else "selected"
        framed = None if outline is None else circuits.mask_of_circuit(outline, self)
        return draw_panels(
            self.panels(color, framed=framed),
            scale=scale_of(color, self.n_components, self.largest_score, self.score_title),
            outlines=color != "selected" or framed is not None,
            title=f"{plain(self.title)}: {data_and_model(self.dataset, self.model)}",
            subtitle=f"{self.n_selected} of {self.n_components} "
            f"{plain('+'.join(self.registry.kinds))} selected, {plain(effects_text(self))}",
            fold=fold,
            marks="selected" if outline is None else "outlined circuit",
        )

    @property
    def score_title(self) -> str:
        """What scores are, in words: those of top-k are effects."""
        return self.axis_label if self.method == "top-k" else "score"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Labels of the heads and MLPs that selected edges join, layer by layer, for other tracers.

        Where an edge enters a key or value that several heads share, these are the heads among them
        that other selected edges name; if there are none, all of them.
        """
        return circuits.nodes_of(self.registry, members_of_mask(self.binary_mask))

    def graph(self) -> networkx.MultiDiGraph:
        """The selected edges as a graph: `networkx.write_graphml(result.graph(), path)` writes it.

        Nodes are the embedding `E`, heads, MLPs and `logits`. An edge has its `label`, `score`,
        `reads` (q, k, v or nothing), and `carries`: whether it lies on a way from `E` to the
        logits. One into a key that heads share enters each of them.

        Raises:
            ComponentError: The components are no edges.
        """
        return circuits.graph_of(self.registry, members_of_mask(self.binary_mask), self._scores)

    @check_keywords
    def circuit(self, n: int = 30) -> go.Figure:
        """The `n` strongest selected edges: nodes by layer, arrows from senders to receivers.

        An arrow is as wide as its score is large, solid above 0 and dashed below; q, k or v at its
        head says what it enters. Heads that share a key are one node (`G`) where it is read.

        Raises:
            ComponentError: The components are no edges.
        """
        return circuits.circuit_figure(
            self.registry,
            members_of_mask(self.binary_mask),
            self._scores,
            n,
            title=f"{plain(self.title)}: {data_and_model(self.dataset, self.model)}",
            subtitle=plain(self.setup.intervention),
        )

    @property
    def _scores(self) -> Mask:
        return self.soft_mask if self.component_scores is None else self.component_scores

    def panels(
        self, color: CellColor = "selected", *, title: str = "", framed: BinaryMask | None = None
    ) -> list[SelectionPanel]:
        """The data behind `heatmap`: one panel per kind, a row per layer; `title` is above them.

        Components that are `framed` have a frame; by default those selected.
        """
        return result_panels(self, color, title, self.binary_mask if framed is None else framed)

    @property
    def largest_score(self) -> float:
        """Largest size of a score of a component, or else of the soft mask; 1 if all are 0."""
        return self._scores.abs().max().item() or 1.0
