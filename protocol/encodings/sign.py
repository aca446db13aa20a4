"""The signs of updates in bits: the encoding `sign`, of older studies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.encodings.columns import fixed_payloads, rows_of
from fedping.protocol.link_ends import ClientEnd, Ends, ServerEnd
from fedping.protocol.links import Sign

if TYPE_CHECKING:
    import pyarrow as pa


def sign_payloads(updates: NDArray[np.floating], *, abstain: bool) -> pa.BinaryArray:
    """Return the signs of updates of shape (k, m) as k payloads.

    One bit a weight says whether the number is at least 0; with ``abstain`` two, whether it is above 0 and whether it
    is below. The first weight has the lowest bits of the first byte, and bits beyond the last one are 0.
    """
    k, m = updates.shape
    bits = np.stack([updates > 0, updates < 0], axis=2).reshape(k, 2 * m) if abstain else updates >= 0
    return fixed_payloads(np.packbits(bits, axis=1, bitorder="little"))


def sign_updates(payloads: pa.BinaryArray, m: int, *, abstain: bool) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return -1, 0 or 1 a weight, shape (k, m), and which payloads were signs of m weights, shape (k,)."""
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
    """Return how many bytes the signs of m weights are."""
    return -(-(2 * m if abstain else m) // 8)


def sign_trouble(payload: bytes, m: int, *, abstain: bool) -> str | None:
    """Return why a payload of the right length is no signs of m weights; None if it is."""
    number = int.from_bytes(payload, "little")
    if number >> (2 * m if abstain else m):
        return "has bits set beyond its last weight"
    if abstain and number & (number >> 1) & int.from_bytes(b"\x55" * len(payload), "little"):
        return "has a weight that is both above and below zero"
    return None


def ends(settings: Sign) -> Ends:
    """Return the ends of the link `sign`."""
    abstain = settings.zero == "abstain"

    def lengths(m: int) -> tuple[int, int]:
        size = sign_bytes(m, abstain=abstain)
        return size, size

    return ClientEnd(encode=lambda updates, _: sign_payloads(updates, abstain=abstain)), ServerEnd(
        decode=lambda payloads, m: sign_updates(payloads, m, abstain=abstain),
        lengths=lengths,
        trouble=lambda payload, m: sign_trouble(payload, m, abstain=abstain),
    )
