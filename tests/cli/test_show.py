"""`tracekit show`."""

from __future__ import annotations

import tracekit as tk
from tests import tiny


def test_show_prints_what_was_saved(command, tmp_path, model):
    tracer = tk.Tracer(model, tiny.pairs(4))
    tracer.run("top-k", budget=2).save(tmp_path / "one")
    code, out, _ = command("show", tmp_path / "one")
    assert code == 0
    assert "Selected: " + ", ".join(tracer.results[0].labels) in out
    assert "transformer-lens" in out
    tracer.run("random", budget=2, draws=2).save(tmp_path / "two")
    _, out, _ = command("show", tmp_path)
    assert "top-k" in out
    assert "random" in out
