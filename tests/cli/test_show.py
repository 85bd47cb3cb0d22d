"""`tracekit show`."""

from __future__ import annotations

import tracekit as tk
from tests import tiny
from tracekit.cli.console import console
from tracekit.cli.tables import print_results


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
    # Saved results are read as runs too.
    frame = tk.load_runs(tmp_path).to_frame()
    assert frame["method"].tolist() == ["random", "top-k"]
    assert tk.TraceResult.load(frame["folder"][1]).labels == tracer.results[0].labels


def test_saved_runs_are_one_table_of_a_terminal_s_width(model, monkeypatch, capsys):
    monkeypatch.setattr(console, "width", 80)
    tracer = tk.Tracer(model, tiny.pairs(4))
    for budget in (10, 2, 4):
        tracer.run("top-k", budget=budget)
        tracer.run("random", budget=budget, draws=2)
    print_results(tracer.results, is_full=False)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("\u250f") for line in lines) == 1
    assert "4 searched examples of" in lines[0]
    sizes = [line.split("\u2502")[2].split()[0] for line in lines if " of 12 " in line]
    assert sizes == ["2", "4", "10"] * 2
    # No interval is broken.
    assert all(" to " in line.split("\u2502")[3] for line in lines if " of 12 " in line)
    text = " ".join(out.split())
    for result in tracer.results:
        assert all(label in text for label in result.labels[:3])


def test_the_table_of_a_run_has_five_columns_unless_all_are_asked_for(command, tmp_path, model):
    tracer = tk.Tracer(model, tiny.pairs(8), held_out=tiny.pairs(6, seed=9))
    for method in ("top-k", "greedy"):
        tracer.run(method, budget=3).save(tmp_path / method)
    _, out, _ = command("show", tmp_path)
    heading = " ".join(line for line in out.splitlines() if "\u2503" in line)
    assert heading.count("\u2503") == 6 * len([x for x in out.splitlines() if "\u2503" in x])
    assert "effect, held out" in " ".join(heading.replace("\u2503", " ").split())
    below = out[out.rindex("\u2518") + 1 :].strip().splitlines()
    assert len(below) <= 3
    assert "tracekit show --full: all columns." in " ".join(" ".join(below).split())
    low, high = tracer.results[0].held_out_interval
    assert f"({low:.3g} to {high:.3g})" in out
    _, full, _ = command("show", tmp_path, "--full")
    for column in ("complete,", "passes", "seconds", "share,"):
        assert column in full
        assert column not in out


def test_units_of_further_metrics_are_named(model, capsys):
    tracer = tk.Tracer(model, tiny.pairs(4), extra_metrics=["logit-difference"])
    print_results([tracer.run("top-k", budget=2)])
    assert "logit-difference: effect (logit difference, nats), searched." in " ".join(
        capsys.readouterr().out.split()
    )
