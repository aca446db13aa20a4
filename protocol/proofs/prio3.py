"""Prio3: messages from clients to two servers and between the servers, and the final check of clients' vectors.

The instance is Prio3SumVecWithMultiproof of draft-irtf-cfrg-vdaf-18 over Field64, with XofTurboShake128 and two shares,
and all bytes are as in the draft. The leader's share is as long as the vector and its proofs. The helper's share is a
seed, which the helper expands. Each share comes with a blind; a hash of blind, nonce and share of the vector is that
server's part of the joint randomness. The circuit's r follow from it, so that a client cannot choose them. The public
share consists of both parts.

Callers must ensure:

- A client draws its nonce at random, and never uses one twice.
- Both servers know the verify key, but no client does. It does not change once a share has arrived.
- A server prepares each nonce once. Its messages for one share under two keys or contexts would reveal the vector.

Clients are along the first axis of all arrays, and are processed in batches, so that memory grows only with the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.proofs import xof
from fedping.protocol.proofs.field import Elements, P, add, sub
from fedping.protocol.proofs.sum_vec import SHARES, SumVec, decide, prove, query
from fedping.protocol.proofs.xof import SEED_BYTES, Context, Rows

NONCE_BYTES = 16
KEY_BYTES = 32
RAND_BYTES = 4 * SEED_BYTES

_VERSION = 18
_CLASS = 0  # a VDAF
_ALGORITHM = 0xFFFFFFFF  # as in the test vectors: the draft gives no number to instances with several proofs

_BATCH = 512
"""Clients processed at a time."""


class Side(IntEnum):
    """A server and its number in the draft."""

    LEADER = 0
    HELPER = 1


class Sizes(NamedTuple):
    """Lengths of a client's messages, in bytes."""

    leader: int
    public: int
    helper: int
    prepared: int


class Shares(NamedTuple):
    """The messages of clients: to the leader, to both servers, and to the helper."""

    leader: Rows
    public: Rows
    helper: Rows


class Prepared(NamedTuple):
    """A server's results: shares of the numbers, the message to the other server, and which shares are valid."""

    out_shares: Elements
    shown: Rows
    ok: NDArray[np.bool_]


class _Usage(IntEnum):
    MEASUREMENT_SHARE = 1
    PROOF_SHARE = 2
    JOINT_RANDOMNESS = 3
    PROVE_RANDOMNESS = 4
    QUERY_RANDOMNESS = 5
    JOINT_RAND_SEED = 6
    JOINT_RAND_PART = 7


def sizes(circuit: SumVec) -> Sizes:
    """Return the lengths of a client's messages."""
    leader = 8 * (circuit.coordinates + circuit.proofs * circuit.proof) + SEED_BYTES
    prepared = 8 * circuit.proofs * circuit.verifier + SEED_BYTES
    return Sizes(leader, SHARES * SEED_BYTES, 2 * SEED_BYTES, prepared)


def shard(circuit: SumVec, coordinates: NDArray[np.integer[Any]], nonces: Rows, rand: Rows, context: Context) -> Shares:
    """Return the messages that clients send to the servers.

    Args:
        circuit: the circuit to prove.
        coordinates: the bits of the vectors, shape (k, coordinates); each number's lowest bit comes first.
        nonces: (k, 16).
        rand: bytes of a cryptographic generator that are used only here, (k, 128).
        context: purpose of the shares; the servers must use the same context.

    Raises:
        ValueError: shapes do not fit.
    """
    k = len(coordinates)
    _expect(coordinates=(coordinates, (k, circuit.coordinates)), nonces=(nonces, (k, NONCE_BYTES)))
    _expect(rand=(rand, (k, RAND_BYTES)))
    size = sizes(circuit)
    shares = Shares(*(np.empty((k, width), np.uint8) for width in (size.leader, size.public, size.helper)))
    for rows, each in _batches(k, context):
        seed, blind, leader_blind, prove_seed = np.split(rand[rows], 4, axis=1)
        x = coordinates[rows].astype(np.uint64).T
        helper_x, helper_proofs = _expanded(circuit, seed, each)
        leader_x = sub(x, helper_x)
        public = np.concatenate(
            [
                _part(Side.LEADER, leader_blind, nonces[rows], leader_x, each),
                _part(Side.HELPER, blind, nonces[rows], helper_x, each),
            ],
            axis=1,
        )
        bound = _bound(prove_seed, bytes([circuit.proofs]))
        count = circuit.proofs * circuit.wires
        prove_rand = xof.elements(_tag(_Usage.PROVE_RANDOMNESS), each, bound, count).T
        proofs = prove(
            circuit,
            x,
            np.ascontiguousarray(prove_rand).reshape(circuit.proofs, circuit.wires, -1),
            _joint_rand(circuit, public, each),
        )
        leader_proofs = sub(proofs, helper_proofs).reshape(circuit.proofs * circuit.proof, -1)
        shares.leader[rows] = np.concatenate([_bytes(leader_x), _bytes(leader_proofs), leader_blind], axis=1)
        shares.public[rows] = public
        shares.helper[rows] = rand[rows, : 2 * SEED_BYTES]
    return shares


def prepare(
    circuit: SumVec, side: Side, verify_key: bytes, nonces: Rows, public: Rows, shares: Rows, context: Context
) -> Prepared:
    """Return a server's results for the shares that clients sent to it.

    Args:
        circuit: the circuit that is proven.
        side: the server.
        verify_key: 32 bytes.
        nonces: (k, 16).
        public: (k, 64).
        shares: (k, ``leader`` or ``helper`` of :func:`sizes`).
        context: purpose of the shares.

    Returns:
        The shares of the numbers, (k, length); the messages to the other server, (k, ``prepared`` of :func:`sizes`);
            and which shares are well formed, (k,). For malformed shares, the numbers are 0, and the message is never
            valid.

    Raises:
        ValueError: shapes or the length of the key do not fit.
    """
    side, k, size = Side(side), len(nonces), sizes(circuit)
    _expect(nonces=(nonces, (k, NONCE_BYTES)), public=(public, (k, size.public)))
    _expect(shares=(shares, (k, size.leader if side is Side.LEADER else size.helper)))
    if len(verify_key) != KEY_BYTES:
        raise ValueError(f"a verify key has {KEY_BYTES} bytes, not {len(verify_key)}")
    prepared = Prepared(
        np.empty((k, circuit.length), np.uint64), np.empty((k, size.prepared), np.uint8), np.empty(k, np.bool_)
    )
    key = np.frombuffer(verify_key, np.uint8)
    for rows, each in _batches(k, context):
        x, proofs, blind, canonical = _share(circuit, side, shares[rows], each)
        part = _part(side, blind, nonces[rows], x, each)
        own = slice(side * SEED_BYTES, (side + 1) * SEED_BYTES)
        parts = public[rows].copy()
        parts[:, own] = part
        bound = _bound(np.broadcast_to(key, (len(x.T), KEY_BYTES)), bytes([circuit.proofs]), nonces[rows])
        query_rand = xof.elements(_tag(_Usage.QUERY_RANDOMNESS), each, bound, circuit.proofs)
        joint_rand = _joint_rand(circuit, parts, each)
        verifiers, may_be_shown = query(circuit, x, proofs, np.ascontiguousarray(query_rand.T), joint_rand)
        ok = canonical & may_be_shown
        shown = np.concatenate([_bytes(verifiers.reshape(circuit.proofs * circuit.verifier, -1)), part], axis=1)
        prepared.out_shares[rows] = np.where(ok[:, None], circuit.numbers(x).T, 0)
        prepared.shown[rows] = np.where(ok[:, None], shown, 0xFF)
        prepared.ok[rows] = ok
    return prepared


def valid(circuit: SumVec, public: Rows, leader: Rows, helper: Rows) -> NDArray[np.bool_]:
    """Return which clients' vectors contain only bits, (k,), given both servers' messages.

    In the draft, each server checks by hashes that the other server's part of the joint randomness equals the part in
    the public share. This function has all parts, so it makes both checks on the parts themselves.

    Args:
        circuit: the circuit that is proven.
        public: (k, 64).
        leader: the leader's messages, (k, ``prepared`` of :func:`sizes`).
        helper: the helper's messages, of the same shape.

    Raises:
        ValueError: shapes do not fit.
    """
    k, size = len(public), sizes(circuit)
    _expect(public=(public, (k, size.public)), leader=(leader, (k, size.prepared)), helper=(helper, (k, size.prepared)))
    result = np.empty(k, np.bool_)
    for rows, _ in _batches(k, b""):
        (leader_share, leader_ok), (helper_share, helper_ok) = (
            _elements(shown[rows, :-SEED_BYTES]) for shown in (leader, helper)
        )
        parts = np.concatenate([leader[rows, -SEED_BYTES:], helper[rows, -SEED_BYTES:]], axis=1)
        verifiers = add(leader_share, helper_share).reshape(circuit.proofs, circuit.verifier, -1)
        agreed = (parts == public[rows]).all(axis=1)
        result[rows] = leader_ok & helper_ok & agreed & decide(circuit, verifiers)
    return result


def messages(leader: Rows, helper: Rows, context: Context) -> Rows:
    """Return the draft's verifier messages, (k, 32): the seeds of the joint randomness, from both servers' messages."""
    parts = np.concatenate([leader[:, -SEED_BYTES:], helper[:, -SEED_BYTES:]], axis=1)
    return _joint_seeds(parts, context)


def _share(
    circuit: SumVec, side: Side, shares: Rows, context: Context
) -> tuple[Elements, Elements, Rows, NDArray[np.bool_]]:
    """Return shares of vectors and of proofs, the blinds, and which rows contain only elements of the field."""
    blind = shares[:, -SEED_BYTES:]
    if side is Side.HELPER:
        return *_expanded(circuit, shares[:, :SEED_BYTES], context), blind, np.ones(len(shares), np.bool_)
    elements, canonical = _elements(shares[:, :-SEED_BYTES])
    proofs = elements[circuit.coordinates :].reshape(circuit.proofs, circuit.proof, -1)
    return elements[: circuit.coordinates], proofs, blind, canonical


def _expanded(circuit: SumVec, seeds: Rows, context: Context) -> tuple[Elements, Elements]:
    """Return the helper's shares of vectors and of proofs."""
    bound = _bound(seeds, bytes([Side.HELPER]))
    x = xof.elements(_tag(_Usage.MEASUREMENT_SHARE), context, bound, circuit.coordinates)
    bound = _bound(seeds, bytes([circuit.proofs, Side.HELPER]))
    proofs = xof.elements(_tag(_Usage.PROOF_SHARE), context, bound, circuit.proofs * circuit.proof)
    return np.ascontiguousarray(x.T), np.ascontiguousarray(proofs.T).reshape(circuit.proofs, circuit.proof, -1)


def _part(side: Side, blinds: Rows, nonces: Rows, x: Elements, context: Context) -> Rows:
    return xof.seeds(_tag(_Usage.JOINT_RAND_PART), context, _bound(blinds, bytes([side]), nonces, _bytes(x)))


def _joint_seeds(parts: Rows, context: Context) -> Rows:
    return xof.seeds(_tag(_Usage.JOINT_RAND_SEED), context, _bound(np.zeros((len(parts), SEED_BYTES), np.uint8), parts))


def _joint_rand(circuit: SumVec, parts: Rows, context: Context) -> Elements:
    """Return the circuit's random r, from the joint randomness, shape (proofs, calls, k)."""
    bound = _bound(_joint_seeds(parts, context), bytes([circuit.proofs]))
    r = xof.elements(_tag(_Usage.JOINT_RANDOMNESS), context, bound, circuit.proofs * circuit.calls)
    return np.ascontiguousarray(r.T).reshape(circuit.proofs, circuit.calls, -1)


def _tag(usage: _Usage) -> bytes:
    return bytes([_VERSION, _CLASS, *_ALGORITHM.to_bytes(4, "big"), *usage.to_bytes(2, "big")])


def _bound(seeds: Rows, *binders: bytes | Rows) -> Rows:
    """Return seeds, each followed by its binders; a binder of type bytes is used for all rows."""
    k = len(seeds)
    rows = (np.broadcast_to(np.frombuffer(b, np.uint8), (k, len(b))) if isinstance(b, bytes) else b for b in binders)
    return np.concatenate([seeds, *rows], axis=1)


def _bytes(elements: Elements) -> Rows:
    """Return elements of shape (n, k) as bytes of shape (k, 8 n)."""
    return np.ascontiguousarray(elements.T, "<u8").view(np.uint8)


def _elements(rows: Rows) -> tuple[Elements, NDArray[np.bool_]]:
    """Return bytes of shape (k, 8 n) as elements, (n, k), and which rows contain only elements; others become zeros."""
    numbers = np.ascontiguousarray(np.ascontiguousarray(rows).view("<u8").T.astype(np.uint64))
    canonical = np.logical_and.reduce(numbers < np.uint64(P), axis=0)
    numbers[:, ~canonical] = 0
    return numbers, canonical


def _batches(k: int, context: Context) -> Iterator[tuple[slice, Context]]:
    """Yield batches of rows and their contexts."""
    if not isinstance(context, bytes) and len(context) != k:
        raise ValueError(f"{len(context)} contexts are not one for each of {k} rows")
    for start in range(0, k, _BATCH):
        rows = slice(start, start + _BATCH)
        yield rows, context if isinstance(context, bytes) else context[rows]


def _expect(**arrays: tuple[NDArray[Any], tuple[int, int]]) -> None:
    for name, (array, shape) in arrays.items():
        if array.shape != shape:
            raise ValueError(f"{name} have the shape {array.shape}, not {shape}")
