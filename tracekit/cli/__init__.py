"""The command line. The only package that prints.

Heavy imports happen inside the commands, so that `tracekit --help` answers at once.
"""

from tracekit.cli import paper, show, trace
from tracekit.cli.app import app, main

__all__ = ["app", "main", "paper", "show", "trace"]
