"""Model updates as the JSON of pings, all of a cohort at once: numbers become text column by column, not one by one."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.protocol.landed_table import ModelPings
from fedping.protocol.ping import MODEL_UPDATE
from fedping.protocol.update import EncodedUpdate, Payloads

NUMBERS_AT_A_TIME = 2**22
"""How many numbers become text at a time, unless one update has more: some 50 MB."""


ENCODED_LINES = 500
"""Lines of a batch at most, where updates are encoded: ingest looks into so many however many weights they have."""


def encoded_pings(pings: ModelPings) -> Iterator[tuple[UUID, bytes]]:
    """Yield each ping's document id and its JSON, as ``POST /submit/<study>/model-update/1/<document id>`` takes it."""
    for document, body in _encoded(pings):
        yield document, b"{" + body


def encoded_lines(pings: ModelPings) -> Iterator[bytes]:
    """Yield each ping's JSON with its document id: a line of a batch, without the newline."""
    for document, body in _encoded(pings):
        yield b'{"documentId":"%s",%s' % (str(document).encode(), body)


def batches(pings: ModelPings, largest: int) -> Iterator[bytes]:
    """Yield all the pings as NDJSON in batches of at most ``largest`` bytes, or of a single ping if that has more."""
    most = ENCODED_LINES if isinstance(pings.updates, Payloads) else len(pings)
    lines: list[bytes] = []
    size = 0
    for line in encoded_lines(pings):
        if lines and (size + len(line) + 1 > largest or len(lines) == most):
            yield b"\n".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield b"\n".join(lines)


def _encoded(pings: ModelPings) -> Iterator[tuple[UUID, bytes]]:
    """Yield the document id and the JSON of each ping but for its opening brace."""
    documents, clients = (map(_uuid, ids) for ids in (pings.document_ids, pings.client_ids))
    losses, examples = pings.losses.tolist(), pings.examples.tolist()
    head = f'"type":"{MODEL_UPDATE.name}","payload":{{"model_version":{pings.version},"study_variation":'.encode()
    head += msgspec.json.encode(pings.arm) + b',"update":'
    columns = zip(documents, clients, _updates(pings), losses, examples, strict=True)
    for document, client, update, loss, number in columns:
        tail = b',"loss":%s,"examples":%d}}' % (msgspec.json.encode(loss), number)
        yield document, b'"clientId":"%s",%s%s%s' % (str(client).encode(), head, update, tail)


def _updates(pings: ModelPings) -> Iterator[bytes]:
    """Yield each update: a JSON array (:func:`as_json_arrays`), or a payload's object."""
    if pings.updates is None:
        yield from (b"null" for _ in range(len(pings)))
        return
    if isinstance(pings.updates, Payloads):
        yield from as_json_objects(pings.updates)
        return
    rows = max(1, NUMBERS_AT_A_TIME // max(1, pings.updates.shape[1]))
    for low in range(0, len(pings), rows):
        yield from as_json_arrays(pings.updates[low : low + rows])


def as_json_arrays(numbers: NDArray[np.float32]) -> Iterator[bytes]:
    """Yield each of k rows, shape (k, m), as a JSON array: the shortest texts that lead back to the same float32."""
    import pyarrow as pa
    import pyarrow.compute as pc

    k, m = numbers.shape
    texts = pc.cast(pa.array(np.ascontiguousarray(numbers).ravel()), pa.string())
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(np.arange(k + 1, dtype=np.int32) * m), texts), ",")
    for text in joined:
        yield b"[%s]" % text.as_buffer().to_pybytes()


def as_json_objects(updates: Payloads) -> Iterator[bytes]:
    """Yield each of k payloads as a JSON object with its tag."""
    for payload in updates.column:
        yield msgspec.json.encode(EncodedUpdate(updates.encoding, payload.as_py()))


def _uuid(data: NDArray[np.uint8]) -> UUID:
    return UUID(bytes=data.tobytes())
