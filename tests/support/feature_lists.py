"""Specs with features of all kinds, and lists of items for them, drawn by Hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

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
from fedping.protocol.spec import ModelSpec

TEXTS = ("red", "blue", "", "é", "e\u0301", "red\n", "\ud800", "long text")
FIELDS = ("a", "b", "c")

_numbers = st.one_of(
    st.integers(-5, 60),
    st.floats(-1e3, 1e3),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([10**400, 2**60 + 1, 5e-324]),
)
anything = st.one_of(
    _numbers,
    st.booleans(),
    st.none(),
    st.sampled_from(TEXTS),
    st.dictionaries(st.sampled_from(TEXTS), st.one_of(_numbers, st.booleans(), st.sampled_from(TEXTS)), max_size=3),
    st.lists(st.integers(), max_size=2),
)
rows = st.dictionaries(st.sampled_from(FIELDS), anything)
_limits = st.sampled_from([(None, None), (0.0, None), (-3.5, 40.0), (0.0, 7.0)])
_rising = st.lists(st.integers(-20, 60), min_size=2, max_size=4, unique=True).map(sorted)


@st.composite
def features(draw: st.DrawFn, name: str, on: str = "item") -> Feature:
    """Draw a feature of any kind except a cross; if ``on`` is ``query``, it reads one field."""
    kinds = ("number", "flag", "category", "hashed", "bucket", "spline", "counts")
    kind = draw(st.sampled_from(kinds if on == "query" else (*kinds, "equal", "product")))
    field = {"field": draw(st.sampled_from(FIELDS)), "on": on}
    both = {"query": draw(st.sampled_from(FIELDS)), "item": draw(st.sampled_from(FIELDS))}
    common: dict[str, Any] = {"name": name, "missing": draw(st.booleans())}
    if on == "item" and draw(st.booleans()) and kind != "hashed":
        common["start"] = draw(st.floats(-2, 2))
    low, high = draw(_limits)
    scale: dict[str, Any] = {"center": draw(st.floats(-5, 5)), "spread": draw(st.sampled_from([1.0, 0.3, 1e-20, 7.0]))}
    values = tuple(draw(st.lists(st.sampled_from(TEXTS[:2] + TEXTS[3:6]), min_size=1, max_size=3, unique=True)))
    match kind:
        case "number":
            log = low is not None and low >= 0 and draw(st.booleans())
            return Number(**common, **field, low=low, high=high, log=log, **scale)
        case "flag":
            return Flag(**common, **field)
        case "category":
            return Category(**common, **field, values=values, other=draw(st.booleans()))
        case "hashed":
            return Hashed(**common, **field, buckets=draw(st.integers(2, 9)))
        case "bucket":
            return Bucket(**common, **field, cutoffs=tuple(map(float, draw(_rising))))
        case "spline":
            return Spline(**common, **field, knots=tuple(map(float, draw(_rising))))
        case "counts":
            return Counts(**common, **field, values=values, log=draw(st.booleans()), spread=scale["spread"])
        case "equal":
            return Equal(**common, **both)
        case _:
            return Product(**common, **both, low=low, high=high, **scale)


@st.composite
def specs(draw: st.DrawFn, gradient: str = "analytic") -> ModelSpec:
    """Draw a spec with some features and any loss, with or without places and a hidden layer."""
    own = [draw(features(f"f{number}")) for number in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        asked = draw(features("q", "query"))
        own += [asked, Cross(name="x", of=draw(st.sampled_from([("q", "f0"), ("f0", "q")])))]
    own = list(draw(st.permutations(own)))
    return ModelSpec(
        name="drawn",
        model="features",
        features=tuple(own),
        loss=draw(st.sampled_from(["softmax", "hinge", "pairwise"])),
        places=draw(st.sampled_from([0, 2, 4])),
        hidden=0 if gradient != "analytic" else draw(st.sampled_from([0, 0, 3])),
        gradient=gradient,
        margin=draw(st.sampled_from([0.0, 1.0])),
        epsilon=0.25,
    )


@st.composite
def lists(draw: st.DrawFn) -> Shown:
    """Draw a list of one to five items, which may lack fields, with or without a choice."""
    items = draw(st.lists(rows, min_size=1, max_size=5))
    return Shown(
        items=items,
        query=draw(rows),
        chosen=draw(st.integers(-1, len(items) - 1)),
        seen=draw(st.one_of(st.none(), st.integers(0, 7))),
        pinned=frozenset(draw(st.sets(st.integers(0, len(items) - 1)))),
    )
