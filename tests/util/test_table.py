"""One table for terminals, notebooks, papers, files and JSON."""

from __future__ import annotations

import math
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

import tracekit as tk
from tests import tiny
from tracekit._util.table import Column, Table
from tracekit.cli.console import console
from tracekit.cli.tables import print_table
from tracekit.metrics import Metric
from tracekit.results.tables import result_table

TABLE = Table(
    [
        Column("name", "the name", ["a_b", "c | d", "e"]),
        Column("n", "size", [1, None, 3]),
        Column("effect", "effect", [0.123456, -2.0, math.nan]),
        Column("effect", "95 % spread", [(0.1, 0.2), (-math.inf, math.inf), (None, None)]),
        Column("share", "of all", [0.314, 1.0, None], ".0%"),
        Column("score", "score", [(0.5, 0.4, 0.6), (None, None, None), (0.25, 0.2, 0.3)], ".2f"),
        Column("components", "components", [["L0H1", "L1H2"], [], ["L2H0"]]),
        Column("stays", "stays", [True, False, True]),
    ]
)
CELLS = [
    ["a_b", "1", "0.1235", "0.1 to 0.2", "31 %", "0.50 (0.4 to 0.6)", "L0H1, L1H2", "yes"],
    ["c | d", "-", "-2", "unbounded", "100 %", "-", "", "no"],
    ["e", "3", "-", "-", "-", "0.25 (0.2 to 0.3)", "L2H0", "yes"],
]


def test_cells_are_texts():
    assert TABLE.cells == CELLS
    assert len(TABLE) == 3


def test_every_renderer_shows_the_same_cells(monkeypatch, capsys):
    monkeypatch.setattr(console, "width", 200)
    rows = re.findall(r"<tr>(.*?)</tr>", TABLE.html())
    html = [[unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", r)] for r in rows]
    dashed = [[cell.replace("\u2013", "-") for cell in row] for row in html]
    assert dashed == [TABLE.titles, *CELLS]
    markdown = [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in TABLE.markdown().splitlines()
    ]
    assert [markdown[0], *markdown[2:]] == [TABLE.titles, *CELLS]
    assert str(TABLE) == TABLE.markdown()
    lines = [line for line in TABLE.latex("One.").splitlines() if line.endswith("\\\\")]
    latex = [re.sub(r"\\([%_])", r"\1", line.removesuffix(" \\\\")).split(" & ") for line in lines]
    plain = [["-" if cell == "--" else cell for cell in row] for row in latex]
    assert plain == [TABLE.titles, *CELLS]
    print_table("any", TABLE)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("\u2502")]
    # The name of one row has the sign of a column, which is another one.
    terminal = [[cell.strip() for cell in line.split("\u2502")[1:-1]] for line in lines]
    assert terminal == CELLS


def test_records_are_numbers():
    first, second, third = TABLE.records()
    assert first == {
        "name": "a_b",
        "n": 1,
        "effect": 0.123456,
        "effect_low": 0.1,
        "effect_high": 0.2,
        "share": 0.314,
        "score": 0.5,
        "score_low": 0.4,
        "score_high": 0.6,
        "components": ["L0H1", "L1H2"],
        "stays": True,
    }
    assert list(second) == list(third) == list(first)
    assert (second["effect_low"], second["n"], third["effect"], third["share"]) == (None,) * 4
    frame = TABLE.frame()
    assert list(frame) == list(first)
    assert frame["components"].tolist() == ["L0H1 L1H2", "", "L2H0"]
    assert frame["effect_low"][1] == -math.inf


def test_rows_make_columns():
    rows = [{"a": 1.0, "a_low": 0.5, "a_high": 1.5, "has spaces": "x"}, {"a": 2.0, "b_c": 1}]
    table = Table.of_rows(rows)
    assert [column.key for column in table.columns] == ["a", "a_low", "a_high", "has_spaces", "b_c"]
    assert table.titles[-1] == "b c"
    joined = Table.of_rows(rows, {"a": "effect"}, {"a": ".1f"}, joined=True)
    assert joined.only("effect", "b_c").cells == [["1.0 (0.5 to 1.5)", "-"], ["2.0 (-)", "1"]]
    assert joined.only("effect", brief=True).cells == [["1.0"], ["2.0"]]
    assert joined.records()[1] == {
        **{"a": 2.0, "a_low": None, "a_high": None},
        **{"has_spaces": None, "b_c": 1},
    }


def test_tables_without_rows_keep_their_columns():
    frame = pd.DataFrame({"first": [], "effect": []})
    table = Table.of_rows(frame)
    assert (len(table), table.titles, table.records()) == (0, ["first", "effect"], [])
    assert list(table.frame()) == ["first", "effect"]
    assert ">first</th>" in table.html()
    assert Table.of_rows([]).html() == "<table><thead></thead><tbody></tbody></table>"


def test_numbers_of_numpy_are_numbers():
    values = {"n": np.arange(2), "effect": np.float32([0.5, np.nan]), "stays": [True] * 2}
    rows = [{"n": np.int64(0), "effect": np.float32(0.5), "stays": np.bool_(True)}]
    for table in (Table.of_rows(pd.DataFrame(values)), Table.of_rows(rows)):
        assert table.records()[0] == {"n": 0, "effect": 0.5, "stays": True}
        assert [type(value) for value in table.records()[0].values()] == [int, float, bool]
        assert table.cells[0] == ["0", "0.5", "yes"]


@pytest.mark.parametrize(
    ("within", "second", "styles"),
    [
        ((), False, {1: "bold", 2: "bold"}),
        ((), True, {1: "bold", 2: "bold"}),
        (("group",), True, {1: "bold", 0: "underline", 2: "bold"}),
    ],
)
def test_the_best_are_marked(within, second, styles):
    values = [1.0, 2.0, 2.00001, None]
    table = Table([Column("group", "group", "aabb"), Column("effect", "effect", values)])
    ranked = table.ranked("effect", within, second=second)
    assert ranked["effect"].styles == styles
    assert ranked.html().count("bold") == list(styles.values()).count("bold")
    assert ranked.latex("").count(r"\underline{") == list(styles.values()).count("underline")
    kept = ranked.rows([1, 3])
    assert (kept["effect"].styles, kept["effect"].values) == ({0: "bold"}, [2.0, None])


def test_results_of_several_sizes_do_not_share_the_size_of_the_first(model):
    heads, blocks = (
        tk.Tracer(model, tiny.pairs(6), kind).run("attribution", budget=1)
        for kind in ("head-outputs", "mlp-blocks")
    )
    assert result_table([heads])["selected"].texts == ["1 of 12"]
    mixed = result_table([heads, blocks])
    assert mixed["selected"].texts == ["1", "1"]
    assert mixed["of"].texts == ["12", "3"]


def test_a_metric_that_is_called_what_a_column_is_keeps_out_of_its_way(model):
    double = Metric("effect", lambda clean, intervened: 2 * (clean.x - intervened.x))
    tracer = tk.Tracer(model, tiny.pairs(6), "head-outputs", extra_metrics=[double])
    result = tracer.run("top-k", budget=1)
    (row,) = result_table([result]).records()
    assert row["effect"] == result.effect
    assert row["effect_metric"] == result.extra_effects["effect"]
