"""Updates as little-endian float32 numbers of 4 bytes: the encodings `dense` and `float32`, and landed updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedping.protocol.encodings.payloads import fixed_payloads, rows_of
from fedping.protocol.link_ends import ClientEnd, Ends, ServerEnd
from fedping.protocol.rules import Traits
from fedping.protocol.update import DENSE
from fedping.protocol.weights import LARGEST

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.spec import ModelSpec


class Dense(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag=DENSE):
    """Encode an update as float32 numbers, 4 bytes a weight; in JSON, a plain array. Used also if no link is given."""

    traits: ClassVar[Traits] = frozenset({"encodes"})

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`). The client sends its numbers unchanged."""
        return ClientEnd(), ServerEnd(decode=dense_updates, lengths=lambda m: (4 * m, 4 * m))


class Float32(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="float32"):
    """Encode an update as the bytes of its float32 numbers: as exact as `dense`, and quicker to read than JSON."""

    traits: ClassVar[Traits] = frozenset({"encodes", "follows a mask"})

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`)."""
        return ClientEnd(encode=lambda updates, _: dense_payloads(updates)), ServerEnd(
            decode=lambda payloads, m: dense_updates(payloads, m, LARGEST),
            lengths=lambda m: (4 * m, 4 * m),
            trouble=lambda payload, _: float32_trouble(payload, LARGEST),
        )


EXAMPLES = (Dense(), Float32())
"""Example settings for tests."""

_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def dense_payloads(updates: NDArray[np.floating]) -> pa.BinaryArray:
    """Return updates of shape (k, m) as k payloads: m little-endian float32 numbers, rounded to the nearest."""
    values = np.ascontiguousarray(updates, dtype="<f4")
    return fixed_payloads(values.view(np.uint8).reshape(len(values), 4 * values.shape[1]))


def dense_updates(
    payloads: pa.BinaryArray, m: int, most: float = _LARGEST_FLOAT
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return updates of shape (k, m), and which payloads were updates of m finite numbers, shape (k,).

    ``most`` is the largest absolute value allowed. The default allows all finite numbers, because `dense` updates were
    checked before they landed.

    Unreadable payloads get rows of zeros instead of an error, and the round counts them. If all payloads have the right
    length, the result is a view, not a copy.
    """
    rows, fits = rows_of(payloads, 4 * m)
    updates = rows.view("<f4")
    if updates.size == 0 or (-most <= updates.min() and updates.max() <= most):
        return updates, fits  # the least and the greatest are NaN if any number is
    finite = np.asarray((np.abs(updates) <= most).all(axis=1))
    return np.where(finite[:, None], updates, np.float32(0)), fits & finite


def float32_trouble(payload: bytes, most: float) -> str | None:
    """Return why a payload of the right length isn't an update with numbers up to ``most``; None if it is."""
    if (np.abs(np.frombuffer(payload, "<f4")) <= most).all():
        return None
    return f"has a number that is not finite, or beyond {most:g}"
