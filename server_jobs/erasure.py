"""Forgetting one client: its pings are removed from every landed file, and the versions that they went into are named.

A version stays as it is published: it is a mean over many clients, and nothing of one can be taken out again. But the
files that it was made of are others then, so that it can no longer be computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedping.model_store.store import ModelStore
from fedping.protocol.landed_file import (
    LandedFile,
    UnreadableFile,
    check_columns,
    closest_document,
    printable,
)
from fedping.protocol.landing import open_landing, rewrite, shard_of, shards_in, study_of
from fedping.protocol.location import Place, key_in
from fedping.server_jobs.ingest.journal.segment import CLOSED, OPEN, segments

_OVERLAP = 64
_PIECE = 2**22


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """A landed file with pings of a client, and how many."""

    file: Place
    pings: int

    @property
    def study(self) -> str:
        """The study whose pings it has."""
        return study_of(self.file)


def find_pings(landing: Place, client: UUID) -> Iterator[ErasurePlan | UnreadableFile | None]:
    """Look into every landed file; yield what has pings of a client, what cannot be read, and None for the others."""
    pings = open_landing(landing)
    for file in pings.all_files():
        try:
            found = _rows(pings.open(file), client)
        except FileNotFoundError:  # a private line's round has deleted it
            continue
        except UnreadableFile as error:
            yield error
            continue
        yield ErasurePlan(file, found) if found else None


def _rows(landed: LandedFile, client: UUID) -> int:
    """Return how many pings of a client a file has; only the shard of the client is read, where there are shards."""
    groups = None
    if (shards := shards_in(landed.footer.metadata, landed.footer.num_row_groups)) > 1:
        groups = [int(shard_of(np.frombuffer(client.bytes, np.uint8).reshape(1, 16), shards)[0])]
    check_columns(landed, closest_document(landed), ["client_id"])
    return sum(pc.sum(_is_of(batch.column(0), client)).as_py() or 0 for batch in landed.batches(["client_id"], groups))


def _is_of(column: pa.Array, client: UUID) -> pa.Array:
    return pc.equal(column, pa.scalar(client.bytes, column.type))


def remove(found: ErasurePlan, client: UUID) -> None:
    """Write a file again without the pings of a client; one that has no others stays, empty.

    One that is gone, as a private line's round deletes them, has no pings left.

    Raises:
        UnreadableFile: it is damaged.
        ChangedMeanwhile: somebody else has written it meanwhile.
        OSError: it cannot be written; it is as it was.
    """

    def without(table: pa.Table) -> pa.Table:
        return table.filter(pc.invert(_is_of(table.column("client_id").combine_chunks(), client)))

    with suppress(FileNotFoundError):
        rewrite(found.file, without)


def versions_of(store: ModelStore, study: str, landing: Place, files: list[Place]) -> Mapping[str, tuple[int, ...]]:
    """Return by line the versions that were made of some landed files."""
    paths = {key_in(landing, file) for file in files}
    return {
        line.name: tuple(
            number
            for number in store.iterations(study, line.name)
            if any(file.path in paths for file in store.versions.sources(study, line.name, number).lineage.inputs)
        )
        for line in store.study(study).lines
    }


def pending_pings(journal: Path, client: UUID) -> list[str] | None:
    """Return the journal's segments that have pings of a client, which have not landed yet; None if it is not here."""
    if not journal.is_dir():
        return None
    said = str(client).encode()
    paths = [*segments(journal, OPEN), *segments(journal, CLOSED)]
    return [printable(path.name) for path in paths if _contains(path, said)]


def _contains(path: Path, said: bytes) -> bool:
    """Return whether a file, which may be rolled or landed meanwhile, has some bytes."""
    for there in (path, path.with_suffix(CLOSED)):
        try:
            with open(there, "rb") as source:
                before = b""
                while piece := source.read(_PIECE):
                    if said in before + piece:
                        return True
                    before = piece[-_OVERLAP:]
                return False
        except FileNotFoundError:
            continue
    return False
