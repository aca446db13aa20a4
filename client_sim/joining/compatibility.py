"""A transport that believes no model document without a look: it has to be of the study, of its spec, and within it."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from fedping.client_sim.fleet.transport import Fetched, NotModified, Outcome, Transport, Unavailable
from fedping.protocol.model import ModelDocument, out_of_range, validate_spec
from fedping.protocol.study import PublicLine, PublicStudy

LONGEST_ASKED = 3600.0
"""Seconds for which a server may ask to be left alone."""


class CheckedTransport:
    """A :class:`fedping.client_sim.fleet.transport.Transport` for one line, whose models are checked.

    Whoever serves models may be broken or hostile; a model that is refused is as one that did not come.
    """

    def __init__(self, transport: Transport, study: str, line: PublicLine) -> None:
        self._transport, self._study, self._line = transport, study, line

    async def fetch_study(self, study: str) -> PublicStudy:
        """See :meth:`Transport.fetch_study`."""
        return await self._transport.fetch_study(study)

    async def fetch_model(
        self, study: str, line: str, iteration: int | None, etag: str | None
    ) -> Fetched | NotModified | Unavailable:
        """See :meth:`Transport.fetch_model`."""
        found = await self._transport.fetch_model(study, line, iteration, etag)
        return self._checked(found) if isinstance(found, Fetched) else found

    async def fetch_staged(self, study: str, line: str, iteration: int) -> Fetched | Unavailable:
        """See :meth:`Transport.fetch_staged`."""
        found = await self._transport.fetch_staged(study, line, iteration)
        return self._checked(found) if isinstance(found, Fetched) else found

    async def submit(self, study: str, document_id: UUID, body: bytes) -> Outcome:
        """See :meth:`Transport.submit`."""
        found = await self._transport.submit(study, document_id, body)
        if found.retry_after is None or found.retry_after <= LONGEST_ASKED:
            return found
        return replace(found, retry_after=LONGEST_ASKED)

    async def close(self) -> None:
        """See :meth:`Transport.close`."""
        await self._transport.close()

    def _checked(self, found: Fetched) -> Fetched | Unavailable:
        trouble = model_trouble(found.document, self._study, self._line)
        if trouble is None:
            return found
        return Unavailable(f"the model of line '{self._line.name}' is refused: {trouble}")


def model_trouble(document: ModelDocument, study: str, line: PublicLine) -> str | None:
    """Return why a document is no model to train on; None if it is one."""
    spec = line.spec
    if (document.study, document.line) != (study, line.name):
        return f"it is of study '{document.study}', line '{document.line}'"
    if document.spec_digest != spec.digest or document.names != spec.document_names:
        return "it is of another model spec than the study's"
    if len(document.model) != spec.m:
        return f"it has {len(document.model):,} weights, and the spec has {spec.m:,}"
    return out_of_range(document.model, spec) or validate_spec(document.model, spec)
