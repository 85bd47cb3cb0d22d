"""The explorer: an exploration as a widget of Jupyter, and as a page without a kernel."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import anywidget
import plotly.graph_objects as go
import traitlets
from pydantic import NonNegativeFloat
from torch import Tensor

from tracekit._util.arguments import check_arguments
from tracekit._util.files import write_atomically
from tracekit._util.markup import clean_text, html_card, html_text, script_json
from tracekit._util.options import as_path, convert
from tracekit._util.progress import duration_text
from tracekit._util.table import join_labels, json_value
from tracekit.components import Component, ComponentGrid, ComponentSet
from tracekit.components.kinds import kind_of
from tracekit.components.masks import complement_of
from tracekit.components.members import ComponentsLike
from tracekit.data.display import ShownTokens, make_shown_pair
from tracekit.engine.setup import intervention_text
from tracekit.errors import ComponentError
from tracekit.explore.exploration import (
    Circuit,
    Event,
    Exploration,
    Measurement,
    Pin,
    Prediction,
    Progress,
    Unpredicted,
    set_key,
)
from tracekit.figures.style import EXPLORER_COLORS
from tracekit.metrics import Effects
from tracekit.models import model_name
from tracekit.results.display import line
from tracekit.results.faithfulness import Faithfulness
from tracekit.results.result import TraceResult

SCRIPT = "\n".join(
    Path(__file__).with_name(f"{name}.js").read_text(encoding="utf-8")
    for name in ("view", "known", "grid", "detail", "bars", "explorer")
)
"""The module that draws: one, as a saved page holds it whole."""
MOST_COMPONENTS = 2048
"""Components that a view can show as cells."""
_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
"""A page, with `{title}`, and `{part}` where the data and the module stand."""
_PAUSE = 0.001
"""Seconds between two batches, in which the kernel receives clicks."""


class Explorer(anywidget.AnyWidget):
    """A view of a set of components that is changed by clicking; made by `Tracer.explore`.

    As the last line of a cell it shows itself. `components`, `effect` and `per_example` are those
    of the set on screen, in any cell; `components` may be set.
    """

    _esm = SCRIPT
    setup: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    table: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    view_state: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    page: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(
        self,
        exploration: Exploration,
        *,
        to_members: Callable[[Any], ComponentSet],
        to_result: Callable[[ComponentSet, Effects], TraceResult],
        generate: Callable[[list[Component], str, str | None], Any],
        arrows: Sequence[dict[str, Any]] = (),
        source: str = "counterfactual",
        front_name: str = "Budget",
    ) -> None:
        """Measures the first set; made by `Tracer.explore`."""
        setup = setup_of(exploration, source, front_name, arrows)
        exploration.measure(complete=True)
        self.exploration = exploration
        """The set, its history, and everything measured, without a widget."""
        self._registry = exploration.engine.registry
        self._to_members, self._to_result, self._generate = to_members, to_result, generate
        self._version = 0
        self._request: dict[str, Any] | None = None
        self._task: asyncio.Task[None] | None = None
        super().__init__(
            setup=setup,
            table=table_of(exploration),
            view_state={**exploration.state(), "stamp": 0},
            page=page_parts(setup["title"]),
        )
        self.on_msg(self._on_message)
        self.observe(self._on_state, names="view_state")

    @property
    def components(self) -> list[Component]:
        """The components of the set on screen, in flat order; setting them changes the set."""
        return [self._registry[index] for index in self.exploration.members]

    @components.setter
    def components(self, members: ComponentsLike) -> None:
        """Changes the set, as `select` does."""
        self.select(members)

    @property
    def labels(self) -> list[str]:
        """Their printed names."""
        return [self._registry.label(index) for index in self.exploration.members]

    def select(self, members: ComponentsLike) -> None:
        """Changes the set, to one as in `Tracer.explain`.

        Raises:
            MaskError, ComponentError: About the set.
        """
        self._change(lambda: self.exploration.select(self._to_members(members)))

    def complement(self) -> None:
        """Makes the set that of all other components."""
        self._change(self.exploration.complement)

    def undo(self) -> None:
        """Goes back to the set before, if there is one."""
        self._change(self.exploration.undo)

    def redo(self) -> None:
        """Goes forward to the set that was undone, if there is one."""
        self._change(self.exploration.redo)

    def pin(self, name: Pin) -> None:
        """Keeps the set as `A` or `B`, to compare others with."""
        self._change(lambda: self.exploration.pin(name))

    @property
    def pins(self) -> dict[Pin, list[Component]]:
        """Components of the pinned sets."""
        pins = self.exploration.pins.items()
        return {name: [self._registry[index] for index in members] for name, members in pins}

    @property
    def effect(self) -> float:
        """Mean effect of the set on screen; measured if it was not yet."""
        return self._measured().effect

    @property
    def per_example(self) -> Effects:
        """Its effect on each example; times the example's weight, if examples have weights."""
        return self._measured().effects

    @property
    def spread(self) -> tuple[float, float]:
        """Spread of the mean effect over resampled examples; see `Measurement.spread`."""
        return self._measured().spread

    def faithfulness(self) -> Faithfulness | None:
        """Effect, faithfulness and completeness of the set on screen, with intervals.

        None for the empty set, and where all components have no effect.
        """
        members = self.exploration.members
        for event in self.exploration.circuit_steps(members):
            self._send_event(event)
        circuit = self.exploration.circuits.get(members)
        return None if circuit is None else circuit.scores

    def measure_singles(self) -> None:
        """Measures every component alone: for colours and hover texts."""
        self.exploration.measure_sets([(i,) for i in range(self.exploration.n_components)])
        self._send_table()

    def result(self) -> TraceResult:
        """The set on screen as a result, to save, draw and compare like those of `Tracer.run`."""
        measured = self._measured()
        return self._to_result(measured.members, measured.effects)

    def figure(self) -> go.Figure:
        """The heatmap of the set on screen, for a paper; of edges the circuit."""
        result = self.result()
        return result.heatmap() if result.registry.edges is None else result.circuit()

    @property
    def coverage(self) -> str:
        """Which of the sets that a reader is likely to click are measured, and what others cost."""
        exploration, kinds, likely = self.exploration, [], set()
        for kind, sets in exploration.likely_sets():
            likely.update(sets)
            n_measured = len(sets) - len(exploration.missing_of(sets))
            kinds += [f"{n_measured} of {len(sets)} {kind}"] if sets else []
        text = f"Measured around the first set (a set may be of two kinds): {', '.join(kinds)}."
        missing, pace = exploration.missing_of(likely), exploration.pace
        if not missing:
            return text
        return (
            f"{text} With the model, the {len(missing)} others of these take about "
            f"{duration_text(pace * len(missing))}; view = tracer.explore(...) and view.save(path, "
            f"seconds={ceil(pace * len(likely))}) measure all {len(likely)}."
        )

    @check_arguments
    def save(self, path: str | Path, *, seconds: float = 60.0) -> Path:
        """Writes one HTML file in which all that was measured can be clicked; returns its path.

        It opens without a network and without a kernel; sets that were not measured say so. First,
        sets that a reader is likely to click are measured for up to `seconds`; `coverage` says
        beforehand how many there are and what they take, and the page says how many it has.
        """
        path, seconds = as_path("path", path), convert("seconds", seconds, NonNegativeFloat)
        self.exploration.measure(complete=True)
        end = time.perf_counter() + seconds
        for _, sets in self.exploration.likely_sets():
            self.exploration.measure_sets(sets, end)
        self.faithfulness()
        measured = self.exploration.measurements
        for members in list(measured):
            if complement_of(members, self.exploration.n_components) in measured:
                list(self.exploration.circuit_steps(members))
        self.exploration.predict()
        parts, table = self.page, table_of(self.exploration)
        table |= {name: base64.b64encode(table[name]).decode() for name in ("effects", "gains")}
        state = self.exploration.state()
        setup = {**self.setup, "coverage": self.coverage}
        data = script_json({"parts": parts, "setup": setup, "state": state, "table": table})
        write_atomically(path, f"{parts[0]}{data}{parts[1]}{SCRIPT}{parts[2]}")
        self._send_table()
        return path

    def _measured(self) -> Measurement:
        was_known = self.exploration.measurement is not None
        measured = self.exploration.measure()
        if not was_known:
            self._send_event(measured)
        return measured

    def __repr__(self) -> str:
        engine, members = self.exploration.engine, self.exploration.members
        measured = self.exploration.measurement
        effect = "not measured yet" if measured is None else f"effect {measured.effect:.4g}"
        return (
            f"Explorer({clean_text(engine.pairs.name)}, {clean_text(model_name(engine.model))}: "
            f"{len(members)} of {engine.n_components} components, {effect}; "
            f"{self.setup['subtitle']})"
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        labels = join_labels([*map(self._registry.label, self.exploration.members)])
        card = html_card(repr(self), line(labels))
        return {**data, "text/html": card, "text/plain": repr(self)}, metadata

    def _change(self, action: Callable[[], None]) -> None:
        action()
        # No stamp: the browser numbers only its own changes.
        self.view_state = {**self.exploration.state(), "stamp": None}

    def _on_state(self, change: Any) -> None:
        """Takes over the state of the view; after a change from Python it is the same already."""
        try:
            self.exploration.restore(change["new"])
        except ComponentError as error:
            self._send_problem(self.exploration.members, error)
            return
        stamp = change["new"].get("stamp")
        if stamp is not None:
            self.send({"kind": "seen", "stamp": stamp, "key": set_key(self.exploration.members)})
        prediction = self.exploration.prediction
        if self.exploration.example is not None and prediction is not None:
            self._send_prediction(prediction)
        self._start()

    def _on_message(self, _: Any, content: Any, __: Any) -> None:
        kind = content.get("kind") if isinstance(content, dict) else None
        if kind == "hello":
            self._send_table()
            self._start()
        elif kind == "prompt":
            # A measurement that runs is continued after the answer.
            self._request = content
            self._ensure_task()

    def _start(self) -> None:
        """Begins to work on the set; without an event loop, it is measured when it is asked for."""
        self._version += 1
        self._ensure_task()

    def _ensure_task(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())

    async def _work(self) -> None:
        """Works on the set until nothing is left to do; the latest change wins."""
        version = None
        while version != self._version:
            version, members = self._version, self.exploration.members
            self._answer_prompt()
            try:
                for event in self.exploration.steps():
                    self._send_event(event)
                    # Meanwhile the kernel receives further clicks.
                    await asyncio.sleep(_PAUSE)
                    self._answer_prompt()
                    if self._version != version:
                        break
            except Exception as error:
                # The view shows any error, and goes on with the next set.
                self._send_problem(members, error)

    def _answer_prompt(self) -> None:
        """In the kernel's thread: hooks of another thread would act on what cells run meanwhile."""
        request, self._request = self._request, None
        if request is None:
            return
        answer = {**request, "kind": "written", "key": set_key(self.exploration.members)}
        try:
            texts = self._generate(self.components, request["prompt"], request["other"]).table
            answer |= {name: clean_text(texts[name][0]) for name in ("clean", "intervened")}
        except Exception as error:
            answer["problem"] = clean_text(f"{type(error).__name__}: {error}")
        self.send(answer)

    def _send_event(self, event: Event) -> None:
        if isinstance(event, Prediction):
            self._send_prediction(event)
        elif not isinstance(event, Progress) or event.n_batches:
            buffers = [_effects_of([event])] if isinstance(event, Measurement) else []
            self.send(entry_of(event), buffers)

    def _send_prediction(self, prediction: Prediction) -> None:
        example, per_example = self.exploration.example, prediction.per_example
        buffers = [as_bytes([prediction.gains])]
        if example is not None and per_example is not None:
            buffers.append(as_bytes([per_example[example]]))
        self.send({**entry_of(prediction), "example": example}, buffers)

    def _send_problem(self, members: ComponentSet, error: BaseException) -> None:
        text = clean_text(f"{type(error).__name__}: {error}")
        self.send({"kind": "problem", "key": set_key(members), "text": text})

    def _send_table(self) -> None:
        table = table_of(self.exploration)
        self.send({"kind": "table", "table": table}, [table.pop("effects"), table.pop("gains")])


def setup_of(
    exploration: Exploration, source: str, front_name: str, arrows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """All that does not change: components, examples, arrows, and the front, with its name."""
    engine = exploration.engine
    registry, pairs, n = engine.registry, engine.pairs, engine.n_components
    if n > MOST_COMPONENTS:
        raise ComponentError(
            f"The explorer shows up to {MOST_COMPONENTS} components, and this tracer has {n} "
            f"({registry.describe()}). Build one of fewer, by layers= or indices=."
        )
    clean = engine.clean
    how = intervention_text(source, engine.config.positions, engine.metric.direction)
    front = {
        "name": front_name,
        "sizes": list(map(len, exploration.front)),
        "keys": list(map(set_key, exploration.front)),
    }
    return {
        "title": clean_text(f"{pairs.name} data, {model_name(engine.model)} model"),
        "subtitle": clean_text(f"{registry.describe()}; {engine.metric.name}; {how}"),
        "basis": clean_text(
            f"Mean {engine.metric.axis_label} on {len(pairs)} searched examples, "
            f"{pairs.n_distinct} of them independent. [ ]: 95 % spread of the mean over resampled "
            "examples; no confidence interval where a set was chosen on them."
        ),
        "held_out": {
            set_key(members): [
                *(each.n_examples, each.n_independent),
                *map(json_value, (each.mean, *each.interval)),
            ]
            for members, each in exploration.held_out.items()
        },
        "colors": EXPLORER_COLORS,
        "needs_other": source == "counterfactual",
        "paths": list(arrows),
        "noun": clean_text(registry.kinds[0]) if len(registry.kinds) == 1 else "components",
        "axis": clean_text(engine.metric.axis_label),
        "weighted": pairs.weights is not None,
        "full": json_value(engine.full_effects.mean().item()),
        "labels": [clean_text(registry.label(index)) for index in range(n)],
        "parts": [[c.kind, c.layer, c.index, c.span] for c in registry],
        "grids": [_grid(grid) for grid in registry.grids],
        "examples": [
            {
                "prompt": _tokens(example.prompt),
                "other": example.counterfactual and _tokens(example.counterfactual),
                "source": clean_text(example.source),
                "x": list(map(clean_text, example.x)),
                "y": list(map(clean_text, example.y)),
            }
            for example in (make_shown_pair(pair, pairs.token_texts) for pair in pairs)
        ],
        "before": {
            "x": clean.x.exp().tolist(),
            "y": None if clean.y is None else clean.y.exp().tolist(),
        },
        "front": front if exploration.front else None,
    }


def _grid(grid: ComponentGrid) -> dict[str, Any]:
    names = grid.span_names or tuple(map(str, grid.indices))
    return {
        "title": clean_text(f"{grid.kind}, {grid.span}" if grid.span else grid.kind),
        "noun": clean_text("span" if grid.span_names else kind_of(grid.kind).noun),
        "layers": grid.layers,
        # A kind with one component a layer has no numbers to show.
        "columns": [clean_text(name) if len(names) > 1 else "" for name in names],
        "cells": grid.cells,
    }


def _tokens(tokens: ShownTokens) -> list[tuple[str, bool]]:
    return [(clean_text(text), is_changed) for text, is_changed in tokens]


def entry_of(event: Event) -> dict[str, Any]:
    """What the view shows of an event, but for numbers by example and component."""
    entry: dict[str, Any] = {"kind": "progress", "key": set_key(event.members)}
    if isinstance(event, Measurement):
        low, high = map(json_value, event.spread)
        entry |= {"kind": "measured", "effect": event.effect, "low": low, "high": high}
        entry |= {"seconds": event.seconds, "x": event.x is not None, "y": event.y is not None}
    elif isinstance(event, Circuit):
        # Numbers are named as in `Faithfulness.to_frame`.
        scores = event.scores
        entry |= {"kind": "circuit", "warning": ""}
        if scores.overshoots[0]:
            entry["warning"] = "overshoots: it leaves out components that push back"
        elif scores.incomplete[0]:
            entry["warning"] = "not complete: all others without it still do the task"
        entry |= {name: json_value(value) for name, value in scores.to_frame().iloc[0].items()}
    elif isinstance(event, Prediction):
        entry |= {"kind": "predicted", "rough": event.is_rough}
    elif isinstance(event, Unpredicted):
        entry |= {"kind": "unpredicted", "reason": clean_text(event.reason)}
    else:
        entry |= {"done": event.n_done, "total": event.n_batches, "effect": event.effect}
    return entry


def _effects_of(measured: Iterable[Measurement]) -> bytes:
    return as_bytes(part for each in measured for part in (each.effects, each.x, each.y))


def as_bytes(values: Iterable[Tensor | None]) -> bytes:
    """Tensors as 32-bit floats, lowest byte first, one after the other."""
    arrays = [value.float().numpy().astype("<f4") for value in values if value is not None]
    return b"".join(array.tobytes() for array in arrays)


def table_of(exploration: Exploration) -> dict[str, Any]:
    """All that was measured and predicted, with the numbers as bytes."""
    measured, predicted = exploration.measurements.values(), exploration.predictions.values()
    return {
        "measured": list(map(entry_of, measured)),
        "effects": _effects_of(measured),
        "predicted": list(map(entry_of, predicted)),
        "gains": as_bytes(each.gains for each in predicted),
        "circuits": list(map(entry_of, exploration.circuits.values())),
        "unpredicted": list(map(entry_of, exploration.unpredicted.values())),
    }


def page_parts(title: str) -> list[str]:
    """Texts of a page before the data, between data and module, and after the module."""
    before, *others = _PAGE.split("{part}")
    return [before.replace("{title}", html_text(title)), *others]
