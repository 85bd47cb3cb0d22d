"""Commands for people who work on the package, not shipped with it: `python -m tools.NAME --help`.

`architectures`, `demo_model` and `golden` make parts of the package and of its tests. `benchmarks`,
`fuzz`, `statistics` and `validate` measure and try it. `studies` has what was measured once.
`planted.py` builds models whose components interact in a known way.
"""
