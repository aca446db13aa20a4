"""One iteration of searches: the clients that search, their models, and their pings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.attacks import Plot
from fedping.client_sim.client import OutgoingPing
from fedping.client_sim.fleet.interactions import (
    Browsers,
    Conditions,
    Corruption,
    Interactions,
    as_sent,
    by_arm_and_version,
    interact,
    keystrokes,
)
from fedping.client_sim.fleet.members import Members, corrupt_updates
from fedping.client_sim.fleet.pings import interaction_pings, with_tickets
from fedping.client_sim.fleet.private_pings import PrivatePings
from fedping.client_sim.fleet.roster import sent_twice, uuids
from fedping.client_sim.fleet.summary import ArmSummary, arm_summary
from fedping.client_sim.learning.states import Kept
from fedping.client_sim.models import PageTable, RankingModel, Searches, model_for
from fedping.client_sim.population.synthetic import Population
from fedping.client_sim.upload import projections, refuse_state
from fedping.protocol.draws import Keys, child_keys
from fedping.protocol.ping import NO_VERSION
from fedping.protocol.study import Arm
from fedping.protocol.update import Payloads
from fedping.protocol.upload import sending

PopulationOf: TypeAlias = Callable[[RankingModel], Population]
"""Returns the users of the clients that rank with a model."""

_KEYSTROKES, _DOCUMENT, _TWICE, _TRAINING, _UPLOAD = range(5)


@dataclass(frozen=True)
class _Group:
    """The clients of one arm that rank or train with one version: positions in the fleet."""

    arm: Arm
    version: int
    clients: NDArray[np.int64]


class SearchRound:
    """Makes the pings of clients that search.

    Args:
        members: the clients.
        population_of: returns the users of the clients that rank with a model.

    Raises:
        InvalidSettings: clients don't have an upload link of a line.
    """

    def __init__(self, members: Members, population_of: PopulationOf) -> None:
        self._attackers, self._private = members.attackers, members.private
        self._browsers = Browsers(members.study, members.settings.gradient)
        self._states, self._roster = members.states, members.roster
        self._cache, self._settings = members.cache, members.settings
        self._upload = {line.name: sending(line) for line in members.study.lines}
        refuse_state(self._upload.values())
        self._summaries: tuple[ArmSummary, ...] = ()
        self._population_of = population_of
        self._populations: dict[str, Population] = {}

    def pings(self, clients: NDArray[np.int64], iteration: int) -> Iterator[tuple[list[OutgoingPing], float]]:
        """Yield the pings of these clients in an iteration, all at once."""
        pings, self._summaries = self.search(clients, iteration)
        yield pings, 1.0

    def summaries(self) -> tuple[ArmSummary, ...]:
        """Return the summary of every arm in the last iteration."""
        return self._summaries

    def search(self, clients: NDArray[np.int64], iteration: int) -> tuple[list[OutgoingPing], tuple[ArmSummary, ...]]:
        """Return the pings of these clients' searches in an iteration, and a summary of each arm."""
        pings: list[OutgoingPing] = []
        all_keys = self._roster.keys(iteration)
        by_arm: dict[str, list[tuple[_Group, Interactions, NDArray[np.int64]]]] = {}
        for ranker, groups in self._groups(clients).items():
            members = np.sort(np.concatenate([group.clients for group in groups]))
            sample = self._population(ranker).sample(members, iteration)
            for group in groups:
                which = np.flatnonzero(np.isin(members[sample.client], group.clients))
                who = members[sample.client[which]]
                keys = child_keys(all_keys[who], sample.number[which])
                plot = self._attackers.plot(iteration) if self._attackers and group.arm.submits else None
                corrupt = corrupt_updates(plot, who)
                interactions = self._interactions(group, who, keys, *sample.of_searches(which), corrupt)
                if plot:
                    interactions = self._attacked(plot, group, interactions, who, sample.number[which])
                if self._private is not None:
                    contributed = self._contributed(self._private, group.arm, interactions, who, keys, plot)
                    interactions, who, keys = contributed
                elif group.arm.line is not None:
                    links = self._upload[group.arm.line]
                    interactions = as_sent(interactions, links, child_keys(keys, _UPLOAD))
                pings += self._outgoing_pings(group, interactions, who, keys)
                by_arm.setdefault(group.arm.name, []).append((group, interactions, who))
        return pings, tuple(self._summary(arm, by_arm.get(arm.name, [])) for arm in self._roster.arms)

    def _contributed(
        self,
        private: PrivatePings,
        arm: Arm,
        interactions: Interactions,
        who: NDArray[np.int64],
        keys: Keys,
        plot: Plot | None,
    ) -> tuple[Interactions, NDArray[np.int64], Keys]:
        """Return the interactions that clients contribute to a private line, with their vectors."""
        assert arm.line is not None
        rows = private.choose(arm.line, who, self._roster.version[who], self._roster.roots[who], interactions.rank >= 0)
        some, who, keys = interactions.at(rows), who[rows], keys[rows]
        updates = None if some.update is None else np.asarray(some.update)
        if updates is not None and some.sends is not None:
            updates = np.where(
                some.sends[:, None], updates, 0
            )  # a vector of zeros, which doesn't reveal that a client has no update
        tops = (some.rank == 0).astype(np.float64)
        drawing, forging = child_keys(keys, _UPLOAD), plot.forging(who) if plot else None
        vectors = private.vectors(arm.line, updates, some.loss, tops, drawing, forging)
        payloads = private.payloads(arm, self._roster.version[who], self._documents(keys), vectors, drawing)
        return replace(some, update=payloads), who, keys

    def _documents(self, keys: Keys) -> list[UUID]:
        return uuids(child_keys(child_keys(keys, _DOCUMENT), self._settings.run))

    def _groups(self, clients: NDArray[np.int64]) -> Mapping[str, list[_Group]]:
        """Return the clients by ranking model, then by arm and version."""
        groups: dict[str, list[_Group]] = {}
        arms = self._roster.arm[clients]
        matters = np.array([arm.applies or arm.submits for arm in self._roster.arms])[arms]
        used = np.where(matters, self._roster.version[clients], NO_VERSION)
        for position, version, members in by_arm_and_version(arms, used):
            arm = self._roster.arms[position]
            groups.setdefault(self._browsers.spec(arm).model, []).append(_Group(arm, version, clients[members]))
        return groups

    def _attacked(
        self, plot: Plot, group: _Group, interactions: Interactions, who: NDArray[np.int64], times: NDArray[np.int64]
    ) -> Interactions:
        """Return a group's interactions after hostile clients, which know the group's updates, replaced their own."""
        line = group.arm.line
        if self._attackers is None or line is None or not isinstance(interactions.update, np.ndarray):
            return interactions
        knowledge = self._attackers.knowledge(line, group.version, self._cache.weights(line, group.version))
        update = self._attackers.colluding_update(plot, who, times, interactions.update, knowledge)
        return replace(interactions, update=update)

    def _interactions(
        self,
        group: _Group,
        who: NDArray[np.int64],
        keys: Keys,
        pages: PageTable,
        searches: Searches,
        corrupt: Corruption | None,
    ) -> Interactions:
        line = group.arm.line
        weights = None if line is None else self._cache.weights(line, group.version)
        kept = None if line is None else Kept(self._states[group.arm.name], who)
        projected = None if line is None else projections(self._upload[line], keys, _UPLOAD)
        ranking = self._browsers.ranking(group.arm, weights, group.version)
        return interact(ranking, pages, searches, child_keys(keys, _TRAINING), Conditions(kept, corrupt, projected))

    def _outgoing_pings(
        self, group: _Group, interactions: Interactions, who: NDArray[np.int64], keys: Keys
    ) -> list[OutgoingPing]:
        hands = keystrokes(child_keys(keys, _KEYSTROKES), interactions.rank, self._settings.keystrokes)
        ids = self._documents(keys)
        twice = sent_twice(self._settings.behaviour, child_keys(keys, _TWICE)).tolist()
        if self._private is not None:
            assert isinstance(interactions.update, Payloads)
            bodies = self._private.bodies(
                group.arm, self._roster.version[who], self._roster.roots[who], interactions.update
            )
            return [OutgoingPing(*each) for each in zip(ids, (body for _, body in bodies), twice, strict=True)]
        client_ids = [self._roster.ids[client] for client in who.tolist()]
        plain = interaction_pings(client_ids, group.arm.name, self._roster.version[who].tolist(), interactions, hands)
        stamped = with_tickets(plain, client_ids, self._settings.ticket_of)
        return [OutgoingPing(*each) for each in zip(ids, stamped, twice, strict=True)]

    def _summary(self, arm: Arm, groups: list[tuple[_Group, Interactions, NDArray[np.int64]]]) -> ArmSummary:
        empty = np.zeros(0)
        return arm_summary(
            arm.name,
            sum(len(group.clients) for group, _, _ in groups),
            np.concatenate([empty, *(interactions.loss for _, interactions, _ in groups)]),
            np.concatenate([empty, *(interactions.rank for _, interactions, _ in groups)]),
            [version for group, _, _ in groups for version in self._roster.version[group.clients].tolist()],
            sum(sent.update_bytes for _, sent, _ in groups),
        )

    def _population(self, ranker: str) -> Population:
        if ranker not in self._populations:
            self._populations[ranker] = self._population_of(model_for(ranker))
        return self._populations[ranker]
