"""Federated k-means: reclustering compared with brute force and scikit-learn, its laws, and whole rounds."""

import dataclasses
import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans as ScikitKMeans

import fedping.server_jobs.round.accumulator
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landing import landed_files, partition
from fedping.protocol.pipeline import GradientDescent, Pipeline, Recluster, Staleness
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Arm, Line, Study
from fedping.server_jobs.round import RoundOptions, recompute, run_round
from fedping.server_jobs.round.aggregate import combined
from fedping.server_jobs.round.aggregations import accumulator_for
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.ping_filter import OVER_CAPACITY
from fedping.server_jobs.round.plan import rules_for
from fedping.server_jobs.round.recluster import reclustered
from fedping.server_jobs.round.shard import shard_partials
from fedping.server_jobs.round.spark_engine import SparkEngine
from tests.server_jobs.test_aggregate import crafted as crafted_ids
from tests.support.rounds import FIRST_MS, WHEN, Ping, id_of, land, store_with, work_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

K, D = 3, 2
SETTINGS = Recluster()
ENGINE = NumpyEngine()


def moved_to(local: np.ndarray, counts: np.ndarray | None, fetched: np.ndarray) -> np.ndarray:
    """Return the sent updates of clients with local centroids (k, K, D) and counts (k, K)."""
    away = np.where((counts > 0)[..., None], local - fetched, 0.0) if counts is not None else local - fetched
    flat = away.reshape(len(local), -1)
    return (flat if counts is None else np.hstack([flat, counts])).astype(np.float32)


def centroids_after(local: np.ndarray, counts: np.ndarray, fetched: np.ndarray, votes: np.ndarray) -> np.ndarray:
    weights = np.append(fetched.ravel(), np.zeros(K))
    step = reclustered(SETTINGS, (K, D), weights, moved_to(local, counts, fetched), votes)
    assert (step[K * D :] == 0).all(), "the counts of a published model stay 0"
    return (weights + step)[: K * D].reshape(K, D)


def inertia(points: np.ndarray, weights: np.ndarray, centroids: np.ndarray) -> float:
    return float((weights * ((points[:, None] - centroids) ** 2).sum(axis=2).min(axis=1)).sum())


@st.composite
def fleets(draw: st.DrawFn, most: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw local centroids, counts, fetched centroids and votes of a few clients, from a seed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    k = draw(st.integers(1, most))
    counts = rng.integers(0, 9, (k, K))
    return rng.normal(0, 3, (k, K, D)), counts, rng.normal(0, 3, (K, D)), rng.integers(1, 5, k).astype(float)


def as_points(local: np.ndarray, counts: np.ndarray, votes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) * votes[:, None]
    return local[shares > 0], shares[shares > 0]


@given(fleets())
def test_no_worse_than_scikit_learn_from_the_same_start_and_at_rest(fleet: tuple[np.ndarray, ...]) -> None:
    local, counts, fetched, votes = fleet
    points, weights = as_points(local, counts, votes)
    if len(np.unique(points, axis=0)) < K:
        return
    fetched = points[:K] + 1e-3  # where no cluster is without a point; scikit-learn would send such a one elsewhere
    found = centroids_after(local, counts, fetched, votes)
    theirs = ScikitKMeans(K, init=fetched, n_init=1, max_iter=100, tol=0).fit(points, sample_weight=weights)
    assert inertia(points, weights, found) <= theirs.inertia_ * (1 + 1e-5) + 1e-6
    nearest = ((points[:, None] - found) ** 2).sum(axis=2).argmin(axis=1)
    for cluster in np.unique(nearest):
        mine = nearest == cluster
        np.testing.assert_allclose(found[cluster], np.average(points[mine], axis=0, weights=weights[mine]), atol=1e-5)


def test_clusters_that_are_apart_are_found_as_brute_force_finds_them() -> None:
    rng = np.random.default_rng(5)
    centres = np.array([[0.0, 0], [10, 0], [0, 10]])
    local = centres + rng.normal(0, 0.3, (3, K, D))
    counts, votes = rng.integers(1, 9, (3, K)), np.ones(3)
    points, weights = as_points(local, counts, votes)
    least = np.inf
    for split in itertools.product(range(K), repeat=len(points) - 3):
        of = np.array([*split, 0, 1, 2])
        means = [np.average(points[of == c], axis=0, weights=weights[of == c]) for c in range(K)]
        least = min(least, inertia(points, weights, np.array(means)))
    found = centroids_after(local, counts, np.array([[1.0, 1], [2, 1], [1, 2]]), votes)
    np.testing.assert_allclose(inertia(points, weights, found), least, rtol=1e-5)
    np.testing.assert_allclose(found, centres, atol=0.5)


@given(fleets(), st.data())
def test_the_order_of_a_clients_centroids_does_not_matter(fleet: tuple[np.ndarray, ...], data: st.DataObject) -> None:
    """A mean by position would depend on it."""
    local, counts, fetched, votes = fleet
    orders = np.array([data.draw(st.permutations(range(K))) for _ in local])
    turned = np.take_along_axis(local, orders[..., None], axis=1), np.take_along_axis(counts, orders, axis=1)
    np.testing.assert_allclose(
        centroids_after(*turned, fetched, votes), centroids_after(local, counts, fetched, votes), atol=1e-4
    )


@given(fleets(), st.sampled_from([0.25, 2.0, 1024.0]))
def test_only_the_ratio_of_votes_counts(fleet: tuple[np.ndarray, ...], factor: float) -> None:
    local, counts, fetched, votes = fleet
    one, other = (centroids_after(local, counts, fetched, v) for v in (votes, votes * factor))
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@given(fleets(most=1))
def test_of_one_client_its_own_centroids_are_taken(fleet: tuple[np.ndarray, ...]) -> None:
    local, counts, fetched, votes = fleet
    found = centroids_after(local, counts, fetched, votes)
    for mine in local[0][counts[0] > 0]:
        assert np.abs(found - mine).max(axis=1).min() < 1e-5


def test_nobody_with_examples_changes_nothing() -> None:
    weights = np.append(np.ones(K * D), np.zeros(K))
    for updates in (np.zeros((4, K * D + K), np.float32), np.zeros((0, K * D + K), np.float32)):
        assert not reclustered(SETTINGS, (K, D), weights, updates, np.ones(len(updates))).any()


def test_by_hand_in_one_dimension() -> None:
    """Fetched 0 and 10; local 1 (3 examples) and 12 (1) of one client, 11 (4) and 0 (none) of another; a vote each."""
    updates = np.array([[1, 2, 3, 1], [11, 0, 4, 0]], np.float32)
    step = reclustered(SETTINGS, (2, 1), np.array([0.0, 10, 0, 0]), updates, np.ones(2))
    np.testing.assert_allclose(step, [1, (0.25 * 12 + 11) / 1.25 - 10, 0, 0], rtol=1e-12)


def test_without_counts_a_centroid_that_stayed_has_no_vote() -> None:
    """Two at 2 and 4, and one that stayed at 0: the mean by position would be 2, the reclustered one is 3."""
    updates = np.array([[2, 0], [4, 0], [0, 1]], np.float32)
    step = reclustered(SETTINGS, (2, 1), np.array([0.0, 100]), updates, np.ones(3))
    np.testing.assert_allclose(step, [3, 1], rtol=1e-12)


def clustering_study(aggregate: Any = SETTINGS, **more: Any) -> Study:
    weights = tuple(
        Weight(name=f"w{i}", start=0.0 if i >= K * D else float(i), step=Step(start=1, min=1, max=1))
        for i in range(K * D + K)
    )
    spec = ModelSpec(name="k", model="k-means", weights=weights, settings={"clusters": K, "features": D})
    pipeline = Pipeline(optimizer=GradientDescent(), aggregate=aggregate, min_clients=1, **more)
    arms = (Arm(name="treatment", share=1, line="main", applies=True, submits=True),)
    return Study(name="study", arms=arms, lines=(Line(name="main", spec=spec, pipeline=pipeline),))


def clustered_pings(clients: int, version: int, fetched: np.ndarray, seed: int = 0) -> list[Ping]:
    """Return one ping for each client, with local centroids near three points in a client-specific order."""
    rng = np.random.default_rng(seed)
    places = np.array([[0.0, 0], [10, 0], [0, 10]])
    local = np.stack([rng.permutation(places) for _ in range(clients)]) + rng.normal(0, 0.2, (clients, K, D))
    updates = moved_to(local, rng.integers(1, 50, (clients, K)), fetched)
    return [Ping(version * 10**6 + i, i, payload=u.tobytes(), version=version) for i, u in enumerate(updates)]


def test_rounds_find_the_places_and_can_be_computed_again(tmp_path: Path) -> None:
    store = store_with(tmp_path / "store", clustering_study())
    for n in range(3):
        fetched = np.array(store.head("study", "main").weights)[: K * D].reshape(K, D)
        land(tmp_path, clustered_pings(200, n, fetched, seed=n), iteration=n)
        run_round(store, tmp_path, "study", "main", ENGINE, RoundOptions(clock=lambda: WHEN, code_version="t"))
    head = store.head("study", "main")
    assert head.iteration == 3
    found = np.array(head.weights)[: K * D].reshape(K, D)
    assert sorted(np.round(found).tolist()) == [[0, 0], [0, 10], [10, 0]]
    assert head.weights[K * D :] == (0.0,) * K
    for n in range(4):
        assert recompute(store, tmp_path, "study", "main", n, ENGINE).identical


def test_an_unreadable_payload_is_left_out_and_the_rest_kept_once(tmp_path: Path) -> None:
    """The shard starts again without it; its earlier state must not count twice."""
    study = clustering_study()
    fetched = np.arange(K * D, dtype=float).reshape(K, D)
    good = clustered_pings(40, 0, fetched)
    rules = rules_for(study, "main", 0, key=b"")
    whole = combined(ENGINE.partials(work_of([land(tmp_path / "a", good)], rules)), rules)
    spoilt = [*good, *(Ping(90_000 + i, 1000 + i, payload=b"?") for i in range(30))]
    found = combined(ENGINE.partials(work_of([land(tmp_path / "b", spoilt)], rules)), rules)
    assert [len(np.concatenate([k.votes for k, _ in one.total.own])) for one in (whole, found)] == [40, 40]


def directions(partials: Any, study: Study) -> bytes:
    rules = rules_for(study, "main", 0, key=b"")
    aggregate = combined(partials, rules)
    line = study.lines[0]
    return accumulator_for(line).finish(aggregate.total, line, line.spec.start_array, {}, b"").direction.tobytes()


def test_who_computes_which_shard_changes_no_bit(tmp_path: Path) -> None:
    study = clustering_study()
    paths = [land(tmp_path, clustered_pings(500, 0, np.arange(6.0).reshape(K, D), seed=s), at_ms=s) for s in (1, 2)]
    work = work_of(paths, rules_for(study, "main", 0, key=b""))
    split = [list(shard_partials(work.paths, [s], work.rules)) for s in reversed(range(16))]
    whole = directions(ENGINE.partials(work), study)
    assert directions(itertools.chain.from_iterable(split), study) == whole
    assert directions(NumpyEngine(threads=3).partials(work), study) == whole


@pytest.mark.spark
def test_spark_reclusters_to_the_same_bits(tmp_path: Path, spark: "SparkSession") -> None:
    study = clustering_study()
    path = land(tmp_path, clustered_pings(500, 0, np.arange(6.0).reshape(K, D)))
    work = work_of([path], rules_for(study, "main", 0, key=b""))
    engine = SparkEngine(lambda: nullcontext(spark))
    assert directions(engine.partials(work), study) == directions(ENGINE.partials(work), study)


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a shard's memory to ten updates of nine weights."""
    monkeypatch.setattr(fedping.server_jobs.round.accumulator, "MOST_KEPT_BYTES", 16 * 36 * 10)


def test_one_client_with_very_many_pings_takes_room_from_nobody(tmp_path: Path, little_room: None) -> None:
    """As many of its pings are kept as there is room next to the others', and it counts as one client."""
    study = clustering_study()
    store = store_with(tmp_path / "store", study)
    honest = clustered_pings(40, 0, np.zeros((K, D)))
    loud = [dataclasses.replace(honest[0], document=50_000 + i) for i in range(3000)]
    land(tmp_path, [*loud[:2500], *honest, *loud[2500:]])
    result = run_round(store, tmp_path, "study", "main", ENGINE, RoundOptions(clock=lambda: WHEN, code_version="t"))
    assert (result.status, result.clients) == ("published", 40)
    assert result.counts["used"] + result.counts["over_capacity"] == 3040
    assert 40 <= result.counts["used"] <= 40 + 9
    assert recompute(store, tmp_path, "study", "main", 1, ENGINE).identical
    rules = rules_for(study, "main", 0, key=b"")
    (partial,) = (
        p
        for p in ENGINE.partials(work_of(landed_files(partition(tmp_path, "study", "main", 0)), rules))
        if p.counts[OVER_CAPACITY]
    )
    votes = np.concatenate([kept.votes for kept, _ in partial.total.own])
    np.testing.assert_allclose(votes.sum(), partial.clients)


def test_of_too_many_clients_some_are_left_out_by_lot(tmp_path: Path, little_room: None) -> None:
    study = clustering_study()
    store = store_with(tmp_path / "store", study)
    pings = clustered_pings(900, 0, np.zeros((K, D)))
    land(tmp_path, pings[:300])
    land(tmp_path, pings[300:], at_ms=FIRST_MS + 1)
    result = run_round(store, tmp_path, "study", "main", ENGINE, RoundOptions(clock=lambda: WHEN, code_version="t"))
    assert result.status == "published"
    assert result.counts["over_capacity"] == 900 - result.counts["used"]
    assert 60 <= result.counts["used"] <= 160
    assert recompute(store, tmp_path, "study", "main", 1, ENGINE).identical


def test_crafted_client_ids_neither_hang_a_round_nor_push_all_others_out(
    tmp_path: Path, little_room: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 ids that all drew lot 0 by version 0's publicly computable rule, and 300 honest ones."""
    monkeypatch.setattr(
        "tests.support.rounds.id_of", lambda kind, n: (kind == "client" and bad.get(n)) or id_of(kind, n)
    )
    study = clustering_study()
    store = store_with(tmp_path / "store", study)
    pings = clustered_pings(600, 0, np.zeros((K, D)))
    bad = {
        ping.client: crafted.tobytes() for ping, crafted in zip(pings[:300], crafted_ids(300, 0, seed=2), strict=True)
    }
    land(tmp_path, pings)
    result = run_round(store, tmp_path, "study", "main", ENGINE, RoundOptions(clock=lambda: WHEN, code_version="t"))
    assert result.status == "published"
    assert result.counts["over_capacity"] == 600 - result.counts["used"]
    assert 50 <= result.counts["used"] <= 160
    assert recompute(store, tmp_path, "study", "main", 1, ENGINE).identical


def test_who_is_left_out_depends_on_neither_engine_nor_tasks(tmp_path: Path, little_room: None) -> None:
    study = clustering_study()
    paths = [land(tmp_path, clustered_pings(500, 0, np.zeros((K, D)), seed=s), at_ms=s) for s in (1, 2)]
    work = work_of(paths, rules_for(study, "main", 0, key=b""))
    split = [list(shard_partials(work.paths, [s], work.rules)) for s in reversed(range(16))]
    whole = directions(ENGINE.partials(work), study)
    assert directions(itertools.chain.from_iterable(split), study) == whole
    assert directions(NumpyEngine(threads=3).partials(work), study) == whole


@pytest.mark.parametrize(
    ("clusters", "features", "why"),
    [
        (None, None, "and its settings have no 'clusters' and 'features'"),
        (3, None, "and its settings have no 'features'"),
        (None, 3, "and its settings have no 'clusters'"),
        (4, 2, "which are no centroids of clusters = 4 and features = 2"),
        (True, 9, "which are no centroids of clusters = True and features = 9"),
        (3, 0, "which are no centroids of clusters = 3 and features = 0"),
        (-3, -3, "which are no centroids of clusters = -3 and features = -3"),
    ],
)
def test_a_model_without_centroids_cannot_be_reclustered(clusters: int | None, features: int | None, why: str) -> None:
    line = clustering_study().lines[0]
    given = {"clusters": clusters, "features": features}
    spec = msgspec.structs.replace(line.spec, settings={k: v for k, v in given.items() if v is not None})
    with pytest.raises(InvalidSettings) as raised:
        msgspec.structs.replace(line, spec=spec)
    assert str(raised.value) == (
        f"model spec 'k' has 9 weights, {why}; reclustering is for a model such as k-means: correct the spec, or set "
        "another 'aggregate'"
    )


def test_late_movements_cannot_be_reclustered() -> None:
    with pytest.raises(InvalidSettings, match="'staleness'"):
        clustering_study(staleness=Staleness())
