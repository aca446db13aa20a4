"""From interactions to the JSON of pings, one ping an interaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from uuid import UUID

import msgspec
import numpy as np

from fedping.client_sim.fleet.interactions import Interactions, Keystrokes
from fedping.protocol.ping import FRECENCY_UPDATE, FrecencyPayload, Ping
from fedping.protocol.update import EncodedUpdate, Payloads, Update

ADDON_VERSION = "fedping-sim-1"

_encoder = msgspec.json.Encoder()


def encoded_pings(
    client_ids: Sequence[UUID], arm: str, versions: Sequence[int], seen: Interactions, typed: Keystrokes
) -> Iterator[bytes]:
    """Yield the JSON of each interaction's ping.

    Args:
        client_ids: whose each interaction was, S of them.
        arm: the name of the arm, of all of them.
        versions: the model version that each client holds, S of them.
        seen: the S interactions.
        typed: how they were typed.
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
    """Return the JSON of pings with the tickets of their clients, if there are any."""
    if ticket_of is None:
        return bodies
    pairs = zip(bodies, client_ids, strict=True)
    return (b'{"ticket":"%s",%s' % (ticket_of(client).encode(), body[1:]) for body, client in pairs)


def _each(seen: Interactions) -> Iterable[Update | None]:
    """Return the update of each interaction's ping; None where none is sent."""
    made, sends = seen.update, seen.sends
    if made is None:
        return [None] * len(seen)
    updates: Iterable[Update] = map(tuple, made.tolist()) if isinstance(made, np.ndarray) else _encoded(made)
    if sends is None:
        return updates
    return (update if sent else None for update, sent in zip(updates, sends.tolist(), strict=True))


def _encoded(sent: Payloads) -> Iterator[EncodedUpdate]:
    return (EncodedUpdate(sent.encoding, payload) for payload in sent.column.to_pylist())
