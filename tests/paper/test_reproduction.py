"""Experiments: what is run, kept, resumed and shown."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import tracekit as tk
from paper import reproduction
from paper.experiment import (
    PaperTable,
    Report,
    Setting,
    effects_frame,
    notes_on_sameness,
    notes_on_size,
)
from paper.jobs import ModelAt, PaperJob
from paper.models import DEMO_SIZES, PAPER_MODELS
from paper.reproduction import EXPERIMENTS, plan, reproduce, select_experiments
from tests import tiny
from tracekit.engine.effects import masked_log_probs
from tracekit.engine.setup import Setup
from tracekit.errors import (
    ComparisonError,
    ConfigError,
    NoResultError,
    ResultFormatError,
    SearchStoppedWarning,
    UnknownNameError,
)
from tracekit.results.storage import FORMAT_VERSION, read_document, write_document
from tracekit.runs import Failure, Run, run_jobs, store, worker
from tracekit.runs.jobs import Job, RunEnvironment
from tracekit.runs.store import run_folder, weights_hash
from tracekit.runs.worker import Worker

DEMO = ModelAt.parse("demo")
SMALL = Setting(models=[DEMO], limit=6, draws=4, held_out=False)


def job(**changes):
    return PaperJob(
        **{
            "model": "demo",
            "dataset": "demo-bias",
            "setup": Setup(),
            "method": "top-k",
            "budgets": (2, 0.25),
            "limit": 6,
            **changes,
        }
    )


@pytest.fixture
def environment():
    return RunEnvironment(sources={"demo": DEMO})


def test_all_that_the_paper_shows_is_listed():
    assert sorted(EXPERIMENTS) == sorted(
        [
            "fig-nonadditivity",
            "table-heads",
            "fig-heads",
            "table-neurons",
            "fig-neurons",
            "table-facts",
            "fig-facts",
            "fig-time",
            "table-single",
            "fig-binding",
            "ioi-circuit",
            "fig-ablation",
            "fig-dcm",
            "fig-mask",
            "findings",
        ]
    )
    for one in EXPERIMENTS.values():
        assert set(one.models) <= set(PAPER_MODELS)
    with pytest.raises(UnknownNameError, match="Unknown experiment 'fig-head'. Did you mean"):
        select_experiments(["fig-head"])
    assert len(select_experiments(["all"])) == 15


class TestPlans:
    """What is run, before anything is."""

    def test_methods_that_the_paper_leaves_out_are_left_out(self):
        setting = Setting(held_out=False)
        jobs = EXPERIMENTS["table-heads"].jobs(setting)
        greedy = {one.model for one in jobs if one.method == "greedy"}
        assert greedy == {"DistilGPT2", "GPT2-small", "GPT2-medium"}
        jobs = EXPERIMENTS["table-neurons"].jobs(setting)
        topk = {one.model for one in jobs if one.method == "top-k"}
        assert topk == {"DistilGPT2", "GPT2-small", "GPT2-medium"}
        # Asked for, they are run.
        jobs = EXPERIMENTS["table-heads"].jobs(Setting(methods=["greedy"], held_out=False))
        assert {one.method for one in jobs} == {"greedy"}
        assert len(jobs) == 7 * 2

    def test_options_are_the_papers(self):
        jobs = EXPERIMENTS["table-neurons"].jobs(Setting(held_out=False))
        ours = next(one for one in jobs if one.method == "pgb-ct")
        assert ours.options == {"epochs": 30}
        assert ours.budgets == (0.025, 0.05, 0.1, 0.15)
        facts = EXPERIMENTS["table-facts"].jobs(Setting(held_out=False))[0]
        assert facts.setup.metric == "probability-ratio"
        binding = EXPERIMENTS["fig-binding"].jobs(Setting())[0]
        assert (binding.setup.components, binding.setup.positions) == (
            "head-outputs+mlp-blocks",
            "last",
        )

    def test_experiments_share_jobs(self):
        setting = Setting(models=[DEMO])
        alone = sum(len(plan([one], setting)) for one in EXPERIMENTS.values())
        together = len(plan(list(EXPERIMENTS.values()), setting))
        assert together < alone
        table, figure = (
            plan(select_experiments([name]), setting) for name in ("table-heads", "fig-heads")
        )
        assert {one.identity for one in figure} <= {one.identity for one in table}

    def test_models(self):
        assert ModelAt.parse("gpt2").title == "GPT2-small"
        assert ModelAt.parse("GPT2-xl").source == "gpt2-xl"
        named = ModelAt.parse("GPT2-small=/some/where")
        assert (named.title, named.source) == ("GPT2-small", "/some/where")
        assert named.paper == PAPER_MODELS["GPT2-small"]
        other = ModelAt.parse("/models/mine")
        assert (other.title, other.paper) == ("mine", None)
        # A folder that is called like a model of the paper need not hold it.
        folder = ModelAt.parse("/models/GPT2-small")
        assert (folder.title, folder.paper) == ("/models/GPT2-small", None)
        named = ModelAt.parse("first=/models/run1/final")
        assert (named.title, named.source) == ("first", "/models/run1/final")

    def test_two_models_of_one_name_are_refused(self, tmp_path):
        models = [ModelAt.parse(f"/models/{run}/final") for run in ("run1", "run2")]
        with pytest.raises(ConfigError, match="run1/final and .*run2/final would both be"):
            reproduce(["findings"], Setting(models=models), tmp_path)

    def test_sizes_of_a_model_on_disk_are_read_before_planning(self, tmp_path):
        tiny.hf_model("llama").save_pretrained(tmp_path / "model")
        assert ModelAt.parse(str(tmp_path / "model")).count("attention-patterns") == 12
        assert DEMO.count("mlp-outputs") == 512
        cfg = tk.load_model("demo").cfg
        for name, size in vars(DEMO_SIZES).items():
            assert getattr(cfg, name) == size
        assert ModelAt.parse("someone/something").count("attention-patterns") is None

    def test_data_are_those_of_the_published_code(self):
        facts = EXPERIMENTS["table-facts"].jobs(Setting(held_out=False))[0]
        assert facts.data_options == {
            "seed": None,
            "noise_seed": 42,
            "noise_std": 3 * 0.2015,
            "leading_space": False,
        }
        another = Setting(models=[ModelAt.parse("another")], held_out=False)
        (facts_of_another, *_) = EXPERIMENTS["table-facts"].jobs(another)
        assert facts.setup.metric == "probability-ratio"
        assert facts_of_another.setup.metric == "probability-drop"
        assert facts_of_another.data_options == {
            "seed": None,
            "noise_seed": 42,
            "on_mismatch": "skip",
            "min_probability": 0.1,
        }
        binding = EXPERIMENTS["fig-binding"].jobs(Setting())[0]
        assert binding.model.startswith("LLaMA-")
        assert binding.data_options == {
            "wording": "code",
            "desideratum": "both",
            "prepend_bos": True,
        }
        assert binding.accuracy_on["value"]["wording"] == "code"
        asked = Setting(held_out=False, data_options={"seed": "3", "split": "test"})
        facts = EXPERIMENTS["table-facts"].jobs(asked)[0]
        assert facts.data_options == {
            "seed": "3",
            "noise_seed": 42,
            "noise_std": 3 * 0.2015,
            "leading_space": False,
        }
        assert not asked.keeps_paper_data

    def test_a_model_that_is_not_what_it_is_said_to_be(self, tmp_path):
        folder = tmp_path / "model"
        tiny.hf_model("gpt2").save_pretrained(folder)
        at = ModelAt.parse(f"GPT2-small={folder}")
        with pytest.raises(ComparisonError, match="is not GPT2-small: its n_layers is 3 in"):
            Worker(RunEnvironment(sources={at.title: at}), tmp_path / "runs").run_job(
                job(model=at.title)
            )


class TestStore:
    """Runs are kept, and never repeated."""

    @pytest.mark.slow
    def test_a_run_is_found_again(self, tmp_path, environment, monkeypatch):
        first = Worker(environment, tmp_path).run_job(job())
        assert first.fresh
        monkeypatch.setattr(worker, "run_search", None)
        again = Worker(environment, tmp_path).run_job(job())
        assert not again.fresh
        assert again.folder == first.folder
        assert [r.budget for r in again.curve] == [2, 8]
        info = again.info
        assert info.job == Job(**{each.name: getattr(job(), each.name) for each in fields(Job)})
        assert info.further == {"relative_layers": [], "accuracy_on": {}}
        assert len(info.weights) == len(info.data) == 64
        assert info.versions["tracekit"] == tk.__version__

    @pytest.mark.soak
    @pytest.mark.slow
    def test_whatever_decides_the_numbers_decides_the_folder(
        self, tmp_path, environment, monkeypatch
    ):
        def folder(**changes):
            return Worker(environment, tmp_path).run_job(job(**changes)).folder

        base = folder()
        changes = (
            {"method": "greedy"},
            {"budgets": (2,)},
            {"seed": 1},
            {"limit": 5},
            {"setup": Setup(metric="logit-difference")},
            {"held_out": 0.5},
            {"options": {}, "dtype": "bfloat16"},
            {"data_options": {}, "relative_layers": (0.5,)},
        )
        assert len({base, *(folder(**change) for change in changes)}) == len(changes) + 1
        config = {"job": job().spec(), "weights": "a", "data": "b", "versions": {"torch": "1"}}
        names = {run_folder(tmp_path, {**config, key: "other"}) for key in config}
        assert len(names | {run_folder(tmp_path, config)}) == 5

    def test_weights_hash(self, model):
        one = tk.load_model(tiny.hf_model("gpt2"))
        assert weights_hash(one) == weights_hash(model)
        with torch.no_grad():
            next(iter(one.parameters()))[0, 0] += 1e-3
        assert weights_hash(one) != weights_hash(model)

    def test_the_hash_sees_what_is_not_a_parameter(self):
        one, other = (
            tk.load_model(tiny.hf_model("gpt2", activation_function=name))
            for name in ("gelu_new", "relu")
        )
        assert weights_hash(one) != weights_hash(other)

    def test_runs_have_the_label_they_were_asked_for_by(self, tmp_path, monkeypatch):
        plain = EXPERIMENTS["table-single"]
        setting = Setting(models=[DEMO], datasets=["demo-bias"], methods=["top-k"], limit=6)
        named = replace(
            plain,
            name="named",
            plan=lambda *given: [replace(job, variant="other") for job in plain.plan(*given)],
            report=lambda setting, runs: Report(notes=[run.job.label for run in runs]),
        )
        monkeypatch.setattr(reproduction, "EXPERIMENTS", {"named": named, "table-single": plain})
        written = reproduce(["table-single", "named"], setting, tmp_path, images=False)
        assert written[1].report.notes[0] == "other"
        assert len(list((tmp_path / "runs").iterdir())) == 1

    def test_an_interrupted_search_is_no_finished_run(self, tmp_path, environment, monkeypatch):
        search = tk.search.LocalSearch.search

        def interrupted(self, *given):
            return [replace(one, stopped="interrupted") for one in search(self, *given)]

        with monkeypatch.context() as patch:
            patch.setattr(tk.search.LocalSearch, "search", interrupted)
            with pytest.warns(SearchStoppedWarning), pytest.raises(KeyboardInterrupt):
                Worker(environment, tmp_path).run_job(
                    job(method="local-search", options={"max_passes": 20})
                )
        assert not list(tmp_path.iterdir())

    @pytest.mark.slow
    def test_a_failing_job_costs_only_itself(self, tmp_path):
        setting = Setting(
            models=[DEMO], datasets=["demo-bias"], methods=["top-k", "exhaustive"], limit=6
        )
        (written,) = reproduce(["table-heads"], setting, tmp_path, images=False)
        assert {one.job.method for one in written.failures} == {"exhaustive"}
        assert "demo, demo-bias, attention-patterns, odds-ratio, exhaustive: " in written.reasons[0]
        assert set(written.report.tables["effects"].frame["method"]) == {"top-k"}
        assert (
            "Skipped: demo, demo-bias, attention-patterns, odds-ratio, exhaustive"
            in (tmp_path / "table-heads" / "notes.md").read_text()
        )

    @pytest.mark.slow
    def test_a_killed_run_leaves_nothing_behind_that_counts(
        self, tmp_path, environment, monkeypatch
    ):
        def die(self, folder):
            Path(folder, "half.json").write_text("{")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(tk.results.TraceCurve, "save", die)
            with pytest.raises(KeyboardInterrupt):
                Worker(environment, tmp_path).run_job(job())
        assert not [p for p in tmp_path.iterdir() if not p.name.startswith(".")]
        run = Worker(environment, tmp_path).run_job(job())
        assert run.fresh
        assert run.curve[0].effect > 0

    @pytest.mark.slow
    @pytest.mark.pairwise
    @pytest.mark.parametrize(
        "damage", ["run cut short", "tensors lost", "no curve", "no info", "a file", "effect"]
    )
    def test_a_damaged_run_is_moved_aside_and_done_again(self, tmp_path, environment, damage):
        first = Worker(environment, tmp_path).run_job(job())
        effect, folder = first.curve[0].effect, first.folder
        run = min(folder.glob("budget-*"))
        document = run / "result.json"
        if damage == "run cut short":
            document.write_text(document.read_text()[:50])
        elif damage == "tensors lost":
            (run / "result.safetensors").unlink()
        elif damage == "no curve":
            (folder / "curve.json").unlink()
        elif damage == "no info":
            (folder / "run.json").unlink()
        elif damage == "a file":
            shutil.rmtree(folder)
            folder.write_text("a file where the folder belongs")
        else:
            edited = re.sub(r'"effect": [^,]*', '"effect": 99.0', document.read_text())
            document.write_text(edited)
        again = Worker(environment, tmp_path).run_job(job())
        assert again.fresh
        assert again.curve[0].effect == effect
        assert (tmp_path / f"{folder.name}.damaged-1").exists()
        assert not Worker(environment, tmp_path).run_job(job()).fresh

    def test_a_run_that_another_process_finished_first_is_kept(self, tmp_path, environment):
        run = Worker(environment, tmp_path).run_job(job())
        folder, before = run.folder, (run.folder / "run.json").read_bytes()
        store.save_run(folder, run.info, tk.results.TraceCurve.load(folder))
        assert (folder / "run.json").read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]

    @pytest.mark.slow
    def test_a_disk_error_is_not_taken_for_another_process(
        self, tmp_path, environment, monkeypatch
    ):
        def full(self, target):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", full)
            with pytest.raises(OSError, match="No space left"):
                Worker(environment, tmp_path).run_job(job())
        assert Worker(environment, tmp_path).run_job(job()).fresh

    def test_what_killed_processes_left_is_removed(self, tmp_path, environment):
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        machine = socket.gethostname()
        left = tmp_path / f".0123-{machine}-{ended.pid}"
        at_work = tmp_path / f".0123-{machine}-{os.getppid()}"
        elsewhere = tmp_path / f".0123-another.machine-{ended.pid}"
        for folder in (left, at_work, elsewhere):
            folder.mkdir()
        run = Worker(environment, tmp_path).run_job(job())
        assert set(tmp_path.iterdir()) == {run.folder, at_work, elsewhere}

    @pytest.mark.slow
    def test_each_experiment_is_written_when_its_runs_are_done(self, tmp_path):
        setting = replace(SMALL, methods=["top-k", "random"], limit=3)
        needed = {each.identity for each in EXPERIMENTS["table-single"].jobs(setting)}
        assert needed
        written = []

        def on_done(outcome):
            needed.discard(outcome.job.identity)
            written.append((not needed, (tmp_path / "table-single" / "notes.md").is_file()))
            if len(written) > 1 and not needed and written[-2][0]:
                raise KeyboardInterrupt

        names = ["table-single", "table-heads"]
        with pytest.raises(KeyboardInterrupt):
            reproduce(names, setting, tmp_path, images=False, on_done=on_done)
        # The one after the last run of the first experiment is of the second one.
        assert [done for done, _ in written][-2:] == [True, True]
        assert written[-1][1]
        assert not (tmp_path / "table-heads").exists()

    @pytest.mark.slow
    def test_stopped_and_gone_on(self, tmp_path):
        jobs = [job(), job(method="greedy"), job(seed=1)]

        def stop(done):
            if done.job.method == "greedy":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_jobs(jobs, [DEMO], tmp_path, on_done=stop)
        fresh = [run.fresh for run in run_jobs([*jobs, jobs[0]], [DEMO], tmp_path)]
        assert fresh == [False, False, True]

    @pytest.mark.soak
    @pytest.mark.slow
    def test_several_processes_find_the_same(self, tmp_path):
        jobs = [job(), job(method="greedy"), job(work="pairs", relative_layers=(0.5,), budgets=())]
        ours = run_jobs(jobs, [DEMO], tmp_path / "one")
        theirs = run_jobs(jobs, [DEMO], tmp_path / "two", processes=2)
        assert [run.folder.name for run in ours] == [run.folder.name for run in theirs]
        for one, other in zip(ours[:2], theirs[:2], strict=True):
            assert [r.labels for r in one.curve] == [r.labels for r in other.curve]
        torch.testing.assert_close(ours[2].grid.pairs, theirs[2].grid.pairs)

    def test_a_missing_model_costs_only_its_own_jobs(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        gone = ModelAt.parse("nobody/nothing")
        jobs = [job(model=gone.title), job(model=gone.title, seed=1), job()]
        done = run_jobs(jobs, [DEMO, gone], tmp_path)
        assert [type(one) for one in done] == [Failure, Failure, Run]
        assert "is not on this machine and the hub cannot be reached" in done[0].reason
        assert done[0].no_model
        with pytest.raises(NoResultError, match="No run could be done. The model 'nobody"):
            reproduce(["findings"], Setting(models=[gone], datasets=["demo-bias"]), tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_options": {"sed": "3"}}, "Unknown option 'sed'. Did you mean 'seed'?"),
        ({"method_options": {"trail": "3"}}, "Unknown option 'trail'. Did you mean 'trials'?"),
    ],
)
def test_an_option_that_nothing_has_is_refused(tmp_path, options, message):
    setting = Setting(models=[DEMO], **options)
    with pytest.raises(UnknownNameError, match=message):
        reproduce(["table-facts"], setting, tmp_path)
    assert not list(tmp_path.iterdir())


def test_options_of_methods():
    setting = Setting(
        models=[DEMO],
        methods=["top-k", "pgb-ct"],
        held_out=False,
        method_options={"trials": "2", "lambda1": "0.5"},
    )
    topk, learned = EXPERIMENTS["table-heads"].jobs(setting)
    assert topk.options == {}
    assert learned.options == {"trials": 2, "lambda1": 0.5}
    # Those of an experiment count more: they are what it is about.
    without = EXPERIMENTS["fig-ablation"].jobs(setting)[1]
    assert without.options == {"trials": 2, "lambda1": 0.0, "lambda2": 1e-3}
    assert notes_on_size(setting) == [
        "Methods that have these options ran with trials=2, lambda1=0.5."
    ]


class TestReports:
    """What is made of runs."""

    @pytest.mark.slow
    def test_effects_with_held_out_examples(self, tmp_path):
        setting = Setting(models=[DEMO], limit=20, methods=["top-k"])
        (written,) = reproduce(["table-heads"], setting, tmp_path, images=False)
        table = written.report.tables["effects"].frame
        assert table["budget"].tolist() == [3, 6, 9, 12]
        pairs = tk.load_dataset("demo-bias", tk.load_model("demo"))[:20]
        inside, outside = pairs.split(0.8)
        tracer = tk.Tracer("demo", pairs)
        whole = tracer.run("top-k", budget=6)
        row = table.set_index("budget").loc[6]
        assert row["effect"] == pytest.approx(whole.effect, rel=1e-5)
        assert row["n_examples"] == 20
        part = tk.Tracer("demo", inside, held_out=outside).run("top-k", budget=6)
        assert row["held_out"] == pytest.approx(part.held_out_effect, rel=1e-5)
        assert row["chosen_without"] == pytest.approx(part.effect, rel=1e-5)
        assert row["held_out_low"] <= row["held_out"] <= row["held_out_high"]
        assert table["published"].isna().all()
        assert "not a reproduction of its numbers" in written.report.notes[0]
        assert "first 20 examples" in written.report.notes[1]
        read = pd.read_csv(tmp_path / "table-heads" / "effects.csv")
        assert read["effect"].tolist() == pytest.approx(table["effect"].tolist())
        notes = (tmp_path / "table-heads" / "notes.md").read_text()
        assert "not a reproduction" in notes

    @pytest.mark.slow
    def test_published_values_stand_beside_the_papers_models_only(self, tmp_path):
        """With a stand-in for GPT-2 small: its numbers are other ones, and the table says so."""
        runs = run_jobs([job(budgets=(0.1, 0.2))], [DEMO], tmp_path)
        real = [_as(run, model="GPT2-small", dataset="winobias", limit=None) for run in runs]
        paper = ModelAt.parse("gpt2")
        frame = effects_frame(Setting(models=[paper]), real, "heads")
        assert frame["published"].tolist() == [0.108, 0.111]
        assert frame["published_minutes"].tolist() == [1.49, 1.49]
        assert frame["difference"].tolist() == pytest.approx(
            [r.effect - p for r, p in zip(runs[0].curve, [0.108, 0.111], strict=True)]
        )
        assert notes_on_sameness(Setting(models=[paper]), frame) == []
        for setting in (
            Setting(models=[paper], limit=5),
            Setting(models=[ModelAt(title="GPT2-small", source="/a/copy")]),
        ):
            frame = effects_frame(setting, real, "heads")
            assert frame["published"].isna().all()
            assert "not a reproduction" in notes_on_sameness(setting, frame)[0]
        other = [_as(run, model="GPT2-small", limit=None) for run in runs]
        assert effects_frame(Setting(models=[paper]), other, "heads")["published"].isna().all()

    def test_the_papers_llamas_read_a_bos_token_first(self):
        (table,) = select_experiments(["table-heads"])
        setting = Setting(models=[ModelAt.parse(t) for t in ("gpt2", "Llama-3.2-1B=/a/copy")])
        options = {job.model: job.data_options for job in table.jobs(setting)}
        assert options["Llama-3.2-1B"] == {"prepend_bos": True}
        assert options["GPT2-small"] == {}
        asked = replace(setting, data_options={"prepend_bos": False})
        assert {job.data_options["prepend_bos"] for job in table.jobs(asked)} == {False}
        copy = Setting(models=[ModelAt(title="Llama-3.2-1B", source="/a/copy")])
        assert {str(job.data_options) for job in table.jobs(copy)} == {"{'on_mismatch': 'skip'}"}

    def test_reports_say_what_cannot_be_equalled(self):
        def notes(title, dataset="winobias", **options):
            frame = pd.DataFrame(
                {
                    "model": [title],
                    "dataset": [dataset],
                    "method": ["pgb-ct"],
                    "published": [1.0],
                    "n_examples": [1],
                }
            )
            setting = Setting(models=[ModelAt.parse(title)])
            return " ".join(notes_on_sameness(setting, frame, **options))

        assert "leave padding tokens" in notes("Qwen3-1.7B", has_heads=True)
        assert "leave padding tokens" not in notes("Qwen3-1.7B")
        assert "leave padding tokens" not in notes("GPT2-xl", has_heads=True)
        assert "begin with their beginning-of-sequence" in notes("Llama-3.2-1B")
        assert "begin with their beginning-of-sequence" not in notes("Qwen3-1.7B")
        assert "noise of seed 42" in notes("GPT2-xl", "counterfact")

    @pytest.mark.slow
    def test_binding_measures_both_interventions(self, tmp_path, demo_model):
        setting = Setting(models=[DEMO], limit=12, methods=["top-k"])
        (written,) = reproduce(["fig-binding"], setting, tmp_path, images=False)
        frame = written.report.tables["accuracy"].frame
        assert set(frame["intervention"]) == {"value", "operation"}
        row = frame[(frame["intervention"] == "value") & (frame["budget"] == 10)].iloc[0]
        run = Run(
            EXPERIMENTS["fig-binding"].jobs(setting)[0],
            next((tmp_path / "runs").iterdir()),
        )
        mask = run.curve.at(10).binary_mask
        pairs = tk.load_dataset("demo-binding", demo_model)[:12]
        tracer = tk.Tracer(
            demo_model, pairs, "head-outputs+mlp-blocks", "accuracy", positions="last"
        )
        chosen = masked_log_probs(tracer.engine, mask).y_is_argmax
        assert row["accuracy"] == pytest.approx(chosen.float().mean().item())
        assert row["without"] == tracer.engine.clean.y_is_argmax.float().mean().item()
        assert "selected-demo-demo-binding-top-k-10" in written.report.figures

    @pytest.mark.soak
    @pytest.mark.slow
    def test_a_published_circuit_stands_beside_faithful_heads(self, tmp_path, gpt2_tokenizer):
        """On a random model of GPT-2 small's shape."""
        torch.manual_seed(0)
        sizes = {"n_layer": 12, "n_head": 12, "n_embd": 48, "vocab_size": 50_257}
        tiny.hf_model("gpt2", **sizes).save_pretrained(tmp_path / "standin")
        gpt2_tokenizer.save_pretrained(tmp_path / "standin")
        at = ModelAt.parse(str(tmp_path / "standin"))
        done = []
        for _ in range(2):
            (written,) = reproduce(
                ["ioi-circuit"],
                Setting(models=[at], limit=8),
                tmp_path,
                images=False,
                on_done=lambda run: done.append(run.fresh),
            )
        assert done == [True] * 3 + [False] * 3
        report = written.report
        sets = report.tables["sets"].frame
        assert sets["n_selected"].max() == 26
        heads = report.tables["heads-standin-ioi-mask-ig"].frame
        counts = heads["verdict"].value_counts()
        assert counts["hit"] + counts["miss"] == 26
        last = sets[sets["method"] == "mask-ig, faithful"].iloc[-1]
        assert last["recall"] == counts["hit"] / 26
        assert last["precision"] == counts["hit"] / last["n_selected"]
        # What each published head does alone.
        tracer = tk.Tracer(
            tk.load_model(str(tmp_path / "standin")),
            tk.load_dataset("ioi", gpt2_tokenizer)[:8].split(0.5, seed=0)[0],
            "head-outputs",
            "logit-difference",
        )
        alone = report.tables["heads-standin-ioi-top-k"].frame.set_index("component")["score"]
        assert alone["L9H9"] == pytest.approx(tracer.evaluate(["L9H9"]), abs=1e-5)
        notes = " ".join(report.notes)
        assert f"L9H9 (name mover) {alone['L9H9']:+.3g}" in notes
        assert f"recall {last['recall']:.2f}" in notes
        assert "has the shape of GPT-2 small, and is not said to be it" in notes
        assert "Paths among 12 components" in notes
        assert {name.split("-")[0] for name in report.figures} == {"heads", "paths", "sizes"}
        frames = [trace.name for trace in report.figures["heads-standin-ioi-mask-ig"].data]
        assert "selected" in frames

    @pytest.mark.soak
    @pytest.mark.slow
    def test_published_heads_are_of_another_model(self, tmp_path):
        (written,) = reproduce(["ioi-circuit"], SMALL, tmp_path, images=False)
        (note,) = [note for note in written.report.notes if "published heads" in note]
        assert "are not of demo. The circuit 'ioi' is of heads of a model of 12 layers of" in note
        assert written.report.tables["sets"].frame["precision"].isna().all()
        assert set(written.report.figures) >= {"paths-demo-demo-binding-mask-ig"}

    @pytest.mark.slow
    def test_findings_count_signs(self, tmp_path):
        (written,) = reproduce(["findings"], SMALL, tmp_path, images=False)
        row = written.report.tables["findings"].frame.iloc[0]
        tracer = tk.Tracer("demo", tk.load_dataset("demo-bias", tk.load_model("demo"))[:6])
        singles = tracer.engine.set_effects([[i] for i in range(32)]).mean(1)
        assert row["positive"] == (singles > 0).float().mean().item()
        assert row["negative"] == (singles < 0).float().mean().item()
        assert row["full_effect"] == pytest.approx(tracer.full_effect)
        notes = (tmp_path / "findings" / "notes.md").read_text()
        assert "- Only the first 6 examples of each data set were used." in notes

    def test_latex(self, tmp_path):
        frame = pd.DataFrame(
            {
                "data": ["a_b", "a_b", "a_b", "c"],
                "method": ["x", "y", "z", "x"],
                "10 %": [1.0, 3.0, 2.0, 5.0],
                "none": [None, 2.0, 2.0, None],
            }
        )
        table = PaperTable(frame=frame, caption="One.", best=["10 %", "none"], groups=["data"])
        text = table.latex()
        lines = [line for line in text.splitlines() if line.endswith("\\\\")]
        assert lines == [
            "data & method & 10 \\% & none \\\\",
            "a\\_b & x & 1.00 & -- \\\\",
            "a\\_b & y & \\textbf{3.00} & \\textbf{2.00} \\\\",
            "a\\_b & z & \\underline{2.00} & \\textbf{2.00} \\\\",
            "c & x & 5.00 & -- \\\\",
        ]
        assert "\\toprule" in text
        assert "\\caption{One.}" in text
        assert "\\label" not in text
        for _ in range(2):
            # Into folders that are not there yet, and over what is there.
            paths = table.save(tmp_path / "of" / "tables", "one")
            assert [path.name for path in paths] == ["one.csv", "one.tex"]
            assert paths[1].read_text() == text


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        # What prints alike is marked alike, though the numbers differ.
        ([1.296, 1.2951, 1.1], ["\\textbf{1.30}", "\\textbf{1.30}", "1.10"]),
        ([1.296, 1.249, 1.2486], ["\\textbf{1.30}", "\\underline{1.25}", "\\underline{1.25}"]),
        # Fixed decimals: 1.3 does not stand beside 1.29.
        ([1.3, 1.29, 0.946], ["\\textbf{1.30}", "\\underline{1.29}", "0.95"]),
        ([123.4, 56.78, float("nan")], ["\\textbf{123}", "\\underline{57}", "--"]),
        ([0.00123, -0.0004], ["\\textbf{0.00123}", "\\underline{-0.00040}"]),
        # Three best ones: nobody is second.
        ([2.0, 2.0, 2.0, 1.0], ["\\textbf{2.00}"] * 3 + ["1.00"]),
    ],
    ids=str,
)
def test_latex_ties_and_decimals(values, cells):
    frame = pd.DataFrame({"value": values, "published": None})
    text = PaperTable(frame=frame, caption="One.", best=["value", "published"]).latex()
    rows = [line.removesuffix(" \\\\") for line in text.splitlines() if line.endswith("\\\\")]
    assert rows == ["value", *cells]


def _as(run, **changes):
    """A run that looks as if it were of another model or data set."""
    return replace(run, job=replace(run.job, **changes))


def test_grids_are_read_back(tmp_path, model):
    grid = tk.Tracer(model, tiny.pairs(4)).interactions(layers=[1])
    again = tk.results.InteractionGrid.load(grid.save(tmp_path / "grid.json"))
    assert again.labels == grid.labels
    torch.testing.assert_close(again.pairs, grid.pairs)
    torch.testing.assert_close(again.singles, grid.singles)
    assert json.loads((tmp_path / "grid.json").read_text())["format_version"] == FORMAT_VERSION


@pytest.mark.parametrize("change", ["text", "edited"])
def test_damaged_grids_are_refused(tmp_path, model, change):
    path = tk.Tracer(model, tiny.pairs(4)).interactions(layers=[1]).save(tmp_path / "grid.json")
    if change == "text":
        write_document(path, read_document(path) | {"singles": "none"})
    else:
        path.write_text(path.read_text().replace('"title": "', '"title": "another '))
    with pytest.raises(ResultFormatError, match="is damaged, was changed|cannot be read"):
        tk.results.InteractionGrid.load(path)
