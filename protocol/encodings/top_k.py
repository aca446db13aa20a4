"""Only the largest weights of an update: the encoding `top-k` (Aji and Heafield 2017; Lin et al. 2018).

The server takes the weights that are left out as zero, so the link is biased: with `error-feedback` before it, a client
adds what it has left out to its next update. Layout, little-endian: the places of the k weights, then f32[k], their
numbers, both ascending by place. Places are u32[k], or a bit for each weight where that is shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.protocol.encodings.mask import weights_kept
from fedping.protocol.encodings.payloads import fixed_payloads, payload_column, rows_of
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd, Sparse
from fedping.protocol.rules import Traits
from fedping.protocol.weights import LARGEST

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.spec import ModelSpec

Floats: TypeAlias = NDArray[np.floating[Any]]


class TopK(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="top-k"):
    """Send the weights of an update that are largest in absolute value, and leave out the others.

    ``keep`` is the share of weights sent: k = max(1, round(keep m)). Among equal weights, the first are sent.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "inexact", "leaves zeros", "other draws"})

    keep: Annotated[float, Meta(gt=0, le=1)]

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`)."""
        ends = _Largest(self.keep)
        return ClientEnd(encode=lambda updates, _: ends.encode(updates)), ServerEnd(
            decode=ends.decode, lengths=ends.lengths, trouble=ends.trouble, sparse=ends.sparse
        )


EXAMPLES = (TopK(keep=0.01), TopK(keep=0.3))
"""Example settings for tests."""


def largest(updates: Floats, k: int) -> NDArray[np.bool_]:
    """Return which k weights of each update are largest in absolute value, shape (n, m); among equals, the first."""
    sizes, m = np.abs(updates), updates.shape[1]
    least = np.partition(sizes, m - k, axis=1)[:, m - k, None]
    above, equal = sizes > least, sizes == least
    room = k - above.sum(axis=1, keepdims=True)
    kept: NDArray[np.bool_] = above | (equal & (np.cumsum(equal, axis=1) <= room))
    return kept


@dataclass(frozen=True)
class _Largest:
    keep: float

    def _k(self, m: int) -> int:
        return weights_kept(self.keep, m)

    def _as_bits(self, m: int) -> bool:
        return -(-m // 8) < 4 * self._k(m)

    def _head(self, m: int) -> int:
        return -(-m // 8) if self._as_bits(m) else 4 * self._k(m)

    def lengths(self, m: int) -> tuple[int, int]:
        size = self._head(m) + 4 * self._k(m)
        return size, size

    def encode(self, updates: Floats) -> pa.BinaryArray:
        n, m = updates.shape
        k = self._k(m)
        kept = largest(updates, k)
        if self._as_bits(m):
            head = np.packbits(kept, axis=1, bitorder="little")
        else:
            head = np.nonzero(kept)[1].astype("<u4").view(np.uint8).reshape(n, 4 * k)
        values = np.ascontiguousarray(updates[kept].reshape(n, k), "<f4").view(np.uint8)
        return fixed_payloads(np.hstack([head, values.reshape(n, 4 * k)]))

    def sparse(self, payloads: pa.BinaryArray, m: int) -> Sparse:
        k, size = self._k(m), self._head(m)
        rows, ok = rows_of(payloads, size + 4 * k)
        values = np.ascontiguousarray(rows[:, size:]).view("<f4").astype(np.float32)
        at, fit = self._places(rows[:, :size], m)
        with np.errstate(invalid="ignore"):
            ok = ok & fit & (np.abs(values) <= LARGEST).all(axis=1)
        at[~ok], values[~ok] = np.arange(k), 0
        return Sparse(at, values, ok)

    def _places(self, heads: NDArray[np.uint8], m: int) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the places in the heads of payloads, shape (n, k), and which heads have k ascending places."""
        k = self._k(m)
        if not self._as_bits(m):
            at = np.ascontiguousarray(heads).view("<u4").astype(np.intp)
            return at, (np.diff(at, axis=1) > 0).all(axis=1) & (at[:, -1] < m)
        bits = np.unpackbits(heads, axis=1, bitorder="little").view(np.bool_)
        ok = np.asarray((bits[:, :m].sum(axis=1) == k) & ~bits[:, m:].any(axis=1))
        at = np.tile(np.arange(k), (len(heads), 1))
        at[ok] = np.nonzero(bits[ok, :m])[1].reshape(-1, k)
        return at, ok

    def decode(self, payloads: pa.BinaryArray, m: int) -> Decoded:
        sparse = self.sparse(payloads, m)
        return sparse.dense(m), sparse.ok

    def trouble(self, payload: bytes, m: int) -> str | None:
        if self.sparse(payload_column([payload]), m).ok[0]:
            return None
        if not self._places(np.frombuffer(payload, np.uint8)[None, : self._head(m)], m)[1][0]:
            return f"does not name {self._k(m):,} different weights of {m:,} in their order"
        return f"has a number that is not finite, or beyond {LARGEST:g}"
