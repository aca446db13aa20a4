"""Approximate number of new clients by a HyperLogLog of fixed size, without storing ids.

Each id is hashed with a salt. The first bits of the hash select a register, which stores the longest run of zeros at
the start of the other bits. Registers merge by their maxima, in any order. The estimator of Ertl needs no corrections;
its standard error is 2.3 % of the number of ids. The number of new clients is the growth of the estimate, which doesn't
grow without a new client.

The salt is derived from the key of a line's first round and is unknown to clients. Senders can choose ids, but must
not be able to choose registers.

Source: Flajolet et al. 2007; Ertl 2017.
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
"""Characters that encode the values of a register, 0 to 64 - 11 + 1."""

_AT_ONCE = 2**14
"""Number of ids hashed at a time, so that they fit into the cache."""

Registers = NDArray[np.uint8]


def salt_for(key: bytes) -> bytes:
    """Return a line's salt, 16 bytes, from the key of its first round."""
    return subkey(key, "known clients")[:16]


def registers_of(clients: NDArray[np.uint64], salt: bytes) -> Registers:
    """Return the registers of client ids, shape (k, 2), which are hashed with a 16-byte salt."""
    first, second = np.frombuffer(salt, "<u8")
    registers = np.zeros(REGISTERS, np.uint8)
    for low in range(0, len(clients), _AT_ONCE):
        some = clients[low : low + _AT_ONCE]
        hashed = mixed(mixed(some[:, 0] ^ first) ^ some[:, 1] ^ second)
        _, length = np.frexp((hashed & np.uint64(2**_REST - 1)).astype(np.float64))  # exact: it has 53 bits
        np.maximum.at(registers, (hashed >> np.uint64(_REST)).astype(np.intp), (_REST + 1 - length).astype(np.uint8))
    return registers


def with_more(known: ClientSketch, registers: Registers) -> ClientSketch:
    """Return a sketch of the known clients together with the clients in other registers."""
    both = np.maximum(read(known), registers)
    return ClientSketch(salt=known.salt, registers=_LETTERS[both].tobytes().decode())


def read(known: ClientSketch) -> Registers:
    """Return the registers of a lineage's sketch."""
    values = np.zeros(256, np.uint8)
    values[_LETTERS] = np.arange(len(_LETTERS))
    return values[np.frombuffer(known.registers.encode(), np.uint8)]


def no_clients(salt: bytes) -> ClientSketch:
    """Return the sketch before the first round."""
    return ClientSketch(salt=salt.hex(), registers=chr(_LETTERS[0]) * REGISTERS)


def estimated(known: ClientSketch) -> float:
    """Return the approximate number of known clients."""
    counts = np.bincount(read(known), minlength=_REST + 2).tolist()
    total = REGISTERS * _tau(1 - counts[_REST + 1] / REGISTERS)
    for count in counts[_REST:0:-1]:
        total = (total + count) / 2
    total += REGISTERS * _sigma(counts[0] / REGISTERS)
    return REGISTERS**2 / (2 * math.log(2)) / total


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    total, power = x, 1.0
    while True:
        x *= x
        before, total = total, total + x * power
        power *= 2
        if total == before:
            return total


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    total, power = 1 - x, 1.0
    while True:
        x = math.sqrt(x)
        power /= 2
        before, total = total, total - (1 - x) ** 2 * power
        if total == before:
            return total / 3
