"""Prints the table of which `docs/statistics.md` has some rows."""

import typer

from tools.statistics.simulated import table


def main() -> None:
    """Simulates the coverage of intervals and the errors and power of p values, row by row."""
    for line in table():
        typer.echo(line)


if __name__ == "__main__":
    typer.run(main)
