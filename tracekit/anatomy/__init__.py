"""Why a set acts together: what each member brings, alone, last, and on average.

`set_game.py` is the value of every subset, `shapley.py` shares the effect of a set out among its
members, `replacements.py` says which members can be left out and which components outside the set
would replace a member. `explanation.py` puts them together, measures how pairs of members interact
in three contexts, and is what `Tracer.explain` gives. `paths.py` says through whom members act on
the metric (`Tracer.paths`), `attention.py` what heads look at (`Tracer.attention`), `minimality.py`
what faithfulness loses without each member (`Tracer.minimality`), `controls.py` what random sets of
the same form do (`Tracer.controls`). `side_effects.py` says what the set does to other data
(`Tracer.side_effects`).
"""

from tracekit._util.stubs import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
