"""`.ci/house.py` sees each way in which the package can outgrow its house."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "house", Path(__file__).resolve().parent.parent / ".ci/house.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
house = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(house)

STATEMENT = "    x = 1\n"


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({f"room_{i}.py": "" for i in range(20)}, "21 rooms, at most 20"),
        ({"a/b.py": "\n" * 701}, "701 lines in tracekit.a.b, at most 700"),
        ({f"a/b{i}.py": "\n" * 700 for i in range(61)}, f"42,700 lines, at most {house.LINES:,}"),
        ({"a.py": f"class A:\n{STATEMENT * 400}"}, "401 lines in tracekit.a.A, at most 400"),
        (
            {"a.py": "class TraceResult:\n" + "".join(f"    f{i}: int\n" for i in range(21))},
            "21 fields of TraceResult, at most 20",
        ),
        ({"a.py": "class Tracer(object):\n    x = 1\n"}, "Tracer inherits"),
        (
            {f"a{i}.py": "".join(f"import tracekit.a{j}\n" for j in range(i)) for i in range(16)},
            "120 arrows between rooms, at most 110",
        ),
        (
            {"a.py": f"def f():\n    '''Doc.'''\n{STATEMENT * 81}"},
            "81 lines in tracekit.a.f, at most 80",
        ),
        ({"a.js": "\n" * 3000}, "3,000 lines of JavaScript, at most"),
        ({"a.js": "class A {\n" + "  x;\n" * 149 + "}\n"}, "151 lines in a.js A, at most 150"),
        (
            {"a.js": "async function f(a) {\n" + "  a();\n" * 79 + "}\nf();\n"},
            "81 lines in a.js f, at most 80",
        ),
        (
            {"__init__.pyi": "from tracekit.a import " + ", ".join(f"n{i}" for i in range(31))},
            "31 names at the top, at most 30",
        ),
        (
            {
                "a.py": "def f():\n    from tracekit import b\n",
                "b.py": "import tracekit.c.d\n",
                "c/d.py": "from tracekit.a import f\n",
            },
            "a circle of files: ",
        ),
        (
            {
                "a.py": "from tracekit.b import B\n",
                "b.py": "from typing import TYPE_CHECKING\n"
                "if TYPE_CHECKING:\n    from tracekit.a import A\n",
            },
            "a circle of files: ",
        ),
    ],
)
def test_house_check_reports_the_fault(tmp_path: Path, files: dict[str, str], fault: str):
    package = _write(tmp_path, files)
    assert any(line.startswith(fault) for line in house.faults(package))


def test_house_check_passes_a_package_within_all_limits(tmp_path: Path):
    files = {
        "__init__.py": "def __getattr__(name):\n    return name\n",
        "a.py": f"from tracekit.b import B\ndef f():\n    '''Doc.'''\n{STATEMENT * 80}",
        "b.py": "class B:\n    pass\n",
    }
    package = _write(tmp_path, files)
    assert house.faults(package) == []
    command = [sys.executable, house.__file__, str(package)]
    assert subprocess.run(command, check=False).returncode == 0


def _write(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "tracekit"
    for name, text in ({"__init__.py": ""} | files).items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return package
