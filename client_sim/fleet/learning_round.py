"""One iteration of training with any model: the pings of clients from their examples, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.attacks import Known, Plot
from fedping.client_sim.client import OutgoingPing, sends_update
from fedping.client_sim.fleet.examples import OwnVisits, Source
from fedping.client_sim.fleet.interactions import by_arm_and_version
from fedping.client_sim.fleet.list_pings import ListPings
from fedping.client_sim.fleet.members import Attackers, Members
from fedping.client_sim.fleet.pings import encoded_pings, with_tickets
from fedping.client_sim.fleet.private_pings import PrivatePings
from fedping.client_sim.fleet.roster import sent_twice, uuids
from fedping.client_sim.fleet.summary import ArmSummary, version_counts
from fedping.client_sim.learning.algorithm import NO_STATE, State, bare
from fedping.client_sim.learning.batch import ClientData, FloatArray
from fedping.client_sim.learning.mini_batches import divided, share_of
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.states import ClientStates, Kept
from fedping.client_sim.learning.updates import personal_losses, updates_of_fleet
from fedping.client_sim.rehearsal.outcomes import check_laws
from fedping.client_sim.rehearsal.recovered import Judge, Recovered
from fedping.client_sim.rehearsal.users import VisitData, Visits
from fedping.client_sim.upload import projections, refuse_state, sent_updates
from fedping.protocol.draws import Keys, child_keys, numbers_within
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landed_table import ModelPings
from fedping.protocol.outcomes import Outcome
from fedping.protocol.ping import LIST_UPDATE, NO_VERSION
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Arm, PublicLine, training_of
from fedping.protocol.update import Payloads, size_of_updates
from fedping.protocol.upload import sending

SourceOf: TypeAlias = Callable[[ModelSpec, Model[Any]], Source]
"""Returns the examples of a model's clients."""

MOST_BYTES = 64 * 2**20
"""Approximate bytes of pings that are written before they are sent."""

CLIENTS_AT_A_TIME = 256
"""Number of clients in a block that compute only a loss."""

HELD_OUT = 0.2
"""Share of its examples that a client of a personal arm holds out, to report the loss on them."""

VISITORS_AT_A_TIME = 4096
"""Number of clients whose lists are in memory at a time, in a study of lists."""

_DOCUMENT, _TWICE, _TRAINING, _UPLOAD, _OUTCOMES = range(5)

_SECRET = 1 << 35
"""Number of the key for values that a client never sends; document ids of unlinked outcomes derive from it."""

_DIVISION = 1 << 34
"""Number of the key that divides a client's examples; a population draws by smaller numbers."""


@dataclass
class _Count:
    """Counts of the pings of an arm in an iteration."""

    clients: int = 0
    pings: int = 0
    learned: int = 0
    examples: int = 0
    loss: float = 0.0
    update_bytes: int = 0
    versions: list[int] = field(default_factory=list)

    def add(self, losses: FloatArray, examples: NDArray[np.int64]) -> None:
        self.pings += len(losses)
        self.learned += int((examples > 0).sum())
        self.examples += int(examples.sum())
        self.loss += float((losses * examples).sum())

    def summary(self, arm: str) -> ArmSummary:
        """Return the summary, with the mean loss weighted by examples, as in rounds (thesis eq. 2)."""
        return ArmSummary(
            arm=arm,
            clients=self.clients,
            pings=self.pings,
            selected=self.learned,
            loss=self.loss / self.examples if self.examples else None,
            rank=None,
            top_share=None,
            versions=version_counts(self.versions),
            update_bytes=self.update_bytes,
        )


class _Group(NamedTuple):
    """The clients of an arm that hold one version.

    Attributes:
        arm: their arm.
        line: the line that they train; of an arm without a line, the study's first.
        version: the version that they hold.
        members: their positions in the fleet, shape (k,).
        keys: their keys in the iteration, shape (k,).
        weights: the version's weights; the start of an arm without a line.
        applied: the weights that rank for them.
        plot: the attack on the iteration, if any.
        visits: each client's list, for a study of lists, in which a client counts once per list.
    """

    arm: Arm
    line: PublicLine
    version: int
    members: NDArray[np.int64]
    keys: Keys
    weights: FloatArray
    applied: FloatArray
    plot: Plot | None
    visits: Visits | None = None


class _Block(NamedTuple):
    """Some clients of a group: positions in it, their updates if they send any, their losses and examples."""

    at: NDArray[np.intp]
    updates: NDArray[np.floating[Any]] | None
    losses: FloatArray
    examples: NDArray[np.int64]

    def rows(self, which: NDArray[np.bool_]) -> _Block:
        """Return some of the clients."""
        updates = None if self.updates is None else self.updates[which]
        return _Block(self.at[which], updates, self.losses[which], self.examples[which])


class LearningRound:
    """Makes the pings of clients that train on examples.

    The clients of an arm without a line compute their loss with the first line's start weights, as in a product
    without training.

    Args:
        members: the clients.
        models: the model of each line, by its name.
        source_of: returns the examples of a model's clients.

    Raises:
        InvalidSettings: clients lack an upload link of a line, or have no examples for its model.
    """

    def __init__(self, members: Members, models: Mapping[str, Model[Any]], source_of: SourceOf) -> None:
        study = members.study
        if not study.lines:
            raise InvalidSettings(
                f"study '{study.name}' has no model line, so its clients have no loss to compute. Post recorded pings "
                "instead, with --replay."
            )
        self._study, self._roster, self._cache = study.name, members.roster, members.cache
        self._settings, self._states, self._kept = members.settings, members.states, members.sent
        self._attackers, self._private = members.attackers, members.private
        self._lines = {line.name: line for line in study.lines}
        self._models = models
        self._upload = {line.name: sending(line) for line in study.lines}
        self._sources = {line.name: source_of(line.spec, models[line.name]) for line in study.lines}
        self._counts: dict[str, _Count] = {}
        self._judges: dict[str, Judge] = {}
        self._of_lists = study.pings == LIST_UPDATE.name
        if self._of_lists or self._attackers:
            refuse_state(self._upload.values())
        self._rehearsal = members.settings.examples.rehearsal
        self._outcomes: tuple[Outcome, ...] = study.outcomes or ()
        if self._of_lists and not all(isinstance(source, OwnVisits) for source in self._sources.values()):
            raise InvalidSettings(
                f"study '{study.name}' takes {study.pings} pings, one of each list that a user saw, which no table of "
                "examples has; take part in a study with other pings"
            )
        if self._rehearsal is not None:
            check_laws(study.name, self._outcomes, self._rehearsal.outcomes, self._of_lists)

    def pings(self, clients: NDArray[np.int64], iteration: int) -> Iterator[tuple[list[OutgoingPing], float]]:
        """Yield the pings of these clients in an iteration, about :data:`MOST_BYTES` at a time.

        Each list comes with its share of all clients, which sets the time over which its clients spread their pings.
        """
        self._counts = {arm.name: _Count() for arm in self._roster.arms}
        written: list[OutgoingPing] = []
        size = 0
        for ping in self._all(clients, iteration):
            written.append(ping)
            size += len(ping.body)
            if size >= MOST_BYTES:
                yield written, len(written) / len(clients)
                written, size = [], 0
        yield written, len(written) / max(1, len(clients))

    def summaries(self) -> tuple[ArmSummary, ...]:
        """Return the summary of every arm in the last iteration."""
        return tuple(count.summary(name) for name, count in self._counts.items())

    def recovered(self, line: str, version: int, iteration: int) -> Recovered | None:
        """Return the match of a version with users' preferences; None for a line that doesn't rank items."""
        source, start = self._sources[line], self._cache.weights(line, NO_VERSION)
        if not isinstance(source, OwnVisits):
            return None
        if line not in self._judges:
            self._judges[line] = Judge(source.users, start, source.seed)
        return self._judges[line].recovered(version, self._cache.weights(line, version), iteration)

    def _all(self, clients: NDArray[np.int64], iteration: int) -> Iterator[OutgoingPing]:
        groups = by_arm_and_version(self._roster.arm[clients], self._roster.version[clients])
        for position, version, members in groups:
            arm = self._roster.arms[position]
            some = self._selected(arm, version, clients[members])
            if len(some):
                yield from self._group(arm, version, some, iteration)

    def _selected(self, arm: Arm, version: int, members: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the clients of an arm that send a ping of a version."""
        participation = self._lines[arm.line].participation if arm.line is not None and arm.submits else 1.0
        if participation >= 1:
            return members
        ids = (self._roster.ids[client] for client in members.tolist())
        return members[[sends_update(self._study, arm, participation, version, each) for each in ids]]

    def _group(self, arm: Arm, version: int, members: NDArray[np.int64], iteration: int) -> Iterator[OutgoingPing]:
        line = self._lines[arm.line] if arm.line is not None else next(iter(self._lines.values()))
        keys = self._roster.keys(iteration)[members]
        plot = self._attackers.plot(iteration) if self._attackers and arm.submits else None
        start = self._cache.weights(line.name, NO_VERSION)
        weights = start if arm.line is None else self._cache.weights(line.name, version)
        applied = weights if arm.applies else start
        count = self._counts[arm.name]
        count.clients += len(members)
        count.versions += [version] * len(members)
        group = _Group(arm, line, version, members, keys, weights, applied, plot)
        if self._of_lists:
            for low in range(0, len(members), VISITORS_AT_A_TIME):
                at = slice(low, low + VISITORS_AT_A_TIME)
                yield from self._pings_of(*self._lists(group._replace(members=members[at], keys=keys[at]), iteration))
            return
        yield from self._pings_of(group, self._sources[line.name].of(members, iteration, applied))

    def _lists(self, group: _Group, iteration: int) -> tuple[_Group, ClientData[Any]]:
        """Return a group and its data with each list as the only example of a client."""
        data = self._sources[group.line.name].of(group.members, iteration, group.applied)
        assert isinstance(data, VisitData)
        owner = np.repeat(np.arange(len(data)), data.sizes)
        visits = data.visits(np.arange(len(data)))
        keys = child_keys(group.keys[owner], numbers_within(data.sizes))
        each = visits.data(np.ones(len(visits), np.int64))
        return group._replace(members=group.members[owner], keys=keys, visits=visits), each

    def _pings_of(self, group: _Group, data: ClientData[Any]) -> Iterator[OutgoingPing]:
        arm, line, version, members, plot = group.arm, group.line, group.version, group.members, group.plot
        if plot:
            classes = getattr(bare(self._models[line.name]), "classes", None)
            data = plot.data(data, members, classes, plot.are_hostile(members))
        if arm.personal and not self._sources[line.name].always_new:
            data = _HoldingOut(data, child_keys(self._roster.roots[members], _DIVISION))
        blocks = self._blocks(group, data)
        if plot and self._attackers:
            knowledge = self._attackers.knowledge(line.name, version, self._cache.weights(line.name, version))
            blocks = _attacked(self._attackers, plot, knowledge, members, blocks)
        if self._private is not None:
            for block in blocks:
                yield from self._private_pings(self._private, group, block)
            return
        for block in blocks:
            yield from self._plain_pings(group, block) if group.visits is None else self._list_pings(group, block)

    def _plain_pings(self, group: _Group, block: _Block) -> Iterator[OutgoingPing]:
        """Yield the pings of some clients of a line that is not private."""
        arm, keys, count = group.arm, group.keys[block.at], self._counts[group.arm.name]
        count.add(block.losses, block.examples)
        documents = uuids(child_keys(child_keys(keys, _DOCUMENT), self._settings.run))
        twice = sent_twice(self._settings.behaviour, child_keys(keys, _TWICE)).tolist()
        client_ids = [self._roster.ids[client] for client in group.members[block.at].tolist()]
        pings = ModelPings(
            document_ids=_bytes(documents),
            client_ids=_bytes(client_ids),
            arm=arm.name,
            version=group.version,
            updates=None if block.updates is None else self._sent(group, block, keys),
            losses=block.losses,
            examples=block.examples,
        )
        if pings.updates is not None:
            count.update_bytes += int(size_of_updates(pings.updates).sum())
        bodies = with_tickets((body for _, body in encoded_pings(pings)), client_ids, self._settings.ticket_of)
        for document, body, repeated in zip(documents, bodies, twice, strict=True):
            yield OutgoingPing(document, body, repeated)

    def _list_pings(self, group: _Group, block: _Block) -> Iterator[OutgoingPing]:
        """Yield the pings of some lists, and of the later outcomes of their choices."""
        assert group.visits is not None
        arm, keys, count = group.arm, group.keys[block.at], self._counts[group.arm.name]
        visits = group.visits.rows(block.at)
        is_chosen = visits.has_choice
        losses = np.where(is_chosen, block.losses, 0.0)
        count.add(losses, is_chosen.astype(np.int64))
        updates = None if block.updates is None else np.where(is_chosen[:, None], block.updates, 0.0)
        owners = group.members[block.at]
        pings = ListPings(
            arm=arm.name,
            version=group.version,
            client_ids=[self._roster.ids[client] for client in owners.tolist()],
            secrets=uuids(child_keys(self._roster.roots[owners], _SECRET)),
            documents=uuids(child_keys(child_keys(keys, _DOCUMENT), self._settings.run)),
            visits=visits,
            losses=losses,
            updates=None if updates is None else self._sent(group, block._replace(updates=updates), keys),
        )
        if pings.updates is not None:
            count.update_bytes += int(size_of_updates(pings.updates).sum())
        laws = {} if self._rehearsal is None else self._rehearsal.outcomes
        outcomes = pings.outcomes(self._outcomes, laws, child_keys(keys, _OUTCOMES))
        ticket_of = self._settings.ticket_of
        bodies = with_tickets(pings.lists(outcomes), pings.client_ids, ticket_of)
        twice = sent_twice(self._settings.behaviour, child_keys(keys, _TWICE)).tolist()
        for document, body, repeated in zip(pings.documents, bodies, twice, strict=True):
            yield OutgoingPing(document, body, repeated)
        for row, document, body in pings.later(outcomes):
            (stamped,) = with_tickets([body], [pings.client_ids[row]], ticket_of)
            yield OutgoingPing(document, stamped, later=True)

    def _private_pings(self, private: PrivatePings, group: _Group, block: _Block) -> Iterator[OutgoingPing]:
        """Yield the contributions of some clients to a private line; examples count as choices that aren't on top."""
        arm, members = group.arm, group.members
        assert arm.line is not None
        everyone, versions = members[block.at], np.full(len(block.at), group.version)
        roots = self._roster.roots[everyone]
        chosen = private.choose(arm.line, everyone, versions, roots, block.examples > 0)
        block = block._replace(
            at=block.at[chosen],
            updates=None if block.updates is None else block.updates[chosen],
            losses=block.losses[chosen],
            examples=block.examples[chosen],
        )
        count, clients, keys = self._counts[arm.name], members[block.at], group.keys[block.at]
        count.add(block.losses, block.examples)
        documents = private.randomness.documents(child_keys(child_keys(keys, _DOCUMENT), self._settings.run))
        versions, no_tops = versions[chosen], np.zeros(len(clients))
        forging = group.plot.forging(clients) if group.plot else None
        drawing = child_keys(keys, _UPLOAD)
        vectors = private.vectors(arm.line, block.updates, block.losses, no_tops, drawing, forging)
        payloads = private.payloads(arm, versions, documents, vectors, drawing)
        count.update_bytes += int(size_of_updates(payloads).sum())
        twice = sent_twice(self._settings.behaviour, child_keys(keys, _TWICE)).tolist()
        bodies = private.bodies(arm, versions, self._roster.roots[clients], payloads)
        for document, (_, body), repeated in zip(documents, bodies, twice, strict=True):
            yield OutgoingPing(document, body, repeated)

    def _sent(self, group: _Group, block: _Block, keys: Keys) -> NDArray[np.float32] | Payloads:
        assert block.updates is not None
        line = group.line.name
        kept = Kept(self._kept[line], group.members[block.at]) if line in self._kept else None
        sent = sent_updates(self._upload[line], block.updates, child_keys(keys, _UPLOAD), kept, block.examples > 0)
        return sent if isinstance(sent, Payloads) else sent.astype(np.float32)

    def _blocks(self, group: _Group, data: ClientData[Any]) -> Iterator[_Block]:
        """Yield a group's results by client: the loss of the applied version, the update of the held version."""
        arm, line, version, keys = group.arm, group.line, group.version, group.keys
        model, everyone = self._models[line.name], np.arange(len(data))
        weights, applied = group.weights, group.applied
        if not arm.submits and not arm.personal:
            for low in range(0, len(data), CLIENTS_AT_A_TIME):
                at = everyone[low : low + CLIENTS_AT_A_TIME]
                yield _Block(at, None, model.losses(applied, data.batch(at)), data.sizes[at])
            return
        training = training_of(line, arm)
        states, members = _PreviousStates(self._states[arm.name]), group.members
        trained = updates_of_fleet(
            model,
            training,
            weights,
            data,
            everyone,
            child_keys(keys, _TRAINING),
            version=version,
            kept=Kept(states, members),
            projections=projections(self._upload[line.name], keys, _UPLOAD),
            losses=arm.applies and not arm.personal,
        )
        for block in trained:
            if arm.personal:
                state, learned = states.of(members[block.at]), data.batch(block.at)
                held_out = data.held_out(block.at) if isinstance(data, _HoldingOut) else None
                losses = personal_losses(bare(model), training, weights, learned, state, version, held_out=held_out)
            else:
                losses = block.losses if arm.applies else model.losses(applied, data.batch(block.at))
            sends = np.full(len(block.at), arm.submits) if block.sends is None else block.sends & arm.submits
            pings = _Block(block.at, block.updates, losses, data.sizes[block.at])
            if sends.any():
                yield pings.rows(sends)
            if not sends.all():
                yield pings.rows(~sends)._replace(updates=None)


@dataclass(frozen=True)
class _HoldingOut:
    """The examples of clients that hold out some of them, the same ones in every iteration: a :class:`ClientData`.

    Attributes:
        data: all their examples.
        keys: a key of each client that is the same in every iteration, shape (clients,).
    """

    data: ClientData[Any]
    keys: Keys

    def __len__(self) -> int:
        return len(self.data)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """See :attr:`ClientData.sizes`."""
        return self.data.sizes - share_of(self.data.sizes, HELD_OUT)

    def batch(self, clients: NDArray[np.intp]) -> Any:
        """See :meth:`ClientData.batch`."""
        return self._divided(clients)[1]

    def held_out(self, clients: NDArray[np.intp]) -> Any:
        """Return the held-out examples of these clients; none of a client with a single example."""
        return self._divided(clients)[0]

    def _divided(self, clients: NDArray[np.intp]) -> tuple[Any, Any]:
        return divided(self.data.batch(clients), self.keys[clients], HELD_OUT)


class _PreviousStates:
    """States of clients that train block by block; keeps the states of the last block before its training."""

    def __init__(self, states: ClientStates) -> None:
        self._states = states
        self._clients: NDArray[np.integer[Any]] = np.zeros(0, np.int64)
        self._loaded: State = NO_STATE

    def load(self, clients: NDArray[np.integer[Any]]) -> State:
        """See :meth:`ClientStates.load`."""
        self._clients, self._loaded = clients, self._states.load(clients)
        return {name: values.copy() for name, values in self._loaded.items()}

    def save(self, clients: NDArray[np.integer[Any]], state: State) -> None:
        """See :meth:`ClientStates.save`."""
        self._states.save(clients, state)

    def of(self, clients: NDArray[np.integer[Any]]) -> State:
        """Return the states that clients of the last block had before it."""
        order = np.argsort(self._clients)
        places = order[np.searchsorted(self._clients[order], clients)] if self._loaded else order
        return {name: values[places] for name, values in self._loaded.items()}


def _attacked(
    attackers: Attackers, plot: Plot, knowledge: Known, members: NDArray[np.int64], blocks: Iterator[_Block]
) -> Iterator[_Block]:
    """Yield a group's blocks as sent; hostile clients that need the others' updates send last."""
    waiting: list[_Block] = []
    for block in blocks:
        if block.updates is None:
            yield block
            continue
        clients = members[block.at]
        hostile = plot.are_hostile(clients)
        attackers.pings += int(hostile.sum())
        updates = plot.spoil(clients, np.zeros(len(clients), np.int64), block.updates, block.examples, knowledge)
        attacked = block._replace(updates=updates, examples=attackers.claimed(hostile, block.examples))
        if not plot.waits:
            yield attacked
            continue
        if hostile.any():
            waiting.append(attacked.rows(hostile)._replace(updates=None))
        if not hostile.all():
            yield attacked.rows(~hostile)
    knowledge = replace(knowledge, hostile=sum(len(block.at) for block in waiting))
    for block in waiting:
        own = np.zeros((len(block.at), len(knowledge.weights)))
        yield block._replace(updates=plot.late(members[block.at], own, knowledge))


def _bytes(ids: list[UUID]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(one.bytes for one in ids), np.uint8).reshape(-1, 16)
