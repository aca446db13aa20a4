"""A fleet's data in one array: batches, subsets of clients and rows, and all clients at once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.client_sim.data import ExampleData, Target, example_data, table
from fedping.client_sim.learning import Examples
from fedping.protocol.errors import FedpingError

SIZES = st.lists(st.integers(0, 6), min_size=1, max_size=8)


def fleet(sizes: list[int], features: int = 3) -> ExampleData:
    """Return the data of clients in which every value identifies its row."""
    rows = np.arange(sum(sizes), dtype=float)
    x = rows[:, None] + np.arange(features) / 10
    data = example_data(x, rows % 2, sizes, target=Target("side", ("left", "right")))
    return replace(data, weight=rows + 1)


def rows_of(data: ExampleData, client: int) -> slice:
    return slice(int(data.offsets[client]), int(data.offsets[client + 1]))


def assert_holds_just(batch: Examples, position: int, data: ExampleData, client: int) -> None:
    """Check that a batch's client has its rows first, followed by zeros of weight 0."""
    rows, size = rows_of(data, client), int(data.sizes[client])
    for given_, own in ((batch.x, data.x), (batch.y, data.y), (batch.weight, data.weight)):
        assert (given_[position, :size] == own[rows]).all()
        assert not given_[position, size:].any()


@given(SIZES, st.data())
def test_a_batch_is_each_clients_rows_and_padding_in_the_order_asked_for(sizes: list[int], draw: st.DataObject) -> None:
    data = fleet(sizes)
    clients = draw.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=10))
    batch = data.batch(np.array(clients, dtype=np.intp))
    width = max((sizes[client] for client in clients), default=0)
    assert batch.x.shape == (len(clients), width, 3)
    assert batch.y.shape == batch.weight.shape == (len(clients), width)
    for position, client in enumerate(clients):
        assert_holds_just(batch, position, data, client)


@pytest.mark.parametrize("clients", [[1, 2], [0, 1, 2, 3], [2, 1], [3], [1, 1]])
def test_neighbours_of_equal_size_are_a_batch_like_any_other(clients: list[int]) -> None:
    data = fleet([2, 2, 2, 2])
    batch = data.batch(np.array(clients))
    for position, client in enumerate(clients):
        assert_holds_just(batch, position, data, client)


@pytest.mark.parametrize("sizes", [[2, 2, 1], [2, 2, 1, 3], [2, 0, 2], [0, 0]])
def test_neighbours_that_only_begin_at_equal_distances_are_padded(sizes: list[int]) -> None:
    data = fleet(sizes)
    batch = data.batch(np.arange(3)[: len(sizes)])
    for client in range(len(batch)):
        assert_holds_just(batch, client, data, client)


def test_nobody_can_change_the_data_through_a_batch() -> None:
    data = fleet([2, 2])
    for clients in (np.arange(2), np.array([1, 0])):  # a view of the data, and a copy that may be kept for other rounds
        with pytest.raises(ValueError, match="read-only"):
            data.batch(clients).x[0, 0, 0] = -1.0
    assert data.x.min() >= 0


@given(SIZES, st.data())
def test_some_clients_alone_are_who_they_were(sizes: list[int], draw: st.DataObject) -> None:
    data = replace(fleet(sizes), natural_keys=np.array([f"user {client}" for client in range(len(sizes))]))
    clients = np.array(draw.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=9)), dtype=np.intp)
    alone = data.select(clients)
    assert alone.ids.tolist() == clients.tolist()
    assert alone.natural_keys is not None
    assert alone.natural_keys.tolist() == [f"user {client}" for client in clients]
    for position, client in enumerate(clients):
        assert alone.x[rows_of(alone, position)].tolist() == data.x[rows_of(data, client)].tolist()
        assert alone.weight[rows_of(alone, position)].tolist() == data.weight[rows_of(data, client)].tolist()


@given(SIZES, st.integers(0, 2**32))
def test_a_mask_and_its_opposite_share_out_each_clients_rows(sizes: list[int], seed: int) -> None:
    data = fleet(sizes)
    mask = np.random.default_rng(seed).random(sum(sizes)) < 0.5
    some, others = data.only(mask), data.only(~mask)
    assert (some.sizes + others.sizes == data.sizes).all()
    for client in range(len(sizes)):
        both = np.concatenate([some.x[rows_of(some, client)], others.x[rows_of(others, client)]])
        assert sorted(both[:, 0]) == data.x[rows_of(data, client), 0].tolist()


def test_pooled_is_one_client_with_everything() -> None:
    data = fleet([2, 0, 3])
    pooled = data.pooled()
    assert len(pooled) == 1
    batch = pooled.batch(np.array([0]))
    assert (batch.x[0] == data.x).all()
    assert (batch.weight[0] == data.weight).all()


def test_as_a_table_each_row_knows_its_client() -> None:
    data = replace(fleet([2, 0, 1]), natural_keys=np.array(["a", "b", "c"]))
    rows = data.as_table()
    assert rows.key is not None
    assert rows.key.tolist() == ["a", "a", "c"]
    assert (rows.x == data.x).all()


@pytest.mark.parametrize(
    ("x", "y", "target", "said"),
    [
        ([[1.0], [np.nan]], [0, 1], Target(), "not finite"),
        ([[1.0], [2.0]], [0, 2], Target("kind", ("a", "b")), "numbers from 0 to 2"),
        ([[1.0]], [0, 1], Target(), "not rows of one table"),
        ([1.0, 2.0], [0, 1], Target(), "matrix"),
    ],
)
def test_arrays_that_are_no_examples_are_refused(x: list, y: list, target: Target, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(FedpingError, match=said):
        table(x, y, target=target)


def test_sizes_that_do_not_divide_the_rows_are_refused() -> None:
    with pytest.raises(FedpingError, match="divide 3 examples"):
        example_data(np.zeros((3, 1)), np.zeros(3), [1, 1])
