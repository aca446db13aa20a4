"""What is left out where a round would need more memory than it may: the loudest clients' later pings, then clients.

Anybody can post any number of pings, of one client or of many. So what is kept of a shard is bounded, and the round
goes on with a part that does not depend on engine, partitioning or batches: it is chosen by the clients' ids and the
order of rows alone. *Levels* say which part. At level 0 all rows are kept; then the first 1,024 of each client, the
first 512, and so on down to one; then the clients of one half by lot, of a quarter, ... Each level keeps a part of what
the one before keeps, and the first at which the rows fit is taken. An honest client has few pings, and loses none while
others have many.

Neither the levels nor the lots may change: versions that left pings out are recomputed by them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from server_jobs.round.screening import client_groups

FIRST = 1024
"""How many rows of a client are kept at level 1."""

ONE = FIRST.bit_length()
"""The level at which one row of a client is kept; from the next one on only some clients are."""


def thinned(clients: NDArray[np.uint64], most: int, salt: int, level: int = 0) -> tuple[int, NDArray[np.bool_]]:
    """Return the first level, from ``level`` on, at which at most ``most`` rows are kept, and which are, shape (k,).

    Args:
        clients: whose the rows are, shape (k, 2), in order. May be rows that a lower level has kept, with later ones.
        most: at least 1.
        salt: decides the lots, so that in every round other clients are left out.
        level: to begin with.
    """
    ranks, lots = _ranks(clients), _lots(clients, salt)
    while True:
        kept = np.asarray(ranks < (FIRST >> (min(level, ONE) - 1) if level else len(clients)))
        if level > ONE:
            kept &= lots >> np.uint64(max(0, 64 - (level - ONE))) == 0
        if int(kept.sum()) <= most:
            return level, kept
        level += 1


def _ranks(clients: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return how many earlier rows are of the same client."""
    order, starts = client_groups(clients)
    counts = np.diff(starts, append=len(order))
    number = np.empty(len(order), np.int64)
    number[order] = np.repeat(np.arange(len(starts)), counts)
    order = np.argsort(number, kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - np.repeat(starts, counts)
    return ranks


def _lots(clients: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """Return a number of each client that says nothing of its id (the finalizer of SplitMix64, over both words)."""
    lots = _mixed(clients[:, 0] + np.uint64((salt * 0x9E3779B97F4A7C15) % 2**64))
    return _mixed(lots ^ clients[:, 1])


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
