"""Trains the embedded model and measures how well it shows each planted behaviour.

`python -m tools.demo_model.train --output tracekit/demo/model --seed 0` trains it from scratch,
and `python -m tools.demo_model.examples` makes the rows of its data sets.
"""
