"""The meaning of features' weights in words: compared with hand-written texts, and with clients' numbers."""

import re
from pathlib import Path

import pytest

from fedping.client_sim.features import reference
from fedping.dashboard.live.units import units_of
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
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.optimize import first_versions
from tests.support.dashboard import dashboard_client
from tests.support.versions import WHEN, small_study
from tests.support.walks import walked_store

FEATURES: tuple[Feature, ...] = (
    Number(name="shop_score", start=1.0),
    Number(name="price", field="amount", low=0.0, log=True, center=3.5, spread=1.2, missing=True),
    Flag(name="rare"),
    Category(name="condition", values=("new", "used"), other=True),
    Bucket(name="age", cutoffs=(1.0, 30.0)),
    Spline(name="rating", knots=(1.0, 4.5)),
    Counts(name="visits", values=("typed",), log=True, spread=2.0),
    Equal(name="same", query="last", item="topic", missing=True),
    Product(name="near", query="speed", item="distance", center=2.0, spread=0.5),
    Category(name="device", on="query", values=("phone", "desktop")),
    Hashed(name="brand", buckets=2, missing=True),
    Cross(name="device.price", of=("device", "price")),
)
SPEC = ModelSpec(name="shop", model="features", features=FEATURES, places=3)

WORDS = {
    "shop_score": "shop_score: 1 instead of 0",
    "price": "amount: 108.9 instead of 32.12",
    "price:missing": "no amount",
    "rare": "rare: true",
    "condition=new": "condition: new",
    "condition=used": "condition: used",
    "condition:other": "condition: another text",
    "age<=1": "age: up to 1",
    "age<=30": "age: up to 30",
    "age>30": "age: more than 30",
    "rating@1": "rating: 1",
    "rating@4.5": "rating: 4.5",
    "visits=typed": "visits.typed: 6.389 instead of 0",
    "same": "topic equal to the query's last",
    "same:missing": "no last or topic",
    "near": "distance times the query's speed: 2.5 instead of 2",
    "place 2": "place 2, not the top",
    "place 3": "place 3, not the top",
    "brand[0]": "a brand in bucket 0 of 2",
    "brand[1]": "a brand in bucket 1 of 2",
    "brand[2]": "no brand",
    "device.price[0,0]": "device: phone; and amount: 108.9 instead of 32.12",
    "device.price[0,1]": "device: phone; and no amount",
    "device.price[1,0]": "device: desktop; and amount: 108.9 instead of 32.12",
    "device.price[1,1]": "device: desktop; and no amount",
}


def test_every_kind_of_weight_has_its_words() -> None:
    found = units_of(SPEC, range(SPEC.m))
    assert found is not None
    assert dict(zip(SPEC.names, (unit.gains for unit in found.units), strict=True)) == WORDS
    assert found.loss == "softmax"


def test_some_weights_have_the_same_words_as_among_all() -> None:
    all_of_them, some = units_of(SPEC, range(SPEC.m)), units_of(SPEC, (20, 3))
    assert all_of_them is not None
    assert some is not None
    assert some.units == (all_of_them.units[20], all_of_them.units[3])


def test_a_step_adds_one_to_the_value_that_clients_compute() -> None:
    by_name = {feature.name: feature for feature in FEATURES}
    for name, make in (
        ("price", lambda x: ({}, {"amount": x})),
        ("visits", lambda x: ({}, {"visits": {"typed": x}})),
        ("near", lambda x: ({"speed": 1.0}, {"distance": x})),
    ):
        feature = by_name[name]
        words = next(text for weight, text in WORDS.items() if weight.startswith(name))
        high, low = (float(each) for each in re.findall(r"(\S+) instead of (\S+)", words)[0])
        values = [dict(reference.feature_values(feature, by_name, *make(each))).get(0, 0.0) for each in (high, low)]
        assert values[0] - values[1] == pytest.approx(1, abs=1e-3)


def test_a_hidden_layer_is_named_and_other_models_have_no_units() -> None:
    deep = ModelSpec(name="deep", model="features", features=(Number(name="x"),), hidden=2)
    found = units_of(deep, range(deep.m))
    assert found is not None
    assert [unit.kind for unit in found.units] == ["number"] + ["hidden"] * (deep.m - 1)
    assert units_of(small_study().lines[0].spec, (0, 1)) is None


def test_the_page_has_the_units_of_a_study_of_features_alone(tmp_path: Path) -> None:
    store = walked_store(tmp_path / "store", small_study(), 1)
    arm = Arm(name="ranked", share=1.0, line="main", applies=True, submits=True)
    shop = Study(name="shop", pings="list-update", arms=(arm,), lines=(Line(name="main", spec=SPEC),))
    store.create_study(shop, first_versions(shop, created=WHEN, code_version="test"))
    client = dashboard_client(tmp_path)
    pages = {name: client.get(f"/live/{name}/main/", headers={"Accept": "text/html"}) for name in ("shop", "study")}
    has = {name: 'id="features"' in page.get_data(as_text=True) for name, page in pages.items()}
    assert has == {"shop": True, "study": False}
    told = client.get("/live/shop/main/history.json").get_json()["features"]
    assert [unit["gains"] for unit in told["units"]] == list(WORDS.values())
    assert client.get("/live/study/main/history.json").get_json()["features"] is None
