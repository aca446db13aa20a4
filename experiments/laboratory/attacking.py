"""An attack on a run: the hostile clients, their pings round by round, and the attack's success."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.attacks import Known, Plot, hostile_among, in_drawn_order
from fedping.client_sim.attacks.plot import Fooled, fooled_by_flip, fooled_by_trigger, of_examples, targeted
from fedping.client_sim.attacks.settings import Attack, Backdoor, LabelFlip, Reconstruction, TargetWeights
from fedping.client_sim.learning import algorithm_for, bare
from fedping.client_sim.learning.batch import ClientData, Clients, FloatArray, Floats
from fedping.experiments.laboratory.evaluation import blocks
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.resuming import Arrays
from fedping.experiments.laboratory.settings import Setup
from fedping.experiments.laboratory.tallies import Classification, Clustering
from fedping.experiments.laboratory.users import NewEachRound
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.upload import sending
from fedping.protocol.weights import LARGEST

INVENTED_AT_A_TIME = 1024


@dataclass(frozen=True)
class Block:
    """The results of k clients, before they are sent; see :class:`laboratory.rounds.updates.Updates`.

    Attributes:
        keys: a random key of each ping, shape (k,).
    """

    clients: Clients
    repeats: NDArray[np.int64]
    pings: NDArray[np.int64]
    updates: Floats
    losses: FloatArray
    examples: NDArray[np.int64]
    keys: NDArray[np.uint64]
    age: int
    model: int = 0

    def of(self, rows: NDArray[np.bool_]) -> Block:
        """Return the block with only these rows."""
        return self if rows.all() else self._at(np.flatnonzero(rows))

    def repeated(self, count: int) -> Block:
        """Return a block of ``count`` copies of the first row."""
        return self._at(np.zeros(count, np.intp))

    def _at(self, rows: NDArray[np.intp]) -> Block:
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})


_COLUMNS = ("clients", "repeats", "pings", "updates", "losses", "examples", "keys")


class Attacker:
    """An attack on a run.

    Some of the clients that train and have examples are hostile. Invented ids are numbered after all clients, and send
    what the sender (:attr:`Raid.sender`) would have sent.

    Raises:
        InvalidSettings: the attack does not fit the model or the data.
    """

    def __init__(self, attack: Attack, setup: Setup, problem: Problem) -> None:
        self._attack, self._problem = attack, problem
        everybody = np.arange(len(problem.train))
        # Synthetic users have new searches in every round, so their number in the first round doesn't matter.
        able = everybody if isinstance(problem.train, NewEachRound) else everybody[problem.train.sizes > 0]
        able = np.setdiff1d(able, problem.newcomers)
        self._hostile = np.isin(everybody, hostile_among(attack, able, problem.seed))
        self._first = in_drawn_order(able, problem.seed)[:1]
        self.ids = invented_and_real(problem, attack)
        self._names = problem.spec.names
        self._classes = problem.tally.classes if isinstance(problem.tally, Classification) else None
        self._before: FloatArray | None = None
        self._last: _Round | None = None
        self._check(setup)

    def in_round(self, round_: int, versions: Sequence[FloatArray]) -> Raid | None:
        """Return the attack of a round, or None while the attack is off."""
        before, self._before = self._before, versions[0]
        self._last = None
        if not self._attack.is_on(round_ + 1):
            return None
        plot = Plot(self._attack, self._hostile, self._problem.seed, round_)
        known = Known(versions[0], versions[0] if before is None else before, self._names)
        self._last = _Round(versions[0])
        run = _Attacked(self._attack, self._first, len(self._problem.train), self._classes)
        return Raid(run, plot, known, self._last)

    def snapshot(self) -> Arrays:
        """Return the version of the last round, if there was one, shape (0 or 1, m)."""
        return {"before": np.array([] if self._before is None else [self._before])}

    def restore(self, saved: Arrays) -> None:
        """Continue from the state that :meth:`snapshot` returned."""
        self._before = saved["before"][0] if len(saved["before"]) else None

    def measured(self, weights: FloatArray) -> dict[str, float]:
        """Return the attack's own metrics at the newest version's ``weights``, by name."""
        figures: dict[str, float] = {}
        if self._last is not None and self._last.pings:
            figures["hostile_share"] = self._last.hostile / self._last.pings
        match self._attack:
            case TargetWeights(weights=wanted):
                at = targeted(self._attack, self._names)
                figures["target_distance"] = float(np.abs(weights[at] - np.array(list(wanted.values()))).mean())
            case Backdoor() | LabelFlip(source=int()):
                figures |= self._fooled(self._attack, weights)
            case Reconstruction() if self._last is not None and self._last.victim is not None:
                figures |= reconstructed(self._last.victim, weights - self._last.weights)
        return figures

    def _fooled(self, attack: Backdoor | LabelFlip, weights: FloatArray) -> dict[str, float]:
        test, model = self._problem.test, self._problem.model
        tries = [Fooled(0, 0)]
        for clients in blocks(test.sizes):
            batch = test.batch(clients)
            if isinstance(attack, Backdoor):
                tries.append(fooled_by_trigger(attack, model, weights, batch))
            else:
                tries.append(fooled_by_flip(attack, model, weights, batch))
        fooled, of = np.sum(tries, axis=0)
        name = "backdoor_success" if isinstance(attack, Backdoor) else "flip_success"
        return {name: float(fooled / of)} if of else {}

    def _check(self, setup: Setup) -> None:
        if isinstance(self._attack, TargetWeights):
            targeted(self._attack, self._names)
        if of_examples(self._attack) and isinstance(self._problem.tally, Clustering):
            raise InvalidSettings("the data have no labels that clusters are learned from; choose an attack on updates")
        if isinstance(self._attack, Backdoor):
            if self._classes is None and hasattr(self._problem.test, "target"):
                raise InvalidSettings("a backdoor has the model answer a class, and the target is a number")
            if self._classes is not None and self._attack.target >= self._classes:
                raise InvalidSettings(
                    f"the backdoor's target is class {self._attack.target}, and there are classes 0 to "
                    f"{self._classes - 1}; correct it"
                )
        if self._attack.invented_for(1) and algorithm_for(setup.training).init_state(bare(self._problem.model)):
            raise InvalidSettings("this training keeps state with its clients, which invented ids have none of")
        if sending(self._problem.line).keeps_state:
            raise InvalidSettings(
                "[attack]: an upload link, such as 'error-feedback', keeps something with its clients, and hostile "
                "clients have no place for it. Remove one of them"
            )


def invented_and_real(problem: Problem, attack: Attack | None) -> NDArray[np.uint8]:
    """Return the ids of all clients, followed by the ids that an attack invents, shape (clients + invented, 16)."""
    clients = len(problem.train)
    return problem.first_ids(clients + (attack.invented_for(clients) if attack else 0))


class _Attacked(NamedTuple):
    """A run under attack: the first client that may be hostile, shape (1,), and the numbers of clients and classes."""

    attack: Attack
    first: Clients
    clients: int
    classes: int | None


@dataclass
class _Round:
    """One round: the newest version, the numbers of pings and hostile pings, and the update of the victim, if any."""

    weights: FloatArray
    pings: int = 0
    hostile: int = 0
    victim: FloatArray | None = None


class Raid:
    """The attack of one round, made by :meth:`Attacker.in_round`."""

    def __init__(
        self,
        run: _Attacked,
        plot: Plot,
        known: Known,
        seen: _Round,
    ) -> None:
        self._attack, self._first, self._clients, self._classes = run
        self._plot, self._known, self._seen = plot, known, seen
        self._waiting: list[Block] = []

    def taking_part(self, clients: Clients) -> Clients:
        """Return the participants among the drawn clients: all of them, or only a victim."""
        return self._first if isinstance(self._attack, Reconstruction) else clients

    @property
    def sender(self) -> Clients | None:
        """The client whose update the invented ids repeat, shape (1,); None if the attack invents no ids."""
        return None if self._attack.invented_for(self._clients) == 0 else self._first

    def data(self, train: ClientData[Any], invented: bool) -> ClientData[Any]:
        """Return the clients' training data under the attack; with ``invented``, with every client hostile."""
        everybody = np.arange(len(train))
        hostile = np.ones(len(train), np.bool_) if invented else self._plot.are_hostile(everybody)
        return self._plot.data(train, everybody, self._classes, hostile)

    def spoil(self, block: Block, weights: FloatArray) -> Iterator[Block]:
        """Yield clients' payloads, with attackers' updates replaced, except those of attackers that wait."""
        hostile = self._plot.are_hostile(block.clients)
        self._see(block, hostile)
        known = replace(self._known, weights=weights)
        updates = self._plot.spoil(block.clients, block.repeats, block.updates, block.examples, known)
        spoiled = replace(block, updates=updates, examples=np.where(hostile, self._claimed(block), block.examples))
        if not self._plot.waits:
            yield spoiled
            return
        if hostile.any():
            late = spoiled.of(hostile)
            self._waiting.append(replace(late, updates=np.empty((len(late.clients), 0))))
        if not hostile.all():
            yield spoiled.of(~hostile)

    def late(self, sender: Block | None) -> Iterator[Block]:
        """Yield the payloads that are sent after all clients' updates.

        Args:
            sender: the sender's results, if ids are invented.
        """
        invented = 0 if sender is None else self._attack.invented_for(self._seen.pings - self._seen.hostile)
        known = replace(self._known, hostile=sum(len(each.clients) for each in self._waiting) + invented)
        m = len(known.weights)
        for block in self._waiting:
            own = np.zeros((len(block.clients), m))
            yield replace(block, updates=self._plot.late(block.clients, own, known))
        for low in range(0, invented, INVENTED_AT_A_TIME):
            assert sender is not None
            yield self._invented(sender, np.arange(low, min(low + INVENTED_AT_A_TIME, invented)), known)

    def _invented(self, sender: Block, numbers: NDArray[np.intp], known: Known) -> Block:
        clients = self._clients + numbers
        pings = sender.repeated(len(numbers))
        pings = replace(pings, clients=clients, keys=pings.keys + numbers.astype(np.uint64))
        self._see(pings, np.ones(len(numbers), np.bool_))
        examples = self._claimed(pings)
        if self._plot.waits:
            return replace(pings, updates=self._plot.late(clients, pings.updates, known), examples=examples)
        updates = self._plot.spoil(clients, pings.repeats, pings.updates, pings.examples, known)
        return replace(pings, updates=updates, examples=examples)

    def _claimed(self, block: Block) -> NDArray[np.int64]:
        """Return the number of examples that each client claims if it is hostile, usually at least one."""
        if self._attack.examples is not None:
            return np.full(len(block.clients), self._attack.examples, np.int64)
        return block.examples if of_examples(self._attack) else np.maximum(block.examples, 1)

    def _see(self, block: Block, hostile: NDArray[np.bool_]) -> None:
        self._seen.pings += int(((block.examples > 0) | hostile).sum())
        self._seen.hostile += int(hostile.sum())
        if isinstance(self._attack, Reconstruction) and not hostile.any():
            self._seen.victim = np.clip(block.updates[0].astype(np.float64), -LARGEST, LARGEST)


def reconstructed(victim: FloatArray, step: FloatArray) -> dict[str, float]:
    """Return metrics of the closeness of a model's step, shape (m,), to the direction of a victim's update.

    The error is |c step - update| / |update| with the best c. It is 1 if the update or the step is zero, since nothing
    is revealed then.
    """
    lengths = float(np.linalg.norm(victim)), float(np.linalg.norm(step))
    if not all(lengths):
        return {"reconstruction_error": 1.0, "reconstruction_cosine": 0.0}
    mine, its = victim / lengths[0], step / lengths[1]
    cosine = float(mine @ its)
    return {
        "reconstruction_error": float(np.linalg.norm(mine - cosine * its)),
        "reconstruction_cosine": cosine,
    }
