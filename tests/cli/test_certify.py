"""`tracekit certify`, and certificates that are measured again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import tracekit as tk
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
    assert (code, "Give faithful, complete or effect" in " ".join(err.split())) == (1, True)
