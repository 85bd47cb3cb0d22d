"""Sweeps: what is run, kept, gone on with, and shown."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import threading
import warnings

import pandas as pd
import pytest
import torch

import tracekit as tk
from tests.cli.conftest import command  # noqa: F401
from tests.hub import commit_of, on_hub, serve
from tests.latex import caption_of, check_latex, titles_of
from tracekit.errors import (
    ComparisonError,
    ConfigError,
    NoResultError,
    OutputError,
    RecordWarning,
    ResultNotFoundError,
)
from tracekit.runs import run_jobs, sweeps, worker
from tracekit.runs.worker import Failure, Worker


@pytest.fixture
def swept(grid):
    return tk.sweep(**grid)


def written(folder):
    """When each run of a store was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/run.json")}


@pytest.mark.slow
def test_a_run_is_a_saved_result_like_any_other(swept, grid, lab, command):  # noqa: F811
    assert len(swept) == 4
    assert not swept.failures
    assert [run.job.model for run in swept] == ["first", "first", "second", "second"]
    frame = swept.to_frame()
    assert frame["budget"].tolist() == [2, 3] * 4
    tracer = tk.Tracer(
        str(lab / "first"),
        tk.load_pairs(lab / "pairs.jsonl", tk.load_model(lab / "first")),
        "attention-patterns",
        "odds-ratio",
    )
    plain = tracer.run("top-k", budgets=[2, 0.25])
    assert frame["effect"][:2].tolist() == pytest.approx([r.effect for r in plain], rel=1e-5)
    for row in frame.itertuples():
        result = tk.TraceResult.load(row.folder)
        assert (result.effect, result.budget, result.method) == (row.effect, row.budget, row.method)
        assert row.components == " ".join(result.labels)
    of_first = swept.select(model="first")
    assert len(tk.compare(run.curve for run in of_first)) == 4
    assert len(of_first.select(method="random").results) == 2
    table = pd.read_csv(grid["output"] / "runs.csv")
    assert table["effect"].tolist() == pytest.approx(
        frame.sort_values(["model", "method"], kind="stable")["effect"].tolist()
    )
    code, _, err = command("report", grid["output"], "--output", grid["output"] / "r.html")
    assert code == 0, err
    assert "top-k" in (grid["output"] / "r.html").read_text()


def test_a_table_says_how_large_the_sets_are_where_all_are_as_large(grid):
    runs = tk.sweep(**{**grid, "methods": ["top-k"], "budgets": [2]})
    shown = runs.shown()
    assert [column.key for column in shown.columns][:2] == ["model", "n_selected"]
    assert shown["n_selected"].values == [2, 2]


@pytest.mark.slow
def test_a_sweep_that_is_started_again_does_what_is_missing(swept, grid, monkeypatch):
    folder, before = grid["output"], written(grid["output"])
    with monkeypatch.context() as patch:
        patch.setattr(worker, "run_search", None)
        assert [run.fresh for run in tk.sweep(**grid)] == [False] * 4
    # One is damaged, one is gone.
    damaged, gone = swept[0].folder, swept[3].folder
    (damaged / "budget-2" / "result.json").write_text("{")
    for path in sorted(gone.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    gone.rmdir()
    with pytest.warns(RecordWarning, match="is damaged, .* It is left out"):
        assert len(tk.load_runs(folder)) == 2
    again = tk.sweep(**grid)
    assert [run.fresh for run in again] == [True, False, False, True]
    assert (folder / "runs" / f"{damaged.name}.damaged-1").is_dir()
    after = written(folder)
    assert {name for name in before if before[name] == after[name]} == {
        swept[1].folder.name,
        swept[2].folder.name,
    }
    assert len(tk.load_runs(folder)) == 4


@pytest.mark.slow
def test_a_larger_grid_takes_over_what_is_there(swept, grid):
    more = tk.sweep(**{**grid, "methods": [*grid["methods"], "greedy"]})
    assert [run.fresh for run in more] == [False, False, True] * 2
    assert len(pd.read_csv(grid["output"] / "runs.csv")) == 12


@pytest.mark.slow
def test_every_option_reaches_the_tracer(grid, lab):
    options = {
        "components": ["head-outputs"],
        "metrics": ["logit-difference"],
        "layers": [0, -1],
        "positions": [0, -1],
        "source": "noise",
        "direction": "noising",
        "continuation_mean": "arithmetic",
        "extra_metrics": ["kl"],
        "objective": "median",
        "held_out": 0.5,
        "seeds": [3],
        "limit": 4,
    }
    few = {**grid, "models": grid["models"][:1], "methods": ["greedy"], "budgets": [2], **options}
    (run,) = tk.sweep(**few)
    model = tk.load_model(lab / "first")
    pairs, held_out = tk.load_pairs(lab / "pairs.jsonl", model)[:4].split(0.5, seed=3)
    tracer = tk.Tracer(
        model,
        pairs,
        "head-outputs",
        "logit-difference",
        layers=[0, -1],
        positions=[0, -1],
        source="noise",
        source_seed=3,
        continuation_mean="arithmetic",
        extra_metrics=["kl"],
        held_out=held_out,
    )
    result = tracer.run("greedy", budget=2, seed=3, objective="median")
    assert run.result.labels == result.labels
    assert run.result.effect == pytest.approx(result.effect, rel=1e-5)
    assert run.result.held_out_effect == pytest.approx(result.held_out_effect, rel=1e-5)
    assert run.result.extra_effects == pytest.approx(result.extra_effects, rel=1e-5)
    row = tk.load_runs(grid["output"]).to_frame().iloc[0]
    assert row["kl"] == pytest.approx(result.extra_effects["kl"], rel=1e-5)
    assert "source=noise" in row["setting"]
    assert row["objective"] == "median"


@pytest.mark.slow
def test_positions_windows_and_denoising_reach_the_tracer(grid, lab):
    few = {**grid, "models": grid["models"][:1], "datasets": [str(lab / "even.jsonl")]}
    few |= {"methods": ["top-k"], "budgets": [2], "direction": "denoising"}
    model = tk.load_model(lab / "first")
    pairs = tk.load_pairs(lab / "even.jsonl", model)
    for changes in ({"split_by": "position"}, {"layer_window": 2}):
        (run,) = tk.sweep(**few, **changes)
        tracer = tk.Tracer(model, pairs, direction="denoising", **changes)
        result = tracer.run("top-k", budget=2)
        assert run.result.labels == result.labels
        assert run.result.effect == pytest.approx(result.effect, rel=1e-5)
        assert run.result.setup.direction == "denoising"


class TestFolders:
    @pytest.mark.slow
    def test_two_sweeps_at_once_in_one_folder_are_refused(self, grid, monkeypatch):
        monkeypatch.setattr(sweeps, "_LOCK_SECONDS", 0.2)
        other = {**grid, "models": ["demo"], "datasets": ["demo-bias"]}
        texts = []

        def try_others(outcome):
            for changes in ({}, {"part": "1/2"}):
                with pytest.raises(OutputError) as raised:
                    tk.sweep(**other, **changes)
                texts.append(str(raised.value))

        tk.sweep(**grid, on_done=try_others)
        assert "is in use by another sweep. Wait until that ends, or give another" in texts[0]
        assert "by another sweep, or part 1/2 of it. Wait" in texts[1]
        assert not list(grid["output"].glob(".*"))

    @pytest.mark.slow
    def test_parts_share_a_folder_and_the_same_part_does_not(self, grid):
        grid["methods"] = ["top-k"]
        refused, runs = [], []

        def try_others(outcome):
            for changes in ({"part": "1/2"}, {}):
                with pytest.raises(OutputError):
                    tk.sweep(**grid, **changes)
                refused.append(changes)
            runs.extend(tk.sweep(**grid, part="2/2"))

        runs.extend(tk.sweep(**grid, part="1/2", on_done=try_others))
        assert len(refused) == 2
        assert [run.job.model for run in runs] == ["second", "first"]
        assert not (grid["output"] / "runs.csv").exists()
        assert [run.fresh for run in tk.sweep(**grid)] == [False, False]
        assert len(pd.read_csv(grid["output"] / "runs.csv")) == 4

    def test_folders_that_cannot_be_made_or_hold_no_runs(self, grid, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(OutputError, match=r"The output .*file/out cannot be written to"):
            tk.sweep(**{**grid, "output": tmp_path / "file" / "out"})
        for folder in (tmp_path, tmp_path / "gone"):
            with pytest.raises(ResultNotFoundError, match=r"holds no runs. Give the output folder"):
                tk.load_runs(folder)


class TestFailures:
    @pytest.mark.slow
    def test_a_job_that_fails_costs_itself(self, grid):
        runs = tk.sweep(**{**grid, "methods": [{"name": "exhaustive", "max_sets": 3}, "top-k"]})
        assert [run.job.method for run in runs] == ["top-k", "top-k"]
        assert [failure.job.method for failure in runs.failures] == ["exhaustive"] * 2
        assert "2 failed" in repr(runs)

    def test_a_checkpoint_that_cannot_be_loaded_costs_itself(
        self, grid, lab, tmp_path, monkeypatch
    ):
        broken = shutil.copytree(lab / "first", tmp_path / "step30")
        (broken / "model.safetensors").write_bytes(b"no weights")
        tried = []
        load = worker.load_model
        monkeypatch.setattr(worker, "load_model", lambda s, **o: tried.append(s) or load(s, **o))
        runs = tk.sweep(**{**grid, "models": [str(broken), str(lab / "first")]})
        assert [run.job.model for run in runs] == ["first", "first"]
        assert tried == [str(broken), str(lab / "first")]
        (reason,) = worker.reasons(runs.failures)
        assert reason.startswith(f"step30: The model {broken} could not be loaded: ")

    def test_budgets_beyond_a_model_are_said(self, grid):
        with pytest.raises(NoResultError, match="A budget of 99 means 99 of 12 components"):
            tk.sweep(**{**grid, "budgets": [99]})

    @pytest.mark.slow
    def test_a_full_memory_costs_the_job_and_not_the_sweep(self, grid, monkeypatch):
        run_search = worker.run_search

        def full(question, request):
            if request.search.name == "random":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
            return run_search(question, request)

        monkeypatch.setattr(worker, "run_search", full)
        runs = tk.sweep(**grid)
        assert [run.job.method for run in runs] == ["top-k", "top-k"]
        reason = "The memory is full: CUDA out of memory. Tried to allocate 2 GiB. Lower max_batch"
        assert all(failure.reason.startswith(reason) for failure in runs.failures)

    @pytest.mark.slow
    def test_ctrl_c_keeps_what_is_done(self, grid):
        done = []

        def stop(outcome):
            done.append(outcome)
            if len(done) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tk.sweep(**grid, on_done=stop)
        assert [run.fresh for run in tk.sweep(**grid)] == [False, False, True, True]

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            *(("jobs", value, f"is {value!r}. Give the number of runs") for value in (0, -1, "2")),
            ("jobs", True, "is True. Give the number of runs"),
            ("data_dir", 0, "is 0, which is not a path. Give a str or a Path"),
            ("output", 0, "is 0, which is not a path. Give a str or a Path"),
            ("output", "x" * 300, "is 'xx.*, which no file system takes. .* at most 255"),
            ("part", 0, "0 is not of the form NUMBER/COUNT. Give one such as"),
            ("max_batch_size", 0, "is 0. Input should be greater than 0"),
            ("executor", "nowhere", "is 'nowhere'. Give a concurrent.futures.Executor"),
        ],
    )
    def test_options_that_are_refused(self, grid, name, value, text):
        with pytest.raises(ConfigError, match=f"{name} {text}"):
            tk.sweep(**{**grid, name: value})
        assert not grid["output"].exists()


@pytest.mark.slow
def test_one_bar(grid, capsys):
    tk.sweep(**{**grid, "progress": True})
    err = capsys.readouterr().err
    assert "sweep: 100%" in err
    assert "4/4" in err
    # Only what takes a moment is said, on a busy machine.
    assert "Loading" not in err.replace("Loading the model", "")


@pytest.mark.slow
def test_a_model_is_loaded_once(grid, monkeypatch):
    loaded = []
    load = Worker.load_job_model

    def count(self, job):
        before = self._model
        model = load(self, job)
        if self._model is not before:
            loaded.append(job.model)
        return model

    monkeypatch.setattr(Worker, "load_job_model", count)
    jobs = sweeps.Grid(
        **{name: grid[name] for name in ("models", "datasets", "methods", "budgets")}
    )
    mixed = jobs.jobs()[::2] + jobs.jobs()[1::2]
    outcomes = run_jobs(mixed, jobs.sources().values(), grid["output"])
    assert loaded == ["first", "second"]
    assert not any(isinstance(outcome, Failure) for outcome in outcomes)


class TestCheckpoints:
    @pytest.fixture
    def runs(self, lab, tmp_path_factory):
        folder = tmp_path_factory.mktemp("training")
        for name, step in (("first", "step100"), ("second", "step20")):
            shutil.copytree(lab / name, folder / step)
        tk.sweep(
            models=[str(folder / "step100"), str(folder / "step20")],
            datasets=[str(lab / "pairs.jsonl")],
            methods=["top-k"],
            budgets=[2, 3],
            output=folder / "out",
            progress=False,
        )
        return tk.load_runs(folder / "out")

    @pytest.mark.slow
    def test_the_table_names_them_in_their_order(self, runs):
        assert runs.to_frame()["model"].tolist() == ["step20"] * 2 + ["step100"] * 2

    def test_they_are_a_table_of_a_paper(self, runs):
        text = runs.to_latex()
        check_latex(text)
        assert text.count("\\\n") == 1 + 4
        assert caption_of(text).startswith(
            "All 4 results of a sweep. Effect (odds ratio $-$ 1) on 6 searched examples of "
        )
        assert "Effects are of counterfactual patching; above 0, they " in caption_of(text)
        assert "Faithful" not in caption_of(text)
        assert "step20 / step100: " in caption_of(text)
        assert "effect, searched (odds ratio $-$ 1)" in titles_of(text)
        strongest = runs.to_latex(rows=3)
        check_latex(strongest)
        assert strongest.count("\\\n") == 1 + 3
        assert "The 3 of 4 results of a sweep with the largest share. " in caption_of(strongest)
        frame = runs.to_frame()
        left_out = frame["share"].abs().idxmin()
        rows = [line for line in text.splitlines() if line.endswith("\\")][1:]
        assert [row for row in rows if row not in strongest] == [rows[left_out]]
        assert caption_of(runs.to_latex(caption="Mine.")) == "Mine."
        with pytest.raises(ConfigError, match="rows is 0. Give a whole number, at least 1"):
            runs.to_latex(rows=0)
        with pytest.raises(NoResultError, match="There is no result for a table. Load runs"):
            tk.runs.Runs(()).to_latex()

    @pytest.mark.slow
    def test_their_sets_are_compared(self, runs):
        both = tk.compare(run.curve.at(2) for run in runs)
        assert both.labels == ("step20", "step100")
        assert both.to_frame()["model"].tolist() == ["step20", "step100"]
        assert "data, step20 / step100 model" in both.heatmap().layout.title.text
        assert "data, step20 / step100 model" in both._repr_html_()
        assert tk.compare(run.curve for run in runs).labels[0] == "step20, 2"
        for refused in (both.curve, both.to_latex, both.differences):
            with pytest.raises(ComparisonError, match=r"different models \(step20 and step100\)"):
                refused()

    @pytest.mark.soak
    @pytest.mark.slow
    def test_they_are_revisions_of_the_hub(self, lab, tmp_path):
        steps = {"main": lab / "first", "step1": lab / "first", "refs/pr/2": lab / "second"}
        pairs = lab / "pairs.jsonl"
        script = f"""
import tracekit as tk
names = ["someone/steps@step1", "someone/steps@refs/pr/2"]
digests = set()
options = dict(datasets=[{str(pairs)!r}], methods=["top-k"], budgets=[2], output="out")
for run in tk.sweep(names, **options, progress=False):
    facts = run.result.model_facts
    print(run.job.model, run.result.model, facts.path, facts.revision)
    digests.add(facts.weights_digest)
assert len(digests) == 2
try:
    tk.sweep([*names, "someone/steps@step3"], **options)
except tk.errors.UnknownModelError as error:
    print(error)
"""
        with serve({"someone/steps": steps}, gated=set()) as address:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", script],
                env={**os.environ, **on_hub(address, tmp_path)},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
            )
        *found, refused = done.stdout.splitlines()
        assert found == [
            f"steps@{step} steps@{step} someone/steps@{step} {commit_of(step)}"
            for step in ("step1", "refs/pr/2")
        ], done.stderr
        assert refused.startswith("The hub has no revision 'step3' of the model 'someone/steps'.")
        models = tk.load_runs(tmp_path / "out").to_frame()["model"]
        assert models.tolist() == ["steps@refs/pr/2", "steps@step1"]


class TestCommand:
    FILE = """
        models = ["{first}", "two={second}"]
        datasets = ["{pairs}"]
        methods = ["top-k", {{ name = "random", draws = 3 }}]
        budgets = [2]
        output = "{output}"
    """

    @pytest.fixture
    def file(self, lab, tmp_path):
        text = self.FILE.format(
            first=lab / "first",
            second=lab / "second",
            pairs=lab / "pairs.jsonl",
            output=tmp_path / "out",
        )
        (tmp_path / "sweep.toml").write_text(text)
        return tmp_path / "sweep.toml"

    @pytest.mark.slow
    def test_a_file_is_a_sweep(self, command, file, tmp_path):  # noqa: F811
        code, out, err = command("sweep", file, "--quiet")
        assert code == 0, err
        assert "ran: first, pairs.jsonl" in out.replace(str(tmp_path.parent), "") or "ran: " in out
        assert "Ran 4 of 4. Runs are in" in out
        assert "draws=3" in out
        code, out, _ = command("sweep", file, "--part", "1/2", "--output", tmp_path / "part")
        assert code == 0
        assert "Ran 2 of 2" in out
        assert "runs.csv" not in out
        assert not (tmp_path / "part" / "runs.csv").exists()
        assert len(tk.load_runs(tmp_path / "part")) == 2

    def test_failures_are_said_and_make_the_command_fail(self, command, file):  # noqa: F811
        text = (
            file.read_text()
            .replace("[2]", "[2]\nlimit = 2")
            .replace('"top-k"', '{ name = "exhaustive", max_sets = 3 }')
        )
        file.write_text(text)
        code, out, _ = command("sweep", file, "--quiet")
        assert code == 1
        assert "Failed: first, " in out
        assert "Ran 2 of 4, 2 failed. " in out

    def test_keys_that_no_sweep_has(self, command, file):  # noqa: F811
        file.write_text(file.read_text().replace("budgets", "budget"))
        code, _, err = command("sweep", file)
        assert code == 1
        assert "Unknown key 'budget'. Did you mean 'budgets'?" in err
        for key in ("on_done", "progress", "part", "further", "executor"):
            file.write_text(f"{key} = 1")
            assert f"Unknown key {key!r}" in command("sweep", file)[2]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_warning_of_a_run_says_which_it_is(grid, jobs, tmp_path, capfd):
    script = tmp_path / "swept.py"
    options = {**grid, "output": str(grid["output"]), "methods": ["top-k"], "jobs": jobs}
    options |= {"metrics": ["probability-drop"], "budgets": [1]}
    script.write_text(
        f"import tracekit as tk\nif __name__ == '__main__':\n    tk.sweep(**{options!r})\n"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        runpy.run_path(str(script), run_name="__main__")
    lines = [f"{w.filename}:{w.lineno}: {w.category.__name__}: {w.message}" for w in caught]
    # Workers print theirs.
    lines += capfd.readouterr().err.splitlines()
    for name in ("first", "second"):
        place = f"{script}:3" if jobs == 1 else "<worker>:1"
        job = f"{name}, {grid['datasets'][0]}, attention-patterns, probability-drop, top-k"
        start = f"{place}: UnreliableResultWarning: {job}: All components together have an effect"
        assert any(line.startswith(start) for line in lines), lines


@pytest.mark.slow
def test_threads_of_one_process_do_not_mix(grid):
    """Two sweeps in two folders at once."""
    done = {}

    def run(name):
        done[name] = tk.sweep(**{**grid, "output": grid["output"] / name})

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = (done[name].to_frame()["effect"].tolist() for name in ("one", "two"))
    assert first == second
    assert len(first) == 8
