"""The examples of many clients as rectangles, so that one NumPy call works on all of them.

Clients have different numbers of examples. A rectangle is as wide as the longest of its clients; what lies beyond the
end of a shorter one has weight 0. Whoever works on a whole fleet takes clients of like sizes together, so that little
is padding, and few enough at a time, so that memory stays bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
Clients: TypeAlias = NDArray[np.intp]
"""Positions of clients among all of a :class:`ClientData`, shape (k,)."""

NO_EXAMPLE = -1
"""Stands for no example in an index of examples."""


class Batch(Protocol):
    """Some examples of each of k clients."""

    def __len__(self) -> int:
        """Return k."""
        ...

    @property
    def weight(self) -> FloatArray:
        """How much each example counts, shape (k, n); 0 for padding, else usually 1."""
        ...

    def only(self, examples: NDArray[np.intp]) -> Self:
        """Return the same clients with some of their examples, such as a mini-batch.

        Args:
            examples: of each client the positions of examples, shape (k, b); NO_EXAMPLE pads.
        """
        ...


B = TypeVar("B", bound=Batch)
B_co = TypeVar("B_co", bound=Batch, covariant=True)


class ClientData(Protocol[B_co]):
    """The data of a whole fleet, each client's its own."""

    def __len__(self) -> int:
        """Return the number of clients."""
        ...

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many examples each client has, n_i of thesis 1.3, shape (clients,)."""
        ...

    def batch(self, clients: Clients) -> B_co:
        """Return all the examples of these clients, in this order."""
        ...


@dataclass(frozen=True)
class Examples:
    """Examples as features and a target: a :class:`Batch`.

    Attributes:
        x: features, shape (k, n, d).
        y: targets, shape (k, n): a number, or the number of a class.
        weight: shape (k, n).
    """

    x: FloatArray
    y: NDArray[Any]
    weight: FloatArray

    def __len__(self) -> int:
        return len(self.weight)

    def only(self, examples: NDArray[np.intp]) -> Examples:
        """See :meth:`Batch.only`."""
        client = np.arange(len(self))[:, None]
        return Examples(
            self.x[client, examples],
            self.y[client, examples],
            np.where(examples == NO_EXAMPLE, 0.0, self.weight[client, examples]),
        )
