"""A fleet: thousands of simulated browsers in one process, one iteration after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from client_sim.fleet.crowd import Sleep
from client_sim.fleet.fetching import FetchCounts, Fetcher, Shelf
from client_sim.fleet.outbox import Counts, Outbox
from client_sim.fleet.roster import Attendance, Roster
from client_sim.fleet.search_round import PopulationOf, SearchRound
from client_sim.fleet.settings import FleetSettings
from client_sim.fleet.summary import (
    ArmSummary,
    IterationSummary,
    fetch_summary,
    ping_summary,
)
from client_sim.fleet.transport import Transport
from client_sim.population.sample import Population
from client_sim.population.settings import PopulationSettings
from client_sim.population.synthetic import SyntheticPopulation
from protocol.documents import FRECENCY_UPDATE
from protocol.errors import InvalidSettings
from protocol.ping import NO_VERSION
from protocol.study import PublicStudy


@dataclass
class Live:
    """What a fleet is doing at this moment, for whoever watches; ``stage`` is what is being waited for."""

    iteration: int = 0
    stage: str = "starting"


class Fleet:
    """Everyone fetches, everyone searches, everyone sends: that is an iteration, and the fleet's only clock.

    All its requests are made in the event loop that awaits :meth:`run_iteration`. To drive a fleet from ordinary code::

        with asyncio.Runner() as runner:
            fleet = runner.run(join_study(HttpTransport(address), "my-study", FleetSettings(clients=2000)))
            summary = runner.run(fleet.run_iteration())
            runner.run(fleet.close())

    Args:
        transport: the way to the server.
        study: the study that the clients take part in.
        settings: the fleet.
        population_of: the users; made ones of the default settings if None.
        sleep: how to wait.

    Attributes:
        roster: the clients.
        live: what is going on.
        next_iteration: the number of the iteration that the next :meth:`run_iteration` will be.
    """

    def __init__(
        self,
        transport: Transport,
        study: PublicStudy,
        settings: FleetSettings,
        population_of: PopulationOf | None = None,
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.study = study
        self.settings = settings
        self.live = Live()
        self.next_iteration = 0
        self.roster = Roster(study, settings.clients, settings.seed)
        self._transport = transport
        random, at_once = Random(settings.seed), settings.at_once
        shelf = Shelf(study)
        self._fetcher = Fetcher(
            transport,
            study.name,
            self.roster,
            shelf,
            at_once=at_once,
            sleep=sleep,
            random=random,
            together=settings.fetch_together,
        )
        self._outbox = Outbox(
            transport, study.name, backoff=settings.backoff, at_once=at_once, sleep=sleep, random=random
        )
        self._searches = SearchRound(self.roster, shelf, population_of or made_users(settings.seed), settings)

    @property
    def counts(self) -> Counts:
        """What became of all pings so far, kept up to date while they are sent."""
        return self._outbox.counts

    @property
    def fetch_counts(self) -> FetchCounts:
        """What came of all fetches so far, kept up to date."""
        return self._fetcher.counts

    @property
    def undelivered(self) -> int:
        """How many pings nobody has taken yet; they are sent again in the next iteration, with the same document id."""
        return self._outbox.undelivered

    async def run_iteration(self) -> IterationSummary:
        """Let the clients fetch, search and send, and return what happened.

        If cancelled, the pings that nobody has taken stay with the fleet, and the counts are right.
        """
        began, before = time.monotonic(), self._snapshot()
        iteration = self.live.iteration = self.next_iteration
        self.next_iteration += 1
        attendance = self.roster.attend(iteration, self.settings.behaviour)
        self.live.stage = "fetching models"
        await self._fetcher.fetch(attendance.fetching.tolist(), self.settings.fetch_within)
        self.live.stage = "searching"
        letters, arms = self._searches.search(attendance.present, iteration)
        self._outbox.add(letters)
        self.live.stage = "sending pings"
        await self._outbox.deliver(self.settings.send_within)
        self.live.stage = "waiting"
        return self._summary(iteration, time.monotonic() - began, before, attendance, arms)

    async def deliver_what_is_left(self) -> None:
        """Try once more to hand over what nobody has taken."""
        await self._outbox.deliver()

    async def close(self) -> None:
        """Release the transport."""
        await self._transport.close()

    def versions(self) -> dict[str, int]:
        """Return the newest version that any client holds of each line, -1 for none."""
        newest = {line.name: NO_VERSION for line in self.study.lines}
        for position, arm in enumerate(self.study.arms):
            if arm.line is not None:
                held = self.roster.version[self.roster.arm == position]
                newest[arm.line] = max(newest[arm.line], int(held.max(initial=NO_VERSION)))
        return newest

    def _snapshot(self) -> tuple[Counts, FetchCounts, int]:
        counts, fetched = self.counts, self.fetch_counts
        return (
            Counts(counts.generated, counts.accepted, counts.rejected.copy(), counts.retries.copy(), counts.duplicates),
            FetchCounts(fetched.fetched, fetched.not_modified, fetched.unavailable.copy()),
            self.undelivered,
        )

    def _summary(
        self,
        iteration: int,
        seconds: float,
        before: tuple[Counts, FetchCounts, int],
        attendance: Attendance,
        arms: tuple[ArmSummary, ...],
    ) -> IterationSummary:
        pings, fetches, carried_over = before
        return IterationSummary(
            iteration=iteration,
            seconds=seconds,
            versions=self.versions(),
            fetches=fetch_summary(self.fetch_counts, fetches, attendance.late, attendance.silent),
            pings=ping_summary(self.counts, pings, carried_over, self.undelivered),
            arms=arms,
        )


def made_users(seed: int, settings: PopulationSettings | None = None) -> PopulationOf:
    """Return the made users of a seed (thesis 7.3), for any ranking model."""
    chosen = settings or PopulationSettings()
    make: Callable[..., Population] = SyntheticPopulation
    return lambda model: make(model, chosen, seed)


async def join_study(
    transport: Transport,
    study: str,
    settings: FleetSettings,
    population_of: PopulationOf | None = None,
    *,
    sleep: Sleep = asyncio.sleep,
) -> Fleet:
    """Fetch a study and return a fleet that takes part in it; the arguments are those of :class:`Fleet`.

    Raises:
        TransportError: the server cannot be reached, or has no such study; the transport is closed.
        InvalidSettings: the study asks for a ranking model, or for a type of ping, that clients do not have.
    """
    try:
        found = await transport.fetch_study(study)
        if found.pings != FRECENCY_UPDATE.name:
            raise InvalidSettings(
                f"study '{study}' takes {found.pings} pings, and simulated browsers send {FRECENCY_UPDATE.name}; "
                "give a study of browsers, or train this one with a laboratory experiment"
            )
        return Fleet(transport, found, settings, population_of, sleep=sleep)
    except BaseException:
        await transport.close()
        raise
