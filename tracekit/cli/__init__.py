"""The command line, one file per command or a few. The only package that prints.

Commands import heavy libraries when they run; `tracekit --help` needs none of them.
"""

# The order of the imports is that of `tracekit --help`.
from tracekit.cli import (  # noqa: F401, I001
    demo,
    trace,
    explain,
    show,
    certify,
    report,
    data,
    models,
    sweep,
)
from tracekit.cli.app import app, main

__all__ = ["app", "main"]
