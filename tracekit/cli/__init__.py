"""The command line, a file for the commands on one thing. The only package that prints.

Commands import heavy libraries when they run; `tracekit --help` needs none of them.
"""

# The order of the imports is that of `tracekit --help`.
from tracekit.cli import demo, trace, saved_runs, data, sweep  # noqa: F401, I001
from tracekit.cli.app import app, main

__all__ = ["app", "main"]
