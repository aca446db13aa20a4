"""Random masks (thesis 4.2.1): the encodings `mask`, `mask-X` with another encoding X, and `mask-independent`.

The server divides each kept weight by p, its probability of being kept, so that a mask changes no expectation. The
variance of a weight h is h² (1/p - 1). Layouts, little-endian:

- ``mask``: u64 seed, f32[k]: one weight of each of k blocks of neighbours;
- ``mask-X``: u64 seed, u32 k, then the payload of k numbers in the encoding X;
- ``mask-independent``: u64 seed, f64 share, f32[...]: a coin is tossed for every weight, as in the thesis.

Values are sent without the factor 1/p. Clients that train within a mask multiply their values by p first, because a
mask leaves out nothing of their result (thesis 4.3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.protocol.draws import Keys, bits, child_keys, uniforms
from fedping.protocol.encodings.dense import Float32
from fedping.protocol.encodings.payloads import (
    SEED_BYTES,
    joined_payloads,
    payload_column,
    payload_lengths,
    payload_seeds,
    seed_bytes,
    seeds_of,
    split_payloads,
)
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd, Sparse, Structured
from fedping.protocol.rules import Traits, traits_where
from fedping.protocol.weights import LARGEST

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.spec import ModelSpec


class Mask(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="mask"):
    """Send a random share of the weights; the seed that selects them is sent along (thesis 4.2.1).

    ``keep`` is that share. ``draw`` is how weights are drawn: ``blocks`` takes one of each of k blocks of neighbours, k
    = max(1, round(keep m)); ``independent`` tosses a coin for each, as in the thesis. An encoding link may follow, for
    the kept numbers; without one, they are sent as float32.
    """

    keep: Annotated[float, Meta(gt=0, le=1)]
    draw: Literal["blocks", "independent"] = "blocks"

    @property
    def traits(self) -> Traits:
        """Traits of the link (`fedping.protocol.rules`)."""
        coins = self.draw == "independent"
        return traits_where(
            {"encodes": True, "inexact": True, "leaves zeros": True, "within": True, "other draws": coins}
        )

    @property
    def encoding(self) -> str:
        """The tag of payloads if no other link follows."""
        return "mask" if self.draw == "blocks" else "mask-independent"

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`); the kept numbers are float32."""
        if self.draw == "independent":
            return _Coins(self.keep).ends()
        return _Blocks(self.keep, *Float32().ends(spec), says_k=False).ends(self.encoding)

    def ends_with(self, values: Ends, tag: str) -> Ends:
        """Return the two ends of this mask and a second link, which encodes the kept numbers.

        Args:
            values: the ends of the second link.
            tag: the tag of the second link.
        """
        return _Blocks(self.keep, *values, says_k=True).ends(f"{self.encoding}-{tag}")


EXAMPLES = (Mask(keep=0.25), Mask(keep=0.3, draw="independent"))
"""Example settings for tests."""

Floats: TypeAlias = NDArray[np.floating[Any]]

_HALF = np.uint64(32)
_VALUES = 2
"""Number of a payload key's child from which the link that encodes the kept numbers draws."""


def weights_kept(keep: float, m: int) -> int:
    """Return the number of weights that a mask keeps of m: one for each block. A half is rounded up."""
    return max(1, int(np.floor(keep * m + 0.5)))


def block_edges(k: int, m: int) -> NDArray[np.int64]:
    """Return the start of each of k blocks of m weights, and the end of the last one, shape (k + 1,)."""
    edges: NDArray[np.int64] = np.arange(k + 1, dtype=np.int64) * m // k
    return edges


def places(seeds: NDArray[np.uint64], k: int, m: int) -> NDArray[np.intp]:
    """Return the positions of the weights, one in each of k blocks, that the masks of n seeds keep, shape (n, k)."""
    edges = block_edges(k, m)
    offsets = bits(seeds, k) >> _HALF
    offsets *= np.diff(edges).astype(np.uint64)
    offsets >>= _HALF
    at = offsets.view(np.int64)
    at += edges[:-1]
    return at


def scaled(sent: NDArray[np.float32], m: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the sent numbers, shape (n, k), times the lengths of their blocks; and which rows are finite."""
    k = sent.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        values = sent * np.diff(block_edges(k, m)).astype(np.float32)
        return values, np.asarray((np.abs(values) <= LARGEST).all(axis=1))


@dataclass(frozen=True)
class _Blocks:
    """A mask of one weight a block, and the ends of the link that encodes the kept numbers."""

    keep: float
    client: ClientEnd
    server: ServerEnd
    says_k: bool

    @property
    def _head(self) -> int:
        return SEED_BYTES + (4 if self.says_k else 0)

    def ends(self, encoding: str) -> Ends:
        structured = Structured(within=self._within, encode=self._encode_within)
        client = ClientEnd(encode=self._encode, structured=structured, encoding=encoding)
        return client, ServerEnd(decode=self._decode, lengths=self._lengths, trouble=self._trouble, sparse=self._sparse)

    def _kept(self, updates: Floats, seeds: NDArray[np.uint64]) -> Floats:
        m = updates.shape[1]
        return np.take_along_axis(updates, places(seeds, weights_kept(self.keep, m), m), axis=1)

    def _encode(self, updates: Floats, keys: Keys) -> pa.BinaryArray:
        seeds = payload_seeds(keys)
        return self._payloads(self._kept(updates, seeds), seeds, keys)

    def _encode_within(self, moved: Floats, keys: Keys) -> pa.BinaryArray:
        seeds, m = payload_seeds(keys), moved.shape[1]
        lengths = np.diff(block_edges(weights_kept(self.keep, m), m))
        return self._payloads(self._kept(moved, seeds) / lengths, seeds, keys)

    def _payloads(self, kept: Floats, seeds: NDArray[np.uint64], keys: Keys) -> pa.BinaryArray:
        assert self.client.encode is not None
        encoded = self.client.encode(kept, child_keys(keys, _VALUES))
        heads = seed_bytes(seeds)
        if self.says_k:
            count = np.frombuffer(kept.shape[1].to_bytes(4, "little"), np.uint8)
            heads = np.hstack([heads, np.tile(count, (len(heads), 1))])
        return joined_payloads(heads, encoded)

    def _within(self, keys: Keys) -> Callable[[Floats], Floats]:
        seeds = payload_seeds(keys)

        @cache
        def kept_of(m: int) -> NDArray[np.intp]:
            return places(seeds, weights_kept(self.keep, m), m)

        def masked(gradients: Floats) -> Floats:
            at, kept = kept_of(gradients.shape[1]), np.zeros_like(gradients)
            np.put_along_axis(kept, at, np.take_along_axis(gradients, at, axis=1), axis=1)
            return kept

        return masked

    def _sparse(self, payloads: pa.BinaryArray, m: int) -> Sparse:
        assert self.server.decode is not None
        k = weights_kept(self.keep, m)
        heads, fits, behind = split_payloads(payloads, self._head)
        sent, readable = self.server.decode(behind, k)
        seeds, valid = seeds_of(heads)
        values, finite = scaled(sent, m)
        ok = fits & readable & valid & finite
        if self.says_k:
            ok &= np.ascontiguousarray(heads[:, SEED_BYTES:]).view("<u4")[:, 0] == k
        values[~ok] = 0
        return Sparse(places(seeds, k, m), values, ok)

    def _decode(self, payloads: pa.BinaryArray, m: int) -> Decoded:
        sparse = self._sparse(payloads, m)
        return sparse.dense(m), sparse.ok

    def _lengths(self, m: int) -> tuple[int, int]:
        assert self.server.lengths is not None
        least, most = self.server.lengths(weights_kept(self.keep, m))
        return self._head + least, self._head + most

    def _trouble(self, payload: bytes, m: int) -> str | None:
        if self._sparse(payload_column([payload]), m).ok[0]:
            return None
        k = weights_kept(self.keep, m)
        if problem := _seed_trouble(payload):
            return problem
        if self.says_k and (count := int.from_bytes(payload[SEED_BYTES : self._head], "little")) != k:
            return f"says that it has {count:,} weights, not {k:,}"
        if self.server.trouble and (problem := self.server.trouble(payload[self._head :], k)):
            return problem
        return "has a number that is not finite, or is too large when it is multiplied by the length of its block"


_COIN_HEAD = SEED_BYTES + 8


def coins(seeds: NDArray[np.uint64], keep: float, m: int) -> NDArray[np.bool_]:
    """Return which of m weights the independent masks of n seeds keep, shape (n, m)."""
    return uniforms(seeds, m) < keep


@dataclass(frozen=True)
class _Coins:
    """A mask that tosses a coin for each weight, as in the thesis, for comparison with blocks."""

    keep: float

    def ends(self) -> Ends:
        structured = Structured(within=self._within, encode=lambda moved, keys: self._encode(moved * self.keep, keys))
        client = ClientEnd(encode=self._encode, structured=structured)
        return client, ServerEnd(decode=self._decode, lengths=self._lengths, trouble=self._trouble)

    def _encode(self, updates: Floats, keys: Keys) -> pa.BinaryArray:
        seeds = payload_seeds(keys)
        kept, share = coins(seeds, self.keep, updates.shape[1]), np.array(self.keep, "<f8").tobytes()
        heads = [seed.tobytes() + share for seed in seed_bytes(seeds)]
        rows = zip(heads, updates, kept, strict=True)
        return payload_column([head + update[at].astype("<f4").tobytes() for head, update, at in rows])

    def _within(self, keys: Keys) -> Callable[[Floats], Floats]:
        seeds = payload_seeds(keys)
        kept_of = cache(lambda m: coins(seeds, self.keep, m))
        return lambda gradients: np.where(kept_of(gradients.shape[1]), gradients, gradients.dtype.type(0))

    def _lengths(self, m: int) -> tuple[int, int]:
        return _COIN_HEAD, _COIN_HEAD + 4 * m

    def _decode(self, payloads: pa.BinaryArray, m: int) -> Decoded:
        updates, ok = np.zeros((len(payloads), m), np.float32), np.zeros(len(payloads), np.bool_)
        lengths = payload_lengths(payloads)
        for row in np.flatnonzero((lengths >= _COIN_HEAD) & (lengths % 4 == 0)).tolist():
            read = self._one(np.frombuffer(payloads[row].as_buffer(), np.uint8), m)
            if read is not None:
                kept, values = read
                updates[row, kept], ok[row] = values, True
        return updates, ok

    def _one(self, payload: NDArray[np.uint8], m: int) -> tuple[NDArray[np.bool_], NDArray[np.float32]] | None:
        """Return which weights a payload contains, shape (m,), and their numbers; None if the payload is unreadable."""
        seeds, valid = seeds_of(payload[None])
        share, sent = payload[SEED_BYTES:_COIN_HEAD].view("<f8")[0], payload[_COIN_HEAD:].view("<f4")
        kept = coins(seeds, self.keep, m)[0]
        if not valid[0] or share != self.keep or len(sent) != kept.sum():
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            values = (sent.astype(np.float64) / self.keep).astype(np.float32)
            return (kept, values) if (np.abs(values) <= LARGEST).all() else None

    def _trouble(self, payload: bytes, m: int) -> str | None:
        if problem := _seed_trouble(payload):
            return problem
        if len(payload) % 4 == 0 and self._one(np.frombuffer(payload, np.uint8), m) is not None:
            return None
        return "has other numbers than those that its seed keeps, another share of them, or one that is not finite"


def _seed_trouble(payload: bytes) -> str | None:
    return "has a seed of 2^53 or more" if int.from_bytes(payload[:SEED_BYTES], "little") >> 53 else None
