"""Accumulators of private lines: exact sums of vectors by arm, and of two-server lines the shares.

Vectors and shares are whole numbers, whose sum is the same in any order; the helper's shares are put in the order of
the document ids. So every engine and partitioning gives the same bytes. A step is made of released sums alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.encodings.shared import layout_of
from fedping.protocol.errors import FedpingError
from fedping.protocol.links import SharedVector
from fedping.protocol.privacy import METRICS, bounded_vectors, frame_of
from fedping.protocol.sharing.exchange import DOCUMENT_BYTES, MOST_CLIENTS, AskedArm
from fedping.protocol.sharing.offer import OFFER_ID_BYTES
from fedping.protocol.sharing.ring import PRIME, WORDS, Elements, Ring
from fedping.protocol.sharing.shares import Layout, words_of
from fedping.protocol.sharing.votes import Votes, bit_shares, numbers_from, split_public
from fedping.protocol.study import Line
from fedping.server_jobs.optimize.transformation import Arrays, Vector
from fedping.server_jobs.round.accumulator import Accumulator, Finished, Updates, no_moments

Sums: TypeAlias = Mapping[int, NDArray[np.int64]]
"""By arm, its number among those that follow the line, the sum of its clients' vectors, shape (m + 3,).

Exact, so they are neither written nor told. An arm without a client has none.
"""


@dataclass(frozen=True, slots=True)
class Released:
    """What a step of a private line is made of: what anybody may know.

    Attributes:
        weights: the released sum of the arms that submit, without the metrics, shape (m,).
        sigma: the standard deviation of its noise, in the same whole numbers; 0 without noise.
        clients: by how many it is divided: a constant where it has noise.
    """

    weights: NDArray[np.int64]
    sigma: float
    clients: float


def private_sums(line: Line) -> Accumulator[Sums]:
    """Return the accumulator of a private line; it ends with :class:`Released`, and never with sums themselves.

    ``add`` takes vectors of shape (k, m + 3), which it takes within their bound, each once: votes mean nothing here.
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
    raise TypeError(f"a step of the private line '{line.name}' is made of released sums, not of exact ones")


Bytes: TypeAlias = NDArray[np.uint8]

MOST_BYTES = 2**29
"""What a request may have of sealed shares: the store keeps it as one document, and the helper takes it as one."""


class Summing(NamedTuple):
    """What is added up of the leader's shares.

    Attributes:
        ring: where.
        size: how many numbers a sum has.
        numbers: returns k shares, shape (k, bytes), as numbers, shape (k, size).
        vector: returns from a sum and how many clients it is of what there is of the sum of their vectors, (m + 3,).
    """

    ring: Ring
    size: int
    numbers: Callable[[Bytes], Elements]
    vector: Callable[[Elements, int], Elements]


def summing(line: Line) -> Summing:
    """Return what is added up of the leader's shares of a line."""
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
    """Return how the vectors of a line are bits, which its clients prove; None if they prove nothing."""
    link = link_of(line)
    return Votes(line.spec.m + len(METRICS), link.metric) if link.proofs else None


def link_of(line: Line) -> SharedVector:
    """Return the link by which the clients of a line of shares send."""
    [link] = line.upload
    assert isinstance(link, SharedVector)
    return link


class ArmShares(NamedTuple):
    """What the clients of an arm have sent.

    Attributes:
        total: the sum of the leader's shares.
        clients: how many there are.
        rows: of each client the document id, the offer's id and its sealed share side by side, in blocks of rows; with
            proofs the leader's share as well.
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
"""By arm, its number among those that follow the line; an arm without a client has none."""


def shared_sums(line: Line) -> Accumulator[Shares]:
    """Return the accumulator of a line of shares, whose steps are those of any private line.

    ``add`` takes payloads as rows of bytes, shape (k, size), each once: votes mean nothing here. It is told their
    document ids.

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
                f"there are pings of more than {most:,} clients of line '{line.name}', which is more than the helper "
                "may be asked of at once; let fewer clients take part, or run rounds more often; nothing was asked"
            )
        return both

    plain: Accumulator[Any] = private_sums(line)
    return plain._replace(init=lambda line: {}, add=add, merge=merge, asks=("arms", "documents"))


def most_clients(parts: Layout, proven: bool) -> int:
    """Return of how many clients a helper may be asked at once."""
    return min(MOST_CLIENTS, MOST_BYTES // (parts.size if proven else parts.sealed))


def _both(ring: Ring, a: ArmShares, b: ArmShares) -> ArmShares:
    return ArmShares(ring.plus(a.total, b.total), a.clients + b.clients, a.rows + b.rows)


def repeated_documents(shares: Shares) -> Bytes:
    """Return the document ids that several clients have sent, shape (n, 16).

    None of them is a client's own for sure, and which is would be decided by the others: so none of them counts.
    """
    every = [rows[:, :DOCUMENT_BYTES] for each in shares.values() for rows in each.rows]
    if not every:
        return np.zeros((0, DOCUMENT_BYTES), np.uint8)
    ids, counts = np.unique(as_ids(np.concatenate(every)), return_counts=True)
    return np.ascontiguousarray(ids[counts > 1]).view(np.uint8).reshape(-1, DOCUMENT_BYTES)


def without(line: Line, shares: Shares, others: Shares) -> Shares:
    """Return shares without those of some clients, which are all among them."""
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
    """What a leader looks at proofs with.

    Attributes:
        verify_key: 32 bytes that no client knows, the same for all requests on a version: what two keys show of one
            proof would give it away.
        contexts: by arm what its clients have proven for (`fedping.protocol.sharing.votes.context_of`).
    """

    verify_key: bytes
    contexts: Mapping[str, bytes]


def asked_arms(
    line: Line, arms: Sequence[str], shares: Shares, proofs: Proofs | None
) -> tuple[tuple[AskedArm, ...], dict[str, Elements]]:
    """Return what is asked of the helper, the clients of each arm, and by arm the sum of the leader's shares of them.

    Of clients that prove what they send, those are left out whose share has a form that no honest client's has. Whether
    the others have proven it comes out where the parts of both servers are together, which is at the helper.
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
    """Return the public shares of an arm's clients, what the leader makes of theirs, and which have the right form."""
    from fedping.protocol.proofs.prio3 import Side, prepare

    own, public = split_public(votes, _leaders(votes, rows))
    documents, context = np.ascontiguousarray(rows[:, :DOCUMENT_BYTES]), proofs.contexts[arm]
    made = prepare(votes.circuit, Side.LEADER, proofs.verify_key, documents, public, own, context)
    return public, made.shown, made.ok


def _leaders(votes: Votes, rows: Bytes) -> Bytes:
    """Return what the leader got of each client, from the end of the rows that are kept."""
    from fedping.protocol.proofs.prio3 import sizes

    size = sizes(votes.circuit)
    return rows[:, -(size.leader + size.public) :]


def as_ids(documents: Bytes) -> NDArray[np.void]:
    """Return document ids, shape (k, 16), as k values that compare as their bytes do."""
    return np.ascontiguousarray(documents).view(f"V{DOCUMENT_BYTES}").ravel()
