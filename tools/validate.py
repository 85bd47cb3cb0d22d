"""Compares single-head effects with published ones: `python -m tools.validate MODEL`.

Every head is measured alone, and all together, with the data and the protocol of Vig et al.
(2020), and compared with their table for the real weights. Agreement shows that weights,
tokenizer, data, hooks and metric are the ones meant; a wrong checkpoint fails.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from jaxtyping import Float
from torch import Tensor

import tracekit as tk
from paper.models import SINGLE_HEAD_TABLES
from paper.published import SingleHeads, single_heads, table_of_heads
from tracekit._util.table import Table
from tracekit.cli.console import console, print_problem
from tracekit.cli.options import load_quietly, parse_loading_options
from tracekit.cli.tables import print_facts
from tracekit.engine import checks
from tracekit.errors import ComparisonError, DataFormatError, DataNotFoundError, TracekitError

_CORRELATION = 0.99
"""Least correlation that counts as agreement."""
_DIFFERENCE = 0.05
"""Largest difference of a single effect, as a share of the largest published one."""
_ALL_HEADS = 0.05
"""Largest relative difference of the effect of all heads."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Validation:
    """Measured single-head effects beside published ones."""

    table: SingleHeads
    """The published ones."""
    singles: Float[Tensor, "layer head"]
    """Effect of each head, measured here."""
    all_heads: float
    """Effect of all of them together, measured here."""

    @property
    def correlation(self) -> float:
        """Pearson correlation of the single effects; 0 if it is undefined."""
        both = torch.stack([self.singles.flatten(), self.table.singles.flatten()]).double()
        correlation = torch.corrcoef(both)[0, 1].item()
        return 0.0 if isnan(correlation) else correlation

    @property
    def largest_difference(self) -> float:
        """Largest difference of a single effect."""
        return (self.singles - self.table.singles).abs().max().item()

    @property
    def largest_published(self) -> float:
        """Largest published single effect, the scale of the difference."""
        return self.table.singles.abs().max().item()

    @property
    def problems(self) -> list[str]:
        """The disagreements, as phrases; empty if there is none."""
        problems = []
        if not self.correlation >= _CORRELATION:
            problems.append(f"the correlation is {self.correlation:.4f}, below {_CORRELATION}")
        if not self.largest_difference <= _DIFFERENCE * self.largest_published:
            problems.append(
                f"a head differs by {self.largest_difference:.3g}, more than {_DIFFERENCE:.0%} of "
                f"the largest published effect, {self.largest_published:.3g}"
            )
        if not abs(self.all_heads - self.table.all_heads) <= _ALL_HEADS * abs(self.table.all_heads):
            problems.append(
                f"all heads together have an effect of {self.all_heads:.4g} instead of "
                f"{self.table.all_heads:.4g}, more than {_ALL_HEADS:.0%} off"
            )
        return problems

    def facts(self) -> Table:
        """One row, with the effects, their agreement and who published them."""
        facts = {
            "heads": self.singles.numel(),
            "correlation": self.correlation,
            "largest_difference": self.largest_difference,
            "largest_published": self.largest_published,
            "all_heads": self.all_heads,
            "all_heads_published": self.table.all_heads,
            "published_by": self.table.source,
        }
        forms = {"correlation": ".6f", "all_heads": ".6g", "all_heads_published": ".6g"}
        return Table.of_rows([facts], forms=forms)


def validate(tracer: tk.Tracer, table: SingleHeads) -> Validation:
    """Measures all heads of a model and compares them with a table.

    Args:
        tracer: Of all heads of a model, with `odds-ratio` and the data set of the table.
        table: Published effects.

    Raises:
        ComparisonError: Table and tracer differ in layers, heads, examples or data set.
    """
    n_layers, n_heads = int(tracer.model.cfg.n_layers), int(tracer.model.cfg.n_heads)
    traced = f"{n_layers} x {n_heads} heads, {len(tracer.pairs)} examples of {tracer.pairs.name}"
    rows, columns = table.singles.shape
    published = f"{rows} x {columns} heads, {table.n_examples} examples of {table.dataset}"
    if traced != published or len(tracer.registry) != n_layers * n_heads:
        raise ComparisonError(
            f"The table for {table.model} has {published}; the model has {traced}. "
            "Give the model and the data set that the table is about."
        )
    checks.check_model_unchanged(tracer.engine)
    sets = [[i] for i in range(len(tracer.registry))]
    singles = tracer.engine.set_effects(sets, "single heads").mean(1)
    return Validation(
        table=table, singles=singles.reshape(n_layers, n_heads), all_heads=tracer.full_effect
    )


def read_single_heads(path: str | Path) -> SingleHeads:
    """A table from a JSON file with the keys of `paper/single_heads.json`.

    Raises:
        DataNotFoundError, DataFormatError: There is no such file, or it is no such table.
    """
    path = Path(path)
    if not path.is_file():
        raise DataNotFoundError(f"There is no file {path}. Give a JSON file with a table.")
    try:
        return table_of_heads(json.loads(path.read_text(encoding="utf-8-sig")), str(path))
    except (ValueError, KeyError, TypeError) as error:
        raise DataFormatError(
            f"{path} is no table of single heads. It needs the keys dataset, model, n_examples, "
            "all_heads_effect and single_head_effect (a list per layer)."
        ) from error


def main(
    model: Annotated[str, typer.Argument(help="A hub name or a directory.")],
    dataset: Annotated[str, typer.Option(help="winobias or winogender.")] = "winogender",
    table_of: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="Model to compare with: distilgpt2, gpt2, gpt2-medium, gpt2-large or gpt2-xl. "
            "Default: its name.",
        ),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="A table of your own (JSON), instead of the published one.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the files of the data set.")
    ] = None,
    model_option: Annotated[
        list[str] | None, typer.Option(help="An option of load_model, as name=value.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    max_batch_size: Annotated[int, typer.Option(min=1, help="Examples per pass.")] = 64,
    quiet: Annotated[bool, typer.Option(help="Show no progress bars.")] = False,
) -> None:
    """Compares every single-head effect with those published for the real GPT-2 family.

    Exit code 1 if they do not agree, as with other weights.
    """
    try:
        if table is not None:
            published = read_single_heads(table)
        else:
            pairs_name = SINGLE_HEAD_TABLES.get(dataset, dataset)
            published = single_heads(table_of or Path(model).name, pairs_name)
        loaded = load_quietly(
            model, device=device, dtype=dtype, **parse_loading_options(model_option)
        )
        options: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
        if dataset == "winogender":
            # Unlike those of the paper, the published effects keep the case of pronouns.
            options["keep_case"] = True
        pairs = tk.load_dataset(dataset, loaded, **options)
        progress = False if quiet else None
        tracer = tk.Tracer(loaded, pairs, max_batch_size=max_batch_size, progress=progress)
        validation = validate(tracer, published)
        print_facts("validation", validation.facts())
        if validation.problems:
            raise ComparisonError(
                f"{model} does not agree with the table for {published.model} on "
                f"{published.dataset}: {'; '.join(validation.problems)}. It has other weights, "
                "another tokenizer or other data."
            )
    except TracekitError as error:
        print_problem("Error", error, "bold red")
        raise typer.Exit(1) from error
    console.print(f"{model} agrees with {published.model}.", style="bold", highlight=False)


if __name__ == "__main__":
    typer.run(main)
