"""Tries random inputs: `python -m tools.fuzz [--minutes 60] [--seed SEED]`."""

from __future__ import annotations

import random
from typing import Annotated

import torch
import typer
from rich.console import Console

from tools.fuzz.properties import counts
from tools.fuzz.trying import MINUTES, at_length


def main(
    minutes: Annotated[float, typer.Option(help="Half for the seed 0, half for the other.")] = (
        MINUTES
    ),
    seed: Annotated[int | None, typer.Option(help="The other seed; a fresh one if left out.")] = (
        None
    ),
) -> None:
    """Tries random inputs, and ends at the first that is neither refused nor right."""
    torch.set_num_threads(1)
    fresh = random.SystemRandom().randrange(2**32) if seed is None else seed
    for start in (0, fresh):
        at_length(start, minutes / 2)
    Console().print(f"Seeds 0 and {fresh}: {counts['taken']} taken, {counts['refused']} refused.")


if __name__ == "__main__":
    typer.run(main)
