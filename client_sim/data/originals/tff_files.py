"""Clients' examples in the files of TensorFlow Federated (TFF): HDF5 until 2021, and SQLite since then.

HDF5 files are read by :mod:`hdf5`, in a separate process. In SQLite files the table ``examples`` has a record
(:mod:`tf_example`) per example, with its client and its split; ``client_metadata`` has the clients of each split.

Both are read in blocks, so that files may be larger than the memory. Nothing outside a file is read: views and virtual
tables are rejected.

Source: TFF's ``sql_client_data.py`` and ``sql_client_data_utils.py``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from fedping.client_sim.data.originals import reading
from fedping.client_sim.data.originals.hdf5 import ROWS, Bounds, Columns, Wanted, check_clients
from fedping.client_sim.data.originals.hdf5_process import Takes, clients_of_hdf5
from fedping.client_sim.data.originals.reading import damaged, library
from fedping.client_sim.data.originals.tf_example import OddRecord, features_of
from fedping.protocol.errors import FedpingError

MOST_CLIENTS = 2_000_000
"""Maximum clients of one file; StackOverflow has 342,477."""

MOST_EXAMPLES = 1_000_000
"""Maximum examples of one client. A file can state any number of examples without holding them."""

LONGEST_TEXT = 2**20
"""Maximum bytes of one text, and of an SQLite record."""


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

    def clients(self, wanted: Wanted, takes: Takes, patience: int) -> Iterator[tuple[str, Columns]]:
        """Yield clients with blocks of their examples; a client may have several blocks.

        Args:
            wanted: the features to read.
            takes: returns whether to read a client.
            patience: seconds that a file of HDF5 may take for the next examples.

        Raises:
            FedpingError: the file cannot be read, is damaged or too large, or h5py is not installed.
        """
        if self.split is None:
            library("h5py", f"the file {self.file}", "hdf5")
            bounds = Bounds(
                clients=MOST_CLIENTS,
                examples=MOST_EXAMPLES,
                text=LONGEST_TEXT,
                numbers=reading.MOST_NUMBERS,
                bytes=reading.MOST_BYTES,
            )
            return clients_of_hdf5(self.file, wanted, takes, bounds, patience)
        return _of_sqlite(self.file, self.split, wanted, takes)


def parts_of(folder: Path, hdf5: str, database: str, split: str = "") -> list[Part]:
    """Return the parts of a data set in a folder; an empty list if the folder has none of these files.

    Args:
        folder: the folder.
        hdf5: the common beginning of the HDF5 files' names, such as ``hdf5_train.h5`` and ``hdf5_test.h5``.
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


def _of_sqlite(file: Path, split: str, wanted: Wanted, takes: Takes) -> Iterator[tuple[str, Columns]]:
    with reading.reading(file):
        file.open("rb").close()
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            yield from _of_database(file, database, split, wanted, takes)
    except sqlite3.Error as error:
        circles = "its tables have more rows than its bytes can hold"
        raise damaged(file, circles if str(error) == "interrupted" else str(error)[:200]) from error


_STEPS_AT_A_TIME = 100_000
_LEAST_STEPS, _STEPS_OF_A_BYTE = 10_000_000, 16
"""Limit of SQLite instructions: a minimum, and a number per byte. A row takes some 20, and at least 8 bytes."""


def _bound_steps(database: sqlite3.Connection, size: int) -> None:
    """Interrupt SQLite after far more instructions than a file of this size needs.

    The pages of a table form a tree. In a damaged file, many of them can lead to the same page, so that a few hundred
    pages have an endless number of rows.
    """
    left = _LEAST_STEPS + _STEPS_OF_A_BYTE * size

    def passed() -> bool:
        nonlocal left
        left -= _STEPS_AT_A_TIME
        return left < 0

    database.set_progress_handler(passed, _STEPS_AT_A_TIME)


def _of_database(
    file: Path, database: sqlite3.Connection, split: str, wanted: Wanted, takes: Takes
) -> Iterator[tuple[str, Columns]]:
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2**26)  # applies to the list of clients, too
    database.execute("PRAGMA trusted_schema = OFF")
    _bound_steps(database, file.stat().st_size)
    for table in ("examples", "client_metadata"):
        kind = database.execute("SELECT type, rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        if kind is None or kind[0] != "table" or not kind[1]:  # a virtual table has no page of its own
            raise damaged(file, f"it has no table '{table}'")
    query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id"
    named = [client for (client,) in database.execute(f"{query} LIMIT ?", (split, MOST_CLIENTS + 1))]
    check_clients(file, len(named), MOST_CLIENTS)
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
    while block := rows.fetchmany(ROWS):
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
