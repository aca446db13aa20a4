"""Sums of shares: whole numbers modulo a number that no sum of clients comes near, as uint64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Elements: TypeAlias = NDArray[np.uint64]
"""Numbers of a ring, each below its modulus."""


@dataclass(frozen=True)
class Ring:
    """Whole numbers modulo ``modulus``, which is at most 2^64. Sums are exact, so their order does not matter."""

    modulus: int

    def of(self, whole: NDArray[np.int64]) -> Elements:
        """Return whole numbers as elements: negative ones count down from the modulus."""
        found = whole.astype(np.uint64)  # wraps
        if self.modulus != 2**64:
            found = np.where(whole < 0, found - np.uint64(2**64 - self.modulus), found)
        return found

    def centred(self, elements: Elements) -> NDArray[np.int64]:
        """Return the whole numbers nearest to zero that elements stand for; none may be 2^63 or more away from it."""
        if self.modulus == 2**64:
            return elements.astype(np.int64)
        above = elements > np.uint64(self.modulus // 2)
        return np.where(above, elements + np.uint64(2**64 - self.modulus), elements).astype(np.int64)

    def total(self, rows: Elements) -> Elements:
        """Return the sum of k rows of d elements, shape (d,); k is below 2^32."""
        if self.modulus == 2**64:
            words: Elements = rows.sum(axis=0, dtype=np.uint64)
            return words
        low = (rows & np.uint64(0xFFFFFFFF)).sum(axis=0, dtype=np.uint64).tolist()
        high = (rows >> np.uint64(32)).sum(axis=0, dtype=np.uint64).tolist()
        return np.array([((h << 32) + each) % self.modulus for h, each in zip(high, low, strict=True)], np.uint64)

    def plus(self, a: Elements, b: Elements) -> Elements:
        """Return a + b, of one shape."""
        found: Elements = a + b
        if self.modulus != 2**64:
            over = (found < a) | (found >= np.uint64(self.modulus))
            found = np.where(over, found - np.uint64(self.modulus), found)
        return found

    def minus(self, a: Elements, b: Elements) -> Elements:
        """Return a - b, of one shape."""
        found: Elements = a - b
        return found if self.modulus == 2**64 else np.where(a < b, found + np.uint64(self.modulus), found)


def as_bytes(elements: Elements) -> bytes:
    """Return elements as they travel: 8 bytes each, little-endian."""
    return elements.astype("<u8").tobytes()


def from_bytes(data: bytes) -> Elements:
    """Return the elements that have travelled so, shape (len(data) / 8,)."""
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)


WORDS = Ring(2**64)
"""What 64 bits hold: that of shares without proofs."""

PRIME = Ring(2**64 - 2**32 + 1)
"""The field of shares that come with proofs, Field64 of the VDAF draft."""
