"""One vote for each example: the mean of the clients' gradients is the gradient of the pooled data (thesis eq. 2)."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.landed_table import ModelPings, landed_model_updates
from fedping.protocol.landing import write_landed
from fedping.server_jobs.round.aggregate import RoundAggregate, combined
from fedping.server_jobs.round.engine import NumpyEngine
from fedping.server_jobs.round.plan import Rules
from tests.support.rounds import Ping, line_of, table_of, work_of

FloatArray = NDArray[np.float64]


def rules(weighting: str, pings: str = "model-update", m: int = 3, most_votes: int | None = None) -> Rules:
    line = line_of(m, weighting=weighting, most_votes=most_votes)
    return Rules(line=line, iteration=0, arms=("a", "b"), submits=(True, True), pings=pings)


def squares(weights: FloatArray, x: FloatArray, y: FloatArray) -> tuple[float, FloatArray]:
    """Return the mean squared error of a linear model, and its gradient; 0 without examples."""
    apart = x @ weights - y
    return float((apart**2).sum() / max(len(y), 1)), 2 * x.T @ apart / max(len(y), 1)


def aggregate(made: list[ModelPings], weighting: str, most_votes: int | None = None) -> RoundAggregate:
    judged = rules(weighting, most_votes=most_votes)
    with tempfile.TemporaryDirectory() as folder:
        paths = [write_landed(Path(folder), landed_model_updates(one, 0), n) for n, one in enumerate(made)]
        return combined(NumpyEngine().partials(work_of(paths, judged)), judged)


clients = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**32 - 1)), min_size=1, max_size=25)


@settings(max_examples=40, deadline=None)
@given(sizes=clients, seed=st.integers(0, 2**32 - 1), repeated=st.booleans())
def test_the_mean_by_examples_is_the_gradient_of_the_pooled_data(
    sizes: list[tuple[int, int]], seed: int, repeated: bool
) -> None:
    """Every example has one vote, also if a client sends several pings, each for other examples."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=3)
    data = [(x := np.random.default_rng(s).normal(size=(n, 3)), x.sum(axis=1) + 1) for n, s in sizes]
    found = [squares(weights, x, y) for x, y in data]
    ids = rng.integers(0, 256, (len(sizes), 16), np.uint8)
    pings = ModelPings(
        document_ids=ids,
        client_ids=ids[rng.integers(0, len(ids), len(ids))] if repeated else ids,
        arm="a",
        version=0,
        updates=-np.array([gradient for _, gradient in found]),
        losses=np.array([loss for loss, _ in found]),
        examples=np.array([n for n, _ in sizes]),
    )
    total = aggregate([pings], "examples")
    loss, gradient = squares(weights, *map(np.concatenate, zip(*data, strict=True)))
    examples = sum(n for n, _ in sizes)
    assert (total.updates.weight, total.arms["a"].examples) == (examples, examples)
    assert total.counts["no_example"] == sum(n == 0 for n, _ in sizes)
    scale = max(1.0, float(np.abs(np.array([g for _, g in found])).max()))
    np.testing.assert_allclose(total.updates.mean, -gradient, rtol=0, atol=1e-6 * scale)  # updates travel as float32
    if examples:
        assert total.arms["a"].loss is not None
        np.testing.assert_allclose(total.arms["a"].loss, loss, rtol=1e-12)
    else:
        assert total.arms["a"].loss is None


def test_each_weighting_counts_what_it_says() -> None:
    ids = np.arange(48, dtype=np.uint8).reshape(3, 16)
    pings = ModelPings(
        document_ids=ids,
        client_ids=ids[[0, 0, 1]],  # the first client sends twice
        arm="a",
        version=0,
        updates=np.array([[2.0, 0, 0], [4, 0, 0], [9, 0, 0]]),
        losses=np.zeros(3),
        examples=np.array([1, 3, 6]),
    )
    means = {name: aggregate([pings], name).updates for name in ("client", "ping", "examples")}
    assert {name: one.mean[0] for name, one in means.items()} == {"client": 6.0, "ping": 5.0, "examples": 6.8}
    assert {name: one.weight for name, one in means.items()} == {"client": 2.0, "ping": 3.0, "examples": 10.0}
    assert {one.clients for one in means.values()} == {2}


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=12),
    most=st.integers(1, 1000),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_client_has_more_votes_than_the_line_allows(sizes: list[int], most: int, seed: int) -> None:
    """For any claimed number of examples and any number of pings; clients with fewer examples keep their votes."""
    rng = np.random.default_rng(seed)
    ids = np.arange(16 * len(sizes), dtype=np.uint16).astype(np.uint8).reshape(-1, 16)
    of = rng.integers(0, len(sizes), len(sizes))
    alone = np.bincount(of, minlength=len(sizes))[of] == 1
    for client in np.unique(of):
        mine = np.flatnonzero(of == client)
        pings = ModelPings(
            document_ids=ids[mine],
            client_ids=ids[of[mine]],
            arm="a",
            version=0,
            updates=rng.normal(size=(len(mine), 3)),
            losses=np.zeros(len(mine)),
            examples=np.array(sizes)[mine],
        )
        weight = aggregate([pings], "examples", most).updates.weight
        assert 0 < weight <= most * (1 + 1e-12)
        if alone[mine[0]]:
            assert weight == min(most, sizes[mine[0]])


def test_bounded_votes_are_those_of_the_mean() -> None:
    ids = np.arange(48, dtype=np.uint8).reshape(3, 16)
    pings = ModelPings(
        document_ids=ids,
        client_ids=ids,
        arm="a",
        version=0,
        updates=np.array([[1.0, 0, 0], [2, 0, 0], [100, 0, 0]]),
        losses=np.zeros(3),
        examples=np.array([10, 30, 10**9]),
    )
    found = aggregate([pings], "examples", 20).updates
    assert (found.weight, found.mean[0]) == (50.0, (10 * 1 + 20 * 2 + 20 * 100) / 50)


def test_votes_of_one_a_client_have_nothing_to_bound() -> None:
    with pytest.raises(InvalidSettings, match="'most_votes' has nothing to bound"):
        line_of(3, weighting="client", most_votes=2)


def test_an_interaction_is_one_example(tmp_path: Path) -> None:
    sent = [Ping(k, k % 3, (float(k), 1.0), arm="a", rank=k % 4 - 1, loss=float(k)) for k in range(12)]
    path = write_landed(tmp_path, table_of(sent), 0)
    one, other = (
        combined(NumpyEngine().partials(work_of([path], judged)), judged)
        for judged in (rules(weighting, "frecency-update", m=2) for weighting in ("ping", "examples"))
    )
    assert one == other
    assert one.arms["a"].examples == 9
