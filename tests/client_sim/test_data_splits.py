"""Training, validation and test examples of every client; folds; a test set on the server."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedping.client_sim.data import ExampleData, Target, example_data, folds, hold_out, load, split
from fedping.protocol.errors import InvalidSettings

ALPHA = 1e-4
SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=8)
SEEDS = st.integers(0, 2**32)
SHARES = st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.45])


def fleet(sizes: list[int], classes: int = 3, seed: int = 0) -> ExampleData:
    rows = sum(sizes)
    labels = np.random.default_rng(seed).integers(0, classes, rows)
    return example_data(np.arange(rows)[:, None], labels, sizes, target=Target("t", tuple("abcdefgh"[:classes])))


def counts(data: ExampleData) -> np.ndarray:
    """Return the numbers of each client's examples in each class."""
    classes = len(data.target.classes)
    result = np.zeros((len(data), classes))
    np.add.at(result, (data.client_of, data.y), 1)
    return result


@given(SIZES, SEEDS, SHARES, SHARES)
def test_each_example_is_in_just_one_part_of_its_own_client(
    sizes: list[int], seed: int, test: float, validation: float
) -> None:
    data = fleet(sizes)
    parts = split(data, seed, test, validation)
    for client in range(len(sizes)):
        rows = [part.x[part.client_of == client, 0] for part in (parts.train, parts.validation, parts.test)]
        assert sorted(np.concatenate(rows)) == data.x[data.client_of == client, 0].tolist()


@given(SIZES, SEEDS, SHARES)
def test_a_client_and_each_class_of_it_give_their_share_rounded_up_or_down(
    sizes: list[int], seed: int, share: float
) -> None:
    data = fleet(sizes)
    test = split(data, seed, share, 0.0).test
    assert (np.abs(test.sizes - share * data.sizes) < 1 + 1e-9).all()
    assert (np.abs(counts(test) - share * counts(data)) < 1 + 1e-9).all()


@given(SIZES, SEEDS)
def test_who_has_anything_keeps_something_to_learn_from(sizes: list[int], seed: int) -> None:
    parts = split(fleet(sizes), seed, 0.6, 0.39)
    assert (parts.train.sizes >= np.minimum(sizes, 1)).all()


def test_a_tenth_and_a_tenth_of_a_large_client_are_just_that() -> None:
    parts = split(fleet([1000, 200]), 0, 0.1, 0.1)
    assert parts.test.sizes.tolist() == [100, 20]
    assert (np.abs(parts.validation.sizes - [100, 20]) <= 1).all()


def test_a_clients_split_does_not_depend_on_who_else_is_there() -> None:
    data = fleet([9, 20, 15, 31])
    everyone, alone = split(data, 4), split(data.select(np.array([2, 3])), 4)
    for part, same in ((everyone.train, alone.train), (everyone.test, alone.test)):
        assert part.select(np.array([2, 3])).x.tolist() == same.x.tolist()


def test_every_example_has_the_same_chance_to_be_tested() -> None:
    """Over 2,000 seeds, for a client with 7 examples in classes of 1, 2 and 4; error rate ALPHA for all seven together.

    The count of each example is binomial; the parts of a split are disjoint, which only narrows the distribution.
    """
    data = example_data(np.arange(7)[:, None], [0, 1, 1, 2, 2, 2, 2], [7], target=Target("t", tuple("abc")))
    seeds, share = 2_000, 0.3
    times = np.zeros(7)
    for seed in range(seeds):
        times[split(data, seed, share, 0.0).test.x[:, 0].astype(int)] += 1
    spread = np.sqrt(seeds * share * (1 - share))
    assert np.abs(times - seeds * share).max() < stats.norm.isf(ALPHA / 7 / 2) * spread


def test_without_strata_a_class_may_give_more_or_less_than_its_share() -> None:
    data = fleet([400], classes=2)
    given_ = [counts(split(data, seed, 0.25, 0.0, stratified=False).test)[0, 0] for seed in range(50)]
    assert np.std(given_) > 2
    assert {int(split(data, seed, 0.25, 0.0).test.sizes[0]) for seed in range(5)} == {100}


@given(SIZES, SEEDS, st.integers(2, 6))
def test_folds_are_equally_large_in_every_class_of_every_client(sizes: list[int], seed: int, count: int) -> None:
    data = fleet(sizes)
    fold = folds(data, count, seed)
    assert fold.min(initial=0) >= 0
    assert fold.max(initial=0) < count
    of_fold = np.array([counts(data.only(fold == number)) for number in range(count)])
    assert (np.ptp(of_fold, axis=0) <= 1).all()
    assert (np.ptp(of_fold.sum(axis=2), axis=0) <= 1).all()


def test_seeds_split_and_fold_otherwise_and_repeat_themselves() -> None:
    data = fleet([30, 30])
    tested = [tuple(split(data, seed).test.x[:, 0]) for seed in (0, 1, 2, 0)]
    assert len(set(tested)) == 3
    assert tested[0] == tested[3]
    assert len({tuple(folds(data, 5, seed)) for seed in (0, 1, 0)}) == 2


def test_a_held_out_set_is_the_servers_before_anything_is_anybodys() -> None:
    data = load("digits")
    rest, held = hold_out(data, 0.2, 3)
    assert len(rest) + len(held) == len(data)
    assert np.abs(np.bincount(held.y) - 0.2 * np.bincount(data.y)).max() < 1
    both = np.concatenate([rest.x, held.x])
    assert (np.sort(both.sum(axis=1)) == np.sort(data.x.sum(axis=1))).all()


def test_numbers_are_split_without_strata() -> None:
    data = replace(fleet([40]), target=Target("t"), y=np.arange(40) / 7)
    assert split(data, 0, 0.25, 0.25).test.sizes.tolist() == [10]


@pytest.mark.parametrize(("test", "validation"), [(0.5, 0.5), (1.0, 0.0), (-0.1, 0.2)])
def test_shares_that_leave_nothing_are_refused(test: float, validation: float) -> None:
    with pytest.raises(InvalidSettings, match="something to train on"):
        split(fleet([5]), 0, test, validation)
    with pytest.raises(InvalidSettings, match="at least 2"):
        folds(fleet([5]), 1, 0)
    with pytest.raises(InvalidSettings, match="nothing to train on"):
        hold_out(load("diabetes"), 1.0, 0)
