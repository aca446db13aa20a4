"""Updates in blocks of 1,024 weights, and the payloads of such blocks: heads, then one field of bits per number.

Little-endian: a u64 seed if the layout has one; the head of each block, float32 numbers; then the fields, packed from
the low bits on. The fields of all blocks follow each other without a gap, since 1,024 fields are whole bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.encodings.payloads import SEED_BYTES, fixed_payloads, rows_of, seed_bytes, seeds_of

if TYPE_CHECKING:
    import pyarrow as pa


Real = TypeVar("Real", bound=np.floating[Any])

Sound: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.bool_]]
"""A function from k payloads' heads, shape (k, blocks, head), to whether they are valid, shape (k,)."""

BLOCK = 1024

_IN_CACHE = 2**16
"""Numbers read or written at a time, so few that they stay in the processor's cache."""


def padded_size(m: int) -> int:
    """Return the length of m weights once their last block is padded to a power of two."""
    full, rest = divmod(m, BLOCK)
    return full * BLOCK + (1 << (rest - 1).bit_length() if rest else 0)


def padded(updates: NDArray[Real]) -> NDArray[Real]:
    """Return updates of shape (k, m) padded with zeros, shape (k, padded_size(m))."""
    m = updates.shape[1]
    return np.pad(updates, ((0, 0), (0, padded_size(m) - m)))


def tiles(k: int, m: int) -> Iterator[tuple[slice, slice, slice, int]]:
    """Yield tiles of k updates of m weights: slices of the updates, blocks and weights, and the block size."""
    full, rest = divmod(m, BLOCK)
    pings, at_a_time = max(_IN_CACHE // m, 1), _IN_CACHE // BLOCK
    for first in range(0, k, pings):
        of_pings = slice(first, min(first + pings, k))
        for block in range(0, full, at_a_time):
            stop = min(block + at_a_time, full)
            yield of_pings, slice(block, stop), slice(block * BLOCK, stop * BLOCK), BLOCK
        if rest:
            yield of_pings, slice(full, full + 1), slice(full * BLOCK, m), rest


class Parts(NamedTuple):
    """The parts of k payloads.

    Attributes:
        seeds: shape (k,); zeros in a layout without one.
        heads: shape (k, blocks, head); zeros for unreadable payloads.
        fields: packed fields, shape (k, bytes).
        ok: which payloads could be read, shape (k,).
    """

    seeds: NDArray[np.uint64]
    heads: NDArray[np.float32]
    fields: NDArray[np.uint8]
    ok: NDArray[np.bool_]


@dataclass(frozen=True)
class Layout:
    """The layout of a payload.

    Attributes:
        numbers: number of fields.
        bits: bits in a field.
        head: number of float32 numbers in a block's head.
        seeded: whether a seed comes first.
    """

    numbers: int
    bits: int
    head: int
    seeded: bool

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.numbers // BLOCK)

    @property
    def heads_at(self) -> int:
        """The offset of the heads."""
        return SEED_BYTES if self.seeded else 0

    @property
    def fields_at(self) -> int:
        """The offset of the fields."""
        return self.heads_at + 4 * self.head * self.blocks

    @property
    def size(self) -> int:
        """The bytes of a payload."""
        return self.fields_at + packed_size(self.numbers, self.bits)

    def payloads(
        self, heads: NDArray[np.float32], fields: NDArray[np.uint8], seeds: NDArray[np.uint64] | None = None
    ) -> pa.BinaryArray:
        """Return k payloads from heads, shape (k, blocks, head), fields, shape (k, numbers), and seeds, shape (k,)."""
        rows = np.empty((len(heads), self.size), np.uint8)
        if seeds is not None:
            rows[:, :SEED_BYTES] = seed_bytes(seeds)
        of_blocks = np.ascontiguousarray(heads, "<f4").view(np.uint8)
        rows[:, self.heads_at : self.fields_at] = of_blocks.reshape(len(heads), self.fields_at - self.heads_at)
        rows[:, self.fields_at :] = packed(fields, self.bits)
        return fixed_payloads(rows)

    def read(self, payloads: pa.BinaryArray, sound: Sound) -> Parts:
        """Return the parts of k payloads; a payload is readable if it is complete and its heads are ``sound``."""
        rows, ok = rows_of(payloads, self.size)
        heads = self._heads(rows)
        ok = ok & self._whole(rows) & sound(heads)
        if not ok.all():
            heads = np.where(ok[:, None, None], heads, np.float32(0))
        seeds = seeds_of(rows)[0] if self.seeded else np.zeros(len(rows), np.uint64)
        return Parts(seeds, heads, self._fields(rows), ok)

    def trouble(self, payload: bytes, sound: Sound, unsound: str) -> str | None:
        """Return why a payload of the right length is unreadable (``unsound`` for invalid heads), else None."""
        row = np.frombuffer(payload, np.uint8)[None]
        if not sound(self._heads(row))[0]:
            return unsound
        if self.seeded and not seeds_of(row)[1][0]:
            return "has a seed of 2^53 or more"
        return None if self._whole(row)[0] else "has bits set beyond its last weight"

    def _heads(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        heads = np.ascontiguousarray(rows[:, self.heads_at : self.fields_at]).view("<f4")
        return heads.reshape(len(rows), self.blocks, self.head)

    def _fields(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return rows[:, self.fields_at :]

    def _whole(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which of k payloads have a valid seed, and no bit beyond their fields; shape (k,)."""
        ends = ends_in_zeros(self._fields(rows), self.numbers, self.bits)
        return ends & seeds_of(rows)[1] if self.seeded else ends


def packed_size(count: int, bits: int) -> int:
    """Return the number of bytes for ``count`` fields."""
    return -(-count * bits // 8)


def packed(fields: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return fields of shape (k, n), each below 2^bits, as bytes, shape (k, packed_size(n, bits)).

    The first field has the lowest bits of the first byte; bits beyond the last field are 0.
    """
    if bits == 8:
        return fields
    k, n = fields.shape
    each = np.unpackbits(fields[:, :, None], axis=2, count=bits, bitorder="little")
    return np.packbits(each.reshape(k, n * bits), axis=1, bitorder="little")


def field_table(values: NDArray[Real]) -> NDArray[Real]:
    """Return the table for :func:`looked_up`, given the value that each field stands for, shape (2^bits,).

    The table has a row for each byte, with the values of the byte's fields. For fields of 3 bits it has a row for each
    group of twelve bits, which is four fields; for fields of 5, 6 and 7 bits, a row for each field.
    """
    bits = len(values).bit_length() - 1
    of = {3: 12, 5: 5, 6: 6, 7: 7}.get(bits, 8)
    numbers = np.arange(1 << of)[:, None] >> np.arange(0, of, bits)
    table: NDArray[Real] = values[numbers & (len(values) - 1)]
    return table


def looked_up(rows: NDArray[np.uint8], table: NDArray[Real]) -> NDArray[Real]:
    """Return the values of the fields in k rows of bytes, shape (k, n), where n fields begin in a row."""
    k, size = rows.shape
    if len(table) == 256:
        return np.take(table, rows, axis=0).reshape(k, size * table.shape[1])
    if table.shape[1] == 1:
        return np.take(table[:, 0], _unpacked(rows, len(table).bit_length() - 1))
    threes = np.pad(rows, ((0, 0), (0, -size % 3))).reshape(k, -(-size // 3), 3).astype(np.uint16)
    first, second, third = threes[:, :, 0], threes[:, :, 1], threes[:, :, 2]
    twelve = np.stack([first | (second & 15) << 8, second >> 4 | third << 4], axis=2)
    return np.take(table, twelve, axis=0).reshape(k, twelve.shape[1] * 2 * table.shape[1])


def _unpacked(rows: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return the fields of k rows of bytes, shape (k, n), where n is the number of whole fields in a row."""
    k, size = rows.shape
    n = 8 * size // bits
    each = np.unpackbits(rows, axis=1, count=n * bits, bitorder="little").reshape(k, n, bits)
    return np.packbits(each, axis=2, bitorder="little")[:, :, 0]


def looked_up_between(rows: NDArray[np.uint8], where: slice, table: NDArray[Real]) -> NDArray[Real]:
    """Return the values of a range of fields in k rows, shape (k, fields); the range starts at a block of 1,024."""
    bits = (len(table).bit_length() - 1) // table.shape[1]
    there = rows[:, where.start * bits // 8 : packed_size(where.stop, bits)]
    return looked_up(there, table)[:, : where.stop - where.start]


def ends_in_zeros(rows: NDArray[np.uint8], count: int, bits: int) -> NDArray[np.bool_]:
    """Return which of k rows have no bit set beyond their last field, shape (k,)."""
    used = count * bits - 8 * (rows.shape[1] - 1)
    return np.asarray(rows[:, -1] >> used == 0) if used < 8 else np.ones(len(rows), bool)
