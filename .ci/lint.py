"""What no linter knows of this repository: addresses, versions, names. `python .ci/lint.py`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def addresses() -> Iterator[str]:
    """Every address of the project is that of its metadata, which may have none."""
    roots: tuple[str, ...] = ()
    if repository := PROJECT["urls"].get("Repository"):
        owner, name = repository.removeprefix("https://github.com/").split("/")
        roots = (
            f"https://github.com/{owner}/{name}",
            f"https://raw.githubusercontent.com/{owner}/{name}/",
            f"https://colab.research.google.com/github/{owner}/{name}/",
            f"https://{owner}.github.io/{name}/",
        )
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *(ROOT / "docs").rglob("*.md")]
    pages += [*ROOT.glob("notebooks/*.ipynb"), *(ROOT / ".github").rglob("*.*")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for address in re.findall(r"https://[\w./-]*(?<=/)tracekit(?:-lm)?(?![\w-])[\w./-]*", text):
            if not address.startswith(roots):
                yield f"{page.relative_to(ROOT)}: {address} is not an address of the metadata"


def versions() -> Iterator[str]:
    """Workflows test the promised versions; every tool of an extra has a tested version."""
    constraints = _read("constraints.txt")
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    matrix = re.search(r"python: \[([^]]+)\]", _read(".github/workflows/tests.yml"))
    if matrix is None or re.findall(r"3\.\d+", matrix[1]) != promised:
        yield f"tests.yml: its matrix is not that of the classifiers, {promised}"
    if f">={promised[0]}" not in PROJECT["requires-python"]:
        yield f"pyproject.toml: requires-python does not begin with {promised[0]}"
    oldest = re.search(r"transformer-lens>=(3\.\d+),<5", "\n".join(PROJECT["dependencies"]))
    for name in (".ci/run", ".github/workflows/tests.yml"):
        if oldest is None or f"transformer-lens=={oldest[1]}.0" not in _read(name):
            yield f"{name}: does not test the oldest TransformerLens of the dependencies"
    if not re.search(r"^transformer-lens==4", constraints, re.M):
        yield "constraints.txt: does not have the newest line of TransformerLens"
    tested = set(re.findall(r"^([\w-]+)==", constraints, re.M))
    extras = PROJECT["optional-dependencies"].values()
    needed = {re.split(r"[\s>=<;\[]", each)[0] for group in extras for each in group}
    for tool in sorted(needed - tested - {PROJECT["name"], "tomli"}):
        yield f"constraints.txt: has no version of {tool}"


def workflows() -> Iterator[str]:
    """CI checks annotations in the default tests; a release is a tag, and stores no token."""
    for name in (".ci/run", ".github/workflows/tests.yml"):
        if "pytest -q --jaxtyping-packages=tracekit,tests.check " not in _read(name):
            yield f"{name}: the default tests do not check annotations"
    release = _read(".github/workflows/release.yml")
    for text in ('tags: ["v*"]', "id-token: write", "pypa/gh-action-pypi-publish@"):
        if text not in release:
            yield f"release.yml: lacks {text}"
    if "secrets." in release:
        yield "release.yml: uses a stored secret"


def names() -> Iterator[str]:
    """A value is called by the field's noun."""
    vague = {"one", "found", "place", "what", "known"}
    for path in sorted((ROOT / "tracekit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = None
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg | ast.keyword):
                name = node.arg
            if name in vague:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: the name {name!r} says nothing"


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit("\n".join([*addresses(), *versions(), *workflows(), *names()]) or None)
