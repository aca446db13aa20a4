"""Scores, losses and updates of many lists at once, column by column, to the same bit as :mod:`.reference`.

Arrays have the lists along their last axis, so that each step of the plain loops is one operation on all lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.features import numbers
from fedping.client_sim.features.encode import FloatArray
from fedping.client_sim.features.reference import NOTHING_CHOSEN
from fedping.protocol.spec import ModelSpec

At: TypeAlias = int | NDArray[np.intp]
"""The position of a weight: one for all items, or one per item."""


@dataclass(frozen=True)
class Lists:
    """N lists of at most c items each.

    Attributes:
        at: the positions of the items' values, shape (S, c, N), in ascending order along the first axis.
        value: the values, shape (S, c, N); 0 for nothing.
        shown: the number of items in each list, shape (N,).
        chosen: the place of the chosen item, -1 for none, shape (N,).
        seen: the number of items that were seen, shape (N,); all if None.
        pinned: the items that the product has pinned, shape (c, N); none if None.
    """

    at: NDArray[np.intp]
    value: FloatArray
    shown: NDArray[np.intp]
    chosen: NDArray[np.intp]
    seen: NDArray[np.intp] | None = None
    pinned: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.shown)

    @cached_property
    def constant(self) -> list[At]:
        """The position of each slot; a single number if equal for all items, which saves looking up weights."""
        return [int(at.flat[0]) if at.size and (at == at.flat[0]).all() else at for at in self.at]

    @cached_property
    def run(self) -> tuple[int, range]:
        """The longest run of slots with constant, consecutive positions: its first slot, and the positions."""
        best, first = (0, range(0)), 0
        for slot, at in enumerate(self.constant):
            before = self.constant[slot - 1] if slot else None
            if not isinstance(at, int) or not isinstance(before, int) or at != before + 1:
                first = slot
            start = self.constant[first]
            if isinstance(start, int) and slot + 1 - first > len(best[1]):
                best = (first, range(start, start + slot + 1 - first))
        return best

    def teaching(self, spec: ModelSpec) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """Return whether each item counts in the loss, shape (c, N), and the chosen items, shape (N,), -1 for none."""
        count = self.shown
        if self.seen is not None:
            count = np.minimum(np.maximum(self.seen, self.chosen + 1), count)
        counts = np.arange(self.at.shape[1])[:, None] < count
        if self.pinned is not None and spec.places < 2:
            counts &= ~self.pinned
        every = np.arange(len(self))
        chosen = np.where(counts[np.maximum(self.chosen, 0), every], self.chosen, NOTHING_CHOSEN)
        return counts, chosen


def scores(spec: ModelSpec, weights: FloatArray, lists: Lists) -> FloatArray:
    """Return the score of every item without offsets of places, shape (c, N); minus infinity in the padding.

    Args:
        spec: the spec.
        weights: shape (m,), or (m, N) for weights of each list's own.
        lists: N lists.
    """
    found = _scores(spec, weights, lists)
    found[np.arange(found.shape[0])[:, None] >= lists.shown] = -np.inf
    return found


def _scores(spec: ModelSpec, weights: FloatArray, lists: Lists) -> FloatArray:
    total = np.zeros(lists.value.shape[1:])
    product = np.empty_like(total)
    for at, value in zip(lists.constant, lists.value, strict=True):
        total += np.multiply(_taken(weights, at), value, out=product)
    if spec.hidden:
        for unit, z in enumerate(_units(spec, weights, lists)):
            total += weights[spec.layout.hidden_out + unit] * np.where(z > 0, z, 0.0)
    return total


def _units(spec: ModelSpec, weights: FloatArray, lists: Lists) -> FloatArray:
    """Return the sums of the hidden layer's units, before the relu, shape (hidden, c, N)."""
    at, width = spec.layout, spec.hidden
    units = np.zeros((width, *lists.value.shape[1:]))
    for unit in range(width):
        units[unit] += weights[at.hidden_bias + unit]
    for own, value in zip(lists.constant, lists.value, strict=True):
        row = at.hidden_in + _row(spec, own) * width
        for unit in range(width):
            units[unit] += _taken(weights, row + unit) * value
    return units


def _row(spec: ModelSpec, at: At) -> At:
    """Return a value's number, which leaves out the weights of places."""
    layout = spec.layout
    if isinstance(at, int):
        return at if at < layout.places else at - layout.offsets
    return np.where(at < layout.places, at, at - layout.offsets)


def _taken(weights: FloatArray, at: At) -> FloatArray:
    if isinstance(at, int) or weights.ndim == 1:
        return weights[at]
    return weights[at, np.arange(weights.shape[1])]


def losses(spec: ModelSpec, weights: FloatArray, lists: Lists) -> FloatArray:
    """Return the loss of each list, shape (N,); arguments as in :func:`scores`."""
    counts, chosen = lists.teaching(spec)
    return _losses_and_pulls(spec, _placed(spec, weights, lists), counts, chosen)[0]


def _placed(spec: ModelSpec, weights: FloatArray, lists: Lists) -> FloatArray:
    """Return the scores with the offsets of places, shape (c, N)."""
    found = _scores(spec, weights, lists)
    for place, at in _place_weights(spec, len(found)):
        found[place] += weights[at]
    return found


def _place_weights(spec: ModelSpec, places: int) -> Iterator[tuple[int, int]]:
    """Yield each place that has an offset, from 0, with the position of its weight."""
    layout = spec.layout
    if layout.offsets:
        for place in range(1, places):
            yield place, layout.places + min(place, layout.offsets) - 1


def _losses_and_pulls(
    spec: ModelSpec, placed: FloatArray, counts: NDArray[np.bool_], chosen: NDArray[np.intp]
) -> tuple[FloatArray, FloatArray]:
    """Return the losses, shape (N,), and the pull on each score towards a smaller loss, shape (c, N)."""
    every = np.arange(placed.shape[1])
    place = np.maximum(chosen, 0)
    none = chosen == NOTHING_CHOSEN
    best = placed[place, every]
    match spec.loss:
        case "softmax":
            largest = np.where(counts, placed, -np.inf).max(axis=0, initial=-np.inf)
            largest[none] = 0.0
            powers = np.where(counts, numbers.exp(np.minimum(placed - largest, 0.0)), 0.0)
            total = _summed(powers)
            total[none] = 1.0
            pulls = -(powers / total)
            pulls[place, every] = 1.0 - powers[place, every] / total
            loss = numbers.log(total) - (best - largest)
        case "hinge":
            over = placed + spec.margin - best
            violates = counts & (over > 0)
            violates[place, every] = False
            loss = _summed(np.where(violates, over, 0.0))
            pulls = np.where(violates, -1.0, 0.0)
            pulls[place, every] = np.count_nonzero(violates, axis=0)
        case "pairwise":
            d = placed - best
            others = counts.copy()
            others[place, every] = False
            power = numbers.exp(-np.abs(d))
            loss = _summed(np.where(others, np.maximum(d, 0.0) + numbers.log1p(power), 0.0))
            pull = np.where(others, np.where(d > 0, 1.0, power) / (1.0 + power), 0.0)
            pulls = -pull
            pulls[place, every] = _summed(pull)
    loss[none] = 0.0
    pulls[:, none] = 0.0
    return loss, pulls


def _summed(values: FloatArray) -> FloatArray:
    """Return the sums over the first axis, added in the order of a plain loop."""
    total = np.zeros(values.shape[1:])
    for row in values:
        total += row
    return total


def updates(spec: ModelSpec, weights: FloatArray, lists: Lists) -> FloatArray:
    """Return each list's update, the direction of descent of its loss, shape (m, N); arguments as in :func:`scores`."""
    return losses_and_updates(spec, weights, lists)[1]


def losses_and_updates(spec: ModelSpec, weights: FloatArray, lists: Lists) -> tuple[FloatArray, FloatArray]:
    """Return the results of :func:`losses` and :func:`updates`."""
    if spec.gradient == "finite_differences":
        return losses(spec, weights, lists), _finite_differences(spec, weights, lists)
    counts, chosen = lists.teaching(spec)
    loss, pulls = _losses_and_pulls(spec, _placed(spec, weights, lists), counts, chosen)
    return loss, descents(spec, weights, lists, pulls)


def descents(spec: ModelSpec, weights: FloatArray, lists: Lists, pulls: FloatArray) -> FloatArray:
    """Return the direction of the weights for given changes of the items' scores, shape (m, N).

    Args:
        spec: the spec.
        weights: shape (m,), or (m, N) for weights of each list's own.
        lists: N lists.
        pulls: desired increase of each item's score, shape (c, N); 0 in the padding.
    """
    descent = np.zeros((spec.m, len(lists)))
    units = _units(spec, weights, lists) if spec.hidden else None
    for j, pull in enumerate(pulls):
        _add_values(descent, lists, j, pull)
        if units is not None:
            _add_hidden(spec, weights, lists, j, pull, units[:, j], descent)
    for j, at in _place_weights(spec, len(pulls)):
        descent[at] += pulls[j]
    return descent


def _add_values(descent: FloatArray, lists: Lists, j: int, pull: FloatArray) -> None:
    """Add the effect of the pulls on the items at a place to the descent of the features' weights.

    An item's values other than 0 have different positions, so that they may be added in any order.
    """
    first, positions = lists.run
    if positions:
        descent[positions.start : positions.stop] += pull * lists.value[first : first + len(positions), j]
    for slot, (at, value) in enumerate(zip(lists.constant, lists.value[:, j], strict=True)):
        if not first <= slot < first + len(positions):
            _add(descent, at if isinstance(at, int) else at[j], pull * value)


def _add(descent: FloatArray, at: At, pulled: FloatArray) -> None:
    if isinstance(at, int):
        descent[at] += pulled
    else:
        descent[at, np.arange(len(pulled))] += pulled


def _add_hidden(
    spec: ModelSpec,
    weights: FloatArray,
    lists: Lists,
    j: int,
    pull: FloatArray,
    units: FloatArray,
    descent: FloatArray,
) -> None:
    """Add the effect of the pulls on the items at a place to the descent of the hidden layer's weights."""
    at, width = spec.layout, spec.hidden
    for unit, z in enumerate(units):
        pulled = np.where(z > 0, pull * weights[at.hidden_out + unit], 0.0)
        descent[at.hidden_out + unit] += np.where(z > 0, pull * z, 0.0)
        descent[at.hidden_bias + unit] += pulled
        for own, value in zip(lists.constant, lists.value[:, j], strict=True):
            row = at.hidden_in + _row(spec, own if isinstance(own, int) else own[j]) * width
            _add(descent, row + unit, pulled * value)


def _finite_differences(spec: ModelSpec, weights: FloatArray, lists: Lists) -> FloatArray:
    """Return (loss at w - ε - loss at w + ε) / 2ε of each list and weight, shape (m, N)."""
    descent = np.zeros((spec.m, len(lists)))
    moved = weights.copy()
    for k, weight in enumerate(weights):
        moved[k] = weight - spec.epsilon
        less = losses(spec, moved, lists)
        moved[k] = weight + spec.epsilon
        descent[k] = (less - losses(spec, moved, lists)) / (2 * spec.epsilon)
        moved[k] = weight
    return descent
