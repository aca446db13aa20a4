"""Continuing in the middle of a run: its whole state is written to one file after a round.

Only rounds in memory and those of gossip averaging are continued; others start again. Everything that is drawn follows
from the seed and the round, so that a run that was killed ends with the same bits as one that was not.

    <folder of a run>/checkpoint.npz    while it runs; removed when it is finished
"""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedping.experiments.run_folder import write_whole

CHECKPOINT = "checkpoint.npz"

STATES = "states.*"
"""The files of what clients keep (`mapped_states.py`), removed when the run is finished."""

MOST_OF_THE_TIME = 1 / 20
"""The share of a run's time for writing its state: if rounds are short, not every one is written."""

Arrays: TypeAlias = dict[str, NDArray[Any]]


class CannotGoOn(Exception):
    """What a checkpoint needs beside itself is missing, so the run begins again; it says what in words."""


@runtime_checkable
class Part(Protocol):
    """A part of a run that changes from round to round."""

    def snapshot(self) -> Mapping[str, NDArray[Any]]:
        """Return everything that future rounds depend on, by name."""
        ...

    def restore(self, saved: Arrays) -> None:
        """Continue from what :meth:`snapshot` returned.

        Raises:
            CannotGoOn: something is missing; the part is as new.
        """
        ...


@runtime_checkable
class Checks(Protocol):
    """A part that may be unable to go on; it is asked before any part has changed."""

    def check(self, saved: Arrays) -> None:
        """Raise :class:`CannotGoOn` unless :meth:`Part.restore` can continue from this."""
        ...


class Checkpoints:
    """Writes and reads the state of one run, which is that of its parts, by name.

    Args:
        folder: the folder of the run.
        parts: the parts with state; read between rounds. Only the first may be unable to go on.
    """

    def __init__(self, folder: Path, parts: Mapping[str, Part]) -> None:
        self._path, self._parts = folder / CHECKPOINT, parts
        self._cost, self._written = 0.0, -np.inf
        self.notes: tuple[str, ...] = ()
        """What to know of a run that was killed and could not be gone on with."""

    def restored(self) -> bool:
        """Restore all parts from the file; return False if there is none, or it is not whole (:attr:`notes`)."""
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
            self._path.unlink()  # it belongs to nothing that is there
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
    """Return a value that JSON can hold, including numbers that are not finite, as an array."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def from_array(array: NDArray[np.uint8]) -> Any:
    """Return the value given to :func:`as_array`; tuples become lists."""
    return json.loads(array.tobytes())


def _save(path: Path, saved: Arrays) -> None:
    with open(path, "wb") as sink:
        np.savez(sink, **saved)  # type: ignore[arg-type]
