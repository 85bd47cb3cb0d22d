"""The documentation says what the package does: its Python runs, its commands parse."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import re
import runpy
import shlex
import shutil
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest
import torch
import typer

import tracekit as tk
from docs import trouble_entries
from docs.schemas.make import write
from docs.trouble_entries import ENTRIES
from tracekit import errors
from tracekit.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHER_PAGES = [
    *(ROOT / name for name in ("CONTRIBUTING.md", ".github/SECURITY.md")),
    *sorted((ROOT / "tools").rglob("README.md")),
]
API_PAGES = sorted((ROOT / "docs/api").glob("*.md"))

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_SKIP = re.compile(r"<!-- not run:(?P<reason>.*?)-->\s*\Z", re.DOTALL)
_BROWSER = "needs kaleido and a browser"
"""The reason of blocks that run where there is one."""


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
    is_output: bool
    """Whether it shows what the block directly above it prints."""


def _blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    blocks: list[Block] = []
    end = 0
    for match in _BLOCK.finditer(text):
        skip = _SKIP.search(text, 0, match.start())
        is_next = bool(blocks) and not text[end : match.start()].strip()
        end = match.end()
        blocks.append(
            Block(
                language=match["language"],
                code=textwrap.dedent(match["code"]),
                line=text.count("\n", 0, match.start("code")) + 1,
                skip=skip["reason"].strip() if skip else None,
                is_output=match["language"] == "text" and is_next,
            )
        )
    return blocks


def _python(page: Path) -> list[Block]:
    return [block for block in _blocks(page) if block.language == "python"]


_AS_PRINTED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

_COMMAND = re.compile(r"^(?:[\w-]+ .*-m |\$ )?tracekit (?P<words>.*)$")
"""A line of a command, which a launcher may start."""
_INLINE = re.compile(r"`tracekit (?P<words>[a-z][^`]*)`")
"""A command within a sentence, which may be a beginning."""


def commands_of(page: Path) -> list[list[str]]:
    """The words after `tracekit` of every command line; `...` stands for options."""
    lines = []
    for block in _blocks(page):
        if block.language in ("sh", "bash", "console"):
            for line in block.code.replace("\\\n", " ").splitlines():
                lines += [part.strip() for part in line.split("&&")]
    found = [match["words"] for match in map(_COMMAND.match, lines) if match]
    return [shlex.split(words.removesuffix("..."), comments=True) for words in found]


def _has_browser() -> bool:
    return any(shutil.which(name) for name in ("chromium", "google-chrome", "chrome"))


def _page_id(page: Path) -> str:
    return page.name


_LONG = (
    *("README.md", "circuits.md", "cookbook.md", "edges.md", "explain.md", "explorer.md"),
    *("from-transformer-lens.md", "gallery.md", "index.md", "interactions.md", "keep.md"),
    *("methods.md", "metric.md", "own-search.md", "performance.md", "run.md", "side-effects.md"),
    *("hooks.md", "sweeps.md", "tutorial.md"),
)
"""Pages whose blocks take more than a second and a half."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=pytest.mark.slow if p.name in _LONG else ())
        for p in PAGES
        if _python(p)
    ],
    ids=_page_id,
)
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    skipped = 0
    printed = ""
    began = time.process_time()
    for block in _blocks(page):
        if block.is_output:
            # `...` stands for anything.
            assert doctest.OutputChecker().check_output(block.code, printed, _AS_PRINTED), printed
        if block.language != "python":
            continue
        if block.skip is not None and not (block.skip == _BROWSER and _has_browser()):
            skipped += 1
            continue
        # Blank lines in front, so that a traceback names the line of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        exec(code, namespace)
        printed = capsys.readouterr().out
    assert skipped < len(_python(page)), f"{page.name}: every block is skipped"
    if page.name == "tutorial.md":
        # Seconds of the processor: a busy machine does not count.
        assert time.process_time() - began < 60


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_skipped_blocks_give_a_reason_and_are_python(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    skipped = [block for block in _python(page) if block.skip is not None]
    assert all(block.skip for block in skipped), "a reason is empty"
    assert text.count("<!-- not run:") == len(skipped), "a comment that precedes no Python block"


@pytest.mark.parametrize("page", [p for p in PAGES if commands_of(p)], ids=_page_id)
def test_commands_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inline = [match["words"].split() for match in _INLINE.finditer(page.read_text())]
    for name, *arguments in [*commands_of(page), *(words for words in inline if words[1:])]:
        if "--config" in arguments:
            # It is read as the line is parsed.
            Path(arguments[arguments.index("--config") + 1]).touch()
        _parse(name, arguments)


def _parse(name: str, arguments: list[str]) -> None:
    """Parses a command line, without running it."""
    group = typer.main.get_command(app)
    context = group.make_context("tracekit", [], resilient_parsing=True)
    command = group.get_command(context, name)
    assert command is not None, f"tracekit has no command {name}"
    command.make_context(name, list(arguments), parent=context)


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("cite", "paper"),
        ("bibtex", "paper"),
        ("two GPUs", "performance"),
        ("mean ablation", "sources"),
        ("zero ablation", "sources"),
        ("colours", "gallery"),
        ("fonts", "gallery"),
        ("per-head CSV", "cookbook"),
        ("LaTeX table", "sweeps"),
        ("random controls", "circuits"),
        ("denoising", "sources"),
        ("path patching", "paths"),
        ("chat model", "question"),
        ("explorer", "explorer"),
        ("GGUF", "model"),
        ("MIB", "edges"),
        ("checkpoints", "sweeps"),
        ("autoencoder", "components"),
        ("verify", "keep"),
    ],
)
def test_the_search_of_the_site_finds_what_people_look_for(query: str, page: str) -> None:
    """Sphinx finds a page that has every word of a query; the cookbook has most of them."""
    words = re.findall(r"\w+", query.lower())
    found = {
        path.stem
        for path in PAGES
        if set(words) <= set(re.findall(r"\w+", path.read_text(encoding="utf-8").lower()))
    }
    assert {page, "cookbook"} <= found


def test_every_answer_has_a_link():
    text = (ROOT / "docs/faq.md").read_text(encoding="utf-8")
    answers = re.split(r"^### .*$", text, flags=re.MULTILINE)[1:]
    assert 8 <= len(answers) <= 12
    assert all("](" in answer for answer in answers)


def test_every_public_name_has_an_entry_in_the_api() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in API_PAGES)
    entries = re.findall(r"^\.\. auto\w+:: (\S+)$", text, re.MULTILINE)
    assert len(entries) == len(set(entries))
    names = {*tk.__all__} - {"__version__"}
    names = sorted(name for name in names if not inspect.ismodule(getattr(tk, name)))
    missing = [name for name in names if f"tracekit.{name}" not in entries]
    assert not missing


# ---- trouble.md, which the site makes --------------------------------------------------------


def _public_errors() -> dict[str, type[Exception]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and not name.startswith("_")
    }


def _literals_by_error() -> dict[str, set[str]]:
    """For every error, the string literals of the modules that name it."""
    literals: dict[str, set[str]] = {name: set() for name in _public_errors()}
    for path in (ROOT / "tracekit").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        for name in names & set(literals):
            literals[name] |= texts
    literals["UnknownOptionError"] |= {"Unknown option "}
    literals["UnknownNameError"] |= {f"Unknown {noun} " for noun in literals["UnknownNameError"]}
    return literals


@pytest.mark.slow
def test_quoted_messages_stand_in_the_source():
    """Each part of an excerpt between `...`, in a module that names its error."""
    literals = _literals_by_error()
    entries = [entry for section in ENTRIES.values() for entry in section]
    missing = [
        (entry.error.__name__, part)
        for entry in entries
        for part in entry.excerpt.split("...")
        if part.strip() and not any(part in text for text in literals[entry.error.__name__])
    ]
    assert not missing


def test_the_page_of_errors_has_all_entries_and_right_links(tmp_path: Path):
    path = tmp_path / "trouble.md"
    trouble_entries.write(path)
    text = path.read_text(encoding="utf-8")
    assert all(entry.help in text for section in ENTRIES.values() for entry in section)
    assert not _broken_links(text, ROOT / "docs")


@pytest.mark.parametrize(
    "page", [*OTHER_PAGES, *PAGES], ids=lambda page: page.parent.name + page.name
)
def test_links_lead_to_pages_and_headings(page: Path):
    assert not _broken_links(page.read_text(encoding="utf-8"), page.parent)


def _broken_links(text: str, folder: Path) -> list[str]:
    """Links to a file that is not there, or to a heading that the page does not have."""
    broken = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        # The site makes this page.
        target = folder / name if name else None
        if target is not None and not target.exists() and target.name != "trouble.md":
            broken.append(link)
        elif anchor and target is not None and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}
            if anchor not in slugs:
                broken.append(link)
    return broken


def test_every_picture_of_the_gallery_has_the_code_that_draws_it():
    """As `docs/images/make.py` reads the page: a block, then its picture."""
    make = runpy.run_path(str(ROOT / "docs/images/make.py"))
    text = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    blocks = list(make["_BLOCK"].finditer(text))
    drawn = [block["file"] for block in blocks if block["file"]]
    assert text.count("](images/") == len(drawn) == len(set(drawn)) > 5
    assert len(blocks) == text.count("```python")
    for name in drawn:
        assert (ROOT / "docs/images" / name).read_bytes().startswith(b"\x89PNG"), name
    named = re.findall(r"images/([\w-]+\.png)", "".join(p.read_text() for p in PAGES))
    # The explorer has a picture of its own command.
    assert set(named) - set(drawn) == {"explorer.png"}
    assert {path.name for path in (ROOT / "docs/images").glob("*.png")} == set(named)
    assert make["run_block"]("a = 2\na + 1", {}) == 3
    assert make["run_block"]("a = 2", {}) is None


def test_the_page_of_saved_files_links_every_schema(tmp_path: Path):
    made = write(tmp_path)
    page = (ROOT / "docs/files.md").read_text(encoding="utf-8")
    linked = re.findall(r"<schemas/(\S+)>", page)
    assert sorted(linked) == sorted(path.relative_to(tmp_path).as_posix() for path in made)
    for path in made:
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


def test_schemas_that_stay_the_same_are_not_written_again(tmp_path: Path):
    times = {path: path.stat().st_mtime_ns for path in write(tmp_path)}
    changed = next(iter(times))
    changed.write_text("{}")
    write(tmp_path)
    assert changed.read_text() != "{}"
    assert all(path.stat().st_mtime_ns == times[path] for path in [*times][1:])
