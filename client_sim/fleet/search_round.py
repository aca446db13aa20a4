"""One iteration of searches: which clients search, by which model, and the pings that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.attacks import Plot
from fedping.client_sim.fleet.attackers import Attackers, corrupt_updates
from fedping.client_sim.fleet.fetching import Shelf
from fedping.client_sim.fleet.interactions import (
    Browsers,
    Interactions,
    Lies,
    as_sent,
    by_arm_and_version,
    interact,
    keystrokes,
)
from fedping.client_sim.fleet.outbox import Letter
from fedping.client_sim.fleet.pings import encoded_pings, with_tickets
from fedping.client_sim.fleet.private_pings import PrivatePings
from fedping.client_sim.fleet.roster import Roster, sent_twice, uuids
from fedping.client_sim.fleet.settings import FleetSettings
from fedping.client_sim.fleet.summary import ArmSummary, arm_summary
from fedping.client_sim.learning.states import ClientStates, Kept
from fedping.client_sim.models import PageTable, RankingModel, Searches, model_for
from fedping.client_sim.population.sample import Population
from fedping.client_sim.upload import projections
from fedping.protocol.draws import Keys, child_keys
from fedping.protocol.ping import NO_VERSION
from fedping.protocol.study import Arm, PublicStudy
from fedping.protocol.update import Payloads
from fedping.protocol.upload import sending

PopulationOf: TypeAlias = Callable[[RankingModel], Population]
"""Returns the users of the clients that rank with a model."""

_KEYSTROKES, _DOCUMENT, _TWICE, _TRAINING, _UPLOAD = range(5)


@dataclass(frozen=True)
class _Group:
    """The clients of one arm for which one version matters, to rank or to learn with: positions of the fleet."""

    arm: Arm
    version: int
    clients: NDArray[np.int64]


class SearchRound:
    """Lets clients search. See :class:`fedping.client_sim.fleet.fleet.Fleet` for the arguments.

    Raises:
        InvalidSettings: clients do not have an upload link of a line.
    """

    def __init__(
        self,
        study: PublicStudy,
        roster: Roster,
        shelf: Shelf,
        population_of: PopulationOf,
        settings: FleetSettings,
        states: Mapping[str, ClientStates],
        attackers: Attackers | None = None,
        private: PrivatePings | None = None,
    ) -> None:
        self._attackers, self._private = attackers, private
        self._browsers = Browsers(study, settings.gradient)
        self._states = states
        self._upload = {line.name: sending(line) for line in study.lines}
        self._summaries: tuple[ArmSummary, ...] = ()
        self._roster = roster
        self._shelf = shelf
        self._settings = settings
        self._population_of = population_of
        self._populations: dict[str, Population] = {}

    def letters(self, clients: NDArray[np.int64], iteration: int) -> Iterator[tuple[list[Letter], float]]:
        """Yield the pings of these clients in an iteration, all at once; then :meth:`summaries` tells of them."""
        letters, self._summaries = self.search(clients, iteration)
        yield letters, 1.0

    def summaries(self) -> tuple[ArmSummary, ...]:
        """Return what every arm sent in the last iteration."""
        return self._summaries

    def search(self, clients: NDArray[np.int64], iteration: int) -> tuple[list[Letter], tuple[ArmSummary, ...]]:
        """Return the pings of these clients' searches in an iteration, and a summary of each arm."""
        letters: list[Letter] = []
        everyones = self._roster.keys(iteration)
        seen: dict[str, list[tuple[_Group, Interactions, NDArray[np.int64]]]] = {}
        for ranker, groups in self._groups(clients).items():
            members = np.sort(np.concatenate([group.clients for group in groups]))
            sample = self._population(ranker).sample(members, iteration)
            for group in groups:
                which = np.flatnonzero(np.isin(members[sample.client], group.clients))
                who = members[sample.client[which]]
                keys = child_keys(everyones[who], sample.number[which])
                plot = self._attackers.plot(iteration) if self._attackers and group.arm.submits else None
                lies = corrupt_updates(plot, who)
                interactions = self._interactions(group, who, keys, *sample.of_searches(which), lies)
                if plot:
                    interactions = self._attacked(plot, group, interactions, who, sample.number[which])
                if self._private is not None:
                    contributed = self._contributed(self._private, group.arm, interactions, who, keys, plot)
                    interactions, who, keys = contributed
                elif group.arm.line is not None:
                    links = self._upload[group.arm.line]
                    interactions = as_sent(interactions, links, child_keys(keys, _UPLOAD))
                letters += self._letters(group, interactions, who, keys)
                seen.setdefault(group.arm.name, []).append((group, interactions, who))
        return letters, tuple(self._summary(arm, seen.get(arm.name, [])) for arm in self._roster.arms)

    def _contributed(
        self,
        private: PrivatePings,
        arm: Arm,
        seen: Interactions,
        who: NDArray[np.int64],
        keys: Keys,
        plot: Plot | None,
    ) -> tuple[Interactions, NDArray[np.int64], Keys]:
        """Return the interactions that clients contribute to a private line, with the vectors that they send."""
        assert arm.line is not None
        rows = private.choose(arm.line, who, self._roster.version[who], self._roster.roots[who], seen.rank >= 0)
        some, who, keys = seen.at(rows), who[rows], keys[rows]
        updates = None if some.update is None else np.asarray(some.update)
        if updates is not None and some.sends is not None:
            updates = np.where(some.sends[:, None], updates, 0)  # a vector of zeros: who sends none is not told
        tops = (some.rank == 0).astype(np.float64)
        drawing, forging = child_keys(keys, _UPLOAD), plot.forging(who) if plot else None
        vectors = private.vectors(arm.line, updates, some.loss, tops, drawing, forging)
        sent = private.payloads(arm, self._roster.version[who], self._documents(keys), vectors, drawing)
        return replace(some, update=sent), who, keys

    def _documents(self, keys: Keys) -> list[UUID]:
        return uuids(child_keys(child_keys(keys, _DOCUMENT), self._settings.run))

    def _groups(self, clients: NDArray[np.int64]) -> Mapping[str, list[_Group]]:
        """Return the clients by the ranking model that they evaluate, then by arm and by the version that they use."""
        groups: dict[str, list[_Group]] = {}
        arms = self._roster.arm[clients]
        matters = np.array([arm.applies or arm.submits for arm in self._roster.arms])[arms]
        used = np.where(matters, self._roster.version[clients], NO_VERSION)
        for position, version, members in by_arm_and_version(arms, used):
            arm = self._roster.arms[position]
            groups.setdefault(self._browsers.spec(arm).model, []).append(_Group(arm, version, clients[members]))
        return groups

    def _attacked(
        self, plot: Plot, group: _Group, seen: Interactions, who: NDArray[np.int64], times: NDArray[np.int64]
    ) -> Interactions:
        """Return a group's interactions with the updates that hostile clients send; they see those of the group."""
        line = group.arm.line
        if self._attackers is None or line is None or not isinstance(seen.update, np.ndarray):
            return seen
        known = self._attackers.knows(line, group.version, self._shelf.weights(line, group.version))
        return replace(seen, update=self._attackers.at_once(plot, who, times, seen.update, known))

    def _interactions(
        self,
        group: _Group,
        who: NDArray[np.int64],
        keys: Keys,
        pages: PageTable,
        searches: Searches,
        lies: Lies | None,
    ) -> Interactions:
        line = group.arm.line
        held = None if line is None else self._shelf.weights(line, group.version)
        kept = None if line is None else Kept(self._states[group.arm.name], who)
        within = None if line is None else projections(self._upload[line], keys, _UPLOAD)
        ranking = self._browsers.ranking(group.arm, held, group.version)
        return interact(ranking, pages, searches, child_keys(keys, _TRAINING), kept, lies, within)

    def _letters(self, group: _Group, seen: Interactions, who: NDArray[np.int64], keys: Keys) -> list[Letter]:
        hands = keystrokes(child_keys(keys, _KEYSTROKES), seen.rank, self._settings.keystrokes)
        ids = self._documents(keys)
        twice = sent_twice(self._settings.behaviour, child_keys(keys, _TWICE)).tolist()
        if self._private is not None:
            assert isinstance(seen.update, Payloads)
            made = self._private.bodies(group.arm, self._roster.version[who], self._roster.roots[who], seen.update)
            return [Letter(*each) for each in zip(ids, (body for _, body in made), twice, strict=True)]
        client_ids = [self._roster.ids[client] for client in who.tolist()]
        bodies = encoded_pings(client_ids, group.arm.name, self._roster.version[who].tolist(), seen, hands)
        stamped = with_tickets(bodies, client_ids, self._settings.ticket_of)
        return [Letter(*each) for each in zip(ids, stamped, twice, strict=True)]

    def _summary(self, arm: Arm, seen: list[tuple[_Group, Interactions, NDArray[np.int64]]]) -> ArmSummary:
        empty = np.zeros(0)
        return arm_summary(
            arm.name,
            sum(len(group.clients) for group, _, _ in seen),
            np.concatenate([empty, *(interactions.loss for _, interactions, _ in seen)]),
            np.concatenate([empty, *(interactions.rank for _, interactions, _ in seen)]),
            [version for group, _, _ in seen for version in self._roster.version[group.clients].tolist()],
            sum(sent.update_bytes for _, sent, _ in seen),
        )

    def _population(self, ranker: str) -> Population:
        if ranker not in self._populations:
            self._populations[ranker] = self._population_of(model_for(ranker))
        return self._populations[ranker]
