"""Draws the pictures of the gallery, the README and the start page: `python docs/images/make.py`.

Runs the code blocks of `docs/gallery.md` in order, with `--real` also those on a pretrained model.
A block that is followed by a picture ends in the figure, which is written to its file. Takes about
a minute on two processor cores; PNG files need kaleido and a Chrome or Chromium. It also prints the
numbers that stand beside the pictures in the README.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path
from typing import Any

import tracekit as tk

FOLDER = Path(__file__).resolve().parent
_BLOCK = re.compile(
    r"(?P<not_run><!-- not run[^>]*-->\n)?```python\n(?P<code>.*?)```\n"
    r"(?:\n!\[[^\]]*\]\(images/(?P<file>[^)]+)\))?",
    re.DOTALL,
)


def run_block(code: str, names: dict[str, Any]) -> Any:
    """Runs a block; gives the value of its last line if that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "gallery.md", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "gallery.md", "eval"), names)


def main(folder: Path, *, real: bool) -> None:
    """Runs the gallery, writes its pictures, and prints the numbers of the README."""
    text = (FOLDER.parent / "gallery.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    pictures: dict[str | Path, Any] = {}
    for block in _BLOCK.finditer(text):
        if block["not_run"] and not (real and "pretrained" in block["not_run"]):
            continue
        value = run_block(block["code"], names)
        if block["file"]:
            pictures[folder / block["file"]] = value
    tk.figures.write_all(pictures)
    tracer = names["tracer"]
    for result in tracer.results:
        sys.stdout.write(
            f"{result.method:>12} {result.budget} {result.effect:.3f} {' '.join(result.labels)}\n"
        )
    first, second = (tk.Component("attention-patterns", 1, head) for head in (4, 7))
    sys.stdout.write(
        f"{first} alone {tracer.evaluate([first]):.3f}, {second} alone "
        f"{tracer.evaluate([second]):.3f}, together {tracer.evaluate([first, second]):.3f}; "
        f"all {len(tracer.registry)}: {tracer.full_effect:.3f}\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draws the pictures of the gallery.")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the PNG files")
    parser.add_argument("--real", action="store_true", help="also those of SmolLM2; two minutes")
    arguments = parser.parse_args()
    main(arguments.output, real=arguments.real)
