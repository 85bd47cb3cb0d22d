"""The project's metadata: its address, the versions that its workflows test, its constraints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_every_address_of_the_project_is_that_of_its_metadata():
    urls = PROJECT["urls"]
    owner, name = urls["Repository"].removeprefix("https://github.com/").split("/")
    roots = (
        f"https://github.com/{owner}/{name}",
        f"https://raw.githubusercontent.com/{owner}/{name}/",
        f"https://colab.research.google.com/github/{owner}/{name}/",
        f"https://{owner}.github.io/{name}/",
    )
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *(ROOT / "docs").rglob("*.md")]
    pages += [*ROOT.glob("notebooks/*.ipynb"), *WORKFLOWS]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    addresses = re.findall(r"https://[\w./-]*(?<=/)tracekit(?![\w-])[\w./-]*", text)
    assert not [address for address in addresses if not address.startswith(roots)]
    assert len(addresses) > 10


def test_ci_checks_annotations(tmp_path):
    """With the options that CI gives to all tests, a wrong shape is an error."""
    texts = [(ROOT / name).read_text() for name in (".ci/run", ".github/workflows/tests.yml")]
    (options,), others = (re.findall(r'PYTEST_ADDOPTS[=:] ?"(.*)"', text) for text in texts)
    assert others == [options]
    file = tmp_path / "test_shape.py"
    file.write_text(
        "import torch\nfrom tracekit.components import masks\n\n\n"
        "def test_shape():\n    masks.l1(torch.zeros(1, 2))\n"
    )
    # Of a run with these options, and of its workers, nothing is handed on.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    for given, code, text in (([], 0, "1 passed"), (options.split(), 1, "TypeCheckError")):
        command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", *given, str(file)]
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, text in done.stdout) == (code, True), done.stdout + done.stderr


def test_the_workflows_test_the_promised_versions_of_python():
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    tests = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    matrix = re.search(r"python: \[([^]]+)\]", tests)
    assert matrix is not None
    assert re.findall(r"3\.\d+", matrix[1]) == promised
    assert f">={promised[0]}" in PROJECT["requires-python"]


def test_both_lines_of_transformer_lens_are_tested():
    (needed,) = (each for each in PROJECT["dependencies"] if each.startswith("transformer-lens"))
    constraint = re.search(
        r"^transformer-lens==(\d+)", (ROOT / "constraints.txt").read_text(), re.M
    )
    assert constraint is not None
    oldest = re.search(r">=(3\.\d+),<5", needed)
    assert oldest is not None
    for file in (ROOT / ".ci/run", ROOT / ".github/workflows/tests.yml"):
        assert f"transformer-lens=={oldest[1]}.0" in file.read_text(encoding="utf-8"), file
    assert constraint[1] == "4"


def test_every_tool_of_an_extra_has_a_tested_version():
    constrained = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.M))
    extras = PROJECT["optional-dependencies"]
    needed = {re.split(r"[\s>=<;\[]", each)[0] for group in extras.values() for each in group}
    assert needed - constrained - {"tracekit", "tomli"} == set()


def test_the_workflow_of_releases_runs_on_tags_and_stores_no_token():
    release = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    assert 'tags: ["v*"]' in release
    assert "id-token: write" in release
    assert "secrets." not in release
    assert "pypa/gh-action-pypi-publish@" in release
