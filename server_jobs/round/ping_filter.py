"""The filter that decides which of a round's pings count, and with what weight.

It works on one shard, which has all pings of its clients. A round keeps a limited number of a shard's rows, because
anyone can send any number of pings, as one client or as many. If there are more, it keeps a part that depends only on
the clients' ids and the order of rows, not on engine, partitioning or batches (:func:`thinned`). *Levels* determine
the part. Level 0 keeps all rows. The next levels keep the first 1,024 rows of each client, the first 512, and so on
down to one row. Further levels keep half of the clients by lot, a quarter, and so on. Each level keeps a part of the
rows of the level before; the first level at which the rows fit is used. An honest client has few pings, and loses
none while other clients have many.

Lots are drawn by a keyed hash of the client id, because an attacker chooses ids, and must not be able to choose lots.

Levels and lots must never change, because versions that left out pings are recomputed with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.model_store.version import InputFile
from fedping.protocol.enrolment import Assignment
from fedping.protocol.pipeline import Pipeline, Staleness
from fedping.server_jobs.optimize.transformation import Vector
from fedping.server_jobs.round.ping_file import MISSING, UNKNOWN, Rows
from fedping.server_jobs.round.plan import Rules, StageSide

REASONS = (
    "used",
    "duplicate",
    "wrong_version",
    "bad_loss",
    "other_arm",
    "no_example",
    "no_update",
    "bad_update",
    "over_capacity",
    "not_enrolled",
    "beyond_limits",
    "not_first",
    "not_sampled",
)
"""The possible outcomes of a ping. New outcomes are appended, because shards count by position."""

RARE = frozenset(REASONS[8:])
"""Outcomes that are only reported if they occurred; older versions don't have them."""

USED, DUPLICATE, WRONG_VERSION, BAD_LOSS, OTHER_ARM, NO_EXAMPLE, NO_UPDATE, BAD_UPDATE, *_RARE = range(len(REASONS))
OVER_CAPACITY, NOT_ENROLLED, BEYOND_LIMITS, NOT_FIRST, NOT_SAMPLED = _RARE

UNTOLD = (DUPLICATE, WRONG_VERSION, BAD_LOSS, NOT_ENROLLED, BEYOND_LIMITS)
"""Outcomes of pings that are left out of their arm's figures."""

_ID = np.dtype("V16")
"""NumPy type of a document id as one value."""

DONE = -1
"""Outcome of a ping that was counted in an earlier round."""


class Clients(NamedTuple):
    """The clients of k rows: each row's client as a number from 0, shape (k,), and one row of each client."""

    of: NDArray[np.int64]
    row: NDArray[np.intp]


def clients_of(ids: NDArray[np.uint64]) -> Clients:
    """Return the clients of rows, given the rows' client ids, shape (k, 2)."""
    order, starts = client_groups(ids)
    of = np.empty(len(ids), np.int64)
    of[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    return Clients(of, order[starts])


def reasons(rows: Rows, clients: Clients, rules: Rules) -> NDArray[np.int8]:
    """Return the outcome of each ping, as an index into :data:`REASONS` or DONE, shape (k,).

    A ping has the first outcome that applies, in this order:

    - ``duplicate``: an earlier row has the same document id.
    - ``wrong_version``: the version in the row differs from that of its folder.
    - ``not_enrolled``: the client's id doesn't belong to the arm, or to the side of the stage.
    - ``bad_loss``: the loss isn't a finite number.
    - ``beyond_limits``: a loss or a rank is outside the study's limits.
    - ``other_arm``: the arm doesn't train this line.
    - ``no_example``: the interaction ended without a choice, or the client had no data; its zeros would dilute the mean
      and the loss.
    - ``no_update``: the ping has no update.
    - ``bad_update``: the update's encoding isn't the line's; payloads are checked when they are read.
    - ``not_sampled``: the client doesn't participate in the version.

    ``over_capacity`` is assigned later, to rows that don't fit (:func:`thinned`). Private lines have other rules.
    """
    if rules.line.privacy is not None:
        return _private_reasons(rows, clients, rules)
    # arm is an index into submits, or UNKNOWN, -1, which selects the False at the end
    submits = np.array([*rules.submits, False])
    outcomes = np.full(len(rows.counted), USED, dtype=np.int8)
    outcomes[rows.codec == UNKNOWN] = BAD_UPDATE
    outcomes[rows.codec == MISSING] = NO_UPDATE
    outcomes[rules.document.examples(rows.counted) <= 0] = NO_EXAMPLE
    outcomes[~submits[rows.arm]] = OTHER_ARM
    if rules.limits is not None:
        ranks = rows.counted - rules.document.top if rules.document.ranked else None
        outcomes[rules.limits.beyond(rows.loss, ranks)] = BEYOND_LIMITS
    outcomes[~np.isfinite(rows.loss)] = BAD_LOSS
    if rules.dealt is not None:
        outcomes[_strangers(rows, clients, rules.arms, rules.dealt)] = NOT_ENROLLED
    if rules.side is not None:
        outcomes[_elsewhere(rows, clients, rules.side)] = NOT_ENROLLED
    # in 64 bits: a version has 31 bits and an age 15; neither type has room for their sum
    outcomes[rows.version + rows.age.astype(np.int64) != rules.iteration] = WRONG_VERSION
    outcomes[_repeated(rows.document)] = DUPLICATE
    outcomes[rows.done] = DONE
    if rules.turns is not None:
        mine = np.flatnonzero(outcomes == USED)
        ids = np.ascontiguousarray(rows.client[mine]).view(np.uint8).reshape(-1, 16)
        outcomes[mine[~rules.turns.of(ids, rows.version[mine])]] = NOT_SAMPLED
    return outcomes


def _private_reasons(rows: Rows, clients: Clients, rules: Rules) -> NDArray[np.int8]:
    """Return the outcome of each ping of a private line, as :func:`reasons` does.

    A client's pings must affect only its own outcomes; otherwise an additional client would change more than the
    guarantee covers. So only each client's ping with the smallest document id counts, even if it is unusable,
    independent of the files and their order. Its other pings are ``not_first``. A ping never counts as a duplicate of
    another client's ping. ``not_sampled`` means that the client isn't in the sample, or the document isn't listed in
    the rules. Arms that don't submit updates still report their figures.
    """
    outcomes = np.full(len(rows.client), USED, dtype=np.int8)
    outcomes[rows.codec == UNKNOWN] = BAD_UPDATE
    outcomes[rows.codec == MISSING] = NO_UPDATE
    outcomes[rows.arm == UNKNOWN] = OTHER_ARM
    outcomes[rows.version != rules.iteration] = WRONG_VERSION
    outcomes[_not_first(rows.document, clients)] = NOT_FIRST
    if rules.coins is not None:
        mine = np.flatnonzero(outcomes == USED)
        outcomes[mine[~rules.coins.counting(rows.client[mine])]] = NOT_SAMPLED
    if rules.dealt is not None:
        outcomes[(outcomes == USED) & _strangers(rows, clients, rules.arms, rules.dealt)] = NOT_ENROLLED
    if rules.among is not None:
        listed = np.frombuffer(rules.among, _ID)
        outcomes[(outcomes == USED) & ~np.isin(np.ascontiguousarray(rows.document).view(_ID).ravel(), listed)] = (
            NOT_SAMPLED
        )
    return outcomes


def _not_first(documents: NDArray[np.uint64], clients: Clients) -> NDArray[np.bool_]:
    """Return a mask of all rows except each client's first row with its smallest document id."""
    later = np.zeros(len(documents), np.bool_)
    some = np.flatnonzero(np.bincount(clients.of)[clients.of] > 1) if len(documents) else np.zeros(0, np.intp)
    high, low = documents[some].byteswap().T  # ids are bytes, the first of which weighs most
    order = some[np.lexsort((low, high, clients.of[some]))]  # stable
    later[order[1:]] = clients.of[order[1:]] == clients.of[order[:-1]]
    return later


def _strangers(rows: Rows, clients: Clients, arms: tuple[str, ...], assignment: Assignment) -> NDArray[np.bool_]:
    """Return a mask of rows whose arm differs from the arm assigned to their client; one hash per client."""
    named = np.array([*(assignment.arms.index(arm) for arm in arms), -1], np.int16)
    strange: NDArray[np.bool_] = named[rows.arm] != assignment.places(_ids(rows, clients))[clients.of]
    return strange & (rows.arm >= 0) & ~rows.done


def _elsewhere(rows: Rows, clients: Clients, side: StageSide) -> NDArray[np.bool_]:
    """Return a mask of the line's rows from clients on the other side of a stage."""
    elsewhere: NDArray[np.bool_] = ~side.of(_ids(rows, clients))[clients.of]
    return elsewhere & (rows.arm >= 0) & ~rows.done


def _ids(rows: Rows, clients: Clients) -> NDArray[np.uint8]:
    """Return the id of each client, shape (clients, 16)."""
    return np.ascontiguousarray(rows.client[clients.row]).view(np.uint8).reshape(-1, 16)


def vote_weights(
    rows: Rows, clients: Clients, outcomes: NDArray[np.int8], rules: Rules
) -> tuple[Vector, NDArray[np.int64], NDArray[np.int64]]:
    """Return each ping's weight, its client's number of used pings, and this number for each client.

    The first two have shape (k,), and are 0 for unused pings.
    """
    used = np.flatnonzero(outcomes == USED)
    pings, counts = pings_a_client(clients, used)
    weights = np.zeros(len(outcomes))
    examples = examples_of(rows.counted[used], rules)
    weights[used] = votes_of(rules.line.pipeline, pings=pings, examples=examples, ages=rows.age[used])
    of_client = np.zeros(len(outcomes), np.int64)
    of_client[used] = pings
    return weights, of_client, counts


def examples_of(counted: NDArray[np.int32], rules: Rules) -> NDArray[np.integer]:
    """Return the numbers of examples for which pings count, shape (k,): their claims, up to the study's limit."""
    examples: NDArray[np.integer] = rules.document.examples(counted)
    return (
        examples
        if rules.limits is None or rules.limits.examples is None
        else np.minimum(examples, rules.limits.examples)
    )


def most_examples(rules: Rules) -> int | None:
    """Return the maximum vote of a ping if votes are examples; None without a limit."""
    votes = rules.line.pipeline.weighting == "examples" and rules.limits is not None
    return rules.limits.examples if votes and rules.limits is not None else None


def capped_clients(rows: Rows, clients: Clients, outcomes: NDArray[np.int8], rules: Rules) -> int:
    """Return the number of clients with a used ping whose claimed examples exceed the limit."""
    most = most_examples(rules)
    if most is None:
        return 0
    more = (outcomes == USED) & (rules.document.examples(rows.counted) > most)
    return len(np.unique(clients.of[more]))


def pings_a_client(clients: Clients, some: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each of ``some`` rows, its client's number of these rows, and this number for each client."""
    of = clients.of[some]
    counts = np.bincount(of, minlength=len(clients.row))
    return counts[of], counts


def votes_of(
    pipeline: Pipeline, *, pings: NDArray[np.integer], examples: NDArray[np.integer], ages: NDArray[np.integer]
) -> Vector:
    """Return the weight of each used ping, shape (k,).

    If pings vote, the weight is 1; if clients vote, it is 1 / n, where n is the client's number of used pings; if
    examples vote, it is the ping's number of examples. A client has at most ``most_votes`` votes in total. If
    staleness applies to votes, a vote of an older version is reduced by its age.

    Args:
        pipeline: the line's pipeline.
        pings: number of used pings of the ping's client in the round, shape (k,).
        examples: number of examples behind the ping's update, shape (k,), each at least 1.
        ages: age in versions of the weights at which the update was computed, shape (k,).
    """
    match pipeline.weighting:
        case "client":
            votes = 1.0 / pings
        case "ping":
            votes = np.ones(len(pings))
        case "examples":
            votes = examples.astype(np.float64)
    if pipeline.most_votes is not None:
        votes = np.minimum(votes, pipeline.most_votes / np.maximum(pings, 1))
    staleness = pipeline.staleness
    return votes if staleness is None or staleness.on == "step" else votes * age_weights(staleness)[ages]


def step_weights(pipeline: Pipeline, ages: NDArray[np.integer]) -> Vector | None:
    """Return the factor of each update for its age, shape (k,); None if ages don't matter.

    Args:
        pipeline: the line's pipeline.
        ages: as in :func:`votes_of`.
    """
    staleness = pipeline.staleness
    return age_weights(staleness)[ages] if staleness is not None and staleness.on == "step" else None


def age_weights(staleness: Staleness) -> Vector:
    """Return the weights of votes or steps of age 0, 1, ..., shape (most + 1,)."""
    ages = np.arange(staleness.most + 1, dtype=np.float64)
    match staleness.weight:
        case "1/sqrt(1+a)":
            return 1.0 / np.sqrt(1.0 + ages)
        case "1/(1+a)":
            return 1.0 / (1.0 + ages)
        case "1":
            return np.ones_like(ages)


def _repeated(ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of rows whose id occurs in an earlier row.

    Nearly all ids occur once, and sorting numbers is faster than an argsort. So repeated words are found first, and
    only rows that may contain a repeated word, according to some of its bits, are grouped.
    """
    key = ids[:, 0] ^ ids[:, 1]
    ordered = np.sort(key)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    size = 1 << min(22, (16 * len(twice)).bit_length())
    mask = np.uint64(size - 1)
    marked = np.zeros(size, dtype=bool)
    marked[twice & mask] = True
    some = np.flatnonzero(marked[key & mask])
    order, starts = client_groups(ids[some])
    repeated = np.zeros(len(ids), dtype=bool)
    repeated[some] = True
    if len(some):
        repeated[some[np.minimum.reduceat(order, starts)]] = False
    return repeated


def client_groups(ids: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Group equal ids of shape (k, 2): return an order in which equal ids are adjacent, and the start of each group.

    Ids are sorted by one of their words, or by both in the rare case that two different ids share that word. The
    groups are exact in both cases.
    """
    key = ids[:, 0] ^ ids[:, 1]
    order = np.argsort(key)
    same = _as_before(key[order])
    ties = np.flatnonzero(same)
    first = ids[:, 0]  # where the sorting key is equal, the second words differ if and only if these do
    if (first[order[ties]] != first[order[ties - 1]]).any():
        order = np.lexsort((ids[:, 1], ids[:, 0]))
        same = _as_before(ids[order, 0]) & _as_before(ids[order, 1])
    return order, np.flatnonzero(~same)


def _as_before(values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of the values that equal the previous one; False for the first."""
    same = np.zeros(len(values), dtype=bool)
    np.equal(values[1:], values[:-1], out=same[1:])
    return same


FIRST = 1024
"""Maximum rows per client at level 1."""

ONE = FIRST.bit_length()
"""Level with one row per client. Higher levels keep only some clients."""

LAST = ONE + 64 + 1
"""The last level, after all bits of a lot: it keeps as many of the smallest lots as fit."""

_AT_ONCE = 2**16
"""Maximum number of ids that are Python objects at the same time."""


def key_of_lots(parent_digest: str, inputs: Iterable[InputFile]) -> bytes:
    """Return the key of a round's random choices, 32 bytes that clients can't know before their pings have landed.

    A recomputation results in the same key, because all its inputs are in the lineage. The parent version's digest
    depends on its weights, state and lineage, which clients don't know. That digest isn't enough, because the digest
    of version 0 depends only on the study and the time. Files get random names when they land, and their digests
    depend on the pings of all other clients.

    Args:
        parent_digest: digest of the version from which the round starts.
        inputs: the files that the round reads, in the order of the lineage.
    """
    every = [parent_digest, *([file.path, file.digest] for file in inputs)]
    return hashlib.sha256(msgspec.json.encode(every)).digest()


def thinned(clients: NDArray[np.uint64], most: int, key: bytes, level: int = 0) -> tuple[int, NDArray[np.bool_]]:
    """Return the first level, from ``level`` on, that keeps at most ``most`` rows, and their mask, shape (k,).

    Args:
        clients: the client id of each row, shape (k, 2), in order; these may be rows kept by a lower level, followed by
            new rows.
        most: maximum number of rows, at least 1.
        key: determines the lots (:func:`key_of_lots`).
        level: the first level to try.
    """
    ranks = _ranks(clients)
    for at in range(level, ONE + 1):
        kept = np.asarray(ranks < (FIRST >> (at - 1) if at else len(clients)))
        if int(kept.sum()) <= most:
            return at, kept
    firsts = np.flatnonzero(ranks == 0)
    lots = _lots(clients[firsts], key)
    for at in range(max(level, ONE + 1), LAST):
        chosen = lots >> np.uint64(64 - (at - ONE)) == 0
        if int(chosen.sum()) <= most:
            return at, _mask(firsts[chosen], len(clients))
    order = np.lexsort((clients[firsts, 1], clients[firsts, 0], lots))
    return LAST, _mask(firsts[order[:most]], len(clients))


def _mask(where: NDArray[np.intp], k: int) -> NDArray[np.bool_]:
    mask = np.zeros(k, np.bool_)
    mask[where] = True
    return mask


def _ranks(clients: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return, for each row, the number of earlier rows of the same client."""
    order, starts = client_groups(clients)
    counts = np.diff(starts, append=len(order))
    number = np.empty(len(order), np.int64)
    number[order] = np.repeat(np.arange(len(starts)), counts)
    order = np.argsort(number, kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - np.repeat(starts, counts)
    return ranks


def _lots(clients: NDArray[np.uint64], key: bytes) -> NDArray[np.uint64]:
    """Return a number for each client that can't be computed from its id without the key."""
    ids = np.ascontiguousarray(clients, "<u8").view("V16").ravel()
    lots = np.empty(len(ids), np.uint64)
    for low in range(0, len(ids), _AT_ONCE):
        some = ids[low : low + _AT_ONCE].tolist()
        digests = b"".join(hashlib.blake2b(client, digest_size=8, key=key).digest() for client in some)
        lots[low : low + len(some)] = np.frombuffer(digests, "<u8")
    return lots
