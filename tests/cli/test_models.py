"""`tracekit models`."""

from __future__ import annotations

import json
import subprocess
import sys

from tools.architectures import paper_models
from tracekit.cli.data import PAPER


def test_models_are_listed_with_what_can_be_traced(command):
    code, out, err = command("models")
    assert code == 0, err
    lines = {line.split("│")[1].strip(): line for line in out.splitlines() if "│" in line}
    assert "1200" in lines["GPT2-xl"]
    assert "76800" in lines["GPT2-xl"]
    assert "every kind" in lines["llama"]
    assert "all but mlp-neurons" in lines["mixtral"]
    assert "mlp-neurons: the hidden units of experts have no hook point" in out
    assert command("models", "--json")[0] == 0


def test_numbers_of_components_are_those_of_the_registry():
    """`python -m tools.architectures` writes them."""
    assert json.loads(PAPER.read_text(encoding="utf-8")) == paper_models()


def test_a_list_loads_no_large_library():
    code = (
        "import sys; sys.argv = ['tracekit', 'models']\n"
        "import tracekit.cli\n"
        "try:\n    tracekit.cli.main()\n"
        "except SystemExit as ended:\n    assert not ended.code\n"
        "print({'torch', 'transformers', 'numpy', 'plotly', 'pandas'} & {*sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.endswith("set()\n"), ended.stdout + ended.stderr
