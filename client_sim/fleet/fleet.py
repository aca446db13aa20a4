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

from fedping.client_sim.fleet.examples import Source, examples_for, ranks_pages, searches_for
from fedping.client_sim.fleet.exchange import Connection, Fetcher, Outbox, Sleep, VersionCache
from fedping.client_sim.fleet.learning_round import LearningRound, SourceOf
from fedping.client_sim.fleet.members import Attackers, FleetSettings, Members
from fedping.client_sim.fleet.private_pings import PrivatePings, private_pings
from fedping.client_sim.fleet.roster import Attendance, Roster
from fedping.client_sim.fleet.search_round import PopulationOf, SearchRound
from fedping.client_sim.fleet.summary import (
    ArmSummary,
    Counts,
    FetchCounts,
    IterationSummary,
    fetch_summary,
    ping_summary,
)
from fedping.client_sim.learning.algorithm import State, bare
from fedping.client_sim.learning.algorithms import algorithm_for
from fedping.client_sim.learning.checking import check_clients
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.registry import is_ranking_model
from fedping.client_sim.learning.states import ClientStates, StatesOf, in_memory
from fedping.client_sim.models import model_for
from fedping.client_sim.population.settings import PopulationSettings
from fedping.client_sim.population.synthetic import Population, SyntheticPopulation
from fedping.client_sim.rehearsal.recovered import Recovered
from fedping.client_sim.transport import Transport, TransportError
from fedping.client_sim.upload import first_state
from fedping.protocol.digest import digest_of
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.links import in_words
from fedping.protocol.ping import FRECENCY_UPDATE, NO_VERSION
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, PublicLine, PublicStudy, training_of
from fedping.protocol.upload import sending

_NOTHING_DONE: State = {"iterations": np.zeros((), np.int64)}
_ITSELF = np.zeros(1, np.int64)
"""Row of the fleet's own progress among the states of its clients."""


@dataclass
class Live:
    """The present activity of a fleet, for display; ``stage`` names the step that the fleet waits for."""

    iteration: int = 0
    stage: str = "starting"


class Fleet:
    """A fleet, whose only clock is the iteration: all clients fetch, then all train, then all send.

    In a study of interactions clients are browsers: they search, and send a ping of each search. In a study of model
    updates each client sends one ping an iteration, with the update from its examples by its line's ``training``.

    All requests are made in the event loop that awaits :meth:`run_iteration`. To drive a fleet from synchronous code::

        from fedping.client_sim.http import HttpTransport

        with asyncio.Runner() as runner:
            fleet = runner.run(join_study(HttpTransport(address), "my-study", FleetSettings(clients=2000)))
            summary = runner.run(fleet.run_iteration())
            runner.run(fleet.close())

    Args:
        transport: the connection to the server.
        study: the study that the clients take part in.
        settings: the fleet.
        population_of: the users; synthetic ones of the default settings if None.
        sleep: waits.
        states_of: returns the storage of the state that a training keeps with clients; in memory by default.

    Raises:
        InvalidSettings: a line asks for something that simulated clients can't do.

    Attributes:
        roster: the clients.
        live: the present activity.
        next_iteration: number of the next iteration, after those that have begun with the same ``states_of``.
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
        cache, connection = (
            VersionCache(study),
            Connection(
                transport=transport,
                study=study.name,
                random=Random(settings.seed),
                at_once=settings.at_once,
                sleep=sleep,
            ),
        )
        self._fetcher = Fetcher(connection, self.roster, cache, together=settings.fetch_together)
        self._outbox = Outbox(connection, settings.backoff)
        users = population_of or made_users(settings.seed)
        states, trainings = _states(study, models, settings.seed, states_of)
        sent, links = sent_in(study, settings.seed, states_of)
        self._keeps_state = trainings or links
        self._progress = states_of(f"study {study.name}, seed {settings.seed}, the fleet itself", _NOTHING_DONE)
        self.next_iteration = int(self._progress.load(_ITSELF)["iterations"][0])
        self._attackers = self._attackers_of(settings)
        self._private = private_pings(study, settings.seed, states_of)
        members = Members(
            study=study,
            settings=settings,
            roster=self.roster,
            cache=cache,
            states=states,
            sent=sent,
            attackers=self._attackers,
            private=self._private,
        )
        self._round: SearchRound | LearningRound
        if study.pings == FRECENCY_UPDATE.name or (self._private and all(map(_ranks_pages, study.lines))):
            self._round = SearchRound(members, users)
        else:
            self._round = LearningRound(members, models, _sources(users, settings))

    def _attackers_of(self, settings: FleetSettings) -> Attackers | None:
        if settings.attack is None:
            return None
        return Attackers(settings.attack, self.study, self.roster, settings.seed, self.ranks_pages)

    @property
    def ranks_pages(self) -> bool:
        """Whether clients train on searches over pages, in any line, and not on examples."""
        return any(map(_ranks_pages, self.study.lines)) or not self.study.lines

    @property
    def is_private(self) -> bool:
        """Whether the study's lines are private."""
        return self._private is not None

    @property
    def keeps_state(self) -> bool:
        """Whether the training of any line keeps state with its clients."""
        return self._keeps_state

    @property
    def is_personal(self) -> bool:
        """Whether the clients of any arm have local weights."""
        return self._keeps_state and any(arm.personal for arm in self.study.arms)

    @property
    def counts(self) -> Counts:
        """Counts of all pings so far, current while they are sent."""
        return self._outbox.counts

    @property
    def fetch_counts(self) -> FetchCounts:
        """Counts of all fetches so far."""
        return self._fetcher.counts

    @property
    def undelivered(self) -> int:
        """Number of pings without a final answer; the next iteration sends them again, with the same document ids."""
        return self._outbox.undelivered

    async def run_iteration(self) -> IterationSummary:
        """Have all clients fetch, search or train, and send; return a summary.

        If cancelled, pings without a final answer stay with the fleet, and the counts are right.
        """
        began, before = time.monotonic(), self._snapshot()
        hostile = self._attackers.pings if self._attackers else 0
        iteration = self.live.iteration = self.next_iteration
        self.next_iteration += 1
        # Before the training: a fleet that is stopped in the middle continues with the next iteration, and no client
        # trains twice in one.
        self._progress.save(_ITSELF, {"iterations": np.array([self.next_iteration])})
        attendance = self.roster.attend(iteration, self.settings.behaviour)
        self.live.stage = "fetching models"
        if self._private is not None and self._private.needs_offers:
            await self._fetch_offers(self._private)
        await self._fetcher.fetch(attendance.fetching.tolist(), self.settings.fetch_within)
        self.live.stage = "learning"
        for pings, share in self._round.pings(attendance.present, iteration):
            # A client of a private line waits for a random time before it sends. An iteration is the only clock, so the
            # order is random instead.
            self._outbox.add(sorted(pings, key=lambda each: each.document_id) if self._private else pings)
            self.live.stage = "sending pings"
            await self._outbox.deliver(self.settings.send_within * share)
            self.live.stage = "learning"
        self.live.stage = "waiting"
        summary = self._summary(iteration, time.monotonic() - began, before, attendance, self._round.summaries())
        return replace(summary, hostile=self._attackers.pings - hostile) if self._attackers else summary

    async def _fetch_offers(self, private: PrivatePings) -> None:
        try:
            private.use_offers(await self._transport.fetch_study(self.study.name))
        except TransportError:  # clients keep their offers, as they keep their models
            return

    async def deliver_what_is_left(self) -> None:
        """Post the remaining pings once more."""
        await self._outbox.deliver()

    async def close(self) -> None:
        """Release the transport."""
        await self._transport.close()

    def versions(self) -> dict[str, int]:
        """Return the newest version that any client holds, by line; -1 for none."""
        newest = {line.name: NO_VERSION for line in self.study.lines}
        for position, arm in enumerate(self.study.arms):
            if arm.line is not None:
                versions = self.roster.version[self.roster.arm == position]
                newest[arm.line] = max(newest[arm.line], int(versions.max(initial=NO_VERSION)))
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
            recovered=self._recovered(iteration),
        )

    def _recovered(self, iteration: int) -> dict[str, Recovered]:
        """Return the match of clients' newest version with users' preferences, for each line that ranks items."""
        if isinstance(self._round, SearchRound):
            return {}
        found = {line: self._round.recovered(line, version, iteration) for line, version in self.versions().items()}
        return {line: each for line, each in found.items() if each is not None}


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
    """Return the stores for clients' state by arm, and whether any training keeps state.

    Each seed, training and model has its own state; arms of a line with the same training share one.
    """
    states: dict[str, ClientStates] = {}
    firsts: list[bool] = []
    lines = {line.name: line for line in study.lines}
    for arm in study.arms:
        # An arm without a line computes the loss of the first line's start weights, and doesn't train.
        line = lines[arm.line] if arm.line is not None else next(iter(study.lines), None)
        if line is None:
            continue
        states[arm.name], keeps = states_in(study.name, line, arm, models[line.name], seed, states_of)
        firsts.append(keeps)
    return states, any(firsts)


def states_in(
    study: str, line: PublicLine, arm: Arm, model: Model[Any], seed: int, states_of: StatesOf
) -> tuple[ClientStates, bool]:
    """Return the store for the state of an arm's clients that train a line, and whether they keep any state."""
    training = training_of(line, arm)
    first = algorithm_for(training).init_state(bare(model))
    settings = f"{digest_of(training)}, model {digest_of(line.spec)}"
    return states_of(f"{owners_of(study, line.name, seed)}{settings}", first), bool(first)


def sent_in(study: PublicStudy, seed: int, states_of: StatesOf) -> tuple[dict[str, ClientStates], bool]:
    """Return the stores for the upload links' state by line, and whether any link has state."""
    firsts = {line.name: first_state(sending(line), line.spec.m) for line in study.lines}
    links = {line.name: in_words(line.upload) for line in study.lines}
    owners = {name: f"study {study.name}, line {name}, seed {seed}, upload {links[name]}" for name in firsts}
    kept = {name: states_of(owners[name], first) for name, first in firsts.items() if first}
    return kept, bool(kept)


def owners_of(study: str, line: str, seed: int) -> str:
    """Return the prefix that all owners of a line's client states share, whatever the training or model."""
    return f"study {study}, line {line}, seed {seed}, training "


def _sources(users: PopulationOf, settings: FleetSettings) -> SourceOf:
    """Return a function that returns a model's examples: users' searches if the model ranks pages, else others."""

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
    """Fetch a study and return a fleet that takes part in it; see :class:`Fleet` for the arguments.

    Raises:
        TransportError: the server cannot be reached, or has no such study; the transport is closed.
        InvalidSettings: the study asks for a model, a training or examples that clients don't have.
    """
    try:
        public = await transport.fetch_study(study)
        return Fleet(transport, public, settings, population_of, sleep=sleep, states_of=states_of)
    except BaseException:
        await transport.close()
        raise
