"""Fails where the package outgrows its house: `python .ci/house.py [PACKAGE FOLDER]`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOMS, LINES, FILE, CLASS, FUNCTION, NAMES = 20, 42_377, 700, 400, 80, 30
"""The most folders and root modules; lines of all, of a file, a class, a function; top names.

Of all lines 40,877 are of the house as it was rebuilt. What is built in it may add 600, edges 900.
"""
ARROWS, FIELDS = 110, 20
"""The most pairs of rooms of which one imports the other; fields of a result."""
SCRIPTS, SCRIPT_CLASS = 1_471, 150
"""The most lines of all JavaScript, and of a class in it; a file and a function as in Python."""


def faults(package: Path) -> list[str]:
    """One line for each limit that the package breaks."""
    texts = {file: file.read_text(encoding="utf-8") for file in sorted(package.rglob("*.py"))}
    trees = {_name(package, file): ast.parse(text) for file, text in texts.items()}
    lines = {_name(package, file): text.count("\n") for file, text in texts.items()}
    rooms = {_room(name) for name in trees}
    stub = package / "__init__.pyi"
    top = ast.parse(stub.read_text(encoding="utf-8") if stub.exists() else "")
    names = {alias.name for node in ast.walk(top) for alias in _aliases(node)}
    found = [
        *_too_many("rooms", len(rooms), ROOMS),
        *_too_many("lines", sum(lines.values()), LINES),
        *_too_many("names at the top", len(names), NAMES),
    ]
    for name, tree in trees.items():
        found += _too_many(f"lines in {name}", lines[name], FILE)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                most = CLASS if isinstance(node, ast.ClassDef) else FUNCTION
                found += _too_many(f"lines in {name}.{node.name}", _length(node), most)
            if isinstance(node, ast.ClassDef) and node.name == "TraceResult":
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                found += _too_many(f"fields of {node.name}", len(fields), FIELDS)
            if isinstance(node, ast.ClassDef) and node.name == "Tracer" and node.bases:
                found.append(f"{node.name} inherits; its methods call functions instead")
    found += _scripts(package)
    imports = {name: _imports(name, trees) for name in trees}
    arrows = {(_room(name), _room(each)) for name in trees for each in imports[name]}
    found += _too_many("arrows between rooms", sum(a != b for a, b in arrows), ARROWS)
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found.append("a circle of files: " + " -> ".join(reversed(error.args[1])))
    return found


def _scripts(package: Path) -> Iterator[str]:
    """Faults of JavaScript, whose functions and classes end in a brace below their first letter."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in package.rglob("*.js")}
    yield from _too_many("lines of JavaScript", sum(t.count("\n") for t in texts.values()), SCRIPTS)
    for file, text in texts.items():
        yield from _too_many(f"lines in {file}", text.count("\n"), FILE)
        for found in _BLOCK.finditer(text):
            most = SCRIPT_CLASS if found["word"] == "class " else FUNCTION
            length = found[0].count("\n") + 1
            yield from _too_many(f"lines in {file} {found['name']}", length, most)


_BLOCK = re.compile(
    r"^(?P<indent> *)(?:export |async )*(?P<word>class |function |)(?P<name>\w+)[^\n;]*\{$"
    r".*?^(?P=indent)\}",
    re.DOTALL | re.MULTILINE,
)
"""A class, a function or a method, and any other block."""


def _length(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a class, or of the statements of a function: its docstring is not counted."""
    end = node.end_lineno or node.lineno
    if isinstance(node, ast.ClassDef):
        return end - node.lineno + 1
    first = node.body[1 if ast.get_docstring(node) is not None and node.body[1:] else 0]
    return end - first.lineno + 1


def _name(package: Path, file: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(name: str) -> str:
    """The folder in the package, or the module beside these, that a module is of."""
    return name.split(".")[1] if "." in name else ""


def _aliases(node: ast.AST) -> list[ast.alias]:
    """Names that the stub of the root module imports from the package: its public ones."""
    inside = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tracekit")
    return node.names if inside else []


def _too_many(noun: str, count: int, most: int) -> Iterable[str]:
    return [f"{count:,} {noun}, at most {most:,}"] if count > most else []


def _imports(name: str, trees: dict[str, ast.Module]) -> set[str]:
    """Modules that a module imports, also inside functions or for type checkers only."""
    found = set()
    for node in ast.walk(trees[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if each in trees else node.module for each in names}
    return (found & set(trees)) - {name}


if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent
    broken = faults(Path(*sys.argv[1:]) if sys.argv[1:] else root / "tracekit")
    sys.exit("\n".join(broken) or None)
