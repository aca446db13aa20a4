"""Choices among candidates with features: the examples of ranking models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import NO_EXAMPLE, Clients, FloatArray, Floats, Rectangle, chosen
from fedping.protocol.errors import FedpingError

NOTHING_CHOSEN = -1


@dataclass(frozen=True)
class Choices(Rectangle):
    """Groups of candidates, such as the results of a search, each with the chosen one: a batch of k clients.

    Attributes:
        x: features of each candidate, shape (k, n, c, d).
        y: position of the chosen candidate, shape (k, n); -1 without a choice.
        weight: weight of each group, shape (k, n); 0 is padding.
        shown: number of the c candidates that exist, always the first ones, shape (k, n).
    """

    x: Floats
    y: NDArray[np.integer[Any]]
    weight: FloatArray
    shown: NDArray[np.integer[Any]]

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def nbytes(self) -> int:
        """See :attr:`fedping.client_sim.learning.batch.Batch.nbytes`."""
        return self.x.nbytes + self.y.nbytes + self.weight.nbytes + self.shown.nbytes

    @cached_property
    def chosen(self) -> NDArray[np.intp]:
        """The chosen candidates' positions among all k · n · c, shape (k · n,); the group's first without a choice."""
        first = np.arange(self.y.size) * self.x.shape[2]
        places: NDArray[np.intp] = first + np.maximum(self.y, 0).ravel()
        return places

    @cached_property
    def nothing(self) -> NDArray[np.bool_]:
        """Whether each group has no chosen candidate, shape (k · n,)."""
        none: NDArray[np.bool_] = (self.y == NOTHING_CHOSEN).ravel()
        return none

    @cached_property
    def absent(self) -> NDArray[np.bool_] | None:
        """Whether each candidate is missing, shape (k, n, c); None if all exist."""
        c = self.x.shape[2]
        return np.arange(c) >= self.shown[..., None] if self.shown.size and self.shown.min() < c else None

    def only(self, examples: NDArray[np.intp]) -> Choices:
        """See :meth:`fedping.client_sim.learning.batch.Batch.only`."""
        return Choices(
            chosen(self.x, examples),
            chosen(self.y, examples),
            np.where(examples == NO_EXAMPLE, 0.0, chosen(self.weight, examples)),
            chosen(self.shown, examples),
        )


@dataclass(frozen=True)
class ChoiceData:
    """The choices of a whole fleet, client after client: a :class:`fedping.client_sim.learning.batch.ClientData`.

    Attributes:
        x: features of each candidate, shape (N, c, d).
        y: position of the chosen candidate, shape (N,); -1 without a choice.
        sizes: number of groups of each client, shape (clients,).
        shown: number of the c candidates that exist, shape (N,); all if None.
        natural_keys: the clients' natural keys, such as users or countries, shape (clients,), or None.

    Raises:
        FedpingError: shapes do not match, or a chosen candidate does not exist.
    """

    x: FloatArray
    y: NDArray[np.integer[Any]]
    sizes: NDArray[np.int64]
    shown: NDArray[np.integer[Any]] | None = None
    natural_keys: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        shown = self._shown
        if self.x.ndim != 3 or not len(self.x) == len(self.y) == len(shown) == self.sizes.sum():
            raise FedpingError(
                f"choices need features of shape (N, candidates, d), and N choices in all; the features have shape "
                f"{self.x.shape}, there are {len(self.y)} choices, and the clients have {self.sizes.sum()}"
            )
        if ((self.y < NOTHING_CHOSEN) | (self.y >= shown) | (shown > self.x.shape[1])).any():
            raise FedpingError("a choice is none of the candidates of its group; -1 says that nothing was chosen")

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def _shown(self) -> NDArray[np.integer[Any]]:
        return np.full(len(self.y), self.x.shape[1]) if self.shown is None else self.shown

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, clients: Clients) -> Choices:
        """Return all the choices of these clients; callers must not modify their features."""
        sizes = self.sizes[clients]
        first = self._firsts[clients]
        width = int(sizes.max(initial=0))
        there = np.arange(width) < sizes[:, None]
        rows = np.where(there, first[:, None] + np.arange(width), 0)
        if not rows.size or not len(self.y):
            return Choices(np.zeros((*rows.shape, *self.x.shape[1:])), rows, there.astype(np.float64), rows)
        if there.all() and (np.diff(first) == width).all():  # neighbours of equal size: nothing to copy
            x = self.x[first[0] : first[0] + rows.size].reshape(*rows.shape, *self.x.shape[1:])
        else:
            x = self.x[rows]
        x.flags.writeable = False
        return Choices(x, self.y[rows], there.astype(np.float64), self._shown[rows])

    def single(self) -> ChoiceData:
        """Return the same choices with single-precision features, if the model learns in single precision."""
        x: Any = self.x.astype(np.float32, copy=False)
        return replace(self, x=x)

    def pooled(self, clients: Clients | None = None) -> ChoiceData:
        """Return the choices of all clients, or of some, as those of a single client."""
        everyone = np.repeat(np.arange(len(self)), self.sizes)
        of = slice(None) if clients is None else np.isin(everyone, clients)
        shown = None if self.shown is None else self.shown[of]
        y = self.y[of]
        return ChoiceData(self.x[of], y, np.array([len(y)]), shown)
