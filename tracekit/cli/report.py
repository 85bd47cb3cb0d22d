"""`tracekit report`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tracekit as tk
from tracekit._util.deferred import transformers
from tracekit.cli.app import app
from tracekit.cli.options import OPTIONS, Given, takes
from tracekit.cli.output import check_file, console, load
from tracekit.demo import DEMO
from tracekit.errors import ResultFormatError, TracekitError

if TYPE_CHECKING:
    from tracekit.anatomy import Attention, Explanation, Paths, SideEffects
    from tracekit.results import Generations


@app.command()
@takes(
    output=OPTIONS["output"].saying("The HTML file that is written.", default=Path("report.html"))
)
def report(
    given: Given,
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders that runs, curves or fronts were saved to, or that hold such folders; "
            "and .json files of interaction grids."
        ),
    ],
) -> None:
    """Writes a page on saved runs: setting, figures, sets, why they act together, how to repeat."""
    output = given["output"]
    check_file(output)
    results = [result for path in runs for result in _read(path)]
    page = tk.report([*results, *_examples(results)], output)
    console.print(f"The report: {page.resolve().as_uri()}", soft_wrap=True)


def _examples(results: list[Any]) -> list[tk.PromptPairs]:
    """The pairs of results, for their prompts, where data and tokenizer are on this machine."""
    from tracekit.data.registry import load_origin

    by_data: dict[str, tk.PromptPairs] = {}
    for each in results:
        first = each[0] if isinstance(each, Sequence) else each
        if isinstance(first, tk.TraceResult) and first.own.origin is not None:
            path = first.model_facts.path or first.model
            # Some data sets, such as those with noise, ask more of a model than its tokenizer.
            with suppress(TracekitError, OSError, ValueError, AttributeError):
                if first.model == DEMO:
                    model = load(DEMO)
                else:
                    model = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
                by_data[first.dataset_fingerprint] = load_origin(first.own.origin, model)
    return list(by_data.values())


def _read(path: Path) -> list[Any]:
    """Results saved at a path or below it."""
    if path.suffix == ".json":
        return [tk.results.InteractionGrid.load(path)]
    of_sets: tuple[Any, ...] = (
        *(tk.anatomy.Explanation, tk.anatomy.Paths, tk.anatomy.Attention),
        *(tk.anatomy.SideEffects, tk.results.Generations),
    )
    anatomy = [
        _of_run(kind, file.parent) for kind in of_sets for file in sorted(path.rglob(kind.FILE))
    ]
    look = tk.anatomy.Look
    anatomy += [look.load(file.parent) for file in sorted(path.rglob(look.FILE))]
    folders = [file.parent for file in sorted(path.rglob("pareto.json"))]
    fronts = [tk.ParetoFront.load(folder) for folder in folders]
    files = sorted(path.rglob("result.json"))
    # Those of a front were read with it.
    own = [file.parent for file in files if not {*folders} & {*file.parents}]
    runs = [tk.TraceResult.load(folder) for folder in own]
    if not fronts and not runs and not anatomy:
        # The error says what a folder must hold.
        runs.append(tk.TraceResult.load(path))
    runs.sort(key=lambda result: (result.method, result.n_selected))
    return [*runs, *fronts, *anatomy]


def _of_run(kind: Any, folder: Path) -> Any:
    """What was measured of a set, which must be of the run beside it, if there is one."""
    loaded = kind.load(folder)
    if (folder / "result.json").exists():
        check_of_run(loaded, tk.TraceResult.load(folder), folder)
    return loaded


def check_of_run(
    saved: Explanation | Paths | Attention | SideEffects | Generations,
    result: tk.TraceResult,
    folder: Path,
) -> None:
    """Refuses what was measured on another run than the one that it is saved beside.

    Raises:
        ResultFormatError: It is of another set, or of other data, another metric or model.
    """
    stem = Path(saved.FILE).stem.replace("_", " ")
    noun = stem if isinstance(saved, tk.anatomy.Explanation) else f"record of {stem}"
    pairs: list[tuple[Any, Any]] = [(saved.model, result.model)]
    if isinstance(saved, tk.results.Generations):
        mine, theirs = (
            (each.source, each.source_seed, each.positions) for each in (saved.setup, result.setup)
        )
        pairs += [(saved.dataset_fingerprint, result.dataset_fingerprint), (mine, theirs)]
    else:
        asked = saved.target if isinstance(saved, tk.anatomy.SideEffects) else saved
        pairs += [
            # Of held-out examples, those that the set was selected on.
            (saved.selected_on or asked.dataset_fingerprint, result.dataset_fingerprint),
            (asked.metric, result.setup.metric),
            (saved.source, result.setup.source),
            (saved.source_seed, result.setup.source_seed),
            (saved.direction, result.setup.direction),
            (saved.positions, result.setup.positions),
        ]
    if isinstance(saved, tk.anatomy.Attention):
        # Only heads are read.
        pairs.append(({*saved.components} - {*result.components}, set()))
    else:
        pairs.append((saved.components, result.components))
    if any(mine != theirs for mine, theirs in pairs):
        raise ResultFormatError(
            f"The {noun} in {folder} is of another run than the one beside it. Measure it again, "
            f"or delete its {saved.FILE}."
        )
