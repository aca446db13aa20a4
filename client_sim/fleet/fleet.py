"""A fleet: thousands of simulated clients in one process, one iteration after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from msgspec.structs import replace

from fedping.client_sim.fleet.attackers import Attackers
from fedping.client_sim.fleet.examples import Source, examples_for, ranks_pages, searches_for
from fedping.client_sim.fleet.fetching import FetchCounts, Fetcher, Shelf
from fedping.client_sim.fleet.learning_round import LearningRound, SourceOf
from fedping.client_sim.fleet.outbox import Counts, Outbox
from fedping.client_sim.fleet.private_pings import PrivatePings, private_pings
from fedping.client_sim.fleet.roster import Attendance, Roster
from fedping.client_sim.fleet.search_round import PopulationOf, SearchRound
from fedping.client_sim.fleet.settings import FleetSettings
from fedping.client_sim.fleet.summary import (
    ArmSummary,
    IterationSummary,
    fetch_summary,
    ping_summary,
)
from fedping.client_sim.fleet.transport import Transport, TransportError
from fedping.client_sim.fleet.waiting import Sleep
from fedping.client_sim.learning.algorithm import State, bare
from fedping.client_sim.learning.algorithms import algorithm_for
from fedping.client_sim.learning.checking import check_clients
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.registry import is_ranking_model
from fedping.client_sim.learning.states import ClientStates, StatesOf, in_memory
from fedping.client_sim.models import model_for
from fedping.client_sim.population.sample import Population
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.population.synthetic import SyntheticPopulation
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.ping import FRECENCY_UPDATE, NO_VERSION
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, PublicLine, PublicStudy, training_of

_NOTHING_DONE: State = {"iterations": np.zeros((), np.int64)}
_ITSELF = np.zeros(1, np.int64)
"""The place where a fleet keeps how far it has come, which is state as that of its clients is."""


@dataclass
class Live:
    """What a fleet is doing at this moment, for whoever watches; ``stage`` is what is being waited for."""

    iteration: int = 0
    stage: str = "starting"


class Fleet:
    """Everyone fetches, everyone learns, everyone sends: that is an iteration, and the fleet's only clock.

    In a study of interactions clients are browsers: they search, and send a ping of each search. In one of model
    updates each sends one ping an iteration, of what it learned from its examples by its line's ``training``.

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
        states_of: where clients keep what a training leaves with them, if it does; in memory if not given.

    Raises:
        InvalidSettings: a line asks for what simulated clients cannot do.

    Attributes:
        roster: the clients.
        live: what is going on.
        next_iteration: the number of the iteration that the next :meth:`run_iteration` will be: after those that were
            begun with the same ``states_of`` before.
    """

    def __init__(
        self,
        transport: Transport,
        study: PublicStudy,
        settings: FleetSettings,
        population_of: PopulationOf | None = None,
        *,
        sleep: Sleep = asyncio.sleep,
        states_of: StatesOf = in_memory,
    ) -> None:
        models = _models(study)
        self.study = study
        self.settings = settings
        self.live = Live()
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
        users = population_of or made_users(settings.seed)
        states, self._keeps_state = _states(study, models, settings.seed, states_of)
        self._progress = states_of(f"study {study.name}, seed {settings.seed}, the fleet itself", _NOTHING_DONE)
        self.next_iteration = int(self._progress.load(_ITSELF)["iterations"][0])
        self._attackers = self._hostile_ones(settings)
        self._round: SearchRound | LearningRound
        self._private = private_pings(study, settings.seed, states_of)
        others = (settings, states, self._attackers, self._private)
        if study.pings == FRECENCY_UPDATE.name or (self._private and all(map(_ranks_pages, study.lines))):
            self._round = SearchRound(study, self.roster, shelf, users, *others)
        else:
            self._round = LearningRound(study, self.roster, shelf, models, _sources(users, settings), *others)

    def _hostile_ones(self, settings: FleetSettings) -> Attackers | None:
        if settings.attack is None:
            return None
        return Attackers(settings.attack, self.study, self.roster, settings.seed, self.ranks_pages)

    @property
    def ranks_pages(self) -> bool:
        """Whether clients learn from searches over pages, and not from examples; of several lines, those of any."""
        return any(map(_ranks_pages, self.study.lines)) or not self.study.lines

    @property
    def is_private(self) -> bool:
        """Whether the study's lines are private."""
        return self._private is not None

    @property
    def keeps_state(self) -> bool:
        """Whether the training of any line leaves something with its clients."""
        return self._keeps_state

    @property
    def is_personal(self) -> bool:
        """Whether the clients of any arm keep something of a model for themselves."""
        return self._keeps_state and any(arm.personal for arm in self.study.arms)

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
        """Let the clients fetch, search or learn, and send, and return what happened.

        If cancelled, the pings that nobody has taken stay with the fleet, and the counts are right.
        """
        began, before = time.monotonic(), self._snapshot()
        hostile = self._attackers.pings if self._attackers else 0
        iteration = self.live.iteration = self.next_iteration
        self.next_iteration += 1
        # Before anybody trains: who is stopped in the middle goes on with the next, and nobody trains twice in one.
        self._progress.save(_ITSELF, {"iterations": np.array([self.next_iteration])})
        attendance = self.roster.attend(iteration, self.settings.behaviour)
        self.live.stage = "fetching models"
        if self._private is not None and self._private.needs_offers:
            await self._look_for_offers(self._private)
        await self._fetcher.fetch(attendance.fetching.tolist(), self.settings.fetch_within)
        self.live.stage = "learning"
        for letters, share in self._round.letters(attendance.present, iteration):
            # A client of a private line waits for a random time before it sends; an iteration is the only clock, so
            # what becomes of that is an order by lot.
            self._outbox.add(sorted(letters, key=lambda each: each.document_id) if self._private else letters)
            self.live.stage = "sending pings"
            await self._outbox.deliver(self.settings.send_within * share)
            self.live.stage = "learning"
        self.live.stage = "waiting"
        summary = self._summary(iteration, time.monotonic() - began, before, attendance, self._round.summaries())
        return replace(summary, hostile=self._attackers.pings - hostile) if self._attackers else summary

    async def _look_for_offers(self, private: PrivatePings) -> None:
        try:
            private.look_for_offers(await self._transport.fetch_study(self.study.name))
        except TransportError:  # they go on with what they have, as with models
            return

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
        return self.counts.copy(), self.fetch_counts.copy(), self.undelivered

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
            waits=dict(self._private.waits) if self._private else {},
        )


def _ranks_pages(line: PublicLine) -> bool:
    return is_ranking_model(line.spec.model)


def made_users(seed: int, settings: PopulationSettings | None = None) -> PopulationOf:
    """Return the synthetic users of a seed (thesis 7.3), for any ranking model."""
    chosen = settings or PopulationSettings()
    make: Callable[..., Population] = SyntheticPopulation
    return lambda model: make(model, chosen, seed)


def _models(study: PublicStudy) -> dict[str, Model[Any]]:
    try:
        return check_clients(study)
    except InvalidSettings as error:
        raise InvalidSettings(f"{error}; post recorded pings again with --replay") from error


def _states(
    study: PublicStudy, models: Mapping[str, Model[Any]], seed: int, states_of: StatesOf
) -> tuple[dict[str, ClientStates], bool]:
    """Return where the clients of each arm keep their state, and whether any do.

    Another seed, training or model has a state of its own; arms that follow a line and train alike have one together.
    """
    found: dict[str, ClientStates] = {}
    firsts: list[bool] = []
    lines = {line.name: line for line in study.lines}
    for arm in study.arms:
        # An arm without a line computes the loss of the first one's start, and trains nothing.
        line = lines[arm.line] if arm.line is not None else next(iter(study.lines), None)
        if line is None:
            continue
        found[arm.name], keeps = states_in(study.name, line, arm, models[line.name], seed, states_of)
        firsts.append(keeps)
    return found, any(firsts)


def states_in(
    study: str, line: PublicLine, arm: Arm, model: Model[Any], seed: int, states_of: StatesOf
) -> tuple[ClientStates, bool]:
    """Return where the clients of an arm that learn by a line keep their state, and whether they keep any."""
    training = training_of(line, arm)
    first = algorithm_for(training).init_state(bare(model))
    settings = f"{digest_of(training)}, model {digest_of(line.spec)}"
    return states_of(f"{owners_of(study, line.name, seed)}{settings}", first), bool(first)


def owners_of(study: str, line: str, seed: int) -> str:
    """Return what the names of those begin with whose state is that of a line's clients, with any training or model."""
    return f"study {study}, line {line}, seed {seed}, training "


def _sources(users: PopulationOf, settings: FleetSettings) -> SourceOf:
    """Return what the clients of any model learn from: users' searches if it ranks pages, else examples."""

    def source(spec: ModelSpec, model: Model[Any]) -> Source:
        if ranks_pages(bare(model)) and settings.examples.data is None:
            return searches_for(users(model_for(spec.model, spec.settings)))
        return examples_for(spec, bare(model), settings.examples, settings.seed)

    return source


async def join_study(
    transport: Transport,
    study: str,
    settings: FleetSettings,
    population_of: PopulationOf | None = None,
    *,
    sleep: Sleep = asyncio.sleep,
    states_of: StatesOf = in_memory,
) -> Fleet:
    """Fetch a study and return a fleet that takes part in it; the arguments are those of :class:`Fleet`.

    Raises:
        TransportError: the server cannot be reached, or has no such study; the transport is closed.
        InvalidSettings: the study asks for a model, a training or examples that clients do not have.
    """
    try:
        found = await transport.fetch_study(study)
        return Fleet(transport, found, settings, population_of, sleep=sleep, states_of=states_of)
    except BaseException:
        await transport.close()
        raise
