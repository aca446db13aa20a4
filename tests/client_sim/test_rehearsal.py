"""A rehearsal's catalogue, users and outcomes, without a server."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from fedping.client_sim.features import reference
from fedping.client_sim.rehearsal.catalogue import catalogue_for
from fedping.client_sim.rehearsal.outcomes import check_laws, followed
from fedping.client_sim.rehearsal.recovered import Judge
from fedping.client_sim.rehearsal.settings import OutcomeLaw, Rehearsal, read_rehearsal
from fedping.client_sim.rehearsal.users import Users, VisitData, chosen, users_of
from fedping.protocol.draws import Keys, child_keys, root_key
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.features import Category, Counts, Cross, Equal, Flag, Number
from fedping.protocol.outcomes import CategoryOutcome, CountOutcome, FlagOutcome, NumberOutcome
from fedping.protocol.spec import ModelSpec

SPEC = ModelSpec(
    name="shop",
    model="features",
    features=(
        Number(name="price", start=1.0),
        Flag(name="fresh"),
        Category(name="size", values=("38", "40")),
        Counts(name="tags", values=("sale", "eco")),
        Category(name="device", on="query", values=("phone", "desk")),
        Cross(name="device.price", of=("device", "price")),
        Equal(name="same", query="wish", item="size"),
    ),
)
ITEMS = """id,price,fresh,size,tags.sale,tags.eco,ad
a,3,true,38,1,0,false
b,1,false,40,0,2,false
c,2,,38,,,true
d,0.5,true,40,3,1,false
"""
QUERIES = """device,wish,finds
phone,38,a b c
desk,40,d c
"""


def keys(count: int, seed: int = 1) -> Keys:
    return child_keys(root_key(seed), np.arange(count))


def tables(folder: Path, **settings: Any) -> Rehearsal:
    (folder / "items.csv").write_text(ITEMS)
    (folder / "queries.csv").write_text(QUERIES)
    own = {"items": str(folder / "items.csv"), "queries": str(folder / "queries.csv"), "shown": 3}
    return Rehearsal(**{**own, **settings})


def by_price(rehearsal: Rehearsal | None = None, **settings: Any) -> Users:
    """Return users who want expensive items; the items are random, with only a price."""
    spec = ModelSpec(name="one", model="features", features=(Number(name="price", start=1.0),))
    return users_of(spec, rehearsal or Rehearsal(**({"truth": {"price": 1.0}} | settings)), keys(1))


def test_lists_of_a_table_have_the_values_that_every_client_computes(tmp_path: Path) -> None:
    offered = catalogue_for(SPEC, tables(tmp_path, candidates="finds")).offered(keys(40))
    items = {
        "a": {"price": 3, "fresh": True, "size": "38", "tags": {"sale": 1, "eco": 0}},
        "b": {"price": 1, "fresh": False, "size": "40", "tags": {"sale": 0, "eco": 2}},
        "c": {"price": 2, "size": "38", "tags": {}},
        "d": {"price": 0.5, "fresh": True, "size": "40", "tags": {"sale": 3, "eco": 1}},
    }
    expected = {
        count: [dict(reference.values(SPEC, query, items[name])) for name in names]
        for count, query, names in (
            (3, {"device": "phone", "wish": "38"}, "abc"),
            (2, {"device": "desk", "wish": "40"}, "dc"),
        )
    }
    assert {*offered.shown.tolist()} == {2, 3}
    for at, value, shown in zip(offered.at, offered.value, offered.shown.tolist(), strict=True):
        found = [
            {p: v for p, v in zip(a, b, strict=True) if v} for a, b in zip(at.tolist(), value.tolist(), strict=True)
        ]
        assert found[:shown] == expected[shown]


def test_any_items_are_candidates_as_likely_as_all_others(tmp_path: Path) -> None:
    """In 6,000 lists of 3 of 4 items, each item is expected 4,500 times; the bound is 6 deviations of 34, p < 1e-8."""
    parquet = tmp_path / "items.parquet"
    pq.write_table(pa.table({"price": [1.0, 2.0, 3.0, 4.0]}), parquet)
    spec = ModelSpec(name="one", model="features", features=(Number(name="price"),))
    offered = catalogue_for(spec, Rehearsal(items=str(parquet), shown=3)).offered(keys(6000))
    first = offered.value[:, 0, 0]
    for price in (1.0, 2.0, 3.0, 4.0):
        assert abs((offered.value[..., 0] == price).any(axis=1).sum() - 4500) < 200
        assert abs((first == price).sum() - 1500) < 200
    assert (np.sort(offered.value[..., 0], axis=1)[:, 1:] > np.sort(offered.value[..., 0], axis=1)[:, :-1]).all()


@pytest.mark.parametrize(
    ("items", "queries", "settings", "sentence"),
    [
        ("id,price\na,1\nb,2\n", QUERIES, {}, "has no column 'fresh', which feature 'fresh' reads"),
        (ITEMS.replace("a,3", "a,cheap"), QUERIES, {}, "row 1: 'price' is 'cheap', and feature 'price' reads a number"),
        (ITEMS.replace("true", "yes"), QUERIES, {}, "feature 'fresh' reads true or false"),
        (ITEMS, QUERIES.replace("d c", "d x"), {"candidates": "finds"}, "row 2: 'finds' names the item 'x'"),
        (ITEMS, QUERIES.replace("d c", "d"), {"candidates": "finds"}, "row 2: 'finds' has 1 items"),
        (ITEMS, QUERIES, {"candidates": "finds", "key": "sku"}, "has no column 'sku'"),
        (ITEMS, QUERIES, {"pinned": "sponsored"}, "has no column 'sponsored'; it has id, price"),
        (ITEMS, QUERIES, {"queries": None}, "feature 'device' reads the field 'device' of the query"),
        (ITEMS, QUERIES, {"truth": {"colour": 1.0}}, "'truth' names 'colour', which is neither a weight nor a feature"),
        (ITEMS.replace("fresh", "price"), QUERIES, {}, "has the column 'price' twice"),
        (ITEMS[: ITEMS.index("b,")], QUERIES, {}, "has 1 items, and a list needs 2"),
    ],
)
def test_a_table_that_does_not_fit_has_a_sentence(
    tmp_path: Path, items: str, queries: str, settings: dict[str, Any], sentence: str
) -> None:
    rehearsal = tables(tmp_path)
    (tmp_path / "items.csv").write_text(items)
    (tmp_path / "queries.csv").write_text(queries)
    with pytest.raises(FedpingError) as error:
        users_of(SPEC, replace(rehearsal, **settings), keys(1))
    assert sentence in str(error.value)


def test_lists_in_a_table_of_parquet_that_do_not_fit_have_a_sentence(tmp_path: Path) -> None:
    rehearsal = replace(tables(tmp_path), candidates="finds", queries=str(tmp_path / "queries.parquet"))
    pq.write_table(
        pa.table({"device": ["phone"], "wish": ["38"], "finds": [["a", None]]}), tmp_path / "queries.parquet"
    )
    with pytest.raises(InvalidSettings, match="'finds' names the item 'None'"):
        catalogue_for(SPEC, rehearsal)
    pq.write_table(
        pa.table({"device": [[1], [2]], "wish": ["38"] * 2, "finds": [["a", "b"]] * 2}), tmp_path / "queries.parquet"
    )
    with pytest.raises(InvalidSettings, match="'device' is '\\[1\\]'"):
        catalogue_for(SPEC, rehearsal)


def test_a_table_that_would_unpack_beyond_the_bound_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedping.client_sim.rehearsal.catalogue.MOST_BYTES", 50_000)
    repeated = pa.table({"price": [1.0] * 100_000, "note": [f"{n}" * 9 for n in range(100_000)]})
    pq.write_table(repeated, tmp_path / "items.parquet", compression="zstd")
    (tmp_path / "items.csv.gz").write_bytes(gzip.compress(b"price\n" + b"1\n" * 100_000))
    spec = ModelSpec(name="one", model="features", features=(Number(name="price"),))
    for name in ("items.parquet", "items.csv.gz"):
        with pytest.raises(InvalidSettings, match="more than 50,000 bytes unpacked"):
            catalogue_for(spec, Rehearsal(items=str(tmp_path / name)))


def test_a_file_names_its_tables_from_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text('items = "items.csv"\nlook = "cascade"\n[truth]\nprice = -1\n')
    found = read_rehearsal(tmp_path / "fleet.toml")
    assert (found.items, found.look, found.truth) == (str(tmp_path / "items.csv"), "cascade", {"price": -1.0})
    (tmp_path / "fleet.toml").write_text('look = "nowhere"\n')
    with pytest.raises(InvalidSettings, match="look"):
        read_rehearsal(tmp_path / "fleet.toml")
    (tmp_path / "fleet.toml").write_text('[truth]\nfresh = 1\n"colour=red" = "much"\n')
    with pytest.raises(InvalidSettings, match=r"'colour=red' in \[truth\] is 'much': expected a number, got a text"):
        read_rehearsal(tmp_path / "fleet.toml")


def test_lists_are_in_the_order_of_the_weights_that_apply_and_pins_stand_on_top(tmp_path: Path) -> None:
    users = users_of(SPEC, tables(tmp_path, candidates="finds", pinned="ad"), keys(1))
    visits = users.visits(keys(60), keys(60), SPEC.start_array, 0)
    long = visits.rows(np.flatnonzero(visits.shown == 3))
    assert (long.value[:, :, 0] == [2.0, 3.0, 1.0]).all(), "the advertisement c, then a and b by their prices"
    assert (long.pinned == [True, False, False]).all()
    cheap = users.visits(keys(60), keys(60), -SPEC.start_array, 0)
    assert (cheap.value[cheap.shown == 3][:, :, 0] == [2.0, 1.0, 3.0]).all()


def test_a_clients_lists_do_not_depend_on_who_else_is_asked_for() -> None:
    users = by_price(tastes=0.5, leave=0.2)
    data = VisitData(users, keys(9, 2), keys(9, 3), np.array([3, 0, 2, 5, 1, 4, 2, 2, 3]), np.ones(1), 4)
    everyone, some = data.batch(np.arange(9)), data.batch(np.array([5, 2]))
    for name in ("at", "value", "y", "shown", "seen", "pinned"):
        whole, part = getattr(everyone, name), getattr(some, name)
        assert (part[0, :4] == whole[5, :4]).all()
        assert (part[1, :2] == whole[2, :2]).all()
    assert everyone.weight.sum(axis=1).tolist() == data.sizes.tolist()


def test_users_look_as_their_way_to_look_says() -> None:
    """In 20,000 lists, shares are within .015, which is 4 deviations of the widest."""
    rng = np.random.default_rng(5)
    equal = np.zeros((20_000, 2))
    noise, considered = rng.gumbel(size=equal.shape), rng.random(equal.shape)

    def shares(look: Any, utility: np.ndarray) -> list[float]:
        place = chosen(look, utility, noise, considered)
        return [float((place == each).mean()) for each in (0, 1, -1)]

    assert shares("all", equal) == pytest.approx([0.5, 0.5, 0.0], abs=0.015)
    first = 1 / (1 + 2**-1.35)
    assert shares("place", equal) == pytest.approx([first, 1 - first, 0.0], abs=0.015)
    both = 2**-0.82
    assert shares("consider", equal) == pytest.approx([1 - both / 2, both / 2, 0.0], abs=0.015)
    enough = 1 - np.exp(-np.exp(-1.15))
    assert shares("cascade", equal) == pytest.approx([enough, (1 - enough) * enough, (1 - enough) ** 2], abs=0.015)
    padded = np.array([[0.0, -np.inf]])
    assert all(chosen(look, padded, noise[:1], considered[:1])[0] <= 0 for look in ("all", "place", "cascade"))


def test_tastes_noise_leaving_and_drift_change_what_is_chosen() -> None:
    def share_on_top(iteration: int = 0, **settings: Any) -> float:
        users = by_price(look="all", **settings)
        visits = users.visits(keys(2000), keys(2000, 7), np.ones(1), iteration)
        return float((visits.chosen == 0).mean())

    assert share_on_top(noise=0.0) == 1.0
    assert 0.2 < share_on_top(noise=2.0) < 0.6
    assert share_on_top(noise=0.0, leave=0.3) == pytest.approx(0.7, abs=0.05)
    assert share_on_top(noise=0.0, tastes=1.0) == pytest.approx(0.84, abs=0.04), "one user in six wants cheap items"
    assert share_on_top(noise=0.0, drift={"price": -0.5}, iteration=3) == 0.0


def test_a_share_of_the_lists_has_two_neighbours_swapped() -> None:
    spec = ModelSpec(name="one", model="features", features=(Number(name="price", start=1.0),), explore=0.3)
    visits = users_of(spec, Rehearsal(truth={"price": 1.0}), keys(1)).visits(keys(4000), keys(4000), np.ones(1), 0)
    ascending = (np.diff(visits.value[..., 0], axis=1) > 0).sum(axis=1)
    assert (ascending == visits.swapped).all()
    assert visits.swapped.mean() == pytest.approx(0.3, abs=0.03)


def test_the_truth_recovers_all_of_the_gain_and_the_start_none() -> None:
    users = by_price(truth={"price": -1.0})
    judge = Judge(users, np.ones(1), seed=3)
    best, start = judge.recovered(5, -np.ones(1)), judge.recovered(-1, np.ones(1))
    assert (best.version, best.gain, best.cosine, best.ndcg) == (5, 1.0, 1.0, pytest.approx(1.0))
    assert (start.gain, start.cosine) == (0.0, -1.0)
    assert start.mrr < best.mrr
    assert judge.recovered(0, np.zeros(1)).cosine is None
    assert Judge(users, -np.ones(1), seed=3).recovered(0, np.ones(1)).gain is None, "there is nothing to gain"


DECLARED = (
    FlagOutcome(name="basket"),
    CountOutcome(name="opened", most=20),
    NumberOutcome(name="paid", low=0.0, high=500.0, round=0.01, within="48h", linked=True),
    CategoryOutcome(name="device", values=("phone", "desk")),
)


def test_outcomes_follow_their_laws_within_their_bounds() -> None:
    """Checks means of 20,000 choices, each within about four of its standard deviations."""
    laws = {
        "basket": OutcomeLaw(level=-1.0, slope=2.0),
        "opened": OutcomeLaw(level=1.0),
        "paid": OutcomeLaw(chance=0.25, level=3.0, spread=0.5, after=12.0),
        "device": OutcomeLaw(),
    }
    utility = np.repeat([0.0, 1.0], 10_000)
    basket, opened, paid, device = followed(DECLARED, laws, utility, keys(20_000))
    assert np.mean(basket.values[:10_000]) == pytest.approx(1 / (1 + np.exp(1.0)), abs=0.02)
    assert np.mean(basket.values[10_000:]) == pytest.approx(1 / (1 + np.exp(-1.0)), abs=0.02)
    assert np.mean(opened.values) == pytest.approx(np.e, abs=0.05)
    assert np.var(opened.values) == pytest.approx(np.e, abs=0.15)
    there = [value for value in paid.values if value is not None]
    assert len(there) / 20_000 == pytest.approx(0.25 * (1 - np.exp(-4)), abs=0.015), "some are later than 48 hours"
    assert np.mean(there) == pytest.approx(np.exp(3 + 0.125), rel=0.03)
    assert paid.ages is not None
    assert 0 <= min(paid.ages) <= max(paid.ages) <= 47
    assert basket.ages is None
    assert {*device.values} == {"phone", "desk"}
    huge = followed(DECLARED, {"paid": OutcomeLaw(level=1e6), "opened": OutcomeLaw(level=1e6)}, utility[:9], keys(9))
    assert {*huge[0].values} == {20}
    assert {*huge[1].values} <= {500.0, None}


def test_a_law_that_nobody_can_report_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="a law of 'wished', which study 'shop' doesn't declare; it has basket"):
        check_laws("shop", DECLARED, {"wished": OutcomeLaw()}, True)
    with pytest.raises(InvalidSettings, match="has no pings of lists"):
        check_laws("shop", DECLARED, {"basket": OutcomeLaw()}, False)
