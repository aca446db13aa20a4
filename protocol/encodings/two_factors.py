"""Both factors of matrices of low rank: the encoding `low-rank-neither` (thesis 4.3.2, its main form).

For a matrix H of inputs by outputs, the client sends A of inputs by rank and B of rank by outputs, and the server
computes A B. The server thus averages the clients' products, and their ranks add up. Clients that train within this
form train A and B: the model computes with W + A B, where W are the fetched weights. B starts at entries of 1 or -1
over the root of the rank, which are drawn by the client's key, and A at 0, so that training starts at W, and the first
step is that of the encoding `low-rank-outputs`. (The thesis draws both at random, and clients would start at W with
noise; Hu et al. 2021 also start with a product of 0.) Other clients compute H first and send the closest product A B,
from the singular values of H; this is biased.

A payload is little-endian: u16 rank, then f32 for every number, block after block. A block of two dimensions is sent as
A and then B, row by row, if they are smaller; the other blocks are sent unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.draws import Keys
from fedping.protocol.encodings.payloads import fixed_payloads, payload_column, payload_seeds, rows_of
from fedping.protocol.encodings.rotation import random_sign_matrices
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd, Structured
from fedping.protocol.weights import LARGEST

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.spec import ModelSpec

Floats: TypeAlias = NDArray[np.floating[Any]]

_HEAD = 2

_EXACT_BITS = 52
"""Sums of whole numbers below 2^52 are exact in double precision."""


def two_factors(rank: int, spec: ModelSpec) -> Ends:
    """Return the two ends of a link that sends both factors, with this rank.

    Raises:
        InvalidSettings: the link saves nothing for any of the model's matrices.
    """
    layout = _Layout(rank, spec)
    if not any(part.shape for part in layout.parts):
        raise InvalidSettings(
            f"the upload link 'low-rank' of rank {rank:,} with fixed = \"neither\" saves nothing with model spec "
            f"'{spec.name}', which has no block of two dimensions with more than {rank:,} x (inputs + outputs) "
            "numbers. Lower 'rank', or use another link"
        )
    size = _HEAD + 4 * layout.size
    structured = Structured(within=layout.within, encode=layout.encode)
    client = ClientEnd(encode=layout.encode, structured=structured)
    return client, ServerEnd(decode=layout.decode, lengths=lambda m: (size, size), trouble=layout.trouble)


def closest_factors(matrices: Floats, rank: int) -> tuple[Floats, Floats]:
    """Return A, (k, inputs, rank), and B, (k, rank, outputs), whose products are closest to k matrices.

    Each factor gets the root of the singular values, so that neither is much larger than the other. If a matrix has a
    number that isn't finite, its factors are NaN.
    """
    finite = np.asarray(np.isfinite(matrices).reshape(len(matrices), -1).all(axis=1))
    exact = np.where(finite[:, None, None], matrices, 0).astype(np.float64)
    left, values, right = np.linalg.svd(exact, full_matrices=False)
    roots = np.where(finite[:, None], np.sqrt(values[:, :rank]), np.nan)
    return left[:, :, :rank] * roots[:, None, :], roots[:, :, None] * right[:, :rank, :]


def exact_products(a: Floats, b: Floats) -> Floats:
    """Return the products of k pairs of factors, shape (k, inputs, outputs), in the precision of ``a``.

    Both factors are rounded to whole multiples of a unit, about 2^-24 of the factor's largest number with a rank of 16,
    so that all sums of products are exact in double precision: every machine gets the same bits, in any order of
    addition.
    """
    bits = (_EXACT_BITS - (a.shape[2] - 1).bit_length()) // 2
    (one, ones), (other, others) = (_whole(each, bits) for each in (a, b))
    products: Floats = np.empty((len(a), a.shape[1], b.shape[2]), a.dtype)
    np.multiply(one @ other, np.ldexp(1.0, ones + others), out=products, casting="same_kind")
    return products


def _whole(factors: Floats, bits: int) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return factors as whole numbers of at most 2^bits, and the powers of two that scale them back."""
    _, exponents = np.frexp(np.abs(factors).max(axis=(1, 2), keepdims=True).astype(np.float64))
    return np.rint(np.ldexp(factors.astype(np.float64), bits - exponents)), exponents - bits


@dataclass(frozen=True)
class _Part:
    """Consecutive weights of an update, ``first`` to ``end``: a factored matrix of ``shape`` or weights sent unchanged.

    The part takes the places ``at`` to ``stop`` among the numbers of a payload.
    """

    first: int
    end: int
    at: int
    stop: int
    block: int = 0
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Layout:
    """The layout of payloads: the parts of a model's updates, and functions to write and read them."""

    rank: int
    spec: ModelSpec

    @cached_property
    def parts(self) -> tuple[_Part, ...]:
        return tuple(self._parts())

    def _parts(self) -> Iterator[_Part]:
        first = at = len(self.spec.weights)
        if first:
            yield _Part(0, first, 0, at)
        for number, block in enumerate(self.spec.blocks):
            count = prod(block.shape)
            sent = self.rank * sum(block.shape)
            factored = len(block.shape) == 2 and sent < count
            stop = at + (sent if factored else count)
            yield _Part(first, first + count, at, stop, number, block.shape if factored else ())
            first, at = first + count, stop

    @property
    def size(self) -> int:
        """Count of numbers in a payload."""
        return self.parts[-1].stop

    def factors(self, part: _Part, numbers: Floats) -> tuple[Floats, Floats]:
        """Return views of A and B of a matrix, given all numbers, shape (k, size)."""
        inputs, outputs = part.shape
        split = part.at + inputs * self.rank
        a = numbers[:, part.at : split].reshape(-1, inputs, self.rank)
        return a, numbers[:, split : part.stop].reshape(-1, self.rank, outputs)

    def put(self, part: _Part, numbers: Floats, a: Floats, b: Floats) -> None:
        numbers[:, part.at : part.stop] = np.concatenate([each.reshape(len(each), -1) for each in (a, b)], axis=1)

    def encode(self, updates: Floats, keys: Keys) -> pa.BinaryArray:
        sent = np.empty((len(updates), self.size))
        for part in self.parts:
            values = updates[:, part.first : part.end]
            if part.shape:
                self.put(part, sent, *closest_factors(values.reshape(-1, *part.shape), self.rank))
            else:
                sent[:, part.at : part.stop] = values
        rows = np.empty((len(updates), _HEAD + 4 * self.size), np.uint8)
        rows[:, :_HEAD] = np.frombuffer(self.rank.to_bytes(2, "little"), np.uint8)
        rows[:, _HEAD:] = np.ascontiguousarray(sent, "<f4").view(np.uint8).reshape(len(rows), -1)
        return fixed_payloads(rows)

    def decode(self, payloads: pa.BinaryArray, m: int) -> Decoded:
        rows, ok = rows_of(payloads, _HEAD + 4 * self.size)
        ranks = np.ascontiguousarray(rows[:, :_HEAD]).view("<u2")[:, 0]
        sent = np.ascontiguousarray(rows[:, _HEAD:]).view("<f4")
        ok = ok & (ranks == self.rank) & np.isfinite(sent).all(axis=1)
        sent = np.where(ok[:, None], sent, np.float32(0))
        updates = np.empty((len(rows), m), np.float32)
        with np.errstate(over="ignore", under="ignore"):
            for part in self.parts:
                values = sent[:, part.at : part.stop]
                if part.shape:
                    values = exact_products(*self.factors(part, sent)).reshape(len(rows), -1)
                updates[:, part.first : part.end] = values
            ok &= np.maximum(updates.max(axis=1), -updates.min(axis=1)) <= LARGEST
        updates[~ok] = 0
        return updates, ok

    def trouble(self, payload: bytes, m: int) -> str | None:
        rank = int.from_bytes(payload[:_HEAD], "little")
        if rank != self.rank:
            return f"says that its rank is {rank:,}, not {self.rank:,}"
        if self.decode(payload_column([payload]), m)[1][0]:
            return None
        return f"has a number that is not finite, or that is beyond {LARGEST:g} when its factors are multiplied"

    def within(self, keys: Keys) -> _Factors:
        start = np.zeros((len(keys), self.size))
        seeds = payload_seeds(keys)
        for part in self.parts:
            if part.shape:
                inputs, outputs = part.shape
                signs = random_sign_matrices(seeds, part.block, outputs, self.rank) / np.sqrt(self.rank)
                self.put(part, start, np.zeros((len(keys), inputs, self.rank)), signs.swapaxes(1, 2))
        return _Factors(self, start)


@dataclass(frozen=True)
class _Factors:
    """See :class:`fedping.protocol.link_ends.Factors`."""

    layout: _Layout
    start: NDArray[np.float64]

    def movement(self, numbers: Floats) -> Floats:
        moved = np.empty((len(numbers), self.layout.parts[-1].end), numbers.dtype)
        for part in self.layout.parts:
            values = numbers[:, part.at : part.stop]
            if part.shape:
                a, b = self.layout.factors(part, numbers)
                values = (a @ b).reshape(len(numbers), -1)
            moved[:, part.first : part.end] = values
        return moved

    def gradients(self, numbers: Floats, gradients: Floats) -> Floats:
        by_numbers = np.empty(numbers.shape, gradients.dtype)
        for part in self.layout.parts:
            values = gradients[:, part.first : part.end]
            if part.shape:
                a, b = self.layout.factors(part, numbers)
                by_product = values.reshape(-1, *part.shape)
                self.layout.put(part, by_numbers, by_product @ b.swapaxes(1, 2), a.swapaxes(1, 2) @ by_product)
            else:
                by_numbers[:, part.at : part.stop] = values
        return by_numbers
