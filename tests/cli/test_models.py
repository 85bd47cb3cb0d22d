"""`tracekit models`."""

from __future__ import annotations


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
