"""Clients with different data: by topic, by natural keys, and two users given by a formula."""

import numpy as np
import pytest

from fedping.client_sim.data import ByKey, load, partition
from fedping.client_sim.data.datasets import DEVIATIONS, MEANS
from fedping.client_sim.data.partition import Topics
from fedping.client_sim.data.table import Target, table
from fedping.protocol.errors import FedpingError


def test_topics_differ_along_a_direction_and_have_the_same_share_of_every_class() -> None:
    mails = load("spambase-logarithms")
    parts = partition(mails, Topics(clients=11), seed=3)
    assert sorted(parts.rows) == list(range(len(mails)))
    shares = [data.mean() for data in np.split(mails.y[parts.rows], np.cumsum(parts.sizes)[:-1])]
    assert np.ptp(shares) < 0.004
    scaled = (mails.x - mails.x.mean(axis=0)) / mails.x.std(axis=0)
    means = np.array([of.mean(axis=0) for of in np.split(scaled[parts.rows], np.cumsum(parts.sizes)[:-1])])
    at_random = np.random.default_rng(1).permutation(len(mails))
    others = np.array([of.mean(axis=0) for of in np.array_split(scaled[at_random], 11)])
    assert means.std(axis=0).mean() > 3 * others.std(axis=0).mean()
    assert list(partition(mails, Topics(clients=11), seed=3).rows) == list(parts.rows)
    assert list(partition(mails, Topics(clients=11), seed=4).rows) != list(parts.rows)


def test_some_keys_are_drawn_among_those_with_enough_rows() -> None:
    key = np.repeat(np.arange(10), np.arange(1, 11))
    rows = table(np.zeros((55, 1)), np.zeros(55), target=Target("y"), key=key)
    drawn = set()
    for seed in range(20):
        parts = partition(rows, ByKey(keys=3, least=5), seed)
        assert len(parts) == 3
        assert parts.natural_keys is not None
        assert parts.natural_keys.min() >= 4
        drawn |= set(parts.natural_keys)
    assert drawn == set(range(4, 10))
    with pytest.raises(FedpingError, match=r"only 6 natural keys .* keys = 7"):
        partition(rows, ByKey(keys=7, least=5), 0)


def test_the_best_line_of_two_gaussians_is_off_by_what_was_printed() -> None:
    """RMSE = √(4.5 μ² s⁴ + 1.5 s⁶); by the heavy tail, the mean square of 50,000 has a standard error of about 1 %."""
    data = load("two-gaussians")
    for user, printed in enumerate((15.32, 10.95)):
        mean, deviation = MEANS[user][1], DEVIATIONS[user]
        formula = np.sqrt(4.5 * mean**2 * deviation**4 + 1.5 * deviation**6)
        assert formula == pytest.approx(printed, abs=0.005)
        rows = data.key == user + 1
        x = np.column_stack([data.x[rows], np.ones(rows.sum())])
        error = data.y[rows] - x @ np.linalg.lstsq(x, data.y[rows], rcond=None)[0]
        standard_error = (error**2).std() / np.sqrt(rows.sum()) / (2 * formula)
        assert abs(np.sqrt((error**2).mean()) - formula) < 3 * standard_error
