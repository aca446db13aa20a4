"""Pings over HTTP to an ingest, and models from it: what a product's clients do, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import msgspec
import numpy as np
import requests
from numpy.typing import NDArray

from client_sim.learning.batch import FloatArray
from experiments.ingest_process import RunningIngest
from experiments.laboratory.rounds.landed import document_ids
from experiments.laboratory.rounds.study import ARM, LINE, STUDY
from experiments.laboratory.rounds.updates import Updates
from model_store.version import Version
from protocol.documents import MODEL_UPDATE
from protocol.errors import FedpingError
from protocol.model import ModelDocument
from protocol.ping import ModelPayload

NUMBERS_AT_A_TIME = 100_000
"""In the updates of one batch: some 2 MB of JSON."""

_TIMEOUT = 60.0


class HttpCarrier:
    """Posts pings to an ingest and fetches models from it; see :class:`Carrier`."""

    def __init__(self, ingest: RunningIngest, ids: NDArray[np.uint8]) -> None:
        self._ingest, self._ids = ingest, ids
        self._session = requests.Session()

    def send(self, block: Updates, version: int, number: int, landed_ms: int) -> None:
        """See :meth:`Carrier.send`.

        Raises:
            FedpingError: ingest does not answer, or refuses a ping.
        """
        lines = list(self._lines(block, version, landed_ms))
        size = max(1, NUMBERS_AT_A_TIME // block.updates.shape[1])
        for low in range(0, len(lines), size):
            self._post(b"\n".join(lines[low : low + size]))

    def all_sent(self) -> None:
        """See :meth:`Carrier.all_sent`."""
        self._ingest.flush()

    def fetch(self, newest: Version) -> FloatArray:
        """See :meth:`Carrier.fetch`."""
        answer = self._session.get(f"{self._ingest.address}/models/{STUDY}/{LINE}/latest.json", timeout=_TIMEOUT)
        answer.raise_for_status()
        document = msgspec.json.decode(answer.content, type=ModelDocument)
        if document.iteration != newest.iteration:
            raise FedpingError(
                f"ingest serves version {document.iteration}, but {newest.iteration} is the newest; see its log "
                f"{self._ingest.log}"
            )
        return np.array(document.model)

    def _lines(self, block: Updates, version: int, landed_ms: int) -> Iterator[bytes]:
        ids = self._ids[block.clients]
        documents = document_ids(ids, block.repeats, landed_ms)
        for k in range(len(block.clients)):
            payload = ModelPayload(
                model_version=version,
                study_variation=ARM,
                update=tuple(block.updates[k].tolist()),
                loss=float(block.losses[k]),
                examples=int(block.examples[k]),
            )
            ping = MODEL_UPDATE.batched(
                document_id=UUID(bytes=documents[k].tobytes()),
                client_id=UUID(bytes=ids[k].tobytes()),
                type=MODEL_UPDATE.name,
                payload=payload,
            )
            yield msgspec.json.encode(ping)

    def _post(self, body: bytes) -> None:
        url = f"{self._ingest.address}/submit/{STUDY}/{MODEL_UPDATE.name}/{MODEL_UPDATE.version}"
        answer = self._session.post(url, data=body, headers={"Content-Type": "application/x-ndjson"}, timeout=_TIMEOUT)
        rejected = answer.json().get("rejected") if answer.status_code == 200 else answer.text
        if rejected:
            raise FedpingError(f"ingest refused pings of the laboratory: {str(rejected)[:300]}")
