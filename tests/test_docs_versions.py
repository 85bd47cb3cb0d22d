"""Versions: of the site, those that the docs call supported, and what deprecations have to say."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest
from typing_extensions import deprecated

from docs.versions import write_versions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]


def make_site(folder, *names):
    for name in names:
        (folder / name).mkdir()
        (folder / name / "index.html").write_text(name)
        (folder / name / "llms.txt").write_text(f"of {name}")
    return folder


def test_the_versions_of_a_site_are_listed_newest_first(tmp_path):
    site = make_site(tmp_path, "0.9", "dev", "0.10", "0.2.1")
    (site / "assets").mkdir()
    assert write_versions(site) == ["dev", "0.10", "0.9", "0.2.1"]
    assert json.loads((site / "versions.json").read_text()) == [
        {"name": "dev", "title": "dev (unreleased)"},
        {"name": "0.10", "title": "0.10 (newest release)"},
        {"name": "0.9", "title": "0.9"},
        {"name": "0.2.1", "title": "0.2.1"},
    ]
    assert 'content="0; url=0.10/"' in (site / "index.html").read_text()
    assert (site / "llms.txt").read_text() == "of 0.10"
    # What the script wrote is no version.
    assert write_versions(site) == ["dev", "0.10", "0.9", "0.2.1"]


def test_before_a_release_there_is_dev_alone(tmp_path):
    assert write_versions(make_site(tmp_path, "dev")) == ["dev"]
    assert 'url=dev/"' in (tmp_path / "index.html").read_text()
    (tmp_path / "empty").mkdir()
    text = r"empty holds no version\. Build one first: sphinx-build -b html docs .*empty/dev$"
    with pytest.raises(SystemExit, match=text):
        write_versions(tmp_path / "empty")


def test_the_docs_name_the_supported_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(project["dependencies"]), re.M))
    start = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert (
        f"Supported are Python {pythons[0]} to {pythons[-1]}, TransformerLens "
        f"{bounds['transformer-lens']} and 4, PyTorch from {bounds['torch']} and transformers from "
        f"{bounds['transformers']} on."
    ) in start


def deprecations(text):
    """Messages of `deprecated` in some Python code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("deprecated"):
            yield ast.literal_eval(node.args[0])


def problems(name, message, changelog):
    """What a deprecation lacks: the name to use instead, and the release that removes the old."""
    if not re.fullmatch(r"Use .+ instead\.", message):
        yield f"{name}: {message!r} does not say what to use instead"
    if message.removeprefix("Use ").removesuffix(" instead.") not in changelog:
        yield f"{name}: the changelog does not name what {message!r} names"


@pytest.mark.slow
def test_deprecated_names_say_what_to_use_instead():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    lacking = [
        problem
        for file in sorted((ROOT / "tracekit").rglob("*.py"))
        for message in deprecations(file.read_text(encoding="utf-8"))
        for problem in problems(file.name, message, changelog)
    ]
    assert lacking == []


def test_the_policy_works_as_contributing_describes_it():
    code = '@deprecated("Use new_name instead.")\ndef old_name(): ...'
    assert list(deprecations(code)) == ["Use new_name instead."]
    assert list(problems("a.py", "Use new_name instead.", "- `old_name` is now `new_name`")) == []
    assert list(problems("a.py", "It is gone.", "It is gone.")) == [
        "a.py: 'It is gone.' does not say what to use instead"
    ]
    assert list(problems("a.py", "Use other instead.", "")) == [
        "a.py: the changelog does not name what 'Use other instead.' names"
    ]

    @deprecated("Use new_name instead.")
    def old_name():
        return 3

    with pytest.deprecated_call(match=r"^Use new_name instead\.$"):
        assert old_name() == 3
