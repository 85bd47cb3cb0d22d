"""Studies that were done once: each module is a command, and `README.md` here has what it found.

`python -m tools.studies.NAME --help` says what a study measures. Unlike `tools.benchmarks`, nobody
needs to run them again after a change.
"""
