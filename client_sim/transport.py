"""A client's network, which fetches the study and models and submits pings; and a transport within one process.

Answers are values, not exceptions, because each is an ordinary event for a client: a server that is down, an unchanged
model, a rejected ping. Exceptions are raised only if a client can't start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias
from uuid import UUID

from fedping.protocol.errors import FedpingError
from fedping.protocol.model import ModelDocument
from fedping.protocol.study import PublicStudy, Study, public_study


class TransportError(FedpingError):
    """The address can't be reached, or isn't an ingest with this study."""


class StudyEnded(TransportError):
    """The study has ended."""


class Delivery(Enum):
    """The outcome of one attempt to submit."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one attempt: ``reason`` if it failed; ``retry_after`` in seconds, if the server named a time.

    ``posted_bytes`` counts the attempt's body as sent.
    """

    delivery: Delivery
    reason: str = ""
    retry_after: float | None = None
    posted_bytes: int = field(default=0, compare=False)


ACCEPTED = Outcome(Delivery.ACCEPTED)


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The answer to one attempt to submit a batch: for the request as a whole, and for its lines.

    ``accepted`` is the number of accepted lines, ``rejected`` has the line numbers of the others, from 1, and reasons.
    """

    outcome: Outcome
    accepted: int = 0
    rejected: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model document, the entity tag for the next fetch, and the bytes of its body."""

    document: ModelDocument
    etag: str | None
    fetched_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class NotModified:
    """The client already holds the requested model."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No model is available, and the reason; the client keeps its version."""

    reason: str


class Transport(Protocol):
    """A client's connection to a server."""

    async def fetch_study(self, study: str) -> PublicStudy:
        """Return the public part of a study.

        Raises:
            StudyEnded: the study has ended.
            TransportError: the server cannot be reached, or has no such study.
        """
        ...

    async def fetch_model(
        self, study: str, line: str, iteration: int | None, etag: str | None
    ) -> Fetched | NotModified | Unavailable:
        """Ask for one version of a line, or for the newest one if ``iteration`` is None."""
        ...

    async def fetch_staged(self, study: str, line: str, iteration: int) -> Fetched | Unavailable:
        """Ask for the staged version of a line, which some clients get instead of the newest."""
        ...

    async def submit(self, study: str, document_id: UUID, body: bytes, *, later: bool = False) -> Outcome:
        """Make one attempt to submit a ping, encoded as JSON. The document id is the same in every attempt.

        ``later`` marks a later outcome, which isn't a ping of the study's own type.
        """
        ...

    async def close(self) -> None:
        """Release the transport's resources. Repeated calls are safe."""
        ...


ModelSource: TypeAlias = Callable[[str, int | None], ModelDocument | None]
"""Function from a line's name and a version (None: the newest) to its model document; None if it doesn't exist."""

Sink: TypeAlias = Callable[[UUID, bytes], str | None]
"""Function from a document id and a ping's JSON to None if the ping is accepted, else the reason for its rejection."""


class InProcessTransport:
    """A transport within one process: passes pings to ``sink``, and gets versions from ``models``, without waits.

    Exceptions of the sink are not caught: within one process they are defects, not faults of a network.
    """

    def __init__(self, study: Study, models: ModelSource, sink: Sink) -> None:
        self._study = public_study(study)
        self._models = models
        self._sink = sink

    async def fetch_study(self, study: str) -> PublicStudy:
        """See :meth:`fedping.client_sim.transport.Transport.fetch_study`."""
        if study != self._study.name:
            raise TransportError(f"unknown study '{study}' in this process; it has '{self._study.name}'")
        return self._study

    async def fetch_model(
        self, study: str, line: str, iteration: int | None, etag: str | None
    ) -> Fetched | NotModified | Unavailable:
        """See :meth:`client_sim.fleet.transport.Transport.fetch_model`; the entity tag is the version's number."""
        document = self._models(line, iteration)
        if document is None:
            return Unavailable(f"line '{line}' has no version {'yet' if iteration is None else iteration}")
        tag = str(document.iteration)
        return NotModified() if tag == etag else Fetched(document, tag)

    async def fetch_staged(self, study: str, line: str, iteration: int) -> Fetched | Unavailable:
        """See :meth:`fedping.client_sim.transport.Transport.fetch_staged`; nothing is staged in one process."""
        return Unavailable(f"line '{line}' has no version {iteration} that is staged")

    async def submit(self, study: str, document_id: UUID, body: bytes, *, later: bool = False) -> Outcome:
        """See :meth:`fedping.client_sim.transport.Transport.submit`."""
        reason = self._sink(document_id, body)
        return ACCEPTED if reason is None else Outcome(Delivery.REJECTED, reason)

    async def close(self) -> None:
        """See :meth:`fedping.client_sim.transport.Transport.close`; there is nothing to release."""
