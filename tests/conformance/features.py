"""The conformance vectors of features: values of items, scores, losses and updates of lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedping.client_sim.features import numbers, reference
from fedping.client_sim.features.reference import Shown
from fedping.protocol.features import (
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
from fedping.protocol.spec import ModelSpec, NonNegative, published, published_spec
from tests.conformance.draw import Draw

_NUMBERS = (0, 1, -1, 7, 7.5, 10, 30, 30.000001, 99.99, -3.25, 1e12, -1e300, 5e-324, 123456789.125, 2**60 + 1, 0.1)
_TEXTS = ("red", "blue", "Red", "", "grün", "gru\u0308n", "ein\nWort", "\U0001f600", "other", "missing")
_WRONG = (None, True, False, "7", [1], {})
_FIELDS = ("price", "sale", "colour", "brand", "stars", "visits", "budget", "device")

_SHOP: tuple[Feature, ...] = (
    Number(name="shop_score", field="price", start=1.0),
    Number(name="price", low=0.0, high=1000.0, log=True, center=3.0, spread=1.7, missing=True),
    Flag(name="sale", missing=True),
    Hashed(name="brand", buckets=50, missing=True),
    Category(name="colour", values=("red", "blue", "grün"), other=True, missing=True, start={"blue": 0.5}),
    Category(name="device", on="query", values=("red", "blue"), other=True, missing=True),
    Cross(name="device.price", of=("device", "price")),
    Bucket(name="price.bucket", field="price", cutoffs=(0.0, 7.0, 30.0), start=(1.0, 2.0, 3.0, 4.0)),
    Spline(name="stars", knots=(-1.0, 0.5, 7.0, 30.0), missing=True),
    Counts(name="visits", values=("red", "blue", "ein\nWort"), log=True, spread=3.0, missing=True),
    Equal(name="same", query="colour", item="colour", missing=True),
    Product(name="affordable", query="budget", item="price", low=-50.0, high=1e6, center=1.0, spread=7.0, missing=True),
)
_CROSSED: tuple[Feature, ...] = (
    Cross(name="by.brand", of=("brand", "wishes"), start=0.25),
    Counts(name="wishes", field="visits", on="query", values=("red", "blue")),
    Hashed(name="brand", buckets=7),
    Spline(name="stars", knots=(0.0, 7.0)),
    Cross(name="stars.brand", of=("stars", "brand")),
    Number(name="tiny", field="stars", center=0.5, spread=1e-20),
)
_PLAIN: tuple[Feature, ...] = (
    Number(name="price", low=-20.0, high=50.0, spread=10.0),
    Flag(name="sale"),
    Category(name="colour", values=("red", "blue")),
    Counts(name="visits", values=("blue",), spread=0.5),
)


_FIELDS_APART: tuple[Feature, ...] = (
    Hashed(name="maker", field="brand", buckets=11),
    Hashed(name="asked", field="device", on="query", buckets=3),
    Number(name="purse", field="budget", on="query", spread=7.0),
    Number(name="cost", field="price", center=0.1, spread=7.0),
    Cross(name="asked.maker", of=("asked", "maker")),
    Cross(name="purse.cost", of=("purse", "cost")),
    Equal(name="fits", query="device", item="colour", missing=True),
    Category(name="paint", field="colour", values=("red", "\ufffd"), other=True, missing=True),
)
"""Features whose names differ from their fields', and whose products are not whole numbers."""

_LONE = "\ud800"
"""A text that UTF-8 can't encode, which counts as missing."""


def _specs() -> tuple[ModelSpec, ...]:
    def spec(name: str, features: tuple[Feature, ...], **more: Any) -> ModelSpec:
        return ModelSpec(name=name, model="features", features=features, **more)

    return (
        spec("shop", _SHOP, places=4),
        spec("hinge", _SHOP, loss="hinge", margin=1.0, explore=0.2, constraints=(NonNegative(weights=("colour",)),)),
        spec("pairwise", _CROSSED, loss="pairwise"),
        spec("hidden", _SHOP, places=3, hidden=2),
        spec("hidden-pairwise", _CROSSED, loss="pairwise", hidden=2),
        spec("differences", _PLAIN, places=3, gradient="finite_differences", epsilon=0.125),
        spec("differences-hinge", _PLAIN, loss="hinge", margin=2.0, gradient="finite_differences", epsilon=1.0),
        spec("fields", _FIELDS_APART, loss="hinge", margin=1.0, places=1),
    )


def features(draw: Draw) -> dict[str, Any]:
    """Return the topic: functions, hashes, specs, values, lists and swaps."""
    specs = _specs()
    older = specs[:-1]
    topic: dict[str, Any] = {
        "functions": list(_functions(draw)),
        "hashes": [[name, text, reference.hash_fraction(name, text)] for name in ("brand", "b") for text in _TEXTS],
        "specs": [
            {"spec": published_spec(spec), "names": list(spec.names), "start": list(published(spec, spec.start))}
            for spec in specs
        ],
        "values": [_values(draw, place, specs[place]) for place in (0, 2) for _ in range(60)],
        "lists": [_list(draw, place, spec) for place, spec in enumerate(older) for _ in range(12)],
        "swaps": list(_swaps(draw)),
    }
    last = len(older)
    topic["values"] += [_values(draw, last, specs[last]) for _ in range(30)]
    topic["values"] += [_valued(last, specs[last], query, item) for query, item in _ODD]
    topic["lists"] += [_list(draw, last, specs[last]) for _ in range(12)] + [_tie(last, specs[last])]
    topic["swaps"].append(_swap([2, 0, 1], [], (0.5, 0.75)))
    return topic


_ODD: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"device": "7"}, {"colour": 7}),
    ({"device": 7}, {"colour": 7.0}),
    ({"device": _LONE}, {"colour": _LONE, "brand": _LONE}),
    ({"device": "red"}, {"colour": "\ufffd", "brand": "\ufffd"}),
    ({"budget": 0.1}, {"price": 0.3}),
)
"""Unusual queries and items: wrong types, a text that UTF-8 can't encode, and a product that must be rounded."""


def _tie(place: int, spec: ModelSpec) -> dict[str, Any]:
    """Return a list whose chosen item leads by exactly the margin, so that the update is zero."""
    weights = [0.0] * spec.m
    weights[spec.positions(("fits",))[0]] = 1.0
    query, items = {"device": "red"}, [{"colour": "blue"}, {"colour": "red"}]
    return _listed(place, spec, weights, Shown(items, query, 1, None, frozenset()))


def _functions(draw: Draw) -> Iterator[list[Any]]:
    for _ in range(60):
        low, large = -(10 ** (draw.fraction() * 5 - 2)), 10 ** (draw.fraction() * 40)
        yield ["exp", low, numbers.exp(low)]
        yield ["log", large, numbers.log(large)]
        yield ["log1p", 1 / large, numbers.log1p(1 / large)]
    for x in (0.0, -1e-300, -700.0, -700.0000001, -1e308):
        yield ["exp", x, numbers.exp(x)]
    for x in (1.0, 2.0, 1.0000000000000002, 1e308):
        yield ["log", x, numbers.log(x)]
    for x in (0.0, 5e-324, 1e-16, 1.0, 1e308):
        yield ["log1p", x, numbers.log1p(x)]


def _one_of(draw: Draw, things: tuple[Any, ...]) -> Any:
    return things[draw.whole(0, len(things) - 1)]


def _row(draw: Draw) -> dict[str, Any]:
    """Return the fields of a row, some missing or of the wrong type."""
    row: dict[str, Any] = {}
    for field in _FIELDS:
        if draw.chance(0.15):
            continue
        if draw.chance(0.1):
            row[field] = _one_of(draw, _WRONG)
        elif field == "sale":
            row[field] = draw.chance(0.5)
        elif field in ("colour", "brand", "device"):
            row[field] = _one_of(draw, _TEXTS)
        elif field == "visits":
            row[field] = {
                _one_of(draw, _TEXTS): _one_of(draw, _WRONG) if draw.chance(0.2) else _number(draw) for _ in range(4)
            }
        else:
            row[field] = _number(draw)
    return row


def _number(draw: Draw) -> float:
    return _one_of(draw, _NUMBERS) if draw.chance(0.3) else draw.fraction() * 60 - 10


def _values(draw: Draw, place: int, spec: ModelSpec) -> dict[str, Any]:
    query, item = _row(draw), _row(draw)
    return _valued(place, spec, query, item)


def _valued(place: int, spec: ModelSpec, query: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    return {"spec": place, "query": query, "item": item, "values": reference.values(spec, query, item)}


def _list(draw: Draw, place: int, spec: ModelSpec) -> dict[str, Any]:
    items, query = [_row(draw) for _ in range(draw.whole(1, 7))], _row(draw)
    weights = [0.0 if draw.chance(0.1) else draw.fraction() * 2 - 1 for _ in range(spec.m)]
    pinned = [at for at in range(len(items)) if draw.chance(0.2)]
    chosen = draw.whole(-1 if draw.chance(0.1) else 0, len(items) - 1)
    seen = draw.whole(0, len(items) + 1) if draw.chance(0.4) else None
    return _listed(place, spec, weights, Shown(items, query, chosen, seen, frozenset(pinned)))


def _listed(place: int, spec: ModelSpec, weights: list[float], shown: Shown) -> dict[str, Any]:
    scores = [reference.score(spec, weights, reference.values(spec, shown.query, item)) for item in shown.items]
    return {
        "spec": place,
        "weights": weights,
        "query": shown.query,
        "items": shown.items,
        "chosen": shown.chosen,
        "seen": shown.seen,
        "pinned": sorted(shown.pinned),
        "scores": scores,
        "order": reference.order(scores, shown.pinned),
        "loss": reference.loss(spec, weights, shown),
        "update": [number + 0.0 for number in reference.update(spec, weights, shown)],
    }


def _swaps(draw: Draw) -> Iterator[dict[str, Any]]:
    for _ in range(24):
        count = draw.whole(1, 6)
        ranked = draw.some(range(count), count)
        pinned = [at for at in range(count) if draw.chance(0.3)]
        yield _swap(ranked, pinned, (draw.fraction(), draw.fraction()))


def _swap(ranked: list[int], pinned: list[int], draws: tuple[float, float]) -> dict[str, Any]:
    return {
        "ranked": ranked,
        "pinned": pinned,
        "explore": 0.5,
        "draws": draws,
        "shown": reference.swapped(ranked, frozenset(pinned), 0.5, draws),
    }
