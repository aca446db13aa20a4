"""The hostile clients of a fleet: who they are, and what they know of each line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.attacks import Attack, Known, Plot, hostile_among
from fedping.client_sim.attacks.settings import Backdoor, LabelFlip, Reconstruction, TargetWeights
from fedping.client_sim.attacks.updates import targeted
from fedping.client_sim.fleet.interactions import Lies
from fedping.client_sim.fleet.roster import NOT_ENROLLED, Roster
from fedping.client_sim.learning.batch import FloatArray, Floats
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.ping import FRECENCY_UPDATE
from fedping.protocol.study import PublicStudy, Study


def check_attack(attack: Attack, study: PublicStudy | Study, ranks_pages: bool) -> None:
    """Refuse an attack that clients of a study cannot do, or that would change nothing.

    Args:
        attack: what hostile clients are to do.
        study: what they take part in.
        ranks_pages: whether its clients learn from searches over pages.

    Raises:
        InvalidSettings: the sentence says why.
    """
    if isinstance(attack, Reconstruction):
        raise InvalidSettings(
            "a reconstruction is measured where the victim's update is known: in a laboratory experiment, with "
            'where = "http" through a real ingest; choose another attack here'
        )
    if not any(arm.submits for arm in study.arms):
        raise InvalidSettings(f"the attack changes nothing: no arm of study '{study.name}' submits updates")
    if attack.examples is not None and study.pings == FRECENCY_UPDATE.name:
        raise InvalidSettings("pings of interactions claim no 'examples'; leave it out of the attack")
    if ranks_pages and (isinstance(attack, Backdoor) or (isinstance(attack, LabelFlip) and attack.source is not None)):
        raise InvalidSettings(
            f"'{attack.__struct_config__.tag}' sets features or classes, which pages do not have; choose another attack"
        )
    if isinstance(attack, TargetWeights):
        for line in study.lines:
            targeted(attack, line.spec.names)


def last_known(names: Sequence[str], held: FloatArray, before: FloatArray | None) -> Known:
    """Return what hostile clients know who hold a version and may have held the one before it."""
    return Known(held, held if before is None else before, names)


class Attackers:
    """The hostile clients of a fleet: some of those in arms that submit updates, or invented ones beside all clients.

    Invented ids are enrolled by their hash as all others: whoever invents them tries until one falls into an arm that
    submits. Each searches or learns as a client of its own does.

    Raises:
        InvalidSettings: the attack cannot be done in this study.
    """

    def __init__(self, attack: Attack, study: PublicStudy, roster: Roster, seed: int, ranks_pages: bool) -> None:
        check_attack(attack, study, ranks_pages)
        self._attack, self._seed = attack, seed
        self._names = {line.name: line.spec.names for line in study.lines}
        self._held: dict[str, dict[int, FloatArray]] = {line.name: {} for line in study.lines}
        self.pings = 0
        submits = np.array([*(arm.submits for arm in roster.arms), False])[roster.arm]
        submitting = np.flatnonzero(submits & (roster.arm != NOT_ENROLLED))
        if not len(submitting):
            raise InvalidSettings("no client is in an arm that submits updates; give more --clients")
        invented = roster.invent(attack.invented_for(len(submitting)))
        self.hostile = np.isin(np.arange(len(roster.ids)), hostile_among(attack, submitting, seed))
        self.hostile[invented] = True

    def plot(self, iteration: int) -> Plot | None:
        """Return what goes on in an iteration, from 0; None if the attack is not on."""
        if not self._attack.is_on(iteration + 1):
            return None
        return Plot(self._attack, self.hostile, self._seed, iteration)

    def knows(self, line: str, version: int, weights: FloatArray) -> Known:
        """Return what those know who hold a version of a line."""
        held = self._held[line]
        held[version] = weights
        for old in sorted(held)[:-3]:
            del held[old]
        return last_known(self._names[line], weights, held.get(version - 1))

    def claimed(self, hostile: NDArray[np.bool_], examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many examples clients say that they have, shape (k,)."""
        claims = self._attack.examples
        return examples if claims is None else np.where(hostile, claims, examples)

    def at_once(
        self, plot: Plot, who: NDArray[np.int64], times: NDArray[np.int64], updates: Floats, known: Known
    ) -> Floats:
        """Return the updates of a group as they are sent, and count the pings that are hostile."""
        self.pings += int(plot.are_hostile(who).sum())
        return plot.at_once(who, times, updates, known)


def corrupt_updates(plot: Plot | None, who: NDArray[np.int64]) -> Lies | None:
    """Return what becomes of the searches of these clients, one a search, shape (S,), before they learn from them."""
    if plot is None:
        return None
    return lambda data: plot.data(data, who, None, plot.are_hostile(who))
