"""RProp compared with a plain implementation of equations 3 and 4, and the laws that follow from them."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fedping.model_store.version import Aggregate
from fedping.protocol.pipeline import ClipByNorm, GradientDescent, Pipeline, Quorum, RProp
from fedping.protocol.spec import ModelSpec, Step, Weight
from fedping.protocol.study import Line
from fedping.server_jobs.optimize import (
    initial_state,
    pipeline_for,
    state_from_document,
    state_to_document,
)
from tests.support.steps import next_weights

THESIS = RProp(alpha=2.0, beta=0.6)
settings_strategy = st.builds(
    RProp,
    alpha=st.floats(1.01, 4),
    beta=st.floats(0.1, 0.99),
    rate_rounding=st.sampled_from(["none", "half_even", "half_up"]),
)
steps_strategy = st.tuples(*[st.floats(0.01, 5)] * 3).map(sorted).map(lambda s: Step(start=s[1], min=s[0], max=s[2]))
number = st.one_of(st.just(0.0), st.floats(-1e30, 1e30))


def spec_of(steps: Sequence[Step]) -> ModelSpec:
    weights = tuple(Weight(name=f"w{i}", start=50.0, step=step) for i, step in enumerate(steps))
    return ModelSpec(name="s", model="linear-15", weights=weights)


def plain_rprop(settings: RProp, step: Step, updates: Sequence[float]) -> list[float]:
    """Return one weight's steps, one update at a time: eq. 4 for the size, then eq. 3 with the update for -gradient."""
    rounding = {"none": lambda x: x, "half_even": round, "half_up": lambda x: math.floor(x + 0.5)}
    rate, previous, moves = step.start, 0.0, []
    for update in updates:
        turned = (update > 0 > previous) or (update < 0 < previous)
        stayed = (update > 0 and previous > 0) or (update < 0 and previous < 0)
        if stayed or turned:
            rate = rounding[settings.rate_rounding](rate * (settings.alpha if stayed else settings.beta))
            rate = float(max(min(rate, step.max), step.min))
        moves.append(rate * ((update > 0) - (update < 0)))
        previous = update
    return moves


def run(settings: RProp, spec: ModelSpec, updates: np.ndarray) -> tuple[np.ndarray, Any]:
    """Return the steps for updates of shape (rounds, m), and the last state."""
    chosen = pipeline_for(spec, Pipeline(optimizer=settings, clip=ClipByNorm(norm=1.0)))
    state, steps = chosen.init(spec), []
    for update in updates:
        step, state = chosen.update(update, state, np.full(spec.m, 50.0))
        steps.append(step)
    return np.array(steps).reshape(len(updates), spec.m), state


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Step], np.ndarray]:
    steps = draw(st.lists(steps_strategy, min_size=1, max_size=4))
    rounds = draw(st.lists(st.lists(number, min_size=len(steps), max_size=len(steps)), min_size=1, max_size=8))
    return steps, np.array(rounds)


@given(settings_strategy, histories())
def test_every_weight_moves_as_the_equations_say(settings: RProp, history: tuple[list[Step], np.ndarray]) -> None:
    steps, updates = history
    moved, _ = run(settings, spec_of(steps), updates)
    for i, step in enumerate(steps):
        assert moved[:, i].tolist() == plain_rprop(settings, step, updates[:, i].tolist())


@given(settings_strategy, histories())
def test_a_step_is_within_its_bounds_and_goes_the_updates_way(
    settings: RProp, history: tuple[list[Step], np.ndarray]
) -> None:
    steps, updates = history
    moved, _ = run(settings, spec_of(steps), updates)
    assert (np.sign(moved) == np.sign(updates)).all()
    assert (np.abs(moved) <= [s.max for s in steps]).all()
    assert (np.abs(moved)[updates != 0] >= np.broadcast_to([s.min for s in steps], updates.shape)[updates != 0]).all()


@given(settings_strategy, histories(), st.floats(1e-3, 1e3))
def test_only_signs_count(settings: RProp, history: tuple[list[Step], np.ndarray], factor: float) -> None:
    steps, updates = history
    updates = np.where(np.abs(updates) < 1e-200, 0, updates)
    moved, _ = run(settings, spec_of(steps), updates)
    scaled, _ = run(settings, spec_of(steps), updates * factor)
    mirrored, _ = run(settings, spec_of(steps), -updates)
    assert (moved == scaled).all()
    assert (moved == -mirrored).all()


def test_the_original_study_by_hand() -> None:
    """With alpha 2, beta 0.6, first step 2 and maximum 3, the steps are 2, 3 (4 capped) and 1.8, which a zero keeps."""
    spec = spec_of([Step(start=2, min=1, max=3)])
    moved, state = run(THESIS, spec, np.array([[5.0], [0.1], [-7.0], [0.0], [-1.0], [-1.0]]))
    assert moved.ravel().tolist() == [2.0, 3.0, -0.6 * 3, 0.0, -0.6 * 3, -3.0]
    assert state["rprop"]["rate"].tolist() == [3.0]


def test_tiny_updates_of_one_sign_still_agree() -> None:
    """Their product underflows to zero, but their signs don't."""
    moved, _ = run(THESIS, spec_of([Step(start=1, min=1, max=3)]), np.array([[1e-300], [1e-300]]))
    assert moved.ravel().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("rounding", "rate"), [("none", 2.5), ("half_even", 2.0), ("half_up", 3.0)])
def test_a_rounded_rate_is_stored_rounded(rounding: Any, rate: float) -> None:
    spec = spec_of([Step(start=1.25, min=1, max=3)])
    _, state = run(RProp(alpha=2.0, beta=0.6, rate_rounding=rounding), spec, np.array([[1.0], [1.0]]))
    assert state["rprop"]["rate"].tolist() == [rate]


def test_a_quorum_by_hand() -> None:
    """Votes up to a twentieth have no effect, up to a tenth slow down by 0.8, and larger ones speed up or turn."""
    settings = RProp(alpha=2.0, beta=0.5, quorum=Quorum(decides=0.05, hastens=0.1, slows=0.8))
    votes = [0.05, 0.06, 0.1, 0.11, -0.04, -0.06, -0.5, 0.4]
    moved, state = run(settings, spec_of([Step(start=1, min=0.1, max=3)]), np.array(votes)[:, None])
    assert moved.ravel() == pytest.approx([0.0, 1.0, 0.8, 1.6, 0.0, -1.6, -3.0, 1.5])
    assert state["rprop"]["sign"].tolist() == [1.0]


@given(settings_strategy, histories())
def test_a_quorum_that_is_off_changes_nothing(settings: RProp, history: tuple[list[Step], np.ndarray]) -> None:
    steps, updates = history
    off = replace(settings, quorum=Quorum(decides=0, hastens=0))
    assert run(off, spec_of(steps), updates)[0].tolist() == run(settings, spec_of(steps), updates)[0].tolist()


@given(settings_strategy, histories())
def test_a_state_survives_its_document_bit_for_bit(settings: RProp, history: tuple[list[Step], np.ndarray]) -> None:
    steps, updates = history
    _, state = run(settings, spec_of(steps), updates)
    document = msgspec.json.decode(
        msgspec.json.encode(state_to_document(state)), type=dict[str, dict[str, tuple[float, ...]]]
    )
    chosen = pipeline_for(spec_of(steps), Pipeline(optimizer=settings))
    back = state_from_document(document, chosen.init(spec_of(steps)))
    assert {name: sorted(link) for name, link in back.items()} == {"rprop": ["rate", "sign"]}
    for link, mine in state.items():
        assert all(mine[name].tobytes() == back[link][name].tobytes() for name in mine)


@given(settings_strategy, histories())
def test_stopping_between_any_two_rounds_changes_nothing(
    settings: RProp, history: tuple[list[Step], np.ndarray]
) -> None:
    steps, updates = history
    spec = spec_of(steps)
    line = Line(name="main", spec=spec, pipeline=Pipeline(optimizer=settings))
    weights, state = spec.start, initial_state(spec, line.pipeline)
    for update in updates:
        mean = tuple(update.tolist())
        aggregate = Aggregate(pings=1, clients=1, weight=1.0, mean=mean, m2=(0.0,) * spec.m)
        weights, state = next_weights(line, weights, state, aggregate)
    moved, _ = run(settings, spec, updates)
    expected = np.array(spec.start)
    for step in moved:
        expected = expected + step
    assert weights == tuple(expected.tolist())


def test_updates_and_states_are_not_changed_in_place() -> None:
    spec = spec_of([Step(start=1, min=1, max=3)])
    chosen = pipeline_for(spec, Pipeline(optimizer=THESIS))
    first = chosen.init(spec)
    update = np.array([4.0])
    chosen.update(update, first, np.array([50.0]))
    assert update.tolist() == [4.0]
    assert first["rprop"]["rate"].tolist() == [1.0]
    assert first["rprop"]["sign"].tolist() == [0.0]


def test_gradient_descent_adds_the_rate_times_the_update() -> None:
    spec = spec_of([Step(start=1, min=1, max=3)] * 2)
    chosen = pipeline_for(spec, Pipeline(optimizer=GradientDescent(rate=0.5)))
    step, state = chosen.update(np.array([4.0, -1.0]), chosen.init(spec), np.zeros(2))
    assert step.tolist() == [2.0, -0.5]
    assert state_to_document(state) == {}
