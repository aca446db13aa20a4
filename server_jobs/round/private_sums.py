"""Accumulators of private lines: exact sums of vectors by arm, and shares for two-server lines.

Vectors and shares are whole numbers, whose sum is the same in any order; the helper's shares are sorted by document
id. So every engine and partitioning gives the same bytes. Steps are computed only from released sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.encodings.private import layout_of
from fedping.protocol.errors import FedpingError
from fedping.protocol.links import SharedVector
from fedping.protocol.privacy import METRICS, bounded_vectors, frame_of
from fedping.protocol.sharing.exchange import DOCUMENT_BYTES, MOST_CLIENTS, AskedArm
from fedping.protocol.sharing.offer import OFFER_ID_BYTES
from fedping.protocol.sharing.shares import (
    PRIME,
    WORDS,
    Elements,
    Layout,
    Ring,
    Votes,
    bit_shares,
    numbers_from,
    split_public,
    words_of,
)
from fedping.protocol.study import Line
from fedping.server_jobs.optimize.transformation import Arrays, Vector
from fedping.server_jobs.round.accumulator import Accumulator, Finished, Updates, no_moments

Sums: TypeAlias = Mapping[int, NDArray[np.int64]]
"""Sums of the clients' vectors, shape (m + 3,), by the arm's number among the arms that follow the line.

The sums are exact, so they are never stored or shown. Arms without clients are left out.
"""


@dataclass(frozen=True, slots=True)
class Released:
    """The public input of a private line's step.

    Attributes:
        weights: the released sum of the arms that submit, without the metrics, shape (m,).
        sigma: the standard deviation of the sum's noise, in the same whole numbers; 0 without noise.
        clients: the divisor of the mean; a constant if the sum has noise.
    """

    weights: NDArray[np.int64]
    sigma: float
    clients: float


def private_sums(line: Line) -> Accumulator[Sums]:
    """Return the accumulator of a private line. Its ``finish`` gets :class:`Released`, never the exact sums.

    ``add`` takes vectors of shape (k, m + 3), limited to their bound. Each counts once; votes are ignored.
    """
    assert line.privacy is not None
    privacy, frame = line.privacy, frame_of(line.privacy, line.spec)
    zone = 0.0 if line.privacy.central is None else line.privacy.central.dead_zone

    def add(sums: Sums, vectors: Updates, votes: Vector, arms: NDArray[np.int16]) -> Sums:
        whole = bounded_vectors(privacy, frame, vectors)
        return merge(sums, {int(arm): whole[arms == arm].sum(axis=0) for arm in np.unique(arms)})

    def merge(a: Sums, b: Sums) -> Sums:
        return {**a, **{arm: each + a[arm] if arm in a else each for arm, each in b.items()}}

    def finish(total: object, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        if not isinstance(total, Released):
            _refuse(line)
        kept = np.where(np.abs(total.weights) < zone * total.sigma, 0, total.weights)
        return Finished(kept * frame.units / total.clients)

    return Accumulator(
        init=lambda line: {},
        add=add,
        merge=merge,
        finish=finish,
        moments=lambda total: no_moments(line.spec.m),
        asks=("arms",),
    )


def _refuse(line: Line) -> NoReturn:
    raise TypeError(f"a step of the private line '{line.name}' needs released sums, not exact ones")


Bytes: TypeAlias = NDArray[np.uint8]

MOST_BYTES = 2**29
"""Maximum bytes of sealed shares in a request, because the store and the helper treat a request as one document."""


class Summing(NamedTuple):
    """The method to sum the leader's shares.

    Attributes:
        ring: the ring of the sums.
        size: the length of a sum.
        numbers: converts k shares, shape (k, bytes), to numbers, shape (k, size).
        vector: returns the leader's part of the sum of vectors, shape (m + 3,), from a sum of shares and the number of
            clients.
    """

    ring: Ring
    size: int
    numbers: Callable[[Bytes], Elements]
    vector: Callable[[Elements, int], Elements]


def summing(line: Line) -> Summing:
    """Return the method to sum a line's leader shares."""
    votes = votes_of(line)
    if votes is None:
        return Summing(WORDS, line.spec.m + len(METRICS), words_of, lambda total, clients: total)
    return Summing(
        PRIME,
        votes.bits,
        lambda rows: bit_shares(votes, rows),
        lambda total, clients: numbers_from(votes, total, clients),
    )


def votes_of(line: Line) -> Votes | None:
    """Return the bit layout of the vectors about which clients send proofs; None if they don't send proofs."""
    link = link_of(line)
    return Votes(line.spec.m + len(METRICS), link.metric) if link.proofs else None


def link_of(line: Line) -> SharedVector:
    """Return the upload link of a two-server line."""
    [link] = line.upload
    assert isinstance(link, SharedVector)
    return link


class ArmShares(NamedTuple):
    """The shares of an arm's clients.

    Attributes:
        total: the sum of the leader's shares.
        clients: the number of clients.
        rows: blocks with one row per client: document id, offer id, sealed share; with proofs also the leader's share.
    """

    total: Elements
    clients: int
    rows: tuple[Bytes, ...]

    @property
    def ordered(self) -> Bytes:
        """The rows in the order of the document ids, shape (clients, bytes)."""
        rows = np.concatenate(self.rows)
        high, low = np.ascontiguousarray(rows[:, :DOCUMENT_BYTES]).view(">u8").T
        found: Bytes = rows[np.lexsort((low, high))]
        return found


Shares: TypeAlias = Mapping[int, ArmShares]
"""Shares by the arm's number among the arms that follow the line. Arms without clients are left out."""


def shared_sums(line: Line) -> Accumulator[Shares]:
    """Return the accumulator of a two-server line, whose step is that of any private line.

    ``add`` takes payloads as rows of bytes, shape (k, size), with their document ids. Each counts once; votes are
    ignored.

    Raises:
        FedpingError: there are more clients than a request may have.
    """
    proven = link_of(line).proofs
    of, parts = summing(line), layout_of(link_of(line), line.spec.m)
    most = most_clients(parts, proven)

    def add(shares: Shares, payloads: Bytes, votes: Vector, arms: NDArray[np.int16], documents: Bytes) -> Shares:
        offers, leaders, sealed = parts.parts(payloads)
        kept = [documents, offers, sealed, leaders] if proven else [documents, offers, sealed]
        numbers, rows = of.numbers(leaders), np.concatenate(kept, axis=1)
        each = ((int(arm), arms == arm) for arm in np.unique(arms))
        found = {arm: ArmShares(of.ring.total(numbers[at]), int(at.sum()), (rows[at],)) for arm, at in each}
        return merge(shares, found)

    def merge(a: Shares, b: Shares) -> Shares:
        both = {**a, **{arm: _both(of.ring, a[arm], each) if arm in a else each for arm, each in b.items()}}
        if sum(each.clients for each in both.values()) > most:
            raise FedpingError(
                f"more than {most:,} clients of line '{line.name}' have sent pings, the maximum of a request to the "
                "helper; let fewer clients take part, or run rounds more often. No request was sent."
            )
        return both

    plain: Accumulator[Any] = private_sums(line)
    return plain._replace(init=lambda line: {}, add=add, merge=merge, asks=("arms", "documents"))


def most_clients(parts: Layout, proven: bool) -> int:
    """Return the maximum number of clients in a request to the helper."""
    return min(MOST_CLIENTS, MOST_BYTES // (parts.size if proven else parts.sealed))


def _both(ring: Ring, a: ArmShares, b: ArmShares) -> ArmShares:
    return ArmShares(ring.plus(a.total, b.total), a.clients + b.clients, a.rows + b.rows)


def repeated_documents(shares: Shares) -> Bytes:
    """Return the document ids that several clients have sent, shape (n, 16).

    Pings with a repeated id don't count. Otherwise, an attacker that repeats a client's id could displace that
    client's ping.
    """
    every = [rows[:, :DOCUMENT_BYTES] for each in shares.values() for rows in each.rows]
    if not every:
        return np.zeros((0, DOCUMENT_BYTES), np.uint8)
    ids, counts = np.unique(as_ids(np.concatenate(every)), return_counts=True)
    return np.ascontiguousarray(ids[counts > 1]).view(np.uint8).reshape(-1, DOCUMENT_BYTES)


def without(line: Line, shares: Shares, others: Shares) -> Shares:
    """Return shares without some of their clients."""
    ring, found = summing(line).ring, {}
    for arm, each in shares.items():
        if arm not in others:
            found[arm] = each
        elif each.clients > others[arm].clients:
            out = as_ids(np.concatenate(others[arm].rows)[:, :DOCUMENT_BYTES])
            rows = tuple(some[~np.isin(as_ids(some[:, :DOCUMENT_BYTES]), out)] for some in each.rows)
            left = each.clients - others[arm].clients
            assert sum(map(len, rows)) == left
            found[arm] = ArmShares(ring.minus(each.total, others[arm].total), left, rows)
    return found


class Proofs(NamedTuple):
    """The leader's inputs for checking proofs.

    Attributes:
        verify_key: 32 bytes that clients don't know. They are the same for all requests on a version, because a proof
            checked with two keys would leak information.
        contexts: the context of the proofs by arm (`fedping.protocol.sharing.shares.context_of`).
    """

    verify_key: bytes
    contexts: Mapping[str, bytes]


def asked_arms(
    line: Line, arms: Sequence[str], shares: Shares, proofs: Proofs | None
) -> tuple[tuple[AskedArm, ...], dict[str, Elements]]:
    """Return the arms of a request to the helper, and the sums of the leader's shares of the same clients by arm.

    If clients send proofs, clients with a malformed share are left out. Only the helper can check whether the other
    proofs are valid, because it has the parts of both servers.
    """
    asked, sums, of, votes = [], {}, summing(line), votes_of(line)
    sealed_bytes = layout_of(link_of(line), line.spec.m).sealed
    for number, arm in enumerate(arms):
        rows, total = shares[number].ordered, shares[number].total
        public = prepared = rows[:, :0]
        if proofs is not None and votes is not None:
            public, prepared, fine = _prepared(votes, proofs, arm, rows)
            total = of.ring.minus(total, of.ring.total(of.numbers(_leaders(votes, rows[~fine]))))
            rows, public, prepared = rows[fine], public[fine], prepared[fine]
        start, end = DOCUMENT_BYTES + OFFER_ID_BYTES, DOCUMENT_BYTES + OFFER_ID_BYTES + sealed_bytes
        parts = {
            "documents": rows[:, :DOCUMENT_BYTES],
            "offers": rows[:, DOCUMENT_BYTES:start],
            "sealed": rows[:, start:end],
            "public": public,
            "prepared": prepared,
        }
        asked.append(AskedArm(arm=arm, **{name: part.tobytes() for name, part in parts.items()}))
        sums[arm] = total
    return tuple(asked), sums


def _prepared(votes: Votes, proofs: Proofs, arm: str, rows: Bytes) -> tuple[Bytes, Bytes, NDArray[np.bool_]]:
    """Return public shares of an arm's clients, the leader's prepared shares, and a mask of well-formed shares."""
    from fedping.protocol.proofs.prio3 import Side, prepare

    own, public = split_public(votes, _leaders(votes, rows))
    documents, context = np.ascontiguousarray(rows[:, :DOCUMENT_BYTES]), proofs.contexts[arm]
    made = prepare(votes.circuit, Side.LEADER, proofs.verify_key, documents, public, own, context)
    return public, made.shown, made.ok


def _leaders(votes: Votes, rows: Bytes) -> Bytes:
    """Return each client's leader share, from the end of the kept rows."""
    from fedping.protocol.proofs.prio3 import sizes

    size = sizes(votes.circuit)
    return rows[:, -(size.leader + size.public) :]


def as_ids(documents: Bytes) -> NDArray[np.void]:
    """Return document ids, shape (k, 16), as k values with the same order as their bytes."""
    return np.ascontiguousarray(documents).view(f"V{DOCUMENT_BYTES}").ravel()
