"""Statistics of a fleet from clients' answers, compared with the pooled examples; and their use."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.class_weight import compute_class_weight

from fedping.client_sim.data import (
    ByKey,
    Dirichlet,
    ExampleData,
    Target,
    balanced,
    clipping,
    example_data,
    load,
    min_max_scaling,
    outlier_clipping,
    partition,
    standardising,
    without_constants,
)
from fedping.client_sim.data.federated import (
    begun,
    class_weights,
    client_class_counts,
    client_counts,
    client_exceeding,
    client_moments,
    constant_features,
    deviation_from_squares,
    merged,
    narrowed,
    quantiles,
    sums_by_client,
)
from fedping.protocol.errors import FedpingError, InvalidSettings

NUMBERS = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1.0, 1e-300, -1e-300, 1e300, -1e300])


@st.composite
def fleets(draw: st.DrawFn, numbers: st.SearchStrategy[float] = NUMBERS) -> ExampleData:
    sizes = draw(st.lists(st.integers(0, 7), min_size=1, max_size=9).filter(any))
    x = draw(hnp.arrays(np.float64, (sum(sizes), 2), elements=numbers))
    return example_data(x, np.zeros(len(x)), sizes)


def credits_by_purpose() -> ExampleData:
    data = load("credit")
    return partition(data, ByKey(), 0).of(data)


@given(fleets(st.floats(-1e6, 1e6)))
def test_merged_moments_are_those_of_the_pooled_examples(data: ExampleData) -> None:
    everyone = merged(client_moments(data))
    scale = np.abs(data.x).max(axis=0)
    assert everyone.count.tolist() == [len(data.y)]
    least = np.finfo(float).tiny  # below it numbers have fewer digits, so that no share of them can be asked for
    assert np.abs(everyone.mean[0] - data.x.mean(axis=0)).max(initial=0) <= 1e-14 * scale.max() + least
    assert (np.abs(everyone.deviation[0] - data.x.std(axis=0)) <= 1e-12 * scale + least).all()


def test_it_standardises_real_data_as_scikit_learn_does_the_pooled() -> None:
    data = credits_by_purpose()
    expected = StandardScaler().fit(data.x)
    found = standardising(data)
    assert found.mean == pytest.approx(expected.mean_, rel=1e-13)
    assert found.deviation == pytest.approx(expected.scale_, rel=1e-13)
    scaled = found.of(data)
    assert scaled.x == pytest.approx(expected.transform(data.x), abs=1e-12)
    assert (scaled.x.mean(axis=0), scaled.x.std(axis=0)) == (pytest.approx(0, abs=1e-13), pytest.approx(1))


def test_it_keeps_the_digits_that_the_difference_of_squares_loses() -> None:
    """For values near 10⁸ with a deviation of 1, Σx²/n and μ² agree in all of their 16 digits."""
    x = 1e8 + np.random.default_rng(0).normal(size=(10_000, 1))
    data = example_data(x, np.zeros(10_000), [100] * 100)
    exact = float((x - 1e8).std())
    assert merged(client_moments(data)).deviation[0, 0] == pytest.approx(exact, rel=1e-7)
    of_squares = deviation_from_squares(data.sizes, sums_by_client(data, x), sums_by_client(data, x**2))
    assert abs(of_squares[0] / exact - 1) > 0.01


def test_a_client_with_very_many_examples_says_their_mean_to_the_last_digit() -> None:
    x = 1e8 + np.random.default_rng(1).normal(size=(200_000, 3))
    found = client_moments(example_data(x, np.zeros(len(x)), [len(x)]))
    exact = [math.fsum(column) / len(x) for column in x.T]
    assert found.mean[0] == pytest.approx(exact, rel=2.0**-52)


def test_on_gentle_data_the_difference_of_squares_says_the_same() -> None:
    data = credits_by_purpose()
    of_squares = deviation_from_squares(data.sizes, sums_by_client(data, data.x), sums_by_client(data, data.x**2))
    assert of_squares == pytest.approx(merged(client_moments(data)).deviation[0], rel=1e-9)


@given(fleets(), st.floats(0.001, 1))
def test_a_quantile_from_counts_is_that_of_the_pooled_examples_to_the_bit(data: ExampleData, share: float) -> None:
    expected = np.quantile(data.x, share, axis=0, method="inverted_cdf")
    assert quantiles(data, share).tolist() == expected.tolist()


@given(fleets(), st.integers(0, 7), st.floats(0.01, 1))
def test_the_sum_of_the_clients_counts_is_the_count_of_all(data: ExampleData, depth: int, share: float) -> None:
    search = begun(share, len(data.y), 2)
    for _ in range(depth):
        search = narrowed(search, client_counts(data, search).sum(axis=0))
    answers = client_counts(data, search)
    assert answers.shape == (len(data), 2, 256)
    assert (answers.sum(axis=0) == client_counts(data.pooled(), search)[0]).all()
    assert (answers.sum(axis=(1, 2)) <= 2 * data.sizes).all()


def test_the_99th_percentile_of_real_data() -> None:
    data = load("spambase")
    fleet = example_data(data.x, np.zeros(len(data)), [4601])
    expected = np.percentile(data.x, 99, axis=0, method="inverted_cdf")
    assert quantiles(fleet, 0.99).tolist() == expected.tolist()
    cut = clipping(fleet, 0.99, 0.01).of(fleet)
    low = np.percentile(data.x, 1, axis=0, method="inverted_cdf")
    assert (cut.x == np.clip(data.x, low, expected)).all()


def test_min_max_takes_the_extremes_over_all_clients() -> None:
    """Equals scikit-learn on pooled data; a constant feature becomes 0, and a client without examples has no effect."""
    x = np.array([[1.0, 5.0, -3.0], [2.0, 5.0, 4.0], [0.5, 5.0, 0.0], [9.0, 5.0, 1.0]])
    data = example_data(x, np.zeros(4), np.array([2, 0, 1, 1]))
    scaled = min_max_scaling(data).of(data).x
    np.testing.assert_allclose(scaled[:, [0, 2]], MinMaxScaler().fit_transform(x)[:, [0, 2]], atol=1e-15)
    assert not scaled[:, 1].any()


def test_only_features_with_far_outliers_are_clipped() -> None:
    """Columns: an outlier above ten times the percentile, a smaller outlier, and a rare mark whose percentile is 0."""
    x = np.column_stack([np.linspace(0, 1, 1000)] * 2 + [np.zeros(1000)])
    x[500] = [50.0, 9.0, 1.0]
    data = example_data(x, np.zeros(1000), [300, 700])
    rule = outlier_clipping(data)
    assert rule.high.tolist() == [np.percentile(x[:, 0], 99, method="inverted_cdf"), np.inf, np.inf]
    assert rule.of(data).x.max(axis=0).tolist() == [rule.high[0], 9.0, 1.0]
    assert client_exceeding(data, np.array([2.0, 2.0, 0.0])).tolist() == [[0, 0, 0], [1, 1, 1]]


def test_class_weights_are_scikit_learns_and_balance_the_classes() -> None:
    data = load("credit")
    fleet = partition(data, Dirichlet(clients=20, alpha=0.3), 0).of(data)
    counts = client_class_counts(fleet)
    assert counts.sum(axis=0).tolist() == [700, 300]
    assert counts.sum(axis=1).tolist() == fleet.sizes.tolist()
    weights = class_weights(counts)
    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=data.y)
    assert weights == pytest.approx(expected, rel=1e-15)
    assert weights.tolist() == pytest.approx([1000 / 2 / 700, 1000 / 2 / 300])
    weighed = balanced(fleet)
    assert [weighed.weight[weighed.y == c].sum() for c in (0, 1)] == pytest.approx([500, 500])


def test_a_class_that_nobody_has_weighs_nothing_and_takes_nothing_from_the_others() -> None:
    assert class_weights(np.array([[2, 0, 0], [1, 0, 1]])).tolist() == pytest.approx([4 / 2 / 3, 0, 4 / 2 / 1])


def test_numbers_have_no_classes_to_weigh() -> None:
    with pytest.raises(FedpingError, match="'y' is a number and has no classes"):
        balanced(example_data(np.zeros((2, 1)), np.zeros(2), [2]))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.floats(-1e9, 1e9))
def test_a_constant_is_known_as_one_whoever_has_it(sizes: list[int], value: float) -> None:
    rows = sum(sizes)
    x = np.column_stack([np.full(rows, value), np.arange(rows) + value])
    data = example_data(x, np.zeros(rows), sizes)
    assert constant_features(merged(client_moments(data))).tolist() == [True, rows == 1]
    scaled = standardising(data).of(data)
    assert np.isfinite(scaled.x).all()
    assert np.abs(scaled.x[:, 0]).max() <= 1e-15 * abs(value)


def test_a_feature_that_is_constant_for_each_client_alone_is_kept() -> None:
    x = np.column_stack([[1.0, 1.0, 2.0, 2.0], [7.0] * 4])
    data = example_data(x, [0, 1, 0, 1], [2, 2], features=("region", "always"), target=Target("t", ("a", "b")))
    kept = without_constants(data).of(data)
    assert kept.features == ("region",)
    assert kept.x.tolist() == [[1.0], [1.0], [2.0], [2.0]]
    with pytest.raises(FedpingError, match="nothing to learn from"):
        without_constants(example_data(np.ones((3, 2)), np.zeros(3), [3]))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_a_quantile_that_does_not_exist_is_refused(share: float) -> None:
    with pytest.raises(InvalidSettings, match="does not exist"):
        quantiles(example_data(np.zeros((2, 1)), np.zeros(2), [2]), share)
    with pytest.raises(InvalidSettings, match="no examples"):
        quantiles(example_data(np.zeros((0, 1)), np.zeros(0), [0]), 0.5)
