"""The grid of a sweep: its jobs, and what is refused before any model is loaded."""

from __future__ import annotations

import pytest

import tracekit as tk
from tracekit.cli.options import read_options, write_options
from tracekit.engine.setup import Setup
from tracekit.errors import (
    BudgetError,
    ConfigError,
    DataNotFoundError,
    SourceError,
    UnknownModelError,
    UnknownNameError,
)
from tracekit.runs.jobs import Grid, part_of

PLAIN = {"models": ["demo"], "datasets": ["demo-bias"]}


def test_every_combination_is_a_job_and_models_stay_together():
    grid = Grid(
        models=["demo", "mine=some/where"],
        datasets=["demo-bias", "demo-facts"],
        methods=["top-k", "greedy"],
        components=["attention-patterns", "mlp-outputs"],
        metrics=["odds-ratio"],
        seeds=[0, 1],
    )
    jobs = grid.jobs()
    assert len(jobs) == len({job.identity for job in jobs}) == 2 * 2 * 2 * 2 * 2
    assert [job.model for job in jobs] == ["demo"] * 16 + ["mine"] * 16
    assert grid.sources()["mine"].source == "some/where"


def test_what_is_not_given_is_what_is_usual_for_the_data():
    bias, binding = Grid(models=["demo"], datasets=["demo-bias", "demo-binding"]).jobs()
    assert bias.setup == Setup(components="attention-patterns", metric="odds-ratio")
    assert binding.setup.components == "head-outputs+mlp-blocks"
    assert binding.setup.positions == "last"
    assert (bias.method, bias.budgets) == ("pgb-ct+local", (0.1,))
    grid = Grid(models=["demo"], datasets=["demo-bias"], components=["edges", "head-outputs"])
    assert [job.method for job in grid.jobs()] == ["learned-ranking", "pgb-ct+local"]
    (of_setup,) = Grid(
        models=["demo"], datasets=["demo-bias"], setup={"components": "edges-by-block"}
    ).jobs()
    assert of_setup.method == "learned-ranking"


def test_methods_are_names_tables_or_searches():
    methods = ["random", {"name": "random", "draws": 7}]
    methods += [tk.search.Random(draws=7), tk.search.PGBCT(epochs=3)]
    jobs = Grid(**PLAIN, methods=methods).jobs()
    # The second and the third are the same run.
    assert [(job.method, job.options) for job in jobs] == [
        ("random", {}),
        ("random", {"draws": 7}),
        ("pgb-ct", {"epochs": 3}),
    ]


def test_options_of_data_reach_the_sets_that_have_them():
    grid = Grid(
        models=["demo"],
        datasets=["demo-bias", {"name": "demo-facts", "noise_factor": 2.0}],
        data_options={"seed": 4},
    )
    assert [job.data_options for job in grid.jobs()] == [{}, {"seed": 4, "noise_factor": 2.0}]


def test_equal_budgets_in_another_order_are_the_same_run():
    first, second = (Grid(**PLAIN, budgets=b).jobs()[0] for b in ([0.5, 4, 2], [2, 4, 0.5]))
    assert first.identity == second.identity
    assert first.budgets == (2, 4, 0.5)


def test_jobs_say_what_is_unusual():
    shared = {
        "direction": "denoising",
        "layers": [1],
        "source": "noise:spans=last",
        "positions": [0],
    }
    grid = Grid(**PLAIN, setup=shared, extra_metrics=["kl"], seeds=[3], limit=8)
    (job,) = grid.jobs()
    assert job.setup.source_seed == job.seed == 3
    assert job.unusual == {
        **{"direction": "denoising", "layers": (1,), "source": "noise:spans=last"},
        **{"dtype": "auto", "limit": 8},
    }


def test_parts_are_every_so_many_th_job_and_together_all():
    jobs = Grid(**PLAIN, seeds=range(7)).jobs()
    assert [job.seed for job in part_of(jobs, "3/3")] == [2, 5]
    parts = [part_of(jobs, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(job.seed for part in parts for job in part) == list(range(7))
    assert part_of(jobs, "8/9") == []
    for text in ("0/3", "4/3", "3", "a/b", "-1/3", "1/", ""):
        with pytest.raises(ConfigError, match="is not of the form NUMBER/COUNT. Give one such as"):
            part_of(jobs, text)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"methods": ["topk"]}, UnknownNameError, "'topk'. Did you mean 'top-k'"),
        ({"methods": [{"draws": 2}]}, ConfigError, "has no name. Give a name, or a table"),
        ({"methods": [{"name": "random", "drawn": 2}]}, UnknownNameError, "'drawn'. .* 'draws'"),
        ({"models": []}, ConfigError, "needs models, and none are given"),
        ({"models": [3]}, ConfigError, "3 is not a name. Workers load models"),
        ({"models": ["a/end", "b/end"]}, ConfigError, "a/end and b/end .* names: NAME=DIRECTORY"),
        ({"datasets": ["demo-bais"]}, UnknownNameError, "'demo-bais'. Did you mean 'demo-bias'"),
        ({"datasets": "demo-bias"}, ConfigError, "datasets is 'demo-bias'. Give a list, even of"),
        ({"datasets": [{"name": "demo-facts", "sed": 1}]}, UnknownNameError, "'sed'. .* 'seed'"),
        ({"data_options": {"sed": 1}}, UnknownNameError, "Unknown option 'sed'"),
        (
            {"components": ["head-output"]},
            UnknownNameError,
            "'head-output'. Did you mean 'head-outputs'",
        ),
        ({"metrics": ["odds"]}, UnknownNameError, "Unknown metric 'odds'"),
        ({"extra_metrics": ["lk"]}, UnknownNameError, "Unknown metric 'lk'"),
        ({"budgets": [0]}, BudgetError, "budget of 0 is not a number of components. Give a count"),
        ({"budgets": [1.5]}, BudgetError, "A budget of 1.5 is not a number"),
        ({"budgets": ["2"]}, BudgetError, "A budget of '2' is not a number"),
        ({"budgets": [float("nan")]}, BudgetError, "A budget of nan is not a number"),
        ({"budgets": [True]}, BudgetError, "A budget of True is not a number"),
        ({"seeds": [-1]}, ConfigError, "The seed is -1. Give a whole number"),
        ({"limit": 0}, ConfigError, "The limit is 0. Give the number of examples"),
        ({"held_out": 1.0}, ConfigError, "held_out is 1.0. Give a share of the examples"),
        ({"setup": {"direction": "noise"}}, ConfigError, "direction is 'noise'. .* 'noising'"),
        ({"setup": {"source": "nought"}}, SourceError, "'nought'. Use one of"),
        ({"objective": "max"}, ConfigError, "objective is 'max'. Input should be"),
    ],
)
def test_what_is_refused_before_anything_runs(changes, error, text, unchecked):
    with pytest.raises(error, match=text):
        Grid(**{**PLAIN, **changes})


def test_a_search_of_ones_own_is_refused():
    class Mine(tk.search.Random):
        pass

    with pytest.raises(UnknownNameError, match="Workers know only the methods of tracekit."):
        Grid(**PLAIN, methods=[Mine(draws=3)])


def test_models_that_are_not_there(lab):
    with pytest.raises(UnknownModelError, match=r"There is no directory .*/frist. .*Did you mean"):
        Grid(models=[str(lab / "frist")], datasets=["demo-bias"]).check_models()
    with pytest.raises(UnknownModelError, match="'dmeo' is not on .* Did you mean 'demo'"):
        Grid(models=["dmeo"], datasets=["demo-bias"]).check_models()
    # The workers may have it.
    Grid(models=["somebody/something"], datasets=["demo-bias"]).check_models()


class TestFiles:
    @pytest.mark.parametrize(
        ("content", "error", "text"),
        [
            (b'modls = ["demo"]', UnknownNameError, "'modls'. Did you mean 'models'"),
            (b"max-passes = 1\nmax_passes = 2", ConfigError, "key max_passes twice. Keep one"),
            (b"limit = = 3", ConfigError, "cannot be read as TOML: .*line 1.* Write"),
            (b"limit = '\xff'", ConfigError, "cannot be read as TOML"),
            (None, DataNotFoundError, r"no file .*sweep.toml. Give"),
        ],
    )
    def test_files_that_are_refused(self, tmp_path, content, error, text):
        path = tmp_path / "sweep.toml"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(error, match=text):
            read_options(path, ["models", "limit", "max_passes"])

    @pytest.mark.parametrize(
        "text",
        [
            "model_options = {trust_remote_code = true}",
            'model-option = ["trust_remote_code=true"]',
            '[models]\ntitle = "trust_remote_code"',
        ],
    )
    def test_no_file_runs_the_code_of_a_model(self, tmp_path, text):
        (path := tmp_path / "sweep.toml").write_text(text)
        with pytest.raises(ConfigError, match="sets trust_remote_code, which a file of options"):
            read_options(path, ["model_options", "model_option", "models"])
        write_options(path, {"model_option": ["trust_remote_code=true", "revision=a"]})
        assert read_options(path, ["model_option"]) == {"model_option": ["revision=a"]}

    def test_what_is_written_is_read_again(self, tmp_path):
        options = {
            "limit": 3,
            "name": 'a "quoted"\nline',
            "budgets": [2, 0.1],
            "output": tmp_path,
            "nothing": None,
            "empty": [],
        }
        write_options(tmp_path / "options.toml", options)
        read = read_options(tmp_path / "options.toml", options)
        kept = {name: options[name] for name in ("limit", "name", "budgets")}
        assert read == {**kept, "output": str(tmp_path)}
