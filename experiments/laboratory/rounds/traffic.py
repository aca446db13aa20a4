"""What the pings of a round weigh as JSON, and the version that clients fetch, where nothing travels over a network.

Both are the bodies of requests and answers, without their heads and without compression.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedping.client_sim.fleet.pings import encoded_pings
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.laboratory.rounds.study import ARM, LINE, STUDY
from fedping.experiments.laboratory.rounds.updates import Updates
from fedping.protocol.landed_table import ModelPings
from fedping.protocol.model import ModelDocument
from fedping.protocol.update import EncodedUpdate, Payloads

WRITTEN_OUT = 8192
"""Numbers of an array whose text is measured: of more, so many of them at even distances, for text takes its time."""


def posted_bytes(block: Updates) -> int:
    """Return how many bytes the pings of a block are, each posted by itself: without a sample, exactly."""
    if not len(block.clients):
        return 0
    [(_, envelope)] = encoded_pings(_NOBODYS)
    apart = len(envelope) - len(b"null") - len(b"0.0") - len(b"0")
    said = (len(msgspec.json.encode(column.tolist())) for column in (block.losses + 0.0, block.examples))
    pings = len(block.clients)
    return pings * apart + sum(said) - 2 * (pings + 1) + _updates(block.updates)


def fetched_bytes(names: tuple[str, ...], weights: FloatArray) -> int:
    """Return how many bytes the document of a version is, with its weights, shape (m,), and the names that it gives."""
    empty = ModelDocument(
        model=(),
        iteration=0,
        study=STUDY,
        line=LINE,
        names=names,
        spec_digest=64 * "0",
        created=len("2018-06-20T00:00:00.000+00:00") * "0",
        parent=0,
    )
    some = _some(weights)
    written = len(msgspec.json.encode(some.tolist())) - len(some) - 1
    return len(msgspec.json.encode(empty)) + round(written * len(weights) / len(some)) + len(weights) - 1


def _updates(updates: NDArray[np.float32] | Payloads) -> int:
    if isinstance(updates, Payloads):
        frame = len(msgspec.json.encode(EncodedUpdate(updates.encoding, b"")))
        return len(updates) * frame + int((-(-updates.sizes // 3) * 4).sum())
    some = _some(updates.ravel() + np.float32(0))
    written: int = pc.sum(pc.binary_length(pc.cast(pa.array(some), pa.string()))).as_py() or 0
    return round(written * updates.size / len(some)) + updates.size + len(updates)


def _some(numbers: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the numbers, or :data:`WRITTEN_OUT` of them."""
    if len(numbers) <= WRITTEN_OUT:
        return numbers
    return numbers[np.linspace(0, len(numbers) - 1, WRITTEN_OUT).astype(np.intp)]


_NO_ID = np.zeros((1, 16), np.uint8)
_NOBODYS = ModelPings(
    document_ids=_NO_ID,
    client_ids=_NO_ID,
    arm=ARM,
    version=0,
    updates=None,
    losses=np.zeros(1),
    examples=np.zeros(1, np.int64),
)
"""A ping without an update, with the same envelope as any."""
