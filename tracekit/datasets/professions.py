"""Professions (Vig et al. 2020): does an occupation predict "he" or "she"?

Every template is filled with every occupation. The counterfactual of a stereotypically male
occupation is `woman`, of a female one `man`; x is the stereotyped pronoun, y the other. Order:
male occupations template by template, then female ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracekit.datasets.files import read_lines
from tracekit.prompts import OnMismatch, PromptPairs

_ORIGIN = "the repository of Vig et al. 2020, CausalMediationAnalysis (experiment_data)"


def load(
    model: Any, *, data_dir: Path | None = None, on_mismatch: OnMismatch = "error"
) -> PromptPairs:
    """Loads 17 templates x 159 occupations = 2703 examples.

    An occupation of several tokens stands against a counterfactual of one, so the occupation's
    last token is what a position-by-position comparison needs; the published files contain only
    occupations that GPT-2 encodes as one token.

    Args:
        model: Its tokenizer encodes the text.
        data_dir: Folder with `templates.txt`, `male_occupations.txt`, `female_occupations.txt`.
        on_mismatch: As in `PromptPairs.from_text`.

    Raises:
        DataNotFoundError: A file is missing.
    """
    templates = read_lines(data_dir, "templates.txt", "professions", _ORIGIN)
    rows = []
    for gender, counterfactual, x, y in (
        ("male", "woman", " he", " she"),
        ("female", "man", " she", " he"),
    ):
        occupations = read_lines(data_dir, f"{gender}_occupations.txt", "professions", _ORIGIN)
        rows += [
            {
                "prompt": template.format(occupation),
                "counterfactual": template.format(counterfactual),
                "x": x,
                "y": y,
            }
            for template in templates
            for occupation in occupations
        ]
    return PromptPairs.from_text(rows, model, name="professions", on_mismatch=on_mismatch)
