"""`python -m tracekit`: the command line."""

from tracekit.cli import main

main()
