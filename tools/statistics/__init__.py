"""Simulations of intervals and p values: `python -m tools.statistics` prints their table."""
