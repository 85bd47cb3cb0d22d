"""Measures what sets do.

`question.py` binds a setup to a model and examples; every other module here is given such a
`Question`. `evaluation.py` measures the effects and the faithfulness of sets, `single_effects.py`,
`pair_effects.py` and `strongest_pairs.py` those of components and of pairs, `front_statistics.py`
what a Pareto front is compared with. `tracekit.results` stores and draws what these return.

The other modules explain a set, and have the tables that they return beside what measures them:
`explanation.py` says why a set acts together, from the effect of every subset (`set_game.py`),
Shapley values (`shapley.py`) and replacements of members (`replacements.py`); `paths.py` says
through whom members act on the metric, `attention.py` what heads look at, `minimality.py` what
faithfulness loses without each member, `controls.py` what random sets of the same form do, and
`side_effects.py` what the set does to other data.
"""

from tracekit._util.stubs import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
