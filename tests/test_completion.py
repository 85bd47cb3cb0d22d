"""What editors offer and type checkers refuse, asked of pyright's language server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit as tk
from tracekit.components.kinds import KINDS
from tracekit.metrics import METRICS
from tracekit.search import METHODS

ROOT = Path(tk.__file__).parents[1]


class Server:
    """A language server, asked over its standard input and output."""

    def __init__(self, folder: Path) -> None:
        pytest.importorskip("pyright")
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyright.langserver", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        self.number = 0
        self.ask("initialize", processId=None, rootUri=folder.as_uri(), capabilities={})
        self.tell("initialized")

    def tell(self, method, **params):
        self.send({"method": method, "params": params})

    def ask(self, method, **params):
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        while (message := self.read()).get("id") != self.number or "method" in message:
            if "id" in message and "method" in message:
                # The server asks for its settings.
                count = len(message["params"].get("items", [])) if "params" in message else 0
                self.send({"id": message["id"], "result": [None] * count})
        return message["result"]

    def send(self, message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def read(self):
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length"):
                length = int(line.split(b":")[1])
        return json.loads(self.process.stdout.read(length))

    def completed(self, text: str) -> set[str]:
        """What is offered where a bar stands in a text."""
        before, after = text.split("|")
        uri = (self.folder / "asked.py").as_uri()
        self.number += 1
        document = {"uri": uri, "languageId": "python", "version": self.number}
        self.tell("textDocument/didOpen", textDocument={**document, "text": before + after})
        lines = before.split("\n")
        answer = self.ask(
            "textDocument/completion",
            textDocument={"uri": uri},
            position={"line": len(lines) - 1, "character": len(lines[-1])},
        )
        self.tell("textDocument/didClose", textDocument={"uri": uri})
        items = answer["items"] if isinstance(answer, dict) else answer or []
        return {item["label"].strip("\"'") for item in items}

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("editor")
    settings = {"extraPaths": [str(ROOT)], "pythonVersion": "3.10"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    server = Server(folder)
    yield server
    server.close()


BOUND = "import tracekit as tk\n\n\ndef asked(tracer: tk.Tracer, model, pairs):\n    "


@pytest.mark.slow
class TestCompletion:
    @pytest.mark.parametrize("call", ["tracer.run", "tracer.estimate"])
    def test_of_methods(self, server, call):
        assert set(METHODS) <= server.completed(f'{BOUND}{call}("|")')

    def test_of_kinds_and_metrics(self, server):
        assert set(KINDS) <= server.completed(f'{BOUND}tk.Tracer(model, pairs, "|")')
        asked = f'{BOUND}tk.Tracer(model, pairs, "residual", metric="|")'
        assert set(METRICS) <= server.completed(asked)

    def test_of_options_of_a_search_method(self, server):
        offered = server.completed(f"{BOUND}tracer.run(tk.search.Random(|))")
        assert "draws=" in offered
        assert "lambda1=" not in offered
        asked = f'{BOUND}tracer.run(tk.search.PGBCT(penalty_reduction="|"), budget=3)'
        assert {"sum", "mean"} <= server.completed(asked)


@pytest.mark.slow
def test_wrong_names_are_refused(tmp_path):
    pytest.importorskip("pyright")
    right = """
    result: tk.TraceResult = tracer.run(budget=3)
    result = tracer.run("pgb-ct", budget=3, lambda1=1e-3, seed=1)
    result = tracer.run(tk.search.PGBCT(epochs=3), target_effect=0.1)
    curve: tk.results.TraceCurve = tracer.run("random", budgets=[1, 2], draws=20)
    curve = tracer.run(tk.search.TopK, budgets=[1, 0.2])
    front: tk.ParetoFront = tracer.pareto(max_budget=3, max_passes=10)
    tk.Tracer(model, pairs, "attention-patterns+mlp-blocks", "odds-ratio")
"""
    wrong = [
        'tracer.run("top-q", budget=3)',
        "tracer.run(tk.search.TopK(draws=20), budget=3)",
        "tracer.run(tk.search.Random(drows=20), budget=3)",
        'tracer.run(tk.search.PGBCT(penalty_reduction="total"), budget=3)',
        'tk.Tracer(model, pairs, metric="odd-ratio")',
        'tracer.estimate("top-q", budget=3)',
    ]
    body = right + "".join(f"    {line}\n" for line in wrong)
    (tmp_path / "asked.py").write_text(BOUND.rstrip() + body)
    settings = {"extraPaths": [str(ROOT)], "pythonVersion": "3.10"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    report = json.loads(done.stdout)["generalDiagnostics"]
    lines = (tmp_path / "asked.py").read_text().splitlines()
    refused = {lines[each["range"]["start"]["line"]].strip() for each in report}
    assert refused == set(wrong)
