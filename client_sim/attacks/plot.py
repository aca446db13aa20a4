"""Attacks: the hostile clients of a round, the updates that they send, and the examples that they learn from.

Laboratories, fleets and simulated studies share this code. Every draw follows from the seed, so that a repeated round
of an attack has the same result. Updates of honest clients are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.attacks.settings import (
    Attack,
    Backdoor,
    Constant,
    FreeRider,
    InnerProduct,
    LabelFlip,
    LittleIsEnough,
    Noise,
    OfExamples,
    Poison,
    Reconstruction,
    Scale,
    SignFlip,
    TargetWeights,
)
from fedping.client_sim.data.seeds import key
from fedping.client_sim.learning.batch import NO_EXAMPLE, Batch, ClientData, Clients, Examples, FloatArray, Floats
from fedping.client_sim.learning.choices import NOTHING_CHOSEN, Choices
from fedping.client_sim.learning.searches import ClientSearches
from fedping.client_sim.models import Searches
from fedping.protocol.draws import Keys, child_keys, normals, uniforms
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.weights import LARGEST

_WHO, _ROUNDS, _EXAMPLES = range(3)


def in_drawn_order(clients: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return clients' numbers in the order in which they become hostile; a larger share includes a smaller one."""
    order = uniforms(child_keys(child_keys(key(seed, "attack"), _WHO), clients), 1)[:, 0]
    return clients[np.argsort(order, kind="stable")]


def hostile_among(attack: Attack, clients: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return the numbers of the hostile clients among these, ascending.

    Raises:
        InvalidSettings: the attack has more hostile clients than there are clients.
    """
    return np.sort(in_drawn_order(clients, seed)[: attack.hostile_of(len(clients))])


class Plot:
    """One round of an attack.

    Updates come in blocks, and each block passes :meth:`spoil`. Hostile clients that need the honest updates of the
    round send after all blocks (:meth:`late`).

    Args:
        attack: the attack.
        hostile: whether each client is hostile, by number, shape (clients,).
        seed: determines the draws, with the number of the round.
        round_: number of the round, from 0.
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
        """Return whether each of these clients is hostile, shape (k,); higher numbers are invented clients."""
        return (clients >= len(self._hostile)) | self._hostile[np.minimum(clients, len(self._hostile) - 1)]

    def forging(self, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of these clients sends a corrupted update, shape (k,)."""
        boosted = isinstance(self.attack, Backdoor) and self.attack.boost != 1
        return self.are_hostile(clients) & (boosted or not of_examples(self.attack))

    def data(
        self, data: ClientData[Any], clients: NDArray[np.int64], classes: int | None, hostile: NDArray[np.bool_]
    ) -> ClientData[Any]:
        """Return the data that k clients train on, changed for hostile ones.

        Args:
            data: the unchanged data.
            clients: their numbers, shape (k,).
            classes: number of classes of the target; None if it is a number, or a choice.
            hostile: whether each is hostile, shape (k,).
        """
        if not of_examples(self.attack) or not hostile.any():
            return data
        attack: Any = self.attack
        of_data: OfExamples = attack
        return Spoilt(data, of_data, hostile, child_keys(self._examples, clients), classes)

    def spoil(
        self, clients: NDArray[np.int64], times: NDArray[np.int64], updates: Floats, examples: Any, known: Known
    ) -> Floats:
        """Return the updates of a block, with those of hostile clients replaced.

        Args:
            clients: the clients, by number, shape (k,).
            times: number of each client's earlier pings in this round, shape (k,).
            updates: their updates, shape (k, m); honest ones are returned unchanged.
            examples: number of examples, shape (k,). Hostile clients don't see the updates of honest ones without
                examples.
            known: the knowledge of all hostile clients.
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
        """Return the updates, shape (h, m), of h hostile clients that have seen the round's honest updates."""
        honest = self._honest or Honest.none(own.shape[1])
        times = np.zeros(len(clients), np.int64)
        return hostile_updates(self.attack, own, self._keys_of(clients, times), replace(known, honest=honest))

    def at_once(self, clients: NDArray[np.int64], times: NDArray[np.int64], updates: Floats, known: Known) -> Floats:
        """Return all updates of a round as they are sent, shape (k, m)."""
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
"""A function from a round's number, from 0, to its attack; None for no attack."""


_NOISE = 0


@dataclass(frozen=True)
class Honest:
    """Statistics of a round's honest updates: number, mean, and sum of squared differences from the mean, (m,) each."""

    count: int
    mean: FloatArray
    m2: FloatArray

    @classmethod
    def none(cls, m: int) -> Honest:
        """Return the statistics of no client."""
        return cls(0, np.zeros(m), np.zeros(m))

    def and_of(self, updates: Floats) -> Honest:
        """Return the statistics after adding updates, shape (k, m).

        Source: Chan, Golub and LeVeque 1983.
        """
        if not len(updates):
            return self
        mean = updates.mean(axis=0, dtype=np.float64)
        m2 = ((updates - mean) ** 2).sum(axis=0, dtype=np.float64)
        count, difference = self.count + len(updates), mean - self.mean
        share = len(updates) / count
        return Honest(count, self.mean + share * difference, self.m2 + m2 + difference**2 * (self.count * share))

    @property
    def deviation(self) -> FloatArray:
        """The standard deviation of each weight's update, shape (m,); 0 without clients."""
        return np.sqrt(self.m2 / max(self.count, 1))


@dataclass(frozen=True)
class Known:
    """The knowledge of a hostile client.

    Attributes:
        weights: the fetched version, shape (m,).
        before: the version before it, shape (m,); the same if there was none.
        names: the m names of the weights.
        honest: the honest updates of the round, for attacks that collude (:func:`colludes`).
        hostile: number of hostile clients that send in the round, for ``little_is_enough``.
    """

    weights: FloatArray
    before: FloatArray
    names: Sequence[str]
    honest: Honest = field(default_factory=lambda: Honest.none(0))
    hostile: int = 1


def colludes(attack: Attack) -> bool:
    """Return whether hostile clients need the honest updates of the round, and so send last."""
    return isinstance(attack, InnerProduct | LittleIsEnough)


def hidden_z(clients: int, hostile: int) -> float:
    """Return z of "a little is enough" for a number of clients, hostile ones included.

    Hostile clients that are the majority need one honest client further out than they are. If all honest clients would
    have to be further out, z is 0.

    Source: Baruch et al. 2019, algorithm 3.
    """
    honest = clients - hostile
    if honest < 2:
        return 0.0
    supporters = max(1, clients // 2 + 1 - hostile)
    return max(0.0, NormalDist().inv_cdf((honest - supporters) / honest)) if supporters < honest else 0.0


def hostile_updates(attack: Attack, own: Floats, keys: Keys, known: Known) -> Floats:
    """Return the updates of h hostile clients, shape (h, m), in the precision of ``own``, finite and within the limits.

    Args:
        attack: the attack.
        own: the hostile clients' updates, shape (h, m); with an attack on examples, those of the changed examples.
        keys: a random key each, shape (h,).
        known: their knowledge.

    Raises:
        InvalidSettings: the attack names a weight that the model does not have.
    """
    with np.errstate(over="ignore"):
        sent = _sent(attack, own, keys, known)
    return np.clip(np.nan_to_num(sent), -LARGEST, LARGEST).astype(own.dtype)


def _sent(attack: Attack, own: Floats, keys: Keys, known: Known) -> Floats:
    match attack:
        case LabelFlip() | Poison():
            return own
        case Backdoor(boost=scale) | Scale(scale=scale):
            return scale * own
        case SignFlip(scale=scale):
            return -scale * own
        case Noise(deviation=deviation):
            return _noise(keys, own, deviation)
        case Constant(value=value):
            return np.full(own.shape, value)
        case TargetWeights():
            return _dragged(attack, own, known)
        case InnerProduct(epsilon=epsilon):
            return np.broadcast_to(-epsilon * known.honest.mean, own.shape)
        case LittleIsEnough():
            honest = known.honest
            z = hidden_z(honest.count + known.hostile, known.hostile) if attack.z is None else attack.z
            return np.broadcast_to(honest.mean - z * honest.deviation, own.shape)
        case FreeRider(sends=sends, deviation=deviation):
            step = known.weights - known.before if sends == "last_difference" else np.zeros(own.shape[1])
            return step + _noise(keys, own, deviation)
        case Reconstruction():
            return np.zeros(own.shape)


def _noise(keys: Keys, own: Floats, deviation: float) -> FloatArray:
    return deviation * normals(child_keys(keys, _NOISE), own.shape[1]) if deviation else np.zeros(own.shape)


def _dragged(attack: TargetWeights, own: Floats, known: Known) -> Floats:
    at = targeted(attack, known.names)
    sent = own.copy()
    sent[:, at] = attack.scale * (np.array(list(attack.weights.values())) - known.weights[at])
    return sent


def targeted(attack: TargetWeights, names: Sequence[str]) -> NDArray[np.intp]:
    """Return the positions of the weights that an attack names.

    Raises:
        InvalidSettings: the model has no such weight.
    """
    places = {name: at for at, name in enumerate(names)}
    for name in attack.weights.keys() - places.keys():
        some = ", ".join(list(names)[:5]) + (", ..." if len(names) > 5 else "")
        raise InvalidSettings(f"the attack targets the weight '{name}', which the model does not have; it has {some}")
    return np.array([places[name] for name in attack.weights], np.intp)


_LABELS, _FEATURES, _PART = range(3)


def of_examples(attack: Attack) -> bool:
    """Return whether an attack changes the examples of hostile clients."""
    return isinstance(attack, OfExamples)


@dataclass(frozen=True)
class Spoilt:
    """Data of clients, changed for hostile ones: a :class:`fedping.client_sim.learning.batch.ClientData`.

    Attributes:
        data: the unchanged data; honest clients' data stay identical to the bit.
        attack: the change.
        hostile: whether each client is hostile, shape (clients,).
        keys: a random key of each client, shape (clients,).
        classes: number of classes of the target; None if it is a number, or a choice.
    """

    data: ClientData[Any]
    attack: OfExamples
    hostile: NDArray[np.bool_]
    keys: Keys
    classes: int | None = None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """See :attr:`ClientData.sizes`."""
        return self.data.sizes

    def batch(self, clients: Clients) -> Batch:
        """See :meth:`ClientData.batch`."""
        batch: Batch = self.data.batch(clients)
        rows = self.hostile[clients]
        return spoilt(self.attack, batch, rows, self.keys[clients], self.classes) if rows.any() else batch


def spoilt(attack: OfExamples, batch: Any, rows: NDArray[np.bool_], keys: Keys, classes: int | None) -> Any:
    """Return a batch of k clients with the examples of some of them changed.

    Args:
        attack: the change.
        batch: the examples.
        rows: whether each client is changed, shape (k,).
        keys: a random key of each client, shape (k,).
        classes: number of classes of the target; None if it is a number, or a choice.

    Raises:
        InvalidSettings: such examples don't allow the attack.
    """
    if isinstance(batch, ClientSearches):
        return _spoilt_searches(attack, batch, rows, keys)
    if not isinstance(batch, Examples | Choices):
        raise InvalidSettings(
            f"the attack '{attack.__struct_config__.tag}' does not know such examples; choose another"
        )
    options = batch.shown if isinstance(batch, Choices) else classes
    if isinstance(attack, Backdoor):
        part = uniforms(child_keys(keys, _PART), batch.y.shape[1]) < attack.part
        return triggered(attack, batch, part & rows[:, None])
    spoils = rows[:, None] & (batch.weight > 0)
    if isinstance(batch, Choices):
        spoils &= batch.y != NOTHING_CHOSEN
    if isinstance(attack, Poison):
        x = batch.x
        if attack.deviation:
            drawn = normals(child_keys(keys, _FEATURES), x[0].size).reshape(x.shape)
            x = np.where(_like(spoils, x), x + attack.deviation * drawn, x).astype(x.dtype)
        labels = _drawn(batch, options, uniforms(child_keys(keys, _LABELS), batch.y.shape[1]))
        return replace(batch, x=x, y=np.where(spoils, labels, batch.y).astype(batch.y.dtype))
    return replace(batch, y=np.where(spoils, _flipped(attack, batch, options), batch.y).astype(batch.y.dtype))


def _flipped(attack: LabelFlip, batch: Examples | Choices, options: Any) -> NDArray[Any]:
    y: NDArray[Any] = batch.y
    if attack.source is not None and attack.target is not None:
        if options is None or isinstance(batch, Choices):
            raise InvalidSettings("the data have no classes. Remove 'source' and 'target' of label_flip")
        _refuse_beyond(max(attack.source, attack.target), options)
        return np.where(y == attack.source, attack.target, y)
    if options is None:
        least, greatest = _ends(batch)
        y = least + greatest - y
    else:
        y = options - 1 - y
    return y


def _drawn(batch: Examples | Choices, options: Any, uniform: FloatArray) -> NDArray[Any]:
    if options is None:
        least, greatest = _ends(batch)
        return np.asarray(least + uniform * (greatest - least))
    return np.asarray(np.floor(uniform * options))


def _ends(batch: Examples | Choices) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least and the greatest target of each client, shape (k, 1)."""
    there = batch.weight > 0
    least = np.min(batch.y, axis=1, where=there, initial=np.inf, keepdims=True)
    greatest = np.max(batch.y, axis=1, where=there, initial=-np.inf, keepdims=True)
    some = there.any(axis=1, keepdims=True)
    return np.where(some, least, 0.0), np.where(some, greatest, 0.0)


def _like(mask: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[np.bool_]:
    return mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim))


def _refuse_beyond(number: int, classes: int) -> None:
    if number >= classes:
        raise InvalidSettings(f"the attack names class {number}, and there are classes 0 to {classes - 1}; correct it")


def triggered(attack: Backdoor, batch: Any, which: NDArray[np.bool_]) -> Any:
    """Return a batch in which the examples of ``which``, shape (k, n), have the trigger and its target label.

    Raises:
        InvalidSettings: the examples have no such feature, or are pages.
    """
    if not isinstance(batch, Examples | Choices):
        raise InvalidSettings("a backdoor needs features to set, which pages do not have; choose another attack")
    if max(attack.features) >= batch.x.shape[-1]:
        raise InvalidSettings(
            f"the backdoor sets feature {max(attack.features)}, and the examples have features 0 to "
            f"{batch.x.shape[-1] - 1}; correct it"
        )
    x = batch.x.copy()
    if isinstance(batch, Examples):
        sets = np.zeros(x.shape, np.bool_)
        sets[..., list(attack.features)] = which[..., None]
        x[sets] = attack.value
        return replace(batch, x=x, y=np.where(which, attack.target, batch.y).astype(batch.y.dtype))
    other = _with_trigger(batch)
    sets = np.zeros(x.shape, np.bool_)
    client, place = np.nonzero(which)
    for feature in attack.features:
        sets[client, place, other[client, place], feature] = True
    x[sets] = attack.value
    return replace(batch, x=x, y=np.where(which, other, batch.y).astype(batch.y.dtype))


def _with_trigger(batch: Choices) -> NDArray[np.intp]:
    """Return the candidate of each choice that gets the trigger: the one after the chosen one, cyclically."""
    following: NDArray[np.intp] = (batch.y + 1) % np.maximum(batch.shown, 1)
    return following


class Fooled(NamedTuple):
    """The number of test examples on which an attack succeeds, out of its targets."""

    fooled: int
    of: int


def fooled_by_trigger(attack: Backdoor, model: Any, weights: FloatArray, batch: Any) -> Fooled:
    """Return the success of a backdoor on test examples with the trigger whose label isn't the target."""
    if isinstance(batch, Choices):
        there = (batch.weight > 0) & (batch.shown > 1)
        shown = triggered(attack, batch, there)
        scores = np.nan_to_num(model.predict(weights, shown), nan=-np.inf)
        return _counted(scores.argmax(axis=2) == shown.y, there)
    there = (batch.weight > 0) & (batch.y != attack.target)
    shown = triggered(attack, batch, there)
    return _counted(_class_of(model.predict(weights, shown)) == attack.target, there)


def fooled_by_flip(attack: LabelFlip, model: Any, weights: FloatArray, batch: Any) -> Fooled:
    """Return the number of test examples of the source class that the model predicts as the target class."""
    there = (batch.weight > 0) & (batch.y == attack.source)
    return _counted(_class_of(model.predict(weights, batch)) == attack.target, there)


def _counted(found: NDArray[np.bool_], there: NDArray[np.bool_]) -> Fooled:
    return Fooled(int((found & there).sum()), int(there.sum()))


def _class_of(predictions: FloatArray) -> NDArray[np.intp]:
    return predictions.argmax(axis=2) if predictions.ndim == 3 else (predictions > 0.5).astype(np.intp)


def _spoilt_searches(attack: OfExamples, batch: ClientSearches, rows: NDArray[np.bool_], keys: Keys) -> ClientSearches:
    if isinstance(attack, Backdoor):
        raise InvalidSettings("a backdoor needs features to set, which pages do not have; choose another attack")
    if isinstance(attack, LabelFlip) and attack.source is not None:
        raise InvalidSettings("the data have no classes. Remove 'source' and 'target' of label_flip")
    client, place = np.nonzero((batch.rows != NO_EXAMPLE) & rows[:, None])
    which = batch.rows[client, place]
    chosen = batch.searches.chosen[which]
    shown = (batch.searches.candidates[which] >= 0).sum(axis=1)
    if isinstance(attack, Poison):
        drawn = uniforms(child_keys(keys, _LABELS), batch.rows.shape[1])[client, place]
        other = np.floor(drawn * shown).astype(np.int64)
    else:
        other = shown - 1 - chosen
    all_chosen = batch.searches.chosen.copy()
    all_chosen[which] = np.where(chosen == NOTHING_CHOSEN, chosen, other)
    return replace(batch, searches=Searches(batch.searches.candidates, all_chosen))
