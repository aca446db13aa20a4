"""About how many clients are new, without keeping who was there: a HyperLogLog of fixed size (Flajolet et al. 2007).

Each id is hashed with a salt. The first bits of the hash choose a register, which remembers the longest run of zeros
that the others began with. Registers merge by their maxima, whatever the order. From them follows about how many ids
there were, by the estimator of Ertl (2017), which needs no corrections: within 2.3 % (one standard error). What is new
is by how much that grows; without a new client it does not grow at all.

The salt is drawn from the key of a line's first round, and clients do not get it: who sends pings chooses ids, and must
not be able to choose registers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedping.model_store.version import ClientSketch
from fedping.protocol.draws import mixed
from fedping.server_jobs.round.accumulator import subkey

REGISTERS = 2048

_BITS = REGISTERS.bit_length() - 1
_REST = 64 - _BITS
_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
"""A register is a letter: 64 - 11 + 1 is the largest value."""

_AT_ONCE = 2**14
"""Ids that are hashed at a time, which the cache holds."""

Registers = NDArray[np.uint8]


def salt_for(key: bytes) -> bytes:
    """Return the salt of a line whose first round has this key, 16 bytes."""
    return subkey(key, "known clients")[:16]


def registers_of(clients: NDArray[np.uint64], salt: bytes) -> Registers:
    """Return the registers of some ids, shape (k, 2), with a salt of 16 bytes."""
    first, second = np.frombuffer(salt, "<u8")
    found = np.zeros(REGISTERS, np.uint8)
    for low in range(0, len(clients), _AT_ONCE):
        some = clients[low : low + _AT_ONCE]
        hashed = mixed(mixed(some[:, 0] ^ first) ^ some[:, 1] ^ second)
        _, length = np.frexp((hashed & np.uint64(2**_REST - 1)).astype(np.float64))  # exact: it has 53 bits
        np.maximum.at(found, (hashed >> np.uint64(_REST)).astype(np.intp), (_REST + 1 - length).astype(np.uint8))
    return found


def with_more(known: ClientSketch, registers: Registers) -> ClientSketch:
    """Return the clients that were known, and those of other registers."""
    both = np.maximum(read(known), registers)
    return ClientSketch(salt=known.salt, registers=_LETTERS[both].tobytes().decode())


def read(known: ClientSketch) -> Registers:
    """Return the registers that a lineage tells, of ids with its salt."""
    found = np.zeros(256, np.uint8)
    found[_LETTERS] = np.arange(len(_LETTERS))
    return found[np.frombuffer(known.registers.encode(), np.uint8)]


def no_clients(salt: bytes) -> ClientSketch:
    """Return what is known before the first round."""
    return ClientSketch(salt=salt.hex(), registers=chr(_LETTERS[0]) * REGISTERS)


def estimated(known: ClientSketch) -> float:
    """Return about how many clients are known."""
    counts = np.bincount(read(known), minlength=_REST + 2).tolist()
    total = REGISTERS * _tau(1 - counts[_REST + 1] / REGISTERS)
    for count in counts[_REST:0:-1]:
        total = (total + count) / 2
    total += REGISTERS * _sigma(counts[0] / REGISTERS)
    return REGISTERS**2 / (2 * math.log(2)) / total


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    found, power = x, 1.0
    while True:
        x *= x
        before, found = found, found + x * power
        power *= 2
        if found == before:
            return found


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    found, power = 1 - x, 1.0
    while True:
        x = math.sqrt(x)
        power /= 2
        before, found = found, found - (1 - x) ** 2 * power
        if found == before:
            return found / 3
