"""Who is hostile, and one round of an attack: honest updates pass as they are, the others are spoilt.

The same in a laboratory, in a fleet and in a simulated study. Everything is drawn from the seed: a round of an attack
that is made again is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.attacks.examples import Spoilt, of_examples
from fedping.client_sim.attacks.settings import Attack, Backdoor, OfExamples
from fedping.client_sim.attacks.updates import Honest, Known, colludes, hostile_updates
from fedping.client_sim.data.seeds import key
from fedping.client_sim.learning.batch import ClientData, Floats
from fedping.protocol.draws import Keys, child_keys, uniforms

_WHO, _ROUNDS, _EXAMPLES = range(3)


def in_drawn_order(clients: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return clients, by number, in the order in which they turn hostile, so that a larger share holds a smaller."""
    drawn = uniforms(child_keys(child_keys(key(seed, "attack"), _WHO), clients), 1)[:, 0]
    return clients[np.argsort(drawn, kind="stable")]


def hostile_among(attack: Attack, clients: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return which of these clients, by number, are hostile.

    Raises:
        InvalidSettings: the attack has more hostile clients than there are.
    """
    return np.sort(in_drawn_order(clients, seed)[: attack.hostile_of(len(clients))])


class Plot:
    """One round of an attack, seen by those who attack.

    Updates come in blocks, each client's own; every block is to be taken by :meth:`spoil`. Where hostile clients need
    the honest updates of the round, they send when all blocks are through (:meth:`late`).

    Args:
        attack: what they do.
        hostile: which clients, by number, shape (clients,).
        seed: everything drawn follows from it
        round_: and from the number of the round, from 0.
    """

    def __init__(self, attack: Attack, hostile: NDArray[np.bool_], seed: int, round_: int) -> None:
        self.attack, self._hostile = attack, hostile
        self._root = child_keys(key(seed, "attack"), _ROUNDS)
        self._keys = child_keys(self._root, round_)
        self._examples = child_keys(key(seed, "attack"), _EXAMPLES)
        self._honest: Honest | None = None

    @property
    def waits(self) -> bool:
        """Whether hostile clients send last."""
        return colludes(self.attack)

    def are_hostile(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these clients, by number, are hostile, shape (k,); those beyond all clients are invented."""
        return (clients >= len(self._hostile)) | self._hostile[np.minimum(clients, len(self._hostile) - 1)]

    def forging(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these clients, by number, send updates that are not what they have learned, shape (k,)."""
        boosted = isinstance(self.attack, Backdoor) and self.attack.boost != 1
        return self.are_hostile(clients) & (boosted or not of_examples(self.attack))

    def data(
        self, data: ClientData[Any], clients: NDArray[np.int64], classes: int | None, hostile: NDArray[np.bool_]
    ) -> ClientData[Any]:
        """Return the data of k clients as they learn from them.

        Args:
            data: as they are.
            clients: their numbers, shape (k,).
            classes: how many classes the target has; None if it is a number, or a choice.
            hostile: which of them are, shape (k,).
        """
        if not of_examples(self.attack) or not hostile.any():
            return data
        attack: Any = self.attack
        made: OfExamples = attack
        return Spoilt(data, made, hostile, child_keys(self._examples, clients), classes)

    def spoil(
        self, clients: NDArray[np.int64], times: NDArray[np.int64], updates: Floats, examples: Any, known: Known
    ) -> Floats:
        """Return the updates of a block with those of hostile clients in the place of their own.

        Args:
            clients: whose they are, by number, shape (k,).
            times: how often each has sent before in this round, shape (k,).
            updates: their own, shape (k, m); honest ones are returned to the bit.
            examples: from how many, shape (k,); honest clients without any tell the hostile ones nothing.
            known: what all know.
        """
        hostile = self.are_hostile(clients)
        if self.waits:
            honest = self._honest or Honest.none(updates.shape[1])
            self._honest = honest.and_of(updates[~hostile & (np.asarray(examples) > 0)])
            return updates
        if not hostile.any():
            return updates
        sent = updates.copy()
        keys = self._keys_of(clients[hostile], times[hostile])
        sent[hostile] = hostile_updates(self.attack, updates[hostile], keys, known)
        return sent

    def late(self, clients: NDArray[np.int64], own: Floats, known: Known) -> Floats:
        """Return what h hostile clients send, shape (h, m), who have now seen the round; ``own`` are their updates."""
        honest = self._honest or Honest.none(own.shape[1])
        times = np.zeros(len(clients), np.int64)
        return hostile_updates(self.attack, own, self._keys_of(clients, times), replace(known, honest=honest))

    def at_once(self, clients: NDArray[np.int64], times: NDArray[np.int64], updates: Floats, known: Known) -> Floats:
        """Return all the updates of a round, shape (k, m), as they are sent."""
        sent = self.spoil(clients, times, updates, np.ones(len(clients)), known)
        if not self.waits:
            return sent
        hostile = self.are_hostile(clients)
        sent = updates.copy()
        sent[hostile] = self.late(clients[hostile], updates[hostile], replace(known, hostile=int(hostile.sum())))
        return sent

    def _keys_of(self, clients: NDArray[np.int64], times: NDArray[np.int64]) -> Keys:
        return child_keys(child_keys(self._keys, clients), times)


PlotOf = Callable[[int], Plot | None]
"""From the number of a round, from 0, to its attack, if there is one."""
