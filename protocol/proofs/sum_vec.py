"""The draft's circuit SumVec, and the proof that a vector satisfies the circuit: that every coordinate is 0 or 1.

**Circuit.** The coordinates are cut into chunks. Chunk i has a random r_i, and adds Σ_j r_i^(j+1) x_ij (x_ij - 1) to
the output. The output is 0 for all r if all coordinates are bits, and otherwise for hardly any r.

**Proof.** Each chunk is one call of a gadget, which adds up products of pairs of inputs, r_i^(j+1) x_ij and x_ij - 1.
An input, over all calls, is a wire: the values of a polynomial W at α, α², …, where α is a root of unity. At 1 it has a
random value, so that W(t) at another point t reveals nothing about x. The gadget applied to the polynomials of all
wires is a polynomial G. The proof is the random values and G.

**Check.** Servers hold shares of x and of the proof. From these they compute values that are linear in both: the output
Σ_i G(α^i), and all W and G at a random point t. The sums of the servers' results show whether the output is 0, and
whether G(t) is the gadget applied to the W(t), which hardly ever holds for an invented G.

Clients are along the last axis of all arrays. Wires are in pairs, along an axis of 2: first r^(j+1) x, then x - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.proofs.field import (
    Elements,
    P,
    add,
    evaluation,
    evaluation_without_last,
    mul,
    other_values,
    power,
    powers,
    sub,
    total,
)

SHARES = 2

_HALF = np.full(1, pow(SHARES, -1, P), np.uint64)
_ONE = np.ones(1, np.uint64)


@dataclass(frozen=True)
class SumVec:
    """Vectors of ``length`` whole numbers of ``bits`` bits each, proven in chunks of ``chunk`` coordinates."""

    length: int
    bits: int
    chunk: int
    proofs: int = 3
    """Independent proofs, each with its own r and t. The draft asks for three in a field of 64 bits."""

    @classmethod
    def shortest(cls, length: int, bits: int = 1) -> SumVec:
        """Return the circuit with the chunk size of the shortest proof; among equals, the one with the fewest wires."""
        candidates = (cls(length, bits, chunk) for chunk in range(1, length * bits + 1))
        return min(candidates, key=lambda each: (each.proof, each.wires))

    @property
    def coordinates(self) -> int:
        """Number of elements of a vector: the bits of all its numbers."""
        return self.length * self.bits

    @property
    def calls(self) -> int:
        """Number of calls of the gadget: one for each chunk; the last chunk is padded with zeros."""
        return -(-self.coordinates // self.chunk)

    @property
    def points(self) -> int:
        """Number of values that define a wire's polynomial: a power of two, greater than the number of calls."""
        return 1 << self.calls.bit_length()

    @property
    def wires(self) -> int:
        """Number of inputs of the gadget: two for each coordinate of a chunk."""
        return 2 * self.chunk

    @property
    def proof(self) -> int:
        """Number of elements of a proof: a random value for each wire, and values of G, of degree 2 (points - 1)."""
        return self.wires + 2 * self.points - 1

    @property
    def verifier(self) -> int:
        """Number of elements that a server computes for a proof: the output, each W(t), and G(t)."""
        return 1 + self.wires + 1

    def numbers(self, coordinates: Elements) -> Elements:
        """Return the whole numbers, (length, k), for coordinates, (coordinates, k); for shares, return shares."""
        if self.bits == 1:
            return coordinates
        weights = np.array([1 << bit for bit in range(self.bits)], np.uint64)
        return total(mul(coordinates.reshape(self.length, self.bits, -1), weights[:, None]), 1)

    def _chunks(self, coordinates: Elements) -> Elements:
        """Return the coordinates by chunk, shape (calls, chunk, k)."""
        filled = np.zeros((self.calls * self.chunk, coordinates.shape[1]), np.uint64)
        filled[: self.coordinates] = coordinates
        return filled.reshape(self.calls, self.chunk, -1)

    def _factors(self, joint_rand: Elements) -> Elements:
        """Return r, r², … for the coordinates of each chunk, (calls, proofs, chunk, k), given r, (proofs, calls, k)."""
        return powers(joint_rand, self.chunk + 1)[1:].transpose(2, 1, 0, 3)


def prove(circuit: SumVec, coordinates: Elements, prove_rand: Elements, joint_rand: Elements) -> Elements:
    """Return proofs that vectors satisfy the circuit. Proofs of other vectors will be rejected.

    Args:
        circuit: the circuit.
        coordinates: the vectors, (coordinates, k).
        prove_rand: the random values of the wires, (proofs, wires, k).
        joint_rand: r, (proofs, calls, k).

    Returns:
        (proofs, proof, k).
    """
    k = coordinates.shape[1]
    x = circuit._chunks(coordinates)[:, None]
    wires = np.zeros((circuit.points, 2, circuit.proofs, circuit.chunk, k), np.uint64)
    wires[0] = prove_rand.reshape(circuit.proofs, circuit.chunk, 2, k).transpose(2, 0, 1, 3)
    wires[1 : circuit.calls + 1, 0] = mul(circuit._factors(joint_rand), x)
    wires[1 : circuit.calls + 1, 1] = sub(x, _ONE)
    gadget = np.empty((circuit.proofs, 2 * circuit.points, k), np.uint64)
    for start, values in enumerate((wires, other_values(wires))):
        gadget[:, start::2] = total(mul(values[:, 0], values[:, 1]), 2).swapaxes(0, 1)
    return np.concatenate([prove_rand, gadget[:, :-1]], axis=1)


def query(
    circuit: SumVec, coordinates: Elements, proofs: Elements, query_rand: Elements, joint_rand: Elements
) -> tuple[Elements, NDArray[np.bool_]]:
    """Return a server's shares of the values that show whether vectors satisfy the circuit.

    Args:
        circuit: the circuit that is proven.
        coordinates: shares of the vectors, (coordinates, k).
        proofs: shares of the proofs, (proofs, proof, k).
        query_rand: t, (proofs, k).
        joint_rand: r, (proofs, calls, k).

    Returns:
        The shares, (proofs, verifier, k); and which of the k clients' shares may be revealed, (k,). For one client in
        2^59 they may not, because its t is a point at which a wire has an input.
    """
    k = coordinates.shape[1]
    x = circuit._chunks(coordinates)[:, None]
    random, gadget = proofs[:, : circuit.wires], proofs[:, circuit.wires :].swapaxes(0, 1)
    at_t = evaluation(query_rand, circuit.points)  # (points, proofs, k)
    at_calls = at_t[1 : circuit.calls + 1]
    weighted = mul(at_calls[:, :, None], x)  # (calls, proofs, chunk, k)
    second = sub(total(weighted, 0), mul(total(at_calls, 0), _HALF)[:, None])
    values = np.stack([total(mul(circuit._factors(joint_rand), weighted), 0), second], axis=2)

    verifiers = np.empty((circuit.proofs, circuit.verifier, k), np.uint64)
    verifiers[:, 0] = total(gadget[2 : 2 * circuit.calls + 1 : 2], 0)
    verifiers[:, 1:-1] = add(values.reshape(circuit.proofs, circuit.wires, k), mul(at_t[0][:, None], random))
    verifiers[:, -1] = total(mul(evaluation_without_last(query_rand, 2 * circuit.points), gadget), 0)
    return verifiers, (power(query_rand, circuit.points) != 1).all(axis=0)


def decide(circuit: SumVec, verifiers: Elements) -> NDArray[np.bool_]:
    """Return which vectors satisfy the circuit, (k,), given the sums of both servers' shares, (proofs, verifier, k).

    An invalid vector passes with probability at most ((chunk + 2 points) / 2^64)^proofs, for 52 bits 2^-178. A client
    may try out many r before it sends anything. The best of Q tries passes with at most Q times that probability, 2^-98
    for Q = 2^80. The best strategy is to find r that fool two of the proofs, and to rely on chance for the t of the
    third.
    """
    pairs = verifiers[:, 1:-1].reshape(circuit.proofs, circuit.chunk, 2, -1)
    gadget = total(mul(pairs[:, :, 0], pairs[:, :, 1]), 1)
    passed: NDArray[np.bool_] = ((verifiers[:, 0] == 0) & (gadget == verifiers[:, -1])).all(axis=0)
    return passed
