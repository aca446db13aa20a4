"""A study with every kind of arm, versions of its lines, and a transport that answers as planned."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

from fedping.client_sim.fleet import (
    Delivery,
    Fetched,
    Fleet,
    FleetSettings,
    IterationSummary,
    NotModified,
    Outcome,
    Unavailable,
    made_users,
)
from fedping.client_sim.fleet.interactions import product_spec
from fedping.client_sim.models import LINEAR_15_NAMES, linear_15_truth
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.transport import ACCEPTED
from fedping.protocol.model import ModelDocument
from fedping.protocol.pipeline import Pipeline
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, PublicStudy, Study, public_study
from tests.support.virtual_time import in_virtual_time

STUDY = "fleet"
STEP = Step(start=1, min=0.1, max=3)
ONE_SEARCH = PopulationSettings(searches=(1, 1))
WHEN = "2026-01-01T00:00:00.000+00:00"

RETRY = Outcome(Delivery.RETRY, "HTTP 503")
REJECTED = Outcome(Delivery.REJECTED, "400 no")

Plan = Callable[[UUID, int], Outcome]
"""Function that returns the outcome of a document's attempt, numbered from 0."""


def fleet_study() -> Study:
    """Return a study of two lines with two rankers; a tenth of the clients is not enrolled."""
    linear = tuple(
        Weight(name=name, start=float(start), step=STEP)
        for name, start in zip(LINEAR_15_NAMES, linear_15_truth(), strict=True)
    )
    lines = (
        Line(name="main", spec=product_spec(), pipeline=Pipeline(min_clients=1)),
        Line(name="other", spec=ModelSpec(name="linear", model="linear-15", weights=linear)),
    )
    arms = (
        Arm(name="treatment", share=0.3, line="main", applies=True, submits=True),
        Arm(name="control", share=0.2, line="main", decays=True),
        Arm(name="linear", share=0.2, line="other", applies=True, submits=True),
        Arm(name="plain", share=0.2, decays=True),
    )
    return Study(name=STUDY, arms=arms, lines=lines)


def document(study: Study | PublicStudy, line: str, iteration: int) -> ModelDocument:
    """Return version ``iteration`` of a line; each version ranks differently."""
    spec = next(each.spec for each in study.lines if each.name == line)
    weights = np.array(spec.start) * np.linspace(1, 1 + iteration, spec.m)
    return ModelDocument(
        model=tuple(weights.round().tolist()),
        iteration=iteration,
        study=study.name,
        line=line,
        names=spec.document_names,
        spec_digest=spec.digest,
        created=WHEN,
        parent=iteration - 1 if iteration else None,
    )


@dataclass(frozen=True)
class Sent:
    """One attempt: the time by the loop's clock, the document and its bytes."""

    at: float
    document_id: UUID
    body: bytes


class PlannedTransport:
    """A transport that answers as planned after ``takes`` seconds; ``version`` is the newest version."""

    def __init__(self, study: Study | None = None, plan: Plan = lambda document, attempt: ACCEPTED) -> None:
        self.study = public_study(study or fleet_study())
        self.plan = plan
        self.version = 0
        self.takes = 0.0
        self.sent: list[Sent] = []
        self.fetches: list[tuple[float, str, str | None]] = []
        self.landed: dict[UUID, bytes] = {}
        self.most_at_once = 0
        self.closed = False
        self._under_way = 0
        self._attempts: Counter[UUID] = Counter()

    async def fetch_study(self, study: str) -> PublicStudy:
        return self.study

    async def fetch_model(
        self, study: str, line: str, iteration: int | None, etag: str | None
    ) -> Fetched | NotModified | Unavailable:
        self.fetches.append((asyncio.get_running_loop().time(), line, etag))
        await self._travel()
        if etag == str(self.version):
            return NotModified()
        return Fetched(document(self.study, line, self.version), str(self.version))

    async def fetch_staged(self, study: str, line: str, iteration: int) -> Fetched | Unavailable:
        return Unavailable("nothing is staged")

    async def submit(self, study: str, document_id: UUID, body: bytes) -> Outcome:
        self.sent.append(Sent(asyncio.get_running_loop().time(), document_id, body))
        attempt = self._attempts[document_id]
        self._attempts[document_id] += 1
        await self._travel()
        outcome = self.plan(document_id, attempt)
        if outcome.delivery is Delivery.ACCEPTED:
            self.landed[document_id] = body
        return outcome

    async def close(self) -> None:
        self.closed = True

    async def _travel(self) -> None:
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            await asyncio.sleep(self.takes)
        finally:
            self._under_way -= 1


async def iterate(fleet: Fleet, iterations: int = 1) -> list[IterationSummary]:
    """Run some iterations of a fleet."""
    return [await fleet.run_iteration() for _ in range(iterations)]


class PingSeen(msgspec.Struct, rename="camel"):
    """A ping's JSON, not validated."""

    client_id: UUID
    payload: dict[str, Any]

    @property
    def arm(self) -> str:
        return str(self.payload["study_variation"])

    @property
    def version(self) -> int:
        return int(self.payload["model_version"])


def seen(bodies: Sequence[bytes]) -> list[PingSeen]:
    """Decode pings without fedping's own definition."""
    return [msgspec.json.decode(body, type=PingSeen) for body in bodies]


def joined(transport: PlannedTransport, population: PopulationSettings = ONE_SEARCH, **options: Any) -> Fleet:
    """Return a fleet, to use in the event loop that awaits it."""
    chosen = FleetSettings(**{"clients": 200, "seed": 3, **options})
    return Fleet(transport, transport.study, chosen, made_users(chosen.seed, population))


def run_by_iteration(transport: PlannedTransport, fleet: Fleet, iterations: int) -> list[dict[UUID, PingSeen]]:
    """Publish version k before iteration k, and return each iteration's pings by client."""

    async def go() -> list[dict[UUID, PingSeen]]:
        found = []
        for transport.version in range(iterations):
            before = len(transport.sent)
            await fleet.run_iteration()
            pings = seen([sent.body for sent in transport.sent[before:]])
            found.append({ping.client_id: ping for ping in pings})
            assert len(found[-1]) == len(pings), "one search a client: one ping a client"
        return found

    return in_virtual_time(go())
