"""The updates that made a version, with their losses and clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedping.analysis.rounds.inputs import arm_places, examples_of, id_numbers, round_pings
from fedping.model_store.version import Version
from fedping.protocol.arrow import UPDATE, UPDATE_ENCODING
from fedping.protocol.location import Place
from fedping.protocol.study import Study
from fedping.protocol.upload import Receiving, receiving

if TYPE_CHECKING:
    import pyarrow as pa

Vote = Literal["client", "ping", "examples"]
"""The unit of one vote in a mean of updates: a client, however many pings it sent; a ping; an example of a ping."""


@dataclass(frozen=True, eq=False)
class TrainingPings:
    """The k pings that a round used, all of one version.

    Attributes:
        iteration: the version that they were ranked with.
        updates: shape (k, m), directions of descent.
        losses: shape (k,), in points of the score.
        clients: shape (k,), numbers from 0, equal for pings of the same client.
        examples: shape (k,), from how many examples each was computed, at least 1; an interaction is one.
        vote: the unit of one vote in the line's rounds.
        most_votes: as how many votes those of a client count at most; None where nothing bounds them.
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
    """Read the pings from which a round made a version: those of arms that submit, with an example and an update.

    They are the pings that its lineage counts as ``used``, except late pings of older versions, which a line may merge.
    Memory is that of one iteration's updates.

    Raises:
        FedpingError: a file that the round read is gone or damaged, or the decoder of the line's updates is missing.
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
