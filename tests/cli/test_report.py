"""`tracekit report` on saved runs."""

from __future__ import annotations

import pytest

import tracekit as tk


@pytest.mark.parametrize("dataset", ["demo-bias", "demo-facts"])
def test_the_page_has_the_prompts_where_the_data_are_on_this_machine(
    command, tmp_path, demo_model, dataset
):
    run, page = tmp_path / "run", tmp_path / "page.html"
    pairs = tk.load_dataset(dataset, demo_model)[:4]
    tk.Tracer(demo_model, pairs).run("top-k", budget=2).save(run)
    code, _, err = command("report", run, "-o", page)
    assert code == 0, err
    assert pairs[0].texts["prompt"] in page.read_text()


def test_without_the_data_it_has_the_numbers_alone(command, tmp_path, demo_model):
    path, run, page = tmp_path / "mine.csv", tmp_path / "run", tmp_path / "page.html"
    rows = [pair.texts for pair in tk.load_dataset("demo-bias", demo_model)[:4]]
    columns = ["prompt", "counterfactual", "x", "y"]
    path.write_text(
        "\n".join([",".join(columns), *(",".join(r[c] for c in columns) for r in rows)])
    )
    result = tk.Tracer(demo_model, tk.load_dataset(path, demo_model)).run("top-k", budget=2)
    result.save(run)
    for is_there in (True, False):
        assert command("report", run, "-o", page)[0] == 0
        assert (rows[0]["prompt"] in page.read_text()) == is_there
        assert f"{result.effect:.4g}" in page.read_text()
        path.unlink(missing_ok=True)
