"""After a step the constraints hold, for the optimizer's doubles and for the published numbers."""

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedping.protocol.errors import InvalidSettings
from fedping.protocol.pipeline import GradientDescent, Pipeline
from fedping.protocol.spec import Constraint, ModelSpec, NonNegative, OrderedCutoffs, Step, Weight, published
from fedping.server_jobs.optimize import pipeline_for

PLAIN = Pipeline(optimizer=GradientDescent(rate=1.0))
value = st.one_of(
    st.floats(-200, 200),
    st.integers(-20, 20).map(float),
    st.integers(-20, 20).map(lambda n: n + 0.5),
    st.floats(-1e9, 1e9),
)


def spec_with(constraints: tuple[Constraint, ...], integer: list[bool]) -> ModelSpec:
    step = Step(start=1, min=1, max=1)
    weights = tuple(Weight(name=f"w{i}", start=1, step=step, integer=whole) for i, whole in enumerate(integer))
    return ModelSpec(name="s", model="linear-15", weights=weights, constraints=constraints)


def stepped(spec: ModelSpec, weights: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return the weights after the server's own step."""
    chosen = pipeline_for(spec, PLAIN)
    return weights + chosen.update(step, chosen.init(spec), weights)[0]


@st.composite
def cases(draw: st.DrawFn, size: int = 5) -> tuple[list[bool], np.ndarray, np.ndarray]:
    some = st.lists(value, min_size=size, max_size=size)
    return draw(st.lists(st.booleans(), min_size=size, max_size=size)), np.array(draw(some)), np.array(draw(some))


@given(cases())
def test_clamp_ends_at_zero_and_touches_no_other_weight(case: tuple[list[bool], np.ndarray, np.ndarray]) -> None:
    integer, weights, step = case
    spec = spec_with((NonNegative(),), integer)
    after, free = stepped(spec, weights, step), weights + step
    assert (after == np.where(free < 0, 0, free)).all()
    assert all(v >= 0 for v in published(spec, tuple(after.tolist())))


@given(cases())
def test_shift_moves_all_by_the_lowest(case: tuple[list[bool], np.ndarray, np.ndarray]) -> None:
    integer, weights, step = case
    spec = spec_with((NonNegative(mode="shift"),), integer)
    after, free = stepped(spec, weights, step), weights + step
    assert (after >= 0).all()
    assert all(v >= 0 for v in published(spec, tuple(after.tolist())))
    np.testing.assert_allclose(after, free - min(0, free.min()), rtol=1e-12, atol=1e-6)


def test_shift_is_the_fault_of_2018_and_clamp_is_not() -> None:
    weights, step = np.array([0.0, 10, 20]), np.array([-3.0, 0, 0])
    assert stepped(spec_with((NonNegative(mode="shift"),), [False] * 3), weights, step).tolist() == [0, 13, 23]
    assert stepped(spec_with((NonNegative(),), [False] * 3), weights, step).tolist() == [0, 10, 20]


@given(cases(), st.one_of(st.sampled_from([1.0, 2.0, 2.5, 0.3]), st.floats(0.01, 10)), st.floats(-5, 5))
def test_cutoffs_are_ordered_by_the_gap_in_doubles_and_as_published(
    case: tuple[list[bool], np.ndarray, np.ndarray], gap: float, first: float
) -> None:
    integer, weights, step = case
    spec = spec_with((OrderedCutoffs(weights=("w3", "w1", "w4"), gap=gap, first=first),), integer)
    after = stepped(spec, weights, step)
    for values in (after.tolist(), list(published(spec, tuple(after.tolist())))):
        chain = [values[i] for i in (3, 1, 4)]
        assert chain[0] >= first
        assert all(late >= early + gap for early, late in zip(chain, chain[1:], strict=False))
    free = weights + step
    assert (after[[0, 2]] == free[[0, 2]]).all()
    assert (after >= free).all()


@given(cases(), st.sampled_from(["clamp", "shift"]), st.booleans())
def test_both_constraints_hold_together_in_either_order(
    case: tuple[list[bool], np.ndarray, np.ndarray], mode: str, swapped: bool
) -> None:
    integer, weights, step = case
    both = (NonNegative(mode=mode), OrderedCutoffs(weights=("w0", "w1", "w2")))
    spec = spec_with(both[::-1] if swapped else both, integer)
    after = stepped(spec, weights, step)
    for values in (after.tolist(), list(published(spec, tuple(after.tolist())))):
        assert min(values) >= 0
        assert values[0] >= 1
        assert values[1] >= values[0] + 1
        assert values[2] >= values[1] + 1


@given(cases())
def test_what_holds_already_is_left_as_it_came(case: tuple[list[bool], np.ndarray, np.ndarray]) -> None:
    integer, weights, _ = case
    good = np.sort(np.abs(weights).round())
    assume(good[0] >= 1 and (np.diff(good) >= 1).all())
    names = tuple(f"w{i}" for i in range(5))
    spec = spec_with((NonNegative(), OrderedCutoffs(weights=names)), integer)
    assert stepped(spec, good, np.zeros(5)).tolist() == good.tolist()


def test_cutoffs_by_hand() -> None:
    """Cutoffs are raised in order: the second above the first, the third above the raised second."""
    spec = spec_with((OrderedCutoffs(weights=("w0", "w1", "w2")),), [True] * 3)
    assert stepped(spec, np.array([4.0, 14, 31]), np.array([11.0, 0.25, -16])).tolist() == [15.0, 16.0, 17.0]
    assert stepped(spec, np.array([0.2, 14, 31]), np.zeros(3)).tolist() == [1.0, 14.0, 31.0]


def test_push_is_the_server_of_2018_and_trim_is_the_thesis() -> None:
    weights, step = np.array([4.0, 14, 16]), np.array([11.0, 2, -3])
    assert ended(weights, step, "push") == [15, 16, 17]
    assert ended(weights, step, "trim") == [14, 15, 16]
    # The third may not fall onto the second; the second may follow a third that rises.
    assert ended(weights, np.array([-9.0, 0, -3]), "trim") == [1, 14, 15]
    assert ended(weights, np.array([0.0, 3, 3]), "trim") == [4, 17, 19]


def ended(weights: np.ndarray, step: np.ndarray, mode: Literal["push", "trim"]) -> list[float]:
    names = tuple(f"w{i}" for i in range(len(weights)))
    spec = spec_with((OrderedCutoffs(weights=names, mode=mode),), [True] * len(weights))
    return [float(value) for value in stepped(spec, weights, step)]


@given(st.lists(st.integers(-3, 60), min_size=5, max_size=5), st.lists(st.integers(1, 40), min_size=5, max_size=5))
def test_trim_keeps_the_order_and_takes_no_weight_further_than_its_step(steps: list[int], gaps: list[int]) -> None:
    weights, step = np.cumsum(np.array(gaps, float)), np.array(steps, float)
    after = np.array(ended(weights, step, "trim"))
    assert after[0] >= 1
    assert (np.diff(after) >= 1).all()
    moved = after - weights
    assert (np.abs(moved) <= np.abs(step)).all()
    assert (moved * step >= 0).all()


def test_trim_holds_the_order_in_fractions_and_where_the_start_is_out_of_order() -> None:
    spec = spec_with((OrderedCutoffs(weights=("w0", "w1"), gap=2.5, mode="trim"),), [True, True])
    for weights in ([1.5, 4.0], [9.0, 2.0], [-3.0, -3.0]):
        after = stepped(spec, np.array(weights), np.array([1.25, -2.0]))
        for first, second in (after.tolist(), published(spec, tuple(after.tolist()))):
            assert first >= 1
            assert second >= first + 2.5


def test_rounding_cannot_bring_two_cutoffs_closer_than_the_gap() -> None:
    """1.5 and 4.0 are 2.5 apart, but published as 2 and 4, so the second must be 4.5."""
    spec = spec_with((OrderedCutoffs(weights=("w0", "w1"), gap=2.5),), [True, True])
    after = stepped(spec, np.array([1.5, 4.0]), np.zeros(2))
    assert after.tolist() == [1.5, 4.5]
    assert published(spec, tuple(after.tolist())) == (2.0, 5.0)
    assert math.floor(4.0 + 0.5) - math.floor(1.5 + 0.5) < 2.5


def test_a_weight_with_two_places_in_the_order_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"'w1'.*name it once"):
        spec_with((OrderedCutoffs(weights=("w0", "w1")), OrderedCutoffs(weights=("w1", "w2"))), [False] * 3)
