"""Clients' states between compiled rounds: a table on the device, with a row for each client from its first use on.

If the table has room for all clients that will train, they keep their rows until the end of the run. Otherwise the
table is emptied into the host's store (`resuming.MappedStates`) whenever a call needs more rows than are free. The
store is also written before a checkpoint or an evaluation reads it, so that a killed run continues.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithm import State
from fedping.client_sim.learning.batch import Clients
from fedping.client_sim.learning.states import ClientStates
from fedping.experiments.laboratory.rounds.lanes import rounded_up

MOST_ON_DEVICE = 2**30
"""Maximum bytes of the table on the device, unless the states of a single round's clients need more."""

Table = dict[str, Any]


def bytes_each(first: State) -> int:
    """Return the bytes of a client's state."""
    return sum(value.nbytes for value in first.values())


class Slots:
    """The table of a run's clients' states, and each client's row in it.

    Args:
        first: the state of a client that has never trained.
        store: the store for states that are not on the device.
        clients: the number of all clients.
        wanted: the maximum number of clients that will train in the run.
        at_once: the maximum numbers of clients in a call and in a round.
    """

    def __init__(
        self,
        first: State,
        store: ClientStates,
        clients: int,
        wanted: int,
        at_once: tuple[int, int],
    ) -> None:
        self._first, self._store, self._wanted = (
            {name: np.asarray(value) for name, value in first.items()},
            store,
            wanted,
        )
        of_call, of_round = at_once
        room = max(MOST_ON_DEVICE // max(bytes_each(first), 1), of_round)
        self.capacity = rounded_up(min(wanted, room)) if first else 0
        self.holds_all = wanted <= self.capacity
        self._at_once = max(1, min(of_call, self.capacity))
        self._slot = np.full(clients, -1, np.int32)
        self._changed = np.zeros(clients, np.bool_)
        self._stored = np.zeros(clients, np.bool_)
        self._used, self._reused = 0, False
        self._call: Clients = np.zeros(0, np.intp)
        self._before: Table | None = None
        self._table: Table | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """A note if the table is emptied into the host's store from time to time."""
        if self.holds_all or not self._first:
            return ()
        return (
            f"up to {self._wanted:,} clients keep {bytes_each(self._first):,} bytes each; the device has room for "
            f"{self.capacity:,} of them at a time, and the others are on the host",
        )

    def begin(self, clients: Clients) -> Table:
        """Return the table for a call with these clients, each once, after giving each a row (:meth:`rows`)."""
        if not self._first:
            return {}
        if self._table is None:
            self._table = self._new()
        free = self.capacity - self._used
        if np.count_nonzero(self._slot[clients] < 0) > free:
            self.flush()
            self._slot[:], self._used, self._reused = -1, 0, True
            if len(clients) > self.capacity:
                self.capacity, self._table, self._reused = rounded_up(len(clients)), None, False
                self._table = self._new()
        new = clients[self._slot[clients] < 0]
        self._slot[new] = np.arange(self._used, self._used + len(new))
        self._used += len(new)
        if self._reused or self._stored[new].any():
            for part in self._parts(new):
                rows = self._store.load(part)
                padded = {name: _padded(rows[name], self._at_once) for name in self._first}
                self._table = _written()(self._table, self._padded_rows(part), padded)
        self._call = clients
        self._before = {name: [] for name in self._first}
        for part in self._parts(clients):
            for name, value in _read()(self._table, self._padded_rows(part)).items():
                self._before[name].append(value)
        return self._table

    def rows(self, clients: Clients, count: int) -> NDArray[np.int32]:
        """Return the clients' rows, padded to shape (count,) with the number of all rows, which stands for no row."""
        found = np.full(count, self.capacity, np.int32)
        found[: len(clients)] = self._slot[clients]
        return found

    def put(self, table: Table) -> None:
        """Replace the table by the one that the call returned."""
        self._table = table if self._first else None

    def commit(self) -> None:
        """Confirm the states that the last call left in the table, so that :meth:`flush` writes them."""
        self._changed[self._call] = True
        self._call, self._before = np.zeros(0, np.intp), None

    def flush(self) -> None:
        """Write the changed states to the store; for a call that is not committed yet, the states before it."""
        if self._table is None:
            return
        whose, before = np.flatnonzero(self._changed), {}
        if self._before is not None:
            before = {name: np.concatenate([*map(np.asarray, values)]) for name, values in self._before.items()}
        for part in self._parts(whose):
            rows = _read()(self._table, self._padded_rows(part))
            found = {name: np.array(value[: len(part)]) for name, value in rows.items()}
            place = np.searchsorted(self._call, part)
            for name, values in before.items():
                there = self._call[np.minimum(place, len(self._call) - 1)] == part
                found[name][there] = values[place[there]]
            self._store.save(part, found)
        self._stored |= self._changed
        self._changed[:] = False

    def forget(self) -> None:
        """Discard the table, and start again from the states in the store, as after a kill."""
        self._slot[:], self._used, self._reused = -1, 0, True
        self._changed[:] = False
        self._call, self._before = np.zeros(0, np.intp), None

    def _new(self) -> Table:
        from jax import numpy as jnp

        shapes = {name: (self.capacity, *value.shape) for name, value in self._first.items()}
        return {name: jnp.array(jnp.broadcast_to(value, shapes[name])) for name, value in self._first.items()}

    def _parts(self, clients: Clients) -> list[Clients]:
        return [clients[low : low + self._at_once] for low in range(0, len(clients), self._at_once)]

    def _padded_rows(self, clients: Clients) -> NDArray[np.int32]:
        return self.rows(clients, self._at_once)


def _padded(values: NDArray[Any], count: int) -> NDArray[Any]:
    found = np.zeros((count, *values.shape[1:]), values.dtype)
    found[: len(values)] = values
    return found


@cache
def _written() -> Callable[[Table, Any, Table], Table]:
    import jax

    def write(table: Table, rows: Any, values: Table) -> Table:
        return {name: value.at[rows].set(values[name], mode="drop") for name, value in table.items()}

    return jax.jit(write, donate_argnums=0)


@cache
def _read() -> Callable[[Table, Any], Table]:
    import jax

    def read(table: Table, rows: Any) -> Table:
        return {name: value.at[rows].get(mode="clip") for name, value in table.items()}

    return jax.jit(read)
