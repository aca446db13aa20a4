"""Checkpoints: after a round, the whole state of a run goes to one file, so that a killed run continues.

Only rounds in memory and rounds of gossip averaging continue; others start again. All draws follow from the seed and
the round, so that a run that was killed ends with the same bits as one that was not.

    <folder of a run>/checkpoint.npz    while it runs; removed when it is finished
    <folder of a run>/states.bin        a row for each client: its state from round to round, memory-mapped
    <folder of a run>/states.<g>.undo   the rows at checkpoint g, of clients that have changed since then
    <folder of a run>/sent.*            the same for the states of upload links

A row is a client's state XOR the first state. So clients that have never trained have zeros, which take no space in a
file system. Checkpoints don't copy the rows: before the first change of a row after a checkpoint, its old value goes to
the checkpoint's journal; a run that resumes from the checkpoint restores it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithm import State
from fedping.client_sim.learning.states import ClientNumbers, check_state, checked_first
from fedping.experiments.run_folder import write_whole
from fedping.protocol.errors import InvalidSettings

CHECKPOINT = "checkpoint.npz"

STATES, SENT = "states", "sent"
"""Prefixes of the names of files with clients' states: of their training, and of their upload links."""

MOST_OF_THE_TIME = 1 / 20
"""Maximum share of a run's time for writing its state: if rounds are short, only some are written."""

Arrays: TypeAlias = dict[str, NDArray[Any]]


class CannotGoOn(Exception):
    """A file that a checkpoint needs is missing, so the run begins again; the message names it."""


@runtime_checkable
class Part(Protocol):
    """A part of a run that changes from round to round."""

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        """Return everything that future rounds depend on, by name."""
        ...

    def restore(self, saved: Arrays) -> None:
        """Continue from the state that :meth:`snapshot` returned.

        Raises:
            CannotGoOn: something is missing; the part is in its initial state.
        """
        ...


@runtime_checkable
class Checks(Protocol):
    """A part that may be unable to continue; it is checked before any part is restored."""

    def check(self, saved: Arrays) -> None:
        """Raise :class:`CannotGoOn` unless :meth:`Part.restore` can continue from this."""
        ...


class Checkpoints:
    """Writes and reads the state of one run, made of its parts' states, by name.

    Args:
        folder: the folder of the run.
        parts: the parts with state; read between rounds. Only the first may be unable to continue.
    """

    def __init__(self, folder: Path, parts: Mapping[str, Part]) -> None:
        self._path, self._parts = folder / CHECKPOINT, parts
        self._cost, self._written = 0.0, -np.inf
        self.notes: tuple[str, ...] = ()
        """A note about a killed run that could not be continued."""

    def restored(self) -> bool:
        """Restore all parts from the file; return False if there is no file, or it is incomplete (:attr:`notes`)."""
        if not self._path.exists():
            return False
        try:
            with np.load(self._path, allow_pickle=False) as file:
                saved = {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            self.notes = (_begun_again(f"its state, {self._path.name}, is damaged"),)
            return False
        try:
            for name, part in self._parts.items():
                if isinstance(part, Checks):
                    part.check(_under(name, saved))
            for name, part in self._parts.items():
                part.restore(_under(name, saved))
        except CannotGoOn as error:
            self._path.unlink()  # the checkpoint belongs to none of the existing files
            self.notes = (_begun_again(str(error)),)
            return False
        return True

    def write(self) -> None:
        """Write the state, unless that would take too much of the run's time."""
        began = time.monotonic()
        if began - self._written < self._cost / MOST_OF_THE_TIME:
            return
        saved = {f"{name}/{key}": value for name, part in self._parts.items() for key, value in part.snapshot().items()}
        write_whole(self._path, lambda hidden: _save(hidden, saved))
        self._written = time.monotonic()
        self._cost = self._written - began


def _begun_again(why: str) -> str:
    return f"it was killed and began again from round 0, for {why}; that took time, and changes no result"


def _under(name: str, saved: Arrays) -> Arrays:
    return {key.removeprefix(f"{name}/"): value for key, value in saved.items() if key.startswith(f"{name}/")}


def as_array(value: Any) -> NDArray[np.uint8]:
    """Return an array that encodes a JSON value, including numbers that are not finite."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def from_array(array: NDArray[np.uint8]) -> Any:
    """Return the value given to :func:`as_array`; tuples become lists."""
    return json.loads(array.tobytes())


def _save(path: Path, saved: Arrays) -> None:
    with open(path, "wb") as sink:
        np.savez(sink, **saved)  # type: ignore[arg-type]


MOST_BYTES = 4 * 2**30
"""Maximum bytes of the states of all clients of a run together."""

_HEAD = np.dtype([("clients", "<u8"), ("crc", "<u4")])


@runtime_checkable
class KeepsPending(Protocol):
    """A store of states that may still be partly on a device."""

    pending: Callable[[], None]
    """Writes the states on the device to the store; called before the store is read."""


class MappedStates:
    """A :class:`fedping.client_sim.learning.ClientStates` of one run, and a :class:`Part` of its checkpoints.

    Clients without state have no file. A run that is killed at any moment, or whose machine loses power, continues from
    its checkpoint with its states at that time.

    Args:
        folder: the run's folder.
        first: the state of a client that has never trained.
        clients: the number of clients.
        name: prefix of the files' names.
    """

    def __init__(self, folder: Path, first: State, clients: int, name: str = STATES) -> None:
        self._name, self._file_name = name, f"{name}.bin"
        self._first = checked_first(first)
        self._row = np.dtype([(name, value.dtype, value.shape) for name, value in self._first.items()])
        packed = np.zeros(1, self._row)
        for name, value in self._first.items():
            packed[name] = value
        self._first_row = _bytes_of(packed)[0]
        self._folder, self._clients = folder, clients
        self.pending: Callable[[], None] = lambda: None
        self._rows: NDArray[np.uint8] | None = None
        self._changed: NDArray[np.bool_] = np.zeros(0, np.bool_)  # since the last checkpoint, shape (clients,)
        self._generation = 0
        self._journal: BinaryIO | None = None
        self._lock = Lock()

    @property
    def bytes_each(self) -> int:
        """The size of a client's state."""
        return self._row.itemsize

    def check_size(self, training: int) -> None:
        """Raise unless the states of ``training`` clients are small enough.

        Raises:
            InvalidSettings: they are too large.
        """
        if (size := training * self.bytes_each) > MOST_BYTES:
            raise InvalidSettings(
                f"{training:,} clients that keep {self.bytes_each:,} bytes each need {size / 1e9:,.1f} GB, and a run "
                f"may have {MOST_BYTES / 1e9:,.1f} GB; lower the number of clients, keep more weights 'frozen', or "
                "choose a smaller model or a personal vector"
            )
        if size > (free := shutil.disk_usage(self._folder).free):
            raise InvalidSettings(
                f"{training:,} clients keep {size / 1e9:,.1f} GB in {self._folder}, where {free / 1e9:,.1f} GB are "
                "free; free some space, or give another folder"
            )

    def load(self, clients: ClientNumbers) -> State:
        """See :meth:`ClientStates.load`."""
        self.pending()
        rows = (self._file[clients] ^ self._first_row).view(self._row)[:, 0] if self.bytes_each else None
        return {} if rows is None else {name: np.ascontiguousarray(rows[name]) for name in self._first}

    def save(self, clients: ClientNumbers, state: State) -> None:
        """See :meth:`ClientStates.save`."""
        check_state(state, self._first, len(clients))
        if not self.bytes_each:
            return
        file, rows = self._file, np.empty(len(clients), self._row)
        for name in self._first:
            rows[name] = state[name]
        if self._journal is not None:  # before the first checkpoint, a killed run starts again
            self._remember(self._journal, np.asarray(clients)[~self._changed[clients]])
        file[clients] = _bytes_of(rows) ^ self._first_row

    def snapshot(self) -> Arrays:
        """Begin a new journal, and return its number and a checksum of the rows, which stay in the file."""
        if not self.bytes_each:
            return {}
        self.pending()
        file = self._file
        assert isinstance(file, np.memmap)
        file.flush()
        # The checkpoint of the current generation is complete, so earlier journals are no longer needed.
        self._path(self._generation - 1).unlink(missing_ok=True)
        self._begin(self._generation + 1)
        return {"generation": np.array(self._generation), "crc": np.array(zlib.crc32(file.data))}

    def restore(self, saved: Arrays) -> None:
        """Restore the rows that have changed since :meth:`snapshot` returned ``saved``.

        Raises:
            CannotGoOn: the file or a journal is missing, damaged, or another run's.
        """
        if not self.bytes_each:
            return
        path = self._folder / self._file_name
        known = sorted(int(each.name.split(".")[1]) for each in self._folder.glob(f"{self._name}.*.undo"))
        generation = int(saved.get("generation", -1))
        if generation not in known or not path.is_file() or path.stat().st_size != self._clients * self.bytes_each:
            raise CannotGoOn(f"what its clients keep, {self._file_name} and its journal, is missing or damaged")
        rows = np.memmap(path, np.uint8, "r+", shape=(self._clients, self.bytes_each))
        for number in sorted((each for each in known if each >= generation), reverse=True):
            for clients, were in self._remembered(number):
                rows[clients] = were
        if zlib.crc32(rows.data) != int(saved.get("crc", -1)):  # starting again gives the same bits
            raise CannotGoOn(f"what its clients keep, {self._file_name} and its journal, is damaged or another run's")
        rows.flush()
        for number in known:
            if number != generation:
                self._path(number).unlink()
        self._rows = rows
        self._begin(generation)

    def close(self) -> None:
        """Close the files."""
        self._rows = None
        if self._journal is not None:
            self._journal.close()

    @property
    def _file(self) -> NDArray[np.uint8]:
        """The rows, shape (clients, bytes), in the restored file or else in a new one."""
        with self._lock:
            if self._rows is None:
                for old in self._folder.glob(f"{self._name}.*.undo"):
                    old.unlink()
                self._rows = np.memmap(
                    self._folder / self._file_name, np.uint8, "w+", shape=(self._clients, self.bytes_each)
                )
            return self._rows

    def _path(self, generation: int) -> Path:
        return self._folder / f"{self._name}.{generation}.undo"

    def _begin(self, generation: int) -> None:
        if self._journal is not None:
            self._journal.close()
        self._generation, self._journal = generation, open(self._path(generation), "wb")  # noqa: SIM115
        self._changed = np.zeros(self._clients, np.bool_)

    def _remember(self, journal: BinaryIO, clients: ClientNumbers) -> None:
        """Write clients' rows to the checkpoint's journal before these rows change for the first time."""
        if not len(clients):
            return
        record = clients.astype("<i8").tobytes() + self._file[clients].tobytes()
        journal.write(np.array([(len(clients), zlib.crc32(record))], _HEAD).tobytes() + record)
        journal.flush()
        os.fsync(journal.fileno())
        self._changed[clients] = True

    def _remembered(self, generation: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        """Yield a journal's clients with their former rows. A torn end is ignored: these rows hadn't changed yet."""
        with open(self._path(generation), "rb") as journal:
            while len(head := journal.read(_HEAD.itemsize)) == _HEAD.itemsize:
                [(count, crc)] = np.frombuffer(head, _HEAD).tolist()
                record = journal.read(min(count, self._clients) * (8 + self.bytes_each))
                if len(record) < count * (8 + self.bytes_each) or zlib.crc32(record) != crc:
                    return
                rows = np.frombuffer(record, np.uint8, offset=8 * count)
                yield np.frombuffer(record, "<i8", count), rows.reshape(count, self.bytes_each)


def _bytes_of(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return structured rows as bytes, shape (k, bytes of a row)."""
    return rows.view(np.uint8).reshape(len(rows), rows.itemsize)
