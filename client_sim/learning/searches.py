"""Searches over pages: the examples of a browser's ranking models."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import NO_EXAMPLE, Clients, FloatArray
from fedping.client_sim.models import PageTable, Searches

BYTES_A_PAGE = 100
"""Approximate size of a page in a table, in bytes."""


@dataclass(frozen=True)
class ClientSearches:
    """Searches of k clients: a batch that refers to searches by index and copies neither searches nor pages.

    Attributes:
        pages: the pages of all clients.
        searches: S searches over them.
        rows: the searches of each client, shape (k, n), padded with NO_EXAMPLE.
    """

    pages: PageTable
    searches: Searches
    rows: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weight(self) -> FloatArray:
        """The weight of each search: 1, or 0 for padding, shape (k, n)."""
        there: FloatArray = (self.rows != NO_EXAMPLE).astype(np.float64)
        return there

    @property
    def y(self) -> NDArray[np.int64]:
        """The position of the chosen candidate, shape (k, n); -1 without a choice, and in padding."""
        if not len(self.searches):
            return np.full(self.rows.shape, -1)
        return np.where(self.rows != NO_EXAMPLE, self.searches.chosen[self.rows], -1)

    @property
    def nbytes(self) -> int:
        """See :attr:`fedping.client_sim.learning.batch.Batch.nbytes`."""
        k, n = self.rows.shape
        bytes_: int = k * n * (8 + self.searches.candidates.shape[1] * (8 + BYTES_A_PAGE))
        return bytes_

    def only(self, examples: NDArray[np.intp]) -> ClientSearches:
        """See :meth:`fedping.client_sim.learning.batch.Batch.only`."""
        if not self.rows.size:
            return ClientSearches(self.pages, self.searches, np.full(examples.shape, NO_EXAMPLE))
        taken = np.take_along_axis(self.rows, np.maximum(examples, 0), axis=1)
        return ClientSearches(self.pages, self.searches, np.where(examples == NO_EXAMPLE, NO_EXAMPLE, taken))

    def one(self, client: int) -> ClientSearches:
        """Return the batch of a single client."""
        return ClientSearches(self.pages, self.searches, self.rows[client : client + 1])

    @property
    def there(self) -> tuple[NDArray[np.intp], Searches]:
        """The searches without padding, in row order, after the client of each."""
        client, place = np.nonzero(self.rows != NO_EXAMPLE)
        rows = self.rows[client, place]
        if len(rows) and (np.diff(rows) == 1).all():  # contiguous: no copy
            taken = slice(int(rows[0]), int(rows[-1]) + 1)
            return client, Searches(self.searches.candidates[taken], self.searches.chosen[taken])
        return client, Searches(self.searches.candidates[rows], self.searches.chosen[rows])


@dataclass(frozen=True)
class SearchData:
    """The searches of a whole fleet: a :class:`fedping.client_sim.learning.batch.ClientData`.

    Attributes:
        pages: the pages of all clients.
        searches: S searches over them.
        client: the client of each search, shape (S,), ascending positions from 0.
        clients: the number of clients.
    """

    pages: PageTable
    searches: Searches
    client: NDArray[np.intp]
    clients: int

    def __len__(self) -> int:
        return self.clients

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of searches of each client, shape (clients,)."""
        return np.bincount(self.client, minlength=self.clients).astype(np.int64)

    def batch(self, clients: Clients) -> ClientSearches:
        """Return all the searches of these clients."""
        first = np.searchsorted(self.client, clients)
        sizes = np.searchsorted(self.client, clients, side="right") - first
        place = np.arange(int(sizes.max(initial=0)))
        rows = np.where(place < sizes[:, None], first[:, None] + place, NO_EXAMPLE)
        return ClientSearches(self.pages, self.searches, rows)

    def pooled(self, clients: Clients | None = None) -> SearchData:
        """Return all searches, or some clients' searches, as a single client's."""
        of = slice(None) if clients is None else np.isin(self.client, clients)
        searches = Searches(self.searches.candidates[of], self.searches.chosen[of])
        return replace(self, searches=searches, client=np.zeros_like(self.client[of]), clients=1)
