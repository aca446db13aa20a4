"""The pings that a round read, each document once, and the updates, losses and clients behind a version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedping.model_store.store import ModelStore
from fedping.model_store.version import Version
from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING
from fedping.protocol.errors import FedpingError
from fedping.protocol.landed_file import UnreadableFile, check_columns, open_landed
from fedping.protocol.landing import id_bytes
from fedping.protocol.location import Place, child
from fedping.protocol.ping import DocumentType
from fedping.protocol.study import Study
from fedping.protocol.upload import Receiving, receiving

if TYPE_CHECKING:
    import pyarrow as pa


_JUDGED = ("document_id", "model_version", "loss")
"""The columns by which a round recognises pings that don't count in any arm."""


def made_by_rounds(store: ModelStore, study: str, line: str) -> Iterator[Version]:
    """Yield the versions of a line that a round made, in order; version n + 1 was made from the pings of version n.

    Raises:
        StoreError: there is no such study or line, or a version cannot be read.
    """
    for number in store.iterations(study, line):
        version = store.version(study, line, number)
        if version.lineage.origin == "round":
            yield version


def still_landed(store: ModelStore, study: str, line: str) -> Iterator[Version]:
    """Yield the versions of :func:`made_by_rounds` whose pings still exist (weren't pruned).

    Files from which a client's pings were removed later are read in their present state.

    Raises:
        StoreError: as for :func:`made_by_rounds`.
    """
    pruned, rewritten = store.studies.pruned(study, line), store.studies.rewritten(study)
    for version in made_by_rounds(store, study, line):
        if version.iteration in pruned:
            continue
        inputs = tuple(replace(f, digest="") if f.path in rewritten else f for f in version.lineage.inputs)
        yield replace(version, lineage=replace(version.lineage, inputs=inputs))


def round_pings(landing: Place, study: Study, version: Version, columns: Sequence[str]) -> pa.Table:
    """Return columns of the pings that a round counted for a version.

    A document counts once, where it is found first. Pings of other versions and pings whose loss is not finite are left
    out. Texts are returned as strings.

    Raises:
        FedpingError: the study's pings lack this column, or a file that the round read is missing or damaged.
    """
    import pyarrow as pa

    from fedping.protocol.arrow import landed_schema

    schema = landed_schema(study.document)
    if unknown := [name for name in columns if name not in schema.names]:
        raise FedpingError(f"The pings of study '{study.name}' have no '{unknown[0]}'; theirs are {study.pings}.")
    wanted = list(dict.fromkeys([*_JUDGED, *columns]))
    files = sorted(version.lineage.inputs, key=lambda file: file.path.split("/"))
    parts = [_read(child(landing, file.path), study.document, wanted, file.digest) for file in files]
    parts = parts or [_with_strings(schema.empty_table().select(wanted))]
    table = pa.concat_tables(parts).combine_chunks()
    return table.filter(pa.array(_counted(table, version.parent or 0))).select(list(dict.fromkeys(columns)))


def arm_places(table: pa.Table, arms: Sequence[str]) -> NDArray[np.int64]:
    """Return the position in ``arms`` of each ping's arm, -1 if absent; shape (k,)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = pc.index_in(table.column("study_variation"), value_set=pa.array(arms, pa.string()))
    return np.asarray(pc.fill_null(places, -1).to_numpy(), dtype=np.int64)


def examples_of(table: pa.Table, study: Study) -> NDArray[np.int64]:
    """Return each ping's number of examples, shape (k,); 1 or 0 for an interaction."""
    from fedping.protocol.arrow import counted

    return np.asarray(study.document.examples(counted(table, study.document).to_numpy()), dtype=np.int64)


def id_numbers(column: pa.ChunkedArray) -> NDArray[np.void]:
    """Return a column of ids as an array that NumPy can sort and compare, shape (k,)."""
    return np.concatenate(
        [np.zeros(0, "V16"), *(np.ascontiguousarray(id_bytes(chunk)).view("V16").ravel() for chunk in column.chunks)]
    )


def _read(path: Place, document: DocumentType, columns: list[str], digest: str) -> pa.Table:
    try:
        landed = open_landed(path)
        if digest not in ("", landed.digest):
            raise FedpingError(f"{path} is not the file that a round read; put that back from a copy")
        check_columns(landed, document, columns)
        with landed.opened() as file:
            return _with_strings(file.read(columns=columns))
    except FileNotFoundError as error:
        raise FedpingError(f"{path} is missing, but a round read it. Restore it from a backup") from error
    except UnreadableFile as error:
        raise FedpingError(f"{path} {error.what}; put it back from a copy") from error


def _with_strings(table: pa.Table) -> pa.Table:
    """Return a table with dictionary columns as plain strings, because files number their strings differently."""
    import pyarrow as pa

    fields = [pa.field(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in table.schema]
    return table.cast(pa.schema(fields))


def _counted(table: pa.Table, iteration: int) -> NDArray[np.bool_]:
    _, first = np.unique(id_numbers(table.column("document_id")), return_index=True)
    counted = np.zeros(table.num_rows, dtype=bool)
    counted[first] = True
    counted &= table.column("model_version").to_numpy() == iteration
    counted &= np.isfinite(table.column("loss").to_numpy())
    return counted


Vote = Literal["client", "ping", "examples"]
"""The unit of one vote in a mean of updates: a client with all its pings; a ping; an example of a ping."""


@dataclass(frozen=True, eq=False)
class TrainingPings:
    """The k pings of one version that a round used.

    Attributes:
        iteration: the version that the pings were ranked with.
        updates: shape (k, m), directions of descent.
        losses: shape (k,), in points of the score.
        clients: each ping's client as a number from 0, shape (k,).
        examples: number of examples behind each ping, at least 1, shape (k,); 1 for an interaction.
        vote: the unit of one vote in the line's rounds.
        most_votes: maximum number of votes of a client; None for no maximum.
    """

    iteration: int
    updates: NDArray[np.float32]
    losses: NDArray[np.float64]
    clients: NDArray[np.int64]
    examples: NDArray[np.int64]
    vote: Vote
    most_votes: int | None = None

    def __len__(self) -> int:
        return len(self.losses)


def training_pings(landing: Place, study: Study, version: Version) -> TrainingPings:
    """Read the pings that a round used for a version: those of arms that submit, with an example and an update.

    The version's lineage counts these pings as ``used``; late pings of older versions, which a line may merge, are
    omitted. The updates of one iteration must fit in memory.

    Raises:
        FedpingError: a file that the round read is missing or damaged, or the decoder of the line's updates is missing.
    """
    line = study.line(version.line)
    submit = [arm.name for arm in study.arms if arm.line == line.name and arm.submits]
    columns = ["client_id", "study_variation", *study.document.counted_by, "loss", UPDATE_ENCODING, UPDATE]
    pings = round_pings(landing, study, version, columns)
    pings = _masked(pings, (arm_places(pings, submit) >= 0) & (examples_of(pings, study) > 0))
    links = receiving(line)
    updates, readable = _decoded(pings, links, line.spec.m)
    _, clients = np.unique(id_numbers(pings.column("client_id"))[readable], return_inverse=True)
    return TrainingPings(
        iteration=version.iteration - 1,
        updates=updates[readable],
        losses=pings.column("loss").to_numpy()[readable],
        clients=clients.astype(np.int64),
        examples=examples_of(pings, study)[readable],
        vote=line.pipeline.weighting,
        most_votes=line.pipeline.most_votes,
    )


def _decoded(pings: pa.Table, links: Receiving, m: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the updates, shape (k, m), and whether each exists and could be read, shape (k,)."""
    import pyarrow.compute as pc

    updates = np.zeros((pings.num_rows, m), dtype=np.float32)
    readable = np.zeros(pings.num_rows, dtype=bool)
    mine = pc.fill_null(pc.equal(pings.column(UPDATE_ENCODING), links.encoding), False).to_numpy()
    if mine.any():
        payloads = _masked(pings.select([UPDATE]), mine).column(UPDATE).combine_chunks()
        one = payloads.chunk(0) if hasattr(payloads, "chunk") else payloads
        updates[mine], readable[mine] = links.decode(one, m)
    return updates, readable


def _masked(table: pa.Table, mask: NDArray[np.bool_]) -> pa.Table:
    import pyarrow as pa

    return table.filter(pa.array(mask))
