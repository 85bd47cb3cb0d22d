"""The documentation says what the package does: its Python runs, its commands parse."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer

from tracekit.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_SKIP = re.compile(r"<!-- not run:(?P<reason>.*?)-->\s*\Z", re.DOTALL)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    # The model is tiny: two threads on a busy machine mostly wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int
    skip: str | None
    """Why it is not run; None if it is."""


def _blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        skip = _SKIP.search(text, 0, match.start())
        found.append(
            Block(
                language=match["language"],
                code=textwrap.dedent(match["code"]),
                line=text.count("\n", 0, match.start("code")) + 1,
                skip=skip["reason"].strip() if skip else None,
            )
        )
    return found


def _python(page: Path) -> list[Block]:
    return [block for block in _blocks(page) if block.language == "python"]


def _commands(page: Path) -> list[list[str]]:
    """Every `tracekit ...` command line, split into words."""
    lines = []
    for block in _blocks(page):
        if block.language in ("sh", "bash", "console"):
            for line in block.code.replace("\\\n", " ").splitlines():
                lines += [part.strip() for part in line.removeprefix("$ ").split("&&")]
    return [shlex.split(line) for line in lines if line.startswith("tracekit ")]


def _page_id(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", [p for p in PAGES if _python(p)], ids=_page_id)
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    skipped = 0
    for block in _python(page):
        if block.skip is not None:
            skipped += 1
            continue
        # Blank lines in front, so that a traceback names the line of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        exec(code, namespace)
    capsys.readouterr()
    assert skipped < len(_python(page)), f"{page.name}: every block is skipped"


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_skipped_blocks_give_a_reason_and_are_python(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    skipped = [block for block in _python(page) if block.skip is not None]
    assert all(block.skip for block in skipped), "a reason is empty"
    assert text.count("<!-- not run:") == len(skipped), "a comment that precedes no Python block"


@pytest.mark.parametrize("page", [p for p in PAGES if _commands(p)], ids=_page_id)
def test_commands_parse(page: Path) -> None:
    group = typer.main.get_command(app)
    context = group.make_context("tracekit", [], resilient_parsing=True)
    for _, name, *arguments in _commands(page):
        command = group.get_command(context, name)
        assert command is not None, f"tracekit has no command {name}"
        command.make_context(name, list(arguments), parent=context)


def test_every_page_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in config
