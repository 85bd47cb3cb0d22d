"""Speed and memory, as ratios to what the hardware must do. Not part of the test run.

`python -m tools.benchmarks` prints every figure of `README.md` here; `--quick` takes two
minutes, appends a line to `speed.jsonl`, and `--check` fails on gross loss.
"""
