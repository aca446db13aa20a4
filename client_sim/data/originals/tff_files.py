"""Clients' examples in the files of TensorFlow Federated (TFF): HDF5, as until 2021, and SQLite since then.

HDF5: the group ``examples`` has a group for each client, which has an array for each feature, one entry an example.
SQLite: the table ``examples`` has a record (:mod:`tf_example`) an example, with its client and its split;
``client_metadata`` has the clients of each split.

Both are read in pieces, so that files may be larger than the memory. Nothing outside a file is read: links to other
places, external and virtual arrays, views and virtual tables are refused. So are objects and references. The library of
HDF5 has no bound on time: a heap of texts that is damaged on purpose can keep it busy forever.

Source: TFF's ``hdf5_client_data.py``, ``sql_client_data.py`` and ``sql_client_data_utils.py``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.originals import reading
from fedping.client_sim.data.originals.reading import damaged, library
from fedping.client_sim.data.originals.tf_example import OddRecord, features_of
from fedping.protocol.errors import FedpingError

MOST_CLIENTS = 2_000_000
"""Clients of one file; StackOverflow has 342,477."""

MOST_EXAMPLES = 1_000_000
"""Examples of one client. A file can state any number of them without holding them."""

LONGEST_TEXT = 2**20
"""Bytes of one text; also the most of a record of SQLite."""

_ROWS = 1024
"""Examples read at a time."""

Wanted: TypeAlias = Mapping[str, tuple[int, ...] | None]
"""The features to read: the shape of an example, () for one number, and None for a text."""

Columns: TypeAlias = "dict[str, NDArray[Any] | list[bytes]]"
"""Some examples of a client: numbers, shape (n, numbers of an example), or n texts."""

Takes: TypeAlias = Callable[[str], bool]
"""Whether a client's examples are to be read, asked once for each client, in the order of their names."""


@dataclass(frozen=True)
class Part:
    """The training or the test examples of a data set.

    Attributes:
        file: the file.
        split: the name of the split in a file of SQLite; None for HDF5.
        for_test: whether these are the authors' test examples.
    """

    file: Path
    split: str | None
    for_test: bool

    def clients(self, wanted: Wanted, takes: Takes) -> Iterator[tuple[str, Columns]]:
        """Yield clients with some of their examples; a client may come several times.

        Raises:
            FedpingError: the file cannot be read, is damaged or too large, or h5py is not installed.
        """
        if self.split is None:
            return _of_hdf5(self.file, wanted, takes)
        return _of_sqlite(self.file, self.split, wanted, takes)


def parts_of(folder: Path, hdf5: str, database: str, split: str = "") -> list[Part]:
    """Return the parts of a data set that a folder has; none if it has none of these files.

    Args:
        folder: the folder.
        hdf5: the beginning of the names of the files of HDF5, as of ``hdf5_train.h5`` and ``hdf5_test.h5``.
        database: the name of the file of SQLite, without its ending.
        split: the beginning of the names of its splits.

    Raises:
        FedpingError: the file of SQLite is still packed.
    """
    files = [(folder / f"{hdf5}_{name}.h5", name == "test") for name in ("train", "test")]
    if parts := [Part(file, None, for_test) for file, for_test in files if file.is_file()]:
        return parts
    if (file := folder / f"{database}.sqlite").is_file():
        return [Part(file, f"{split}{name}", name == "test") for name in ("train", "test")]
    if (packed := folder / f"{database}.sqlite.lzma").is_file():
        raise FedpingError(f"{packed} is packed. Unpack it with: xz --format=lzma --decompress --keep '{packed}'")
    return []


@contextmanager
def _hdf5_errors(file: Path) -> Iterator[None]:
    """Turn what h5py raises about a damaged file into a sentence about the file."""
    try:
        yield
    except (OSError, KeyError, RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise damaged(file, str(error).partition("\n")[0][:200] or type(error).__name__) from error


def _of_hdf5(file: Path, wanted: Wanted, takes: Takes) -> Iterator[tuple[str, Columns]]:
    h5py = library("h5py", f"the file {file}", "hdf5")
    with reading.reading(file):
        file.open("rb").close()
    with _hdf5_errors(file):
        opened = h5py.File(file, "r")
    with closing(opened):
        with _hdf5_errors(file):
            examples = _within(h5py, file, opened, "examples", h5py.Group)
            _check_clients(file, len(examples))
            names = sorted(examples)
        for name in names:
            if not takes(name):
                continue
            with _hdf5_errors(file):
                client = _within(h5py, file, examples, name, h5py.Group)
                arrays = {each: _within(h5py, file, client, each, h5py.Dataset) for each in wanted}
                count = _check_arrays(h5py, file, name, arrays, wanted)
            for begin in range(0, count, _ROWS):
                with _hdf5_errors(file):
                    rows = slice(begin, min(begin + _ROWS, count))
                    yield name, {each: _read(file, array, rows, wanted[each]) for each, array in arrays.items()}


def _within(h5py: Any, file: Path, group: Any, name: str, kind: type) -> Any:
    """Return what a group has under a name, if that is in the group itself and is a group, or an array, as expected."""
    link = group.get(name, getlink=True)
    if link is None:
        raise damaged(file, f"{group.name[:80]} lacks '{name[:80]}'")
    if not isinstance(link, h5py.HardLink):
        raise damaged(file, f"'{name[:80]}' of {group.name[:80]} is a link to another place")
    found = group[name]
    if not isinstance(found, kind):
        raise damaged(file, f"'{name[:80]}' of {group.name[:80]} is a {type(found).__name__}, not a {kind.__name__}")
    return found


def _check_arrays(h5py: Any, file: Path, client: str, arrays: Mapping[str, Any], wanted: Wanted) -> int:
    """Return the number of a client's examples.

    Raises:
        DamagedFile: an array does not have the expected shape or type, or lies elsewhere.
    """
    count = None
    for name, array in arrays.items():
        of = f"'{name}' of the client '{client[:80]}'"
        if array.external or array.is_virtual:
            raise damaged(file, f"{of} lies in another file")
        if array.ndim < 1 or (count is not None and array.shape[0] != count):
            raise damaged(file, f"{of} has the shape {array.shape}, and other features have {count} examples")
        count = int(array.shape[0])
        shape = wanted[name]
        if shape is None:
            if h5py.check_string_dtype(array.dtype) is None or array.ndim != 1:
                raise damaged(file, f"{of} is not a list of texts")
        elif array.dtype.kind not in "uif" or prod(array.shape[1:]) != prod(shape):
            raise damaged(file, f"{of} is {array.dtype} of shape {array.shape}, not numbers of shape (n, {shape})")
        _check_room(file, of, array)
    assert count is not None
    return count


def _check_room(file: Path, of: str, array: Any) -> None:
    piece = array.chunks or (min(_ROWS, array.shape[0]), *array.shape[1:])
    if (
        array.shape[0] > MOST_EXAMPLES
        or array.size > reading.MOST_NUMBERS
        or prod(piece) * array.dtype.itemsize > reading.MOST_BYTES
    ):
        raise damaged(file, f"{of} has the shape {array.shape}, in pieces of {piece}, which is too large")


def _read(file: Path, array: Any, rows: slice, shape: tuple[int, ...] | None) -> NDArray[Any] | list[bytes]:
    if shape is not None:
        numbers: NDArray[Any] = array[rows]
        return numbers.reshape(len(numbers), prod(shape))
    if array.dtype.itemsize > LONGEST_TEXT:
        raise damaged(file, f"{array.name[:80]} has texts of {array.dtype.itemsize:,} bytes")
    # Texts may share their place, so that few bytes of a file become many.
    step = max(16, min(_ROWS, reading.MOST_BYTES // max(1, file.stat().st_size)))
    texts: list[bytes] = []
    for begin in range(rows.start, rows.stop, step):
        texts += [bytes(each) for each in array[begin : min(begin + step, rows.stop)]]
        if max(map(len, texts), default=0) > LONGEST_TEXT:
            raise damaged(file, f"{array.name[:80]} has a text of more than {LONGEST_TEXT:,} bytes")
    return texts


def _check_clients(file: Path, count: int) -> None:
    if count > MOST_CLIENTS:
        raise FedpingError(
            f"the file {file} has {count:,} clients, and at most {MOST_CLIENTS:,} are read. Divide it into several"
        )


def _of_sqlite(file: Path, split: str, wanted: Wanted, takes: Takes) -> Iterator[tuple[str, Columns]]:
    with reading.reading(file):
        file.open("rb").close()
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            yield from _of_database(file, database, split, wanted, takes)
    except sqlite3.Error as error:
        raise damaged(file, str(error)[:200]) from error


def _of_database(
    file: Path, database: sqlite3.Connection, split: str, wanted: Wanted, takes: Takes
) -> Iterator[tuple[str, Columns]]:
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2**26)  # also of the list of clients
    database.execute("PRAGMA trusted_schema = OFF")
    for table in ("examples", "client_metadata"):
        kind = database.execute("SELECT type, rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        if kind is None or kind[0] != "table" or not kind[1]:  # a virtual table has no page of its own
            raise damaged(file, f"it has no table '{table}'")
    query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id"
    named = [client for (client,) in database.execute(f"{query} LIMIT ?", (split, MOST_CLIENTS + 1))]
    _check_clients(file, len(named))
    if not all(isinstance(client, str) for client in named):
        raise damaged(file, "the id of a client is not a text")
    if not named:
        raise damaged(file, f"it has no clients of the split '{split}'")
    chosen = [client for client in named if takes(client)]
    rows = database.execute(
        "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? AND client_id IN "
        "(SELECT value FROM json_each(?))",
        (split, json.dumps(chosen)),
    )
    while block := rows.fetchmany(_ROWS):
        begin = 0
        for end in range(1, len(block) + 1):
            if end == len(block) or block[end][0] != block[begin][0]:
                client = block[begin][0]
                yield client, _columns(file, client, [record for _, record in block[begin:end]], wanted)
                begin = end


def _columns(file: Path, client: str, records: list[Any], wanted: Wanted) -> Columns:
    found: list[dict[str, Any]] = []
    for record in records:
        if not isinstance(record, bytes) or len(record) > LONGEST_TEXT:
            raise damaged(file, f"an example of the client '{client[:80]}' is not a record, or is too large")
        try:
            found.append(features_of(record, wanted))
        except OddRecord as error:
            raise damaged(file, f"{error} (client '{client[:80]}')") from error
    columns: Columns = {}
    for name, shape in wanted.items():
        values = [each.get(name) for each in found]
        size = 1 if shape is None else prod(shape)
        of_texts = shape is None
        if any(each is None or isinstance(each, list) != of_texts or len(each) != size for each in values):
            raise damaged(file, f"an example of the client '{client[:80]}' lacks '{name}', or has it in another shape")
        columns[name] = [each[0] for each in values if each is not None] if of_texts else np.stack(values)  # type: ignore[arg-type]
    return columns
