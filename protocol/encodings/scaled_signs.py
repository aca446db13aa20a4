"""The signs of updates with their mean size: the encoding `scaled-signs` (Karimireddy et al. 2019).

For each block of a model, and for its single weights together, a client sends the signs and one number, the mean
absolute value of the nonzero weights: this multiple of the signs is closest to the update. The link is biased; with
`error-feedback` before it, it is EF-signSGD. Layout, little-endian: the f32 mean sizes of the single weights, if any,
and of each block in order; then the signs, as in `signs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedping.protocol.encodings.payloads import joined_payloads, payload_column, split_payloads
from fedping.protocol.encodings.signs import signs_bytes, signs_payloads, signs_trouble, signs_updates
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd
from fedping.protocol.rules import Traits
from fedping.protocol.weights import LARGEST

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.spec import ModelSpec

Floats: TypeAlias = NDArray[np.floating[Any]]


class ScaledSigns(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="scaled-signs"):
    """Send the signs of an update, five weights a byte, and for each block of the model the mean size of its weights.

    A weight of zero stays zero.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "inexact", "other draws"})

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`)."""
        ends = _Scaled(spec)
        return ClientEnd(encode=lambda updates, _: ends.encode(updates)), ServerEnd(
            decode=ends.decode, lengths=ends.lengths, trouble=ends.trouble
        )


EXAMPLES = (ScaledSigns(),)
"""Example settings for tests."""


@dataclass(frozen=True)
class _Scaled:
    spec: ModelSpec

    @cached_property
    def _starts(self) -> NDArray[np.intp]:
        """Offsets of the parts of an update that each have their own mean size."""
        lengths = [prod(block.shape) for block in self.spec.blocks]
        single = len(self.spec.weights)
        ends = np.cumsum([single, *lengths])
        return np.array(([0] if single else []) + ends[:-1].tolist(), np.intp)

    @property
    def _head(self) -> int:
        return 4 * len(self._starts)

    def lengths(self, m: int) -> tuple[int, int]:
        size = self._head + signs_bytes(m)
        return size, size

    def encode(self, updates: Floats) -> pa.BinaryArray:
        exact = np.abs(updates, dtype=np.float64)
        counts = np.add.reduceat((exact > 0).astype(np.float64), self._starts, axis=1)
        sizes = np.add.reduceat(exact, self._starts, axis=1) / np.maximum(counts, 1)
        heads = np.ascontiguousarray(sizes, "<f4").view(np.uint8).reshape(len(updates), self._head)
        return joined_payloads(heads, signs_payloads(updates))

    def decode(self, payloads: pa.BinaryArray, m: int) -> Decoded:
        heads, fits, behind = split_payloads(payloads, self._head)
        sizes = np.ascontiguousarray(heads).view("<f4")
        signs, readable = signs_updates(behind, m)
        ok = fits & readable & (sizes >= 0).all(axis=1) & (sizes <= LARGEST).all(axis=1)
        sizes = np.where(ok[:, None], sizes, np.float32(0))
        lengths = np.diff([*self._starts.tolist(), m])
        return signs * np.repeat(sizes, lengths, axis=1), ok

    def trouble(self, payload: bytes, m: int) -> str | None:
        if problem := signs_trouble(payload[self._head :], m):
            return problem
        if self.decode(payload_column([payload]), m)[1][0]:
            return None
        return f"has a size that is negative, not finite, or beyond {LARGEST:g}"
