"""The updates of a round's clients, one block at a time, in their transferred form, and their size as JSON.

Sizes are those of the bodies of requests and responses, without headers and compression.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedping.client_sim.fleet.pings import encoded_pings
from fedping.client_sim.learning.batch import Clients, FloatArray
from fedping.experiments.laboratory.rounds.study import ARM, LINE, STUDY
from fedping.protocol.landed_table import ModelPings
from fedping.protocol.model import ModelDocument
from fedping.protocol.update import EncodedUpdate, Payloads


@dataclass(frozen=True)
class Updates:
    """The updates of k pings, usually each of a different client.

    Attributes:
        clients: positions among all clients, shape (k,).
        repeats: number of earlier pings of the client in this round, shape (k,): 0 unless it was drawn again.
        pings: number of all pings of the client in this round, shape (k,).
        updates: directions of descent, shape (k, m), as float32, or their payloads in another encoding, in transferred
            form.
        losses: losses at the fetched weights, shape (k,).
        examples: number of examples, shape (k,); a client without examples changes nothing.
        age: age, in versions, of the weights that the updates were computed from.
        asked: number of other clients that fetched the newest weights in this round, and sent no update.
        model: the number of the model that the clients trained, in a run with several models.
        seconds: simulated seconds from the invitation to the answer, shape (k,); None without a clock.
    """

    clients: Clients
    repeats: NDArray[np.int64]
    pings: NDArray[np.int64]
    updates: NDArray[np.float32] | Payloads
    losses: FloatArray
    examples: NDArray[np.int64]
    age: int = 0
    asked: int = 0
    model: int = 0
    seconds: FloatArray | None = None


def repetitions(clients: Clients) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each entry of ascending ``clients``, the numbers of earlier and of all equal entries, shape (k,)."""
    if (clients[1:] > clients[:-1]).all():
        return np.zeros(len(clients), np.int64), np.ones(len(clients), np.int64)
    first = np.searchsorted(clients, clients, side="left")
    last = np.searchsorted(clients, clients, side="right")
    return np.arange(len(clients)) - first, last - first


WRITTEN_OUT = 8192
"""Maximum count of an array's numbers whose text is measured; longer arrays are sampled evenly."""


def posted_bytes(block: Updates) -> int:
    """Return the bytes of a block's pings, each posted by itself; exact up to :data:`WRITTEN_OUT` numbers."""
    if not len(block.clients):
        return 0
    columns = (len(msgspec.json.encode(column.tolist())) for column in (block.losses + 0.0, block.examples))
    pings = len(block.clients)
    return pings * _around_a_ping() + sum(columns) - 2 * (pings + 1) + _updates(block.updates)


def fetched_bytes(names: tuple[str, ...], weights: FloatArray) -> int:
    """Return the bytes of a version's document with these names and weights, shape (m,)."""
    sample = _sample(weights)
    written = len(msgspec.json.encode(sample.tolist())) - len(sample) - 1
    return _around_weights(names) + round(written * len(weights) / len(sample)) + len(weights) - 1


@cache
def _around_a_ping() -> int:
    """Return the bytes of a ping without its update, its loss and its number of examples."""
    [(_, envelope)] = encoded_pings(_EMPTY_PING)
    return len(envelope) - len(b"null") - len(b"0.0") - len(b"0")


@lru_cache(maxsize=8)
def _around_weights(names: tuple[str, ...]) -> int:
    """Return the bytes of a version's document without its weights."""
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
    return len(msgspec.json.encode(empty))


def _updates(updates: NDArray[np.float32] | Payloads) -> int:
    if isinstance(updates, Payloads):
        frame = len(msgspec.json.encode(EncodedUpdate(updates.encoding, b"")))
        return len(updates) * frame + int((-(-updates.sizes // 3) * 4).sum())
    sample = _sample(updates.ravel() + np.float32(0))
    text = pa.array(sample).cast(pa.string())
    written = int(np.frombuffer(text.buffers()[1], np.int32)[len(sample)])  # where the last text ends
    return round(written * updates.size / len(sample)) + updates.size + len(updates)


def _sample(numbers: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the numbers, or an even sample of :data:`WRITTEN_OUT` of them."""
    if len(numbers) <= WRITTEN_OUT:
        return numbers
    return numbers[np.linspace(0, len(numbers) - 1, WRITTEN_OUT).astype(np.intp)]


_NO_ID = np.zeros((1, 16), np.uint8)
_EMPTY_PING = ModelPings(
    document_ids=_NO_ID,
    client_ids=_NO_ID,
    arm=ARM,
    version=0,
    updates=None,
    losses=np.zeros(1),
    examples=np.zeros(1, np.int64),
)
"""A ping without an update, with the same envelope as all others."""
