"""Peers of which speed is compared: what they score, and the copy that is run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tools.studies import peer_sides as sides
from tools.studies.peers import Measured, adapted, reasons_left_out, rows_of_table


@pytest.fixture(scope="module")
def both():
    pytest.importorskip("transformer_lens.tools.analysis.attribution_patching")
    return sides.Tracekit("tiny", "cpu"), sides.TransformerBridgeSide("tiny", "cpu")


@pytest.mark.parametrize("task", ["eap", "head_attribution", "head_patching"])
def test_transformer_lens_has_the_same_scores(both, task):
    rows = sides.Rows.draw("tiny", 0, 3)
    own, theirs = (read(run()) for run, read in (getattr(side, task)(rows) for side in both))
    assert own.abs().max() > 0.01
    torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)


def test_names_of_edges():
    names = map(sides.peer_name, ("E>L0Q1", "L3H5>L4K0", "MLP2>L10V11", "L0H1>MLP0", "MLP3>logits"))
    assert list(names) == [
        "input->a0.h1<q>",
        "a3.h5->a4.h0<k>",
        "m2->a10.h11<v>",
        "a0.h1->m0",
        "m3->logits",
    ]


@pytest.mark.parametrize("size", [1, 70])
def test_circuits_have_their_size_and_are_connected(size):
    circuit = sides.random_circuit("tiny", size, 0)
    assert len(set(circuit)) == size
    assert set(circuit) <= set(sides.edge_labels("tiny"))
    ends = [edge.translate(str.maketrans("QKV", "HHH")).split(">") for edge in circuit]
    senders, receivers = map(set, zip(*ends, strict=True))
    assert senders - receivers == {"E"}
    assert receivers - senders == {"logits"}


def test_scores_of_the_copy_lie_on_the_device_of_the_model(tmp_path):
    package = tmp_path / "checkout" / "src" / "eap"
    package.mkdir(parents=True)
    (package / "attribute.py").write_text("scores = torch.zeros(2, device='cuda')\n")
    copy = adapted(tmp_path / "checkout", tmp_path / "copy") / "eap" / "attribute.py"
    assert copy.read_text() == "scores = torch.zeros(2, device=model.cfg.device)\n"


def test_a_row_has_medians_and_worst_cases():
    runs = [
        Measured("EAP", side, seconds, mebibytes, passes)
        for own, peer in ((0.1, 0.3), (0.2, 0.2), (0.1, 0.4))
        for side, seconds, mebibytes, passes in (("tracekit", own, 5, 2), ("EAP-IG", peer, 9, 4))
    ]
    scores = {
        "tracekit": {"EAP": torch.tensor([2.0, 0.0])},
        "EAP-IG": {"EAP": torch.tensor([2.0, 0.2])},
    }
    (row,) = rows_of_table(runs, scores)
    assert row == (
        "| EAP | EAP-IG | 300 (400) | 100 (200) | 3.00 (1.00) | 4.0, 2.0 | 9, 5 | 1e-01 |"
    )


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({}, ["EAP-IG", "HookedTransformer"]),
        ({"lens": "lens"}, ["EAP-IG"]),
        ({"checkout": "here"}, ["EAP-IG", "HookedTransformer"]),
        ({"checkout": "here", "lens": "lens"}, []),
    ],
)
def test_peers_that_lack_a_folder_are_left_out_with_a_reason(given, left_out):
    folders = {name: Path(folder) for name, folder in given.items()}
    reasons = reasons_left_out(**{"checkout": None, "lens": None} | folders)
    assert sorted(reasons) == left_out
    assert all("--lens" in reason for reason in reasons.values())
    if not given:
        assert reasons["EAP-IG"] == "It needs CHECKOUT and --lens."
