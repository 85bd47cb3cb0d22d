"""Simulations of intervals and p values: `python -m tests.statistics` prints their table."""
