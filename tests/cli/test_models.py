"""`tracekit models`."""

from __future__ import annotations


def test_models_are_listed_with_what_can_be_traced(command, monkeypatch):
    from tracekit.engine import architectures

    few = {name: architectures.ARCHITECTURES[name] for name in ("llama", "mixtral")}
    monkeypatch.setattr(architectures, "ARCHITECTURES", few)
    code, out, err = command("models")
    assert code == 0, err
    lines = {line.split("│")[1].strip(): line for line in out.splitlines() if "│" in line}
    assert "1200" in lines["GPT2-xl"]
    assert "76800" in lines["GPT2-xl"]
    assert "every kind" in lines["llama"]
    assert "all but mlp-neurons" in lines["mixtral"]
    assert "MixtralForCausalLM cannot be traced by mlp-neurons" in out
    monkeypatch.setattr(architectures, "ARCHITECTURES", {"llama": few["llama"]})
    assert command("models", "--json")[0] == 0
