"""The state that clients keep from one training to the next, which is never sent.

A client algorithm defines the state (:class:`fedping.client_sim.learning.algorithms.Algorithm`). This module stores it
for many simulated clients, in memory or in a file that outlives the process. A browser keeps it in its own storage.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithm import Diverged, State
from fedping.protocol.errors import FedpingError

ClientNumbers: TypeAlias = NDArray[np.integer[Any]]

MOST_BYTES = 2**28
"""Maximum bytes of a single client's state."""

_AT_A_TIME = 500
"""Rows per statement: fewer than the limit of any SQLite."""


class ClientStates(Protocol):
    """A store of clients' states. A client is a number; its state is the last one saved."""

    def load(self, clients: ClientNumbers) -> State:
        """Return these clients' state, arrays of shape (k, ...); a client without a saved state has the first state."""
        ...

    def save(self, clients: ClientNumbers, state: State) -> None:
        """Save the state of these clients, each of which occurs once.

        Raises:
            FedpingError: the arrays' names or shapes differ from the first state's, or a value is not finite.
        """
        ...


StatesOf: TypeAlias = Callable[[str, State], ClientStates]
"""Function from an owner (a study's line and its training) and the initial state to the store."""


@dataclass(frozen=True)
class Kept:
    """The stored state for k trainings that are requested together.

    Attributes:
        states: the store.
        clients: the client whose state each training loads and saves, shape (k,). A client that occurs twice trains
            twice, the second time with the state that the first training saved.
    """

    states: ClientStates
    clients: ClientNumbers


class MemoryStates:
    """A :class:`ClientStates` in memory; it grows with the number of clients that have trained.

    Args:
        first: the state of a client that has never trained.
    """

    def __init__(self, first: State) -> None:
        self._first = checked_first(first)
        self._place: dict[int, int] = {}
        self._rows = {name: np.empty((0, *value.shape), value.dtype) for name, value in self._first.items()}
        self._lock = Lock()

    def load(self, clients: ClientNumbers) -> State:
        """See :meth:`ClientStates.load`."""
        with self._lock:
            places = np.array([self._place.get(client, -1) for client in clients.tolist()], np.intp)
            there = places >= 0
            found = {}
            for name, first in self._first.items():
                found[name] = np.repeat(first[None], len(clients), axis=0)
                found[name][there] = self._rows[name][places[there]]
        return found

    def save(self, clients: ClientNumbers, state: State) -> None:
        """See :meth:`ClientStates.save`."""
        check_state(state, self._first, len(clients))
        with self._lock:
            places = [self._place.setdefault(client, len(self._place)) for client in clients.tolist()]
            for name, rows in self._rows.items():
                if len(self._place) > len(rows):
                    more = np.empty((2 * len(self._place) - len(rows), *rows.shape[1:]), rows.dtype)
                    self._rows[name] = rows = np.concatenate([rows, more])
                rows[places] = state[name]

    def snapshot(self) -> State:
        """Return all saved states: the clients' numbers as ``clients``, each array as ``of_<name>``."""
        with self._lock:
            count = len(self._place)
            rows = {f"of_{name}": rows[:count].copy() for name, rows in self._rows.items()}
            return {"clients": np.fromiter(self._place, np.int64, count), **rows}

    def restore(self, saved: State) -> None:
        """Replace all stored state by the rows that :meth:`snapshot` returned."""
        with self._lock:
            self._place = {client: place for place, client in enumerate(saved["clients"].tolist())}
            self._rows = {name: saved[f"of_{name}"].copy() for name in self._rows}


def in_memory(owner: str, first: State) -> ClientStates:
    """Return a store that lasts as long as the process: a :data:`StatesOf`."""
    return MemoryStates(first)


class DamagedStates(FedpingError):
    """A state file is damaged."""


class StateFile:
    """The state of clients of any number of owners in one SQLite file, consistent after every save and after a kill.

    It has a row for each client that has trained, with a checksum of the owner, the client and the state. All rows are
    verified when the file is opened, because later nothing would reveal that a row with a damaged key is missing.
    :meth:`of` is a :data:`StatesOf`.

    Raises:
        FedpingError: the file is not a state file, is damaged, was written by a later version, or is open in another
            process.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._is_ours = path, Lock(), False
        self._layouts: dict[str, str] = {}  # layouts of the requested owners
        with self._told():
            self._file = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._begin()
            self._bring_up_to_date()
            self._verify()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        with self._told():
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
            tables = self._file.execute(r"SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'")
            if not {name for (name,) in tables} <= set(_TABLES):
                raise FedpingError(f"{self._path} is a different kind of database; give another file")
            self._is_ours = True
            # A power cut may lose the last save, but the file stays consistent.
            for said in ("journal_mode = WAL", "synchronous = NORMAL"):
                self._file.execute(f"PRAGMA {said}")
            for name, columns in _TABLES.items():
                self._file.execute(f"CREATE TABLE IF NOT EXISTS {name} {columns}")
            self._file.create_function("sealed", 4, _sealed, deterministic=True)
            self._file.create_function("is_whole", 4, _is_whole, deterministic=True)

    def _bring_up_to_date(self) -> None:
        """Add checksums to the rows of a file of an earlier version, which had none.

        A file without a version number that already has checksums has lost its number, and is verified unchanged.
        """
        with self.rows() as file:
            (number,) = file.execute("PRAGMA user_version").fetchone()
            if number > _FORMAT:
                raise FedpingError(
                    f"{self._path} has format {number}, and this fedping reads up to format {_FORMAT}: a later version "
                    "has written it; upgrade fedping, or give another file"
                )
            if number == _FORMAT:
                return
            if file.execute(f"{_WITH_OWNERS} WHERE {_WHOLE} LIMIT 1").fetchone() is None:
                file.execute(
                    "UPDATE states SET state = sealed(owner, client, state, "
                    "(SELECT owners.owner || ' ' || layout FROM owners WHERE rowid = states.owner)) "
                    "WHERE typeof(state) = 'blob'"
                )
            file.execute(f"PRAGMA user_version = {_FORMAT}")

    def _verify(self) -> None:
        with self.rows() as file:
            (said,) = file.execute("PRAGMA integrity_check(1)").fetchone()
            broken = file.execute(f"{_WITH_OWNERS} WHERE NOT {_WHOLE} LIMIT 1").fetchone()
        if said != "ok" or broken is not None:
            raise self.damaged()

    def of(self, owner: str, first: State) -> ClientStates:
        """Return the store of an owner's state.

        Raises:
            FedpingError: the owner's stored state has other names or shapes.
        """
        layout = " ".join(
            f"{name}:{value.dtype.str}{list(value.shape)}" for name, value in checked_first(first).items()
        )
        with self.rows() as file:
            file.execute("INSERT OR IGNORE INTO owners VALUES (?, ?)", (owner, layout))
            number, known = file.execute("SELECT rowid, layout FROM owners WHERE owner = ?", (owner,)).fetchone()
        if known != layout:
            raise FedpingError(
                f"{self._path} keeps the state of {owner} as {known or 'nothing'}, but the algorithm now keeps "
                f"{layout or 'nothing'}; give another file, or delete this one"
            )
        self._layouts[owner] = layout
        return _InFile(self, number, f"{owner} {layout}", checked_first(first))

    def begins_afresh(self, whose: str) -> bool:
        """Return whether an owner with this prefix has saved state, but a new owner with the prefix takes its place.

        The new owner was requested since the file was opened, and has saved nothing yet.
        """
        with self.rows() as file:
            found = file.execute(
                "SELECT owner FROM owners WHERE EXISTS (SELECT 1 FROM states WHERE states.owner = owners.rowid)"
            ).fetchall()
        kept = {owner for (owner,) in found if owner.startswith(whose)}
        new = any(owner.startswith(whose) and layout and owner not in kept for owner, layout in self._layouts.items())
        return new and not kept <= self._layouts.keys()

    @contextmanager
    def rows(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection inside a transaction, so that either everything is saved or nothing."""
        with self._lock, self._told():
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield self._file
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")

    def damaged(self) -> DamagedStates:
        """Return the error for a damaged row."""
        return DamagedStates(f"{self._path} is damaged. Delete it, and clients begin again")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's quote of a damaged file may not be text
            if "locked" in str(error):
                raise FedpingError(
                    f"{self._path} is in use by another process; wait for it, or give another file"
                ) from error
            is_broken = isinstance(error, UnicodeDecodeError) or any(
                words in str(error) for words in ("malformed", "not a database")
            )
            if is_broken and (self._is_ours or _was_state_file(self._path)):
                raise self.damaged() from error
            raise FedpingError(
                f"cannot keep the state of clients in {self._path} ({error}); give another file"
            ) from error


def open_states(path: Path) -> tuple[StateFile, Path | None]:
    """Open a state file; a damaged one is renamed, and clients begin with the first state.

    Returns:
        The file, and the new path of a damaged one; None if the file wasn't damaged.

    Raises:
        FedpingError: the file isn't a state file, was written by a later version, or is open in another process.
    """
    try:
        return StateFile(path), None
    except DamagedStates:
        names = (path.with_name(f"{path.name}.damaged{'' if number == 1 else f'-{number}'}") for number in count(1))
        aside = next(name for name in names if not name.exists())
        for end in ("", "-wal", "-shm"):  # SQLite's additional files
            if (part := path.with_name(path.name + end)).exists():
                part.rename(aside.with_name(aside.name + end))
        return StateFile(path), aside


class _InFile:
    """A :class:`ClientStates` that holds one owner's part of a :class:`StateFile`."""

    def __init__(self, file: StateFile, owner: int, whose: str, first: State) -> None:
        self._file, self._owner, self._whose, self._first = file, owner, whose, first
        self._size = sum(value.nbytes for value in first.values())

    def load(self, clients: ClientNumbers) -> State:
        found = {name: np.repeat(value[None], len(clients), axis=0) for name, value in self._first.items()}
        place = {client: at for at, client in enumerate(clients.tolist())}
        wanted = list(place)
        with self._file.rows() as file:
            for low in range(0, len(wanted), _AT_A_TIME):
                some = wanted[low : low + _AT_A_TIME]
                marks = ",".join("?" * len(some))
                asked = f"SELECT client, state FROM states WHERE owner = ? AND client IN ({marks})"
                for client, row in file.execute(asked, (self._owner, *some)):
                    self._read(client, row, found, place[client])
        return found

    def save(self, clients: ClientNumbers, state: State) -> None:
        check_state(state, self._first, len(clients))
        arrays = [np.ascontiguousarray(state[name], value.dtype) for name, value in self._first.items()]
        rows = (
            (self._owner, client, self._sealed(client, b"".join(array[at].tobytes() for array in arrays)))
            for at, client in enumerate(clients.tolist())
        )
        with self._file.rows() as file:
            file.executemany("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", rows)

    def _sealed(self, client: int, state: bytes) -> bytes:
        return _sealed(self._owner, client, state, self._whose)

    def _read(self, client: int, row: object, into: dict[str, NDArray[Any]], at: int) -> None:
        if not isinstance(row, bytes) or len(row) != self._size + _SEAL:  # a column may hold anything
            raise self._file.damaged()
        if not _is_whole(self._owner, client, row, self._whose):
            raise self._file.damaged()
        begin = 0
        for name, value in self._first.items():
            part = np.frombuffer(row[begin : begin + value.nbytes], value.dtype)
            if not np.isfinite(part).all():  # saved state is always finite
                raise self._file.damaged()
            into[name][at] = part.reshape(value.shape)
            begin += value.nbytes


_FORMAT = 1
"""The file's format, stored as its `user_version`; 0 is the format without checksums."""

_TABLES = {
    "owners": "(owner TEXT PRIMARY KEY, layout TEXT NOT NULL)",
    "states": "(owner INTEGER, client INTEGER, state BLOB NOT NULL, PRIMARY KEY (owner, client)) WITHOUT ROWID",
}

_WITH_OWNERS = "SELECT 1 FROM states LEFT JOIN owners ON owners.rowid = states.owner"
_WHOLE = "is_whole(states.owner, client, state, owners.owner || ' ' || layout)"

_SEAL = 4


def _was_state_file(path: Path) -> bool:
    """Return whether a file whose tables SQLite can't read is a damaged state file.

    It is one if it begins like an SQLite file, up to a byte or two, and its first page has exactly the table
    definitions of a state file, as SQLite stores them. In doubt, the file is left in place.
    """
    try:
        with path.open("rb") as file:
            page = file.read(_PAGE)
    except OSError:
        return False
    known = sum(one == other for one, other in zip(page, _MAGIC, strict=False))
    named = [f"CREATE TABLE {name} {columns}".encode() in page for name, columns in _TABLES.items()]
    return known >= len(_MAGIC) - 2 and all(named) and page.count(b"CREATE TABLE ") == len(named)


_MAGIC, _PAGE = b"SQLite format 3\0", 4096


def _sealed(owner: int, client: int, state: bytes, whose: str) -> bytes:
    """Return a state with a checksum of the state, its owner and its client."""
    return state + zlib.crc32(state, zlib.crc32(f"{owner} {client} {whose}".encode())).to_bytes(_SEAL, "little")


def _is_whole(owner: int, client: int, row: object, whose: str | None) -> bool:
    """Return whether a row has its correct checksum; its column may hold anything, and its owner may be missing."""
    return isinstance(row, bytes) and whose is not None and row == _sealed(owner, client, row[:-_SEAL], whose)


def check_state(state: State, first: State, count: int) -> None:
    """Raise unless the state of ``count`` clients is finite and has the names and shapes of the first state."""
    for name in {*state, *first}:
        if name not in state or name not in first:
            where, other = ("state", "first state") if name in state else ("first state", "state after the round")
            raise FedpingError(
                f"the training has '{name}' in its {where} and not in its {other}; give back what init_state names"
            )
        shape, wanted = np.shape(state[name]), (count, *first[name].shape)
        if shape != wanted:
            raise FedpingError(
                f"the training left '{name}' of shape {shape} with {count} clients, where its first state asks for "
                f"{wanted}; give every array of the state back, with the clients along its first axis"
            )
        if not np.isfinite(state[name]).all():
            raise Diverged(f"the training left '{name}' with clients, and it is not finite; lower the rate")


def checked_first(first: State) -> dict[str, NDArray[Any]]:
    """Return a first state as numeric arrays.

    Raises:
        FedpingError: it is too large, or holds anything but numbers.
    """
    arrays = {name: np.asarray(value) for name, value in sorted(first.items())}
    for name, value in arrays.items():
        if value.dtype.kind not in "biuf":
            raise FedpingError(f"the state '{name}' of clients is not an array of numbers. Use numbers")
    if (size := sum(value.nbytes for value in arrays.values())) > MOST_BYTES:
        raise FedpingError(f"a client would keep {size:,} bytes, and may keep {MOST_BYTES:,}; keep less")
    return arrays
