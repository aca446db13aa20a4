"""Values, scores, losses and updates of one list, in plain loops: the reference for clients in every language.

Each value is rounded to single precision. Sums are plain loops of doubles without fused multiply-add, over values
other than 0 in the wire's order, and over items in displayed order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fedping.client_sim.features import numbers
from fedping.protocol.features import (
    LARGEST_VALUE,
    Bucket,
    Category,
    Counts,
    Cross,
    Equal,
    Feature,
    Flag,
    Hashed,
    Number,
    Product,
    Spline,
)
from fedping.protocol.spec import ModelSpec

NOTHING_CHOSEN = -1

Row: TypeAlias = Mapping[str, Any]
"""The fields of an item or of a query."""
Values: TypeAlias = list[tuple[int, float]]
"""Positions with values other than 0, in ascending order of position."""


@dataclass(frozen=True)
class Shown:
    """A list as the user saw it, and the user's choice.

    Attributes:
        items: the fields of the items, the top one first.
        query: the fields of the query.
        chosen: the place of the chosen item, from 0; -1 for none.
        seen: the number of items, from the top, that the user has seen; None for all.
        pinned: the places of items that the product has pinned.
    """

    items: Sequence[Row]
    query: Row
    chosen: int
    seen: int | None = None
    pinned: frozenset[int] = frozenset()


def values(spec: ModelSpec, query: Row, item: Row) -> Values:
    """Return the values of an item under a query, by the positions of their weights."""
    by_name = {feature.name: feature for feature in spec.features}
    return [
        (span.at + position, value)
        for span in spec.layout.spans
        for position, value in feature_values(span.feature, by_name, query, item)
        if value != 0
    ]


def feature_values(feature: Feature, by_name: Mapping[str, Feature], query: Row, item: Row) -> Values:
    """Return the values of a feature, by their positions within the feature."""
    match feature:
        case Cross():
            one, other = (by_name[name] for name in feature.of)
            columns = _width(other)
            return [
                (i * columns + j, numbers.single(a * b))
                for i, a in feature_values(one, by_name, query, item)
                for j, b in feature_values(other, by_name, query, item)
            ]
        case Equal() | Product():
            found = _of_both(feature, query.get(feature.query), item.get(feature.item))
        case _:
            found = _of_field(feature, (query if feature.on == "query" else item).get(feature.key))
    if found is None:
        return [(_width(feature) - 1, 1.0)] if feature.missing else []
    return found


def _width(feature: Feature) -> int:
    from fedping.protocol.features import width

    return width(feature, {})


def _of_both(feature: Equal | Product, q: Any, x: Any) -> Values | None:
    if isinstance(feature, Product):
        if number(q) is None or number(x) is None:
            return None
        product = _within(float(q) * float(x), feature.low, feature.high)
        return [(0, _scaled(product, feature.center, feature.spread))]
    same = is_equal(q, x)
    return None if same is None else [(0, 1.0 if same else 0.0)]


def is_equal(q: Any, x: Any) -> bool | None:
    """Return whether two texts, numbers or flags are equal; None for different types, or any other type."""
    for kind in (number, text, flag):
        if kind(q) is not None and kind(x) is not None:
            return bool(kind(q) == kind(x))
    return None


def _of_field(feature: Feature, x: Any) -> Values | None:
    """Return the values of a field; None if it is missing."""
    match feature:
        case Flag():
            return None if flag(x) is None else [(0, 1.0 if x else 0.0)]
        case Category():
            if text(x) is None:
                return None
            if x in feature.values:
                return [(feature.values.index(x), 1.0)]
            return [(len(feature.values), 1.0)] if feature.other else []
        case Hashed():
            return None if text(x) is None else [(hashed(feature.name, x, feature.buckets), 1.0)]
        case Counts():
            return _counts(feature, x) if isinstance(x, Mapping) else None
    there = number(x)
    if there is None:
        return None
    match feature:
        case Number():
            within = _within(there, feature.low, feature.high)
            if feature.log:
                within = numbers.log1p(within)
            return [(0, _scaled(within, feature.center, feature.spread))]
        case Bucket():
            return [(sum(there > cutoff for cutoff in feature.cutoffs), 1.0)]
        case Spline():
            return _spline(feature.knots, there)
    raise TypeError(feature)


def hashed(name: str, value: str, buckets: int) -> int:
    """Return the bucket of a text: its hash × the number of buckets, rounded down."""
    return math.floor(hash_fraction(name, value) * buckets)


def hash_fraction(name: str, value: str) -> float:
    """Return the hash of a text as a number in [0, 1): the first 6 bytes of SHA-256(name, newline, text) / 2^48."""
    return int.from_bytes(hashlib.sha256(f"{name}\n{value}".encode()).digest()[:6], "big") / 2**48


def _counts(feature: Counts, given: Mapping[str, Any]) -> Values:
    found = []
    for position, value in enumerate(feature.values):
        x = number(given.get(value))
        if x is not None:
            if feature.log:
                x = numbers.log1p(max(x, 0.0))
            found.append((position, _scaled(x, 0.0, feature.spread)))
    return found


def _spline(knots: Sequence[float], x: float) -> Values:
    if x <= knots[0]:
        return [(0, 1.0)]
    if x >= knots[-1]:
        return [(len(knots) - 1, 1.0)]
    after = next(i for i, knot in enumerate(knots) if x < knot)
    t = (x - knots[after - 1]) / (knots[after] - knots[after - 1])
    return [(after - 1, numbers.single(1.0 - t)), (after, numbers.single(t))]


def _within(x: float, low: float | None, high: float | None) -> float:
    if low is not None and x < low:
        return low
    return high if high is not None and x > high else x


def _scaled(x: float, center: float, spread: float) -> float:
    return numbers.single(_within((x - center) / spread, -LARGEST_VALUE, LARGEST_VALUE))


def number(x: Any) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(x, bool) or not isinstance(x, int | float):
        return None
    try:
        return float(x) if math.isfinite(x) else None
    except OverflowError:  # a whole number that no double can hold
        return None


def text(x: Any) -> str | None:
    """Return a text that UTF-8 can write; None for anything else."""
    if not isinstance(x, str):
        return None
    return None if any("\ud800" <= letter <= "\udfff" for letter in x) else x


def flag(x: Any) -> bool | None:
    """Return true or false; None for anything else."""
    return x if isinstance(x, bool) else None


def score(spec: ModelSpec, weights: Sequence[float], given: Values) -> float:
    """Return the score of an item from its values, without the offset of its place."""
    total = 0.0
    for position, value in given:
        total += weights[position] * value
    at, width = spec.layout, spec.hidden
    if width:
        for unit, z in enumerate(_units(spec, weights, given)):
            if z > 0:
                total += weights[at.hidden_out + unit] * z
    return total


def _units(spec: ModelSpec, weights: Sequence[float], given: Values) -> list[float]:
    """Return the sums of the hidden layer's units, before the relu."""
    at, width = spec.layout, spec.hidden
    units = [float(weights[at.hidden_bias + unit]) for unit in range(width)]
    for position, value in given:
        row = at.hidden_in + _row(spec, position) * width
        for unit in range(width):
            units[unit] += weights[row + unit] * value
    return units


def _row(spec: ModelSpec, position: int) -> int:
    """Return a value's number, which leaves out the weights of places."""
    return position if position < spec.layout.places else position - spec.layout.offsets


def order(scores: Sequence[float], pinned: frozenset[int] = frozenset()) -> list[int]:
    """Return the items, best first; pinned ones keep their given place.

    Among equal scores, the first one ranks higher.
    """
    rest = iter(sorted((i for i in range(len(scores)) if i not in pinned), key=lambda i: -scores[i]))
    return [place if place in pinned else next(rest) for place in range(len(scores))]


def swapped(ranked: Sequence[int], pinned: frozenset[int], explore: float, draws: tuple[float, float]) -> list[int]:
    """Return a ranked list in which, with probability ``explore``, two unpinned neighbours are swapped.

    Args:
        ranked: items, best first.
        pinned: places that stay.
        explore: the spec's setting.
        draws: two random numbers from [0, 1).
    """
    found = list(ranked)
    pairs = [at for at in range(len(found) - 1) if at not in pinned and at + 1 not in pinned]
    if pairs and draws[0] < explore:
        at = pairs[math.floor(draws[1] * len(pairs))]
        found[at], found[at + 1] = found[at + 1], found[at]
    return found


def loss(spec: ModelSpec, weights: Sequence[float], shown: Shown) -> float:
    """Return the loss of a list at some weights; 0 if nothing was chosen."""
    return _loss_at(spec, _learned_from(spec, shown))(weights)


@dataclass(frozen=True)
class _Learned:
    """The training data of a list: the items that count, with their values and places, and the chosen item."""

    values: list[Values]
    places: list[int]
    chosen: int


def _learned_from(spec: ModelSpec, shown: Shown) -> _Learned:
    """Return the training data of a list.

    The list is cut after the last item seen or chosen. Without offsets for places, pinned items do not count, since
    the product chose their places.
    """
    count = len(shown.items) if shown.seen is None else min(max(shown.seen, shown.chosen + 1), len(shown.items))
    places = [place for place in range(count) if spec.places > 1 or place not in shown.pinned]
    chosen = places.index(shown.chosen) if shown.chosen in places else NOTHING_CHOSEN
    return _Learned([values(spec, shown.query, shown.items[place]) for place in places], places, chosen)


def _loss_at(spec: ModelSpec, learned: _Learned) -> Callable[[Sequence[float]], float]:
    if learned.chosen == NOTHING_CHOSEN:
        return lambda _: 0.0
    return lambda weights: _loss_and_pulls(spec, _placed_scores(spec, weights, learned), learned.chosen)[0]


def _placed_scores(spec: ModelSpec, weights: Sequence[float], learned: _Learned) -> list[float]:
    """Return the scores of items with the offsets of their places."""
    found = []
    for given, place in zip(learned.values, learned.places, strict=True):
        at = place_weight(spec, place)
        found.append(score(spec, weights, given) + (0.0 if at is None else weights[at]))
    return found


def place_weight(spec: ModelSpec, place: int) -> int | None:
    """Return the position of the weight of a place, counted from 0; None for the first place, and without offsets."""
    offsets = spec.layout.offsets
    return None if place == 0 or offsets == 0 else spec.layout.places + min(place, offsets) - 1


def _loss_and_pulls(spec: ModelSpec, scores: Sequence[float], chosen: int) -> tuple[float, list[float]]:
    """Return the loss of scores with offsets, and the pull on each score towards a smaller loss."""
    match spec.loss:
        case "softmax":
            return _softmax(scores, chosen)
        case "hinge":
            return _hinge(scores, chosen, spec.margin)
        case "pairwise":
            return _pairwise(scores, chosen)


def _softmax(scores: Sequence[float], chosen: int) -> tuple[float, list[float]]:
    largest = max(scores)
    powers = [numbers.exp(each - largest) for each in scores]
    total = 0.0
    for power in powers:
        total += power
    pulls = [-(power / total) for power in powers]
    pulls[chosen] = 1.0 - powers[chosen] / total
    return numbers.log(total) - (scores[chosen] - largest), pulls


def _hinge(scores: Sequence[float], chosen: int, margin: float) -> tuple[float, list[float]]:
    total, pulls = 0.0, [0.0] * len(scores)
    for j, each in enumerate(scores):
        over = each + margin - scores[chosen]
        if j != chosen and over > 0:
            total += over
            pulls[j] = -1.0
            pulls[chosen] += 1.0
    return total, pulls


def _pairwise(scores: Sequence[float], chosen: int) -> tuple[float, list[float]]:
    total, pulls = 0.0, [0.0] * len(scores)
    for j, each in enumerate(scores):
        if j != chosen:
            d = each - scores[chosen]
            power = numbers.exp(-abs(d))
            total += max(d, 0.0) + numbers.log1p(power)
            pull = (1.0 if d > 0 else power) / (1.0 + power)
            pulls[j] = -pull
            pulls[chosen] += pull
    return total, pulls


def update(spec: ModelSpec, weights: Sequence[float], shown: Shown) -> list[float]:
    """Return the update of a list: the direction of descent of its loss, one number a weight."""
    learned = _learned_from(spec, shown)
    if learned.chosen == NOTHING_CHOSEN:
        return [0.0] * spec.m
    if spec.gradient == "finite_differences":
        return _finite_differences(_loss_at(spec, learned), weights, spec.epsilon)
    _, pulls = _loss_and_pulls(spec, _placed_scores(spec, weights, learned), learned.chosen)
    descent = [0.0] * spec.m
    for given, place, pull in zip(learned.values, learned.places, pulls, strict=True):
        for position, value in given:
            descent[position] += pull * value
        at = place_weight(spec, place)
        if at is not None:
            descent[at] += pull
        if spec.hidden:
            _add_hidden(spec, weights, given, pull, descent)
    return descent


def _add_hidden(spec: ModelSpec, weights: Sequence[float], given: Values, pull: float, descent: list[float]) -> None:
    """Add the effect of an item's pull to the descent of the hidden layer's weights."""
    at, width = spec.layout, spec.hidden
    for unit, z in enumerate(_units(spec, weights, given)):
        if z > 0:
            descent[at.hidden_out + unit] += pull * z
            pulled = pull * weights[at.hidden_out + unit]
            descent[at.hidden_bias + unit] += pulled
            for position, value in given:
                descent[at.hidden_in + _row(spec, position) * width + unit] += pulled * value


def _finite_differences(
    loss_at: Callable[[Sequence[float]], float], weights: Sequence[float], epsilon: float
) -> list[float]:
    """Return (loss at w - ε - loss at w + ε) / 2ε for each weight, the others unchanged."""
    moved = [float(weight) for weight in weights]
    descent = []
    for k, weight in enumerate(weights):
        moved[k] = weight - epsilon
        less = loss_at(moved)
        moved[k] = weight + epsilon
        descent.append((less - loss_at(moved)) / (2 * epsilon))
        moved[k] = float(weight)
    return descent
