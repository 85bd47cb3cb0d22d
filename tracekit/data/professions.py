"""Professions (Vig et al. 2020): does an occupation predict "he" or "she"?

Every template is filled with every occupation. The counterfactual of a stereotypically male
occupation is `woman`, of a female one `man`. The target x is the stereotyped pronoun, the foil y
the other one. Examples with male occupations come first, template by template.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracekit.data.download import check_size, read_lines
from tracekit.data.prompts import OnMismatch, PromptPairs, published_pairs

_N_PUBLISHED = 2873
_REASON = "169 occupations, of which the published files have 159"


def load(
    model: Any,
    *,
    data_dir: Path | None = None,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Loads 17 templates x 159 occupations = 2703 examples.

    The published files hold only occupations that GPT-2 encodes as one token, like `man` and
    `woman`; other tokenizers may split some, which `on_mismatch` is about. `data_dir` holds
    `templates.txt`, `male_occupations.txt` and `female_occupations.txt`.
    """
    templates = read_lines("professions", data_dir, "templates.txt")
    rows = []
    for gender, other, x, y in (("male", "woman", " he", " she"), ("female", "man", " she", " he")):
        occupations = read_lines("professions", data_dir, f"{gender}_occupations.txt")
        rows += [
            {"prompt": template.format(occupation), "counterfactual": template.format(other)}
            | {"x": x, "y": y, "group": template}
            for template in templates
            for occupation in occupations
        ]
    check_size("professions", len(rows), _N_PUBLISHED, _REASON)
    return published_pairs(rows, model, "professions", prepend_bos, on_mismatch)
