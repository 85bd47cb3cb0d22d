"""Prints the table of `docs/statistics.md`."""

import sys

from tests.statistics.simulated import table

for line in table():
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
