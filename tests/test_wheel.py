"""What a user installs: a wheel, in an environment of its own, away from the repository.

The environment sees the libraries of the present one through a .pth file, so nothing is downloaded;
it does not see the checkout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import tracekit

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


def _run(*command: str | Path, folder: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COLUMNS")}
    finished = subprocess.run(
        [str(each) for each in command],
        cwd=folder,
        env=environment | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-4000:]
    return finished.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and source archive, built as a release is."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    pytest.importorskip("hatch_fancy_pypi_readme")
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    return folder


@pytest.fixture(scope="module")
def python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(with_pip=True).create(folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    (wheel,) = dist.glob("*.whl")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    _run(python, *install, folder=folder)
    site = _run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder
    )
    # After the environment's own packages; editable installs in these folders do not count.
    seen = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    Path(site.strip(), "present.pth").write_text("\n".join(seen), encoding="utf-8")
    return python


def test_the_wheel_is_what_is_imported(python: Path, tmp_path: Path):
    code = "import tracekit; print(tracekit.__file__, tracekit.__version__)"
    file, version = _run(python, "-c", code, folder=tmp_path).split()
    assert Path(file).is_relative_to(python.parent.parent)
    code = "from importlib.metadata import version; print(version('tracekit-lm'))"
    assert version == _run(python, "-c", code, folder=tmp_path).strip() == tracekit.__version__


@pytest.mark.soak
def test_the_demo_runs(python: Path, tmp_path: Path):
    program = python.parent / "tracekit"
    shown = _run(program, "demo", "--quiet", "--output", tmp_path / "demo", folder=tmp_path)
    assert "L1H4 alone" in " ".join(shown.split())
    page = (tmp_path / "demo/index.html").read_text(encoding="utf-8")
    assert "L1H4 alone" in page
    assert "<script src=" not in page


@pytest.mark.soak
def test_the_explorer_and_the_data_files_are_there(python: Path, tmp_path: Path):
    code = """
import tracekit as tk

tracer = tk.Tracer(
    "demo", tk.load_dataset("demo-facts", tk.load_model("demo"))[:8], metric="probability-drop"
)
tracer.explore([tk.Component("attention-patterns", 1, 4)]).save("explore.html")
tk.report(tracer.run("attribution", budget=2), "report.html")
print(len(tracer.registry))
"""
    assert _run(python, "-c", code, folder=tmp_path).strip() == "32"
    page = (tmp_path / "explore.html").read_text(encoding="utf-8")
    scripts = (file.read_text(encoding="utf-8") for file in ROOT.glob("tracekit/explore/*.js"))
    functions = re.findall(r"^(?:async )?function (\w+)", "\n".join(scripts), re.MULTILINE)
    assert len(functions) > 50
    assert all(name in page for name in functions)


def test_the_archives_pass_the_checks_of_the_index(dist: Path):
    pytest.importorskip("twine")
    (source,) = dist.glob("*.tar.gz")
    _run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir(), folder=dist)
    with tarfile.open(source) as archive:
        names = {Path(*Path(name).parts[1:]).as_posix() for name in archive.getnames()}
    assert {"README.md", "LICENSE", "docs/conf.py", "tests/test_wheel.py"} <= names
    assert not [name for name in names if name.startswith(("docs/notebooks/", "site/"))]


def test_the_wheel_has_the_package_alone(dist: Path):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in folders if not name.endswith(".dist-info")} == {"tracekit"}


def test_the_description_has_no_link_into_a_checkout(dist: Path):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(name).decode()
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    assert len(targets) > 1
    assert not [target for target in targets if not target.startswith("https://")]
    assert "gallery" in text
