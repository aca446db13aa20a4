"""Bins and scores of features from clients' sums, compared with NumPy, SciPy and scikit-learn on pooled examples."""

import tracemalloc
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from scipy import stats
from sklearn.feature_selection import SelectKBest, f_classif, f_regression
from sklearn.preprocessing import KBinsDiscretizer

from fedping.client_sim.data import (
    ByKey,
    Discretise,
    ExampleData,
    Iid,
    Select,
    Target,
    discretising,
    example_data,
    load,
    partition,
    scores_of,
    selecting,
)
from fedping.client_sim.data.bins import client_bin_counts, equal_bins, quantile_bins
from fedping.client_sim.data.scores import chi_squared, client_class_bin_counts, comoments
from fedping.protocol.errors import InvalidSettings


def tumours() -> ExampleData:
    data = load("breast-cancer")
    return partition(data, Iid(clients=7), 1).of(data)


def patients() -> ExampleData:
    data = load("diabetes")
    return partition(data, Iid(clients=5), 1).of(data)


def of_one_feature(values: list[float]) -> ExampleData:
    return example_data(np.array(values)[:, None], np.zeros(len(values)), (len(values),))


@pytest.mark.parametrize("count", [2, 4, 10])
def test_quantile_bins_are_those_of_the_pooled_values(count: int) -> None:
    data = tumours()
    shares = np.arange(1, count) / count
    edges = np.quantile(data.x, shares, axis=0, method="inverted_cdf").T
    bins = quantile_bins(data, count)
    for feature in range(data.x.shape[1]):
        expected = np.unique(edges[feature])
        expected = expected[expected < data.x[:, feature].max()]
        assert bins.edges[feature][np.isfinite(bins.edges[feature])].tolist() == expected.tolist()
        np.testing.assert_array_equal(
            bins.numbers(data.x)[:, feature], np.digitize(data.x[:, feature], expected, right=True)
        )


def test_equally_wide_bins_are_those_of_scikit_learn() -> None:
    data = tumours()
    theirs = KBinsDiscretizer(n_bins=6, encode="ordinal", strategy="uniform").fit(data.x)
    step = discretising(data, Discretise(bins=6, by="width"))
    np.testing.assert_allclose(equal_bins(data, 6).edges, np.stack([each[1:-1] for each in theirs.bin_edges_]))
    edges = np.stack([each[1:-1] for each in theirs.bin_edges_])
    inside = np.abs(data.x[:, :, None] - edges).min(axis=2) > 1e-9  # a value on an edge is below it here
    assert inside.mean() > 0.99
    np.testing.assert_array_equal(step.of(data).x[inside], theirs.transform(data.x)[inside])


def test_clients_counts_are_a_histogram_of_all() -> None:
    data = tumours()
    bins = equal_bins(data, 8)
    counts = client_bin_counts(data, bins)
    assert counts.shape == (7, 30, 8)
    np.testing.assert_array_equal(counts.sum(axis=2), np.repeat(data.sizes[:, None], 30, axis=1))
    for feature in (0, 13):
        assert counts.sum(axis=0)[feature].tolist() == np.histogram(data.x[:, feature], 8)[0].tolist()


def test_one_feature_for_each_bin_with_an_example() -> None:
    data = of_one_feature([0, 0, 1, 10, 10])
    of = discretising(data, Discretise(bins=5, by="width", encode="one_hot")).of(data)
    assert of.features == ("x0 <= 2", "8 < x0")
    assert of.x.tolist() == [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1]]
    by_rank = discretising(data, Discretise(bins=5, encode="one_hot")).of(data)
    assert by_rank.features == ("x0 <= 0", "0 < x0 <= 1", "1 < x0")
    unseen = discretising(data, Discretise(bins=5, by="width", encode="one_hot")).of(of_one_feature([5, -9, 99]))
    assert unseen.x.tolist() == [[0, 0], [1, 0], [0, 1]]


@pytest.mark.parametrize("by", ["quantile", "width"])
def test_one_hot_a_feature_with_two_values_becomes_one(by: Literal["quantile", "width"]) -> None:
    values = np.array([[0, 5, -1, 0, 0], [1, 5, 2, 1, 1], [1, 9, 2, 3, 0.5], [0, 9, -1, 3, 1]])
    data = example_data(values, np.zeros(4), (1, 3))
    of = discretising(data, Discretise(bins=4, by=by, encode="one_hot")).of(data)
    assert of.features[0] == "x0"
    assert of.x[:, 0].tolist() == [0, 1, 1, 0]
    assert [name.partition(" < ")[2] for name in of.features[1:3]] == ["x1", "x2"]
    assert of.x[:, 1:3].T.tolist() == [[0, 0, 1, 1], [0, 1, 1, 0]]
    assert of.x.shape[1] == 3 + 3 + 3, "three values are three features, also within zero and one"
    ordinal, top = discretising(data, Discretise(bins=4, by=by)).of(data), 1 if by == "quantile" else 3
    assert ordinal.x[:, :2].T.tolist() == [[0, top, top, 0], [0, 0, top, top]]


@pytest.mark.parametrize("values", [[3.0] * 4, [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
@pytest.mark.parametrize("encode", ["ordinal", "one_hot"])
def test_a_feature_whose_bins_merge_into_one_keeps_its_values(values: list[float], encode: str) -> None:
    data = of_one_feature(values)
    of = discretising(data, Discretise(bins=4, encode=encode)).of(data)  # type: ignore[arg-type]
    assert of.x[:, 0].tolist() == values
    assert of.features == ("x0",)


def test_rare_ones_keep_a_bin_of_their_own() -> None:
    data = of_one_feature([0.0] * 30 + [1.0])
    assert discretising(data, Discretise(bins=4)).of(data).x[:, 0].tolist() == [0.0] * 30 + [1.0]


def test_f_of_classes_is_that_of_the_pooled_examples() -> None:
    data = tumours()
    np.testing.assert_allclose(scores_of(data, "f"), f_classif(data.x, data.y)[0], rtol=1e-9)
    by_key = load("credit")
    credits = partition(by_key, ByKey(), 0).of(by_key)
    np.testing.assert_allclose(scores_of(credits, "f"), f_classif(credits.x, credits.y)[0], rtol=1e-8)
    np.testing.assert_allclose(scores_of(load_digits(), "f"), f_of_digits(), rtol=1e-7)


def load_digits() -> ExampleData:
    data = load("digits")
    return partition(data, Iid(clients=3), 1).of(data)


def f_of_digits() -> np.ndarray:
    data = load_digits()
    constant = data.x.std(axis=0) == 0
    scores: np.ndarray = np.zeros(data.x.shape[1])
    scores[~constant] = f_classif(data.x[:, ~constant], data.y)[0]
    return scores


def test_f_of_a_number_is_that_of_the_correlation() -> None:
    data = patients()
    np.testing.assert_allclose(scores_of(data, "f"), f_regression(data.x, data.y)[0], rtol=1e-9)
    of_features, with_target, of_target = comoments(data)
    expected = np.corrcoef(np.column_stack([data.x, data.y]).T)[:-1, -1]
    np.testing.assert_allclose(with_target / np.sqrt(of_features * of_target), expected, atol=1e-12)


@pytest.mark.parametrize("by", ["f", "chi2"])
def test_scores_of_many_features_and_clients_need_no_table_of_both(by: Literal["f", "chi2"]) -> None:
    x = np.random.default_rng(3).normal(size=(60, 30_000))
    y = np.arange(60) % 20
    target = Target("y", tuple("abcdefghijklmnopqrst")) if by == "chi2" else Target()
    data = example_data(x, y, (1,) * 60, target=target)
    tracemalloc.start()
    try:
        scores = scores_of(data, by)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert scores.shape == (30_000,)
    assert most < 40 * x.nbytes  # 60 clients' tables of bins by classes would be 200 times as large, products 500 times


def test_chi_squared_is_that_of_the_table_of_bins_by_classes() -> None:
    data = tumours()
    counts = client_class_bin_counts(data, quantile_bins(data, 10)).sum(axis=0)
    scores = scores_of(data, "chi2")
    for feature in (0, 9, 27):
        observed = counts[feature][counts[feature].any(axis=1)]
        assert observed.sum() == len(data.y)
        expected = stats.chi2_contingency(observed, correction=False).statistic
        assert scores[feature] == pytest.approx(expected, rel=1e-12)
    assert chi_squared(np.array([[[10, 0], [0, 10]]])).tolist() == [20]


def test_the_best_features_are_kept_in_their_order() -> None:
    data = tumours()
    chosen, scores = selecting(data, Select(features=5))
    theirs = SelectKBest(f_classif, k=5).fit(data.x, data.y)
    assert chosen.kept.tolist() == theirs.get_support().tolist()
    assert len(scores) == 30
    of = chosen.of(data)
    assert of.features == tuple(name for name, kept in zip(data.features, chosen.kept, strict=True) if kept)


def test_a_constant_feature_comes_last_and_a_perfect_one_first() -> None:
    x = np.column_stack([np.full(6, 3.3), [0.1, 0.4, 0.2, 0.4, 0.3, 0.2], [1, 1, 1, 2, 2, 2]])
    data = example_data(x, [0, 0, 0, 1, 1, 1], (2, 4), target=Target("y", ("no", "yes", "never")))
    scores = scores_of(data, "f")
    assert scores[0] == 0
    assert scores[2] == np.inf
    assert selecting(data, Select(features=1))[0].kept.tolist() == [False, False, True]
    alone = replace(data, y=np.zeros(6, np.int64))
    assert scores_of(alone, "f").tolist() == [0, 0, 0]


def test_what_cannot_be_selected_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="features = 31, and there are 30"):
        selecting(tumours(), Select(features=31))
    with pytest.raises(InvalidSettings, match=r"'progression' is a number\. Set"):
        selecting(patients(), Select(features=3, by="chi2"))
