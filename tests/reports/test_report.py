"""Reports: one page on runs, which says how to repeat them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html import unescape

import pandas as pd
import pytest

import tracekit as tk
from tests import tiny
from tests.cli.conftest import command  # noqa: F401
from tests.files import renamed
from tracekit._util.table import Table
from tracekit.data.prompts import DataOrigin
from tracekit.errors import NoResultError
from tracekit.reports.page import Section, write_page


@pytest.fixture(scope="module")
def tracer(demo_model):
    """Some heads of the first 12 facts, by another mean and with examples held out."""
    facts = tk.load_dataset("demo-facts", demo_model)
    return tk.Tracer(
        demo_model,
        facts[:12],
        "head-outputs",
        "probability-drop",
        layers=[0, 1],
        continuation_mean="arithmetic",
        held_out=facts[12:20],
    )


@pytest.fixture(scope="module")
def runs(tracer):
    curve = tracer.run("pgb-ct", budgets=[2, 4], seed=3, trials=2, epochs=4)
    greedy = tracer.run("greedy", budget=3, objective="log-odds")
    front = tracer.pareto(max_budget=3, statistics=False, max_passes=60, seed=1)
    return [curve, greedy, front, tracer.interactions(layers=[0])]


def body(path):
    """The page without plotly's script."""
    text = path.read_text(encoding="utf-8")
    return text[text.index("</script></head>") :]


def code(text):
    return [unescape(block) for block in re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)]


@pytest.mark.slow
def test_a_report_says_what_was_found(tracer, runs, tmp_path):
    path = tk.report([*runs, tracer.pairs], tmp_path / "deep" / "report.html")
    text = body(path)
    curve, greedy, front, grid = runs
    for result in [*curve, greedy, *front]:
        assert f">{result.effect:.4g}</td>" in text
        assert f">{', '.join(result.labels)}</td>" in text
    low, high = greedy.spread
    assert f">{low:.3g} to {high:.3g}</td>" in text
    assert f">{greedy.held_out_effect:.4g}</td>" in text
    assert tracer.pairs.fingerprint in text
    assert "16 head-outputs in layers 0-1" in text
    assert "arithmetic mean of token probabilities" in text
    # Every example, with its prompt.
    for number, pair in enumerate(tracer.pairs):
        cells = f'>{number}</td><td style="text-align:left;min-width:24ch;white-space:normal">'
        cells += f"{pair.texts['prompt']}</td>"
        assert cells in text
        assert f">{front[-1].per_example[number].item():.4g}</td>" in text
    # Curve, panel, front and its heatmap, grid.
    assert text.count("Plotly.newPlot(") == 5
    assert grid.labels[0] in text
    assert not re.search(r"""(src|href)=["']""", text)


@pytest.mark.slow
def test_a_report_repeats_its_runs(tracer, runs, tmp_path):
    (block,) = code(body(tk.report(runs[:3], tmp_path / "report.html")))
    assert block.count("tracer.run(") == 2
    assert "held_out = tk.load_dataset('demo-facts', model).subset([12, 13, 14" in block
    assert "budgets=[2, 4]" in block
    names = {}
    exec(block, names)
    again = names["tracer"].results
    curve, greedy, front = runs[:3]
    for result, repeated in zip([*curve, greedy], again, strict=True):
        assert repeated.labels == result.labels
        assert repeated.effect == pytest.approx(result.effect, abs=1e-6)
        assert (repeated.seed, repeated.run.objective) == (result.seed, result.run.objective)
    last = block.strip().splitlines()[-1]
    assert last.startswith("tracer.pareto(max_budget=3, seed=1, ")
    repeated = eval(last, names)
    assert [r.method for r in repeated] == [r.method for r in front]
    assert [r.labels for r in repeated] == [r.labels for r in front]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"components": "head-outputs+mlp-blocks", "positions": "last"},
        {"components": "mlp-outputs", "layers": [1], "indices": [3, 5, 7]},
        {"components": "attention-patterns", "layer_window": 2, "source": "zero"},
        {"components": "head-outputs", "direction": "denoising", "metric": "logit-difference"},
        {"components": "residual", "split_by": "position"},
        {"components": "head-outputs", "source": "mean", "extra_metrics": ["kl"]},
        {"components": "head-outputs", "source": tk.Noise(factor=2.5), "source_seed": 7},
    ],
)
def test_settings_are_repeated(demo_model, tmp_path, options):
    facts = tk.load_dataset("demo-facts", demo_model)
    n = next(i for i, p in enumerate(facts) if len(p.prompt_ids) != len(facts[0].prompt_ids))
    tracer = tk.Tracer(demo_model, facts[:n], **options)
    result = tracer.run("top-k", budget=2)
    (block,) = code(body(tk.report(result, tmp_path / "report.html")))
    names = {}
    exec(block, names)
    (again,) = names["tracer"].results
    assert names["effect"] == pytest.approx(result.effect, abs=1e-6)
    assert again.registry == result.registry
    assert again.effect == pytest.approx(result.effect, abs=1e-6)
    assert again.dataset_fingerprint == result.dataset_fingerprint


def rows(women, men):
    """Pairs of which each prompt names a woman's job, and its counterfactual a man's."""
    texts = [(f"the {a} said that", f"the {b} said that") for a in women for b in men]
    return [
        {"prompt": text, "counterfactual": other, "x": " she", "y": " he", "weight": 1 + n % 3}
        for n, (text, other) in enumerate(texts)
    ]


def own_tracer(model, pairs, fresh):
    return tk.Tracer(model, pairs, "head-outputs", "logit-difference", held_out=fresh)


def by_name(model, folder):
    """A generated data set, by its seed."""
    pairs = tk.load_dataset("variable-binding", model, n=24, seed=5)
    pairs, fresh = pairs.split(0.4)
    return tk.Tracer(model, pairs, "attention-patterns", "odds-ratio", held_out=fresh)


def by_file(model, folder):
    path = folder / "mine.csv"
    table = pd.DataFrame(rows(("nurse", "maid", "florist"), ("welder", "miner", "pilot")))
    table.assign(group=[f"g{n // 2}" for n in range(9)]).to_csv(path, index=False)
    return own_tracer(model, *tk.load_pairs(path, model).split(0.5))


def by_file_as_a_data_set(model, folder):
    path = folder / "mine.jsonl"
    both = rows(("nurse", "maid"), ("welder", "miner"))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in both))
    pairs = tk.load_dataset(str(path), model)
    return own_tracer(model, pairs[[1, 0]], pairs[2:])


def by_hand(model, folder):
    """Searched pairs by name, and held-out ones of the user's own."""
    fresh = tk.PromptPairs.from_text(rows(("florist",), ("welder", "miner", "pilot")), model)
    pairs = tk.load_dataset("demo-bias", model)[:8]
    return own_tracer(model, pairs, fresh)


def by_spans(model, folder):
    """Spans, token sets, a source, a direction, a part of the layers, further metrics."""
    of_spans = [
        row | {"spans": {"job": [1, 2]}, "x_set_ids": [207, 90], "weight": 0.1 * (1 + number)}
        for number, row in enumerate(_ids(rows(("nurse", "maid"), ("welder", "miner")), model))
    ]
    pairs = tk.PromptPairs.from_ids(of_spans, name="spans")
    return tk.Tracer(
        model,
        pairs[:2],
        "attention-patterns+mlp-outputs",
        "probability-drop",
        layers=[0, 1],
        direction="denoising",
        split_by="span",
        extra_metrics=["kl"],
        held_out=pairs[2:],
    )


def by_noise(model, folder):
    """Values that were drawn, whose seed the setting has."""
    without = [{**row, "counterfactual": None} for row in rows(("nurse", "maid"), ("welder",) * 3)]
    pairs = tk.PromptPairs.from_text(without, model)
    source = tk.Noise(factor=2.5)
    return tk.Tracer(
        model, pairs[:3], "mlp-outputs", "kl", source=source, source_seed=7, held_out=pairs[3:]
    )


def _ids(texts, model):
    ends = {
        "prompt": "prompt_ids",
        "counterfactual": "counterfactual_ids",
        "x": "x_ids",
        "y": "y_ids",
    }
    pairs = tk.PromptPairs.from_text(texts, model)
    return [{key: getattr(pair, key) for key in ends.values()} for pair in pairs]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [by_name, by_file, by_file_as_a_data_set, by_hand, by_spans, by_noise]
)
def test_the_code_of_a_report_repeats_its_first_number(demo_model, tmp_path, monkeypatch, make):
    """In a new namespace and another folder, without the files that the pairs are from."""
    folder = tmp_path / "here"
    folder.mkdir()
    tracer = make(demo_model, folder)
    result = tracer.run("greedy", budget=2, objective="median")
    text = body(tk.report(result, tmp_path / "report.html"))
    assert f"held-out examples their {result.axis_label} is {result.held_out_effect:.4g} (" in text
    shutil.rmtree(folder)
    monkeypatch.chdir(tmp_path)
    (block,) = code(text)
    assert str(tmp_path) not in text
    names = {}
    exec(block, names)
    assert names["effect"] == pytest.approx(result.held_out_effect, abs=1e-6)
    assert f"print(effect)  # {result.held_out_effect:.4g} in this report" in block
    again = names["tracer"].results[-1]
    assert (again.labels, again.run.objective) == (result.labels, "median")
    assert again.held_out_effect == pytest.approx(result.held_out_effect, abs=1e-6)
    # The page says the same of a saved run, if it has the pairs.
    loaded = tk.TraceResult.load(result.save(tmp_path / "run"))
    page = tk.report([loaded, tracer.pairs, tracer.held_out], tmp_path / "loaded.html")
    assert code(body(page)) == [block]


def test_data_sets_have_their_names_and_other_examples_their_tokens(demo_model, tmp_path):
    block = _block(by_name(demo_model, tmp_path), tmp_path)
    start = "tk.load_dataset('variable-binding', model, n=24, seed=5).subset(["
    assert f"\npairs = {start}" in block
    assert "from_ids" not in block
    block = _block(by_hand(demo_model, tmp_path), tmp_path)
    assert "\npairs = tk.load_dataset('demo-bias', model)[:8]\n" in block
    assert "\nheld_out = tk.PromptPairs.from_ids([\n    {'prompt': 'the florist said" in block


def _block(tracer, folder, **changes):
    result = tracer.run("attribution", budget=2)
    changed = replace(result, searched=replace(result.searched, **changes))
    (block,) = code(body(tk.report(changed, folder / "report.html")))
    return block


def test_what_a_report_lacks_of_the_examples_is_asked_for(demo_model, tmp_path):
    pairs = tk.PromptPairs.from_text(rows(("nurse",), ("welder", "miner", "pilot")), demo_model)
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", "logit-difference")
    block = _block(tracer, tmp_path, pairs=None)
    request = "pairs = ...  # the 3 examples of 'pairs'; give their pairs to tk.report\n"
    assert request in block
    assert "\nheld_out = None\n" in block
    # Noise of the user's own is no row of tokens.
    noisy = [{**row, "counterfactual": None} for row in rows(("nurse",), ("welder", "miner"))]
    noise = tk.data.GaussianNoise(std=1.0)
    drawn = tk.PromptPairs.from_text(noisy, demo_model, noise=noise)
    tracer = tk.Tracer(demo_model, drawn, "head-outputs", "logit-difference")
    assert "pairs = ...  # the 2 examples of 'pairs'; give" in _block(tracer, tmp_path)


@pytest.mark.slow
def test_folders_of_this_machine_are_not_in_the_code(demo_model, tmp_path):
    tracer = by_hand(demo_model, tmp_path)
    options = {"data_dir": "/home/me/data/winobias", "split": "test"}
    origin = DataOrigin(dataset="winobias", options=options, examples=(2, 3))
    assert "\npairs = tk.PromptPairs.from_ids([" in _block(tracer, tmp_path, origin=origin)
    block = _block(tracer, tmp_path, origin=origin, pairs=None)
    start = "tk.load_dataset('winobias', model, data_dir='winobias', split='test').subset([2, 3])"
    assert f"\npairs = {start}\n" in block
    for path in ("/home/me/mine.csv", "C:\\Users\\me\\mine.csv", "/mine.csv"):
        origin = DataOrigin(dataset=path, options={}, examples=(0, 1))
        block = _block(tracer, tmp_path, origin=origin, pairs=None)
        assert "\npairs = tk.load_dataset('mine.csv', model)[:2]\n" in block
    # Of a model, and of what a source reads.
    result = tracer.run("attribution", budget=2)
    source = "mean:pairs=/home/me/mine.csv,digest=0a"
    moved = replace(
        result,
        model_facts=replace(result.model_facts, path="/home/me/models/small", revision=None),
        setup=replace(result.setup, source=source),
    )
    (block,) = code(body(tk.report(moved, tmp_path / "report.html")))
    assert "model = tk.load_model('small')\n" in block
    assert "/home" not in block
    facts = replace(result.model_facts, path="gpt2", revision="0123abc")
    (block,) = code(body(tk.report(replace(result, model_facts=facts), tmp_path / "r.html")))
    assert "model = tk.load_model('gpt2@0123abc')\n" in block


def test_sets_by_hand_are_repeated_by_measuring_them(demo_model, tmp_path):
    pytest.importorskip("anywidget")
    facts = tk.load_dataset("demo-facts", demo_model)[:4]
    view = tk.Tracer(demo_model, facts, "head-outputs", "probability-drop").explore()
    view.select([tk.Component("head-outputs", 1, 4)])
    (block,) = code(body(tk.report([view.result()], tmp_path / "report.html")))
    last = block.strip().splitlines()[-1]
    assert last == "tracer.evaluate(['L1H4'])  # of 'by-hand'"
    names = {}
    exec(block, names)
    assert eval(last, names) == pytest.approx(view.effect)


def test_results_of_several_data_sets_have_parts_of_their_own(model, tmp_path):
    results = [tk.Tracer(model, tiny.pairs(4, seed=seed)).run("top-k", budget=2) for seed in (0, 1)]
    text = body(tk.report(results, tmp_path / "report.html"))
    assert text.count("<h2>Setting</h2>") == 2
    assert all(result.dataset_fingerprint in text for result in results)
    with pytest.raises(
        NoResultError, match=r"^There is no result to report\. Give at least one\.$"
    ):
        tk.report([], tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def test_nothing_from_outside_becomes_markup(runs, tmp_path):
    bad = "<script>alert('1')</script>\"&\u001b[31m</pre>"
    curve, greedy, _, grid = runs
    names = dict.fromkeys(("dataset", "model", "metric", "method", "title", "objective"), bad)
    loaded = [renamed(replace(r, axis_label=bad), **names) for r in [*curve, greedy]]
    path = tk.report([*loaded, replace(grid, title=bad)], tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    assert "\u001b" not in body(path)
    assert "<script>alert" not in text
    assert '</script>"' not in body(path)
    assert "&lt;script&gt;alert(&#x27;1&#x27;)" in body(path)
    (block,) = code(body(path))
    compile(block, "report", "exec")


@pytest.mark.slow
def test_the_command_reads_all_that_was_saved(command, runs, tmp_path):  # noqa: F811
    curve, greedy, front, grid = runs
    curve.save(tmp_path / "runs" / "curve")
    greedy.save(tmp_path / "runs" / "greedy")
    front.save(tmp_path / "runs" / "front")
    grid.save(tmp_path / "grid.json")
    page = tmp_path / "out" / "report.html"
    code_, out, err = command("report", tmp_path / "runs", tmp_path / "grid.json", "-o", page)
    assert code_ == 0, err
    assert page.resolve().as_uri() in out
    text = body(page)
    rows = re.findall(r"<tr><td[^>]*>[^<]*</td><td[^>]*>\d+</td><td[^>]*>\d+ of 16</td>", text)
    assert len(rows) == 2 + 1 + len(front)
    assert text.count("Plotly.newPlot(") == 5
    (block,) = code(text)
    assert "budgets=[2, 4]" in block
    assert "tracer.pareto(max_budget=3" in block


def test_the_command_refuses_runs_that_cannot_be_read(command, runs, tmp_path):  # noqa: F811
    page = tmp_path / "report.html"
    greedy = runs[1]
    for name, text in [("damaged", "is damaged, was changed"), ("other", "has format version 99")]:
        file = greedy.save(tmp_path / name) / "result.json"
        document = json.loads(file.read_text())
        document["effect" if name == "damaged" else "format_version"] = 99
        file.write_text(json.dumps(document))
        code_, _, err = command("report", tmp_path / name, "-o", page)
        assert code_ == 1
        assert text in err
    (tmp_path / "empty").mkdir()
    code_, _, err = command("report", tmp_path / "empty", "-o", page)
    assert (code_, page.exists()) == (1, False)
    assert "holds no result.json. Give a folder that a run was saved to." in err


@pytest.mark.slow
def test_reports_say_why_a_set_acts_together(tracer, runs, tmp_path):
    result = runs[1]
    why = tracer.explain(result, look_outside=False)
    side = tracer.side_effects(result, {"kl": (tracer.pairs, "kl")}, draws=4)
    text = unescape(body(tk.report([result, why, side], tmp_path / "report.html")))
    assert f"Why they act together: {', '.join(result.labels)}" in text
    for line in str(why).splitlines():
        assert line in text
    row = why.table.iloc[0]
    assert f">{row['last']:.4g} ({row['last_low']:.3g} to {row['last_high']:.3g})</td>" in text
    assert f">{row['verdict']}</td>" in text
    row = side.table.iloc[1]
    low, high = row["selectivity_low"], row["selectivity_high"]
    assert f">{row['selectivity']:.4g} ({low:.3g} to {high:.3g})</td>" in text
    assert text.count("Plotly.newPlot(") == 2 + 3 + 1
    assert body(tk.report(why, tmp_path / "alone.html")).count("Plotly.newPlot(") == 3


@pytest.mark.slow
def test_reports_show_what_the_model_writes(demo_model, command, tmp_path):  # noqa: F811
    pairs = tk.load_dataset("demo-professions", demo_model)[:8]
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", source="mean", positions="all")
    result = tracer.run("attribution", budget=2)
    written = tracer.generate(result, ["the nurse said that"], max_new_tokens=4)
    text = unescape(body(tk.report([result, written], tmp_path / "report.html")))
    assert f"What the model writes with {', '.join(result.labels)} replaced" in text
    for cell in (*written.prompts, *written.clean, *written.intervened):
        assert f">{cell}</td>" in text
    assert written.how in text
    written.save(result.save(tmp_path / "run"))
    assert command("report", tmp_path / "run", "-o", tmp_path / "saved.html")[0] == 0
    assert written.how in unescape(body(tmp_path / "saved.html"))
    # Of another set than that of the run beside it.
    replace(written, members=(0,)).save(tmp_path / "run")
    code_, _, err = command("report", tmp_path / "run", "-o", tmp_path / "saved.html")
    assert code_ == 1
    assert "The record of generations in" in err
    assert "is of another run than the one beside it. Measure it again" in err


def test_pages_escape_every_text(tmp_path):
    bad = '<script>alert(1)</script> & "quotes"'
    sections = [
        Section(
            heading=bad,
            lead=bad,
            paragraphs=[bad],
            table=Table.of_rows([{bad: bad}]),
            note=bad,
            code=bad,
        )
    ]
    text = write_page(tmp_path / "deep" / "page.html", bad, sections).read_text(encoding="utf-8")
    after = text[text.rindex("</script></head>") :]
    assert "<script>alert" not in after
    after = after.replace("&#34;", "&quot;")
    assert after.count("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;quotes&quot;") == 8


@pytest.mark.slow
def test_a_report_on_edges_draws_their_circuit(tmp_path, any_model):
    tracer = tk.Tracer(any_model, tiny.pairs(6), "edges", "logit-difference")
    text = body(tk.report(tracer.run("attribution", budget=9, sign="full"), tmp_path / "e.html"))
    assert "9 strongest of 9 edges by score" in text


def test_the_command_writes_out_pairs_from_a_file(demo_model, command, tmp_path):  # noqa: F811
    tracer = by_file_as_a_data_set(demo_model, tmp_path)
    tracer.run("attribution", budget=2).save(tmp_path / "run")
    page = tmp_path / "report.html"
    assert command("report", tmp_path / "run", "-o", page)[0] == 0
    (block,) = code(body(page))
    assert block.count(" = tk.PromptPairs.from_ids([\n") == 2
    assert str(tmp_path) not in block
