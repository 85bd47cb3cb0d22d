"""A model is compared with published single-head effects; the wrong one must fail."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import typer

import tracekit as tk
from paper import published
from paper.models import PAPER_MODELS
from tests import tiny
from tools.validate import Validation, main, read_single_heads, validate
from tracekit.errors import (
    ComparisonError,
    DataFormatError,
    DataNotFoundError,
    UnknownNameError,
)


@pytest.fixture(scope="module")
def demo(demo_model):
    return tk.Tracer(demo_model, tk.load_dataset("demo-bias", demo_model)[:12])


@pytest.fixture(scope="module")
def table(demo):
    """A table as it would be published, measured plainly, mask by mask."""
    n = len(demo.registry)
    singles = torch.stack([demo.engine.effects(mask).mean() for mask in torch.eye(n)])
    return published.SingleHeads(
        model="demo",
        dataset="demo-bias",
        n_examples=12,
        all_heads=demo.full_effect,
        singles=singles.reshape(4, 8),
        source="this test",
    )


@pytest.mark.slow
def test_the_model_of_the_table_agrees(demo, table):
    found = validate(demo, table)
    assert not found.problems
    assert found.correlation > 0.9999
    assert found.largest_difference < 1e-3 * found.largest_published


@pytest.mark.slow
def test_other_weights_do_not(demo_model, demo, table):
    """Also if only one head's are other ones."""
    import copy

    broken = copy.deepcopy(demo_model)
    with torch.no_grad():
        changed = [p for n, p in broken.named_parameters() if "h.0." in n and ".attn." in n]
        assert changed
        for parameter in changed:
            parameter.copy_(parameter.flip(0))
    found = validate(tk.Tracer(broken, demo.pairs), table)
    assert any("correlation" in problem for problem in found.problems)
    random = tk.load_model(tiny.hf_model("gpt2", n_embd=128, n_layer=4, n_head=8, vocab_size=274))
    found = validate(tk.Tracer(random, demo.pairs), table)
    assert len(found.problems) == 3


def test_each_problem_is_found_alone(table):
    def problems(**changes):
        agreeing = {"table": table, "singles": table.singles, "all_heads": table.all_heads}
        return Validation(**{**agreeing, **changes}).problems

    assert problems() == []
    shifted = table.singles.clone()
    shifted[1, 3] += 0.1 * shifted.abs().max()
    assert ["a head differs" in problem for problem in problems(singles=shifted)] == [True]
    assert "all heads together" in problems(all_heads=1.1 * table.all_heads)[0]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(table.singles.shape, generator=generator)
    noisy = table.singles + table.singles.abs().max() * noise
    assert "correlation" in problems(singles=noisy)[0]


def test_a_table_of_something_else_is_refused(demo, table):
    for other in (
        replace(table, dataset="winobias-dev"),
        replace(table, n_examples=11),
        replace(table, singles=table.singles[:2]),
    ):
        with pytest.raises(ComparisonError, match="The table for demo has .*; the model has"):
            validate(demo, other)
    some = tk.Tracer(demo.model, demo.pairs, layers=[0])
    with pytest.raises(ComparisonError, match="Give the model and the data set"):
        validate(some, table)


def test_published_tables():
    for model in ("distilgpt2", "gpt2", "gpt2-medium"):
        table = published.single_heads(model, "winobias-dev")
        sizes = next(one for one in PAPER_MODELS.values() if one.hub == model)
        assert table.singles.shape == (sizes.n_layers, sizes.n_heads)
        assert table.n_examples == 160
    assert published.single_heads("gpt2", "winobias-dev").singles.max().item() == pytest.approx(
        0.031, abs=5e-4
    )
    with pytest.raises(UnknownNameError, match="Unknown table 'gpt2-xl on winobias-dev'."):
        published.single_heads("gpt2-xl", "winobias-dev")


def test_they_are_those_of_the_record(shared):
    record = json.loads((shared / "oracle" / "published_single_head_effects.json").read_text())
    assert len(record["tables"]) == 8
    for entry in record["tables"]:
        table = published.single_heads(entry["model"], entry["dataset"])
        assert table.singles.tolist() == torch.tensor(entry["single_head_effect"]).tolist()
        assert table.all_heads == entry["all_heads_effect"]


def test_tables_of_ones_own(tmp_path, table):
    path = tmp_path / "table.json"
    document = {
        "dataset": table.dataset,
        "model": table.model,
        "n_examples": table.n_examples,
        "all_heads_effect": table.all_heads,
        "single_head_effect": table.singles.tolist(),
    }
    path.write_text(json.dumps(document))
    again = read_single_heads(path)
    assert torch.equal(again.singles, table.singles)
    assert again.source == str(path)
    path.write_text("{}")
    with pytest.raises(DataFormatError, match="is no table of single heads. It needs the keys"):
        read_single_heads(path)
    with pytest.raises(DataNotFoundError, match="There is no file .*none.json. Give a JSON file"):
        read_single_heads(tmp_path / "none.json")


def test_the_papers_tables():
    frame = published.paper_effects()
    assert len(frame) == 71 * 4
    one = frame.set_index(["table", "dataset", "model", "method", "share"])
    for key, effect in (
        (("heads", "winogender", "DistilGPT2", "random", 0.1), 0.0082),
        (("heads", "winobias", "GPT2-small", "pgb-ct", 0.2), 0.115),
        (("heads", "winobias", "Llama-3.2-1B", "pgb-ct", 0.4), 2.747),
        (("neurons", "professions", "GPT2-xl", "pgb-ct", 0.15), 6.6e11),
        (("facts", "counterfact", "GPT2-small", "top-k", 0.05), 66.02),
    ):
        assert one.loc[key, "effect"] == effect
    assert one.loc[("heads", "winobias", "GPT2-medium", "greedy", 0.1), "minutes"] == 1001.50
    assert one.loc[("neurons", "professions", "GPT2-small", "pgb-ct", 0.1), "minutes"] == 1.8
    assert set(frame["model"]) <= set(PAPER_MODELS)
    singles = published.paper_singles().set_index(["model", "dataset"])
    assert singles.loc[("GPT2-medium", "winobias"), "optimum"] == 0.377
    joint = published.paper_joint()
    assert [len(one["components"]) for one in joint] == [10, 15]
    assert published.paper_similarity()["jaccard"].tolist() == [0.64, 0.44]


def run(capsys, *arguments):
    """Exit code, standard output and standard error of the command."""
    program = typer.Typer()
    program.command()(main)
    code = program(list(map(str, arguments)), standalone_mode=False)
    out = capsys.readouterr()
    return code or 0, " ".join(out.out.split()), " ".join(out.err.split())


@pytest.mark.slow
def test_the_command(capsys, tmp_path, demo_model):
    """With a table of the embedded model, and with other weights."""
    pairs = tk.load_dataset("demo-bias", demo_model)
    tracer = tk.Tracer(demo_model, pairs)
    entry = {
        "dataset": "demo-bias",
        "model": "demo",
        "n_examples": len(pairs),
        "all_heads_effect": tracer.full_effect,
        "single_head_effect": tracer.run("top-k", budget=1).component_scores.reshape(4, 8).tolist(),
    }
    own = tmp_path / "table.json"
    arguments = ("demo", "--dataset", "demo-bias", "--table", own)
    code, _, err = run(capsys, *arguments)
    assert (code, "There is no file" in err) == (1, True)
    own.write_text(json.dumps(entry))
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    assert "demo agrees with demo." in out
    assert "heads 32 correlation 1.000000" in out
    entry["single_head_effect"][0].reverse()
    own.write_text(json.dumps(entry))
    code, out, err = run(capsys, *arguments)
    assert code == 1
    assert "heads 32" in out
    assert "demo does not agree with the table for demo on demo-bias: the correlation" in err


@pytest.mark.soak
def test_random_weights_do_not_validate_as_gpt2(capsys, tmp_path, shared, gpt2_tokenizer):
    """The real sizes of DistilGPT2, its tokenizer and data, but not its weights."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=6)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "distilgpt2")
    gpt2_tokenizer.save_pretrained(tmp_path / "distilgpt2")
    data = shared / "data" / "winogender"
    code, out, err = run(capsys, tmp_path / "distilgpt2", "--data-dir", data, "--quiet")
    assert code == 1
    assert "Vig et al. 2020" in out
    assert "does not agree with the table for distilgpt2 on winogender-bergsma" in err
