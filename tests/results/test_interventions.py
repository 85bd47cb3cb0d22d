"""Every output says what was patched, where, and in which direction."""

from __future__ import annotations

import re
from functools import partial
from html import unescape

import pytest

import tracekit as tk
from tests.cli.conftest import command  # noqa: F401
from tests.latex import check_latex
from tracekit.engine import sources
from tracekit.engine.setup import intervention_text
from tracekit.engine.sources import SOURCES
from tracekit.errors import ComparisonError

ZERO, MEAN, DENOISED = {"source": "zero"}, {"source": "mean"}, {"direction": "denoising"}
CASES = {
    "zero ablation": ZERO,
    "mean ablation": MEAN,
    "counterfactual patching at the last token, denoising": {**DENOISED, "positions": "last"},
}


def plain_text(text):
    """A page or a figure's text without markup and line breaks."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", str(text))).split())


def written(folder, save, name):
    """What is written to a file of a folder."""
    return save(folder / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tracer_of(demo_model):
    """Tracers of some heads that differ by the intervention alone."""
    facts = tk.load_dataset("demo-facts", demo_model)

    def make(components="head-outputs", **how):
        how = {"metric": "logit-difference", **how}
        setup = tk.Setup(components=components, layers=[0, 1], **how)
        return tk.Tracer(demo_model, facts[:8], setup)

    return make


@pytest.fixture
def outputs_of(tracer_of, tmp_path, command):  # noqa: F811
    """Every output of an intervention in text, by its name."""

    def make(how):
        tracer, folder = tracer_of(**how), tmp_path
        others = {"facts": tracer.pairs[:5]}
        prompts = [pair.texts["prompt"] for pair in tracer.pairs[:2]]
        # Only a source that takes them from prompts has counterfactual ones.
        changed = [prompts[:1]] if "source" not in how else []
        curve = tracer.run("top-k", budgets=[2, 3])
        front = tracer.pareto(max_budget=3, max_passes=40)
        of_edges = tracer_of("edges", **how).run("mask-ig", budget=3, steps=2)
        result, compared = curve[-1], tk.compare(curve)
        measured = {
            "single effects": tracer.single_effects(),
            "grid": tracer.interactions(layers=[0]),
            "strongest pairs": tracer.strongest_pairs(2),
            "faithfulness": tracer.faithfulness(result),
            "controls": tracer.controls(result, draws=3),
            "minimality": tracer.minimality(result),
            "explanation": tracer.explain(result),
            "paths": tracer.paths(result),
            "attention": tracer.attention(result),
            "side effects": tracer.side_effects(result, others, draws=3),
            "against": result.against(["L0H1", "L1H4"]),
            "stability": tracer.stability("attribution", budget=2, resamples=2),
            "texts": tracer.generate(result, prompts[:1], *changed, max_new_tokens=1),
        }
        of_sets = {"result": result, "curve": curve, "front": front, "comparison": compared}
        saved = tk.TraceResult.load(result.save(folder / "run"))
        grid = type(measured["grid"]).load(measured["grid"].save(folder / "grid.json"))
        explorer = tracer.explore(result)
        shown = {"tracer": tracer, **measured, **of_sets, "saved": saved, "saved grid": grid}
        texts = {f"repr of {name}": repr(each) for name, each in shown.items()}
        texts |= {f"{name}, printed": str(each) for name, each in shown.items()}
        texts |= {f"{name} in a notebook": each._repr_html_() for name, each in shown.items()}
        latex = {n: each.to_latex() for n, each in shown.items() if hasattr(each, "to_latex")}
        for text in latex.values():
            check_latex(text)
        texts |= {f"{name} in LaTeX": text for name, text in latex.items()}
        figures = {
            "heatmap": result.heatmap(),
            "heatmap of a saved result": saved.heatmap(),
            "circuit": of_edges.circuit(),
            "curve": curve.curve(),
            "curve of a tracer": tracer.curve(),
            "front": front.curve(),
            "heatmap of a front": front.heatmap(),
            "comparison": compared.heatmap(),
            "curve of a comparison": compared.curve(),
            "similarities": compared.similarities(),
            "grid": grid.heatmap(),
            "waterfall": measured["explanation"].waterfall(),
            "pairs of an explanation": measured["explanation"].heatmap(),
            "network": measured["explanation"].network(),
            "paths": measured["paths"].network(),
            "attention": measured["attention"].figure(),
            "side effects": measured["side effects"].figure(),
            "faithfulness": measured["faithfulness"].curve(),
            "single effects": measured["single effects"].heatmap(),
            "stability": measured["stability"].heatmap(),
        }
        texts |= {f"figure: {name}": f.layout.title.subtitle.text for name, f in figures.items()}
        texts["Markdown"] = compared.to_markdown()
        texts["commands"] = command("show", folder / "run")[1]
        texts["explorer"] = repr(explorer)
        texts["page of the explorer"] = written(folder, explorer.save, "explorer.html")
        report = written(folder, lambda path: tk.report(folder / "run", path), "report.html")
        texts["report"] = report[report.index("</script></head>") :]
        return {name: plain_text(text) for name, text in texts.items()}

    return make


@pytest.mark.slow
@pytest.mark.parametrize("phrase", CASES)
def test_every_output_says_what_was_patched(outputs_of, phrase):
    texts = outputs_of(CASES[phrase])
    assert len(texts) > 70
    assert [name for name, text in texts.items() if phrase not in text] == []


def test_figures_of_two_ablations_differ(tracer_of, tmp_path):
    zero, mean = (
        tracer_of(source=source).as_result(["L0H1", "L1H4"]) for source in ("zero", "mean")
    )
    for draw in (
        lambda result: result.heatmap(),
        lambda result: tk.compare([result]).similarities(),
    ):
        first, second = (tk.figures.for_print(draw(each), width="3.25in") for each in (zero, mean))
        titles = first.layout.title, second.layout.title
        assert titles[0].text == titles[1].text
        assert titles[0].subtitle.text != titles[1].subtitle.text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("counterfactual", "counterfactual patching"),
        ("noise", "patching under noise"),
        ("noise:spans=subject,factor=2", "patching under noise with spans=subject,factor=2"),
        ("zero", "zero ablation"),
        ("mean", "mean ablation"),
        ("mean:pairs=mine.jsonl", "mean ablation over the prompts of mine.jsonl"),
        ("mean:pairs=a.csv,digest=0a1b", "mean ablation over the prompts of a.csv"),
        ("mean over mine (0a1b)", "mean ablation over the prompts of mine (0a1b)"),
        ("mean-positional", "mean ablation by position"),
        (
            "mean-positional over mine (0a1b)",
            "mean ablation by position over the prompts of mine (0a1b)",
        ),
        ("resample", "resample ablation"),
        ("model smol (0a1b)", "patching from the model smol (0a1b)"),
        ("own tensors (0a1b)", "patching of own tensors (0a1b)"),
        ("mine", "mine"),
    ],
)
def test_every_source_has_a_wording(source, text):
    assert intervention_text(source, "prompt", "noising") == text
    assert intervention_text(source, "last", "denoising") == f"{text} at the last token, denoising"


def test_positions_are_said():
    assert set(SOURCES) <= {*sources.WORDINGS}
    assert intervention_text("zero", "all", "noising") == "zero ablation at all tokens"
    assert intervention_text("zero", (0, -1), "noising") == "zero ablation at positions 0, -1"
    assert tk.Setup(source=tk.Noise(factor=2)).intervention == "patching under noise with factor=2"


@pytest.fixture(scope="module")
def of_several(tracer_of):
    """A set of the same labels, and others, by three interventions and two metrics."""
    tracers = [tracer_of(**how) for how in ({}, ZERO, {**DENOISED, "positions": "last"})]
    tracers.append(tracer_of(metric="probability-drop"))
    return [tracer.run("top-k", budget=2) for tracer in tracers]


@pytest.mark.slow
def test_sets_of_several_interventions_stand_side_by_side(of_several, tmp_path):
    compared = tk.compare(of_several)
    *_, denoised = CASES
    by = ["counterfactual patching, logit-difference", "zero ablation, logit-difference"]
    by += [f"{denoised}, logit-difference", "counterfactual patching, probability-drop"]
    assert list(compared.labels) == by
    same = len({*of_several[0].labels} & {*of_several[2].labels})
    assert compared.jaccard.iloc[0, 2] == pytest.approx(same / (4 - same))
    assert of_several[0].against(of_several[2].labels)["hit"] == sorted(
        {*of_several[0].labels} & {*of_several[2].labels}
    )
    shown = [note.text for note in compared.heatmap().layout.annotations]
    assert [plain_text(text) for text in shown] == by
    for text in (compared.to_markdown(), compared._repr_html_()):
        for result, label in zip(of_several, by, strict=True):
            assert label in text
            assert ", ".join(result.labels) in text
            assert f"{result.effect:.4g}" not in text
    assert "sets on 8 searched examples" in repr(compared)


REFUSED = {
    "curve": tk.results.Comparison.curve,
    "faithfulness curve": tk.results.Comparison.faithfulness_curve,
    "smallest": partial(tk.results.Comparison.smallest, effect=0.0),
    "to_latex": tk.results.Comparison.to_latex,
    "differences": tk.results.Comparison.differences,
    "colours": partial(tk.results.Comparison.heatmap, color="score"),
}


@pytest.mark.parametrize("draw", REFUSED)
@pytest.mark.parametrize(("other", "name"), [(1, "sources"), (2, "directions"), (3, "metrics")])
def test_what_mixes_numbers_refuses_and_says_what_works(of_several, draw, other, name):
    compared = tk.compare([of_several[0], of_several[other]])
    with pytest.raises(ComparisonError, match=f"different {name} .* heatmap and `jaccard` of"):
        REFUSED[draw](compared)


def test_a_folder_of_runs_is_compared_and_reported(of_several, tmp_path):
    for number, result in enumerate(of_several):
        result.save(tmp_path / "runs" / str(number))
    compared = tk.compare(tmp_path / "runs")
    assert [each.labels for each in compared] == [each.labels for each in of_several]
    assert tk.compare(str(tmp_path / "runs")).labels == tk.compare(of_several).labels
    page = tk.report(str(tmp_path / "runs"), tmp_path / "page.html").read_text(encoding="utf-8")
    for phrase in ("zero ablation", *CASES):
        assert (f"model, logit-difference, {phrase}" in page) == (phrase != "mean ablation")
