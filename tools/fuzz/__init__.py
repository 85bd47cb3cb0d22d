"""Random inputs over the whole public surface; `properties.py` says what must hold.

`python -m tools.fuzz` tries them for an hour, half of it with the seed 0 and half with a fresh one
that a failure names; `--minutes` sets another time, `--seed` another fresh seed. `pytest -m slow
tests/tools/test_fuzz.py` takes about two minutes and always the same inputs.
"""

import os

# As in tests: a name that a random input has is not looked for on the hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
