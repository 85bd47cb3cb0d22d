"""What the default run leaves out of products of parameters."""

from __future__ import annotations

from itertools import combinations, product
from types import SimpleNamespace

import pytest

from tests.conftest import covering, left_to_soak


def of(cell, strength):
    return set(combinations(sorted(cell.items()), strength))


@pytest.mark.parametrize(
    ("sizes", "strength", "most"), [((5,), 1, 5), ((4, 3), 1, 5), ((5, 4, 3, 2), 2, 24)]
)
def test_every_two_values_meet_in_few_cells(sizes, strength, most):
    cells = [
        {f"p{n}": str(value) for n, value in enumerate(values)}
        for values in product(*map(range, sizes))
    ]
    numbers = covering(cells)
    every, kept = (
        set().union(*(of(cell, strength) for cell in some))
        for some in (cells, [cells[number] for number in numbers])
    )
    assert kept == every
    assert len(numbers) <= most


class Cell:
    """Stands for a test with parameters."""

    def __init__(self, params, **marks):
        self.nodeid = f"test_file.py::test[{'-'.join(map(str, params.values()))}]"
        self.callspec = SimpleNamespace(params=params)
        self._marks = {name: SimpleNamespace(kwargs=kwargs) for name, kwargs in marks.items()}

    def get_closest_marker(self, name):
        return self._marks.get(name)


def test_cells_of_other_runs_and_skipped_ones_cover_nothing():
    def is_skipped(x, **_):
        return x == 0

    cells = []
    for x, y, z, run in product(range(3), range(3), range(2), ("default", "slow", "soak")):
        marks = {"pairwise": {"without": is_skipped}}
        marks |= {} if run == "default" else {run: {}}
        cells.append(Cell({"x": x, "y": y, "z": z, "run": run}, **marks))
    soak = list(left_to_soak([*cells, Cell({"x": 0})]))
    assert not any(cell.callspec.params["run"] == "soak" for cell in soak)
    kept = [cell.callspec.params for cell in cells if cell not in soak]
    for run in ("default", "slow"):
        measured = [each for each in kept if each["run"] == run and each["x"] > 0]
        assert {(each["y"], each["z"]) for each in measured} == set(product(range(3), range(2)))
        assert {(each["x"], each["y"]) for each in measured} == set(product((1, 2), range(3)))
    assert len(soak) >= 12  # Of 36 cells that are not soak, 12 are skipped and 12 cover the rest.
