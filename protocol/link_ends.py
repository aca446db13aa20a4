"""The two ends of an upload link: functions of the client on updates, and of the server on payloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from fedping.protocol.spec import ModelSpec

Decoded: TypeAlias = "tuple[NDArray[np.float32], NDArray[np.bool_]]"
"""Updates of shape (k, m), and which payloads were readable, shape (k,); unreadable payloads have rows of zeros."""

LinkState: TypeAlias = "Mapping[str, NDArray[Any]]"
"""Arrays, by name, that a client keeps for a link from one update to the next."""

Transform: TypeAlias = Callable[["NDArray[np.floating[Any]]", "NDArray[np.uint64]"], "NDArray[np.floating[Any]]"]
Encode: TypeAlias = Callable[["NDArray[np.floating[Any]]", "NDArray[np.uint64]"], "pa.BinaryArray"]
Undo: TypeAlias = Callable[["NDArray[np.float32]"], "NDArray[np.float32]"]
UndoSum: TypeAlias = Callable[["ModelSpec", "NDArray[np.float64]"], "NDArray[np.float64]"]
Projection: TypeAlias = Callable[["NDArray[np.floating[Any]]"], "NDArray[np.floating[Any]]"]
"""A function from the gradients of k clients, shape (k, m), to the part of them that the clients can send."""


@runtime_checkable
class Factors(Protocol):
    """Numbers that k clients train instead of their weights; the movements of the weights follow from these numbers."""

    @property
    def start(self) -> NDArray[np.float64]:
        """The numbers to start from, at which the weights have not moved, shape (k, f)."""
        ...

    def movement(self, numbers: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return the movements of the weights, shape (k, m), that follow from the numbers, shape (k, f)."""
        ...

    def gradients(
        self, numbers: NDArray[np.floating[Any]], gradients: NDArray[np.floating[Any]]
    ) -> NDArray[np.floating[Any]]:
        """Return gradients with respect to the numbers, shape (k, f), from gradients by the weights, shape (k, m)."""
        ...


Within: TypeAlias = Callable[["NDArray[np.uint64]"], "Projection | Factors"]


@dataclass(frozen=True, kw_only=True)
class Structured:
    """Structured training (thesis 4.3), in which clients move only in directions that a link can send.

    Attributes:
        within: takes random keys, shape (k,), and returns a function from gradients, shape (k, m), to the part of them
            that can be sent; or the factors that clients train.
        encode: takes movements in these directions, shape (k, m), and the same keys, and returns k payloads, which the
            server reads like all payloads of the link.
    """

    within: Within
    encode: Encode


@dataclass(frozen=True)
class Sparse:
    """Updates of which few weights were sent; the other weights are zero.

    Attributes:
        at: positions of the sent weights of each update, ascending, shape (k, n).
        values: their numbers, as decoded, shape (k, n).
        ok: which of the payloads could be read, shape (k,); the values of the others are zero.
    """

    at: NDArray[np.intp]
    values: NDArray[np.floating[Any]]
    ok: NDArray[np.bool_]

    def rows(self, where: NDArray[np.intp]) -> Sparse:
        """Return the updates at these row positions."""
        return Sparse(self.at[where], self.values[where], self.ok[where])

    def dense(self, m: int) -> NDArray[np.float32]:
        """Return the updates as a dense array with zeros, shape (k, m)."""
        import numpy as np

        updates = np.zeros((len(self.ok), m), np.float32)
        np.put_along_axis(updates, self.at, self.values, axis=1)
        return updates


@dataclass(frozen=True, kw_only=True)
class ClientEnd:
    """The client's end of a link: ``transform`` or ``encode``, a function of (updates (k, m), random keys (k,)).

    Attributes:
        transform: returns other updates, shape (k, m).
        encode: returns k payloads.
        structured: functions for structured training, for a link with ``encode`` that supports it.
        encoding: the tag of the payloads, if it differs from the link's.
        init_state: takes m and returns the state of a client that has sent nothing, for a link with client state.
            ``transform`` or ``encode`` then takes the state as a third argument, its arrays with the clients along the
            first axis, and returns its result and the next state. The state is never sent.
    """

    transform: Transform | None = None
    encode: Encode | None = None
    structured: Structured | None = None
    encoding: str | None = None
    init_state: Callable[[int], LinkState] | None = None


@dataclass(frozen=True, kw_only=True)
class ServerEnd:
    """The server's end of a link.

    Attributes:
        decode: takes (payloads, m) and returns updates, and which were readable, for a link that encodes.
        lengths: takes m and returns the minimum and maximum bytes of a payload, for a link that encodes.
        trouble: takes (payload, m) and returns the problem with one payload, or None. Ingest rejects payloads with a
            problem.
        undo: takes updates and returns them as they were before the client's ``transform``; both (k, m).
        undo_sum: takes (spec, direction), the sum or mean of transformed updates, and returns the direction of the
            untransformed updates; both (m,). It replaces ``undo`` if a round takes the mean.
        sparse: takes (payloads, m) and returns the sent weights of updates with mostly zeros.
    """

    decode: Callable[[pa.BinaryArray, int], Decoded] | None = None
    lengths: Callable[[int], tuple[int, int]] | None = None
    trouble: Callable[[bytes, int], str | None] | None = None
    undo: Undo | None = None
    undo_sum: UndoSum | None = None
    sparse: Callable[[pa.BinaryArray, int], Sparse] | None = None


Ends: TypeAlias = tuple[ClientEnd, ServerEnd]


def without_infinite(updates: NDArray[np.float32], ok: NDArray[np.bool_]) -> Decoded:
    """Return decoded updates; an update with a number that is not finite becomes zeros and counts as unreadable."""
    import numpy as np

    finite = np.isfinite(updates).all(axis=1) & ok
    return (updates if finite.all() else np.where(finite[:, None], updates, np.float32(0))), finite
