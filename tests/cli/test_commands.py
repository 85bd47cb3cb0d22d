from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys

import pandas as pd
import pytest
import typer
from rich.table import Table

import tracekit as tk
from tests import tiny
from tracekit import cli
from tracekit.cli.app import PANELS
from tracekit.cli.output import console, error_console, print_rows
from tracekit.cli.parsing import parse_layers
from tracekit.engine.engine import Engine
from tracekit.errors import ConfigError
from tracekit.reports.page import Section, write_page


def run(monkeypatch, capsys, *arguments):
    """Runs a command in this process; gives exit code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["tracekit", *map(str, arguments)])
    monkeypatch.setattr(console, "width", 160)
    monkeypatch.setattr(error_console, "width", 400)
    code = 0
    try:
        cli.main()
    except SystemExit as stopped:
        code = stopped.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def command(monkeypatch, capsys):
    return lambda *arguments: run(monkeypatch, capsys, *arguments)


def test_trace_writes_figures_and_results(command, tmp_path):
    code, out, err = command(
        *("trace", "--dataset", "demo-bias", "--limit", 8, "--budget", 2, "--budget", "0.2"),
        *("--method", "top-k", "--method", "random", "--option", "random:draws=5"),
        *("--layers", "0-1,3", "--output", tmp_path, "--quiet"),
    )
    assert code == 0, err
    assert "24 attention-patterns in layers 0-1, 3 of demo, 8 examples of demo-bias" in out
    for name in ("heatmap.html", "curve.html", "plotly.min.js"):
        assert (tmp_path / name).exists()
    result = tk.TraceResult.load(tmp_path / "random-4")
    assert (result.budget, result.config) == (4, {"draws": 5, "race": False})
    assert f"{result.effect:.4g}" in out
    assert tk.TraceResult.load(tmp_path / "top-k-2").n_selected == 2


class TestPathsAreCheckedFirst:
    """Before a model is loaded, which takes half a minute and more."""

    @pytest.fixture(autouse=True)
    def _no_model(self, monkeypatch):
        def loaded(*given, **options):
            pytest.fail("a model was loaded")

        monkeypatch.setattr("tracekit.cli.options.load", loaded)

    @pytest.mark.parametrize("start", [("trace", "--budget", 2), ("pareto",)])
    def test_of_one_trace(self, command, tmp_path, start):
        bad = tmp_path / "bad.csv"
        bad.write_text("prompt,answer\nthe nurse, she\n")
        code, _, err = command(*start, "--dataset", bad, "-o", tmp_path)
        assert (code, "unknown column 'answer'" in err) == (1, True)
        code, _, err = command(*start, "--dataset", tmp_path / "none.jsonl", "-o", tmp_path)
        assert (code, "There is no file" in err) == (1, True)
        code, _, err = command(*start, "--data-dir", tmp_path / "none", "-o", tmp_path)
        assert (code, "with data files. Give another." in err) == (1, True)
        code, _, err = command(*start, "--keep-dataset", bad, "--keep-at-most", 1, "-o", tmp_path)
        assert (code, "unknown column 'answer'" in err) == (1, True)

    def test_of_a_reproduction(self, command, tmp_path):
        options = ("table-heads", "--model", "demo", "-o", tmp_path / "out")
        code, _, err = command("reproduce", *options, "--dataset", tmp_path / "none.csv")
        assert (code, "There is no file" in err) == (1, True)
        code, _, err = command("reproduce", *options, "--data-dir", tmp_path / "none")
        assert (code, "with data files" in err) == (1, True)


def test_the_list_of_experiments_fits_a_terminal(capsys, monkeypatch):
    from tracekit.cli.reproduce import _print_experiments
    from tracekit.paper import EXPERIMENTS

    monkeypatch.setattr(console, "width", 80)
    _print_experiments()
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    for name in EXPERIMENTS:
        assert name in out.split()


class TestDryRun:
    def test_says_how_long_and_writes_nothing(self, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, err = command(
            *("trace", "--limit", 4, "--budget", 2, "--layers", "0", "--dry-run"),
            *("--method", "top-k", "--method", "pgb-ct", "--save-config", "run.toml"),
        )
        assert code == 0, err
        assert "top-k: 9 passes, about " in out
        assert "pgb-ct: up to 250 passes, about " in out
        assert re.search(r"In all about .*; \d+ MiB of memory. Nothing was run or written.", out)
        assert not any(tmp_path.iterdir())

    def test_of_a_front(self, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, out, err = command(
            "pareto", "--limit", 4, "--budget", 2, "--layers", "0", "--max-passes", 30, "--dry-run"
        )
        assert code == 0, err
        # The limit is one of local search; eight heads alone and two sets of them come besides.
        assert "local-search: up to 40 passes, about " in out
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
        assert first.config == {"draws": 5, "race": False}
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


@pytest.mark.slow
def test_given_lambdas_need_no_budget(command, tmp_path):
    code, _, err = command(
        *("trace", "--limit", 4, "--option", "lambda1=0.001", "--option", "epochs=2"),
        *("--output", tmp_path, "--quiet"),
    )
    assert code == 0, err
    (folder,) = [path.parent for path in tmp_path.glob("*/result.json")]
    document = json.loads((folder / "result.json").read_text())
    assert document["config"]["lambda1"] == 0.001
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
        *("--method", "mask-ig", "--option", "mask-ig:steps=3", "--data-option", "seed=3"),
        *("--output", tmp_path / "run", "--quiet"),
    )
    assert code == 0, err
    result = tk.TraceResult.load(tmp_path / "run" / "mask-ig-2")
    assert (len(result.per_example), len(result.held_out)) == (8, 2)
    assert "held out" in out
    assert f"{result.held_out_effect:.4g}" in out


@pytest.mark.slow
def test_bounds_on_memory_and_precision(command, tmp_path, monkeypatch):
    bounds = []
    original = tk.Tracer.__init__

    def note(self, *args, **options):
        bounds.append((options["max_batch_size"], options["max_memory"]))
        original(self, *args, **options)

    monkeypatch.setattr(tk.Tracer, "__init__", note)
    code, _, err = command(
        *("trace", "--limit", 4, "--budget", 2, "--max-batch-size", 3, "--max-memory", 5),
        *("--option", "trials=1", "--option", "epochs=2", "--option", "precision=bfloat16"),
        *("--output", tmp_path, "--quiet"),
    )
    assert code == 0, err
    assert bounds == [(3, 5 * 2**20)]
    result = tk.TraceResult.load(next(tmp_path.glob("pgb-ct-*")))
    assert result.config["precision"] == "bfloat16"


def test_pareto_fronts(command, tmp_path):
    code, out, err = command(
        *("pareto", "--limit", 6, "--budget", 4, "--max-passes", 20),
        *("--checkpoint", tmp_path / "kept", "--output", tmp_path / "run", "--quiet"),
    )
    assert code == 0, err
    path = tk.ParetoFront.load(tmp_path / "run" / "pareto")
    assert path.largest == 4
    assert (tmp_path / "run" / "pareto.html").exists()
    assert (tmp_path / "kept").exists()
    for text in ("held out", "stability", "Stopped by --max-passes", "for the statistics"):
        assert text in out
    assert f"{path.statistics[0].held_out:.4g}" in out
    again, out, _ = command(
        *("pareto", "--limit", 6, "--budget", 4, "--max-passes", 20),
        *("--checkpoint", tmp_path / "kept", "--output", tmp_path / "run", "--quiet"),
    )
    assert again == 0
    assert tk.ParetoFront.load(tmp_path / "run" / "pareto").to_frame().equals(path.to_frame())


def test_pareto_fronts_of_few_examples_and_whole_blocks(command, tmp_path):
    """No halves, and no other set of the same layers: dashes."""
    code, out, err = command(
        *("pareto", "--limit", 3, "--components", "mlp-blocks"),
        *("--output", tmp_path, "--quiet"),
    )
    assert code == 0, err
    assert out.count(" - ") >= 3


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
    assert (result.positions, result.continuation_mean) == ((2, -1), "arithmetic")


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
            "Both --budget and --target-effect were given.",
        ),
        (["--layers", "one"], "The layers 'one' are not of the form 0-5,8."),
        (["--option", "draws"], "The option 'draws' is not of the form name=value."),
        (["--option", "greedy:draws=1"], "The option 'greedy:draws=1' is for greedy, which is not"),
        (["--option", "draws=1"], "Unknown option 'draws'."),
        (["--positions", "first"], "Unknown positions 'first'."),
        (
            ["--dataset", "known-facts"],
            "needs the file known_1000.json, and no data_dir",
        ),
        (["--dataset", "demo-bias", "--split", "test"], "Unknown option 'split'."),
        (["--budget", "nan"], "A budget of nan is no number of components."),
        (["--option", "epochs=abc"], "The option epochs is 'abc'. Input should be a valid integer"),
        (["--device", "abacus"], "The device 'abacus' cannot be used"),
        (["--model", "[/x]"], "'[/x]' is neither a directory nor a possible hub name."),
        (["--dtype", "int4"], "Unknown dtype 'int4'. Use one of auto"),
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


def test_wrong_usage_and_empty_folders(command, tmp_path):
    code, _, err = command("trace", "--colour", "red")
    assert code == 2
    assert "No such option" in err
    code, _, err = command("show", tmp_path)
    assert code == 1
    assert "holds no result.json" in err


def test_lists_and_version(command):
    assert "demo-binding" in command("datasets")[1]
    assert command("--version")[1].strip() == f"tracekit {tk.__version__}"


def test_help_is_light():
    """Neither help nor `import tracekit` loads torch."""
    script = (
        "import sys, tracekit, tracekit.cli; print([m for m in ('torch', 'plotly', 'pandas') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    """Output and folder of `tracekit demo`, in a process and a terminal of its own."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "demo", "--output", str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", "HF_HUB_OFFLINE": "1"},
        timeout=300,
        check=True,
    )
    return done.stdout, folder


@pytest.mark.slow
def test_the_demo_tells_the_story_with_its_numbers(demo_run):
    out, folder = demo_run
    story = (
        "L1H4 alone 0.138, L1H7 alone 0.007, together 0.293. Top-k takes L0H1 and L1H4 "
        "instead: 0.148. It is below the best random sets at 2 and 6 heads."
    )
    assert story in " ".join(out.split())
    rows = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in out.splitlines()
        if line.startswith("│ ") and line[2] != " "
    }
    assert list(rows) == ["PGB-CT", "greedy", "top-k", "random"]
    for name, method in (("PGB-CT", "pgb-ct"), ("top-k", "top-k")):
        effects = [tk.TraceResult.load(folder / f"{method}-{k}").effect for k in (2, 3, 4, 6, 9)]
        assert rows[name][:5] == [f"{effect:.3f}" for effect in effects]
    assert max(map(len, out.splitlines()[:-1])) <= 96
    assert out.splitlines()[-1].endswith((folder / "index.html").as_uri())


@pytest.mark.slow
def test_the_page_of_the_demo_needs_no_network(demo_run):
    _, folder = demo_run
    text = (folder / "index.html").read_text(encoding="utf-8")
    body = text[text.index("</script></head>") :]
    assert "together 0.293" in body
    assert body.count('class="plotly-graph-div"') == 5
    for heading in ("Which heads each method selects", "Who acts together", "What to do next"):
        assert heading in body
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", body)
    for member in tk.TraceResult.load(folder / "pgb-ct-6").labels:
        assert f"<td>{member}</td>" in body
    assert len(tk.ParetoFront.load(folder / "pareto")) >= 5


def test_pages_escape_every_text(tmp_path):
    bad = '<script>alert(1)</script> & "quotes"'
    sections = [
        Section(
            heading=bad,
            lead=bad,
            paragraphs=[bad],
            table=pd.DataFrame({bad: [bad]}),
            note=bad,
            code=bad,
        )
    ]
    text = write_page(tmp_path / "deep" / "page.html", bad, sections).read_text(encoding="utf-8")
    after = text[text.rindex("</script></head>") :]
    assert "<script>alert" not in after
    assert after.count("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;quotes&quot;") == 8


def test_masks_are_evaluated(command, tmp_path, demo_model):
    pairs = tk.load_dataset("demo-bias", demo_model)[:6]
    result = tk.Tracer(demo_model, pairs).run("top-k", budget=3)
    result.save(tmp_path / "run")
    (tmp_path / "soft.json").write_text(json.dumps([0.5] * 32))
    code, out, err = command(
        *("evaluate", "--limit", 6, "--mask", tmp_path / "run", "--mask", tmp_path / "soft.json"),
        *("--output", tmp_path / "effects.csv"),
    )
    assert code == 0, err
    assert f"{result.effect:.6g}" in out
    frame = pd.read_csv(tmp_path / "effects.csv")
    assert frame["mask"].tolist() == ["run"] * 6 + ["soft.json"] * 6
    assert frame["effect"][:6].tolist() == pytest.approx(result.per_example.tolist(), rel=1e-5)
    code, _, err = command(
        *("evaluate", "--limit", 6, "--mask", tmp_path / "run", "--components", "head-outputs")
    )
    assert code == 1
    assert "(attention-patterns) is not among the 32 components of this registry" in err
    (tmp_path / "bad.json").write_text('{"a": 1}')
    for name, text in (
        ("bad.json", "holds no mask. Write a JSON list with one number per component"),
        ("none.json", "There is no file"),
        ("soft.json", "Its last axis needs one entry for each of the 8 components"),
    ):
        options = ["--layers", "0"] if name == "soft.json" else []
        code, _, err = command("evaluate", "--limit", 6, "--mask", tmp_path / name, *options)
        assert code == 1
        assert text in err


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


@pytest.mark.slow
def test_reproduce(command, tmp_path):
    code, out, _ = command("reproduce", "--list")
    assert code == 0
    assert "fig-nonadditivity" in out
    arguments = (
        *("reproduce", "table-single", "fig-dcm", "--model", "demo", "--dataset", "demo-bias"),
        *("--methods", "top-k", "--limit", 6, "--output", tmp_path, "--quiet"),
    )
    code, out, err = command(*arguments)
    assert code == 0, err
    assert "Ran 4 of 4; the rest were cached" in out
    assert "not a reproduction of its numbers" in " ".join(out.split())
    for name in ("single.csv", "single.tex", "notes.md"):
        assert (tmp_path / "table-single" / name).exists()
    assert (tmp_path / "fig-dcm" / "share-demo-demo-bias.html").exists()
    code, out, _ = command(*arguments)
    assert "Ran 0 of 4; the rest were cached" in out
    code, _, err = command("reproduce", "table-single", "--methods", "top", "--output", tmp_path)
    assert code == 1
    assert "Unknown method 'top'. Did you mean 'top-k'?" in err
    code, _, err = command("reproduce", "fig-9")
    assert code == 1
    assert "Unknown experiment 'fig-9'." in err


def test_validate(command, tmp_path, monkeypatch, demo_model):
    """On the command line, with a table of the embedded model, and with other weights."""
    pairs = tk.load_dataset("demo-bias", demo_model)
    tracer = tk.Tracer(demo_model, pairs)
    entry = {
        "dataset": "demo-bias",
        "model": "demo",
        "n_examples": len(pairs),
        "all_heads_effect": tracer.full_effect,
        "single_head_effect": tracer.run("top-k", budget=1).component_scores.reshape(4, 8).tolist(),
    }
    table = tmp_path / "table.json"
    table.write_text(json.dumps(entry))
    code, out, err = command("validate", "demo", "--dataset", "demo-bias", "--table", table)
    assert code == 0, err
    assert "demo agrees with demo." in out
    assert "1.000000" in out
    entry["single_head_effect"][0].reverse()
    table.write_text(json.dumps(entry))
    code, out, err = command("validate", "demo", "--dataset", "demo-bias", "--table", table)
    assert code == 1
    assert "demo does not agree with the table for demo on demo-bias: the correlation" in err


@pytest.mark.soak
def test_random_weights_do_not_validate_as_gpt2(command, tmp_path, shared, gpt2_tokenizer):
    """The real sizes of DistilGPT2, its tokenizer and data, but not its weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=6)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "distilgpt2")
    gpt2_tokenizer.save_pretrained(tmp_path / "distilgpt2")
    code, out, err = command(
        *("validate", tmp_path / "distilgpt2", "--data-dir", shared / "data" / "winogender"),
        "--quiet",
    )
    assert code == 1
    assert "Vig et al. 2020" in out
    assert "does not agree with the table for distilgpt2 on winogender-bergsma" in err


def test_errors_pass_between_processes():
    from tracekit import errors

    error = errors.UnknownOptionError("lamda", ["lambda1"])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    plain = errors.ConfigError("No. Yes.")
    assert str(pickle.loads(pickle.dumps(plain))) == "No. Yes."


def test_what_was_not_done_is_said(command, tmp_path):
    code, out, _ = command(
        *("reproduce", "table-single", "--model", "demo", "--dataset", "demo-bias", "--limit", 6),
        *("--methods", "top-k,exhaustive", "--output", tmp_path, "--quiet"),
        *("--jobs", 1),
    )
    assert code == 0
    code, out, _ = command(
        *("reproduce", "table-heads", "--model", "demo", "--dataset", "demo-bias", "--limit", 4),
        *("--methods", "top-k,exhaustive", "--output", tmp_path, "--quiet"),
    )
    assert code == 1
    assert "Skipped: demo, demo-bias, exhaustive: " in " ".join(out.split())


class TestOutputs:
    """Where nothing can be written, that is said before a model is loaded."""

    @pytest.fixture
    def no_loading(self, monkeypatch):
        def load(*given, **options):
            raise AssertionError("a model was loaded")

        for module in (cli.options, cli.demo, cli.validate):
            monkeypatch.setattr(module, "load", load)

    @pytest.mark.parametrize("name", ["afile", "afile/sub", "x" * 300, "/dev/null/x"])
    @pytest.mark.parametrize(
        "arguments",
        [
            ["trace"],
            ["pareto"],
            ["demo"],
            ["evaluate", "--mask", "mask.json"],
            ["reproduce", "table-heads", "--model", "demo"],
        ],
        ids=lambda arguments: arguments[0],
    )
    @pytest.mark.usefixtures("no_loading")
    def test_bad_outputs(self, command, tmp_path, name, arguments):
        (tmp_path / "afile").write_text("kept")
        bad = tmp_path / name
        if (arguments[0], name) == ("evaluate", "afile"):
            bad = tmp_path
        code, _, err = command(*arguments, "--output", bad)
        assert code == 1
        assert err.startswith("Error: The output ")
        assert err.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["afile"]

    def test_a_full_disk_is_a_message(self, command, tmp_path, monkeypatch):
        def full(self, folder):
            raise OSError(28, "No space left on device", str(folder))

        monkeypatch.setattr(tk.TraceResult, "save", full)
        code, _, err = command("trace", "--limit", 4, "--method", "top-k", "--output", tmp_path)
        assert code == 1
        assert err.startswith("Error: No space left on device (")
        assert "Traceback" not in err

    def test_early_failures_leave_no_folder(self, command, tmp_path):
        code, _, err = command("trace", "--model", "/nowhere", "--output", tmp_path / "a" / "b")
        assert code == 1, err
        assert list(tmp_path.iterdir()) == []


class TestForeignTexts:
    """Names come from files: they are neither markup nor commands for the terminal."""

    NAME = "[red]a[/red] [/] [link=http://evil]b[/link] :smile: \x1b]0;owned\x07 \x9b31m c"
    SHOWN = "[red]a[/red] [/] [link=http://evil]b[/link] :smile: \ufffd]0;owned\ufffd \ufffd31m c"

    def test_in_tables(self, command, demo_model, tmp_path):
        pairs = dataclasses.replace(tk.load_dataset("demo-bias", demo_model)[:4], name=self.NAME)
        tracer = tk.Tracer(demo_model, pairs, layers=[0])
        first = tracer.run("top-k", budget=2)
        dataclasses.replace(first, method=self.NAME).save(tmp_path / "one")
        code, out, err = command("show", tmp_path / "one")
        assert code == 0, err
        assert out.count(self.SHOWN) == 2
        assert "\x1b" not in out

    def test_in_skipped_examples_and_names_of_data(self, command, tmp_path):
        path = tmp_path / "[red]hello.csv"
        rows = ["prompt,counterfactual,x,y"]
        rows += ["[/red]the cook said,the cook,a,b", "the cook,the maid, a, b"]
        path.write_text("\n".join(rows))
        code, out, err = command(
            *("trace", "--dataset", path, "--skip-mismatched", "--budget", 1, "--method", "top-k"),
            *("--output", tmp_path / "run", "--quiet"),
        )
        assert code == 0, err
        assert "Skipped example 0: " in out
        assert "[/red]the cook said" in out
        assert "[red]hello" in out

    def test_in_errors(self, command):
        code, _, err = command("trace", "--dataset", "[/red]\x1b[31m")
        assert code == 1
        assert "[/red]\\x1b[31m" in err


def test_warnings_are_one_line(command, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("prompt,counterfactual,x,y\nthe cook,the maid,a,b\n")
    code, _, err = command(
        *("trace", "--dataset", path, "--budget", 1, "--method", "top-k", "--quiet"),
        *("--output", tmp_path / "run"),
    )
    assert code == 0
    (line,) = [line for line in err.splitlines() if "Warning" in line]
    assert line.startswith("Warning: A continuation begins within a word; give it its leading")


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


@pytest.mark.usefixtures("unchecked")
def test_sources_and_directions(command, tmp_path):
    base = ("trace", "--dataset", "demo-facts", "--limit", 6, "--components", "head-outputs")
    rest = ("--method", "top-k", "--budget", 2, "--quiet", "--output")
    code, _, err = command(*base, "--source", "mean", *rest, tmp_path / "mean")
    assert code == 0, err
    assert tk.TraceResult.load(tmp_path / "mean" / "top-k-2").source == "mean"
    code, _, err = command(*base, "--direction", "denoising", *rest, tmp_path / "back")
    assert code == 0, err
    result = tk.TraceResult.load(tmp_path / "back" / "top-k-2")
    assert (result.source, result.direction) == ("counterfactual", "denoising")
    code, out, err = command("show", tmp_path)
    assert code == 0, err
    # What was traced stands in the third column, on several lines.
    traced = " ".join(line.split("│")[3] for line in out.splitlines() if line.startswith("│"))
    assert "source mean" in " ".join(traced.split())
    assert "denoising" in traced
    code, _, err = command(*base, "--source", "zero", "--direction", "denoising", *rest, tmp_path)
    assert code == 1
    assert "cannot be reversed" in err
    code, _, err = command(*base, "--source", "nothing", *rest, tmp_path)
    assert code == 1
    assert "Unknown source 'nothing'" in err


COMMANDS = {command.name: command for command in typer.main.get_command(cli.app).commands.values()}


@pytest.fixture
def help_of(command, monkeypatch):
    """The help of a command, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *name: command(*name, "--help")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_grouped(help_of, name):
    """What, how, limits, output: in this order, and every option in one of the panels."""
    titles = re.findall(r"^╭─ (.+?) ─", help_of(name), re.MULTILINE)
    assert titles == [panel for panel in PANELS if panel in titles]
    assert titles[-1] == "Output"
    if name in ("trace", "pareto"):
        assert set(titles) == set(PANELS) - {"Arguments", "Where it runs"}


@pytest.mark.parametrize("name", [*COMMANDS, None], ids=str)
def test_help_breaks_no_word_at_80_columns(help_of, name):
    out = help_of() if name is None else help_of(name)
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    shown = set(re.sub("[│╭╮╰╯─]", " ", out).split())
    if name is None:
        expected = set(COMMANDS)
    else:
        parameters = COMMANDS[name].params
        texts = [each.help.replace("`", "") for each in parameters]
        expected = {word for text in texts for word in text.split()}
        options = [opt for each in parameters for opt in each.opts if opt.startswith("--")]
        expected |= set(options)
        # A value that is named by its type, such as a choice of words, would be folded.
        values = [each.metavar for each in parameters if each.param_type_name == "option"]
        assert None not in values
        expected |= {value for value in values if value}
    assert expected <= shown


@pytest.mark.parametrize("width", [80, 60, 120])
def test_tables_break_no_word(monkeypatch, capsys, width):
    monkeypatch.setattr(console, "width", width)
    table = Table("the name", "a longer text", "number", title="Some runs")
    for each in "attention-patterns", "mlp-neurons":
        table.add_column(f"{each} of all", justify="right")
    rows = [
        ("gpt2-small", "said in several words with one-that-is-longer", "0.123", "17", "-0.5 to 3"),
        ("llama", "few words", "10", "1000.5", "-12.25 to 12.25"),
    ]
    for row in rows:
        table.add_row(*row)
    print_rows(table)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    shown = re.sub("[^\\w\\s.%-]", " ", out).split()
    headers = [word for column in table.columns for word in str(column.header).split()]
    assert {*headers, *(word for row in rows for cell in row for word in cell.split())} <= set(
        shown
    )
    # In parts where there is no room, each with the name of a row.
    parts = out.count("┏")
    assert parts == {80: 1, 60: 2, 120: 1}[width]
    assert shown.count("gpt2-small") == shown.count("llama") == parts
    assert out.count("Some runs") == parts


def test_a_word_wider_than_the_terminal_is_folded(monkeypatch, capsys):
    monkeypatch.setattr(console, "width", 40)
    table = Table("mask", "effect")
    table.add_row("a" * 50, "0.123")
    print_rows(table)
    out = capsys.readouterr().out
    assert out.count("a") == 50 + 1
    assert "0.123" in out


def test_commands_stand_in_the_order_of_use(help_of):
    listed = re.findall(r"^│ ([a-z-]+)  ", help_of().split("Commands")[1], re.MULTILINE)
    assert listed == list(COMMANDS)
    assert listed[:4] == ["demo", "trace", "pareto", "evaluate"]
    assert listed.index("show") < listed.index("datasets") < listed.index("reproduce")


def test_further_metrics_spans_and_bounds(command, tmp_path):
    code, out, err = command(
        *("trace", "--dataset", "demo-facts", "--limit", "8", "--components", "residual"),
        *("--split-by", "span", "--layer-window", "2"),
        *("--extra-metric", "kl", "--extra-metric", "rank-change"),
        *("--method", "greedy", "--budget", "2", "--keep-at-most", "5", "--quiet"),
        *("--output", str(tmp_path / "run")),
    )
    assert code == 0, err
    assert "rank-change" in out
    result = tk.TraceResult.load(tmp_path / "run" / "greedy-2")
    assert set(result.also) == {"kl", "rank-change"}
    assert result.kept["at_most"] == 5
    assert result.components[0].span in ("subject", "rest", "last")
    code, _, err = command("pareto", "--limit", "8", "--keep-dataset", "demo-bias")
    assert code == 1
    assert "--keep-dataset needs a bound" in err
    code, _, err = command("pareto", "--limit", "8", "--keep-metric", "kl")
    assert code == 1
    assert "--keep-metric needs a bound" in err


class TestCtrlC:
    """While `trace` runs its methods."""

    OPTIONS = ("trace", "--dataset", "demo-facts", "--limit", 4, "--layers", "1", "--budget", 3)

    @staticmethod
    def press_after(monkeypatch, calls):
        """Ctrl-C when sets are measured the next time after some calls."""
        left, original = iter(range(calls)), Engine.set_effects

        def measure(self, *arguments, **rest):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return original(self, *arguments, **rest)

        monkeypatch.setattr(Engine, "set_effects", measure)

    def test_keeps_and_prints_what_there_is(self, command, tmp_path, monkeypatch):
        # Top-k measures single components; greedy is stopped in its third round.
        self.press_after(monkeypatch, 3)
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
