"""Tables in memory, of every library and form in which people hold them."""

from __future__ import annotations

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import tracekit as tk
from tracekit.errors import DataFormatError

ROWS = [
    {"prompt": "the maid", "counterfactual": "the nurse", "x": " slept", "y": " ran"},
    {"prompt": "a maid", "counterfactual": "a nurse", "x": " slept", "y": " sat"},
    {"prompt": "the maid", "counterfactual": "the guard", "x": " ran", "y": " slept"},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
FRAME = pd.DataFrame(ROWS)
DATASET = datasets.Dataset.from_list(ROWS)


def labelled(**names):
    """The data set with columns of labels."""
    features = {n: datasets.ClassLabel(names=names.get(n)) for n in names}
    numbers = [{**row, **{n: names[n].index(row[n]) for n in names}} for row in ROWS]
    text = {n: datasets.Value("string") for n in ROWS[0] if n not in names}
    return datasets.Dataset.from_list(numbers, features=datasets.Features(features | text))


class Polars:
    """A DataFrame of polars, as far as it is read."""

    columns = tuple(COLUMNS)

    def to_dicts(self):
        return ROWS


def real_polars():
    return pytest.importorskip("polars").DataFrame(ROWS)


TABLES = {
    "list of dicts": lambda: ROWS,
    "tuple of dicts": lambda: tuple(ROWS),
    "generator": lambda: (row for row in ROWS),
    "dict of lists": lambda: COLUMNS,
    "dict of tuples": lambda: {n: tuple(column) for n, column in COLUMNS.items()},
    "dict of arrays": lambda: {n: np.array(column) for n, column in COLUMNS.items()},
    "dict of object arrays": lambda: {n: np.array(c, dtype=object) for n, c in COLUMNS.items()},
    "dict of series": lambda: {n: pd.Series(c, index=[7, 7, 9]) for n, c in COLUMNS.items()},
    "dict of columns of datasets": lambda: {n: DATASET[n] for n in COLUMNS},
    "dict of arrow arrays": lambda: {n: pa.array(column) for n, column in COLUMNS.items()},
    "array of dicts": lambda: np.array(ROWS, dtype=object),
    "Series of dicts": lambda: pd.Series(ROWS),
    "Series with an index": lambda: pd.Series(ROWS, index=["c", "a", "b"]),
    "pandas": lambda: FRAME,
    "pandas, one number thrice": lambda: FRAME.set_axis([4, 4, 4]),
    "pandas, index of texts": lambda: FRAME.set_axis(["c", "a", "b"]),
    "pandas, MultiIndex": lambda: FRAME.set_axis(
        pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)])
    ),
    "pandas, categories": lambda: FRAME.astype("category"),
    "pandas, string[pyarrow]": lambda: FRAME.astype("string[pyarrow]"),
    "pandas, filtered": lambda: pd.concat([FRAME[:1], FRAME])[1:],
    "pyarrow": lambda: pa.Table.from_pylist(ROWS),
    "pyarrow batch": lambda: pa.RecordBatch.from_pylist(ROWS),
    "polars, as far as it is read": Polars,
    "polars": real_polars,
    "datasets": lambda: DATASET,
    **{
        f"datasets, {form}": lambda form=form: DATASET.with_format(form)
        for form in ("python", "numpy", "torch", "pandas", "arrow")
    },
    "datasets, polars": lambda: pytest.importorskip("polars") and DATASET.with_format("polars"),
    "datasets, some columns": lambda: DATASET.with_format("numpy", columns=["prompt"]),
    "datasets, transformed": lambda: DATASET.with_transform(lambda batch: {"prompt": ["!"]}),
    "datasets, streamed": lambda: DATASET.to_iterable_dataset(),
    "datasets, shuffled back": lambda: DATASET.select([2, 0, 1]).select([1, 2, 0]),
    "ClassLabel as x and y": lambda: labelled(x=[" slept", " ran"], y=[" sat", " ran", " slept"]),
    "ClassLabel, pandas": lambda: labelled(y=[" sat", " ran", " slept"]).with_format("pandas"),
    "ClassLabel, streamed": lambda: labelled(y=[" sat", " ran", " slept"]).to_iterable_dataset(),
}


@pytest.mark.filterwarnings("error::tracekit.errors.DataWarning")
@pytest.mark.parametrize("name", TABLES)
def test_every_table_gives_the_same_pairs(demo_model, name):
    expected = tk.PromptPairs.from_text(ROWS, demo_model)
    pairs = tk.load_pairs(TABLES[name](), demo_model)
    assert pairs.fingerprint == expected.fingerprint
    assert [pair.texts for pair in pairs] == [pair.texts for pair in expected]


IDS = {
    "prompt_ids": [[1, 2], [3, 4]],
    "counterfactual_ids": [[1, 5], [3, 6]],
    "x_ids": [[7], [8]],
    "weight": [1.0, 2.0],
}
IDS_TABLES = {
    "arrays": lambda: {name: np.array(column) for name, column in IDS.items()},
    "tensors": lambda: {name: torch.tensor(column) for name, column in IDS.items()},
    "datasets": lambda: datasets.Dataset.from_dict(IDS),
    "datasets, torch": lambda: datasets.Dataset.from_dict(IDS).with_format("torch"),
    "datasets to pandas": lambda: datasets.Dataset.from_dict(IDS).to_pandas(),
    "pyarrow": lambda: pa.table(IDS),
    "pandas": lambda: pd.DataFrame(IDS),
}


@pytest.mark.parametrize("name", IDS_TABLES)
def test_token_ids_of_every_table(demo_model, name):
    rows = [dict(zip(IDS, row, strict=True)) for row in zip(*IDS.values(), strict=True)]
    expected = tk.PromptPairs.from_ids(rows).fingerprint
    assert tk.load_pairs(IDS_TABLES[name](), demo_model).fingerprint == expected


def test_labels_in_lists_and_missing_labels():
    label = datasets.ClassLabel(names=[" ran", " sat"])
    features = datasets.Features(
        {"prompt": datasets.Value("string"), "x_set": datasets.List(label), "y": label}
    )
    table = datasets.Dataset.from_list(
        [{"prompt": "a", "x_set": [1, 0], "y": 1}, {"prompt": "b", "x_set": [], "y": -1}],
        features=features,
    )
    assert tk.data.from_file.table_rows(table) == [
        {"prompt": "a", "x_set": [" sat", " ran"], "y": " sat"},
        {"prompt": "b", "x_set": [], "y": None},
    ]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"train": ROWS}, "a dict with the parts 'train'. If each part is a table, give one of th"),
        ({"train": ROWS, "test": ROWS}, "with the parts 'train', 'test'. If each part is a table"),
        ({"train": FRAME}, "with the parts 'train'. If each part is a table, give one of them"),
        (datasets.DatasetDict(train=DATASET), "a DatasetDict with the parts 'train'. If each part"),
        (ROWS[0], "'prompt', 'counterfactual', 'x', 'y' is a single row. Give a list of rows"),
        ({**COLUMNS, "y": " ran"}, "If each part is a column, give every one as a list"),
        ({**COLUMNS, "y": [" ran"]}, r"differ in length: .*'y': 1}. Give each the same number"),
        (pd.Series(["a", "b"]), "cannot be read from a Series. Give a file, a DataFrame"),
        (["the maid"], "cannot be read from a list. Give a file, a DataFrame"),
        (np.array(["a"]), "cannot be read from a ndarray. Give a file, a DataFrame"),
        (
            FRAME.set_axis(["prompt", "x", "x", "y"], axis=1),
            "The DataFrame has the column 'x' twice. Keep one of them",
        ),
    ],
)
def test_what_is_no_table(demo_model, table, text):
    with pytest.raises(DataFormatError, match=text):
        tk.load_pairs(table, demo_model)
