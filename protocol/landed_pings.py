"""A landed file of one type of ping: opened and verified, and its columns compared with those that ingest writes.

Whatever reads pings to count them reads them by this, so that a file counts for all readers or for none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import LandedFile, UnreadableFile, first_line, open_landed
from fedping.protocol.location import Place
from fedping.protocol.ping import DOCUMENT_TYPES, DocumentType

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_TYPE = 80


def open_pings(path: str | Place, document: DocumentType, columns: Iterable[str]) -> LandedFile:
    """Read and verify the footer of a landed file, and compare some of its columns with those of landed pings.

    A column that a client may leave out may be absent, except those that say whether a ping counts.

    Args:
        path: its address.
        document: the type of its pings.
        columns: those that are to be read.

    Raises:
        UnreadableFile: the file is no regular one, truncated, damaged, no Parquet, or another program wrote it in types
            of its own.
        FedpingError: the file is gone.
        StorageAway: the bucket that it is in does not answer.
    """
    try:
        landed = open_landed(path)
    except FileNotFoundError as error:
        raise FedpingError(
            f"{path} is gone, though its pings are needed; put it back from a copy, then run the same command again"
        ) from error
    check_columns(landed, document, columns)
    return landed


def check_columns(landed: LandedFile, document: DocumentType, columns: Iterable[str]) -> None:
    """Compare some columns of a landed file with those of landed pings of a type, as :func:`open_pings` does.

    Raises:
        UnreadableFile: one differs; the sentence says which, and how.
    """
    from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING, landed_schema

    found, schema = schema_of(landed), landed_schema(document)
    always_there = (UPDATE, UPDATE_ENCODING, *document.counted_by[:1])
    for name in columns:
        agreed = schema.field(name)
        if name not in found.names and agreed.nullable and name not in always_there:
            continue
        if trouble := _trouble(found, agreed):
            what = f"is not a file of landed {document.name} pings ({trouble}{_writer(landed)})"
            raise UnreadableFile(landed.path, what)


def closest_document(landed: LandedFile) -> DocumentType:
    """Return the type of pings whose columns a landed file has, or comes closest to, by their names alone.

    Raises:
        UnreadableFile: its footer has no schema.
    """
    from fedping.protocol.arrow import landed_schema

    found = set(schema_of(landed).names)
    return min(DOCUMENT_TYPES.values(), key=lambda document: len(found ^ set(landed_schema(document).names)))


def schema_of(landed: LandedFile) -> pa.Schema:
    """Return the Arrow schema of a landed file.

    Raises:
        UnreadableFile: its footer has none.
    """
    import pyarrow as pa

    try:
        return landed.footer.schema.to_arrow_schema()
    except pa.ArrowException as error:
        raise UnreadableFile(landed.path, f"is not a whole Parquet file ({first_line(error)})") from error


def _trouble(found: pa.Schema, agreed: pa.Field) -> str | None:
    """Return in what way a column differs from the agreed one; None if it does not."""
    if (times := found.names.count(agreed.name)) != 1:
        return f"it has {times} columns '{agreed.name}'" if times else f"it has no column '{agreed.name}'"
    column = found.field(agreed.name)
    if column.type != agreed.type:
        return f"its column '{agreed.name}' is {str(column.type)[:_LONGEST_TYPE]}, not {agreed.type}"
    if column.nullable and not agreed.nullable:  # not the other way round: a file may leave no such field out
        return f"its column '{agreed.name}' may be null, and that of a landed ping may not"
    return None


def _writer(landed: LandedFile) -> str:
    """Return, as the end of a sentence, which program wrote a file, if it says so and ingest does not use it."""
    writer = str(landed.footer.created_by or "")
    if not writer.isprintable() or not writer or writer.startswith("parquet-cpp-arrow"):
        return ""
    return f"; {writer[:_LONGEST_TYPE]} wrote it"
