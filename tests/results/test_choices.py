"""First choices and divergence of runs, against a plain model and against metrics."""

from __future__ import annotations

from math import nan

import pytest
import torch

import tests.files as files
import tests.tiny as tiny
import tracekit as tk
from tracekit.results.on_examples import OnExamples, choice_rows


@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_runs_say_what_a_plain_model_says(demo_model, direction):
    bias = tk.load_dataset("demo-bias", demo_model)[:10]
    options = {"held_out": bias[6:], "direction": direction, "max_batch_size": 4}
    tracer = tk.Tracer(demo_model, bias[:6], "mlp-blocks", "logit-difference", **options)
    result = tracer.run("top-k", budget=2)
    for on, pairs in ((result.searched, bias[:6]), (result.held_out, bias[6:])):
        runs = {each["run"]: each for each in choice_rows(on.choices, len(pairs))}
        x, y = (
            [ids[0] for ids in side]
            for side in zip(*((p.x_ids, p.y_ids) for p in pairs), strict=True)
        )
        with torch.no_grad():
            given = [demo_model(torch.tensor([p.prompt_ids]))[0, -1] for p in pairs]
            changed = [demo_model(torch.tensor([p.counterfactual_ids]))[0, -1] for p in pairs]
        clean, other = (torch.stack(each).log_softmax(-1) for each in (given, changed))
        for name, logs in (("clean", clean), ("counterfactual", other)):
            first = logs.argmax(1).tolist()
            assert runs[name]["first_x"] == sum(map(int.__eq__, first, x))
            assert runs[name]["first_y"] == sum(map(int.__eq__, first, y))
            divergence = (clean.exp() * (clean - logs)).sum(1).mean().item()
            assert runs[name]["kl"] == pytest.approx(divergence, rel=1e-3, abs=1e-6)
        assert runs["counterfactual"]["kl"] > 0.01


def test_sets_say_what_metrics_measure(model):
    """Ragged prompts, continuations of several tokens, a few examples a pass."""
    pairs, question = tiny.pairs(11), ("head-outputs", "logit-difference")
    tracer = tk.Tracer(model, pairs, *question, max_batch_size=3)
    labels = [tracer.registry.label(i) for i in range(12)]
    sets = [(0, 1), (2,), tuple(range(12))]
    said = tracer.question.choices(sets)
    for (_, first_y, _, odds, far), members in zip(said[2:].tolist(), sets, strict=True):
        metrics = ["kl", "accuracy", "logit-difference"]
        effects = tracer.evaluate([labels[i] for i in members], metrics=metrics).loc["effect"]
        assert far == pytest.approx(effects["kl"], rel=1e-4)
        assert first_y - said[0, 1] == round(11 * effects["accuracy"])
        assert said[0, 3].item() - odds == pytest.approx(effects["logit-difference"], rel=1e-3)
    whole = tk.Tracer(model, pairs, *question).question.choices(sets)
    torch.testing.assert_close(said, whole, rtol=1e-4, atol=1e-6)


def test_a_token_that_counts_as_x_is_x_by_a_metric_of_sets(model):
    rows = tiny.rows(6, longest=1)
    for row in rows:
        row["x_set_ids"] = [i for i in range(tiny.VOCABULARY) if i not in row["y_ids"]]
    pairs = tk.PromptPairs.from_ids(rows)
    by_set, by_x = (
        tk.Tracer(model, pairs, "mlp-blocks", metric).question.choices()[0]
        for metric in ("set-logit-difference", "logit-difference")
    )
    assert by_set[:2].sum() == 6
    assert by_x[0] < by_set[0]


NO_RUN = (None, None, None)
CASES = {
    "": (),
    "x first on 2 of 16 (clean 16, counterfactual 1), y on 14 (clean 0, counterfactual 15), "
    "neither on 0 (clean 0, counterfactual 0); KL from clean 0.82 nats (counterfactual 1.4)":
    ((16, 0, 0.0), (1, 15, 1.4), (2, 14, 0.82)),
    "x first on 2 of 16 (clean 16), y on 4 (clean 0), neither on 10 (clean 0): the set breaks the "
    "model; KL from clean 3.3 nats": ((16, 0, 0.0), NO_RUN, (2, 4, 3.3)),
    # Not the set: the other prompts do the same.
    "x first on 0 of 16 (clean 16, counterfactual 0), y on 0 (clean 0, counterfactual 1), neither "
    "on 16 (clean 0, counterfactual 15); KL from clean - nats (counterfactual 12)":
    ((16, 0, 0.0), (0, 1, 12.0), (0, 0, None)),
    # Neither did the model do the task by itself.
    "x first on 0 of 16 (clean 8), y on 4 (clean 0), neither on 12 (clean 8); KL from clean 1 nats":
    ((8, 0, 0.0), NO_RUN, (0, 4, 1.0)),
    "x first on 0 of 16 (clean 3); KL from clean 2 nats": ((3, None, 0.0), NO_RUN, (0, None, 2.0)),
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_words_say_whether_the_behaviour_flips(text):
    runs = [[nan if each is None else each for each in run] for run in CASES[text]]
    choices = torch.tensor([[x, y, 16 - x - y, 0.0, kl] for x, y, kl in runs]) if runs else None
    names = {"dataset": "", "fingerprint": "", "metric": "", "direction": "noising"}
    on = OnExamples(effects=torch.zeros(16), full=torch.zeros(16), choices=choices, **names)
    assert on.choices_text == text


@pytest.mark.slow
def test_results_pages_and_models_say_it(demo_model, tmp_path):
    pairs = tk.load_dataset("demo-professions", demo_model)[:12]
    tracer = tk.Tracer(
        demo_model, pairs[:8], "head-outputs", "logit-difference", source="zero", held_out=pairs[8:]
    )
    result = tracer.run("attribution", budget=4)
    said = result.held_out.choices_text
    assert said.startswith(f"x first on {result.held_out.choices[2, 0]:.0f} of 4 (clean ")
    assert f"held out: {said}" in result._repr_html_()
    assert f" First choices: {said}." in tk.report(result, tmp_path / "report.html").read_text()
    tracer.export(result, tmp_path / "edited")
    assert f"- First choices, held out: {said}\n" in (tmp_path / "edited/README.md").read_text()
    result.save(tmp_path / "run")
    assert (
        tk.TraceResult.load(tmp_path / "run").searched.choices_text
        == result.searched.choices_text
        != ""
    )
    # Results that were saved before choices were say nothing of them.
    files.rewrite(tmp_path / "run/result.json", lambda _, tensors: tensors.pop("searched.choices"))
    earlier = tk.TraceResult.load(tmp_path / "run")
    assert (earlier.searched.choices_text, earlier.held_out.choices_text) == ("", said)


def test_counterfactual_runs_of_other_lengths_belong_to_their_pairs(model):
    """Batches of prompts and of counterfactuals, each of about one length, hold other pairs."""
    rows = tiny.rows(9, longest=1)
    prompts = sorted((row["prompt_ids"] for row in rows), key=len)
    for row in rows:
        # The longest with the shortest.
        row["counterfactual_ids"] = prompts[-1 - prompts.index(row["prompt_ids"])]
        for name, ids in (("spans", "prompt_ids"), ("counterfactual_spans", "counterfactual_ids")):
            row[name] = {"end": [len(row[ids]) - 1, len(row[ids])]}
    assert sum(len(row["counterfactual_ids"]) != len(row["prompt_ids"]) for row in rows) > 5
    pairs = tk.PromptPairs.from_ids(rows)
    options = {"split_by": "span", "max_batch_size": 2}
    tracer = tk.Tracer(model, pairs, "mlp-blocks", "logit-difference", **options)
    with torch.no_grad():
        clean, other = (
            torch.stack([model(torch.tensor([row[key]]))[0, -1].log_softmax(-1) for row in rows])
            for key in ("prompt_ids", "counterfactual_ids")
        )
    far = (clean.exp() * (clean - other)).sum(1).mean().item()
    assert tracer.question.choices()[1, 4].item() == pytest.approx(far, rel=1e-4)
