"""The members of a fleet: its settings, its hostile clients, and the data that its rounds share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.attacks import Attack, Known, Plot, hostile_among
from fedping.client_sim.attacks.plot import targeted
from fedping.client_sim.attacks.settings import Backdoor, LabelFlip, Reconstruction, TargetWeights
from fedping.client_sim.client import NOT_ENROLLED, Backoff
from fedping.client_sim.fleet.examples import ExampleSettings
from fedping.client_sim.fleet.exchange import VersionCache
from fedping.client_sim.fleet.interactions import Corruption, Gradient, KeystrokeSettings
from fedping.client_sim.fleet.private_pings import PrivatePings
from fedping.client_sim.fleet.roster import Behaviour, Roster
from fedping.client_sim.learning.batch import FloatArray, Floats
from fedping.client_sim.learning.states import ClientStates
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.ping import FRECENCY_UPDATE
from fedping.protocol.study import PublicStudy, Study


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """Settings of a fleet of simulated clients.

    Attributes:
        clients: number of clients, enrolled or not.
        seed: determines the clients' ids, arms, behaviour and searches.
        run: number that changes only the document ids. With the same seed, a fleet has the same clients with the same
            actions; with another ``run`` their pings are new documents, otherwise duplicates.
        at_once: maximum number of concurrent requests.
        fetch_within: seconds over which clients spread their fetches in an iteration; 0 is as fast as possible.
        send_within: seconds over which they spread their pings.
        fetch_together: whether one fetch a line and iteration stands for all clients, as if they shared a cache.
        gradient: method by which clients compute updates of interactions.
        attack: attack of hostile clients, from their first iteration on; None without an attack.
        examples: examples in a study of model updates, unless its model ranks pages.
        ticket_of: returns the ticket of a client id, in a study that asks for tickets.

    Raises:
        InvalidSettings: a number outside its range.
    """

    clients: int
    seed: int = 0
    run: int = 0
    at_once: int = 64
    fetch_within: float = 0.0
    send_within: float = 0.0
    fetch_together: bool = False
    gradient: Gradient = "finite_differences"
    examples: ExampleSettings = field(default_factory=ExampleSettings)
    behaviour: Behaviour = field(default_factory=Behaviour)
    backoff: Backoff = field(default_factory=Backoff)
    keystrokes: KeystrokeSettings = field(default_factory=KeystrokeSettings)
    attack: Attack | None = None
    ticket_of: Callable[[UUID], str] | None = None

    def __post_init__(self) -> None:
        least = {"clients": 1, "seed": 0, "run": 0, "at_once": 1, "fetch_within": 0, "send_within": 0}
        for name, bound in least.items():
            if not bound <= getattr(self, name) < float("inf"):
                raise InvalidSettings(f"{name} is {getattr(self, name):g}; a fleet needs at least {bound}, and an end")


def check_attack(attack: Attack, study: PublicStudy | Study, ranks_pages: bool) -> None:
    """Raise :class:`InvalidSettings` if the clients of a study can't do an attack, or it would change nothing.

    Args:
        attack: the attack.
        study: the study.
        ranks_pages: whether its clients train on searches over pages.
    """
    if isinstance(attack, Reconstruction):
        raise InvalidSettings(
            "a reconstruction is measured where the victim's update is known: in a laboratory experiment, with "
            'where = "http" through a real ingest; choose another attack here'
        )
    if not any(arm.submits for arm in study.arms):
        raise InvalidSettings(f"the attack changes nothing: no arm of study '{study.name}' submits updates")
    if attack.examples is not None and study.pings == FRECENCY_UPDATE.name:
        raise InvalidSettings("pings of interactions claim no 'examples'. Remove it from the attack")
    if ranks_pages and (isinstance(attack, Backdoor) or (isinstance(attack, LabelFlip) and attack.source is not None)):
        raise InvalidSettings(
            f"'{attack.__struct_config__.tag}' sets features or classes, which pages do not have; choose another attack"
        )
    if isinstance(attack, TargetWeights):
        for line in study.lines:
            targeted(attack, line.spec.names)


def last_known(names: Sequence[str], weights: FloatArray, before: FloatArray | None) -> Known:
    """Return the knowledge of hostile clients that hold a version, and possibly held the previous one."""
    return Known(weights, weights if before is None else before, names)


class Attackers:
    """The hostile clients of a fleet: some of those in arms that submit updates, or invented ones in addition.

    Invented ids are enrolled by their hash, like all others: an attacker tries ids until one falls into an arm that
    submits. Each of them searches or trains like a client.

    Raises:
        InvalidSettings: the attack is not possible in this study.
    """

    def __init__(self, attack: Attack, study: PublicStudy, roster: Roster, seed: int, ranks_pages: bool) -> None:
        check_attack(attack, study, ranks_pages)
        self._attack, self._seed = attack, seed
        self._names = {line.name: line.spec.names for line in study.lines}
        self._versions: dict[str, dict[int, FloatArray]] = {line.name: {} for line in study.lines}
        self.pings = 0
        submits = np.array([*(arm.submits for arm in roster.arms), False])[roster.arm]
        submitting = np.flatnonzero(submits & (roster.arm != NOT_ENROLLED))
        if not len(submitting):
            raise InvalidSettings("no client is in an arm that submits updates. Give more --clients")
        invented = roster.invent(attack.invented_for(len(submitting)))
        self.hostile = np.isin(np.arange(len(roster.ids)), hostile_among(attack, submitting, seed))
        self.hostile[invented] = True

    def plot(self, iteration: int) -> Plot | None:
        """Return the attack on an iteration, from 0; None if there is none."""
        if not self._attack.is_on(iteration + 1):
            return None
        return Plot(self._attack, self.hostile, self._seed, iteration)

    def knowledge(self, line: str, version: int, weights: FloatArray) -> Known:
        """Return the knowledge of hostile clients that hold a version of a line."""
        versions = self._versions[line]
        versions[version] = weights
        for old in sorted(versions)[:-3]:
            del versions[old]
        return last_known(self._names[line], weights, versions.get(version - 1))

    def claimed(self, hostile: NDArray[np.bool_], examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of examples that clients claim, shape (k,)."""
        claims = self._attack.examples
        return examples if claims is None else np.where(hostile, claims, examples)

    def colluding_update(
        self, plot: Plot, who: NDArray[np.int64], times: NDArray[np.int64], updates: Floats, known: Known
    ) -> Floats:
        """Return a group's updates as sent, and count the hostile pings."""
        self.pings += int(plot.are_hostile(who).sum())
        return plot.at_once(who, times, updates, known)


def corrupt_updates(plot: Plot | None, who: NDArray[np.int64]) -> Corruption | None:
    """Return the corruption of searches before training, None for no attack; ``who`` has each search's client."""
    if plot is None:
        return None
    return lambda data: plot.data(data, who, None, plot.are_hostile(who))


@dataclass(frozen=True, kw_only=True)
class Members:
    """The clients of a round's pings: a fleet's clients, or an institution's single client.

    Attributes:
        study: the study that they take part in.
        settings: settings of the fleet.
        roster: their ids, arms and versions.
        cache: the weights of these versions.
        states: storage for the state that a training keeps with the clients of an arm, by the arm's name.
        sent: storage for the state that the upload links of a line keep with its clients, by the line's name.
        attackers: the hostile ones among them, if any.
        private: makes the pings of private lines, if the study's lines are private.
    """

    study: PublicStudy
    settings: FleetSettings
    roster: Roster
    cache: VersionCache
    states: Mapping[str, ClientStates]
    sent: Mapping[str, ClientStates]
    attackers: Attackers | None = None
    private: PrivatePings | None = None
