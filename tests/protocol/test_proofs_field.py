"""Field64: arithmetic compared with Python's integers, and polynomials by their values."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedping.protocol.proofs.field import (
    GENERATOR,
    P,
    add,
    evaluation,
    evaluation_without_last,
    mul,
    other_values,
    power,
    powers,
    root,
    sub,
    total,
)

EDGES = [0, 1, 2, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, P // 2, P - 2**32, P - 2, P - 1]

elements_ = st.sampled_from(EDGES) | st.integers(0, P - 1)


def array(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.uint64)


def value_at(coefficients: list[int], x: int) -> int:
    return reduce(lambda value, coefficient: (value * x + coefficient) % P, reversed(coefficients), 0)


def values_of(coefficients: list[int], count: int) -> np.ndarray:
    """Return a polynomial's values at the powers of the root of order ``count``, as a column."""
    return array([value_at(coefficients, pow(root(count), k, P)) for k in range(count)])[:, None]


@given(st.lists(st.tuples(elements_, elements_), min_size=1, max_size=20))
def test_sums_differences_and_products_are_those_modulo_p(pairs: list[tuple[int, int]]) -> None:
    a, b = (array(list(numbers)) for numbers in zip(*pairs, strict=True))
    assert add(a, b).tolist() == [(x + y) % P for x, y in pairs]
    assert sub(a, b).tolist() == [(x - y) % P for x, y in pairs]
    assert mul(a, b).tolist() == [x * y % P for x, y in pairs]


def test_every_pair_of_edges() -> None:
    a, b = array(EDGES)[:, None], array(EDGES)
    for function, exact in ((add, int.__add__), (sub, int.__sub__), (mul, int.__mul__)):
        assert function(a, b).tolist() == [[exact(x, y) % P for y in EDGES] for x in EDGES]


def test_arrays_larger_than_what_is_computed_with_at_a_time() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(0, P, (3, 1, 5, 6007), dtype=np.uint64)
    b = rng.integers(0, P, (2, 1, 6007), dtype=np.uint64)
    assert (mul(a, b) == np.array(a.astype(object) * b.astype(object) % P, np.uint64)).all()
    flat = rng.integers(0, P, 40_000, dtype=np.uint64)
    assert (sub(flat, flat[:1]) == np.array((flat.astype(object) - int(flat[0])) % P, np.uint64)).all()


@given(elements_, st.integers(0, 2**70))
def test_powers(a: int, exponent: int) -> None:
    assert power(array([a]), exponent).tolist() == [pow(a, exponent, P)]
    assert powers(array([a]), 5).tolist() == [[pow(a, k, P)] for k in range(5)]


@given(st.lists(st.tuples(elements_, elements_), max_size=300))
def test_a_total_is_the_sum_modulo_p(rows: list[tuple[int, int]]) -> None:
    a = np.array(rows, np.uint64).reshape(-1, 2)
    assert total(a, 0).tolist() == [sum(x for x, _ in rows) % P, sum(y for _, y in rows) % P]


def test_a_total_of_many_large_numbers() -> None:
    assert total(np.broadcast_to(array([P - 1]), (100_000, 1)), 0).tolist() == [-100_000 % P]


def test_the_generator_has_the_order_that_the_draft_says() -> None:
    assert pow(GENERATOR, 2**32, P) == 1
    assert pow(GENERATOR, 2**31, P) == P - 1
    assert [root(1), root(2), pow(root(4), 2, P)] == [1, P - 1, P - 1]


@pytest.mark.parametrize("count", [1, 2, 4, 16])
@settings(max_examples=20)
@given(data=st.data())
def test_polynomials_by_their_values(count: int, data: st.DataObject) -> None:
    coefficients = data.draw(st.lists(elements_, min_size=count, max_size=count))
    values = values_of(coefficients, count)
    assert other_values(values).tolist() == values_of(coefficients, 2 * count)[1::2].tolist()
    t = data.draw(elements_)
    assert total(mul(evaluation(array([t]), count), values), 0).tolist() == [value_at(coefficients, t)]
    if count > 1:
        values = values_of(coefficients[:-1], count)[:-1]
        at_t = evaluation_without_last(array([t]), count)
        assert total(mul(at_t, values), 0).tolist() == [value_at(coefficients[:-1], t)]
