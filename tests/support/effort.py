"""The number of repetitions of a test: a few in `make test`, all in `make test-long`.

A test that repeats something costly (inputs of a fuzzer, kills, seeds) is marked ``thorough`` and takes its number from
:func:`few_or_all`. Both runs execute the same checks; the long one repeats them more often.
"""

import os

VARIABLE = "FEDPING_TESTS"
"""Environment variable of the effort: ``all`` runs everything in full; set by `make test-long` (``pytest -m long``)."""


def in_full() -> bool:
    """Return whether tests marked ``thorough`` run in full."""
    return os.environ.get(VARIABLE) == "all"


def few_or_all(few: int, everything: int) -> int:
    """Return the number of repetitions in this run."""
    return everything if in_full() else few
