"""The encodings of private lines: `private`, a vector of int32 numbers, and `shared`, its shares for two servers.

Shares are computed in `fedping.protocol.sharing.shares`; only their length is defined here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fedping.protocol.encodings.payloads import fixed_payloads, rows_of
from fedping.protocol.link_ends import ClientEnd, Decoded, Ends, ServerEnd
from fedping.protocol.privacy import METRICS
from fedping.protocol.rules import Traits
from fedping.protocol.sharing.keys import Seal

if TYPE_CHECKING:
    import pyarrow as pa

    from fedping.protocol.sharing.shares import Layout
    from fedping.protocol.spec import ModelSpec


class PrivateVector(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="private"):
    """Encode a private line's vector (`fedping.protocol.privacy`), m + 3 whole numbers, as int32.

    It must be the line's only link.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "private vector"})

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`)."""

        def lengths(m: int) -> tuple[int, int]:
            size = 4 * (m + len(METRICS))
            return size, size

        return ClientEnd(encode=lambda vectors, _: vector_payloads(vectors)), ServerEnd(
            decode=lambda payloads, m: vector_updates(payloads, m + len(METRICS)), lengths=lengths
        )


class SharedVector(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="link", tag="shared"):
    """Encode a private line's vector as two shares (`fedping.protocol.sharing.shares`), one of them sealed.

    It is the only link of a private line with ``shared``, and holds those settings. With ``proofs``, ``metric`` is the
    largest value of a metric, which determines the number of bits. With ``digest``, the helper's share contains the
    digest of the weights that the client was served.
    """

    traits: ClassVar[Traits] = frozenset({"encodes", "private vector"})

    seal: Seal = "x25519"
    proofs: bool = False
    metric: Annotated[int, Meta(ge=0, le=2**24)] = 0
    digest: bool = False

    def ends(self, spec: ModelSpec) -> Ends:
        """Return the link's two ends (`fedping.protocol.link_ends`).

        The server can't read the numbers. It decodes payloads to bytes, shape (k, size), only to sum the shares
        (`fedping.server_jobs.round.private_sums`). Clients seal elsewhere (`fedping.client_sim.privacy.vectors`),
        because sealing needs values of the whole ping.
        """

        def lengths(m: int) -> tuple[int, int]:
            size = layout_of(self, m).size
            return size, size

        def decode(payloads: pa.BinaryArray, m: int) -> Decoded:
            return cast(Decoded, rows_of(payloads, layout_of(self, m).size))

        return ClientEnd(encode=_refuse), ServerEnd(decode=decode, lengths=lengths)


def vector_payloads(vectors: NDArray[np.integer | np.floating]) -> pa.BinaryArray:
    """Return whole numbers of shape (k, d) as k payloads: d little-endian int32 numbers."""
    values = np.ascontiguousarray(vectors, dtype="<i4")
    return fixed_payloads(values.view(np.uint8).reshape(len(values), 4 * values.shape[1]))


def vector_updates(payloads: pa.BinaryArray, d: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return vectors of shape (k, d), exact up to 2^24, and which payloads have the right length, shape (k,)."""
    rows, fits = rows_of(payloads, 4 * d)
    return rows.view("<i4").astype(np.float32), fits


def layout_of(link: SharedVector, m: int) -> Layout:
    """Return the layout of the payloads of a line of m weights."""
    from fedping.protocol.sharing.shares import layout

    return layout(m + len(METRICS), link.seal, link.metric, digest=link.digest)


def _refuse(updates: NDArray[np.floating[Any]], keys: NDArray[np.uint64]) -> pa.BinaryArray:
    raise TypeError("a share belongs to one ping: make it of a vector by Sharer, once the document id is known")
