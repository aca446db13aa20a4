"""The examples of many clients as rectangles, so that one NumPy call works on all of them.

Clients have different numbers of examples. A rectangle is as wide as its longest client; the padding of shorter
clients has weight 0. For a whole fleet, callers batch clients of similar size, which keeps padding small, and limit
the clients of a batch, which bounds memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedping.protocol.draws import Keys, child_keys
from fedping.protocol.errors import FedpingError

FloatArray: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = NDArray[np.floating[Any]]
"""float64 numbers, or float32 for a model that works in single precision."""
Clients: TypeAlias = NDArray[np.intp]
"""Positions of clients in a :class:`ClientData`, shape (k,)."""


class TroubleOfClient(FedpingError):
    """An error of one client of a batch.

    Args:
        what: the sentence up to the client, such as "the loss is nan".
        at: its position in the batch.
        remedy: the end of the sentence.
    """

    def __init__(self, what: str, at: int, remedy: str) -> None:
        super().__init__(what, at, remedy)
        self.what, self.at, self.remedy = what, at, remedy

    def __str__(self) -> str:
        return f"{self.what} for the client at {self.at} of its batch; {self.remedy}"


def finite(losses: FloatArray, what: str) -> FloatArray:
    """Return clients' losses, shape (k,); raise :class:`TroubleOfClient` if one is not finite.

    Args:
        losses: the losses.
        what: the losses' name in the sentence, such as "the loss".
    """
    if not np.isfinite(losses).all():
        at = int(np.flatnonzero(~np.isfinite(losses))[0])
        raise TroubleOfClient(f"{what} is {losses[at]}", at, BEHIND_ODD_LOSSES)
    return losses


BEHIND_ODD_LOSSES = "check it for logarithms of 0 and overflows, or take smaller steps"
"""The end of the sentence about a loss that is not finite."""


def padded(values: NDArray[Any], *shape: int) -> NDArray[Any]:
    """Return the values, padded with zeros along the first axes to ``shape``."""
    room = [(0, size - have) for size, have in zip(shape, values.shape, strict=False)]
    return np.pad(values, room + [(0, 0)] * (values.ndim - len(shape))) if any(map(any, room)) else values


class TroubleOfNamed(FedpingError):
    """An error of one client of the fleet."""


@contextmanager
def naming(clients: Clients | None) -> Iterator[None]:
    """Name the fleet's client in a :class:`TroubleOfClient` that is raised inside.

    Args:
        clients: the batch's clients, shape (k,); None for a single batch of several clients' pooled examples.
    """
    try:
        yield
    except TroubleOfClient as trouble:
        whose = "the pooled examples of the clients" if clients is None else f"client {clients[trouble.at]}"
        raise TroubleOfNamed(f"{trouble.what} for {whose}; {trouble.remedy}") from trouble


NO_EXAMPLE = -1
"""Marks padding in an index of examples."""


class Batch(Protocol):
    """Some examples of each of k clients."""

    def __len__(self) -> int:
        """Return k."""
        ...

    @property
    def weight(self) -> FloatArray:
        """The weight of each example, shape (k, n); 0 for padding, else usually 1."""
        ...

    @property
    def nbytes(self) -> int:
        """The memory that the examples take, in bytes."""
        ...

    def only(self, examples: NDArray[np.intp]) -> Self:
        """Return the same clients with some of their examples, such as a mini-batch.

        Args:
            examples: positions of each client's examples, shape (k, b), padded with NO_EXAMPLE.
        """
        ...


B = TypeVar("B", bound=Batch)
B_co = TypeVar("B_co", bound=Batch, covariant=True)


class ClientData(Protocol[B_co]):
    """The data of a whole fleet, separately for each client."""

    def __len__(self) -> int:
        """Return the number of clients."""
        ...

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of examples of each client, n_i of thesis 1.3, shape (clients,)."""
        ...

    def batch(self, clients: Clients) -> B_co:
        """Return all the examples of these clients, in this order."""
        ...


class Rectangle:
    """Values derived from the weights of a batch, computed once because rounds reuse the same clients.

    A mixin for frozen dataclasses that are a :class:`Batch` and whose arrays do not change.
    """

    weight: FloatArray

    @cached_property
    def counts(self) -> FloatArray:
        """See :func:`counts`."""
        there: FloatArray = _locked(np.count_nonzero(self.weight, axis=1).astype(np.float64))
        return there

    @cached_property
    def shares(self) -> FloatArray:
        """See :func:`shares`."""
        return _locked(self.weight / np.maximum(self.counts, 1.0)[:, None])

    @cached_property
    def single_shares(self) -> Floats:
        """The shares in single precision."""
        return _locked(self.shares.astype(np.float32))


@dataclass(frozen=True)
class Examples(Rectangle):
    """Examples as features and a target: a :class:`Batch`.

    Attributes:
        x: features, shape (k, n, d).
        y: targets, shape (k, n): a number, or the number of a class.
        weight: weight of each example, shape (k, n); 0 for padding.
        keys: a random key of each client for this step of its training, shape (k,); None outside training.
    """

    x: Floats
    y: NDArray[Any]
    weight: FloatArray
    keys: Keys | None = None

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def nbytes(self) -> int:
        """See :attr:`Batch.nbytes`."""
        return self.x.nbytes + self.y.nbytes + self.weight.nbytes

    @cached_property
    def classes(self) -> tuple[NDArray[np.intp], bool]:
        """The targets as class numbers, and whether all are integers of at least 0."""
        y = self.y.astype(np.intp, copy=False)
        return y, not (y.size and (y.min() < 0 or (y.dtype != self.y.dtype and (y != self.y).any())))

    @cached_property
    def largest(self) -> float:
        """The largest target, or minus infinity without examples."""
        return float(self.y.max()) if self.y.size else -np.inf

    @cached_property
    def signs(self) -> Floats:
        """1 for an example of class 0 and -1 for one of class 1, in single precision, shape (k, n)."""
        return _locked(1 - 2 * self.y.astype(np.float32))

    def only(self, examples: NDArray[np.intp]) -> Examples:
        """See :meth:`Batch.only`."""
        return Examples(
            chosen(self.x, examples),
            chosen(self.y, examples),
            np.where(examples == NO_EXAMPLE, 0.0, chosen(self.weight, examples)),
        )


STEP_DRAWS = 1 << 34
"""Index of a client's child key for its steps; smaller indices are for mini-batches and methods."""


def with_keys_of_step(batch: B, keys: Keys, step: int) -> B:
    """Return the examples of a local step with keys for the model's draws in this step, such as for dropout.

    Args:
        batch: the examples; only :class:`Examples` have keys.
        keys: a random key for each client, shape (k,).
        step: the number of the step, from 0.
    """
    if not isinstance(batch, Examples):
        return batch
    found = copy(batch)  # the copy keeps the cached values derived from the weights
    object.__setattr__(found, "keys", child_keys(keys, STEP_DRAWS + step))
    return found


def chosen(values: NDArray[Any], examples: NDArray[np.intp]) -> NDArray[Any]:
    """Return the values of selected examples of each client, shape (k, b, ...), from all values, shape (k, n, ...).

    At NO_EXAMPLE the value is an arbitrary example's.
    """
    k, n = values.shape[:2]
    if n == 0:
        return np.zeros((*examples.shape, *values.shape[2:]), values.dtype)
    rows = np.arange(k)[:, None] * n + np.maximum(examples, 0)
    taken: NDArray[Any] = np.take(values.reshape(k * n, *values.shape[2:]), rows, axis=0, mode="clip")
    return taken


def counts(batch: Batch) -> FloatArray:
    """Return each client's number of examples with a weight other than 0, shape (k,)."""
    if isinstance(batch, Rectangle):
        return batch.counts
    there: FloatArray = np.count_nonzero(batch.weight, axis=1).astype(np.float64)
    return there


def shares(batch: Batch, dtype: DTypeLike = np.float64) -> Any:
    """Return each example's share in its client's mean, weight / number of examples, shape (k, n).

    It is computed in double precision and returned as ``dtype``; callers must not modify it.
    """
    if isinstance(batch, Rectangle):
        return batch.single_shares if dtype == np.float32 else batch.shares
    return (batch.weight / np.maximum(counts(batch), 1.0)[:, None]).astype(dtype, copy=False)


class KeptBatches(Generic[B]):
    """A :class:`ClientData` that caches its batches, up to a limit of memory.

    Useful for data that do not change: if every client takes part in every round, the rectangles are always the same.

    Args:
        data: the data to batch.
        most_bytes: memory limit of the cache; further batches are made anew each time.
    """

    def __init__(self, data: ClientData[B], most_bytes: int = 2**28) -> None:
        self._data, self._room = data, most_bytes
        self._kept: dict[bytes, B] = {}

    def __len__(self) -> int:
        return len(self._data)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """See :attr:`ClientData.sizes`."""
        return self._data.sizes

    def batch(self, clients: Clients) -> B:
        """See :meth:`ClientData.batch`."""
        wanted = clients.tobytes()
        found = self._kept.get(wanted)
        if found is None:
            found = self._data.batch(clients)
            self._room -= found.nbytes + len(wanted)
            if self._room > 0:
                self._kept[wanted] = found
        return found


def _locked(values: NDArray[Any]) -> NDArray[Any]:
    values.flags.writeable = False
    return values
