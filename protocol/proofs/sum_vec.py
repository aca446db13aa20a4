"""The draft's circuit SumVec, and the proof that a vector satisfies it: every coordinate is 0 or 1.

The circuit takes the coordinates chunk by chunk. Chunk i with the random r_i adds Σ_j r_i^(j+1) x_ij (x_ij - 1) to the
output, which is 0 for every r if all x are bits, and otherwise for hardly any. A sum of products of pairs is the draft's
gadget ParallelSum(Mul). Its inputs are the wires, of which w of call i is the value of a polynomial W_w at α^i; at 1 it is
random, so that nothing of it tells of x. The gadget of these polynomials is one polynomial G, which is what the proof
says, with the random values. Servers have shares of x and of the proof, and what they compute of them is linear: the output
Σ_i G(α^i), and the W_w and G at a random t. From the sums of both, anybody sees whether the output is 0, and whether G(t)
is the gadget of the W_w(t), without which G would be one that the client made up.

Arrays have rows, one a client, along the last axis. Wires come as (2, …, chunk, …): the first inputs of all pairs, r^(j+1) x,
then the second ones, x - 1.
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
    """Which vectors are proven: ``length`` whole numbers of ``bits`` bits, and in what chunks they are.

    A longer chunk makes for fewer calls; :meth:`shortest` has the length with the shortest proof.
    """

    length: int
    bits: int
    chunk: int
    proofs: int = 3
    """For as many r and t a proof is made. In a field of 64 bits the draft wants three."""

    @classmethod
    def shortest(cls, length: int, bits: int = 1) -> SumVec:
        """Return the circuit with the shortest proof; of several, the one with the fewest wires, which cost most time."""
        candidates = (cls(length, bits, chunk) for chunk in range(1, length * bits + 1))
        return min(candidates, key=lambda each: (each.proof, each.wires))

    @property
    def coordinates(self) -> int:
        """Elements of a vector, each of which is a bit."""
        return self.length * self.bits

    @property
    def calls(self) -> int:
        """Chunks, the last of which is filled up with zeros."""
        return -(-self.coordinates // self.chunk)

    @property
    def points(self) -> int:
        """Values of the polynomial of a wire: the power of two with room for all calls and the random one."""
        return 1 << self.calls.bit_length()

    @property
    def wires(self) -> int:
        """Inputs of the gadget."""
        return 2 * self.chunk

    @property
    def proof(self) -> int:
        """Elements of a proof: a random one a wire, and the values of the gadget's polynomial of degree 2 (points - 1)."""
        return self.wires + 2 * self.points - 1

    @property
    def verifier(self) -> int:
        """Elements of what is computed of a proof: the output, the polynomials of the wires at t, the gadget's there."""
        return 1 + self.wires + 1

    def numbers(self, coordinates: Elements) -> Elements:
        """Return (shares of) the whole numbers of (shares of) vectors, shape (length, k) of (coordinates, k)."""
        if self.bits == 1:
            return coordinates
        weights = np.array([1 << bit for bit in range(self.bits)], np.uint64)
        return total(mul(coordinates.reshape(self.length, self.bits, -1), weights[:, None]), 1)

    def _chunks(self, coordinates: Elements) -> Elements:
        """Return coordinates in their chunks, shape (calls, chunk, k)."""
        filled = np.zeros((self.calls * self.chunk, coordinates.shape[1]), np.uint64)
        filled[: self.coordinates] = coordinates
        return filled.reshape(self.calls, self.chunk, -1)

    def _factors(self, joint_rand: Elements) -> Elements:
        """Return the r, r^2, … of chunks, shape (calls, proofs, chunk, k) of (proofs, calls, k)."""
        return powers(joint_rand, self.chunk + 1)[1:].transpose(2, 1, 0, 3)


def prove(circuit: SumVec, coordinates: Elements, prove_rand: Elements, joint_rand: Elements) -> Elements:
    """Return the proofs that vectors satisfy the circuit; of vectors that do not, proofs that will be refused.

    Args:
        circuit: what is to be proven.
        coordinates: (coordinates, k).
        prove_rand: the random values of wires, (proofs, wires, k).
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
    """Return shares of what decides whether vectors satisfy the circuit, from shares of them and of their proofs.

    Args:
        circuit: what was proven.
        coordinates: (coordinates, k).
        proofs: (proofs, proof, k).
        query_rand: t, (proofs, k).
        joint_rand: r, (proofs, calls, k).

    Returns:
        The shares, (proofs, verifier, k), and of which rows they may be shown, (k,): not if t is one of the points where
        a wire has its inputs, as a row in 2^60 has it.
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
    """Return which rows satisfy the circuit, (k,), from the sums of the shares, (proofs, verifier, k).

    One that does not is taken with a chance of about (wires / 2^63)^proofs, unless it could try many r.
    """
    pairs = verifiers[:, 1:-1].reshape(circuit.proofs, circuit.chunk, 2, -1)
    gadget = total(mul(pairs[:, :, 0], pairs[:, :, 1]), 1)
    return ((verifiers[:, 0] == 0) & (gadget == verifiers[:, -1])).all(axis=0)
