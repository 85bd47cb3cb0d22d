"""Properties: an input is taken with a right number, or refused by a `TracekitError`.

A number is right if a plain way finds it too: the mean of the effects on every example, each
measured alone, without any shortcut of the engine.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

import tracekit as tk
from tests import tiny
from tools.fuzz import values
from tracekit.demo import MODEL_DIR
from tracekit.results.storage import read_document, write_document

PROPERTIES: dict[str, tuple[Callable[..., None], dict[str, Any], int]] = {}
"""By name: the property, what it is given, and how many examples the short run takes."""

counts: Counter[str] = Counter()
"""How many inputs were `taken` and `refused`: a property is not kept by refusing everything."""


def about(examples: int, **given: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds a function to `PROPERTIES`, with what it is given."""

    def keep(function: Callable[..., None]) -> Callable[..., None]:
        PROPERTIES[function.__name__] = (function, given, examples)
        return function

    return keep


@contextlib.contextmanager
def taken_or_refused() -> Iterator[None]:
    """A `TracekitError` with a message ends the block; anything else is a finding."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
        counts["taken"] += 1
        return
    except tk.errors.TracekitError as error:
        message = str(error)
    counts["refused"] += 1
    assert message.strip(), "an error that says nothing"
    assert len(message) < 5000, "a message that nobody reads"


@cache
def model():
    """A tiny random GPT-2."""
    return tk.load_model(tiny.hf_model("gpt2"))


@cache
def demo():
    """The embedded model."""
    return tk.load_model("demo")


@cache
def tracer(metric: str = "probability-drop"):
    """Six examples on the tiny model."""
    return tk.Tracer(model(), tiny.pairs(6, seed=3), metric=metric)


def plain_effects(tracer: tk.Tracer, mask: torch.Tensor) -> torch.Tensor:
    """Effects of a mask, example by example, without shortcuts."""
    engine = tracer.engine
    config = tk.engine.EngineConfig(
        positions=engine.config.positions,
        continuation_mean=engine.config.continuation_mean,
        max_batch_size=1,
        capabilities=tk.Capabilities.none(),
    )
    plain = tk.engine.Engine.build(
        engine.model, engine.pairs, engine.registry, engine.metric, config
    )
    return plain.effects(mask)


def assert_right(effects: torch.Tensor, expected: torch.Tensor) -> None:
    """Effects are finite, and those of the plain way."""
    assert torch.isfinite(effects).all()
    torch.testing.assert_close(effects, expected, rtol=2e-3, atol=2e-5)


# ---- searches ------------------------------------------------------------------------------------


@about(
    100,
    arguments=values.mostly(
        {
            "method": values.methods,
            "goal": values.goals,
            "metric": st.sampled_from(["probability-drop", "odds-ratio", "logit-difference"]),
            "objective": st.sampled_from(["mean", "trimmed-mean", "lower-bound", "quantile"]),
            "seed": st.integers(0, 5),
            "options": st.just({}),
        },
        {
            "method": values.words,
            "goal": values.wrong_goals,
            "objective": values.words,
            "seed": values.scalars,
            "options": values.options,
        },
    ),
)
def searches(arguments):
    """A search by any method with any options reports what its set has."""
    method, options, goal, metric, seed, objective = (
        arguments[name] for name in ("method", "options", "goal", "metric", "seed", "objective")
    )
    given = {**values.QUICK.get(method, {}), **options}
    with taken_or_refused():
        traced = tracer(metric)
        found = traced.run(method, **goal, seed=seed, objective=objective, **given)
        for result in [found] if isinstance(found, tk.TraceResult) else found:
            assert math.isfinite(result.effect)
            assert math.isclose(result.effect, result.per_example.mean().item(), abs_tol=1e-5)
            assert math.isclose(traced.evaluate(result.binary_mask), result.effect, abs_tol=1e-4)
            assert_right(result.per_example, plain_effects(traced, result.binary_mask))
            assert result.budget is None or result.n_selected <= result.budget
            for scores in (result.soft_mask, result.component_scores):
                assert scores is None or torch.isfinite(scores).all()


@about(
    16,
    arguments=values.mostly(
        {
            "models": st.just(["demo"]),
            "datasets": st.sampled_from([["demo-facts"], [{"name": "demo-bias"}]]),
            "methods": st.sampled_from([["top-k"], ["greedy"], [tk.search.TopK()]]),
            "budgets": st.sampled_from([[1], [0.1], [1, 2]]),
            "limit": st.integers(2, 4),
            "components": st.sampled_from([["head-outputs"], ["mlp-blocks"]]),
            "executor": st.sampled_from([None, "threads"]),
            "part": st.sampled_from([None, "1/1", "2/2"]),
        },
        {
            "models": values.junk,
            "datasets": values.junk,
            "methods": values.junk,
            "budgets": values.junk,
            "limit": values.scalars,
            "components": values.junk,
            "executor": values.junk,
            "part": st.one_of(values.scalars, st.sampled_from(["0/2", "3/2", "1/0", "1/2/3"])),
            "jobs": st.one_of(st.integers(-2, 0), values.words, st.floats()),
            "data_dir": st.one_of(values.words, st.integers()),
            "max_batch_size": values.scalars,
            "source": values.words,
            "seeds": values.junk,
        },
    ),
)
def sweeps(arguments):
    """A sweep keeps its runs, or says why they failed."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as threads:
        if arguments["executor"] == "threads":
            arguments = {**arguments, "executor": threads}
        with taken_or_refused():
            runs = tk.sweep(**arguments, output=folder, progress=False)
            assert not runs.failures or all(str(failure) for failure in runs.failures)
            for run in runs:
                for result in run.curve:
                    assert math.isclose(
                        result.effect, result.per_example.mean().item(), abs_tol=1e-5
                    )
                    pairs = tk.load_dataset(result.dataset, demo())[: len(result.per_example)]
                    traced = tk.Tracer(
                        demo(),
                        pairs,
                        result.registry,
                        result.setup.metric,
                        positions=result.setup.positions,
                        source=result.setup.source,
                    )
                    assert traced.pairs.fingerprint == result.dataset_fingerprint
                    assert_right(result.per_example, plain_effects(traced, result.binary_mask))


@about(
    20,
    arguments=values.mostly(
        {
            "max_budget": st.integers(1, 8),
            "max_passes": st.integers(4, 30),
            "seed": st.integers(0, 3),
        },
        {
            "max_budget": values.scalars,
            "max_passes": values.scalars.filter(lambda n: not isinstance(n, int) or n < 40),
            "max_seconds": values.scalars,
            "seed": values.scalars,
        },
    ),
)
def fronts(arguments):
    """Each result of a front reports what its set has."""
    with taken_or_refused():
        traced = tracer()
        front = traced.pareto(**arguments, statistics=False)
        for result in front:
            assert_right(result.per_example, plain_effects(traced, result.binary_mask))


# ---- tracers, pairs, masks -----------------------------------------------------------------------


@about(
    120,
    rows=values.sound_rows,
    seed=st.integers(0, 9),
    arguments=values.mostly(
        {
            "components": values.kinds,
            "metric": values.metrics,
            "layers": st.sampled_from([None, [0], [1, 2], [-1]]),
            "indices": st.sampled_from([None, None, [0, 1]]),
            "positions": st.sampled_from(["prompt", "prompt", "last", "all", [0]]),
            "layer_window": st.sampled_from([1, 1, 1, 2]),
            "source": st.sampled_from(
                ["counterfactual", "counterfactual", "noise", "zero", "mean"]
            ),
            "direction": st.sampled_from(["noising", "noising", "denoising"]),
            "continuation_mean": st.sampled_from(["geometric", "arithmetic"]),
            "max_batch_size": st.integers(1, 9),
            "max_memory": st.sampled_from([None, 0, 10**5]),
        },
        {
            "components": values.junk,
            "metric": values.words,
            "layers": st.one_of(st.lists(st.integers(-5, 5), max_size=3), values.junk),
            "indices": st.one_of(st.lists(st.integers(-5, 5), max_size=3), values.junk),
            "positions": st.one_of(st.lists(st.integers(-3, 3), max_size=2), values.junk),
            "split_by": st.sampled_from(["span", "position", "other"]),
            "layer_window": st.one_of(st.integers(0, 4), values.scalars),
            "source": st.one_of(st.sampled_from(["resample", "mean-positional"]), values.words),
            "direction": values.scalars,
            "continuation_mean": values.scalars,
            "max_batch_size": values.scalars,
            "max_memory": values.scalars,
        },
    ),
)
def tracers(rows, seed, arguments):
    """A tracer of any pairs and options measures any mask as the plain way does."""
    with taken_or_refused():
        pairs = tk.PromptPairs.from_ids(rows, on_mismatch="skip")
        traced = tk.Tracer(model(), pairs, source_seed=seed, **arguments)
        mask = torch.rand(len(traced.registry), generator=torch.Generator().manual_seed(seed))
        mask = mask if seed % 2 else mask.round()
        effects = traced.evaluate(mask, per_example=True)
        assert_right(effects, plain_effects(traced, mask))
        assert math.isclose(traced.evaluate(mask), effects.mean().item(), abs_tol=1e-5)


@about(60, rows=st.one_of(values.rows, values.junk), mismatch=st.sampled_from(["error", "skip"]))
def rows_of_ids(rows, mismatch):
    """Pairs of token ids."""
    with taken_or_refused():
        pairs = tk.PromptPairs.from_ids(rows, on_mismatch=mismatch)
        traced = tk.Tracer(model(), pairs, metric="probability-drop")
        mask = torch.ones(len(traced.registry))
        assert_right(traced.evaluate(mask, per_example=True), plain_effects(traced, mask))


_TEXT = {
    "prompt": "the cook met the maid when she",
    "counterfactual": "the cook met the maid when he",
    "x": " ironed sheets .",
    "y": " struck the anvil .",
}
_TEXTS = st.one_of(st.sampled_from(["the cook", "maid", " he", "", [0, 1], [5, 2]]), values.junk)


@about(
    60,
    row=values.mostly(
        {**{name: st.just(text) for name, text in _TEXT.items()}, "weight": st.floats(0.1, 5)},
        {
            **dict.fromkeys([*_TEXT, "weight", "x_set", "y_set"], _TEXTS),
            "spans": st.one_of(
                st.dictionaries(st.sampled_from(["a", "last", ""]), _TEXTS, max_size=2), values.junk
            ),
            "counterfactual_spans": st.dictionaries(st.sampled_from(["a"]), _TEXTS),
        },
    ),
    by=st.sampled_from([None, "span"]),
)
def rows_of_text(row, by):
    """Pairs of texts, with spans and without."""
    with taken_or_refused():
        pairs = tk.PromptPairs.from_text([row], demo())
        traced = tk.Tracer(
            demo(), pairs, "mlp-blocks", split_by=by if "spans" in row else None, layers=[0]
        )
        mask = torch.ones(len(traced.registry))
        assert_right(traced.evaluate(mask, per_example=True), plain_effects(traced, mask))


@about(60, mask=values.masks(12), per_example=st.booleans())
def masks(mask, per_example):
    """A mask as a list, a tensor or anything else."""
    with taken_or_refused():
        traced = tracer()
        effect = traced.evaluate(mask, per_example=per_example)
        if not isinstance(mask, (list, torch.Tensor)) or len(mask) != 12:
            return
        if any(isinstance(entry, (list, dict)) for entry in mask):
            return
        expected = plain_effects(traced, torch.as_tensor(mask).float())
        assert_right(torch.as_tensor(effect), expected if per_example else expected.mean())


_RETURNED = ["nan", "inf", "ints", "bools", "mean", "list", "none", "wide", "raise"]
_RETURNED += ["double", "half", "meta"]


@about(
    40,
    returned=st.one_of(
        st.sampled_from(_RETURNED),
        st.floats(-1e30, 1e30),
    ),
    at=st.integers(0, 5),
)
def metrics_of_ones_own(returned, at):
    """A metric that is a function, and what it returns."""

    def measure(clean, after):
        effect = clean.x - after.x
        if isinstance(returned, float):
            return effect * returned
        if returned in ("nan", "inf"):
            return effect + (torch.arange(len(effect)) == at) * float(returned)
        return {
            "ints": lambda: effect.round().long(),
            "double": effect.double,
            "half": effect.bfloat16,
            "meta": lambda: effect.to("meta"),
            "bools": lambda: effect > 0,
            "mean": effect.mean,
            "list": effect.tolist,
            "none": lambda: None,
            "wide": lambda: effect[:, None].expand(-1, 2),
            "raise": lambda: effect[100],
        }[returned]()

    if returned == "raise":
        return  # An error of the user's own code is the user's.
    with taken_or_refused():
        traced = tk.Tracer(model(), tiny.pairs(6, seed=3), metric=measure)
        found = traced.run("top-k", budget=2)
        assert math.isfinite(found.effect)
        assert_right(found.per_example, plain_effects(traced, found.binary_mask))


# ---- files ---------------------------------------------------------------------------------------

_LINES = [f"{line}\n".encode() for line in (",".join(_TEXT), ",".join(_TEXT.values()))]
_CSV = b"".join(_LINES)
_LINE = {"prompt_ids": [3, 4], "counterfactual_ids": [5, 4], "x_ids": [1], "y_ids": [2]}


@about(
    80,
    content=st.one_of(
        st.integers(1, 30).map(lambda count: _LINES[0] + count * _LINES[1]),
        st.integers(1, 30).map(lambda count: json.dumps(_LINE).encode() + count * b"\n"),
        values.changed_bytes(_CSV),
        values.changed_bytes(_CSV.decode().encode("utf-16")),
        values.changed_bytes(json.dumps(_LINE).encode() * 2),
        values.changed_document(_LINE).map(lambda row: json.dumps(row).encode()),
        values.junk.map(lambda row: json.dumps(row).encode()),
        st.binary(max_size=40),
    ),
    suffix=st.sampled_from([".csv", ".csv", ".jsonl", ".jsonl", ".txt"]),
)
def files_of_pairs(content, suffix):
    """A file of pairs with any content."""
    with tempfile.TemporaryDirectory() as folder, taken_or_refused():
        path = Path(folder, f"pairs{suffix}")
        path.write_bytes(content)
        pairs = tk.load_dataset(str(path), demo())
        traced = tk.Tracer(demo(), pairs, metric="probability-drop", layers=[0])
        mask = torch.ones(len(traced.registry))
        assert_right(traced.evaluate(mask, per_example=True), plain_effects(traced, mask))


@cache
def saved() -> Path:
    """A folder with everything that is saved."""
    folder = Path(tempfile.mkdtemp(prefix="tracekit-fuzz-"))
    traced = tk.Tracer(model(), tiny.pairs(6, seed=3), metric="probability-drop")
    traced.run("top-k", budget=3).save(folder / "run")
    traced.run("random", budgets=[1, 3], draws=3).save(folder / "curve")
    front = traced.pareto(
        max_budget=2, max_passes=20, statistics=False, checkpoint=folder / "front.ckpt"
    )
    front.save(folder / "front")
    (folder / "grid").mkdir()
    traced.interactions(layers=[1]).save(folder / "grid" / "grid.json")
    members = list(traced.registry)[2:5]
    traced.explain(members).save(folder / "explanation")
    others = {"kl": (tiny.pairs(6, seed=3), "kl")}
    traced.side_effects(members, others, draws=2).save(folder / "side-effects")
    return folder


def _load(kind: str, folder: Path) -> Any:
    if kind == "run":
        return tk.TraceResult.load(folder / kind)
    if kind == "curve":
        return tk.results.TraceCurve.load(folder / kind)
    if kind == "front":
        return tk.ParetoFront.load(folder / kind)
    if kind == "grid":
        return tk.results.InteractionGrid.load(folder / kind / "grid.json")
    if kind == "explanation":
        return tk.measure.Explanation.load(folder / kind)
    if kind == "side-effects":
        return tk.measure.SideEffects.load(folder / kind)
    return tracer().pareto(
        max_budget=2, max_passes=20, statistics=False, checkpoint=folder / "front.ckpt"
    )


def _numbers(kind: str, loaded: Any) -> Any:
    if kind == "grid":
        return loaded.to_frame().to_json()
    if kind == "explanation":
        return loaded.table.to_json(), loaded.interactions.to_json(), str(loaded)
    if kind == "side-effects":
        return loaded.table.to_json(), str(loaded)
    results = [loaded] if kind == "run" else list(loaded)
    return [(result.method, result.effect, result.per_example.tolist()) for result in results]


def _files(kind: str) -> list[str]:
    if kind == "checkpoint":
        return ["front.ckpt"]
    paths = sorted(path for path in (saved() / kind).rglob("*") if path.is_file())
    return [str(path.relative_to(saved())) for path in paths]


_KINDS = st.sampled_from(
    ["run", "curve", "front", "grid", "explanation", "side-effects", "checkpoint"]
)


@about(100, kind=_KINDS, data=st.data())
def damaged_saves(kind, data):
    """A file that was changed is refused, or says what the whole one says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "copy")
        shutil.copytree(saved(), folder)
        path = folder / data.draw(st.sampled_from(_files(kind)))
        path.write_bytes(data.draw(values.changed_bytes(path.read_bytes())))
        with taken_or_refused():
            assert _numbers(kind, _load(kind, folder)) == _numbers(kind, _load(kind, saved()))


@about(320, kind=_KINDS.filter(lambda kind: kind != "checkpoint"), data=st.data())
def forged_saves(kind, data):
    """Entries that were changed together with their digest: taken or refused."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "copy")
        shutil.copytree(saved(), folder)
        documents = [file for file in _files(kind) if file.endswith(".json")]
        path = folder / data.draw(st.sampled_from(documents))
        document = read_document(path)
        write_document(path, data.draw(values.changed_document(document)))
        with taken_or_refused():
            _load(kind, folder)


@about(
    14,
    file=st.sampled_from(
        [
            "config.json",
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors",
        ]
    ),
    data=st.data(),
)
def model_directories(file, data):
    """A model directory of which one file is changed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "model")
        shutil.copytree(MODEL_DIR, folder)
        path = folder / file
        if file == "config.json" or (data.draw(st.integers(0, 2)) == 0 and path.suffix == ".json"):
            document = json.loads(path.read_text())
            path.write_text(json.dumps(data.draw(values.changed_document(document))))
        else:
            path.write_bytes(data.draw(values.changed_bytes(path.read_bytes())))
        with taken_or_refused():
            loaded = tk.load_model(str(folder))
            traced = tk.Tracer(loaded, tiny.pairs(3, seed=3), metric="probability-drop")
            mask = torch.ones(len(traced.registry))
            assert_right(traced.evaluate(mask, per_example=True), plain_effects(traced, mask))


# ---- the command line ----------------------------------------------------------------------------

_ARGUMENTS = {
    "--budget": ["2", "0.1", "nan", "-1", "99", "x", "1e999"],
    "--target-effect": ["0.01", "inf", "x"],
    "--method": ["top-k", "random", "greedy", "exhaustive", "topk", ""],
    "--option": ["draws=3", "draws=x", "random:draws=2", "=", "a", "epochs=nan", "max_sets=1e999"],
    "--metric": ["odds-ratio", "kl", "x", ""],
    "--components": ["head-outputs", "mlp-blocks", "attention-patterns+mlp-blocks", "x", ""],
    "--layers": ["0", "0-1", "3-1", "-1", "9", "x", "0-99999999999"],
    "--positions": ["last", "0", "-1,-1", "99", "x"],
    "--limit": ["4", "0", "-1", "x", "99999999999999999999"],
    "--seed": ["1", "-1", "1e3", "99999999999999999999"],
    "--held-out": ["0.3", "nan", "2", "inf"],
    "--max-batch-size": ["3", "0", "99999999999999999999"],
    "--max-memory": ["1", "-1", "99999999999999999999"],
    "--dataset": ["demo-bias", "demo-facts", "nowhere.csv", "x", "", "/"],
    "--data-option": ["seed=1", "seed=x", "x=1", "="],
    "--model": ["demo", "/nowhere", "", "a/b/c", "x y"],
    "--source": ["zero", "mean", "x"],
    "--direction": ["denoising", "x"],
    "--split-by": ["span", "position", "x"],
    "--layer-window": ["1", "2", "0", "99"],
    "--extra-metric": ["kl", "x"],
    "--constraint-at-most": ["1", "nan", "-1"],
    "--objective": ["log-odds", "x"],
    "--max-passes": ["20", "0", "-1", "x"],
    "--mask": ["mask.json", "saved/run", "nowhere", "/"],
    "--continuation-mean": ["arithmetic", "x"],
    "--device": ["cpu", "abacus"],
    "--dtype": ["float32", "x"],
    "--checkpoint": ["kept", "/", "/dev/null/x"],
    "--colour": ["red"],
}


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[list[str], str]:
    """The words of a command, and the content of its mask file."""
    command = draw(st.sampled_from(["trace", "pareto", "evaluate", "show", "x"]))
    names = draw(st.lists(st.sampled_from(list(_ARGUMENTS)), max_size=4, unique=True))
    words = [command]
    if command == "show":
        words.append(draw(st.sampled_from(["saved", "saved/run", "nowhere", "demo", ""])))
    for name in names:
        words.append(name)
        if draw(st.integers(0, 20)):
            words.append(draw(st.one_of(st.sampled_from(_ARGUMENTS[name]), values.words)))
    if command in ("trace", "pareto", "evaluate"):
        if "--limit" not in names:
            words += ["--limit", "4"]
        if command == "pareto" and "--max-passes" not in names:
            words += ["--max-passes", "20"]
        if command == "trace" and "--method" not in names:
            words += ["--method", "top-k"]
        if command == "evaluate" and "--mask" not in names:
            words += ["--mask", "mask.json"]
    mask = draw(
        st.one_of(
            st.just([0.5] * 32), st.just([1] * 32), values.masks(32).filter(_is_json), values.junk
        )
    )
    return words, json.dumps(mask)


def _is_json(value: object) -> bool:
    return not isinstance(value, torch.Tensor)


@about(40, line=command_lines())
def the_command_line(line):
    """A command ends with a code and a message, never with a traceback."""
    words, mask = line
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        Path("mask.json").write_text(mask)
        shutil.copytree(saved(), "saved")
        code, output = run_command(words, out, err)
    shown = f"{words}\n{output}\n{err.getvalue()}"
    assert code in (0, 1, 2), shown
    assert "Traceback" not in shown
    assert "nan" not in output.split("Effect of all components together: ")[-1][:3], shown
    counts["taken" if code == 0 else "refused"] += 1
    if code == 1:
        assert err.getvalue().count("Error: ") == 1, shown
    if code == 2:
        assert "Error" in err.getvalue(), shown


def run_command(words: list[str], out: io.StringIO, err: io.StringIO) -> tuple[int, str]:
    """The exit code of a command, and all that it printed."""
    from tracekit import cli
    from tracekit.cli.console import console, error_console

    def no_browser(document: object) -> str:
        return "no browser"

    arguments = [*words, "--quiet"] if words[0] in ("trace", "pareto", "evaluate") else words
    with (
        mock.patch.object(sys, "argv", ["tracekit", *arguments]),
        mock.patch.object(console, "_file", out),
        mock.patch.object(error_console, "_file", err),
        mock.patch("tracekit.models.load_model", _load_cached),
        mock.patch("tracekit.figures.export._draw", no_browser),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    return code, out.getvalue()


_load_model = tk.load_model


def _load_cached(source: Any = "demo", **options: Any) -> Any:
    """The embedded model is loaded once."""
    plain = {"device": None, "dtype": "float32", "tokenizer": None}
    is_plain = all(plain.get(name, ...) == value for name, value in options.items())
    return demo() if source == "demo" and is_plain else _load_model(source, **options)
