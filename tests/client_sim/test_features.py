"""A product's own features: the vectorised values, scores, losses and updates equal the plain loops' to the bit."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.client_sim.features import numbers, reference, vectors
from fedping.client_sim.features.encode import encode
from fedping.client_sim.features.reference import Shown
from fedping.client_sim.learning.lists import lists_from
from fedping.protocol.features import Bucket, Category, Cross, Flag, Hashed, Number, Spline
from fedping.protocol.spec import ModelSpec
from tests.support import feature_lists


def drawn_weights(spec: ModelSpec, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=spec.m)


@given(st.data(), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_many_lists_at_once_have_the_bits_of_each_alone(data: st.DataObject, seed: int) -> None:
    spec = data.draw(feature_lists.specs())
    shown = data.draw(st.lists(feature_lists.lists(), min_size=1, max_size=4))
    weights = drawn_weights(spec, seed)
    batch = lists_from(spec, shown)
    scores = vectors.scores(spec, weights, batch)
    losses, updates = vectors.losses_and_updates(spec, weights, batch)
    own = np.repeat(weights[:, None], len(shown), axis=1)
    own_losses, own_updates = vectors.losses_and_updates(spec, own, batch)
    for n, each in enumerate(shown):
        expected = [
            reference.score(spec, weights.tolist(), reference.values(spec, each.query, item)) for item in each.items
        ]
        assert scores[: len(each.items), n].tolist() == expected
        assert np.isneginf(scores[len(each.items) :, n]).all()
        assert losses[n] == own_losses[n] == reference.loss(spec, weights.tolist(), each)
        expected = reference.update(spec, weights.tolist(), each)
        assert updates[:, n].tolist() == own_updates[:, n].tolist() == expected


@given(st.data(), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_finite_differences_have_the_bits_of_each_list_alone(data: st.DataObject, seed: int) -> None:
    spec = data.draw(feature_lists.specs("finite_differences"))
    shown = data.draw(st.lists(feature_lists.lists(), min_size=1, max_size=3))
    weights = drawn_weights(spec, seed)
    updates = vectors.updates(spec, weights, lists_from(spec, shown))
    for n, each in enumerate(shown):
        assert updates[:, n].tolist() == reference.update(spec, weights.tolist(), each)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_values_of_columns_are_those_of_each_item(data: st.DataObject) -> None:
    spec = data.draw(feature_lists.specs())
    items = data.draw(st.lists(feature_lists.rows, min_size=1, max_size=4))
    query = data.draw(feature_lists.rows)
    columns = {field: [item.get(field) for item in items] for field in feature_lists.FIELDS}
    slots = encode(
        spec,
        columns,
        {field: [query.get(field)] for field in feature_lists.FIELDS},
        np.arange(len(items)),
        np.zeros(len(items), np.intp),
    )
    for n, item in enumerate(items):
        found = [(at, value) for at, value in zip(slots.at[:, n], slots.value[:, n], strict=True) if value != 0]
        assert found == reference.values(spec, query, item)


@pytest.mark.parametrize("loss", ["softmax", "pairwise", "hinge"])
@pytest.mark.parametrize("hidden", [0, 4])
def test_the_update_is_minus_the_gradient_of_the_loss(loss: Any, hidden: int) -> None:
    rng = np.random.default_rng(3)
    spec = ModelSpec(
        name="s",
        model="features",
        features=(Number(name="a"), Category(name="b", values=("x", "y"), other=True)),
        loss=loss,
        places=3,
        hidden=hidden,
        margin=0.7,
    )
    items = [{"a": float(rng.normal()), "b": str(rng.choice(["x", "y", "z"]))} for _ in range(5)]
    shown = Shown(items, {}, 2, seen=4)
    weights = rng.normal(size=spec.m)
    update = reference.update(spec, weights.tolist(), shown)
    for k in range(spec.m):
        less, more = weights.copy(), weights.copy()
        less[k] -= 1e-6
        more[k] += 1e-6
        slope = (reference.loss(spec, less.tolist(), shown) - reference.loss(spec, more.tolist(), shown)) / 2e-6
        assert math.isclose(update[k], slope, abs_tol=1e-6)


@given(st.floats(-800, 0), st.floats(1, 1e300), st.floats(0, 1e300))
@settings(max_examples=500)
def test_exp_and_log_are_within_a_unit_in_the_last_place(low: float, large: float, x: float) -> None:
    assert math.isclose(numbers.exp(low), math.exp(low) if low >= -700 else 0.0, rel_tol=4.5e-16)
    assert math.isclose(numbers.log(large), math.log(large), rel_tol=4.5e-16)
    assert math.isclose(numbers.log1p(x), math.log1p(x), rel_tol=4.5e-16)


def values_of(*features: Any, item: dict[str, Any], query: dict[str, Any] | None = None) -> dict[str, float]:
    spec = ModelSpec(name="s", model="features", features=features)
    return {spec.names[at]: value for at, value in reference.values(spec, query or {}, item)}


def test_a_missing_value_adds_nothing_or_has_a_weight_of_its_own() -> None:
    plain, own = Number(name="a"), Number(name="a", missing=True)
    for missing in (None, float("nan"), float("inf"), "7", True, [], {}):
        assert values_of(plain, item={"a": missing}) == {}
        assert values_of(own, item={"a": missing}) == {"a:missing": 1.0}
    assert values_of(own, item={}) == {"a:missing": 1.0}
    assert values_of(own, item={"a": 0}) == {}
    assert values_of(Flag(name="a", missing=True), item={"a": 1}) == {"a:missing": 1.0}


def test_texts_are_compared_exactly_and_others_have_a_weight_where_asked() -> None:
    colour = Category(name="c", values=("red", "é"), other=True, missing=True)
    assert values_of(colour, item={"c": "red"}) == {"c=red": 1.0}
    assert values_of(colour, item={"c": "Red"}) == {"c:other": 1.0}
    assert values_of(colour, item={"c": "e\u0301"}) == {"c:other": 1.0}
    assert values_of(colour, item={"c": 7}) == {"c:missing": 1.0}
    assert values_of(Category(name="c", values=("red",)), item={"c": "blue"}) == {}


def test_cutoffs_are_inclusive_and_splines_are_linear_between_knots_and_level_beyond() -> None:
    bucket = Bucket(name="b", cutoffs=(10.0, 20.5))
    assert [next(iter(values_of(bucket, item={"b": x}))) for x in (-1e9, 10, 10.5, 20.5, 21)] == [
        "b<=10",
        "b<=10",
        "b<=20.5",
        "b<=20.5",
        "b>20.5",
    ]
    spline = Spline(name="s", knots=(0.0, 4.0, 8.0))
    assert values_of(spline, item={"s": 1}) == {"s@0": 0.75, "s@4": 0.25}
    assert values_of(spline, item={"s": -3}) == {"s@0": 1.0}
    assert values_of(spline, item={"s": 4}) == {"s@4": 1.0}
    assert values_of(spline, item={"s": 80}) == {"s@8": 1.0}


def test_a_cross_has_a_weight_for_each_pair_row_by_row() -> None:
    features = (
        Category(name="device", on="query", values=("phone", "desk"), missing=True),
        Number(name="price", missing=True),
        Cross(name="both", of=("device", "price")),
    )
    assert values_of(*features, item={"price": 3}, query={"device": "desk"}) == {"price": 3.0, "both[1,0]": 3.0}
    assert values_of(*features, item={}, query={}) == {"price:missing": 1.0, "both[2,1]": 1.0}


def test_a_hash_is_that_of_the_name_a_newline_and_the_text() -> None:
    import hashlib

    digest = hashlib.sha256("brand\nÉté".encode()).digest()
    bucket = int(int.from_bytes(digest[:6], "big") / 2**48 * 1000)
    found = values_of(Hashed(name="brand", buckets=1000), item={"brand": "Été"})
    assert found == {f"brand[{bucket}]": 1.0}


def test_pinned_items_keep_their_place_and_ties_the_given_order() -> None:
    assert reference.order([1.0, 3.0, 3.0, 2.0]) == [1, 2, 3, 0]
    assert reference.order([1.0, 3.0, 3.0, 2.0], frozenset({0, 3})) == [0, 1, 2, 3]
    assert reference.order([1.0, 2.0, 3.0], frozenset({1})) == [2, 1, 0]


def test_swaps_are_of_neighbours_that_are_not_pinned() -> None:
    ranked = [4, 3, 2, 1, 0]
    assert reference.swapped(ranked, frozenset(), 0.2, (0.2, 0.5)) == ranked
    assert reference.swapped(ranked, frozenset(), 0.2, (0.1, 0.5)) == [4, 3, 1, 2, 0]
    assert reference.swapped(ranked, frozenset({0, 2}), 1.0, (0.0, 0.9)) == [4, 3, 2, 0, 1]
    assert reference.swapped([0, 1], frozenset({0}), 1.0, (0.0, 0.9)) == [0, 1]


def test_pinned_items_teach_nothing_without_offsets_of_places() -> None:
    items = [{"a": 9}, {"a": 1}, {"a": 2}]
    spec = ModelSpec(name="s", model="features", features=(Number(name="a"),))
    pinned = Shown(items, {}, 2, pinned=frozenset({0}))
    without = Shown(items[1:], {}, 1)
    assert reference.update(spec, [0.3], pinned) == reference.update(spec, [0.3], without)
    assert reference.update(spec, [0.3], Shown(items, {}, 0, pinned=frozenset({0}))) == [0.0]
    offsets = ModelSpec(name="s", model="features", features=(Number(name="a"),), places=3)
    assert reference.update(offsets, [0.3, 0.0, 0.0], pinned)[0] != reference.update(spec, [0.3], without)[0]
