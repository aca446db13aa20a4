"""Reading landed Parquet files: footers, the columns that decide about a ping, and batches of its updates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from protocol.arrow import UPDATE, UPDATE_ENCODING, landed_schema
from protocol.documents import DocumentType
from protocol.errors import FedpingError
from protocol.landing import SHARDS, SHARDS_KEY, id_bytes
from protocol.update import CODECS
from server_jobs.round.rules import Rules

TAGS = tuple(sorted(CODECS))
"""The known update encodings; a row holds its encoding as an index into this."""

UNKNOWN = -1
MISSING = -2


class Rows(NamedTuple):
    """All of some pings but their updates, one array a column, each of length k.

    Ids have shape (k, 2), as two words; ``counted`` is the column that tells of how many examples a ping is
    (`protocol.documents`); ``arm`` is an index into the rules' arms or UNKNOWN, ``codec`` an index into :data:`TAGS`,
    UNKNOWN or MISSING; ``age`` is by how many versions the row's folder is older than the round's own; ``done`` rows
    have been counted by an earlier round.
    """

    document: NDArray[np.uint64]
    client: NDArray[np.uint64]
    version: NDArray[np.int32]
    counted: NDArray[np.int32]
    loss: NDArray[np.float64]
    arm: NDArray[np.int16]
    codec: NDArray[np.int16]
    age: NDArray[np.int16]
    done: NDArray[np.bool_]

    def at(self, where: NDArray[np.intp]) -> Rows:
        """Return the rows at these positions."""
        return Rows._make(column[where] for column in self)


def joined(parts: Sequence[Rows]) -> Rows:
    """Return rows one after the other."""
    return Rows._make(map(np.concatenate, zip(*parts or [_no_rows()], strict=True)))


def _no_rows() -> Rows:
    ids, number, small = np.zeros((0, 2), np.uint64), np.zeros(0, np.int32), np.zeros(0, np.int16)
    return Rows(ids, ids, number, number, np.zeros(0), small, small, small, np.zeros(0, np.bool_))


def _screened(document: DocumentType) -> list[str]:
    """Return the columns that decide about a ping."""
    ids = ["document_id", "client_id"]
    return [*ids, "model_version", "study_variation", UPDATE_ENCODING, "loss", document.counted_by]


class UnreadableFile(FedpingError):
    """A file in the landing folder that is not whole, or not of landed pings; the sentence names it."""

    def __init__(self, path: str | os.PathLike[str], what: str) -> None:
        super().__init__(
            f"{path} {what}; move it out of the landing folder (its pings can be landed again from a copy), then run "
            "the round again; nothing was published"
        )


@dataclass(frozen=True, slots=True, eq=False)
class PingFile:
    """A landed file whose footer has been read; ``age`` and ``done`` as in `server_jobs.round.engine.LateFile`."""

    path: str
    footer: pq.FileMetaData
    age: int = 0
    done: bool = False

    @property
    def rows(self) -> int:
        """The number of pings in the file."""
        return int(self.footer.num_rows)

    @property
    def in_shards(self) -> bool:
        """Whether row group k holds the clients of shard k (`protocol.landing`); else the file is in any order."""
        notes = self.footer.metadata or {}
        return notes.get(SHARDS_KEY) == str(SHARDS).encode() and self.footer.num_row_groups == SHARDS

    @contextmanager
    def opened(self) -> Iterator[PingReader]:
        """Open the file to read from it; what cannot be read is told as an :class:`UnreadableFile`."""
        try:
            # Without pre-buffering a column is read as it is decoded: no row group lies in memory, and it is faster.
            with pq.ParquetFile(self.path, metadata=self.footer, pre_buffer=False) as file:
                yield PingReader(file, self)
        except (pa.ArrowException, OSError) as error:
            raise UnreadableFile(self.path, f"is damaged ({_first_line(error)})") from error


class PingReader:
    """A landed file, open."""

    def __init__(self, file: pq.ParquetFile, of: PingFile) -> None:
        self._file, self._of = file, of

    def rows(self, group: int, rules: Rules) -> Rows:
        """Return all of a row group but the updates."""
        table = self._file.read_row_group(group, columns=_screened(rules.document), use_threads=False)
        return joined([_rows(batch, rules, self._of) for batch in table.to_batches()])

    def updates(self, group: int, batch_rows: int) -> Iterator[pa.BinaryArray]:
        """Yield a row group's update payloads, ``batch_rows`` at a time; no more than that is held in memory."""
        batches = self._file.iter_batches(batch_rows, row_groups=[group], columns=[UPDATE], use_threads=False)
        return (batch.column(0) for batch in batches)


def open_ping_file(path: str | Path, document: DocumentType, age: int = 0, done: bool = False) -> PingFile:
    """Read the footer of a file of pings of one type.

    Raises:
        UnreadableFile: the file is gone, truncated, no Parquet, or its columns are not those of such pings.
    """
    try:
        footer = pq.read_metadata(path)
        schema = footer.schema.to_arrow_schema()
    except FileNotFoundError as error:
        raise FedpingError(
            f"{path} is gone, though the round needs it; put it back from a copy, then run the round again"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFile(path, f"is not a whole Parquet file ({_first_line(error)})") from error
    for name in (*_screened(document), UPDATE):
        expected = landed_schema(document).field(name)
        if schema.get_field_index(name) < 0 or not schema.field(name).equals(expected):
            raise UnreadableFile(
                path, f"is not a file of landed {document.name} pings (its column '{name}' is not {expected.type})"
            )
    return PingFile(str(path), footer, age, done)


def _rows(batch: pa.RecordBatch, rules: Rules, file: PingFile) -> Rows:
    return Rows(
        document=id_bytes(batch.column("document_id")).view("<u8"),
        client=id_bytes(batch.column("client_id")).view("<u8"),
        version=batch.column("model_version").to_numpy(),
        counted=batch.column(rules.document.counted_by).to_numpy(),
        loss=batch.column("loss").to_numpy(),
        arm=_indices(batch.column("study_variation"), {name: i for i, name in enumerate(rules.arms)}),
        codec=_indices(batch.column(UPDATE_ENCODING), {tag: i for i, tag in enumerate(TAGS)}),
        age=np.full(len(batch), file.age, np.int16),
        done=np.full(len(batch), file.done),
    )


def _indices(column: pa.DictionaryArray, known: Mapping[str, int]) -> NDArray[np.int16]:
    """Return each text as its number in ``known``, UNKNOWN if it is not there, MISSING if it is null."""
    texts = column.dictionary.to_pylist()
    numbers = np.array([*(known.get(text, UNKNOWN) for text in texts), MISSING], dtype=np.int16)
    found: NDArray[np.int16] = numbers[column.indices.fill_null(len(texts)).to_numpy()]
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
