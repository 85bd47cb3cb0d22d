"""Code in running text names what there is: attributes, keyword arguments, options, commands."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

import tracekit as tk
from paper.__main__ import app as paper_app
from tracekit.cli import app
from tracekit.data.registry import DATASETS
from tracekit.engine.setup import SETUP_OPTIONS
from tracekit.explore.explorer import Explorer
from tracekit.results import Faithfulness, InteractionGrid, TraceCurve
from tracekit.runs import Runs
from tracekit.runs.jobs import Grid
from tracekit.search import METHODS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "tracekit/llms.txt", "tools/studies/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SOURCES = sorted((ROOT / "tracekit").rglob("*.py"))
VALUES: dict[str, type] = {
    "tracer": tk.Tracer,
    "pairs": tk.PromptPairs,
    "result": tk.TraceResult,
    "setup": tk.Setup,
    "curve": TraceCurve,
    "front": tk.ParetoFront,
    "grid": InteractionGrid,
    "faithful": Faithfulness,
    "engine": tk.engine.Engine,
    "runs": Runs,
    "view": Explorer,
}
"""What texts call a value, and its type."""
OF_SEARCHES = {field.name for method in METHODS.values() for field in dataclasses.fields(method)}
FURTHER = {
    tk.Tracer: set(SETUP_OPTIONS),
    tk.Tracer.run: OF_SEARCHES,
    tk.Tracer.pareto: OF_SEARCHES,
    tk.sweep: {field.name for field in dataclasses.fields(Grid)} | set(SETUP_OPTIONS),
    tk.load_dataset: {name for each in DATASETS.values() for name in each.options},
}
"""What a function takes by `**options`; of others, anything."""
OTHERS = {"--help", "--kind", "--examples", "--only", "--quick"}
"""Options of every command, and of the benchmarks, that texts name alone."""
_FILE = re.compile(r"[\w/]+\.(py|json|csv|safetensors)")
_PYTHON_FILE = re.compile(r"(?<![\w/.-])[\w./-]*\w\.py(?!\w)")
_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@dataclasses.dataclass(frozen=True)
class Of:
    """A value of a type."""

    type: type


class MissingNameError(Exception):
    """A name that there is not."""


def meaning(node: ast.expr) -> Any:
    """What an expression stands for; None where that is not known."""
    if isinstance(node, ast.Name):
        if node.id in VALUES:
            return Of(VALUES[node.id])
        if node.id in ("tk", "tracekit"):
            return tk
        homes = (tk, tk.search, tk.errors, tk.results, tk.engine, tk.measure, tk.metrics, tk.data)
        is_class = node.id[:1].isupper()
        return next((getattr(h, node.id) for h in homes if is_class and hasattr(h, node.id)), None)
    if isinstance(node, ast.Attribute):
        return attribute(meaning(node.value), node.attr)
    if isinstance(node, ast.Call):
        return called(meaning(node.func), node)
    return None


def attribute(base: Any, name: str) -> Any:
    if base is None:
        return None
    of = base.type if isinstance(base, Of) else base
    if isinstance(base, Of) and any(name in vars(c).get("__annotations__", {}) for c in of.mro()):
        return None
    if inspect.ismodule(of) and not hasattr(of, name):
        try:
            return import_module(f"{of.__name__}.{name}")
        except ModuleNotFoundError:
            raise MissingNameError(f"{of.__name__} has no {name}") from None
    if not hasattr(of, name):
        raise MissingNameError(f"{of.__name__} has no {name}")
    value = inspect.getattr_static(of, name) if isinstance(base, Of) else getattr(of, name)
    return None if isinstance(base, Of) and not inspect.isfunction(value) else value


def called(function: Any, node: ast.Call) -> Any:
    if function is None or isinstance(function, Of) or not callable(function):
        return None
    parameters = inspect.signature(function).parameters
    is_open = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    known = {*parameters, *FURTHER.get(function, ())}
    for keyword in node.keywords:
        checked = not is_open or function in FURTHER
        if keyword.arg is not None and checked and keyword.arg not in known:
            raise MissingNameError(f"{function.__qualname__} takes no {keyword.arg}")
    return Of(function) if isinstance(function, type) else None


def options_and_commands() -> tuple[set[str], set[str]]:
    group: Any = typer.main.get_command(app)
    commands = [*group.commands.values(), typer.main.get_command(paper_app)]
    options = {o for c in commands for p in c.params for o in (*p.opts, *p.secondary_opts)}
    return options, set(group.commands)


OPTIONS, COMMANDS = options_and_commands()


def problem_of(code: str) -> str | None:
    """Why a piece of code names what there is not; None if all is there, or it is other code."""
    code = " ".join(code.split())
    if _FILE.fullmatch(code) or code in ("tk.Name", "tracekit.Name"):
        return None
    if code.startswith(("--", "tracekit ")):
        words = code.split()
        if (
            words[0] == "tracekit"
            and words[1].islower()
            and words[1][0] != "-"
            and words[1] not in COMMANDS
        ):
            return f"tracekit has no command {words[1]}"
        names = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", code))
        unknown = names - OPTIONS - OTHERS
        return f"no command has {', '.join(sorted(unknown))}" if unknown else None
    try:
        tree = ast.parse(re.sub(r",\s*\.\.\.\)", ")", code), mode="eval")
    except SyntaxError:
        return None
    for part in tree.body.elts if isinstance(tree.body, ast.Tuple) else [tree.body]:
        try:
            meaning(part)
        except MissingNameError as error:
            return str(error)
    return None


FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("tracekit", "paper", "tools", "tests", "docs", "notebooks", ".ci")
    for path in (ROOT / folder).rglob("*.py")
)


def is_there(name: str) -> bool:
    """Whether a Python file has this path, or a path that ends so."""
    return any(f"/{path}".endswith(f"/{name}") for path in FILES)


def texts_of(path: Path) -> Iterator[str]:
    """A page, or the docstrings of a module, those of attributes too."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield inspect.cleandoc(str(node.value.value))


@pytest.mark.parametrize("paths", [PAGES, SOURCES], ids=["pages", "docstrings"])
def test_code_in_running_text_names_what_there_is(paths):
    found = [
        f"{path.relative_to(ROOT)}: `{code}`: {problem}"
        for path in paths
        for text in texts_of(path)
        for code in _CODE.findall(_FENCE.sub("", text))
        if (problem := problem_of(code))
    ]
    assert not found, "\n".join(found)


def test_modules_that_texts_name_are_there():
    """Names of Python files in backticks, also within commands, on pages and in docstrings."""
    folders = ("paper", "tools", "tests", "docs", "notebooks")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    missing = [
        f"{path.relative_to(ROOT)}: `{name}`"
        for path in (*pages, *SOURCES, *sources)
        for text in texts_of(path)
        for code in _CODE.findall(_FENCE.sub("", text))
        for name in _PYTHON_FILE.findall(code)
        if not is_there(name)
    ]
    assert not missing, "\n".join(missing)
    assert not is_there("no_such_module.py")


@pytest.mark.slow
def test_code_blocks_of_docstrings_stand_on_lines_of_their_own():
    joined = [
        path.name
        for path in SOURCES
        for text in texts_of(path)
        if re.search(r"```\w+[ \t]+\S|\S[ \t]+```", text)
    ]
    assert not joined


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("tk.search.PGBCT(lambda1=1e-3, refine=False)", "PGBCT takes no refine"),
        ("tk.search.PGBCTT", "search has no PGBCTT"),
        ("tracer.evaluat(mask)", "Tracer has no evaluat"),
        ("Tracer(..., heldout=pairs)", "Tracer takes no heldout"),
        ("tracer.run(budget=4, bugdet=3, ...)", "run takes no bugdet"),
        ("result.lables", "TraceResult has no lables"),
        ("pairs.split(0.5, sed=0)", "split takes no sed"),
        ("tk.sweep(..., job=2)", "sweep takes no job"),
        ("tracekit.engine.checkz", "engine has no checkz"),
        ("--max-pass", "no command has --max-pass"),
        ("tracekit traze --budget 3", "no command traze"),
    ],
)
def test_faults_are_seen(code, problem):
    assert problem in (problem_of(code) or "")


@pytest.mark.parametrize(
    "code",
    [
        "tk.search.PGBCT(lambda1=1e-3)",
        "tracer.run(budget=4, draws=200, ...)",
        "Tracer(..., held_out=pairs, positions='last')",
        "result.labels",
        "result.held_out.effects",
        "--max-passes",
        "tracekit trace --budget 3",
        "model.reset_hooks()",
        "a sentence",
    ],
)
def test_what_there_is_passes(code):
    assert problem_of(code) is None
