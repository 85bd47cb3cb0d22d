"""What heads look at: places, tables, texts, files, the figure; against a plain model."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

import pytest
import torch
from transformers import AutoModelForCausalLM

import tracekit as tk
from tests import tiny
from tests.engine.test_head_reads import parts_of, plain_reads
from tracekit.errors import ComponentError, PairsError, ResultFormatError
from tracekit.measure import Attention
from tracekit.reports.report import check_of_run
from tracekit.results.intervals import effect_interval

HEADS = ((1, 2), (3, 4))


def pairs_of(facts, **more):
    """Six facts of seven tokens, each with the next one's prompt as the counterfactual."""
    chosen = [pair for pair in facts if len(pair.prompt_ids) == 7][:6]
    return tk.PromptPairs.from_ids(
        [
            {
                "prompt_ids": pair.prompt_ids,
                "counterfactual_ids": chosen[number - 1].prompt_ids,
                "x_ids": pair.x_ids[:1],
                "y_ids": pair.y_ids[:1],
                **{key: value(number) for key, value in more.items()},
            }
            for number, pair in enumerate(chosen)
        ]
    )


@pytest.fixture(scope="module")
def facts(demo_model):
    return pairs_of(tk.load_dataset("demo-facts", demo_model), spans=lambda n: {"subject": [0, 3]})


@pytest.fixture(scope="module")
def tracer(demo_model, facts):
    return tk.Tracer(demo_model, facts, "head-outputs+mlp-blocks", "logit-difference")


@pytest.fixture(scope="module")
def attention(tracer):
    return tracer.attention(["L1H2", "L3H4", "MLP2"])


@pytest.fixture(scope="module")
def plain(demo_model):
    folder = demo_model.original_model.config.name_or_path
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def plainly(hf, ids, pair):
    """Attentions, and contributions with the scales of norms of the prompt."""
    x, y = pair.x_ids[0], pair.y_ids[0]
    return plain_reads(hf, parts_of("gpt2", hf), ids, x, y, HEADS, pair.prompt_ids)[:2]


def test_attention_by_span_and_contributions_equal_a_plain_model(facts, attention, plain):
    assert attention.places == ("subject", "last", "rest")
    for number, pair in enumerate(facts):
        subject = list(pair.spans["subject"])
        rest = [n for n in range(6) if n not in subject]
        patterns, direct = plainly(plain, pair.prompt_ids, pair)
        others, of_other = plainly(plain, pair.counterfactual_ids, pair)
        for each, by_place in (
            (patterns, attention.clean),
            (others, attention.counterfactual),
        ):
            sums = [[row[-1, subject].sum(), row[-1, 6], row[-1, rest].sum()] for row in each]
            torch.testing.assert_close(
                by_place[:, :, number], torch.tensor(sums), rtol=1e-3, atol=1e-6
            )
        close = {"rtol": 2e-3, "atol": 5e-5}
        torch.testing.assert_close(attention.direct[:, number], direct, **close)
        torch.testing.assert_close(attention.counterfactual_direct[:, number], of_other, **close)
    assert (attention.counterfactual_direct - attention.direct).abs().max() > 0.01


def test_attention_of_another_token_and_by_position(demo_model, tracer, facts, attention, plain):
    of_subject = tracer.attention(["L1H2", "L3H4"], at="subject")
    torch.testing.assert_close(of_subject.direct, attention.direct)
    for number, pair in enumerate(facts):
        subject = list(pair.spans["subject"])
        for head, row in enumerate(plainly(plain, pair.prompt_ids, pair)[0]):
            assert of_subject.clean[head, 0, number] == pytest.approx(
                row[subject[-1], subject].sum().item(), rel=1e-3
            )
    assert "from the last token of subject" in str(of_subject)
    pairs = pairs_of(tk.load_dataset("demo-facts", demo_model))
    by_position = tk.Tracer(demo_model, pairs, "attention-patterns", "logit-difference")
    read = by_position.attention("L3H4", at="2 of")
    assert read.places[2] == "2 of"
    for number, pair in enumerate(facts):
        expected = plainly(plain, pair.prompt_ids, pair)[0][1][2]
        torch.testing.assert_close(read.clean[0, :, number], expected, rtol=1e-3, atol=1e-6)


def test_the_tables_have_intervals(attention):
    table, places = attention.table, attention.places
    assert attention.to_frame().equals(table)
    assert attention.to_frame() is not table
    assert list(table["component"]) == ["L1H2"] * 3 + ["L3H4"] * 3
    assert list(table["place"]) == [*places, *places]
    for name, values in (("clean", attention.clean), ("counterfactual", attention.counterfactual)):
        flat = values.reshape(6, -1).double()
        assert table[name].tolist() == pytest.approx(flat.mean(1).tolist())
        assert (table[f"{name}_low"][4], table[f"{name}_high"][4]) == pytest.approx(
            effect_interval(flat[4])
        )
    frame = attention.contributions
    assert frame["counterfactual"].tolist() == pytest.approx(
        attention.counterfactual_direct.mean(1).tolist()
    )
    assert frame["clean_low"][1] == pytest.approx(effect_interval(attention.direct[1].double())[0])


def test_no_interval_of_attention_leaves_what_weights_can_be(attention):
    """Nearly all examples attend wholly, one by half: resampled means would go beyond 1."""
    near = torch.full_like(attention.clean, 0.9999)
    near[..., 0] = 0.5
    frame = replace(attention, clean=near, counterfactual=1 - near).table
    ends = frame[[name for name in frame if name.endswith(("_low", "_high"))]]
    assert ends.to_numpy().min() >= 0
    assert ends.to_numpy().max() <= 1


def test_the_text_says_what_heads_see_and_what_was_left_out(tracer, attention, facts):
    lines = str(attention).splitlines()
    assert lines[0].startswith("Attention of 2 heads of ")
    where = ", from the last token, counterfactual patching, n = 6"
    assert f"{where}: in the clean run, \u2192 in the counterf" in lines[0]
    largest = attention.table.iloc[:3].sort_values("clean").iloc[-1]
    after = f"{largest['clean']:.2f} \u2192 {largest['counterfactual']:.2f}"
    assert lines[1].startswith(f"L1H2 attends to {largest['place']} {after} and ")
    assert lines[-1] == "No heads, so left out: MLP2."
    assert lines[-1] in unescape(attention._repr_html_())
    assert repr(attention).startswith("Attention(2 heads of ")
    zero = tk.Tracer(tracer.model, facts, "head-outputs", "logit-difference", source="zero")
    read = zero.attention("L1H2")
    assert read.counterfactual is None
    assert "The source 'zero' is no run of the model: all is clean." in str(read)
    assert len(read.figure().data[0].z) == 1
    torch.testing.assert_close(read.clean, attention.clean[:1])


def test_denoising_names_the_runs_alike(demo_model, facts, attention):
    options = {"direction": "denoising"}
    tracer = tk.Tracer(demo_model, facts, "head-outputs", "logit-difference", **options)
    read = tracer.attention(["L1H2", "L3H4"])
    torch.testing.assert_close(read.clean, attention.clean)
    torch.testing.assert_close(read.counterfactual_direct, attention.counterfactual_direct)
    assert read.direction == "denoising"


def test_sets_and_prompts_that_cannot_be_read(tracer, model):
    for members, shown in (("MLP2", "MLP2"), ([], "none")):
        text = rf"\({shown}\) is a head.*Give head-outputs or attention-patterns"
        with pytest.raises(ComponentError, match=text):
            tracer.attention(members)
    with pytest.raises(PairsError, match="no place 'object'. Give one of subject, last, rest."):
        tracer.attention("L1H2", at="object")
    ragged = tk.Tracer(model, tiny.pairs(4), "head-outputs")
    with pytest.raises(PairsError, match=r"have \d to \d tokens, and no spans. Give every example"):
        ragged.attention("L1H2")


def test_a_place_that_a_prompt_lacks(demo_model):
    every = tk.load_dataset("demo-facts", demo_model)
    pairs = pairs_of(every, spans=lambda n: {"most": [0, 6 - n]})
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", "logit-difference")
    assert tracer.attention("L1H2").places == ("most", "last", "rest")
    with pytest.raises(PairsError, match="Example 0 has no token of 'rest'. Give another place"):
        tracer.attention("L1H2", at="rest")


def test_files_are_read_back_or_refused(tracer, tmp_path):
    result = tracer.run("top-k", budget=3)
    read = tracer.attention(result)
    loaded = Attention.load(read.save(tmp_path))
    assert loaded.table.equals(read.table)
    check_of_run(loaded, result, tmp_path)
    other = next(n for n in range(8) if n not in read.members)
    with pytest.raises(
        ResultFormatError, match=r"record of attention .* delete its attention\.json"
    ):
        check_of_run(tracer.attention(tracer.registry[other]), result, tmp_path)


def test_the_figure_has_a_row_for_each_head_and_run(attention):
    figure = attention.figure()
    (drawn,) = figure.data
    table = attention.table
    rows = [row for row in drawn.z if row[0] is not None]
    expected = [
        table[name][table["component"] == label].tolist()
        for label in ("L1H2", "L3H4")
        for name in ("clean", "counterfactual")
    ]
    assert [list(row) for row in rows] == expected
    assert list(figure.layout.yaxis.ticktext) == ["L1H2", "L1H2 cf.", "L3H4", "L3H4 cf."]
    assert list(figure.layout.xaxis.ticktext) == list(attention.places)
    beside = [note.text for note in figure.layout.annotations]
    direct = attention.contributions["clean"][0]
    assert beside[0] == f"{direct:+.2f}".replace("-", "\u2212")
    assert beside[-1] == "logits"


def test_pages_show_attention_beside_its_paths(tracer, attention, tmp_path):
    text = unescape(tk.report(attention, tmp_path / "alone.html").read_text())
    assert "What heads look at: L1H2, L3H4" in text
    paths = tracer.paths(["L1H2", "L3H4"], by_input=False)
    text = unescape(tk.report([attention, paths], tmp_path / "both.html").read_text())
    assert "What heads look at" not in text
    assert str(attention).splitlines()[0] in text
    assert text.count("Plotly.newPlot(") >= 2
