"""The JSON of pings of lists, one ping per list, and of the later outcomes of their choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.fleet.pings import payload_head, updates_as_json
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.rehearsal.outcomes import Followed, followed
from fedping.client_sim.rehearsal.settings import OutcomeLaw
from fedping.client_sim.rehearsal.users import Visits
from fedping.protocol.draws import Keys
from fedping.protocol.outcomes import Outcome, linked_id, unlinked_id
from fedping.protocol.ping import LIST_UPDATE, OUTCOME
from fedping.protocol.update import Payloads

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, kw_only=True)
class ListPings:
    """Pings of N lists of one arm's clients, all at one version.

    Attributes:
        arm, version: arm and version of the clients.
        client_ids, secrets: id of each list's client, and its secret, which it never sends.
        documents: the document id of each list.
        visits: the lists.
        losses: the loss of each list, shape (N,).
        updates: the update that is sent with each list; None if the arm sends none.
    """

    arm: str
    version: int
    client_ids: Sequence[UUID]
    secrets: Sequence[UUID]
    documents: Sequence[UUID]
    visits: Visits
    losses: FloatArray
    updates: NDArray[np.float32] | Payloads | None

    def lists(self, outcomes: Sequence[Followed]) -> Iterator[bytes]:
        """Yield the JSON of each list's ping, with the outcomes at its choice."""
        at_once = [each for each in outcomes if each.ages is None]
        visits = self.visits
        head = payload_head(LIST_UPDATE.name, self.version, self.arm)
        columns = zip(
            self.client_ids,
            updates_as_json(self.updates, len(self.losses)),
            self.losses.tolist(),
            visits.chosen.tolist(),
            visits.shown.tolist(),
            visits.swapped.tolist(),
            visits.of_chosen(visits.pinned).tolist(),
            strict=True,
        )
        for row, (client, update, loss, place, shown, swapped, pinned) in enumerate(columns):
            fields: dict[str, Any] = {"loss": loss, "place": place + 1, "candidates": shown, "seen": shown}
            fields["swapped"] = swapped
            if place >= 0:
                fields["pinned"] = pinned
                fields |= {each.outcome.name: each.values[row] for each in at_once if each.values[row] is not None}
            yield b'{"clientId":"%s",%s,"update":%s,%s}' % (
                str(client).encode(),
                head,
                update,
                _encoder.encode(fields)[1:],
            )

    def later(self, outcomes: Sequence[Followed]) -> Iterator[tuple[int, UUID, bytes]]:
        """Yield the list, the document id and the JSON of each later outcome."""
        head = payload_head(OUTCOME.name, self.version, self.arm)
        for each in outcomes:
            if each.ages is None:
                continue
            name = each.outcome.name
            for row, (value, age) in enumerate(zip(each.values, each.ages, strict=True)):
                if value is None or self.visits.chosen[row] < 0:
                    continue
                choice = self.documents[row]
                fields: dict[str, Any] = {"age": age, name: value}
                if each.outcome.linked:
                    document, fields["choice"] = linked_id(choice, name), choice
                else:
                    document = unlinked_id(self.secrets[row], choice, name)
                client = str(self.client_ids[row]).encode()
                yield row, document, b'{"clientId":"%s",%s,%s}' % (client, head, _encoder.encode(fields)[1:])

    def outcomes(self, declared: Sequence[Outcome], laws: dict[str, OutcomeLaw], keys: Keys) -> list[Followed]:
        """Return the outcomes that follow the choices; ``keys`` are the lists', shape (N,)."""
        return followed(declared, laws, self.visits.of_chosen(self.visits.utility), keys)
