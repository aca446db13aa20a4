"""Features of a product's own model: numbers computed from the fields of items and queries, each with a weight.

A spec with ``model = "features"`` has a list of features. They are published, so that clients in every language compute
the same numbers (`docs/conformance/README.md`). The computation is in `fedping.client_sim.features.reference`; this
module defines the features, their weights and the order of the weights.

Weights are sent in this order: the weights of all features except ``hashed`` and ``cross``, feature by feature; ``place
2`` to ``place K``; a block for each ``hashed`` and ``cross``; the three blocks of the hidden layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.weights import (
    MAX_WEIGHTS,
    Block,
    Finite,
    Name,
    Numbers,
    Positive,
    Step,
    Uniform,
    Weight,
    Zeros,
)

FEATURES = "features"
"""The value of ``model`` in a spec with features."""

MISSING, OTHER = ":missing", ":other"
"""Suffixes of the names of weights: for missing values, and for texts that are not listed."""

LARGEST_VALUE = 1e9
"""Maximum value of a feature after scaling; larger values count as this."""

LONGEST_NAME = 64

DEFAULT_STEP = Step(start=0.1, min=1e-6, max=50.0)

Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Key: TypeAlias = Annotated[str, Meta(max_length=200)]
Starts: TypeAlias = Finite | tuple[Finite, ...] | dict[str, Finite]


class _Weighed(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings common to all features.

    Attributes:
        name: the feature's name.
        start: value of its weights in version 0: one number for all, a list with one for each in order, or a table of
            some by name, where the rest are 0.
        step: step sizes of each of its weights.
        integer: whether its weights are published as whole numbers.
    """

    name: Name
    start: Starts = 0.0
    step: Step = DEFAULT_STEP
    integer: bool = False


class _OfField(_Weighed, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A feature of one field of an item, or of the query.

    Attributes:
        field: the field's name; the feature's name if empty.
        on: whether the field belongs to the item or the query. A feature of the query has no weights, because it is
            equal for all items, and can only be used in crosses.
        missing: whether items that lack the field have their own weight, the last of the feature; else a missing value
            adds 0.
    """

    field: Key = ""
    on: Literal["item", "query"] = "item"
    missing: bool = False

    @property
    def key(self) -> str:
        """The field's name."""
        return self.field or self.name


class Number(_OfField, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="number"):
    """A number with one weight: limited to [low, high], minus ``center``, divided by ``spread``.

    Attributes:
        low: smallest value; smaller ones count as this.
        high: largest value; larger ones count as this.
        log: whether the limited number is first replaced by the logarithm of 1 + it.
        center: subtracted from the number.
        spread: divisor of the number.
    """

    low: Finite | None = None
    high: Finite | None = None
    log: bool = False
    center: Finite = 0.0
    spread: Positive = 1.0


class Flag(_OfField, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="flag"):
    """True or false, with one weight, which is added if the value is true."""


class Category(_OfField, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="category"):
    """One of the listed texts, with a weight for each; compared exactly, without normalisation.

    Attributes:
        values: the texts.
        other: whether all texts that are not listed share another weight; else they add 0.
    """

    values: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=10_000)]
    other: bool = False


class Hashed(_OfField, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="hashed"):
    """A text with too many values to list, such as a brand; the text's hash selects one of several weights.

    Attributes:
        buckets: number of weights.
    """

    buckets: Annotated[int, Meta(ge=2, le=1_000_000)]


class Bucket(_OfField, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="bucket"):
    """A number by intervals, with a weight for each: up to each cutoff, and beyond the last.

    Attributes:
        cutoffs: ascending ends of the intervals.
    """

    cutoffs: Annotated[tuple[Finite, ...], Meta(min_length=1, max_length=1000)]


class Spline(_OfField, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="spline"):
    """A number by a line through ascending knots, with a weight for each, its height; level before and beyond them.

    Attributes:
        knots: positions of the knots.
    """

    knots: Annotated[tuple[Finite, ...], Meta(min_length=2, max_length=1000)]


class Counts(_OfField, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="counts"):
    """An object from texts to numbers, such as visits by kind, with a weight for each listed text.

    Texts that are not listed add 0.

    Attributes:
        values: the texts.
        log: whether each number is first replaced by the logarithm of 1 + it, where less than 0 counts as 0.
        spread: divisor of each number.
    """

    values: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=10_000)]
    log: bool = False
    spread: Positive = 1.0


class _OfBoth(_Weighed, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A feature of a field of the query and a field of the item."""

    query: Key
    item: Key
    missing: bool = False


class Equal(_OfBoth, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="equal"):
    """Whether a field of the query equals a field of the item, with one weight; other types count as missing."""


class Product(_OfBoth, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="product"):
    """A number of the query times a number of the item, limited to [low, high], minus ``center``, over ``spread``."""

    low: Finite | None = None
    high: Finite | None = None
    center: Finite = 0.0
    spread: Positive = 1.0


class Cross(_Weighed, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="cross"):
    """Each value of one feature times each value of another, with a weight for each pair, row by row.

    Attributes:
        of: names of two features of the spec. At least one depends on the item, and neither is a cross.
    """

    of: tuple[Name, Name]


Feature: TypeAlias = Number | Flag | Category | Hashed | Bucket | Spline | Counts | Equal | Product | Cross

Loss: TypeAlias = Literal["softmax", "hinge", "pairwise"]


class Span(NamedTuple):
    """The weights of a feature: the position of the first among all weights as sent, and their number."""

    feature: Feature
    at: int
    width: int


def is_block(feature: Feature) -> bool:
    """Return whether a feature's weights form a block rather than single weights with names."""
    return isinstance(feature, Hashed | Cross)


def of_query(feature: Feature) -> bool:
    """Return whether a feature depends only on the query, and so has no weights."""
    return isinstance(feature, _OfField) and feature.on == "query"


def labels(feature: Feature) -> tuple[str, ...]:
    """Return the suffixes that, after the feature's name, form the names of its single weights."""
    match feature:
        case Number() | Flag() | Equal() | Product():
            own: tuple[str, ...] = ("",)
        case Category():
            own = (*(f"={value}" for value in feature.values), *((OTHER,) if feature.other else ()))
        case Bucket():
            *_, last = ends = [_text(cutoff) for cutoff in feature.cutoffs]
            own = (*(f"<={end}" for end in ends), f">{last}")
        case Spline():
            own = tuple(f"@{_text(knot)}" for knot in feature.knots)
        case Counts():
            own = tuple(f"={value}" for value in feature.values)
        case Hashed() | Cross():
            raise TypeError("the weights of a block have no labels")
    return (*own, MISSING) if feature.missing else own


def _text(number: float) -> str:
    return repr(float(number)).removesuffix(".0")


def width(feature: Feature, of: dict[str, Feature]) -> int:
    """Return the number of values of a feature; a feature of an item has the same number of weights.

    Args:
        feature: the feature.
        of: all features of the spec by name.
    """
    match feature:
        case Hashed():
            return feature.buckets + feature.missing
        case Cross():
            return width(of[feature.of[0]], of) * width(of[feature.of[1]], of)
        case _:
            return len(labels(feature))


class Layout(NamedTuple):
    """The positions of the weights of a spec with features.

    Attributes:
        spans: spans of the features with weights, in the order in which weights are sent.
        places: position of ``place 2``.
        offsets: number of weights for places, K - 1.
        values: number of values of an item, which is the number of the features' weights.
        hidden: width of the hidden layer; 0 without one.
    """

    spans: tuple[Span, ...]
    places: int
    offsets: int
    values: int
    hidden: int

    @property
    def hidden_in(self) -> int:
        """The position of the first weight of ``hidden.in``, which has a row for each value."""
        return self.values + self.offsets

    @property
    def hidden_bias(self) -> int:
        """The position of the first weight of ``hidden.bias``."""
        return self.hidden_in + self.values * self.hidden

    @property
    def hidden_out(self) -> int:
        """The position of the first weight of ``hidden.out``."""
        return self.hidden_bias + self.hidden


def layout(features: Sequence[Feature], places: int = 0, hidden: int = 0) -> Layout:
    """Return the layout of the weights of features."""
    by_name = {feature.name: feature for feature in features}
    weighed = sorted((feature for feature in features if not of_query(feature)), key=is_block)  # stable
    widths = [width(feature, by_name) for feature in weighed]
    single = sum(count for feature, count in zip(weighed, widths, strict=True) if not is_block(feature))
    offsets = max(places - 1, 0)
    spans, at = [], 0
    for feature, count in zip(weighed, widths, strict=True):
        spans.append(Span(feature, at + offsets if is_block(feature) else at, count))
        at += count
    return Layout(tuple(spans), single, offsets, at, hidden)


def weights_of(
    features: Sequence[Feature], places: int, hidden: int, whose: str
) -> tuple[tuple[Weight, ...], tuple[Block, ...]]:
    """Return the weights and blocks that follow from features.

    Args:
        features: the features, checked by :func:`check_features`.
        places: K, the number of places with their own offsets; 0 or 1 for none.
        hidden: the width of the hidden layer; 0 for none.
        whose: the spec, for sentences.

    Raises:
        InvalidSettings: start values do not fit a feature, or a name is too long.
    """
    by_name = {feature.name: feature for feature in features}
    weighed = [feature for feature in features if not of_query(feature)]
    single = [weight for feature in weighed if not is_block(feature) for weight in _single(feature, whose)]
    single += [Weight(name=f"place {place}", start=0.0, step=DEFAULT_STEP) for place in range(2, places + 1)]
    blocks = [_block(feature, by_name, whose) for feature in weighed if is_block(feature)]
    if hidden:
        values = len(single) - max(places - 1, 0) + sum(width(each, by_name) for each in weighed if is_block(each))
        blocks += _hidden(values, hidden)
    return tuple(single), tuple(blocks)


def _single(feature: Feature, whose: str) -> Iterator[Weight]:
    ends = labels(feature)
    starts = feature.start
    if isinstance(starts, dict):
        known = {end.removeprefix("="): end for end in ends} | {end: end for end in ends}
        unknown = [name for name in starts if name not in known]
        if unknown:
            raise InvalidSettings(
                f"{whose}: 'start' of feature '{feature.name}' names the unknown '{unknown[0]}'. Name some of "
                f"{', '.join(name for name in known if name)[:200] or 'none'}, or give one number"
            )
        given = {known[name]: value for name, value in starts.items()}
        numbers = [given.get(end, 0.0) for end in ends]
    else:
        numbers = _numbers(feature, len(ends), whose)
    for end, number in zip(ends, numbers, strict=True):
        name = f"{feature.name}{end}"
        if len(name) > LONGEST_NAME:
            raise InvalidSettings(
                f"{whose}: the weight '{name[:80]}' has a name of {len(name)} characters, and {LONGEST_NAME} are "
                f"allowed. Shorten the name of feature '{feature.name}' or its values"
            )
        yield Weight(name=name, start=number, step=feature.step, integer=feature.integer)


def _numbers(feature: Feature, count: int, whose: str) -> list[float]:
    """Return the start values of a feature whose ``start`` is one number or a list."""
    starts = feature.start
    if isinstance(starts, int | float):
        return [float(starts)] * count
    if isinstance(starts, dict) or len(starts) != count:
        what = "names" if isinstance(starts, dict) else f"{len(starts):,} numbers"
        raise InvalidSettings(
            f"{whose}: 'start' of feature '{feature.name}' has {what}, and the feature has {count:,} weights. Give one "
            "number for all, or one for each"
        )
    return list(starts)


def _block(feature: Feature, by_name: dict[str, Feature], whose: str) -> Block:
    shape: tuple[int, ...] = (width(feature, by_name),)
    if isinstance(feature, Cross):
        shape = (width(by_name[feature.of[0]], by_name), width(by_name[feature.of[1]], by_name))
    start: Zeros | Numbers = Zeros()
    if feature.start != 0:
        if width(feature, by_name) > MAX_WEIGHTS:
            raise InvalidSettings(f"{whose}: feature '{feature.name}' has more than {MAX_WEIGHTS:,} weights. Shrink it")
        numbers = tuple(_numbers(feature, width(feature, by_name), whose))
        start = Numbers(numbers=numbers[:1] if len(set(numbers)) == 1 else numbers)
    return Block(name=feature.name, shape=shape, start=start, step=feature.step, integer=feature.integer)


def _hidden(values: int, hidden: int) -> list[Block]:
    """Return the blocks of the hidden layer; its output starts at 0, so that version 0 ranks as the features do."""
    scale = float((6 / (values + 1)) ** 0.5)
    return [
        Block(name="hidden.in", shape=(values, hidden), start=Uniform(seed=1, scale=scale), step=DEFAULT_STEP),
        Block(name="hidden.bias", shape=(hidden,), step=DEFAULT_STEP),
        Block(name="hidden.out", shape=(hidden,), step=DEFAULT_STEP),
    ]


def check_features(features: Sequence[Feature], whose: str) -> None:
    """Raise :class:`InvalidSettings` unless features fit each other.

    Args:
        features: the features.
        whose: the spec, for sentences.
    """
    by_name: dict[str, Feature] = {}
    for feature in features:
        if feature.name in by_name:
            raise InvalidSettings(f"{whose} has two features named '{feature.name}'. Rename one of them")
        if feature.name.startswith("hidden."):
            raise InvalidSettings(
                f"{whose}: names such as '{feature.name}' belong to the hidden layer. Rename the feature"
            )
        by_name[feature.name] = feature
        problem = _problem(feature)
        if problem is not None:
            raise InvalidSettings(f"{whose}: feature '{feature.name}' {problem}")
        feature.step.check(f"feature '{feature.name}' of {whose}")
    crossed: set[str] = set()
    for feature in features:
        if isinstance(feature, Cross):
            _check_cross(feature, by_name, whose)
            crossed.update(feature.of)
    for feature in features:
        if of_query(feature) and feature.name not in crossed:
            raise InvalidSettings(
                f"{whose}: feature '{feature.name}' is of the query alone, so it is equal for all items and cannot "
                "change their order. Cross it with a feature of the item, or remove it"
            )
    if all(of_query(feature) for feature in features):
        raise InvalidSettings(f'{whose} has no feature of an item. Add one, such as {{ kind = "number", name = … }}')


def _problem(feature: Feature) -> str | None:
    """Return the problem with a feature, apart from other features, as the end of a sentence; None if there is none."""
    match feature:
        case Number(low=low, high=high) | Product(low=low, high=high) if low is not None and high is not None:
            if low > high:
                return f"has low = {low:g} above high = {high:g}. Swap them"
    match feature:
        case Number(log=True, low=low) if low is None or low < 0:
            return "has log = true, which numbers below 0 lack. Set low = 0 or higher"
        case Category(values=values) | Counts(values=values):
            if len(set(values)) < len(values):
                twice = next(value for value in values if values.count(value) > 1)
                return f"lists the value '{twice}' twice. Remove one"
        case Bucket(cutoffs=numbers) | Spline(knots=numbers):
            falling = next((pair for pair in pairwise(numbers) if pair[0] >= pair[1]), None)
            if falling is not None:
                what = "cutoffs" if isinstance(feature, Bucket) else "knots"
                return f"has {what} that don't increase: {falling[1]:g} after {falling[0]:g}. Sort them"
    if of_query(feature) and (feature.start != 0 or feature.integer):
        return "is of the query and has no weights. Remove 'start' and 'integer'"
    return None


def _check_cross(cross: Cross, by_name: dict[str, Feature], whose: str) -> None:
    for name in cross.of:
        if name not in by_name:
            raise InvalidSettings(
                f"{whose}: the cross '{cross.name}' is of '{name}', which is not a feature of the spec. Name two of "
                f"{', '.join(each.name for each in by_name.values() if not isinstance(each, Cross))[:300]}"
            )
        if isinstance(by_name[name], Cross):
            raise InvalidSettings(
                f"{whose}: the cross '{cross.name}' is of the cross '{name}'. Cross two features of other kinds"
            )
    if cross.of[0] == cross.of[1]:
        raise InvalidSettings(f"{whose}: the cross '{cross.name}' is of '{cross.of[0]}' twice. Name two features")
    if all(of_query(by_name[name]) for name in cross.of):
        raise InvalidSettings(
            f"{whose}: the cross '{cross.name}' is of two features of the query, so it is equal for all items. Cross "
            "one with a feature of the item"
        )
