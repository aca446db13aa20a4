"""How much of the same a test does: a few in `make test`, all in `make test-long`.

A test that repeats something costly (inputs of a fuzzer, kills, seeds) is marked ``thorough`` and takes its number from
:func:`few_or_all`. Both runs check the same with the same code; the long one does it oftener.
"""

import os

VARIABLE = "FEDPING_TESTS"
"""Set to ``all`` to do everything in full; `make test-long`, which is ``pytest -m long``, sets it by itself."""


def in_full() -> bool:
    """Whether tests marked ``thorough`` do all of what they can do."""
    return os.environ.get(VARIABLE) == "all"


def few_or_all(few: int, everything: int) -> int:
    """Return how often this run repeats something."""
    return everything if in_full() else few
