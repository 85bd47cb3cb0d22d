"""The command lines of the documentation run, as they stand there and in their order."""

from __future__ import annotations

import re

import pytest

from tests.test_docs import ROOT, commands_of

_ELSEWHERE = re.compile(
    r"gpt2|models/|mine|masks\.json|neutral\.jsonl|sweep\.toml|smollm2|pareto"
    r"|^demo"
)
"""Commands that need a model or a file of the reader's, or that take minutes."""


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("page", ["cli.md", "sweeps.md"])
def test_commands_run(command, page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = commands_of(ROOT / "docs" / page)
    lines = [words for words in lines if not _ELSEWHERE.search(" ".join(words))]
    assert len(lines) >= 2
    for words in lines:
        code, _, err = command(*words)
        assert code == 0, (words, err)
