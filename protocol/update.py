"""Forms of an update in requests and on disk.

In a request, a dense update is a plain JSON array, as in 2018; an update in another encoding is an object with its tag
and its payload. In Parquet an update is two columns: the tag, and the payload as bytes. A line's upload links determine
the encoding of its updates and how payloads are read (`fedping.protocol.upload`); no other code may assume that an
update is an array of m floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.weights import MAX_WEIGHTS, Finite, Name

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

DENSE = "dense"
"""The tag of updates that are float32 numbers, 4 bytes a weight."""


def longest_payload(m: int) -> int:
    """Return the maximum bytes of an update of m weights in any encoding.

    The longest payloads are shares with proofs (`fedping.protocol.sharing.shares`): 16 bytes a weight, the proof, which
    grows with the square root of m, some 50 bits of metrics, and 1,136 bytes of a seal with ML-KEM.
    """
    return 24 * m + 4096


DenseUpdate: TypeAlias = Annotated[tuple[Finite, ...], Meta(max_length=MAX_WEIGHTS)]


class EncodedUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    """An update in an encoding other than the dense one."""

    encoding: Annotated[Name, Meta(description="the tag of the encoding, which the line's links determine")]
    payload: Annotated[
        bytes, Meta(max_length=longest_payload(MAX_WEIGHTS), description="base64 with padding, as btoa gives it")
    ]


Update: TypeAlias = DenseUpdate | EncodedUpdate


@dataclass(frozen=True)
class Payloads:
    """The updates of k pings, as sent, in an encoding other than the dense one.

    Attributes:
        encoding: the tag.
        column: k payloads.
    """

    encoding: str
    column: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.column)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each payload, shape (k,)."""
        from fedping.protocol.encodings.payloads import payload_lengths

        return payload_lengths(self.column)


def size_of_updates(updates: NDArray[np.floating] | Payloads) -> NDArray[np.int64]:
    """Return the bytes of each of k updates, shape (k,); dense updates, as float32, have 4 bytes a weight."""
    import numpy as np

    return updates.sizes if isinstance(updates, Payloads) else np.full(len(updates), 4 * updates.shape[1], np.int64)
