"""The signs of updates (thesis 4.4): the encodings `signs`, five weights per byte, and `sign`, of older studies.

`signs-up` and `sign` have one bit per weight; `sign` has two where zeros abstain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedping.protocol.encodings.payloads import fixed_payloads, rows_of
from fedping.protocol.link_ends import ClientEnd, Ends, ServerEnd
from fedping.protocol.rules import Traits

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.spec import ModelSpec


class Sign(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="sign"):
    """Encode only the signs of an update, in bits. For older studies; `signs` takes fewer bits and means the same.

    ``zero`` is how a zero is sent: ``up`` as a positive number, with one bit a weight; ``abstain`` as a zero, with two
    bits a weight.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "sends bits", "equal lengths", "inexact"})

    zero: Literal["abstain", "up"] = "abstain"

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`)."""
        abstain = self.zero == "abstain"

        def lengths(m: int) -> tuple[int, int]:
            size = sign_bytes(m, abstain=abstain)
            return size, size

        return ClientEnd(encode=lambda updates, _: sign_payloads(updates, abstain=abstain)), ServerEnd(
            decode=lambda payloads, m: sign_updates(payloads, m, abstain=abstain),
            lengths=lengths,
            trouble=lambda payload, m: sign_trouble(payload, m, abstain=abstain),
        )


class Signs(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="signs"):
    """Encode only the signs of an update (thesis 4.4).

    ``zero`` is how a zero is sent: ``abstain`` as a zero, with five weights a byte; ``up`` as a positive number, with
    eight.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "sends bits", "inexact"})

    zero: Literal["abstain", "up"] = "abstain"

    @property
    def encoding(self) -> str:
        """The tag of the link's payloads."""
        return "signs" if self.zero == "abstain" else "signs-up"

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`)."""
        if self.zero == "up":
            return ClientEnd(encode=lambda updates, _: sign_payloads(updates, abstain=False)), ServerEnd(
                decode=lambda payloads, m: sign_updates(payloads, m, abstain=False),
                lengths=lambda m: (sign_bytes(m, abstain=False), sign_bytes(m, abstain=False)),
                trouble=lambda payload, m: sign_trouble(payload, m, abstain=False),
            )
        return ClientEnd(encode=lambda updates, _: signs_payloads(updates)), ServerEnd(
            decode=signs_updates,
            lengths=lambda m: (signs_bytes(m), signs_bytes(m)),
            trouble=signs_trouble,
        )


EXAMPLES = (Sign(zero="up"), Sign(zero="abstain"), Signs(zero="up"), Signs(zero="abstain"))
"""Example settings for tests."""

A_BYTE = 5
"""Weights per byte: 3^5 = 243 of its 256 values are used."""

_PLACES = np.array([1, 3, 9, 27, 81], np.uint8)
_LARGEST = 242
_SIGNS = (np.arange(256)[:, None] // _PLACES % 3 - 1).astype(np.float32)
"""The five signs of each byte, the first weight's from the lowest digit of base 3."""


def signs_bytes(m: int) -> int:
    """Return the bytes of the signs of m weights."""
    return -(-m // A_BYTE)


def signs_payloads(updates: NDArray[np.floating]) -> pa.BinaryArray:
    """Return the signs of updates of shape (k, m) as k payloads.

    A sign plus 1 is a digit of base 3; the first of five is the lowest digit of a byte. Digits beyond the last weight
    are 1, as for a zero.
    """
    k, m = updates.shape
    size = signs_bytes(m)
    digits = np.ones((k, size * A_BYTE), np.uint8)
    digits[:, :m] += updates > 0
    digits[:, :m] -= updates < 0
    return fixed_payloads(np.add.reduce(digits.reshape(k, size, A_BYTE) * _PLACES, axis=2, dtype=np.uint8))


def signs_updates(payloads: pa.BinaryArray, m: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the sign of each weight (-1, 0 or 1), shape (k, m), and which payloads could be read, shape (k,)."""
    rows, ok = rows_of(payloads, signs_bytes(m))
    signs = np.take(_SIGNS, rows, axis=0).reshape(len(rows), rows.shape[1] * A_BYTE)
    ok &= (rows <= _LARGEST).all(axis=1) & ~signs[:, m:].any(axis=1)
    signs = signs[:, :m]
    if not ok.all():
        signs[~ok] = 0
    return signs, ok


def signs_trouble(payload: bytes, m: int) -> str | None:
    """Return why a payload of the right length doesn't contain signs of m weights; None if it does."""
    if max(payload) > _LARGEST:
        return f"has a byte above {_LARGEST}, which is not five signs"
    if _SIGNS[payload[-1], m - A_BYTE * (len(payload) - 1) :].any():
        return "has signs beyond its last weight"
    return None


def sign_payloads(updates: NDArray[np.floating], *, abstain: bool) -> pa.BinaryArray:
    """Return the signs of updates of shape (k, m) as k payloads.

    Each weight has one bit, which is set if the number is at least 0. With ``abstain`` it has two: the first is set
    if the number is above 0, the second if it is below 0. The first weight has the lowest bits of the first byte, and
    bits beyond the last weight are 0.
    """
    k, m = updates.shape
    bits = np.stack([updates > 0, updates < 0], axis=2).reshape(k, 2 * m) if abstain else updates >= 0
    return fixed_payloads(np.packbits(bits, axis=1, bitorder="little"))


def sign_updates(payloads: pa.BinaryArray, m: int, *, abstain: bool) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the sign of each weight (-1, 0 or 1), shape (k, m), and which payloads could be read, shape (k,)."""
    rows, fits = rows_of(payloads, sign_bytes(m, abstain=abstain))
    bits = np.unpackbits(rows, axis=1, bitorder="little")
    used = 2 * m if abstain else m
    ok = np.asarray(fits & ~bits[:, used:].any(axis=1))
    if abstain:
        above, below = bits[:, 0:used:2].view(np.int8), bits[:, 1:used:2].view(np.int8)
        ok &= ~(above & below).any(axis=1)
        signs = (above - below).astype(np.float32)
    else:
        signs = bits[:, :m].astype(np.float32)
        signs *= 2
        signs -= 1
    if not ok.all():
        signs[~ok] = 0
    return signs, ok


def sign_bytes(m: int, *, abstain: bool) -> int:
    """Return the bytes of the signs of m weights, one or two bits a weight."""
    return -(-(2 * m if abstain else m) // 8)


def sign_trouble(payload: bytes, m: int, *, abstain: bool) -> str | None:
    """Return why a payload of the right length doesn't contain signs of m weights; None if it does."""
    number = int.from_bytes(payload, "little")
    if number >> (2 * m if abstain else m):
        return "has bits set beyond its last weight"
    if abstain and number & (number >> 1) & int.from_bytes(b"\x55" * len(payload), "little"):
        return "has a weight that is both above and below zero"
    return None
