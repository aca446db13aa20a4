"""Products of matrices with random matrices of few columns: the encodings `low-rank-outputs` and `low-rank-inputs`.

With `fixed = "neither"` both factors are sent (`fedping.protocol.encodings.two_factors`).

For a matrix H of inputs by outputs, B = H A is sent, where A is outputs by rank, with entries of 1 or -1 over the root
of the rank, drawn from a seed. The server computes B Aᵀ, whose expectation is H (thesis 4.3.2, where a layer's matrix
is the transpose of ours). With a factor on the inputs' side, B = Aᵀ H is sent, and the server computes A B. The squared
error is (d - 1) / rank times the squared norm of H, where d is the length of the factor.

A payload is little-endian: u64 seed, u16 rank, then f32 for every number, block after block. A block of two dimensions
is sent as B, row by row, if B is smaller; the other blocks are sent unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.protocol.draws import Keys
from fedping.protocol.encodings.payloads import (
    SEED_BYTES,
    fixed_payloads,
    payload_column,
    payload_seeds,
    rows_of,
    seed_bytes,
    seeds_of,
)
from fedping.protocol.encodings.rotation import random_sign_matrices
from fedping.protocol.encodings.two_factors import two_factors
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd, Structured
from fedping.protocol.rules import Traits, traits_where
from fedping.protocol.weights import LARGEST

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.spec import ModelSpec


class LowRank(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="low-rank"):
    """Send each matrix as its product with a random matrix of ``rank`` columns, drawn from a seed (thesis 4.3.2).

    ``fixed`` is the side of the random factor: the side of a layer's ``outputs``, as in the thesis, or ``inputs``. With
    ``neither``, both factors of a product of rank ``rank`` are sent, and clients with ``structured`` train both.
    Weights that aren't matrices, and matrices for which it saves nothing, are sent unchanged.
    """

    rank: Annotated[int, Meta(ge=1, le=65_535)]
    fixed: Literal["outputs", "inputs", "neither"] = "outputs"

    @property
    def traits(self) -> Traits:
        """Traits of the link (`fedping.protocol.rules`)."""
        always: Traits = frozenset({"encodes", "inexact", "within", "low rank", "other draws"})
        return always | traits_where({"both factors": self.fixed == "neither", "one factor": self.fixed != "neither"})

    @property
    def encoding(self) -> str:
        """The tag of the link's payloads."""
        return f"low-rank-{self.fixed}"

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`).

        Raises:
            InvalidSettings: the link saves nothing for any of the model's matrices, or a matrix needs a factor that is
                much larger than the model.
        """
        if self.fixed == "neither":
            return two_factors(self.rank, spec)
        layout = _Layout(self, spec)
        if not any(part.shape for part in layout.parts):
            raise InvalidSettings(
                f"the upload link 'low-rank' of rank {self.rank:,} saves nothing with model spec '{spec.name}', which "
                f"has no block of two dimensions with more than {self.rank:,} {self.fixed}; lower 'rank', or use "
                "another link"
            )
        drawn = self.rank * max(part.length for part in layout.parts)
        if drawn > (bound := max(_MOST_DRAWN * spec.m, _ALWAYS_DRAWN)):
            most = bound * self.rank // drawn
            raise InvalidSettings(
                f"the upload link 'low-rank' of rank {self.rank:,} draws {drawn:,} random signs for a matrix of model "
                f"spec '{spec.name}', which has {spec.m:,} weights; lower 'rank' to {most:,} or "
                "less, or set 'fixed' to the other side"
            )
        size = _HEAD + 4 * layout.size

        def encode(updates: Floats, keys: Keys) -> pa.BinaryArray:
            return layout.payloads(updates, payload_seeds(keys), factored)

        def encode_within(moved: Floats, keys: Keys) -> pa.BinaryArray:
            return layout.payloads(moved, payload_seeds(keys), solved)

        client = ClientEnd(encode=encode, structured=Structured(within=layout.within, encode=encode_within))
        return client, ServerEnd(decode=layout.decode, lengths=lambda m: (size, size), trouble=layout.trouble)


EXAMPLES = (LowRank(rank=2), LowRank(rank=2, fixed="inputs"), LowRank(rank=1, fixed="neither"))
"""Example settings for tests."""

Floats: TypeAlias = NDArray[np.floating[Any]]

_HEAD = SEED_BYTES + 2

_MOST_DRAWN = 2
"""Maximum random signs for each weight of the model, so that both sides have enough memory."""

_ALWAYS_DRAWN = 2**17
"""Random signs that may be drawn for any model: a megabyte in doubles."""

_EXACT_BITS = 52
"""Sums of whole numbers below 2^52 are exact in double precision."""


def factored(matrices: Floats, signs: NDArray[np.float32], *, outputs: bool) -> Floats:
    """Return the factors B of k matrices: H A, shape (k, inputs, rank), or Aᵀ H, shape (k, rank, outputs)."""
    factor = _factor(matrices, signs)
    return matrices @ factor if outputs else factor.swapaxes(1, 2) @ matrices


def multiplied(factors: Floats, signs: NDArray[np.float32], *, outputs: bool) -> Floats:
    """Return the matrices decoded from B: B Aᵀ or A B, shape (k, inputs, outputs).

    B is rounded to whole multiples of a unit, 2^-36 or less of its largest number, so that all sums are exact in double
    precision: every machine gets the same bits, in any order of addition.
    """
    rank, exact = signs.shape[2], factors.astype(np.float64)
    _, exponents = np.frexp(np.abs(exact).max(axis=(1, 2), keepdims=True))
    shifts = _EXACT_BITS - (rank - 1).bit_length() - exponents
    exact *= np.ldexp(1.0, shifts)
    whole, across = np.rint(exact, out=exact), signs.astype(np.float64)
    total: NDArray[np.float64] = whole @ across.swapaxes(1, 2) if outputs else across @ whole
    matrices: Floats = np.empty(total.shape, factors.dtype)
    np.multiply(total, np.ldexp(1 / np.sqrt(rank), -shifts), out=matrices, casting="same_kind")
    return matrices


def projected(matrices: Floats, signs: NDArray[np.float32], *, outputs: bool) -> Floats:
    """Return H A Aᵀ, or A Aᵀ H, of k matrices: the part of each that B can express."""
    factor = _factor(matrices, signs)
    across = factor.swapaxes(1, 2)
    return matrices @ factor @ across if outputs else factor @ (across @ matrices)


def solved(matrices: Floats, signs: NDArray[np.float32], *, outputs: bool) -> Floats:
    """Return the factors B of k matrices B Aᵀ or A B, by least squares, because A may have equal columns."""
    exact = matrices.astype(np.float64)
    factor, products = _factor(exact, signs), factored(exact, signs, outputs=outputs)
    inverse = np.linalg.pinv(factor.swapaxes(1, 2) @ factor, hermitian=True)
    return products @ inverse if outputs else inverse @ products


def _factor(matrices: Floats, signs: NDArray[np.float32]) -> Floats:
    """Return A in the precision of the matrices, shape (k, length, rank)."""
    factor: Floats = signs.astype(matrices.dtype) / np.sqrt(signs.shape[2], dtype=matrices.dtype)
    return factor


@dataclass(frozen=True)
class _Part:
    """Consecutive weights of an update, ``first`` to ``end``: a factored matrix of ``shape`` or weights sent unchanged.

    ``size`` is the count of numbers sent, ``length`` the length of the random factor, ``block`` the block's number.
    """

    first: int
    end: int
    block: int = 0
    shape: tuple[int, ...] = ()
    size: int = 0
    length: int = 0


@dataclass(frozen=True)
class _Layout:
    """The layout of payloads: the parts of a model's updates, and functions to write and read them."""

    settings: LowRank
    spec: ModelSpec

    @property
    def outputs(self) -> bool:
        return self.settings.fixed == "outputs"

    @cached_property
    def parts(self) -> tuple[_Part, ...]:
        return tuple(self._parts())

    def _parts(self) -> Iterator[_Part]:
        at, rank = len(self.spec.weights), self.settings.rank
        if at:
            yield _Part(0, at, size=at)
        for number, block in enumerate(self.spec.blocks):
            count = prod(block.shape)
            if len(block.shape) == 2 and rank < (length := block.shape[1 if self.outputs else 0]):
                yield _Part(at, at + count, number, block.shape, rank * (count // length), length)
            else:
                yield _Part(at, at + count, size=count)
            at += count

    @cached_property
    def size(self) -> int:
        """Count of numbers in a payload."""
        return sum(part.size for part in self.parts)

    def each(self, updates: Floats, seeds: NDArray[np.uint64], work: Callable[..., Floats]) -> Iterator[Floats]:
        """Yield part by part the results of ``work`` on matrices and their factors' signs; other parts unchanged."""
        for part in self.parts:
            values = updates[:, part.first : part.end]
            if part.shape:
                signs = random_sign_matrices(seeds, part.block, part.length, self.settings.rank)
                values = work(values.reshape(-1, *part.shape), signs, outputs=self.outputs)
            yield values.reshape(len(updates), -1)

    def payloads(self, updates: Floats, seeds: NDArray[np.uint64], work: Callable[..., Floats]) -> pa.BinaryArray:
        """Return k payloads of the results of ``work`` on each matrix."""
        rows = np.empty((len(updates), _HEAD + 4 * self.size), np.uint8)
        rows[:, :SEED_BYTES] = seed_bytes(seeds)
        rows[:, SEED_BYTES:_HEAD] = np.frombuffer(self.settings.rank.to_bytes(2, "little"), np.uint8)
        sent = np.concatenate(list(self.each(updates, seeds, work)), axis=1)
        rows[:, _HEAD:] = np.ascontiguousarray(sent, "<f4").view(np.uint8).reshape(len(rows), -1)
        return fixed_payloads(rows)

    def decode(self, payloads: pa.BinaryArray, m: int) -> Decoded:
        rows, ok = rows_of(payloads, _HEAD + 4 * self.size)
        seeds, valid = seeds_of(rows)
        ranks = np.ascontiguousarray(rows[:, SEED_BYTES:_HEAD]).view("<u2")[:, 0]
        sent = np.ascontiguousarray(rows[:, _HEAD:]).view("<f4")
        ok = ok & valid & (ranks == self.settings.rank) & np.isfinite(sent).all(axis=1)
        sent = np.where(ok[:, None], sent, np.float32(0))
        updates, at = np.empty((len(rows), m), np.float32), 0
        with np.errstate(over="ignore"):
            for part in self.parts:
                values, at = sent[:, at : at + part.size], at + part.size
                if part.shape:
                    signs = random_sign_matrices(seeds, part.block, part.length, self.settings.rank)
                    other = part.size // self.settings.rank
                    shape = (other, self.settings.rank) if self.outputs else (self.settings.rank, other)
                    values = multiplied(values.reshape(-1, *shape), signs, outputs=self.outputs)
                updates[:, part.first : part.end] = values.reshape(len(rows), -1)
            ok &= np.maximum(updates.max(axis=1), -updates.min(axis=1)) <= LARGEST
        updates[~ok] = 0
        return updates, ok

    def trouble(self, payload: bytes, m: int) -> str | None:
        if int.from_bytes(payload[:SEED_BYTES], "little") >> 53:
            return "has a seed of 2^53 or more"
        rank = int.from_bytes(payload[SEED_BYTES:_HEAD], "little")
        if rank != self.settings.rank:
            return f"says that its rank is {rank:,}, not {self.settings.rank:,}"
        if self.decode(payload_column([payload]), m)[1][0]:
            return None
        return f"has a number that is not finite, or that is beyond {LARGEST:g} when its matrix is multiplied"

    def within(self, keys: Keys) -> Callable[[Floats], Floats]:
        """Return a function that projects gradients onto the part that the factors drawn from the keys can express."""
        seeds = payload_seeds(keys)

        return lambda gradients: np.concatenate(list(self.each(gradients, seeds, projected)), axis=1)
