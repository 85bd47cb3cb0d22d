"""What paths say: tables, p values, texts, files, the figure. Their numbers: tests/engine."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import ResultFormatError, ResultNotFoundError
from tracekit.measure import Paths
from tracekit.reports.report import check_of_run, path_table
from tracekit.results.intervals import effect_interval
from tracekit.results.significance import p_values


@pytest.fixture(scope="module")
def tracer(model):
    pairs = tiny.pairs(24, seed=3)
    return tk.Tracer(model, pairs[:12], "head-outputs", "logit-difference", held_out=pairs[12:])


@pytest.fixture(scope="module")
def result(tracer):
    return tracer.run("top-k", budget=4)


@pytest.fixture(scope="module")
def paths(tracer, result):
    return tracer.paths(result)


def test_the_table_has_intervals_and_corrected_p_values(paths):
    assert paths.to_frame().equals(paths.table)
    assert paths.to_frame() is not paths.table
    senders, receivers = (
        {None: end, **dict(zip(paths.members, paths.labels, strict=True))}
        for end in ("embedding", "logits")
    )
    number = {
        (senders[r.sender], receivers[r.receiver], r.input): n for n, r in enumerate(paths.rows)
    }
    p, q = {}, {}
    for family in (["all"], ["query", "key", "value"]):
        at = [n for key, n in number.items() if key[2] in family]
        tests = p_values(paths.effects[at].double())
        p |= dict(zip(at, tests.row.tolist(), strict=True))
        q |= dict(zip(at, tests.q.tolist(), strict=True))
    sizes = paths.table["effect"].abs().tolist()
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == sum(key[2] == "all" for key in number)
    for row in paths.table.to_dict("records"):
        parts = {"all": ("effect", "q")}
        if row["receiver"] != "logits":
            parts |= {via: (via, f"{via}_q") for via in ("query", "key", "value")}
        means = {}
        for via, (name, name_of_q) in parts.items():
            n = number[row["sender"], row["receiver"], via]
            means[via] = paths.effects[n].mean().item()
            assert row[name] == pytest.approx(means[via], rel=1e-4)
            ends = effect_interval(paths.effects[n].double())
            assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx(ends)
            if row[name]:
                assert row[name_of_q] == pytest.approx(q[n])
            if row[name] and via == "all":
                assert row["p"] == pytest.approx(p[n])
            if via == "all" and row[name]:
                assert row["is_apart"] == (ends[0] > 0 or ends[1] < 0)
        assert row["significant"] == (row["q"] < 0.05)
        del means["all"]
        largest = max(means, key=lambda via: abs(means[via])) if means else ""
        assert row["strongest"] == largest


def test_the_text_names_the_strongest(paths):
    first, second, *_ = str(paths).splitlines()
    n, apart = len(paths.table), paths.table[paths.table["is_apart"]]
    assert first.startswith("Paths among 4 components of GPT2LMHeadModel on ")
    assert f"{len(apart)} of {n} have a 95 % interval (in brackets) apart from 0" in first
    assert f", on held-out examples, n = {paths.n_examples}: " in first
    assert "A \u2192 B: " in first
    assert second.startswith(f"{apart.iloc[0]['sender']} \u2192 {apart.iloc[0]['receiver']}: ")
    # A number stands beside the name of what it is of, with its own interval.
    lines, named = str(paths).splitlines()[1:], 0
    for line, (_, row) in zip(lines, apart.head(5).iterrows(), strict=False):
        whole, *alone = re.findall(r"([+-][\d.e-]+) \((.*?) to (.*?)\)", line)
        assert [float(each) for each in whole] == pytest.approx(
            [row[f"effect{end}"] for end in ("", "_low", "_high")], rel=6e-3, abs=1e-12
        )
        assert bool(alone) == bool(row["strongest"])
        for numbers in alone:
            name = row["strongest"]
            assert f"by its {name} alone" in line
            assert [float(each) for each in numbers] == pytest.approx(
                [row[f"{name}{end}"] for end in ("", "_low", "_high")], rel=6e-3, abs=1e-12
            )
            named += abs(row[name] - row["effect"]) > 0.01 * abs(row["effect"])
    assert named
    assert repr(paths).startswith(f"Paths({n} among 4 components of GPT2LMHeadModel on ")
    assert second.split(":")[0] in unescape(paths._repr_html_())


def test_no_p_on_the_examples_that_the_set_was_selected_on(tracer, result, paths):
    seen = replace(paths, selected_on=paths.dataset_fingerprint)
    assert seen.table["p"].isna().all()
    assert not seen.table["significant"].any()
    assert re.search("no p value on the examples .* selected on.* held_out", str(seen))
    few = replace(paths, effects=paths.effects[:, :4])
    assert "With 4 independent examples no p can be below" in str(few)


def test_files_are_read_back_or_refused(tracer, paths, result, tmp_path):
    loaded = Paths.load(paths.save(tmp_path))
    assert loaded.table.equals(paths.table)
    assert loaded.cost == paths.cost
    check_of_run(loaded, result, tmp_path)
    text = r"record of paths in .*delete its paths\.json"
    with pytest.raises(ResultFormatError, match=text):
        check_of_run(loaded, tracer.run("top-k", budget=3), tmp_path)
    with pytest.raises(ResultNotFoundError, match=r"holds no paths\.json"):
        Paths.load(tmp_path / "none")


def test_the_figure_draws_the_strongest_arrows(paths):
    means = torch.linspace(-0.5, 1, len(paths.rows))[:, None]
    paths = replace(paths, effects=0.2 * paths.effects + means)
    figure = paths.network()
    traces = [trace for trace in figure.data if trace.text]
    lines, heads = traces[::2], traces[1::2]
    rows = paths.table[paths.table["is_apart"]].head(20).to_dict("records")
    assert len(lines) == len(heads) == len(rows) > 10
    # The strongest lie on top.
    largest = abs(rows[0]["effect"])
    for row, line, head in zip(rows[::-1], lines, heads, strict=True):
        assert line.text.startswith(f"{row['sender']} to {row['receiver']}: ")
        is_above = row["effect"] > 0
        assert line.line.dash == ("solid" if is_above else "dash")
        assert line.line.color == ("#D55E00" if is_above else "#0072B2")
        share = abs(row["effect"]) / largest * (1 if row["significant"] else 0.5)
        assert line.line.width == pytest.approx(max(1.2, 6 * share))
        assert head.marker.symbol == "arrow" + "-open" * (not row["significant"])
        assert line.y[0] < line.y[-1] == head.y[0]
    texts = [note.text for note in figure.layout.annotations]
    assert texts[-6:] == ["embedding", *paths.labels, "logits"]
    letters = sorted(row["strongest"][:1] for row in rows)
    assert sorted(texts[:-6]) == letters
    places = {note.text: (note.x, note.y) for note in figure.layout.annotations}
    assert places["embedding"][1] < min(places[label][1] for label in paths.labels)
    assert places["logits"][1] > max(places[label][1] for label in paths.labels)
    assert len({places[label] for label in paths.labels}) == 4


def test_pages_show_paths(tracer, paths, tmp_path):
    text = unescape(tk.report([paths], tmp_path / "page.html").read_text())
    assert "How they connect: " in text
    assert str(paths).splitlines()[0] in text
    table = path_table(paths)
    assert table.titles == ["sender", "receiver", "effect", "by query", "by key", "by value", "q"]
    assert table["effect"].texts[0] in text
    pairs = zip(table["by key"].texts, table["receiver"].values, strict=True)
    assert {key for key, receiver in pairs if receiver == "logits"} == {"-"}
    assert ">\u2013</td>" in text
