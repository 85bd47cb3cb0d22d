"""Prints the table of which `docs/statistics.md` has some rows."""

import sys

from tests.statistics.simulated import table

for line in table():
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
