"""The JSON of pings: a ping for each interaction, or for each client's model update.

A cohort's model updates are all written at once: numbers become text column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.fleet.interactions import Interactions, Keystrokes
from fedping.protocol.landed_table import ModelPings
from fedping.protocol.ping import FRECENCY_UPDATE, MODEL_UPDATE, FrecencyPayload, Ping
from fedping.protocol.update import EncodedUpdate, Payloads, Update

ADDON_VERSION = "fedping-sim-1"

_encoder = msgspec.json.Encoder()


def interaction_pings(
    client_ids: Sequence[UUID], arm: str, versions: Sequence[int], seen: Interactions, typed: Keystrokes
) -> Iterator[bytes]:
    """Yield the JSON of each interaction's ping.

    Args:
        client_ids: the client of each interaction, S of them.
        arm: name of their arm.
        versions: model version that each client holds, S of them.
        seen: the S interactions.
        typed: their keystrokes.
    """
    updates = _each(seen)
    columns = zip(
        client_ids,
        versions,
        updates,
        seen.loss.tolist(),
        map(tuple, seen.scores.tolist()),
        seen.shown.tolist(),
        seen.rank.tolist(),
        seen.bookmarked.tolist(),
        *(column.tolist() for column in vars(typed).values()),
        strict=True,
    )
    for client, version, update, loss, scores, shown, rank, bookmarked, *hands in columns:
        characters, keys, keys_at_first, end, first, enter = hands
        payload = FrecencyPayload(
            model_version=version,
            study_variation=arm,
            update=update,
            loss=loss,
            frecency_scores=scores[:shown],
            num_suggestions_displayed=shown,
            rank_selected=rank,
            bookmark_and_history_num_suggestions_displayed=shown,
            bookmark_and_history_rank_selected=rank,
            num_chars_typed=characters,
            num_key_down_events=keys,
            num_key_down_events_at_selecteds_first_entry=keys_at_first,
            time_start_interaction=0,
            time_end_interaction=end,
            time_at_selecteds_first_entry=first,
            selected_style="" if rank < 0 else "bookmark" if bookmarked else "favicon",
            selected_url_was_same_as_search_string=-1 if rank < 0 else 0,
            enter_was_pressed=1 if enter else 0,
            study_addon_version=ADDON_VERSION,
        )
        yield _encoder.encode(Ping(client_id=client, type=FRECENCY_UPDATE.name, payload=payload))


def with_tickets(
    bodies: Iterable[bytes], client_ids: Sequence[UUID], ticket_of: Callable[[UUID], str] | None
) -> Iterable[bytes]:
    """Return the JSON of pings with the tickets of their clients, if any."""
    if ticket_of is None:
        return bodies
    pairs = zip(bodies, client_ids, strict=True)
    return (b'{"ticket":"%s",%s' % (ticket_of(client).encode(), body[1:]) for body, client in pairs)


def _each(seen: Interactions) -> Iterable[Update | None]:
    """Return the update of each interaction's ping; None for a ping without an update."""
    sent, sends = seen.update, seen.sends
    if sent is None:
        return [None] * len(seen)
    updates: Iterable[Update] = map(tuple, sent.tolist()) if isinstance(sent, np.ndarray) else _encoded_updates(sent)
    if sends is None:
        return updates
    return (update if has_update else None for update, has_update in zip(updates, sends.tolist(), strict=True))


def _encoded_updates(payloads: Payloads) -> Iterator[EncodedUpdate]:
    return (EncodedUpdate(payloads.encoding, payload) for payload in payloads.column.to_pylist())


NUMBERS_AT_A_TIME = 2**22
"""Number of weights that become text at a time, unless one update has more: about 50 MB."""


ENCODED_LINES = 500
"""Maximum number of lines of a batch with encoded updates, which ingest accepts for any number of weights."""


def encoded_pings(pings: ModelPings) -> Iterator[tuple[UUID, bytes]]:
    """Yield each ping's document id and its JSON, as ``POST /submit/<study>/model-update/1/<document id>`` takes it."""
    for document, body in _encoded(pings):
        yield document, b"{" + body


def encoded_lines(pings: ModelPings) -> Iterator[bytes]:
    """Yield each ping's JSON with its document id: a line of a batch, without the newline."""
    for document, body in _encoded(pings):
        yield b'{"documentId":"%s",%s' % (str(document).encode(), body)


def batches(pings: ModelPings, largest: int) -> Iterator[bytes]:
    """Yield all pings as NDJSON in batches of at most ``largest`` bytes; a larger ping is a batch of its own."""
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
    """Yield each ping's document id, and its JSON without the opening brace."""
    documents, clients = (map(_uuid, ids) for ids in (pings.document_ids, pings.client_ids))
    losses, examples = pings.losses.tolist(), pings.examples.tolist()
    head = payload_head(MODEL_UPDATE.name, pings.version, pings.arm) + b',"update":'
    updates = updates_as_json(pings.updates, len(pings))
    columns = zip(documents, clients, updates, losses, examples, strict=True)
    for document, client, update, loss, number in columns:
        tail = b',"loss":%s,"examples":%d}}' % (msgspec.json.encode(loss), number)
        yield document, b'"clientId":"%s",%s%s%s' % (str(client).encode(), head, update, tail)


def payload_head(kind: str, version: int, arm: str) -> bytes:
    """Return the part of a ping's JSON that all pings of a type, version and arm share, up to the arm's name."""
    about = f'"type":"{kind}","payload":{{"model_version":{version},"study_variation":'.encode()
    return about + msgspec.json.encode(arm)


def updates_as_json(updates: NDArray[np.float32] | Payloads | None, count: int) -> Iterator[bytes]:
    """Yield each of ``count`` updates: null, a JSON array (:func:`as_json_arrays`), or a payload's object."""
    if updates is None:
        yield from (b"null" for _ in range(count))
        return
    if isinstance(updates, Payloads):
        yield from as_json_objects(updates)
        return
    rows = max(1, NUMBERS_AT_A_TIME // max(1, updates.shape[1]))
    for low in range(0, count, rows):
        yield from as_json_arrays(updates[low : low + rows])


def as_json_arrays(numbers: NDArray[np.float32]) -> Iterator[bytes]:
    """Yield each of k rows, shape (k, m), as a JSON array of the shortest numerals that parse to the same float32."""
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
