"""`tracekit certify`, and certificates that are measured again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tracekit as tk
from tests import tiny
from tracekit.results.certificate import Certificate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(demo_model, tmp_path_factory):
    """The run of a set that has about half of the effect of all components."""
    pairs = tk.load_dataset("demo-facts", demo_model)[:12]
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", "probability-drop")
    result = tracer.run("top-k", budget=24)
    return result.save(tmp_path_factory.mktemp("saved") / "run")


@pytest.fixture
def certify(command, folder):
    return lambda *options: command("certify", folder, "--fresh", "demo-facts", "--quiet", *options)


@pytest.mark.parametrize(
    ("claim", "verdict", "exit_code"),
    [("-0.9", "holds", 0), ("2.5", "fails", 1), ("0.75", "undecided", 3)],
)
def test_exit_codes_say_what_became_of_the_claims(certify, folder, claim, verdict, exit_code):
    code, out, err = certify("--effect", claim)
    assert code == exit_code, err
    assert f"effect at least {float(claim):.3g}: {verdict}" in " ".join(out.split())
    saved = Certificate.load(folder / "certificate.json")
    assert saved.verdict == verdict
    # The twelve of the run were left out.
    assert (saved.n_left_out, saved.n_examples) == (12, sum_of_examples(saved))


def sum_of_examples(certificate):
    return sum(len(batch.origin.examples) for batch in certificate.batches)


def test_a_certificate_is_measured_again_on_the_same_pairs(certify, command, folder):
    certify("--effect", "0.01", "--level", "0.8")
    file = folder / "certificate.json"
    before = Certificate.load(file)
    code, out, err = command("verify", file, "--quiet")
    assert code == {"holds": 0, "fails": 1, "undecided": 3}[before.verdict], err
    text = " ".join(out.split())
    assert " ".join(repr(before).split()) in text
    assert f"The saved certificate: {before.verdict}." in text


def test_a_certificate_on_held_out_pairs_is_measured_again(command, tmp_path):
    options = ["--dataset", "demo-facts", "--held-out", "0.5", "--metric", "probability-drop"]
    command("trace", *options, "--method", "mask-ig", "--budget", "8", "--output", tmp_path)
    folder = tmp_path / "mask-ig-8"
    first, _, err = command("certify", folder, "--effect", "-0.9", "--quiet")
    assert first == 0, err
    code, out, err = command("verify", folder / "certificate.json", "--quiet")
    assert code == 0, err
    assert "The saved certificate: holds." in " ".join(out.split())


def test_other_pairs_than_those_of_the_certificate_are_refused(certify, command, folder, tmp_path):
    certify("--effect", "-0.9")
    saved = folder / "certificate.json"
    before = Certificate.load(saved).batches[0].fingerprint
    changed = shutil.copytree(folder, tmp_path / "run") / saved.name
    changed.write_text(saved.read_text().replace(before, "0" * len(before)))
    code, _, err = command("verify", changed, "--quiet")
    assert (code, "are not those of the certificate" in " ".join(err.split())) == (1, True)


def test_it_may_fail_on_another_model(certify, command, folder, tmp_path):
    assert certify("--effect", "0.5")[0] == 0
    source = Path(tk.__file__).parent / "demo" / "model"
    other = shutil.copytree(source, tmp_path / "model")
    (weights,) = other.glob("*.safetensors")
    tensors = load_file(weights)
    assert [name for name in tensors if "attn.c_proj.weight" in name]
    changed = {n: t * (0.1 if "attn.c_proj.weight" in n else 1) for n, t in tensors.items()}
    save_file(changed, weights, metadata={"format": "pt"})
    code, out, err = command("verify", folder / "certificate.json", "--model", other, "--quiet")
    assert code == 1, (out, err)
    assert "The saved certificate: holds." in " ".join(out.split()), err


def test_claims_are_tested_on_each_of_several_sources(certify, folder):
    _, out, err = certify("--effect", "-0.9", "--fresh", "demo-professions")
    assert "effect at least -0.9 on demo-facts" in " ".join(out.split()), err


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}", "is not a certificate. Give one that"), ("[", "is not a certificate")],
)
def test_other_files_are_refused(command, tmp_path, text, message):
    (file := tmp_path / "certificate.json").write_text(text)
    code, _, err = command("verify", file)
    assert (code, message in " ".join(err.split())) == (1, True)


def test_a_claim_is_needed(certify):
    code, _, err = certify()
    assert (code, "Give faithful, complete, share or effect" in " ".join(err.split())) == (1, True)


@pytest.fixture(scope="module")
def ioi_folder(gpt2_tokenizer, tmp_path_factory):
    """A run of `ioi` in its wording `friends`, on a random model in a directory."""
    torch.manual_seed(0)
    source = tmp_path_factory.mktemp("model")
    tiny.hf_model("gpt2", vocab_size=len(gpt2_tokenizer)).save_pretrained(source)
    gpt2_tokenizer.save_pretrained(source)
    with pytest.warns(tk.errors.ModelWarning, match="hardly predicts plain English"):
        model = tk.load_model(source)
    pairs = tk.load_dataset("ioi", model, n=8, seed=2, counterfactual="flip", wording="friends")
    result = tk.Tracer(model, pairs, "head-outputs", "logit-difference").run("top-k", budget=2)
    return result.save(tmp_path_factory.mktemp("saved") / "run")


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::tracekit.errors.ModelWarning")
def test_a_trace_trains_on_new_pairs_of_its_data_set(command, ioi_folder, tmp_path):
    model = tk.TraceResult.load(ioi_folder).model_facts.path
    options = ("--model", model, "--dataset", "ioi", "--data-option", "n=6", "--quiet")
    search = ("--method", "dcm", "--option", "lambda1=0.001", "--option", "epochs=2")
    output = ("--output", tmp_path, "--metric", "logit-difference", "--new-pairs")
    code, _, err = command("trace", *options, *search, *output)
    assert code == 0, err
    (folder,) = [file.parent for file in tmp_path.rglob("result.json")]
    training = tk.TraceResult.load(folder).run.training
    # A batch of 16 is more than the six that are searched.
    assert training.n_pairs == 32
    assert training.code == "tk.data.endless_pairs('ioi', model, first_seed=1, n=16)"
    command_options = ("--dataset", "demo-facts", "--method", "dcm", "--new-pairs")
    code, _, err = command("trace", *command_options, "--output", tmp_path / "other")
    assert (code, "demo-facts' is not drawn by a seed" in " ".join(err.split())) == (1, True)


@pytest.mark.filterwarnings("ignore::tracekit.errors.ModelWarning")
def test_claims_are_tested_on_each_wording_and_measured_again(command, ioi_folder):
    claim = ("--effect", "-50", "--max-examples", "200", "--quiet")
    code, _, err = command("certify", ioi_folder, "--wordings", *claim)
    assert code == 0, err
    file = ioi_folder / "certificate.json"
    saved = Certificate.load(file)
    wordings = tk.data.DATASETS["ioi"].wordings
    assert [each.wording for each in saved.claims] == ["", *wordings]
    for batch in saved.batches:
        options = {"counterfactual": "flip", "wording": batch.wording, "n": 16}
        assert batch.origin.options == options | {"seed": batch.origin.options["seed"]}
    # The seeds after that of the run.
    assert min(batch.origin.options["seed"] for batch in saved.batches) == 3
    code, out, err = command("verify", file, "--quiet")
    assert code == 0, err
    assert "effect at least -50 on colleagues: holds" in " ".join(out.split())


def test_a_data_set_of_one_wording_is_refused(command, folder):
    code, _, err = command("certify", folder, "--wordings", "--effect", "0.1")
    assert code == 1
    assert "'demo-facts' has one wording only. Use one of ioi, greater-than," in " ".join(
        err.split()
    )


def test_pairs_are_named_once(certify):
    code, _, err = certify("--wordings", "--effect", "0.1")
    assert code == 1
    message = "--fresh and --wordings both say which pairs are measured. Give one."
    assert message in " ".join(err.split())
