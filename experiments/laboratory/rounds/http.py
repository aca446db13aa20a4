"""Pings over HTTP to an ingest, and models from it, by the transport of the fleet in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.fleet.http import HttpTransport
from fedping.client_sim.fleet.model_pings import batches
from fedping.client_sim.fleet.transport import Delivery, Fetched
from fedping.client_sim.learning.batch import FloatArray
from fedping.experiments.ingest_process import RunningIngest
from fedping.experiments.laboratory.rounds.landed import pings_of
from fedping.experiments.laboratory.rounds.study import LINE, STUDY
from fedping.experiments.laboratory.rounds.updates import Updates
from fedping.model_store.version import Version
from fedping.protocol.errors import FedpingError
from fedping.protocol.ping import MODEL_UPDATE

LARGEST_BATCH = 4 * 2**20
"""Bytes in the body of one request, unless a single ping is larger."""


class HttpCarrier:
    """Posts pings to an ingest and fetches models from it; see :class:`Carrier`."""

    def __init__(self, ingest: RunningIngest, ids: NDArray[np.uint8], runner: asyncio.Runner) -> None:
        self._ingest, self._ids, self._runner = ingest, ids, runner
        self._transport = HttpTransport(ingest.address, document=MODEL_UPDATE)
        self.fetched_bytes = 0

    def send(self, block: Updates, version: int, number: int, landed_ms: int) -> int:
        """See :meth:`Carrier.send`; pings go in compressed batches.

        Raises:
            FedpingError: ingest does not answer, or refuses a ping.
        """
        pings = pings_of(block, self._ids[block.clients], version, landed_ms)
        posted = 0
        for body in batches(pings, LARGEST_BATCH):
            told = self._runner.run(self._transport.submit_batch(STUDY, body))
            if told.outcome.delivery is not Delivery.ACCEPTED or told.rejected:
                why = told.rejected[0][1] if told.rejected else told.outcome.reason
                raise FedpingError(f"ingest did not take the pings of the laboratory: {why}; see {self._ingest.log}")
            posted += told.outcome.posted_bytes
        return posted

    def all_sent(self) -> None:
        """See :meth:`Carrier.all_sent`."""
        self._ingest.flush()

    def fetch(self, newest: Version) -> FloatArray:
        """See :meth:`Carrier.fetch`.

        Raises:
            FedpingError: ingest does not answer, or serves another version.
        """
        got = self._runner.run(self._transport.fetch_model(STUDY, LINE, None, None))
        if not isinstance(got, Fetched) or got.document.iteration != newest.iteration:
            raise FedpingError(f"ingest does not serve version {newest.iteration} of the model; see {self._ingest.log}")
        self.fetched_bytes = got.fetched_bytes
        return np.array(got.document.model)

    def close(self) -> None:
        """Close the connections."""
        self._runner.run(self._transport.close())


@contextmanager
def over_http(ingest: RunningIngest, ids: NDArray[np.uint8]) -> Iterator[HttpCarrier]:
    """Yield a carrier to a running ingest for clients with these ids, shape (clients, 16); close its connections."""
    with asyncio.Runner() as runner:
        carrier = HttpCarrier(ingest, ids, runner)
        try:
            yield carrier
        finally:
            carrier.close()
