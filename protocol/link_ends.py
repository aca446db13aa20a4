"""The two ends of an upload link: functions of the client on updates, and of the server on payloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from fedping.protocol.spec import ModelSpec

Decoded: TypeAlias = "tuple[NDArray[np.float32], NDArray[np.bool_]]"
"""Updates of shape (k, m), and which payloads were readable, shape (k,); the rows of the others hold zeros."""

LinkState: TypeAlias = "Mapping[str, NDArray[Any]]"
"""What a link keeps with a client from one update to the next, arrays by name."""

Transform: TypeAlias = Callable[["NDArray[np.floating[Any]]", "NDArray[np.uint64]"], "NDArray[np.floating[Any]]"]
Encode: TypeAlias = Callable[["NDArray[np.floating[Any]]", "NDArray[np.uint64]"], "pa.BinaryArray"]
Undo: TypeAlias = Callable[["NDArray[np.float32]"], "NDArray[np.float32]"]
UndoSum: TypeAlias = Callable[["ModelSpec", "NDArray[np.float64]"], "NDArray[np.float64]"]
Within: TypeAlias = Callable[
    ["NDArray[np.uint64]"], Callable[["NDArray[np.floating[Any]]"], "NDArray[np.floating[Any]]"]
]


@dataclass(frozen=True, kw_only=True)
class Structured:
    """Training of a client within what a link can send (thesis 4.3), instead of a sketch of a whole update.

    Attributes:
        within: of random keys, shape (k,), returns what takes gradients, shape (k, m), to what of them can be sent.
        encode: of movements within that, shape (k, m), and of the same keys returns k payloads, which the server reads
            as those of the link.
    """

    within: Within
    encode: Encode


@dataclass(frozen=True)
class Sparse:
    """Updates of which few weights were sent; the others are zero.

    Attributes:
        at: of each update the places of the weights that it has, ascending, shape (k, n).
        values: their numbers, as decoded, shape (k, n).
        ok: which of the payloads could be read, shape (k,); the values of the others are zero.
    """

    at: NDArray[np.intp]
    values: NDArray[np.floating[Any]]
    ok: NDArray[np.bool_]

    def rows(self, where: NDArray[np.intp]) -> Sparse:
        """Return the updates at these positions."""
        return Sparse(self.at[where], self.values[where], self.ok[where])

    def dense(self, m: int) -> NDArray[np.float32]:
        """Return the updates with their zeros, shape (k, m)."""
        import numpy as np

        updates = np.zeros((len(self.ok), m), np.float32)
        np.put_along_axis(updates, self.at, self.values, axis=1)
        return updates


@dataclass(frozen=True, kw_only=True)
class ClientEnd:
    """What a link does on a device, with either of two functions of (updates (k, m), random keys (k,)).

    Attributes:
        transform: returns other updates, shape (k, m).
        encode: returns k payloads.
        structured: for a link that can be trained within; it encodes, too.
        encoding: the tag of what is encoded, where it is not the link's.
        init_state: of m returns the state of a client that has sent nothing, for a link that keeps something with its
            clients. ``transform`` or ``encode`` then takes the state as a third argument, its arrays with the clients
            along the first axis, and returns its result and the next state. It never travels.
    """

    transform: Transform | None = None
    encode: Encode | None = None
    structured: Structured | None = None
    encoding: str | None = None
    init_state: Callable[[int], LinkState] | None = None


@dataclass(frozen=True, kw_only=True)
class ServerEnd:
    """What a link does on the server.

    Attributes:
        decode: of (payloads, m) returns updates, and which were there; the link encodes.
        lengths: of m returns the least and the most bytes of a payload, for a link that encodes.
        trouble: of (payload, m) returns what is wrong with one payload, or None. Ingest refuses such.
        undo: of updates returns those before the client's end; both (k, m).
        undo_sum: of (spec, direction) returns the direction that those updates would have had; both (m,). It takes the
            place of ``undo`` where a round takes the mean.
        sparse: of (payloads, m) returns what was sent of updates most of whose weights are zero.
    """

    decode: Callable[[pa.BinaryArray, int], Decoded] | None = None
    lengths: Callable[[int], tuple[int, int]] | None = None
    trouble: Callable[[bytes, int], str | None] | None = None
    undo: Undo | None = None
    undo_sum: UndoSum | None = None
    sparse: Callable[[pa.BinaryArray, int], Sparse] | None = None


Ends: TypeAlias = tuple[ClientEnd, ServerEnd]


def without_infinite(updates: NDArray[np.float32], ok: NDArray[np.bool_]) -> Decoded:
    """Return decoded updates; those with a number that is not finite become zeros, and count as unreadable."""
    import numpy as np

    finite = np.isfinite(updates).all(axis=1) & ok
    return (updates if finite.all() else np.where(finite[:, None], updates, np.float32(0))), finite
