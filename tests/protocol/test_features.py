"""The features of a spec: their weights, and their errors in a sentence."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from fedping.client_sim.learning import learner_for
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.features import (
    Bucket,
    Category,
    Counts,
    Cross,
    Equal,
    Flag,
    Hashed,
    Number,
    Product,
    Spline,
)
from fedping.protocol.model import validate_spec
from fedping.protocol.settings_file import converted
from fedping.protocol.spec import ModelSpec, NonNegative, OrderedCutoffs, Step, Weight
from fedping.protocol.study import Line, public_json, public_study, study_from_toml
from tests.support import feature_lists


def spec(*features: Any, **more: Any) -> ModelSpec:
    return ModelSpec(name="shop", model="features", features=features, **more)


EVERY = (
    Hashed(name="brand", buckets=3, missing=True),
    Number(name="price", low=0.0, log=True, missing=True),
    Flag(name="sale"),
    Category(name="colour", values=("red", "blue"), other=True, missing=True),
    Category(name="device", on="query", values=("phone", "desk")),
    Cross(name="device.price", of=("device", "price")),
    Bucket(name="age", cutoffs=(7.0, 30.5)),
    Spline(name="stars", knots=(1.0, 5.0)),
    Counts(name="visits", values=("home", "cart")),
    Equal(name="same", query="category", item="category"),
    Product(name="budget", query="budget", item="price"),
)


def test_weights_follow_from_features_single_ones_first_then_places_then_blocks() -> None:
    made = spec(*EVERY, places=3, hidden=2)
    assert list(made.names[:18]) == [
        "price",
        "price:missing",
        "sale",
        "colour=red",
        "colour=blue",
        "colour:other",
        "colour:missing",
        "age<=7",
        "age<=30.5",
        "age>30.5",
        "stars@1",
        "stars@5",
        "visits=home",
        "visits=cart",
        "same",
        "budget",
        "place 2",
        "place 3",
    ]
    assert [(block.name, block.shape) for block in made.blocks] == [
        ("brand", (4,)),
        ("device.price", (2, 2)),
        ("hidden.in", (24, 2)),
        ("hidden.bias", (2,)),
        ("hidden.out", (2,)),
    ]
    assert made.m == len(made.names) == 18 + 8 + 48 + 4
    assert made.layout.places == 16
    assert made.layout.hidden_in == 26
    assert not made.start_array[-2:].any(), "version 0 ranks by the features alone"
    assert made.start_array[26:-4].all()


def test_each_feature_says_where_its_weights_start_and_how_they_move() -> None:
    step = Step(start=2, min=1, max=3)
    made = spec(
        Number(name="price", start=-0.5, step=step, integer=True),
        Category(name="colour", values=("red", "blue", "missing"), missing=True, start={"blue": 2.0, ":missing": -1.0}),
        Bucket(name="age", cutoffs=(7.0,), start=(1.0, 2.0)),
        Hashed(name="brand", buckets=3, start=0.5),
        Cross(name="both", of=("price", "age"), start=(3.0, 4.0)),
    )
    assert made.start == (-0.5, 0.0, 2.0, 0.0, -1.0, 1.0, 2.0, 0.5, 0.5, 0.5, 3.0, 4.0)
    assert made.integer.tolist() == [True] + [False] * 11
    assert made.steps.start[0] == 2


def test_a_spec_is_read_again_as_it_was_with_the_same_digest() -> None:
    made = spec(*EVERY, places=4, hidden=2, loss="hinge", explore=0.1)
    again = msgspec.json.decode(msgspec.json.encode(made), type=ModelSpec)
    assert again == made
    assert again.digest == made.digest
    moved = replace(made, weights=(replace(made.weights[0], start=7.0), *made.weights[1:]))
    assert moved.start[0] == 7
    assert moved.digest != made.digest


@given(feature_lists.specs())
@settings(max_examples=100, deadline=None)
def test_the_model_of_a_spec_has_its_weights(drawn: ModelSpec) -> None:
    assert list(learner_for(drawn).weight_names) == list(drawn.names)
    assert msgspec.json.decode(msgspec.json.encode(drawn), type=ModelSpec) == drawn


def test_constraints_name_features_as_well_as_weights() -> None:
    made = spec(
        *EVERY, constraints=(NonNegative(weights=("brand", "colour")), OrderedCutoffs(weights=("age",), first=-1e30))
    )
    assert made.positions(("colour", "price")) == [3, 4, 5, 6, 0]
    weights = np.zeros(made.m)
    weights[7:10] = 1, 2, 3
    assert validate_spec(weights.tolist(), made) is None
    weights[2] = -1
    assert validate_spec(weights.tolist(), made) is None
    weights[made.positions(("brand",))[1]] = -1
    assert "brand[1]" in str(validate_spec(weights.tolist(), made))


@pytest.mark.parametrize(
    ("features", "more", "fragments"),
    [
        ((), {}, ("no features",)),
        ((Number(name="a"), Flag(name="a")), {}, ("two features", "'a'")),
        ((Number(name="a", low=2.0, high=1.0),), {}, ("'a'", "low = 2")),
        ((Number(name="a", log=True),), {}, ("'a'", "log = true", "low = 0")),
        ((Number(name="a", log=True, low=-1.0),), {}, ("log = true",)),
        ((Category(name="a", values=("x", "x")),), {}, ("'x' twice",)),
        ((Bucket(name="a", cutoffs=(1.0, 1.0)),), {}, ("cutoffs", "don't increase")),
        ((Spline(name="a", knots=(2.0, 1.0)),), {}, ("knots", "don't increase")),
        ((Number(name="a"), Cross(name="c", of=("a", "b"))), {}, ("'c'", "'b'", "not a feature")),
        ((Number(name="a"), Cross(name="c", of=("a", "a"))), {}, ("twice",)),
        (
            (Number(name="a"), Flag(name="b"), Cross(name="c", of=("a", "b")), Cross(name="d", of=("a", "c"))),
            {},
            ("'d'", "cross 'c'"),
        ),
        ((Number(name="a"), Flag(name="q", on="query")), {}, ("'q'", "of the query alone")),
        (
            (
                Number(name="a"),
                Flag(name="q", on="query"),
                Flag(name="r", on="query"),
                Cross(name="c", of=("q", "r")),
            ),
            {},
            ("'c'", "two features of the query"),
        ),
        ((Number(name="a", start=(1.0, 2.0)),), {}, ("'start'", "2 numbers", "1 weights")),
        ((Category(name="a", values=("x",), start={"y": 1.0}),), {}, ("'start'", "'y'")),
        ((Category(name="a" * 30, values=("x" * 40,)),), {}, ("71 characters",)),
        ((Number(name="a"),), {"weights": (Weight("b", 0.0, Step(1, 1, 1)),)}, ("do not fit", "'b'", "'a'")),
        ((Number(name="a"),), {"settings": {"x": 1}}, ("no settings",)),
        ((Number(name="a"),), {"hidden": 2, "gradient": "finite_differences"}, ("hidden",)),
        ((Number(name="a", step=Step(1, 2, 3)),), {}, ("step.start",)),
        (tuple(Hashed(name=f"h{i}", buckets=1_000_000) for i in range(3)), {}, ("3,000,000 weights",)),
        ((Number(name="a"),), {"constraints": (NonNegative(weights=("b",)),)}, ("'b'",)),
    ],
)
def test_what_is_wrong_with_features_is_said(
    features: tuple[Any, ...], more: dict[str, Any], fragments: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        spec(*features, **more)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_other_models_have_no_features() -> None:
    weights = (Weight("a", 0.0, Step(1, 1, 1)),)
    with pytest.raises(InvalidSettings, match="'places'"):
        ModelSpec(name="s", model="linear-15", weights=weights, places=3)


@pytest.mark.parametrize(
    ("feature", "fragment"),
    [
        ({"kind": "numbr", "name": "a"}, "numbr"),
        ({"kind": "number", "name": "a", "lowest": 1}, "lowest"),
        ({"kind": "number", "name": "a", "spread": 0}, "spread"),
        ({"kind": "hashed", "name": "a", "buckets": 1}, "buckets"),
        ({"kind": "number", "name": "a b"}, "name"),
        ({"kind": "category", "name": "a", "values": []}, "values"),
    ],
)
def test_a_file_with_a_wrong_feature_is_refused_in_a_sentence(feature: dict[str, Any], fragment: str) -> None:
    table = {"name": "main", "spec": {"name": "s", "model": "features", "features": [feature]}}
    with pytest.raises(InvalidSettings) as caught:
        converted(table, Line, "the file: ")
    assert fragment in str(caught.value)


def test_a_study_file_needs_features_alone_and_clients_get_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        """
name = "shop"
pings = "model-update"
[[arms]]
name = "ranked"
share = 1.0
line = "main"
applies = true
submits = true
[[lines]]
name = "main"
[lines.spec]
name = "shop"
model = "features"
places = 3
[[lines.spec.features]]
kind = "number"
name = "shop_score"
start = 1
[[lines.spec.features]]
kind = "category"
name = "colour"
values = ["red", "blue"]
start = { red = 0.5 }
"""
    )
    study = study_from_toml(path, new=True)
    sent = msgspec.json.decode(public_json(public_study(study)))["lines"][0]["spec"]
    assert [weight["name"] for weight in sent["weights"]] == [
        "shop_score",
        "colour=red",
        "colour=blue",
        "place 2",
        "place 3",
    ]
    assert [weight["start"] for weight in sent["weights"]] == [1, 0.5, 0, 0, 0]
    assert [feature["kind"] for feature in sent["features"]] == ["number", "category"]
    assert sent["loss"] == "softmax"


def test_the_shop_of_the_docs_is_a_study(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "features.md").read_text()
    path = tmp_path / "shop.toml"
    path.write_text(page.split("```toml\n")[1].split("```")[0])
    study = study_from_toml(path, new=True)
    made = study.line("main").spec
    assert list(made.names)[:2] == ["shop_score", "price"]
    assert made.start[0] == 1
    assert not any(made.start[1:])
    assert made.m == 3 + 4 + 3 + 9 + 1000 + 4
