"""Lists of items, the examples of models of features, as a batch and as a fleet's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.features.encode import Columns, FloatArray, Slots, encode
from fedping.client_sim.features.reference import NOTHING_CHOSEN, Shown
from fedping.client_sim.features.vectors import Lists
from fedping.client_sim.learning.batch import NO_EXAMPLE, Clients, Rectangle, chosen
from fedping.protocol.errors import FedpingError
from fedping.protocol.spec import ModelSpec


@dataclass(frozen=True)
class ListBatch(Rectangle):
    """Lists of k clients, at most n of each: a :class:`fedping.client_sim.learning.batch.Batch`.

    Attributes:
        at: the positions of the items' values, shape (k, n, c, S).
        value: the values, shape (k, n, c, S).
        y: the place of the chosen item, -1 for none, shape (k, n).
        weight: weight of each list, shape (k, n); 0 is padding.
        shown: the number of items in each list, shape (k, n).
        seen: the number of items that were seen, shape (k, n).
        pinned: whether the product has pinned each item, shape (k, n, c).
    """

    at: NDArray[np.int32]
    value: FloatArray
    y: NDArray[np.intp]
    weight: FloatArray
    shown: NDArray[np.intp]
    seen: NDArray[np.intp]
    pinned: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def nbytes(self) -> int:
        """See :attr:`fedping.client_sim.learning.batch.Batch.nbytes`."""
        return self.at.nbytes + self.value.nbytes + self.weight.nbytes + 3 * self.y.nbytes + self.pinned.nbytes

    def only(self, examples: NDArray[np.intp]) -> ListBatch:
        """See :meth:`fedping.client_sim.learning.batch.Batch.only`."""
        weight = np.where(examples == NO_EXAMPLE, 0.0, chosen(self.weight, examples))
        rest = (self.shown, self.seen, self.pinned)
        return ListBatch(
            chosen(self.at, examples),
            chosen(self.value, examples),
            chosen(self.y, examples),
            weight,
            *(chosen(each, examples) for each in rest),
        )

    @cached_property
    def lists(self) -> Lists:
        """The k · n lists, client after client; padding has no choice."""
        k, n, c, slots = self.at.shape
        return Lists(
            np.ascontiguousarray(self.at.reshape(k * n, c, slots).transpose(2, 1, 0), dtype=np.intp),
            np.ascontiguousarray(self.value.reshape(k * n, c, slots).transpose(2, 1, 0)),
            self.shown.ravel(),
            np.where(self.weight > 0, self.y, NOTHING_CHOSEN).ravel(),
            self.seen.ravel(),
            np.ascontiguousarray(self.pinned.reshape(k * n, c).T),
        )


@dataclass(frozen=True)
class ListData:
    """The lists of a whole fleet, client after client: a :class:`fedping.client_sim.learning.batch.ClientData`.

    Attributes:
        at: positions of the items' values, shape (N, c, S); the other arrays are those of :class:`ListBatch`, shape (N,
            ...).
        sizes: the number of lists of each client, shape (clients,).
    """

    at: NDArray[np.int32]
    value: FloatArray
    y: NDArray[np.intp]
    shown: NDArray[np.intp]
    seen: NDArray[np.intp]
    pinned: NDArray[np.bool_]
    sizes: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.y) != self.sizes.sum():
            raise FedpingError(f"there are {len(self.y):,} lists, and the clients have {self.sizes.sum():,}")
        if ((self.y < NOTHING_CHOSEN) | (self.y >= self.shown) | (self.shown > self.at.shape[1])).any():
            raise FedpingError("a choice is none of the items of its list. Give its place from 0, or -1 for none")

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, clients: Clients) -> ListBatch:
        """Return all the lists of these clients; a number beyond the last client has no lists."""
        known = np.pad(self.sizes, (0, max(0, int(np.max(clients, initial=-1)) + 1 - len(self))))
        sizes = known[clients]
        first = (np.cumsum(known) - known)[clients]
        width = int(sizes.max(initial=0))
        there = np.arange(width) < sizes[:, None]
        rows = np.where(there, first[:, None] + np.arange(width), 0)
        if not len(self.y):
            rows = np.zeros((len(clients), 0), np.intp)
        return ListBatch(
            self.at[rows],
            self.value[rows],
            self.y[rows],
            there.astype(np.float64)[:, : rows.shape[1]],
            self.shown[rows],
            self.seen[rows],
            self.pinned[rows],
        )

    def pooled(self, clients: Clients | None = None) -> ListData:
        """Return all lists, or some clients' lists, as a single client's."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        return self.rows(np.flatnonzero(np.ones(len(owner), np.bool_) if clients is None else np.isin(owner, clients)))

    def rows(self, which: NDArray[np.intp], sizes: NDArray[np.int64] | None = None) -> ListData:
        """Return selected lists, divided among clients by ``sizes``; None gives all to a single client."""
        return replace(
            self,
            at=self.at[which],
            value=self.value[which],
            y=self.y[which],
            shown=self.shown[which],
            seen=self.seen[which],
            pinned=self.pinned[which],
            sizes=np.array([len(which)], np.int64) if sizes is None else sizes,
        )


def list_data(spec: ModelSpec, shown: Sequence[Shown], sizes: Sequence[int] | None = None) -> ListData:
    """Return lists as the data of a fleet, client after client.

    Args:
        spec: the spec.
        shown: all lists.
        sizes: the number of lists of each client; None for one each.
    """
    counts = np.array([len(each.items) for each in shown], np.intp)
    items = [item for each in shown for item in each.items]
    slots = encode(
        spec,
        _columns(items),
        _columns([each.query for each in shown]),
        np.arange(len(items)),
        np.repeat(np.arange(len(shown)), counts),
    )
    there = np.arange(counts.max(initial=0)) < counts[:, None]
    pinned = [[place in each.pinned for place in range(there.shape[1])] for each in shown]
    return ListData(
        *_laid_out(slots, there),
        y=np.array([each.chosen for each in shown], np.intp),
        shown=counts,
        seen=np.array([len(each.items) if each.seen is None else each.seen for each in shown], np.intp),
        pinned=np.array(pinned, np.bool_).reshape(there.shape),
        sizes=np.array([1] * len(shown) if sizes is None else sizes, np.int64),
    )


def lists_of(slots: Slots, first: NDArray[np.intp], sizes: NDArray[np.intp], y: NDArray[np.intp]) -> ListData:
    """Return lists of a single client from the items' values; no items are pinned, and all were seen.

    Args:
        slots: the values of all items, list by list.
        first: the first item of each list, shape (N,).
        sizes: the number of items in each list, shape (N,).
        y: the place of the chosen item, -1 for none, shape (N,).
    """
    there = np.arange(sizes.max(initial=0)) < sizes[:, None]
    rows = (first[:, None] + np.arange(there.shape[1]))[there]
    at, value = _laid_out(Slots(slots.at[:, rows], slots.value[:, rows]), there)
    return ListData(at, value, y, sizes, sizes, np.zeros(there.shape, np.bool_), np.array([len(y)], np.int64))


def _laid_out(slots: Slots, there: NDArray[np.bool_]) -> tuple[NDArray[np.int32], FloatArray]:
    """Return slots of shape (S, P) arranged by list, shape (N, c, S); values of the padding are 0.

    Where a slot has one position in all items, the padding has it too, which saves gathering weights.
    """
    at = np.zeros((*there.shape, len(slots.at)), np.int32)
    value = np.zeros(at.shape)
    if slots.at.size:
        at[:] = slots.at[:, 0]
    at[there], value[there] = slots.at.T, slots.value.T
    return at, value


def _columns(rows: Sequence[object]) -> Columns:
    every = [row for row in rows if isinstance(row, dict)]
    fields = {field for row in every for field in row}
    return {field: [row.get(field) if isinstance(row, dict) else None for row in rows] for field in sorted(fields)}


def lists_from(spec: ModelSpec, shown: Sequence[Shown]) -> Lists:
    """Return lists in the format of :mod:`.vectors`."""
    return list_data(spec, shown).batch(np.arange(len(shown))).lists
