"""The participants of a round, and their updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning import (
    ClientStates,
    Diverged,
    Kept,
    MemoryStates,
    algorithm_for,
    bare,
    updates_of_fleet,
)
from fedping.client_sim.learning.algorithms import algorithm_name
from fedping.client_sim.learning.batch import Clients, FloatArray, Floats, KeptBatches
from fedping.client_sim.learning.checking import wrong_participation
from fedping.client_sim.sampling import FollowsPast, OortSampler, Participation, Past, bias_of
from fedping.client_sim.sampling.oort import data_utilities
from fedping.client_sim.upload import first_state, projections, sent_updates
from fedping.experiments.laboratory.attacking import Attacker, Block, Raid
from fedping.experiments.laboratory.clock import Answers, clock_of
from fedping.experiments.laboratory.evaluation import BeforeMerging, evaluated_after
from fedping.experiments.laboratory.participants import Participants
from fedping.experiments.laboratory.preparing import Problem, check_fit, in_precision
from fedping.experiments.laboratory.rounds.inside import between
from fedping.experiments.laboratory.rounds.several import Models, in_blocks, losses_of
from fedping.experiments.laboratory.rounds.study import with_a_turn
from fedping.experiments.laboratory.rounds.updates import Updates, repetitions
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.draws import child_keys, uniforms
from fedping.protocol.update import Payloads
from fedping.protocol.upload import sending
from fedping.protocol.weights import LARGEST

if TYPE_CHECKING:
    from fedping.experiments.laboratory.rounds.compiled import CompiledTraining

_LATENESS = 1 << 32
"""Index of the child of a client's key in a round for its lateness; the children from 0 on are for its pings."""


_UPLOAD = _LATENESS + 1
"""Index of the child of a ping's key for the draws of its upload links."""


@dataclass(frozen=True)
class Turn:
    """The source of randomness and the pings of clients that learn from one version in simulated time.

    Attributes:
        round_: number of the round of their invitation.
        attempts: number of each client's earlier invitations in that round, shape (k,).
        repeats: as :attr:`Updates.repeats`.
        pings: as :attr:`Updates.pings`.
        began: the simulated time of each one's invitation in seconds, shape (k,); None without a clock.
    """

    round_: int
    attempts: NDArray[np.int64]
    repeats: NDArray[np.int64]
    pings: NDArray[np.int64]
    began: FloatArray | None = None


_LOST = "late updates are left out; set 'staleness' in [server] or [line.pipeline] to merge them"

_NEVER = (
    "rounds wait for all clients, because answers = {:,} in [clock] are more than the {:,} that are drawn; lower "
    "'answers', or draw more in [sampling]"
)


class Cohorts:
    """The clients' side of a run: maps a round's number and weights to the clients' payloads.

    A client's draws depend only on the seed, the client and the round, not on the other participants. ``threads`` is
    the number of blocks of clients processed in parallel; it affects nothing else. ``before`` receives the clients' own
    models in rounds that are followed by an evaluation. ``attacker`` replaces some clients' updates. ``states`` stores
    the clients' states from round to round, and ``sent`` their upload links' states; both are in memory if not given.
    """

    def __init__(
        self,
        setup: Setup,
        problem: Problem,
        threads: int = 1,
        before: BeforeMerging | None = None,
        attacker: Attacker | None = None,
        states: ClientStates | None = None,
        sent: ClientStates | None = None,
    ) -> None:
        check_fit(setup, problem.model)
        self._attacker = attacker
        self._setup, self._problem, self._threads, self._before = setup, problem, threads, before
        self._states = states or MemoryStates(algorithm_for(setup.training).init_state(bare(problem.model)))
        self._train = KeptBatches(in_precision(problem.train, problem.model))
        self._links = sending(problem.line)
        self._kept_by_links = sent or MemoryStates(first_state(self._links, problem.spec.m))
        self._participants = Participants(setup, problem)
        self._learners, self._sampler = self._participants.learners, self._participants.sampler
        self.clock = clock_of(setup, problem)
        """The run's simulated time; None without one."""
        self.participation = Participation(len(problem.train)) if isinstance(self._sampler, FollowsPast) else None
        """The sampling's memory of earlier rounds; None if it does not depend on them."""
        self._compiled: CompiledTraining | None = None
        if setup.engine == "jax" and between(setup):
            from fedping.experiments.laboratory.rounds.compiled import CompiledTraining

            self._compiled = CompiledTraining(setup, problem, self._states)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for readers: on biased sampling, lost late updates, answers that never come, and privacy."""
        bias = None if self._setup.gossip else bias_of(self._sampler, self._setup.pipeline.weighting)
        lost = self._setup.lateness and not self._setup.pipeline.staleness
        sampled, there = len(self._sampler.draw(0)), len(self._learners)
        odd = wrong_participation(self._setup.training, sampled / there, there) if there else ()
        compiled = self._compiled.notes if self._compiled else ()
        awaited = self._setup.clock.answers if self._setup.clock else None
        never = (_NEVER.format(awaited, sampled),) if awaited is not None and 0 < sampled < awaited else ()
        drawn = self._problem.responses
        private = (drawn.note(self._setup.most_rounds),) if drawn else ()
        return (*private, *((bias,) if bias else ()), *odd, *((_LOST,) if lost else ()), *never, *compiled)

    @property
    def most_training(self) -> int:
        """Maximum number of clients that train in a run, from the number drawn in its first round."""
        return min(len(self._learners), self._setup.most_rounds * len(self._sampler.draw(0)))

    def sent(self, round_: int, versions: Sequence[FloatArray]) -> Iterator[Updates]:
        """Yield the updates of a round, block by block.

        Args:
            round_: its number, from 0.
            versions: the weights that clients may hold, the newest first, shape (m,) each; or, without a server, each
                client's own, shape (clients, m).
        """
        if self.clock is None:
            clients, asked = self._drawn(round_, versions, self._learners)
            if self._setup.privacy is not None:
                clients = with_a_turn(self._problem, self._setup.privacy, round_, clients)
            blocks = self._as_trained(round_, clients, versions)
        else:
            answers, asked = self._answers(round_, versions)
            blocks = self._as_answered(round_, answers, versions)
        for number, block in enumerate(blocks):
            if self.participation is not None:
                utilities = self._utilities(round_, versions, block)
                self.participation.add(round_, block.clients, block.losses, block.seconds, utilities)
            yield replace(block, asked=asked) if asked and number == 0 else block

    def _answers(self, round_: int, versions: Sequence[FloatArray]) -> tuple[Answers, int]:
        """Return a round's answers in simulated time, and the number of others that fetched the newest weights."""
        assert self.clock is not None
        if self.clock.asynchronous:
            answers, asked = self.clock.buffer(round_), 0
        else:
            drawn, asked = self._drawn(round_, versions, self.clock.free(self._learners))
            answers = self.clock.round(round_, drawn)
        return answers, asked + answers.others

    def _as_answered(self, round_: int, answers: Answers, versions: Sequence[FloatArray]) -> Iterator[Updates]:
        """Yield the updates of answers, newer versions first."""
        repeats, pings = repetitions(answers.clients)
        seconds = dict(zip(zip(answers.clients.tolist(), repeats.tolist(), strict=True), answers.seconds, strict=True))
        for age, invited in sorted({*zip(answers.ages.tolist(), answers.rounds.tolist(), strict=True)}):
            some = np.flatnonzero((answers.ages == age) & (answers.rounds == invited))
            turn = Turn(invited, answers.attempts[some], repeats[some], pings[some], answers.began[some])
            for block in self._blocks_by(round_, answers.clients[some], versions[age], age, turn=turn):
                who = zip(block.clients.tolist(), block.repeats.tolist(), strict=True)
                yield replace(self._as_sent(block), seconds=np.array([seconds[each] for each in who]))

    def _as_trained(self, round_: int, clients: Clients, versions: Sequence[FloatArray]) -> Iterator[Updates]:
        """Yield the payloads of these clients in a round."""
        raid = self._attacker.in_round(round_, versions) if self._attacker else None
        if raid is None:
            yield from map(self._as_sent, self._blocks(round_, clients, versions))
            return
        clients, sender = raid.taking_part(clients), None
        for block in self._blocks(round_, clients, versions, raid):
            yield from map(self._as_sent, raid.spoil(block, versions[block.age]))
        if raid.sender is not None:
            [sender] = self._blocks_by(round_, raid.sender, versions[0], 0, raid, invented=True)
        yield from map(self._as_sent, raid.late(sender))

    def _drawn(self, round_: int, versions: Sequence[FloatArray], learners: Clients) -> tuple[Clients, int]:
        """Return the drawn ``learners``, and the number of others that fetched the newest weights to report a loss."""
        known, sampler = self.participation, self._participants.sampler_among(learners)
        if known is None or not isinstance(sampler, FollowsPast):
            return learners[sampler.draw(round_)], 0
        asked: list[Clients] = []

        def losses_of(some: Clients) -> FloatArray:
            asked.append(np.asarray(some, np.intp))
            return self._losses(round_, versions, learners[asked[-1]])

        past = Past(
            round=round_,
            seed=self._problem.seed,
            sizes=self._problem.train.sizes[learners],
            groups=self._participants.groups_of(learners),
            losses=known.losses[learners],
            times=known.times[learners],
            last=known.last[learners],
            losses_of=losses_of,
            now=self.clock.now if self.clock else np.nan,
            seconds=known.seconds[learners],
            utilities=known.utilities[learners],
            gains=known.gains,
        )
        drawn = sampler.draw_after(past)
        return learners[drawn], len(np.setdiff1d(np.concatenate(asked), drawn)) if asked else 0

    def _losses(self, round_: int, versions: Sequence[FloatArray], clients: Clients) -> FloatArray:
        """Return each client's loss on all its examples, shape (k,), at the weights that it would train."""
        losses = np.zeros(len(clients))
        chosen = versions.chosen(clients) if isinstance(versions, Models) else np.zeros(len(clients), np.intp)
        for number in np.unique(chosen).tolist():
            at, weights = np.flatnonzero(chosen == number), versions[number]
            losses[at] = losses_of(self._problem.model, weights, self._problem.train_in(round_, weights), clients[at])
        return losses

    def _utilities(self, round_: int, versions: Sequence[FloatArray], block: Updates) -> FloatArray | None:
        """Return the utility of each client's data at its fetched weights, shape (k,); None unless Oort samples."""
        if not isinstance(self._sampler, OortSampler):
            return None
        weights = versions[block.model if isinstance(versions, Models) else block.age]
        there = block.clients < len(self._problem.train)  # other clients are invented by an attack
        utilities = np.zeros(len(block.clients))
        of = partial(data_utilities, self._problem.model, weights)
        utilities[there] = in_blocks(of, self._problem.train_in(round_, weights), block.clients[there])
        return utilities

    def _blocks(
        self, round_: int, clients: Clients, versions: Sequence[FloatArray], raid: Raid | None = None
    ) -> Iterator[Block]:
        if isinstance(versions, Models):
            chosen = versions.chosen(clients)
            for number in np.unique(chosen).tolist():
                for block in self._blocks_by(round_, clients[chosen == number], versions[number], 0, raid):
                    yield replace(block, model=number)
            return
        ages = np.minimum(self._ages(round_, clients), len(versions) - 1)
        for age in np.unique(ages):
            yield from self._blocks_by(round_, clients[ages == age], versions[age], int(age), raid)

    def _ages(self, round_: int, clients: Clients) -> NDArray[np.intp]:
        """Return the age of each client's weights in versions."""
        if self._setup.lateness is None:
            return np.zeros(len(clients), np.intp)
        uniform = uniforms(child_keys(self._problem.keys(round_)[clients], _LATENESS), 1)[:, 0]
        bounds = np.cumsum(self._setup.lateness.shares)
        return np.minimum(np.searchsorted(bounds, uniform, side="right"), len(bounds) - 1)

    def _blocks_by(
        self,
        round_: int,
        clients: Clients,
        weights: FloatArray,
        age: int,
        raid: Raid | None = None,
        *,
        invented: bool = False,
        turn: Turn | None = None,
    ) -> Iterator[Block]:
        if turn is None:
            repeats, pings = repetitions(clients)
            turn = Turn(round_, repeats, repeats, pings)
        repeats, pings = turn.repeats, turn.pings
        problem = self._problem
        train = problem.train_in(turn.round_, weights)
        if train is problem.train:
            train = self._train
        if raid:
            train = raid.data(train, invented)
        training = self._setup.training
        keys = self._participants.keys(turn.round_, clients, turn.attempts)
        if self._compiled:
            found = self._compiled.updates(weights, clients, keys)
        else:
            found = updates_of_fleet(
                problem.model,
                training,
                weights if weights.ndim == 1 else weights[clients],
                train,
                clients,
                keys,
                threads=self._threads,
                version=max(round_ - age, 0),
                now=turn.began,
                kept=Kept(self._states, clients),
                projections=projections(self._links, keys, _UPLOAD),
            )
        for trained in found:
            at, updates, losses, _ = trained.sent()
            if not len(at):
                continue
            if self._before and not invented and evaluated_after(self._setup, round_ + 1):
                self._before.see(clients[at], weights + updates)
            whose = clients[at]
            block = Block(whose, repeats[at], pings[at], updates, losses, train.sizes[whose], keys[at], age)
            apart = np.unique(block.repeats).tolist() if self._links.keeps_state else []
            yield from (block.of(block.repeats == number) for number in apart) if len(apart) > 1 else [block]

    def _as_sent(self, block: Block) -> Updates:
        return Updates(
            clients=block.clients,
            repeats=block.repeats,
            pings=block.pings,
            updates=self._sent(block),
            losses=block.losses,
            examples=block.examples,
            age=block.age,
            model=block.model,
        )

    def _sent(self, block: Block) -> NDArray[np.float32] | Payloads:
        """Return the updates of a block, shape (k, m), as they are transferred."""
        updates = block.updates
        training = algorithm_name(self._setup.training)
        _refuse_what_cannot_travel(updates, training, block.clients)
        if not self._setup.upload:
            return updates.astype(np.float32, copy=False)
        kept = Kept(self._kept_by_links, block.clients) if self._links.keeps_state else None
        encoded = sent_updates(self._links, updates, child_keys(block.keys, _UPLOAD), kept, block.examples > 0)
        if isinstance(encoded, Payloads):
            return encoded
        _refuse_what_cannot_travel(encoded, training, block.clients)
        return encoded.astype(np.float32)


def _refuse_what_cannot_travel(updates: Floats, training: str, clients: Clients) -> None:
    # The sum of squares is quick to compute, but may be large even if all values are small.
    if np.vdot(updates, updates) <= LARGEST:
        return
    if updates.size and not max(-updates.min(), updates.max()) <= LARGEST:
        beyond = np.unique(clients[~(np.abs(updates).max(axis=1) <= LARGEST)])
        named = ", ".join(map(str, beyond[:_NAMED])) + (
            f" and {len(beyond) - _NAMED:,} more" if beyond[_NAMED:].size else ""
        )
        raise Diverged(
            f"training on the clients with '{training}' has diverged: an update is larger than 1e30 (client"
            f"{'' if len(beyond) == 1 else 's'} {named}); lower the rate"
        )


_NAMED = 3
"""Maximum number of clients that a sentence about diverging training names."""
