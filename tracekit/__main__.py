"""`python -m tracekit`."""

from tracekit.cli import main

main()
