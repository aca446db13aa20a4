"""Partitions of rows over clients: laws of all partitioners, and properties of each.

Statistical tests have fixed seeds, and state their error rate by ``ALPHA``.
"""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedping.client_sim.data import (
    ByKey,
    Dirichlet,
    FixedSize,
    Iid,
    Labels,
    Partition,
    PowerLaw,
    RandomSizes,
    Shards,
    Table,
    Target,
    partition,
    table,
)
from fedping.client_sim.data.partition import rounded_shares
from fedping.protocol.errors import FedpingError

ALPHA = 1e-4
CLIENTS = st.integers(1, 12)
ALPHAS = st.sampled_from([0.01, 0.3, 1.0, 50.0])
ANY_WAY = st.one_of(
    st.builds(Iid, clients=CLIENTS),
    st.builds(Shards, clients=CLIENTS, shards=st.integers(1, 3)),
    st.builds(Labels, clients=st.integers(3, 12), labels=st.integers(1, 3)),
    st.builds(Dirichlet, clients=CLIENTS, alpha=ALPHAS),
    st.builds(ByKey, pieces=st.integers(1, 3)),
    st.builds(PowerLaw, clients=CLIENTS, exponent=st.sampled_from([0.5, 1.0, 3.0])),
    st.builds(RandomSizes, clients=CLIENTS, alpha=ALPHAS),
    st.builds(FixedSize, examples=st.integers(1, 3), clients=CLIENTS | st.none()),
)


def rows(count: int, classes: int = 3, keys: int = 4, seed: int = 0) -> Table:
    random = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), random.integers(0, classes, count - classes)])
    names = tuple(f"class {number}" for number in range(classes))
    key = np.array([f"key {number}" for number in random.integers(0, keys, count)])
    return table(np.arange(count)[:, None], labels, target=Target("label", names), key=key)


@given(ANY_WAY, st.integers(36, 60), st.integers(1, 4), st.integers(0, 2**32))
def test_every_row_is_somebodys_once_or_counted_as_left_out(way: Partition, count: int, least: int, seed: int) -> None:
    data, strict = rows(count), msgspec.structs.replace(way, least=least)
    if partition(data, way, seed).sizes.max() < least:
        with pytest.raises(FedpingError, match=f"none of .* clients has {least}"):
            partition(data, strict, seed)
        return
    parts = partition(data, strict, seed)
    assert len(np.unique(parts.rows)) == len(parts.rows) == parts.sizes.sum() == count - parts.rows_left_out
    assert parts.sizes.min() >= least
    if least == 1 and not isinstance(way, FixedSize):
        assert parts.rows_left_out == 0
    clients = parts.of(data)
    assert (clients.x[:, 0] == parts.rows).all()
    assert (clients.sizes == parts.sizes).all()


@given(ANY_WAY, st.integers(0, 2**32))
def test_the_same_seed_divides_the_same_way(way: Partition, seed: int) -> None:
    first, second = partition(rows(50), way, seed), partition(rows(50), way, seed)
    assert first.rows.tolist() == second.rows.tolist()
    assert first.sizes.tolist() == second.sizes.tolist()


@pytest.mark.parametrize("way", [Iid(clients=5), Dirichlet(clients=5), Shards(clients=5), ByKey(pieces=2)])
def test_another_seed_divides_otherwise(way: Partition) -> None:
    assert partition(rows(50), way, 1).rows.tolist() != partition(rows(50), way, 2).rows.tolist()


@given(CLIENTS, st.integers(12, 70))
def test_iid_sizes_differ_by_one_at_most(clients: int, count: int) -> None:
    sizes = partition(rows(count), Iid(clients=clients), 0).sizes
    assert len(sizes) == clients
    assert sizes.max() - sizes.min() <= 1


def test_iid_clients_have_the_labels_of_all() -> None:
    """A chi-squared test of independence of client and label; a correct partitioner fails with probability ALPHA."""
    data = rows(20_000, classes=5)
    clients = partition(data, Iid(clients=20), 3).of(data)
    counts = np.zeros((20, 5))
    np.add.at(counts, (clients.client_of, clients.y), 1)
    assert stats.chi2_contingency(counts).pvalue > ALPHA


def labels_of(data: Table, way: Partition, seed: int = 0) -> list[set[int]]:
    clients = partition(data, way, seed).of(data)
    return [set(clients.y[clients.client_of == client].tolist()) for client in range(len(clients))]


@given(st.integers(1, 4), st.integers(0, 100))
def test_a_client_has_just_so_many_labels(labels: int, seed: int) -> None:
    had = labels_of(rows(2_000, classes=10), Labels(clients=20, labels=labels), seed)
    assert {len(client) for client in had} == {labels}
    holders = [sum(label in client for client in had) for label in range(10)]
    assert max(holders) - min(holders) <= 1
    assert sum(holders) == 20 * labels


@given(st.integers(1, 4), st.integers(0, 100))
def test_a_shard_spans_few_labels(shards: int, seed: int) -> None:
    data = rows(2_000, classes=4)
    parts = partition(data, Shards(clients=10, shards=shards), seed)
    assert parts.sizes.max() - parts.sizes.min() <= shards
    had = labels_of(data, Shards(clients=10, shards=shards), seed)
    # A shard is at most as wide as a class here, so it spans at most two labels.
    assert sum(map(len, had)) <= 10 * shards + 3
    assert max(map(len, had)) <= 2 * shards


@pytest.mark.parametrize(("alpha", "low", "high"), [(0.05, 0.6, 1.0), (1.0, 0.2, 0.6), (1000.0, 0.1, 0.13)])
def test_a_small_alpha_gives_clients_few_labels(alpha: float, low: float, high: float) -> None:
    """Checks the mean share of a client's most frequent label of ten, with a fixed seed."""
    data = rows(50_000, classes=10)
    clients = partition(data, Dirichlet(clients=20, alpha=alpha), 5).of(data)
    counts = np.zeros((len(clients), 10))
    np.add.at(counts, (clients.client_of, clients.y), 1)
    assert low < (counts.max(axis=1) / counts.sum(axis=1)).mean() < high


def test_dirichlet_shares_have_the_moments_of_their_distribution() -> None:
    """Shares of Dirichlet(α) over K have mean 1/K and variance (K - 1)/(K² (αK + 1)); 400 seeds, error rate ALPHA."""
    data = table(np.zeros((1_000, 1)), np.zeros(1_000), target=Target("only", ("one",)))
    alpha, clients, seeds = 0.8, 4, 400
    shares = [partition(data, Dirichlet(clients=clients, alpha=alpha), seed) for seed in range(seeds)]
    first = np.array([parts.sizes[0] / 1_000 for parts in shares if len(parts) == clients])
    assert len(first) > 0.97 * seeds
    variance = (clients - 1) / (clients**2 * (alpha * clients + 1))
    assert abs(first.mean() - 1 / clients) < stats.norm.isf(ALPHA / 2) * np.sqrt(variance / seeds)
    assert first.var() == pytest.approx(variance, rel=0.3)


def test_by_key_each_client_is_one_key_and_keeps_its_name() -> None:
    data = rows(60)
    clients = partition(data, ByKey(), 0).of(data)
    assert data.key is not None
    assert clients.natural_keys is not None
    assert clients.natural_keys.tolist() == sorted(set(data.key.tolist()))
    for client, key in enumerate(clients.natural_keys):
        assert clients.x[clients.client_of == client, 0].tolist() == np.flatnonzero(data.key == key).tolist()


def test_by_key_in_pieces_the_pieces_of_a_key_differ_by_one_row() -> None:
    data = rows(100)
    clients = partition(data, ByKey(pieces=3), 0).of(data)
    assert clients.natural_keys is not None
    for key in np.unique(clients.natural_keys):
        sizes = clients.sizes[clients.natural_keys == key]
        assert len(sizes) == 3
        assert sizes.max() - sizes.min() <= 1


def test_clients_below_the_least_are_dropped_and_counted() -> None:
    data = table(np.zeros((6, 1)), np.zeros(6), key=np.array(["a", "b", "b", "b", "c", "c"]))
    parts = partition(data, ByKey(least=2), 0)
    assert parts.natural_keys is not None
    assert parts.natural_keys.tolist() == ["b", "c"]
    assert (parts.rows_left_out, parts.clients_dropped, parts.sizes.tolist()) == (1, 1, [3, 2])


@pytest.mark.parametrize(
    "way",
    [
        Iid(clients=4),
        Shards(clients=2, shards=2),
        Labels(clients=4, labels=2),
        Dirichlet(clients=4, alpha=9.0),
        ByKey(pieces=4),
        PowerLaw(clients=4),
        RandomSizes(clients=4),
        FixedSize(examples=500),
    ],
)
def test_where_a_row_stands_in_the_table_has_no_say(way: Partition) -> None:
    """Kruskal and Wallis' test of the clients' row numbers; error rate ALPHA for each partitioner."""
    data = table(np.arange(2_000)[:, None], np.arange(2_000) % 2, target=Target("t", ("a", "b")), key=np.zeros(2_000))
    clients = partition(data, way, 8).of(data)
    numbers = [clients.x[clients.client_of == client, 0] for client in range(len(clients))]
    assert len(numbers) > 1
    assert stats.kruskal(*numbers).pvalue > ALPHA


def test_shares_are_rounded_to_the_nearest_that_sum_to_all() -> None:
    assert rounded_shares(np.array([0.5, 0.3, 0.2]), 4).tolist() == [2, 1, 1]
    assert rounded_shares(np.array([0.4, 0.35, 0.25]), 10).tolist() == [4, 4, 2]


def test_power_law_sizes_fall_with_their_rank() -> None:
    data = table(np.zeros((10_000, 1)), np.zeros(10_000))
    sizes = np.sort(partition(data, PowerLaw(clients=50, exponent=1.5), 0).sizes)[::-1]
    shares = np.arange(1, 51) ** -1.5
    expected = 1 + 9_950 * shares / shares.sum()
    assert np.abs(sizes - expected).max() < 1


@given(st.integers(1, 50), st.integers(0, 2**32))
def test_random_sizes_leave_nobody_without(clients: int, seed: int) -> None:
    data = table(np.zeros((50, 1)), np.zeros(50))
    assert len(partition(data, RandomSizes(clients=clients, alpha=0.05), seed)) == clients


def test_fixed_sizes_leave_out_the_rest() -> None:
    data = rows(50)
    parts = partition(data, FixedSize(examples=8), 0)
    assert (parts.sizes.tolist(), parts.rows_left_out) == ([8] * 6, 2)
    few = partition(data, FixedSize(examples=8, clients=3), 0)
    assert (few.sizes.tolist(), few.rows_left_out) == ([8] * 3, 26)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (Iid(clients=7), "too few for 7 clients with 1 each"),
        (FixedSize(examples=2, clients=4), "too few for 4 clients with 2 each"),
        (FixedSize(examples=7), "too few for 1 clients with 7 each; set 6 examples a client at most"),
        (Shards(clients=2), "the target 'y' is a number"),
        (ByKey(), "this data set has none"),
    ],
)
def test_what_cannot_be_divided_so_is_refused(way: Partition, said: str) -> None:
    with pytest.raises(FedpingError, match=said):
        partition(table(np.zeros((6, 1)), np.zeros(6)), way, 0)


def test_labels_that_would_be_nobodys_are_refused() -> None:
    with pytest.raises(FedpingError, match="leave some of 3 labels to nobody"):
        partition(rows(30), Labels(clients=2, labels=1), 0)
    with pytest.raises(FedpingError, match="cannot have 4 of 3 labels"):
        partition(rows(30), Labels(clients=2, labels=4), 0)


def test_settings_are_read_by_their_tag() -> None:
    read = msgspec.convert({"partition": "dirichlet", "clients": 10, "alpha": 0.1}, Partition)
    assert read == Dirichlet(clients=10, alpha=0.1)
