"""Mutants: modules with one small fault."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sum": "max", "sorted": "list"}


@dataclass(frozen=True)
class Mutant:
    path: Path
    line: int
    statement: int
    """First line of the statement that it is in."""
    number: int
    """Of the change, among those of its file."""
    change: str
    """Before -> after."""
    source: str


def count(path: Path) -> int:
    """How many mutants a module has."""
    return sum(1 for _ in _changes(ast.parse(path.read_text(encoding="utf-8"))))


def make(path: Path, number: int) -> Mutant:
    """A mutant of a module; they are numbered from 0."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node, change = next(islice(_changes(tree), number, None))
    line = node.lineno  # type: ignore[attr-defined]
    statements = [part for part in ast.walk(tree) if isinstance(part, ast.stmt)]
    holds = [s.lineno for s in statements if s.lineno <= line <= (s.end_lineno or s.lineno)]
    before = ast.unparse(node)
    change(node)
    ast.fix_missing_locations(tree)
    text = f"{_short(before)} -> {_short(ast.unparse(node))}"
    return Mutant(path, line, max(holds), number, text, ast.unparse(tree))


def _short(text: str) -> str:
    first = " ".join(text.split())
    return first if len(first) <= 70 else f"{first[:67]}..."


def _changes(tree: ast.AST) -> Iterator[tuple[ast.AST, Callable[[ast.AST], None]]]:
    """The nodes of a tree, and what may be done to each."""
    left_out = _left_out(tree)
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        for change in _changes_of(node):
            yield node, change


def _changes_of(node: ast.AST) -> Iterator[Callable[[ast.AST], None]]:
    def put(**fields: object) -> Callable[[ast.AST], None]:
        return lambda target: [setattr(target, k, v) for k, v in fields.items()] and None

    match node:
        case ast.Compare(ops=[operation]) if type(operation) in _COMPARISONS:
            yield put(ops=[_COMPARISONS[type(operation)]()])
        case ast.BinOp(op=operation) | ast.AugAssign(op=operation) if (
            type(operation) in _OPERATIONS
        ):
            yield put(op=_OPERATIONS[type(operation)]())
        case ast.BoolOp(op=operation):
            yield put(op=ast.Or() if isinstance(operation, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.USub()):
            yield put(op=ast.UAdd())
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield put(test=ast.UnaryOp(op=ast.Not(), operand=test))
        case ast.Constant(value=bool() as value):
            yield put(value=not value)
        case ast.Constant(value=int() | float() as value):
            yield put(value=value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield put(func=ast.Name(id=_NAMES[name], ctx=ast.Load()))
        case ast.Expr(value=ast.Call()):
            yield put(value=ast.Constant(value=None))
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield put(value=ast.Constant(value=None))


def _left_out(tree: ast.AST) -> set[int]:
    """Nodes that decide no number: annotations, what errors and progress bars say, `strict`."""
    inside: set[int] = set()
    out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            body = node.body if isinstance(node.body, list) else [node.body]
            inside |= {id(inner) for part in body for inner in ast.walk(part)}
            annotations = [getattr(node, "returns", None)]
            arguments = node.args
            annotations += [
                argument.annotation
                for argument in ast.walk(arguments)
                if isinstance(argument, ast.arg)
            ]
            out |= {id(i) for part in annotations if part for i in ast.walk(part)}
        elif isinstance(node, ast.AnnAssign):
            out |= {id(inner) for inner in ast.walk(node.annotation)}
        elif isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)):
            out |= {id(inner) for inner in ast.walk(node)}
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            # It refuses lengths that differ, as an assertion does.
            out |= {id(inner) for inner in ast.walk(node)}
        elif isinstance(node, ast.Expr) and _is_progress(node.value):
            out |= {id(inner) for inner in ast.walk(node)}
        elif isinstance(node, ast.Call) and _is_warning(node.func):
            out |= {id(inner) for argument in node.args for inner in ast.walk(argument)}
            out |= {id(inner) for word in node.keywords for inner in ast.walk(word)}
    everything = {id(node) for node in ast.walk(tree)}
    return out | (everything - inside)


def _is_progress(value: ast.expr) -> bool:
    """Whether something is shown in a progress bar."""
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in ("note", "advance")


def _is_warning(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "warn"
