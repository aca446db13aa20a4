"""Whether an institution's table is the one that its client has learned from.

A table's file may get new rows, move, or be renamed. A file elsewhere without any of the rows is another table, such as
one of another study or client, which the folder was not meant for.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data.table import Table
from fedping.client_sim.joining.folder import KnownTable, StateFolder
from fedping.protocol.errors import InvalidSettings

MARKS = 256
"""Maximum number of marks that are kept. If a tenth of the rows stays, none of these has a kept mark once in 1e11."""

_BYTES = 8
_PURPOSE = b"row of a table"


def check_same_table(folder: StateFolder, data: Path, rows: Table) -> KnownTable:
    """Return what the folder is to keep of a table.

    Args:
        folder: the folder of the client that trains.
        data: the table's file.
        rows: its rows.

    Raises:
        InvalidSettings: the client has trained on another table.
    """
    before, path, marks = folder.table, str(data.resolve()), _marks(folder.secret, rows)
    if before is not None and folder.has_trained and before.data != path:
        kept = np.frombuffer(before.marks[: len(before.marks) // _BYTES * _BYTES], "<u8")
        if not np.isin(kept, marks).any():
            raise InvalidSettings(
                f"--data {data}: none of its {len(rows):,} rows is in {before.data}, which the client in {folder.path} "
                "has trained on. Give that file again, even with only new rows, or another folder with --state, which "
                "makes another client"
            )
    return KnownTable(data=path, marks=marks[:MARKS].tobytes())


def _marks(secret: bytes, rows: Table) -> NDArray[np.uint64]:
    """Return a mark of each different row, ascending, by which rows can't be guessed without the secret."""
    columns = np.column_stack([rows.x, rows.y]).astype("<f8")
    digests = (hashlib.blake2b(row.tobytes(), digest_size=_BYTES, key=secret, person=_PURPOSE) for row in columns)
    return np.unique(np.frombuffer(b"".join(each.digest() for each in digests), "<u8"))
