"""The public names: one list for type checkers and for what is imported, and what modules have."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

import tracekit as tk
from tracekit import errors, metrics

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", sorted({*tk.__all__} - {"__version__"}))
def test_every_public_name_is_there(name):
    assert inspect.getdoc(getattr(tk, name))


def test_all_names_and_no_others():
    assert dir(tk) == sorted(tk.__all__)
    assert {"Tracer", "errors", "__version__"} < set(tk.__all__)
    with pytest.raises(AttributeError, match="module 'tracekit' has no attribute 'Frobnicate'"):
        _ = tk.Frobnicate


@pytest.mark.parametrize("package", ["data", "engine", "models", "results", "search"])
def test_packages_export_what_they_list(package):
    module = import_module(f"tracekit.{package}")
    assert all(hasattr(module, name) for name in module.__all__)


def test_names_that_are_completed_are_those_that_there_are():
    from tracekit._util.names import KindName
    from tracekit.components.kinds import KINDS
    from tracekit.engine import sources
    from tracekit.figures.style import STYLES
    from tracekit.metrics import METRICS, MetricName
    from tracekit.search import METHODS, MethodName

    assert get_args(MethodName) == tuple(METHODS)
    assert get_args(MetricName) == tuple(METRICS)
    assert get_args(KindName) == tuple(KINDS)
    assert {*METHODS} <= {*STYLES}
    concepts, methods = (
        (ROOT / f"docs/{page}.md").read_text(encoding="utf-8") for page in ("concepts", "methods")
    )
    for told, names in [
        (tk.Tracer.run.__doc__, METHODS),
        (metrics.__doc__, METRICS),
        (sources.__doc__, sources.SOURCES),
        (concepts, {**METRICS, **KINDS}),
        (methods, METHODS),
    ]:
        assert not [name for name in names if name not in told]
    for function, argument, names in [
        (tk.Tracer.run, "method", MethodName),
        (tk.Tracer.__init__, "metric", MetricName),
        (tk.Tracer.__init__, "components", KindName),
    ]:
        assert names in get_args(inspect.get_annotations(function, eval_str=True)[argument])


@pytest.mark.parametrize("name", ["cli", "demo", "explore", "reports", "os"])
def test_modules_that_are_not_of_the_api_are_no_attributes(name):
    assert tk.__getattr__("models").__name__ == "tracekit.models"
    with pytest.raises(AttributeError, match=f"module 'tracekit' has no attribute '{name}'"):
        tk.__getattr__(name)


def test_the_import_is_light():
    code = "import sys, tracekit; print(sorted({'torch', 'plotly', 'pandas'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_package_is_typed():
    assert (Path(tk.__file__).parent / "py.typed").is_file()


def test_every_error_is_a_tracekit_error_and_a_builtin_one():
    """So that both `except TracekitError` and `except ValueError` work."""
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, Exception)]
    builtin = {c for c in classes if c.__module__ == errors.__name__} - {errors.TracekitError}
    for error in builtin:
        if not issubclass(error, Warning):
            assert issubclass(error, errors.TracekitError)
            assert any(base.__module__ == "builtins" for base in error.__mro__[1:-3]), error
