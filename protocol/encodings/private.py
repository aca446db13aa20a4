"""The encodings of private lines: `private`, a vector of int32 numbers, and `shared`, its shares for two servers.

Shares are made in `fedping.protocol.sharing.shares`; here is only their length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.encodings.payloads import fixed_payloads, rows_of
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd
from fedping.protocol.links import SharedVector
from fedping.protocol.privacy import METRICS
from fedping.protocol.sharing.shares import Layout, layout

if TYPE_CHECKING:
    import pyarrow as pa


def vector_payloads(vectors: NDArray[np.integer | np.floating]) -> pa.BinaryArray:
    """Return whole numbers of shape (k, d) as k payloads: d little-endian int32 numbers."""
    values = np.ascontiguousarray(vectors, dtype="<i4")
    return fixed_payloads(values.view(np.uint8).reshape(len(values), 4 * values.shape[1]))


def vector_updates(payloads: pa.BinaryArray, d: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return vectors of shape (k, d), and which payloads have the length of one, shape (k,); exact up to 2^24."""
    rows, fits = rows_of(payloads, 4 * d)
    return rows.view("<i4").astype(np.float32), fits


def vector_ends() -> Ends:
    """Return the ends of the link `private`."""

    def lengths(m: int) -> tuple[int, int]:
        size = 4 * (m + len(METRICS))
        return size, size

    return ClientEnd(encode=lambda vectors, _: vector_payloads(vectors)), ServerEnd(
        decode=lambda payloads, m: vector_updates(payloads, m + len(METRICS)), lengths=lengths
    )


def layout_of(link: SharedVector, m: int) -> Layout:
    """Return the layout of the payloads of a line of m weights."""
    return layout(m + len(METRICS), link.seal, link.metric)


def shared_ends(link: SharedVector) -> Ends:
    """Return the ends of the link `shared`.

    The server reads no numbers: what it decodes are the bytes of the payloads, shape (k, size), which nothing but the
    sums of shares takes (`fedping.server_jobs.round.private_sums`). A client seals with what belongs to its ping, which
    no function of an update alone knows (`fedping.client_sim.privacy.vectors`).
    """

    def lengths(m: int) -> tuple[int, int]:
        size = layout_of(link, m).size
        return size, size

    def decode(payloads: pa.BinaryArray, m: int) -> Decoded:
        return cast(Decoded, rows_of(payloads, layout_of(link, m).size))

    return ClientEnd(encode=_refuse), ServerEnd(decode=decode, lengths=lengths)


def _refuse(updates: NDArray[np.floating[Any]], keys: NDArray[np.uint64]) -> pa.BinaryArray:
    raise TypeError("a share belongs to one ping: make it of a vector by Sharer, once the document id is known")
