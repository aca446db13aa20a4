"""Shares of the vectors of private lines (`fedping.protocol.sharing`): the encoding `shared`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.encodings.columns import rows_of
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd
from fedping.protocol.links import SharedVector
from fedping.protocol.privacy import METRICS
from fedping.protocol.sharing.shares import Layout, layout

if TYPE_CHECKING:
    import pyarrow as pa


def layout_of(link: SharedVector, m: int) -> Layout:
    """Return the layout of the payloads of a line of m weights."""
    return layout(m + len(METRICS), link.seal, link.metric)


def ends(link: SharedVector) -> Ends:
    """Return the ends of the link `shared`.

    The server reads no numbers: what it decodes are the bytes of the payloads, shape (k, size), which nothing but the
    sums of shares takes (`fedping.server_jobs.round.private_sums`). A client seals with what belongs to its ping, which
    no function of an update alone knows (`fedping.client_sim.privacy.sharing`).
    """

    def lengths(m: int) -> tuple[int, int]:
        size = layout_of(link, m).size
        return size, size

    def decode(payloads: pa.BinaryArray, m: int) -> Decoded:
        return cast(Decoded, rows_of(payloads, layout_of(link, m).size))

    return ClientEnd(encode=_refuse), ServerEnd(decode=decode, lengths=lengths)


def _refuse(updates: NDArray[np.floating[Any]], keys: NDArray[np.uint64]) -> pa.BinaryArray:
    raise TypeError("a share belongs to one ping: make it of a vector by Sharer, once the document id is known")
