"""The examples of a fleet in one array, one client after another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedping.client_sim.data.table import Table, Target, check_examples, table
from fedping.client_sim.learning.batch import Clients, Examples, FloatArray
from fedping.protocol.errors import FedpingError


@dataclass(frozen=True)
class ExampleData:
    """Examples of K clients: a :class:`client_sim.learning.ClientData` of :class:`client_sim.learning.Examples`.

    Attributes:
        x: features, one client after another, shape (N, d); with ``gaps``, NaN marks a missing value.
        y: targets, shape (N,).
        weight: weight of each example, shape (N,); usually 1.
        offsets: client k has rows ``offsets[k]`` to ``offsets[k + 1]`` (exclusive), shape (K + 1,).
        features: the features' names, d of them.
        target: description of y.
        ids: each client's number, shape (K,), which stays the same when others are left out; random keys derive from
            it.
        natural_keys: each client's natural key, such as a user or a country, shape (K,), or None.
        gaps: whether features may be missing; a rule has to fill them before clients learn from these examples.

    Raises:
        FedpingError: shapes differ, a value is not finite, or a weight is negative.
    """

    x: FloatArray
    y: NDArray[Any]
    weight: FloatArray
    offsets: NDArray[np.int64]
    features: tuple[str, ...]
    target: Target
    ids: NDArray[np.int64]
    natural_keys: NDArray[Any] | None = None
    gaps: bool = False

    def __post_init__(self) -> None:
        check_examples(self.x, self.y, self.features, self.target, gaps=self.gaps)
        if self.weight.shape != self.y.shape or not (np.isfinite(self.weight).all() and (self.weight >= 0).all()):
            raise FedpingError("each example needs a weight, a finite number of at least 0")
        ends = self.offsets
        if ends[0] != 0 or ends[-1] != len(self.y) or (np.diff(ends) < 0).any():
            raise FedpingError(f"the offsets of the clients do not divide {len(self.y)} examples")
        if self.ids.shape != (len(self),):
            raise FedpingError(f"{len(self)} clients have {len(self.ids)} numbers; give each client one")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The number of examples of each client, shape (K,)."""
        return np.diff(self.offsets)

    @cached_property
    def client_of(self) -> Clients:
        """The position of each row's client, shape (N,)."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def batch(self, clients: Clients) -> Examples:
        """Return all examples of these clients, padded with 0 to the longest client. Callers must not modify them."""
        clients = np.asarray(clients, dtype=np.intp)
        first, sizes = self.offsets[clients], self.sizes[clients]
        width = int(sizes.max(initial=0))
        if width and (first == first[0] + width * np.arange(len(clients))).all() and (sizes == width).all():
            return self._neighbours(int(first[0]), len(clients), width)
        position = np.arange(width)
        rows, absent = first[:, None] + position, position >= sizes[:, None]
        return Examples(*(_locked(_padded(column, rows, absent)) for column in (self.x, self.y, self.weight)))

    def _neighbours(self, first: int, count: int, width: int) -> Examples:
        """Return adjacent clients of equal size without copying them."""
        rows = slice(first, first + count * width)
        return Examples(
            _locked(self.x[rows].reshape(count, width, -1)),
            _locked(self.y[rows].reshape(count, width)),
            _locked(self.weight[rows].reshape(count, width)),
        )

    def single(self) -> ExampleData:
        """Return the same examples with single-precision features, for a model that learns in single precision."""
        x: Any = self.x.astype(np.float32, copy=False)
        return replace(self, x=x)

    def select(self, clients: Clients) -> ExampleData:
        """Return the data of these clients only, in this order; clients keep their numbers."""
        sizes = self.sizes[clients]
        offsets = _offsets(sizes)
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][clients] - offsets[:-1], sizes)
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            weight=self.weight[rows],
            offsets=offsets,
            ids=self.ids[clients],
            natural_keys=None if self.natural_keys is None else self.natural_keys[clients],
        )

    def only(self, rows: NDArray[np.bool_]) -> ExampleData:
        """Return all clients with the examples that a mask of shape (N,) selects; a client may be left with none."""
        offsets = _offsets(np.bincount(self.client_of[rows], minlength=len(self)))
        return replace(self, x=self.x[rows], y=self.y[rows], weight=self.weight[rows], offsets=offsets)

    def pooled(self, clients: Clients | None = None) -> ExampleData:
        """Return all examples, or those of some clients, as the data of a single client: a centralised learner's."""
        of = self if clients is None else self.select(clients)
        return replace(of, offsets=np.array([0, len(of.y)]), ids=np.zeros(1, np.int64), natural_keys=None)

    def as_table(self) -> Table:
        """Return the examples as one table, in order; its key is the clients' natural keys."""
        key = None if self.natural_keys is None else self.natural_keys[self.client_of]
        return Table(self.x, self.y, self.features, self.target, key, gaps=self.gaps)


def example_data(
    x: ArrayLike,
    y: ArrayLike,
    sizes: ArrayLike,
    *,
    features: tuple[str, ...] | None = None,
    target: Target | None = None,
    natural_keys: NDArray[Any] | None = None,
) -> ExampleData:
    """Return the data of clients with ``sizes`` rows each of x (N, d) and y (N,), one client after another."""
    return of_clients(table(x, y, features=features, target=target), np.asarray(sizes), natural_keys)


def of_clients(rows: Table, sizes: NDArray[Any], natural_keys: NDArray[Any] | None = None) -> ExampleData:
    """Return a table's rows as the examples of clients, one client after another; each row has weight 1."""
    return ExampleData(
        x=rows.x,
        y=rows.y,
        weight=np.ones(len(rows)),
        offsets=_offsets(sizes),
        features=rows.features,
        target=rows.target,
        ids=np.arange(len(sizes)),
        natural_keys=natural_keys,
        gaps=rows.gaps,
    )


def of_one(rows: Table) -> ExampleData:
    """Return a table as the data of a single client, such as a test set that the server holds."""
    return of_clients(rows, np.array([len(rows)]))


def _offsets(sizes: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _padded(column: NDArray[Any], rows: NDArray[Any], absent: NDArray[np.bool_]) -> NDArray[Any]:
    if not len(column):
        return np.zeros(rows.shape + column.shape[1:], column.dtype)
    taken = np.take(column, rows, axis=0, mode="clip")
    taken[absent] = 0
    return taken


def _locked(view: NDArray[Any]) -> NDArray[Any]:
    view.flags.writeable = False
    return view
