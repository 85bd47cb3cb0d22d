"""The explorer: an exploration as a widget of Jupyter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from tracekit._util.files import write_beside
from tracekit._util.markup import printable
from tracekit._util.options import as_path
from tracekit.components import Component, ComponentSet
from tracekit.errors import ComponentError
from tracekit.explore.data import (
    SCRIPT,
    as_bytes,
    circuit_of,
    entry_of,
    page,
    page_parts,
    setup_of,
    table_of,
    values_of,
)
from tracekit.explore.exploration import (
    Circuit,
    Event,
    Exploration,
    Measurement,
    Pin,
    Prediction,
    Progress,
    set_key,
)
from tracekit.metrics import Effects
from tracekit.models import model_name
from tracekit.results.faithfulness import Faithfulness
from tracekit.results.picture import selection_svg

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from tracekit.results.result import TraceResult

_PAUSE = 0.001
"""Seconds between two batches, in which the kernel takes in what was clicked."""


if TYPE_CHECKING:
    # The packages of widgets have no types; `traitlets` has.
    class _Widget(traitlets.HasTraits):
        def on_msg(self, callback: Callable[..., Any]) -> None: ...
        def send(self, content: Any, buffers: Any = None) -> None: ...
        def _repr_mimebundle_(self, **kwargs: Any) -> Any: ...
else:
    _Widget = anywidget.AnyWidget


class Explorer(_Widget):
    """A view of a set of components that is changed by clicking, and whose effect follows.

    As the last line of a cell it shows itself. `components`, `effect` and `per_example` are those
    of the set on screen, in any cell; `components` may be set. Make one with `Tracer.explore`.
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
        exploration.measured_now(complete=True)
        self.exploration = exploration
        """The set, its history, and everything measured, without a widget."""
        self._to_members, self._to_result, self._generate = to_members, to_result, generate
        self._version = 0
        self._asked: dict[str, Any] | None = None
        self._task: asyncio.Task[None] | None = None
        super().__init__(
            setup=setup,
            table=table_of(exploration),
            view_state={**exploration.state(), "stamp": 0},
            page=page_parts(setup["title"]),
        )
        self.on_msg(self._on_message)
        self.observe(self._on_state, names="view_state")

    # ---- the set ----------------------------------------------------------------------------

    @property
    def components(self) -> list[Component]:
        """The components of the set on screen, in flat order; setting them changes the set."""
        registry = self.exploration.engine.registry
        return [registry[index] for index in self.exploration.members]

    @components.setter
    def components(self, members: Any) -> None:
        """Changes the set, as `select` does."""
        self.select(members)

    @property
    def labels(self) -> list[str]:
        """Their printed names."""
        registry = self.exploration.engine.registry
        return [registry.label(index) for index in self.exploration.members]

    def select(self, members: Any) -> None:
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
        registry = self.exploration.engine.registry
        pins = self.exploration.pins.items()
        return {name: [registry[index] for index in members] for name, members in pins}

    # ---- what it does -----------------------------------------------------------------------

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
        """How far the effect moves when the examples are resampled (95 %, studentised bootstrap).

        No confidence interval of a set that was chosen by its effect on these examples.
        """
        return self._measured().spread

    def faithfulness(self) -> Faithfulness | None:
        """Effect, faithfulness and completeness of the set on screen, with intervals.

        Its complement is measured if it was not yet. None of the empty set, and where all
        components have no effect.
        """
        members = self.exploration.members
        for event in self.exploration.circuit_steps(members):
            self._tell(event)
        circuit = self.exploration.circuits.get(members)
        return None if circuit is None else circuit.scores

    def measure_singles(self) -> None:
        """Measures every component alone: for colours, hover texts and saved pages."""
        self.exploration.measure_singles()
        self._tell_all()

    def result(self) -> TraceResult:
        """The set on screen as a result, to save, draw and compare like those of `Tracer.run`."""
        measured = self._measured()
        return self._to_result(measured.members, measured.effects)

    def figure(self) -> go.Figure:
        """The heatmap of the set on screen, for a paper."""
        return self.result().heatmap()

    def save(self, path: str | Path) -> Path:
        """Writes one HTML file with everything measured so far; returns its path.

        It opens without a network and without a kernel; sets that were not measured say so.
        """
        path = as_path("path", path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.exploration.measured_now(complete=True)
        self.faithfulness()
        self.exploration.know_circuits()
        self.exploration.predicted_now()
        write_beside(path, page(self.exploration, self.setup))
        self._tell_all()
        return path

    def _measured(self) -> Measurement:
        was_known = self.exploration.measurement is not None
        measured = self.exploration.measured_now()
        if not was_known:
            self._tell(measured)
        return measured

    def __repr__(self) -> str:
        engine, members = self.exploration.engine, self.exploration.members
        measured = self.exploration.measurement
        effect = "not measured yet" if measured is None else f"effect {measured.effect:.4g}"
        return (
            f"Explorer({printable(engine.pairs.name)}, {printable(model_name(engine.model))}: "
            f"{len(members)} of {engine.n_components} components, {effect})"
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The widget and, for where none can run, a picture of the set."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        registry, members = self.exploration.engine.registry, self.exploration.members
        picture = selection_svg(registry, members, repr(self))
        return {**data, "image/svg+xml": picture, "text/plain": repr(self)}, metadata

    # ---- between Python and the browser -------------------------------------------------------

    def _change(self, action: Callable[[], None]) -> None:
        action()
        # Without a stamp: the browser counts its own changes.
        self.view_state = {**self.exploration.state(), "stamp": None}

    def _on_state(self, change: Any) -> None:
        """Takes over what was clicked; a change from Python comes by here too, and is the same."""
        try:
            self.exploration.restore(change["new"])
        except ComponentError as error:
            self._tell_problem(self.exploration.members, error)
            return
        stamp = change["new"].get("stamp")
        if stamp is not None:
            key = set_key(self.exploration.members)
            self.send({"kind": "seen", "stamp": stamp, "key": key})
        prediction = self.exploration.prediction
        if self.exploration.example is not None and prediction is not None:
            self._tell_prediction(prediction)
        self._start()

    def _on_message(self, _: Any, content: Any, __: Any) -> None:
        kind = content.get("kind") if isinstance(content, dict) else None
        if kind == "hello":
            self._tell_all()
            self._start()
        elif kind == "prompt":
            # What is being measured goes on after the answer.
            self._asked = content
            self._go_on()

    def _start(self) -> None:
        """Sets work on the set going; without an event loop, whoever asks for an effect waits."""
        self._version += 1
        self._go_on()

    def _go_on(self) -> None:
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
            self._answer()
            try:
                for event in self.exploration.steps():
                    self._tell(event)
                    # Here the kernel takes in further clicks.
                    await asyncio.sleep(_PAUSE)
                    self._answer()
                    if self._version != version:
                        break
            except Exception as error:
                # Whatever it is, the view says it, and goes on with the next set.
                self._tell_problem(members, error)

    def _answer(self) -> None:
        """Says what the model writes after the prompt that was asked for last.

        In this thread: hooks of another one would act on what cells run meanwhile.
        """
        asked, self._asked = self._asked, None
        if asked is None:
            return
        said = {**asked, "kind": "written", "key": set_key(self.exploration.members)}
        try:
            texts = self._generate(self.components, said["prompt"], said["other"]).table
            said |= {name: printable(texts[name][0]) for name in ("clean", "intervened")}
        except Exception as error:
            said["problem"] = printable(f"{type(error).__name__}: {error}")
        self.send(said)

    def _tell(self, event: Event) -> None:
        key = set_key(event.members)
        if isinstance(event, Measurement):
            message = {"kind": "measured", "key": key, "entry": entry_of(event)}
            self.send(message, [values_of(event)])
        elif isinstance(event, Circuit):
            self.send({"kind": "circuit", **circuit_of(event)})
        elif isinstance(event, Prediction):
            self._tell_prediction(event)
        elif isinstance(event, Progress):
            if event.n_batches:
                counts = {"done": event.n_done, "total": event.n_batches, "effect": event.effect}
                self.send({"kind": "progress", "key": key, **counts})
        else:
            self.send({"kind": "unpredicted", "key": key, "reason": printable(event.reason)})

    def _tell_prediction(self, prediction: Prediction) -> None:
        example, per_example = self.exploration.example, prediction.per_example
        buffers = [as_bytes([prediction.gains])]
        if example is not None and per_example is not None:
            buffers.append(as_bytes([per_example[example]]))
        self.send(
            {
                "kind": "predicted",
                "key": set_key(prediction.members),
                "rough": prediction.is_rough,
                "example": example,
            },
            buffers,
        )

    def _tell_problem(self, members: ComponentSet, error: BaseException) -> None:
        text = printable(f"{type(error).__name__}: {error}")
        self.send({"kind": "problem", "key": set_key(members), "text": text})

    def _tell_all(self) -> None:
        table = table_of(self.exploration)
        buffers = [table.pop("effects"), table.pop("gains")]
        self.send({"kind": "table", "table": table}, buffers)
