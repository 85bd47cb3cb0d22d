"""What a result says should be cited."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import tracekit as tk
from tests import tiny
from tracekit._util.names import MethodName
from tracekit.results import result

ENTRIES = json.loads(Path(result.__file__).with_name("citations.json").read_text("utf-8"))


def keys_in(text):
    return re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)


def test_entries_are_of_methods_and_data_sets():
    named = {*get_args(MethodName), *tk.data.DATASETS, "tracekit", "multi-component"}
    assert ENTRIES.keys() <= named
    for entry in ENTRIES.values():
        assert len(keys_in(entry)) == 1
        assert entry.count("{") == entry.count("}")
        assert {"title", "author", "year"} <= {*re.findall(r"^  (\w+) = \{", entry, re.MULTILINE)}


def test_the_paper_is_cited_as_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    assert ENTRIES["multi-component"] in page


def test_a_result_cites_its_method_and_its_data(demo_model, model):
    pairs = tk.load_dataset("demo-facts", demo_model)[:4]
    result = tk.Tracer(demo_model, pairs, "head-outputs").run("attribution", budget=2)
    text = result.cite()
    papers = ["tracekit", "yan2026multicomponent", "syed2024attribution"]
    assert keys_in(text) == [*papers, "tracekit_demo_facts"]
    assert f"Embedded in tracekit {tk.__version__}" in text
    assert f"version = {{{tk.__version__}}}" in text
    own = tk.Tracer(model, tiny.pairs(4), "head-outputs").run("greedy", budget=2)
    assert keys_in(own.cite()) == ["tracekit", "yan2026multicomponent"]
    of_data = SimpleNamespace(origin=SimpleNamespace(dataset="variable-binding"))
    one_paper = SimpleNamespace(method="dcm", searched=of_data)
    assert keys_in(tk.TraceResult.cite(one_paper))[2:] == ["davies2023discovering"]
    learned = SimpleNamespace(method="learned-ranking", searched=SimpleNamespace(origin=None))
    assert keys_in(tk.TraceResult.cite(learned))[2:] == ["arora2026matryoshka"]
