"""What is left out where a round would need more memory than it may: the loudest clients' later pings, then clients.

Anybody can post any number of pings, of one client or of many. So what is kept of a shard is bounded, and the round
goes on with a part that does not depend on engine, partitioning or batches: it is chosen by the clients' ids and the
order of rows alone. *Levels* say which part. At level 0 all rows are kept; then the first 1,024 of each client, the
first 512, and so on down to one; then the clients of one half by lot, of a quarter, ... Each level keeps a part of what
the one before keeps, and the first at which the rows fit is taken. An honest client has few pings, and loses none while
others have many.

Lots are drawn by a keyed hash of the client id. Whoever sends pings chooses ids, and must not be able to choose lots.

Neither the levels nor the lots may change: versions that left pings out are recomputed by them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.model_store.version import InputFile
from fedping.server_jobs.round.ping_filter import client_groups

FIRST = 1024
"""How many rows of a client are kept at level 1."""

ONE = FIRST.bit_length()
"""The level at which one row of a client is kept; from the next one on only some clients are."""

LAST = ONE + 64 + 1
"""The level after all bits of a lot: the smallest lots are kept, as many as there is room for."""

_AT_ONCE = 2**16
"""Ids that are Python objects at a time."""


def key_of_lots(parent_digest: str, inputs: Iterable[InputFile]) -> bytes:
    """Return the key of a round's lots, 32 bytes that nobody who sends pings can know before they have landed.

    A recomputation finds the same, since all of it is in the lineage. The digest of the parent version stands for its
    weights, state and lineage, which clients do not get. It is not enough: that of version 0 follows from the study and
    the time. The files are named at random when they land, and their digests stand for what everybody else has sent.

    Args:
        parent_digest: that of the version that the round is on.
        inputs: the files that the round is of, in the order of the lineage.
    """
    every = [parent_digest, *([file.path, file.digest] for file in inputs)]
    return hashlib.sha256(msgspec.json.encode(every)).digest()


def thinned(clients: NDArray[np.uint64], most: int, key: bytes, level: int = 0) -> tuple[int, NDArray[np.bool_]]:
    """Return the first level, from ``level`` on, at which at most ``most`` rows are kept, and which are, shape (k,).

    Args:
        clients: whose the rows are, shape (k, 2), in order. May be rows that a lower level has kept, with later ones.
        most: at least 1.
        key: decides the lots (:func:`key_of_lots`).
        level: to begin with.
    """
    ranks = _ranks(clients)
    for at in range(level, ONE + 1):
        kept = np.asarray(ranks < (FIRST >> (at - 1) if at else len(clients)))
        if int(kept.sum()) <= most:
            return at, kept
    firsts = np.flatnonzero(ranks == 0)
    lots = _lots(clients[firsts], key)
    for at in range(max(level, ONE + 1), LAST):
        drawn = lots >> np.uint64(64 - (at - ONE)) == 0
        if int(drawn.sum()) <= most:
            return at, _mask(firsts[drawn], len(clients))
    order = np.lexsort((clients[firsts, 1], clients[firsts, 0], lots))
    return LAST, _mask(firsts[order[:most]], len(clients))


def _mask(where: NDArray[np.intp], k: int) -> NDArray[np.bool_]:
    mask = np.zeros(k, np.bool_)
    mask[where] = True
    return mask


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


def _lots(clients: NDArray[np.uint64], key: bytes) -> NDArray[np.uint64]:
    """Return a number of each client, which nobody can tell from its id without the key."""
    ids = np.ascontiguousarray(clients, "<u8").view("V16").ravel()
    lots = np.empty(len(ids), np.uint64)
    for low in range(0, len(ids), _AT_ONCE):
        some = ids[low : low + _AT_ONCE].tolist()
        drawn = b"".join(hashlib.blake2b(client, digest_size=8, key=key).digest() for client in some)
        lots[low : low + len(some)] = np.frombuffer(drawn, "<u8")
    return lots
