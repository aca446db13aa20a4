"""Robust aggregations: compared with their definitions, a minority's influence, and the same bits everywhere."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedping.experiments.laboratory.rounds.study import LINE, STUDY
from fedping.model_store.store import open_store
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.pipeline import (
    CenteredClip,
    ClipByQuantile,
    GeometricMedian,
    GradientDescent,
    Krum,
    Mean,
    MeanOfSigns,
    Median,
    Pipeline,
    Recluster,
    TrimmedMean,
)
from fedping.server_jobs.optimize import first_state
from fedping.server_jobs.round import ArrayRound, NumpyEngine, recompute
from fedping.server_jobs.round.accumulator import points_of
from fedping.server_jobs.round.aggregations import accumulator_for
from fedping.server_jobs.round.robust import (
    buckets_of,
    centered_clip_of,
    geometric_median_of,
    krum_of,
    median_of,
    trimmed_mean_of,
)
from fedping.server_jobs.round.spark_engine import SparkEngine
from tests.support.hostile_rounds import (
    LARGEST,
    SMALLEST,
    by_clients,
    cohort,
    ids,
    play,
    study_with,
    through_files,
    updates_and_votes,
)
from tests.support.laboratory_rounds import memory_rounds
from tests.support.rounds import line_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


usual = arrays(np.float32, st.tuples(st.integers(1, 15), st.just(3)), elements=st.floats(-8, 8, width=32))

OPERATORS: dict[str, Any] = {
    "median": median_of,
    "trimmed mean": partial(trimmed_mean_of, share=0.3),
    "geometric median": lambda points, votes: geometric_median_of(points, votes, GeometricMedian()),
    "krum": lambda points, votes: krum_of(points, votes, Krum(hostile=0.3)),
    "multi-krum": lambda points, votes: krum_of(points, votes, Krum(hostile=0.3, keep=3)),
    "centered clip": lambda points, votes: centered_clip_of(points, votes, np.zeros(3), CenteredClip(radius=4.0)),
}


def krum_by_differences(points: np.ndarray, votes: np.ndarray, rule: Krum) -> np.ndarray:
    """Return Krum's result with distances summed from differences, one client at a time."""
    apart = np.square(points[:, None].astype(float) - points.astype(float)).sum(axis=2)
    wanted = max((1 - rule.hostile) * votes.sum() - 2 * votes.mean(), votes.mean())
    scores = []
    for own, row in enumerate(apart):
        left, score = wanted, 0.0
        for other in sorted(set(range(len(row))) - {own}, key=lambda other: row[other]):
            score += row[other] * min(left, votes[other])
            left -= min(left, votes[other])
        scores.append(score)
    order = np.argsort(scores, kind="stable")
    most = max(1, int((np.cumsum(votes[order]) <= (1 - rule.hostile) * votes.sum() * (1 + 1e-9)).sum()))
    best = np.sort(order[: min(rule.keep, most)])
    return np.average(points[best].astype(float), axis=0, weights=votes[best])


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("keep", [1, 5, 40])
@pytest.mark.parametrize("offset", [0.0, 1e6, 1e30])
def test_krum_by_products_chooses_as_by_differences(equal: bool, keep: int, offset: float) -> None:
    """Far from the origin, products alone lose all digits; scores that are too close are computed exactly."""
    rng = np.random.default_rng(keep)
    for _ in range(20):
        points = (rng.normal(size=(40, 7)) * max(1.0, offset / 1e5) + offset).astype(np.float32)
        points[rng.integers(0, 40, 10)] = points[0]
        points[3] *= -1e6 if offset < 1e30 else 1.0
        votes = np.ones(40) if equal else rng.choice([0.5, 1.0, 2.0], 40)
        rule = Krum(hostile=0.25, keep=keep)
        np.testing.assert_allclose(krum_of(points, votes, rule), krum_by_differences(points, votes, rule), rtol=1e-12)


@pytest.mark.parametrize("equal", [True, False])
def test_a_trimmed_column_has_the_same_bits_in_any_company(equal: bool) -> None:
    rng = np.random.default_rng(1)
    points = rng.normal(size=(150, 30)).astype(np.float32)
    votes = np.full(150, 1 / 3) if equal else rng.uniform(0.5, 2, 150)
    alone = [trimmed_mean_of(points[:, [column]], votes, 0.2)[0] for column in range(30)]
    np.testing.assert_array_equal(trimmed_mean_of(points, votes, 0.2), alone)


def repeated(points: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.repeat(points.astype(np.float64), counts, axis=0)


@given(usual)
def test_a_median_is_the_median(points: np.ndarray) -> None:
    np.testing.assert_allclose(median_of(points, np.ones(len(points))), np.median(points.astype(float), axis=0))


@given(usual, st.data())
def test_votes_count_as_points_would_that_are_there_as_often(points: np.ndarray, data: st.DataObject) -> None:
    counts = np.array(data.draw(st.lists(st.integers(1, 4), min_size=len(points), max_size=len(points))))
    every, ones = repeated(points, counts), np.ones(int(counts.sum()))
    for votes in (counts.astype(float), counts / 3.0):
        np.testing.assert_allclose(median_of(points, votes), np.median(every, axis=0))
        np.testing.assert_allclose(trimmed_mean_of(points, votes, 0.2), trimmed_mean_of(every, ones, 0.2), atol=1e-9)
        center = np.array([1.0, 0.0, -1.0])
        near = CenteredClip(radius=2.0)
        wanted = centered_clip_of(every, ones, center, near)
        np.testing.assert_allclose(centered_clip_of(points, votes, center, near), wanted, atol=1e-9)


@given(usual, st.integers(0, 4))
def test_a_trimmed_mean_leaves_out_whole_updates_where_the_share_is_of_whole_ones(points: np.ndarray, cut: int) -> None:
    k = len(points)
    assume(0 < 2 * cut < k)
    ordered = np.sort(points.astype(float), axis=0)[cut : k - cut]
    np.testing.assert_allclose(trimmed_mean_of(points, np.ones(k), cut / k), ordered.mean(axis=0), atol=1e-9)


@pytest.mark.parametrize(("share", "k"), [(0.45, 100), (0.45, 200), (0.35, 180), (1 / 3, 9)])
@pytest.mark.parametrize("sent", [LARGEST, -LARGEST])
def test_of_just_the_share_that_is_trimmed_no_rounding_error_gets_in(share: float, k: int, sent: float) -> None:
    hostile = round(share * k)
    points = np.repeat([[1.0], [sent]], [k - hostile, hostile], axis=0).astype(np.float32)
    for votes in (np.ones(k), np.full(k, 1 / k), np.full(k, 0.1)):
        np.testing.assert_allclose(trimmed_mean_of(points, votes, share), [1.0])


@settings(max_examples=25)
@given(usual)
def test_no_point_has_a_smaller_sum_of_distances_than_the_geometric_median(points: np.ndarray) -> None:
    from scipy.optimize import minimize

    def cost(center: np.ndarray) -> float:
        return float(np.sqrt(np.square(points.astype(float) - center).sum(axis=1)).sum())

    found = geometric_median_of(points, np.ones(len(points)), GeometricMedian())
    starts = [found, points.astype(float).mean(axis=0), *points.astype(float)]
    best = min(min(cost(start), minimize(cost, start, method="Nelder-Mead").fun) for start in starts[:6])
    assert cost(found) <= best * (1 + 1e-3) + 1e-6


@given(st.integers(0, 2**20), st.integers(9, 15), st.integers(0, 3), st.integers(1, 4))
def test_krum_takes_those_with_the_nearest_neighbours(seed: int, k: int, hostile: int, keep: int) -> None:
    points = np.random.default_rng(seed).normal(size=(k, 3)).astype(np.float32)
    exact = points.astype(float)
    scores = []
    for i in range(k):
        others = sorted(((exact[i] - exact[j]) ** 2).sum() for j in range(k) if j != i)
        scores.append(sum(others[: k - hostile - 2]))
    best = np.argsort(scores)[:keep]
    found = krum_of(points, np.ones(k), Krum(hostile=hostile / k, keep=keep))
    np.testing.assert_allclose(found, exact[best].mean(axis=0), atol=1e-9)


@pytest.mark.parametrize(("k", "hostile"), [(10, 2), (20, 4), (101, 20)])
def test_multi_krum_keeps_no_more_than_are_honest_however_few_clients_come(k: int, hostile: int) -> None:
    points = np.random.default_rng(k).uniform(-1, 1, (k, 3)).astype(np.float32)
    points[:hostile] = LARGEST
    found = krum_of(points, np.ones(k), Krum(hostile=0.2, keep=1000))
    np.testing.assert_allclose(found, points[hostile:].astype(float).mean(axis=0), atol=0.1)
    everybody = krum_of(points, np.ones(k), Krum(hostile=0.0, keep=1000))
    np.testing.assert_allclose(everybody, points.astype(float).mean(axis=0))


@given(updates_and_votes(), st.floats(1e-3, 1e3), st.integers(1, 4))
def test_a_center_goes_no_farther_than_the_radius_at_a_time(sent: Any, radius: float, iterations: int) -> None:
    points, votes = sent
    center = np.array([1.0, 0.0, -1.0])
    found = centered_clip_of(points, votes, center, CenteredClip(radius=radius, iterations=iterations))
    assert np.sqrt(np.square(found - center).sum()) <= radius * iterations * (1 + 1e-9) + 1e-12


@given(usual)
def test_a_center_with_everything_near_it_goes_to_the_mean(points: np.ndarray) -> None:
    found = centered_clip_of(points, np.ones(len(points)), np.zeros(3), CenteredClip(radius=1e3, iterations=1))
    np.testing.assert_allclose(found, points.astype(float).mean(axis=0), atol=1e-9)


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=60)
@given(sent=updates_and_votes(m=3))
def test_no_numbers_that_a_client_can_send_make_no_number(name: str, sent: Any) -> None:
    points, votes = sent
    found = OPERATORS[name](points, votes)
    assert found.shape == (3,)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", OPERATORS)
def test_of_nothing_but_zeros_comes_zero_and_one_client_is_heard(name: str) -> None:
    assert not OPERATORS[name](np.zeros((7, 3), np.float32), np.ones(7)).any()
    alone = OPERATORS[name](np.array([[1.0, 2.0, -1.0]], np.float32), np.ones(1))
    np.testing.assert_allclose(alone, [1.0, 2.0, -1.0], rtol=1e-9)


BREAKDOWN = [
    ("median", 19, 40),
    ("trimmed mean", 12, 40),
    ("geometric median", 16, 40),
    ("krum", 12, 40),
    ("multi-krum", 12, 40),
    ("centered clip", 40, 40),
]


@pytest.mark.parametrize(("name", "hostile", "k"), BREAKDOWN, ids=[each[0] for each in BREAKDOWN])
@settings(max_examples=40)
@given(data=st.data())
def test_up_to_its_share_of_anything_the_result_stays_near_the_honest(
    name: str, hostile: int, k: int, data: st.DataObject
) -> None:
    """Honest updates are within 1 of zero; the bounds are the papers', or wider."""
    seed = data.draw(st.integers(0, 2**20))
    rng = np.random.default_rng(seed)
    honest = rng.uniform(-1, 1, (k - hostile, 3)) / np.sqrt(3)
    row = st.sampled_from([1e30, -1e30, LARGEST, -LARGEST, SMALLEST, 0.0, 5.0, -2.0])
    few = np.array(data.draw(st.lists(st.tuples(row, row, row), min_size=1, max_size=4)))
    sent = np.concatenate([honest, few[rng.integers(0, len(few), hostile)]]).astype(np.float32)
    found = OPERATORS[name](sent[rng.permutation(k)], np.ones(k))
    bound = {"geometric median": 2 * 24 / (40 - 2 * 16), "krum": 12.0, "multi-krum": 12.0, "centered clip": 12.0}
    assert np.sqrt(np.square(found).sum()) <= bound.get(name, 1.0) * 1.01


def test_the_mean_has_no_such_bound() -> None:
    votes = np.ones(40)
    points = np.zeros((40, 3), np.float32)
    points[0] = 1e30
    assert abs(centered_clip_of(points, votes, np.zeros(3), CenteredClip(radius=1e38))[0]) > 1e28
    assert abs(trimmed_mean_of(np.repeat(points, [20] + [1] * 39, axis=0), np.ones(59), 0.1)[0]) > 1e28


def test_the_pings_of_a_client_are_one_point() -> None:
    updates = np.array([[1.0], [5.0], [3.0], [7.0]], np.float32)
    clients = np.array([[9, 9], [2, 1], [9, 9], [2, 0]], np.uint64)
    points, votes = points_of(updates, np.array([0.5, 1.0, 1.5, 1.0]), clients)
    assert points[:, 0].tolist() == [7.0, 5.0, 2.5]
    assert votes.tolist() == [1.0, 1.0, 2.0]


@given(st.integers(1, 30), st.integers(2, 7))
def test_buckets_are_means_of_as_many_clients_and_lose_nobody(k: int, size: int) -> None:
    points = np.arange(k, dtype=np.float32)[:, None] * np.ones((1, 2), np.float32)
    means, votes = buckets_of(points, np.ones(k), size, b"key")
    assert sorted(votes.tolist(), reverse=True) == [float(size)] * (k // size) + ([float(k % size)] if k % size else [])
    np.testing.assert_allclose((means * votes[:, None]).sum(axis=0), points.sum(axis=0), rtol=1e-5)
    others = buckets_of(points, np.ones(k), size, b"another key")
    if k > 3 * size:
        assert others.updates.tobytes() != means.tobytes()
    assert buckets_of(points, np.ones(k), size, b"key").updates.tobytes() == means.tobytes()


def test_a_median_of_buckets_is_nearer_to_the_mean_of_clients_that_differ() -> None:
    """Bucketing (Karimireddy et al. 2022) is for skewed clients, whose median isn't typical."""
    skewed = np.zeros((300, 1), np.float32)
    skewed[:100] = 3.0
    plain = median_of(skewed, np.ones(300))
    means, votes = buckets_of(skewed, np.ones(300), 10, b"key")
    assert plain[0] == 0.0
    assert abs(median_of(means, votes)[0] - 1.0) < 0.35


ROBUST: dict[str, dict[str, Any]] = {
    "median": {"aggregate": Median()},
    "trimmed mean": {"aggregate": TrimmedMean(share=0.2), "weighting": "examples"},
    "geometric median": {"aggregate": GeometricMedian(), "weighting": "ping"},
    "krum": {"aggregate": Krum(hostile=0.2)},
    "multi-krum of buckets": {"aggregate": Krum(hostile=0.2, keep=5), "bucketing": 3},
    "centered clip": {"aggregate": CenteredClip(radius=2.0, beta=0.5)},
    "clip, buckets, median": {"aggregate": Median(), "bucketing": 2, "clip": ClipByQuantile()},
    "clip, buckets, signs": {"aggregate": MeanOfSigns(), "bucketing": 2},
}


@pytest.mark.parametrize("name", ROBUST)
def test_the_same_bits_in_memory_and_over_files_and_when_computed_again(tmp_path: Path, name: str) -> None:
    study, spoil = study_with(**ROBUST[name]), by_clients(0.1, [1e30, -1e30, 9e29, SMALLEST, 0.0])
    played = [play(through_files(tmp_path / str(n), study, NumpyEngine(n)), 3, spoil) for n in (1, 3)]
    assert played[0] == played[1]
    if study.lines[0].pipeline.bucketing is None:  # buckets are drawn by a key that memory does not have
        assert played[0] == play(memory_rounds(study.lines[0], ids()), 3, spoil)
    store = open_store(tmp_path / "1" / "store")
    for number in range(4):
        assert recompute(store, tmp_path / "1" / "landing", STUDY, LINE, number, NumpyEngine(2)).identical
    assert played[0] != play(memory_rounds(study_with(aggregate=Mean()).lines[0], ids()), 3, spoil)


@pytest.mark.parametrize("name", ["median", "trimmed mean", "geometric median", "krum", "centered clip"])
def test_a_tenth_of_hostile_clients_does_not_keep_a_line_from_learning(name: str) -> None:
    study = study_with(**ROBUST[name])
    rounds = memory_rounds(study.lines[0], ids())
    play(rounds, 8, by_clients(0.1, -1e30))
    assert np.abs(rounds.weights - 1).max() < 1.3
    plain = memory_rounds(study_with().lines[0], ids())
    plain.run(cohort(0, plain.weights, by_clients(0.1, -1e29)))
    assert np.abs(plain.weights).max() > 1e27


@pytest.mark.spark
@pytest.mark.parametrize(
    "name", [pytest.param("multi-krum of buckets", marks=pytest.mark.long), "clip, buckets, median"]
)
def test_the_same_bits_on_spark(tmp_path: Path, name: str, spark: "SparkSession") -> None:
    study, engine = study_with(**ROBUST[name]), SparkEngine(lambda: nullcontext(spark))
    through_spark = play(through_files(tmp_path / "spark", study, engine))
    assert through_spark == play(through_files(tmp_path / "numpy", study, NumpyEngine()))


def test_momentum_is_carried_from_round_to_round() -> None:
    line = line_of(1, aggregate=CenteredClip(radius=10.0, beta=0.75), optimizer=GradientDescent(rate=1.0))
    state, weights = first_state(line), np.zeros(1)
    ones = np.ones(4, np.int64)
    for number, expected in ((1, 4.0), (2, 4.0 + 3.0)):  # 0.75 of 4, and 0.25 of 0
        round_ = ArrayRound(line, state)
        sent = np.full((4, 1), 4.0 if number == 1 else 0.0, np.float32)
        known = np.arange(64, dtype=np.uint8).reshape(4, 16)
        round_.add(np.zeros(4, np.uint8), sent, examples=ones, pings=ones, clients=known)
        weights, state = round_.stepped(weights, state, b"key")
        assert weights[0] == pytest.approx(expected)


def test_krum_compares_a_bounded_number_of_clients() -> None:
    for m in (1, 22, 1_000, 1_000_000):
        room = accumulator_for(line_of(1, aggregate=Krum())).room(m)
        assert room is not None
        assert room >= 1
        assert (16 * room) ** 2 * m <= 2**32
        assert room <= 256
    line = line_of(2, aggregate=Krum(), bucketing=8)
    assert accumulator_for(line).room(2) == 8 * 256


def test_in_memory_too_many_for_krum_are_refused() -> None:
    line = line_of(2, aggregate=Krum())
    round_ = ArrayRound(line, first_state(line))
    ones = np.ones(300, np.int64)
    known = np.random.default_rng(0).integers(0, 256, (300, 16), dtype=np.uint8)
    with pytest.raises(FedpingError, match=r"'krum' keeps all updates .* at most about 4,096 of 2 weights"):
        round_.add(np.zeros(300, np.uint8), np.zeros((300, 2), np.float32), examples=ones, pings=ones, clients=known)


def test_what_buckets_are_of_no_use_for_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidSettings, match="'bucketing' has no effect"):
        Pipeline(bucketing=2)
    with pytest.raises(InvalidSettings, match="'bucketing'"):
        Pipeline(aggregate=Recluster(), bucketing=2)
