"""`tracekit trace`."""

from __future__ import annotations

import json
import re
from itertools import count

import pandas as pd
import pytest

import tracekit as tk
from tests.explore.bridge import CHROMIUM
from tracekit.cli.options import parse_layers
from tracekit.engine.engine import Engine
from tracekit.errors import ConfigError


@pytest.mark.slow
def test_trace_writes_figures_and_results(command, tmp_path, pictures):
    code, out, err = command(
        *("trace", "--dataset", "demo-bias", "--limit", 8, "--budget", 2, "--budget", "0.2"),
        *("--method", "top-k", "--method", "random", "--option", "random:draws=5"),
        *("--layers", "0-1,3", "--output", tmp_path, "--quiet"),
    )
    assert code == 0, err
    assert "24 attention-patterns in layers 0-1, 3 of demo, 8 examples of demo-bias" in out
    for name in ("heatmap.html", "curve.html", "plotly.min.js"):
        assert (tmp_path / name).exists()
    # Not of the random control, which ran last.
    assert "top-k: demo-bias data" in (tmp_path / "heatmap.html").read_text(encoding="utf-8")
    if CHROMIUM is not None:
        assert (tmp_path / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    result = tk.TraceResult.load(tmp_path / "random-4")
    assert (result.budget, result.config) == (4, {"draws": 5})
    assert f"{result.effect:.4g}" in out
    _, shown, _ = command("show", tmp_path / "random-4")
    choices = f"random, 4 selected, searched: {result.searched.choices_text}."
    assert choices in " ".join(shown.split())
    assert tk.TraceResult.load(tmp_path / "top-k-2").n_selected == 2


class TestDryRun:
    def test_says_how_long_and_writes_nothing(self, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, err = command(
            *("trace", "--limit", 4, "--budget", 2, "--layers", "0", "--dry-run"),
            *("--method", "top-k", "--method", "pgb-ct+local", "--save-config", "run.toml"),
        )
        assert code == 0, err
        assert "top-k: 9 passes and 2 for the results, about " in out
        assert "pgb-ct+local: up to 250 passes, about " in out
        assert re.search(
            r"Estimated: about .* in all; \d+ MiB of memory. Nothing was run or written.", out
        )
        assert "Faster" not in out
        assert not any(tmp_path.iterdir())
        code, out, err = command(
            *("trace", "--limit", 4, "--budget", 2, "--components", "edges-by-block", "--dry-run")
        )
        assert "learned-ranking: up to " in out, err

    def test_checks_the_pairs(self, command, tmp_path, demo_model):
        pairs = tk.load_dataset("demo-bias", demo_model)[:8]
        rows = [{**pair.texts, "group": "abcd"[n // 2]} for n, pair in enumerate(pairs)]
        path = tmp_path / "mine.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        trace = ("trace", "--dataset", path, "--budget", 2, "--method", "top-k", "--dry-run")
        code, out, _ = command(*trace, "--held-out", 0.25, "--json")
        document = json.loads(out)
        checks = {row["check"]: row for row in document["tables"]["checks"]}
        assert (code, set(checks)) == (0, {"tokens", "groups"})
        assert checks["groups"]["color"] == "red"
        text = "3 independent groups in 6 examples; held out: 1 independent group in 2 examples"
        assert checks["groups"]["finding"].startswith(text)
        assert "4 of 6 checks of the pairs are green." in document["lines"]

    def test_of_a_front(self, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, err = command(
            *("pareto", "--limit", 4, "--max-budget", 2, "--layers", "0"),
            *("--max-passes", 30, "--dry-run"),
        )
        assert code == 0, err
        # The limit is one of local search; eight heads alone and four sets of them come besides.
        assert "local-search: up to 40 passes and 106 for the results, about " in out
        assert not any(tmp_path.iterdir())


class TestOptionsFromAFile:
    FILE = """
        dataset = "demo-bias"
        limit = 8
        budget = [2, 0.2]
        method = ["top-k", "random"]
        max-batch-size = 4

        [option.random]
        draws = 5
    """

    @pytest.mark.slow
    def test_a_file_stands_for_options_and_the_command_line_counts_more(self, command, tmp_path):
        (config := tmp_path / "run.toml").write_text(self.FILE)
        saved = tmp_path / "saved.toml"
        code, out, err = command(
            *("trace", "--config", config, "--limit", 6, "--save-config", saved),
            *("--output", tmp_path / "one", "--quiet"),
        )
        assert code == 0, err
        assert "6 examples of demo-bias" in out
        first = tk.TraceResult.load(tmp_path / "one" / "random-6")
        assert first.config == {"draws": 5}
        # What was saved repeats the run.
        code, _, err = command("trace", "--config", saved, "--output", tmp_path / "two")
        assert code == 0, err
        for name in ("top-k-2", "top-k-6", "random-2", "random-6"):
            one, two = (tk.TraceResult.load(tmp_path / run / name) for run in ("one", "two"))
            assert (one.labels, one.effect) == (two.labels, two.effect)
        text = saved.read_text()
        assert "max_batch_size = 4" in text
        assert "config" not in text

    @pytest.mark.parametrize(
        ("line", "status", "text"),
        [
            ("limt = 3", 1, "Error: Unknown key 'limt'. Did you mean 'limit'?"),
            ("config = 'other.toml'", 1, "Error: Unknown key 'config'."),
            ("limit = ", 1, "cannot be read as TOML"),
            ("limit = 'many'", 2, "Invalid value for '--limit'"),
            ("method = 'topk'", 1, "Error: Unknown method 'topk'. Did you mean 'top-k'?"),
        ],
    )
    def test_what_is_wrong_in_a_file(self, command, tmp_path, line, status, text):
        (config := tmp_path / "run.toml").write_text(line)
        code, _, err = command("trace", "--config", config, "--output", tmp_path / "out")
        assert code == status
        assert text in err
        assert not (tmp_path / "out").exists()

    def test_files_that_cannot_be_read_or_written(self, command, tmp_path):
        code, _, err = command("trace", "--config", tmp_path / "gone.toml")
        assert (code, "There is no file" in err) == (1, True)
        code, _, err = command("trace", "--save-config", tmp_path, "--output", tmp_path / "out")
        assert (code, "is a folder. Give a file." in err) == (1, True)


@pytest.mark.slow
def test_given_lambdas_need_no_budget(command, tmp_path):
    code, _, err = command(
        *("trace", "--limit", 4, "--option", "lambda1=0.001", "--option", "epochs=2"),
        *("--output", tmp_path, "--quiet"),
    )
    assert code == 0, err
    (folder,) = [path.parent for path in tmp_path.glob("*/result.json")]
    document = json.loads((folder / "result.json").read_text())
    assert document["run"]["config"]["lambda1"] == 0.001
    assert len(document["history"]) == 2


@pytest.mark.slow
def test_own_pairs_held_out(command, tmp_path, demo_model):
    path = tmp_path / "mine.csv"
    rows = [pair.texts for pair in tk.load_dataset("demo-bias", demo_model)[:10]]
    columns = ["prompt", "counterfactual", "x", "y"]
    lines = [",".join(f'"{row[c]}"' for c in columns) for row in rows]
    path.write_text("\n".join([",".join(columns), *lines]))
    code, out, err = command(
        *("trace", "--dataset", path, "--held-out", 0.2, "--method", "top-k", "--budget", 2),
        *("--method", "mask-ig", "--option", "mask-ig:steps=3"),
        *("--output", tmp_path / "run", "--quiet"),
    )
    assert code == 0, err
    result = tk.TraceResult.load(tmp_path / "run" / "mask-ig-2")
    assert (len(result.per_example), result.held_out.n_examples) == (8, 2)
    assert "8 searched and 2 held-out examples of mine" in out
    assert f"{result.held_out_effect:.4g}" in out


def test_bounds_on_memory(command, tmp_path, monkeypatch):
    bounds = []
    original = tk.Tracer.__init__

    def note(self, *args, **options):
        bounds.append((options["max_batch_size"], options["max_memory"]))
        original(self, *args, **options)

    monkeypatch.setattr(tk.Tracer, "__init__", note)
    code, _, err = command(
        *("trace", "--limit", 4, "--budget", 2, "--max-batch-size", 3, "--max-memory", 5),
        *("--method", "pgb-ct", "--option", "trials=1", "--option", "epochs=2"),
        *("--output", tmp_path, "--quiet"),
    )
    assert code == 0, err
    assert bounds == [(3, 5 * 2**20)]


@pytest.mark.slow
def test_the_smallest_faithful_set(command, tmp_path):
    options = ("--limit", 6, "--dataset", "demo-facts", "--components", "head-outputs")
    code, _, err = command(
        *("trace", *options, "--faithfulness", 0.5, "--method", "mask-ig"),
        *("--output", tmp_path),
    )
    assert code == 0, err
    (folder,) = tmp_path.glob("mask-ig-*")
    result = tk.TraceResult.load(folder)
    assert result.run.objective == "faithful"
    assert result.faithfulness().faithfulness[0] >= 0.5


def test_targets_and_positions(command, tmp_path):
    code, _, err = command(
        *("trace", "--limit", 4, "--target-effect", 0.1, "--method", "greedy"),
        *(
            "--positions",
            "2,-1",
            "--continuation-mean",
            "arithmetic",
            "--output",
            tmp_path,
            "--quiet",
        ),
    )
    assert code == 0, err
    result = tk.TraceResult.load(next(tmp_path.glob("greedy-*")))
    assert result.effect >= 0.1
    assert (result.setup.positions, result.setup.continuation_mean) == ((2, -1), "arithmetic")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--dataset", "demo-bia"], "Unknown data set 'demo-bia'. Did you mean 'demo-bias'?"),
        (["--metric", "odds"], "Unknown metric 'odds'."),
        (["--components", "head"], "Unknown component kind 'head'. Did you mean 'head-outputs'?"),
        (["--method", "topk"], "Unknown method 'topk'. Did you mean 'top-k'?"),
        (["--model", "./nowhere"], "There is no directory ./nowhere."),
        (["--budget", "many"], "The budget 'many' is not a number."),
        (["--budget", "99"], "A budget of 99 means 99 of 32 components."),
        (
            ["--budget", "2", "--target-effect", "1"],
            "More than one goal was given. Give one of --budget, --target-effect and",
        ),
        (["--target-effect", "1", "--faithfulness", "0.9"], "More than one goal was given."),
        (["--faithfulness", "1.2"], "faithfulness"),
        (["--layers", "one"], "The layers 'one' are not of the form 0-5,8."),
        (["--option", "draws"], "The option 'draws' is not of the form name=value."),
        (["--option", "greedy:draws=1"], "The option 'greedy:draws=1' is for greedy, which is not"),
        (["--option", "draws=1"], "Unknown option 'draws'."),
        (["--positions", "first"], "The positions are 'first'."),
        (
            ["--dataset", "known-facts"],
            "needs the file known_1000.json, and no data_dir",
        ),
        (["--dataset", "demo-bias", "--split", "test"], "Unknown option 'split'."),
        (["--budget", "nan"], "A budget of nan is no number of components."),
        (["--option", "epochs=abc"], "The option epochs is 'abc'. Input should be a valid integer"),
        (["--device", "abacus"], "The device 'abacus' cannot be used"),
        (["--model", "[/x]"], "'[/x]' is neither a directory nor a possible hub name."),
        (["--dtype", "int4"], "dtype is 'int4'. Use one of auto"),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(command, tmp_path, arguments, text, unchecked):
    code, out, err = command("trace", "--quiet", "--output", tmp_path / "none", *arguments)
    assert code == 1
    assert err.startswith("Error: ")
    assert text in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "none").exists()


def test_what_is_done_is_kept_when_a_later_method_fails(command, tmp_path):
    code, _, err = command(
        *("trace", "--limit", 4, "--method", "top-k", "--method", "pgb-ct", "--metric", "accuracy"),
        *("--budget", 2, "--output", tmp_path, "--quiet"),
    )
    assert code == 1
    assert "'accuracy' has no gradient for pgb-ct to follow" in err
    assert tk.TraceResult.load(tmp_path / "top-k-2").n_selected == 2
    (tmp_path / "file").touch()
    code, _, err = command("trace", "--output", tmp_path / "file")
    assert code == 1
    assert "is a file. Give a folder." in err


def test_warnings_are_one_line(command, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("prompt,counterfactual,x,y\nthe cook,the maid,a,b\n")
    code, _, err = command(
        *("trace", "--dataset", path, "--budget", 1, "--method", "top-k", "--quiet"),
        *("--output", tmp_path / "run"),
    )
    assert code == 0
    of_space, of_words, of_sign = err.splitlines()
    assert of_words.startswith("Warning: 1 of 1 examples have a word that the tokenizer does not ")
    assert of_space.startswith("Warning: A continuation begins within a word; give it its leading")
    assert of_sign.startswith("Warning: All components together have an effect of -0.0366")


@pytest.mark.parametrize("text", ["0-3000000000", "0-99999999999999999999", "1,2-20000"])
def test_layers_beyond_any_model_are_refused(text):
    with pytest.raises(ConfigError, match="are more than any model has|are not of the form"):
        parse_layers(text)


@pytest.mark.slow
def test_a_plotly_script_that_was_cut_short_is_written_again(command, tmp_path):
    (tmp_path / "plotly.min.js").write_text("cut sho")
    code, _, err = command(
        *("trace", "--limit", 4, "--method", "top-k", "--output", tmp_path, "--quiet")
    )
    assert code == 0, err
    assert (tmp_path / "plotly.min.js").stat().st_size > 1_000_000


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_sources_and_directions(command, tmp_path):
    base = ("trace", "--dataset", "demo-facts", "--limit", 6, "--components", "head-outputs")
    rest = ("--method", "top-k", "--budget", 2, "--quiet", "--output")
    code, _, err = command(*base, "--source", "mean", *rest, tmp_path / "mean")
    assert code == 0, err
    assert tk.TraceResult.load(tmp_path / "mean" / "top-k-2").setup.source == "mean"
    code, _, err = command(*base, "--direction", "denoising", *rest, tmp_path / "back")
    assert code == 0, err
    result = tk.TraceResult.load(tmp_path / "back" / "top-k-2")
    assert (result.setup.source, result.setup.direction) == ("counterfactual", "denoising")
    code, out, err = command("show", tmp_path)
    assert code == 0, err
    # What was traced stands above the table of each setup.
    titles = [line for line in out.splitlines() if line.startswith("demo; 6 searched examples")]
    assert sum("mean ablation" in title for title in titles) == 1
    assert sum("denoising" in title for title in titles) == 1
    code, _, err = command(*base, "--source", "zero", "--direction", "denoising", *rest, tmp_path)
    assert code == 1
    assert "cannot be reversed" in err
    code, _, err = command(*base, "--source", "nothing", *rest, tmp_path)
    assert code == 1
    assert "Unknown source 'nothing'" in err


@pytest.mark.slow
def test_further_metrics_spans_and_bounds(command, tmp_path):
    code, out, err = command(
        *("trace", "--dataset", "demo-facts", "--limit", "8", "--components", "residual"),
        *("--split-by", "span", "--layer-window", "2"),
        *("--extra-metric", "kl", "--extra-metric", "rank-change"),
        *("--method", "greedy", "--budget", "2", "--constraint-at-most", "5", "--quiet"),
        *("--output", str(tmp_path / "run")),
    )
    assert code == 0, err
    assert "rank-change" in out
    result = tk.TraceResult.load(tmp_path / "run" / "greedy-2")
    assert set(result.extra_effects) == {"kl", "rank-change"}
    assert result.constraint.at_most == 5
    assert result.components[0].span in ("subject", "rest", "last")
    code, _, err = command("pareto", "--limit", "8", "--constraint-dataset", "demo-bias")
    assert code == 1
    assert "--constraint-dataset needs a bound" in err
    code, _, err = command("pareto", "--limit", "8", "--constraint-metric", "kl")
    assert code == 1
    assert "--constraint-metric needs a bound" in err


class TestCtrlC:
    """While `trace` runs its methods."""

    OPTIONS = ("trace", "--dataset", "demo-facts", "--limit", 4, "--layers", "1", "--budget", 3)

    @staticmethod
    def press_after(monkeypatch, calls):
        """Ctrl-C, once, when sets are measured the next time after some calls."""
        number, original = count(), Engine.set_effects

        def measure(self, *arguments, **rest):
            if next(number) == calls:
                raise KeyboardInterrupt
            return original(self, *arguments, **rest)

        monkeypatch.setattr(Engine, "set_effects", measure)

    @pytest.mark.slow
    def test_keeps_and_prints_what_there_is(self, command, tmp_path, monkeypatch):
        # Top-k measures single components and a complement; greedy is stopped in its third round.
        self.press_after(monkeypatch, 4)
        methods = ("--method", "top-k", "--method", "greedy", "--method", "random")
        code, out, err = command(*self.OPTIONS, *methods, "--output", tmp_path)
        assert code == 0, err
        assert "Stopped by Ctrl-C: the result is the best found so far." in err
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
            "greedy-3",
            "top-k-3",
        ]
        stopped = tk.TraceResult.load(tmp_path / "greedy-3")
        assert (stopped.stopped, stopped.n_selected) == ("interrupted", 2)
        assert tk.TraceResult.load(tmp_path / "top-k-3").stopped is None
        for result in (stopped, tk.TraceResult.load(tmp_path / "top-k-3")):
            assert f"{result.effect:.4g}" in out
        assert "greedy" in out
        assert "random" not in out
        assert (tmp_path / "heatmap.html").exists()

    def test_without_anything_measured_says_so(self, command, tmp_path, monkeypatch):
        self.press_after(monkeypatch, 0)
        code, _, err = command(*self.OPTIONS, "--method", "top-k", "--output", tmp_path)
        assert code == 130
        assert err.strip().endswith("Stopped.")
        assert "Traceback" not in err
        assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("source", ["zero", "counterfactual"])
def test_a_sweep_and_the_command_line_split_as_the_source_needs(command, crossed, tmp_path, source):
    path = tmp_path / "crossed.jsonl"
    pd.DataFrame([pair.texts for pair in crossed]).to_json(path, orient="records", lines=True)
    asked = {"methods": ["top-k"], "budgets": [1], "held_out": 0.5, "source": source}
    output = tmp_path / "sweep"
    (run,) = tk.sweep(models=["demo"], datasets=[str(path)], output=output, **asked)
    assert run.result is not None, run.error
    code, _, err = command(
        *("trace", "--dataset", path, "--held-out", 0.5, "--source", source),
        *("--method", "top-k", "--budget", 1, "--output", tmp_path / "run"),
    )
    assert code == 0, err
    result = tk.TraceResult.load(tmp_path / "run" / "top-k-1")
    assert result.held_out.n_independent == run.result.held_out.n_independent
    assert result.searched.n_independent + result.held_out.n_independent == (
        7 if source == "zero" else 12
    )
