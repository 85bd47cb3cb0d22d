"""Reruns one paper: its tables, figures and models, and published numbers beside ours.

`python -m paper` is the command; `reproduction.py` plans, runs and writes the experiments. It uses
only the public API of tracekit, and is not shipped with it.
"""
