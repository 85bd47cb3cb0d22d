"""The numbers of every experiment on the embedded model, pinned.

`python -m tools.golden OUTPUT` compares what `python -m paper all --model demo --output OUTPUT`
wrote with `tests/golden/experiments.json`; with `--write` it becomes the new pin. With `--few` it
is `experiments-few.json`, of `python -m paper all --model demo --limit 8 --draws 10`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console

_FOLDER = Path(__file__).resolve().parents[1] / "tests/golden"
PINNED = _FOLDER / "experiments.json"
PINNED_FEW = _FOLDER / "experiments-few.json"
FEW = ("--limit", "8", "--draws", "10")
"""Options of the shorter run."""

# Wall times are of the machine; of the grids the summary is pinned.
_LEFT_OUT = ("minutes", "minutes published", "device", "processes", "threads")
_RELATIVE = 0.02
_ABSOLUTE = 2e-4


def numbers(output: Path) -> dict[str, list[dict]]:
    """All tables below a folder, but for wall times and the long lists of pairs and paths."""
    found = {}
    for path in sorted(output.glob("*/*.csv")):
        if path.stem.startswith(("pairs-", "paths-")):
            continue
        frame = pd.read_csv(path)
        frame = frame.drop(columns=[name for name in _LEFT_OUT if name in frame])
        rows = json.loads(frame.to_json(orient="records", double_precision=8))
        found[f"{path.parent.name}/{path.stem}"] = rows
    return found


def differences(found: dict[str, list[dict]], path: Path = PINNED) -> list[str]:
    """One line for each number that is not as pinned."""
    pinned = json.loads(path.read_text())
    lines = [f"{name} is new" for name in found if name not in pinned]
    for name, rows in pinned.items():
        if len(found.get(name, ())) != len(rows):
            lines.append(f"{name} has {len(found.get(name, ()))} rows instead of {len(rows)}")
            continue
        for number, (old, new) in enumerate(zip(rows, found[name], strict=True)):
            place = f"{name}, row {number} ({_named(old)})"
            lines += [
                f"{place}: {key} is {new.get(key)!r} instead of {old.get(key)!r}"
                for key in {**old, **new}
                if not _same(key, old.get(key), new.get(key))
            ]
    return lines


def _same(key: str, old: object, new: object) -> bool:
    if key in ("selected", "components", "optimum component", "pgb-ct component"):
        # Sets of nearly equal effect may change places with another processor.
        one, other = set(str(old).split()), set(str(new).split())
        return len(one & other) >= 0.5 * len(one | other)
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return abs(old - new) <= _ABSOLUTE + _RELATIVE * abs(old)
    return old == new


def _named(row: dict) -> str:
    return ", ".join(str(value) for value in row.values() if isinstance(value, str))


def main(
    output: Annotated[Path, typer.Argument(help="The folder that the experiments wrote.")],
    few: Annotated[bool, typer.Option(help="Those of the shorter run.")] = False,
    write: Annotated[bool, typer.Option(help="Pin them anew.")] = False,
) -> None:
    """Compares the numbers of all experiments with the pinned ones, or pins them anew."""
    pinned = PINNED_FEW if few else PINNED
    if write:
        pinned.write_text(json.dumps(numbers(output), indent=0, sort_keys=True) + "\n")
        return
    lines = differences(numbers(output), pinned)
    Console(soft_wrap=True, markup=False, highlight=False).print("\n".join(lines) or "as pinned")
    if lines:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
