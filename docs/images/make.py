"""Draws the pictures of the README and of the start page: `python docs/images/make.py`.

Traces 32 facts of the embedded model by attention patterns, with five search methods. Takes about
a minute on two processor cores; PNG files need kaleido and a Chrome or Chromium. It prints the
numbers that stand beside the pictures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tracekit as tk

FOLDER = Path(__file__).resolve().parent
BUDGETS = [2, 3, 4, 6, 9]
SHOWN = 6
"""Budget of the selection in the heatmap."""


def main(folder: Path) -> None:
    """Traces, draws, and prints the numbers."""
    model = tk.load_model("demo")
    pairs = tk.load_dataset("demo-facts", model)[:32]
    tracer = tk.Tracer(model, pairs, "attention-patterns", "probability-drop")
    tracer.run("pgb-ct", budgets=BUDGETS)
    top_k = tracer.run("top-k", budgets=BUDGETS)
    tracer.run("greedy", budgets=BUDGETS)
    tracer.run("random", budgets=BUDGETS, draws=100)
    curve = tracer.curve()
    # A set without a soft mask: in its heatmap colour and dot say the same.
    local = tracer.run("local-search", budget=SHOWN)
    for name, figure in (("heatmap", local.heatmap()), ("curve", curve)):
        tk.figures.write(figure, folder / f"{name}.png")
    for result in tracer.results:
        sys.stdout.write(
            f"{result.method:>12} {result.budget} {result.effect:.3f} {' '.join(result.labels)}\n"
        )
    first, second = (tk.Component("attention-patterns", 1, head) for head in (4, 7))
    sys.stdout.write(
        f"{first} alone {tracer.evaluate([first]):.3f}, {second} alone "
        f"{tracer.evaluate([second]):.3f}, together {tracer.evaluate([first, second]):.3f}; "
        f"top-k takes {' and '.join(top_k[0].labels)}: {top_k[0].effect:.3f}; "
        f"all {len(tracer.registry)}: {tracer.full_effect:.3f}\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draws the pictures of the README.")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the PNG files")
    main(parser.parse_args().output)
