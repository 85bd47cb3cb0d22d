"""`tracekit demo`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import tracekit as tk


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    """Output and folder of `tracekit demo`, in a process and a terminal of its own."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "demo", "--output", str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", "HF_HUB_OFFLINE": "1"},
        timeout=300,
        check=True,
    )
    return done.stdout, folder


@pytest.mark.soak
@pytest.mark.slow
def test_the_demo_tells_the_story_with_its_numbers(demo_run):
    out, folder = demo_run
    story = (
        "L1H4 alone 0.138, L1H7 alone 0.007, together 0.293. Top-k takes L0H1 and L1H4 "
        "instead: 0.148. Top-k is below the best random sets at 2 and 6 heads."
    )
    assert story in " ".join(out.split())
    rows = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in out.splitlines()
        if line.startswith("│ ") and line[2] != " "
    }
    assert list(rows) == ["PGB-CT + local", "greedy", "top-k", "random"]
    for name, method in (("PGB-CT + local", "pgb-ct+local"), ("top-k", "top-k")):
        effects = [tk.TraceResult.load(folder / f"{method}-{k}").effect for k in (2, 3, 4, 6, 9)]
        assert rows[name][:5] == [f"{effect:.3f}" for effect in effects]
    assert max(map(len, out.splitlines()[:-1])) <= 96
    assert out.splitlines()[-1].endswith((folder / "index.html").as_uri())


@pytest.mark.slow
def test_the_page_of_the_demo_needs_no_network(demo_run):
    _, folder = demo_run
    text = (folder / "index.html").read_text(encoding="utf-8")
    body = text[text.index("</script></head>") :]
    assert "together 0.293" in body
    assert body.count('class="plotly-graph-div"') == 5
    for heading in ("Which heads each method selects", "Who acts together", "What to do next"):
        assert heading in body
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", body)
    for member in tk.TraceResult.load(folder / "pgb-ct+local-6").labels:
        assert f">{member}</td>" in body
    assert len(tk.ParetoFront.load(folder / "pareto")) >= 5
