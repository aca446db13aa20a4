"""Laws of each optimizer, and relations between them."""

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedping.model_store.version import Aggregate, ChainState, LinkState
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.extensions import Own
from fedping.protocol.pipeline import Adagrad, Adam, GradientDescent, Momentum, Optimizer, Pipeline, RProp, Yogi
from fedping.protocol.spec import ModelSpec, NonNegative, OrderedCutoffs, Step, Weight, published
from fedping.protocol.study import Line
from fedping.server_jobs.optimize import (
    Arrays,
    in_order,
    initial_state,
    links_for,
    pipeline_for,
    state_from_document,
    state_to_document,
)
from fedping.server_jobs.optimize.optimizers import OPTIMIZERS
from tests.support.steps import next_weights

decays = st.sampled_from(["none", "1/sqrt(t)", "1/t"])
shares = st.floats(0, 0.999)
rates = st.floats(1e-4, 10)
RANGES: dict[str, st.SearchStrategy[Any]] = {
    "rate": rates,
    "decay": decays,
    "beta": shares,
    "beta1": shares,
    "beta2": shares,
    "epsilon": st.floats(1e-10, 0.1),
    "initial": st.floats(0, 1),
    "bias_correction": st.booleans(),
    "nesterov": st.booleans(),
    "alpha": st.floats(1.01, 4),
}
"""Strategies for settings, used in every optimizer with this setting; other settings keep their defaults."""


def settings_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for an optimizer's settings; bias correction only occurs for means that start at 0."""
    ranges = {name: RANGES[name] for name in kind.__struct_fields__ if name in RANGES}
    if kind is RProp:
        ranges["beta"] = st.floats(0.1, 0.99)

    def build(values: dict[str, Any]) -> Any:
        return kind(**(values | {"initial": 0.0} if values.get("bias_correction") else values))

    return st.fixed_dictionaries(ranges).map(build)


optimizers: st.SearchStrategy[Optimizer] = st.one_of(
    *(settings_of(kind) for kind in get_args(Optimizer) if not issubclass(kind, Own))
)
number = st.one_of(st.just(0.0), st.floats(-1e6, 1e6, width=32))
M = 4
histories = st.lists(st.lists(number, min_size=M, max_size=M), min_size=1, max_size=8).map(np.array)


def spec_with(*constraints: NonNegative | OrderedCutoffs, integer: bool = False) -> ModelSpec:
    step = Step(start=1, min=0.1, max=50)
    weights = tuple(Weight(name=f"w{i}", start=10.0 * i + 5, step=step, integer=integer) for i in range(M))
    return ModelSpec(name="s", model="any", weights=weights, constraints=constraints)


def played(
    optimizer: Optimizer, updates: np.ndarray, spec: ModelSpec, start: dict[str, LinkState] | None = None
) -> tuple[list[tuple[float, ...]], dict[str, LinkState]]:
    """Return the weights after each round, and the final state, by the server's own step."""
    line = Line(name="main", spec=spec, pipeline=Pipeline(optimizer=optimizer))
    weights, path = spec.start, []
    state = start or initial_state(spec, line.pipeline)
    for update in updates:
        mean = tuple(np.asarray(update).tolist())
        weights, state = next_weights(
            line, weights, state, Aggregate(pings=1, clients=1, weight=1.0, mean=mean, m2=(0.0,) * M)
        )
        path.append(weights)
    return path, state


def through_json(state: dict[str, LinkState]) -> dict[str, LinkState]:
    return msgspec.json.decode(msgspec.json.encode(state), type=dict[str, LinkState])


@given(optimizers, histories)
def test_a_state_survives_its_document_bit_for_bit(optimizer: Optimizer, updates: np.ndarray) -> None:
    spec = spec_with()
    _, state = played(optimizer, updates, spec)
    first = pipeline_for(spec, Pipeline(optimizer=optimizer)).init(spec)
    mine = as_bytes(state_from_document(state, first))
    assert as_bytes(state_from_document(through_json(state), first)) == mine
    by_place = msgspec.json.decode(msgspec.json.encode(in_order(state, first)), type=tuple[LinkState, ...])
    assert as_bytes(state_from_document(by_place, first)) == mine, "as format 1 has it"


def as_bytes(state: dict[str, Arrays]) -> dict[str, dict[str, bytes]]:
    return {link: {name: vector.tobytes() for name, vector in own.items()} for link, own in state.items()}


def test_links_have_names_of_their_own_in_whatever_order_a_spec_has_them() -> None:
    cuts = [OrderedCutoffs(weights=(f"w{i}", f"w{i + 1}")) for i in (0, 2)]
    spec = spec_with(cuts[0], NonNegative(), cuts[1], NonNegative(mode="shift"))
    assert list(links_for(spec, Pipeline())) == [
        "rprop", "non_negative", "non_negative_2", "ordered_cutoffs", "ordered_cutoffs_2",
    ]  # fmt: skip


def test_only_links_that_remember_something_are_in_a_version() -> None:
    spec = spec_with(NonNegative())
    assert initial_state(spec, Pipeline(optimizer=GradientDescent())) == {}
    assert list(initial_state(spec, Pipeline(optimizer=Adam()))) == ["adam"]


@pytest.mark.parametrize("state", [{"rprop": {"rate": (1.0,) * M}}, {}, ({},), ({"a": (1.0,)},) * 9])
def test_a_state_of_other_links_is_refused(state: ChainState) -> None:
    line = Line(name="main", spec=spec_with(), pipeline=Pipeline(optimizer=Adam()))
    made = Aggregate(pings=1, clients=1, weight=1.0, mean=(0.0,) * M, m2=(0.0,) * M)
    with pytest.raises(FedpingError, match="the study was changed"):
        next_weights(line, line.spec.start, state, made)


@given(optimizers, histories, st.data())
def test_stopping_after_any_round_changes_nothing(
    optimizer: Optimizer, updates: np.ndarray, data: st.DataObject
) -> None:
    spec = spec_with()
    chosen = pipeline_for(spec, Pipeline(optimizer=optimizer))
    cut = data.draw(st.integers(0, len(updates)))
    memory, document = chosen.init(spec), chosen.init(spec)
    for t, update in enumerate(updates):
        if t == cut:
            document = state_from_document(through_json(state_to_document(document)), chosen.init(spec))
        one, memory = chosen.update(update, memory, np.zeros(M))
        other, document = chosen.update(update, document, np.zeros(M))
        assert one.tobytes() == other.tobytes()


@given(optimizers, histories)
def test_a_link_changes_neither_update_nor_state_and_repeats_itself(optimizer: Optimizer, updates: np.ndarray) -> None:
    spec = spec_with()
    chosen = pipeline_for(spec, Pipeline(optimizer=optimizer))
    state = chosen.init(spec)
    for update in updates:
        kept_update, kept_state = update.copy(), state_to_document(state)
        first, after = chosen.update(update, state, np.zeros(M))
        again, _ = chosen.update(update, state, np.zeros(M))
        assert first.tobytes() == again.tobytes()
        assert first.dtype == np.float64
        assert update.tobytes() == kept_update.tobytes()
        assert state_to_document(state) == kept_state
        state = after


@given(optimizers, st.integers(1, 6))
def test_zero_updates_leave_the_weights(optimizer: Optimizer, rounds: int) -> None:
    path, _ = played(optimizer, np.zeros((rounds, M)), spec_with())
    assert path[-1] == spec_with().start


@given(optimizers, histories)
def test_the_first_step_goes_the_updates_way(optimizer: Optimizer, updates: np.ndarray) -> None:
    chosen = pipeline_for(spec_with(), Pipeline(optimizer=optimizer))
    step, _ = chosen.update(updates[0], chosen.init(spec_with()), np.zeros(M))
    assert np.isfinite(step).all()
    assert (step * updates[0] >= 0).all()


@given(optimizers, histories)
def test_mirrored_updates_make_mirrored_steps(optimizer: Optimizer, updates: np.ndarray) -> None:
    chosen = pipeline_for(spec_with(), Pipeline(optimizer=optimizer))
    one, other = chosen.init(spec_with()), chosen.init(spec_with())
    for update in updates:
        step, one = chosen.update(update, one, np.zeros(M))
        mirrored, other = chosen.update(-update, other, np.zeros(M))
        assert (step == -mirrored).all()


@given(optimizers, histories, st.permutations(range(M)))
def test_no_weight_depends_on_another(optimizer: Optimizer, updates: np.ndarray, order: list[int]) -> None:
    chosen = pipeline_for(spec_with(), Pipeline(optimizer=optimizer))
    one, other = chosen.init(spec_with()), chosen.init(spec_with())
    for update in updates:
        step, one = chosen.update(update, one, np.zeros(M))
        moved, other = chosen.update(update[order], other, np.zeros(M))
        assert (step[order] == moved).all()


@given(optimizers, histories, st.booleans(), st.sampled_from(["clamp", "shift"]))
def test_constraints_hold_whatever_the_optimizer(
    optimizer: Optimizer, updates: np.ndarray, integer: bool, mode: Any
) -> None:
    spec = spec_with(NonNegative(mode=mode), OrderedCutoffs(weights=("w0", "w1", "w2")), integer=integer)
    path, _ = played(optimizer, updates, spec)
    for weights in path:
        for values in (weights, published(spec, weights)):
            assert min(values) >= 0
            assert values[0] >= 1
            assert values[1] >= values[0] + 1
            assert values[2] >= values[1] + 1


@given(histories, rates, decays, st.booleans())
def test_without_momentum_it_is_gradient_descent(updates: np.ndarray, rate: float, decay: Any, nesterov: bool) -> None:
    still = Momentum(rate=rate, decay=decay, beta=0.0, nesterov=nesterov)
    plain = GradientDescent(rate=rate, decay=decay)
    assert played(still, updates, spec_with())[0] == played(plain, updates, spec_with())[0]


@given(histories, st.integers(-60, 60), st.sampled_from([Adam, Adagrad, Yogi]))
def test_the_adaptive_do_not_see_the_scale_of_updates(updates: np.ndarray, power: int, kind: Any) -> None:
    """Holds except for epsilon, which is negligible here, and for the start of the squares."""
    optimizer = kind(epsilon=1e-300, initial=0.0)
    chosen = pipeline_for(spec_with(), Pipeline(optimizer=optimizer))
    one, other = chosen.init(spec_with()), chosen.init(spec_with())
    for update in updates:
        step, one = chosen.update(update, one, np.zeros(M))
        scaled, other = chosen.update(update * 2.0**power, other, np.zeros(M))
        np.testing.assert_allclose(scaled, step, rtol=1e-12)


@given(histories, rates, decays, shares, st.booleans(), st.floats(1e-3, 1e3))
def test_gradient_descent_and_momentum_scale_with_the_updates(
    updates: np.ndarray, rate: float, decay: Any, beta: float, nesterov: bool, factor: float
) -> None:
    for optimizer in (
        GradientDescent(rate=rate, decay=decay),
        Momentum(rate=rate, decay=decay, beta=beta, nesterov=nesterov),
    ):
        chosen = pipeline_for(spec_with(), Pipeline(optimizer=optimizer))
        one, other = chosen.init(spec_with()), chosen.init(spec_with())
        for update in updates:
            step, one = chosen.update(update, one, np.zeros(M))
            scaled, other = chosen.update(update * factor, other, np.zeros(M))
            np.testing.assert_allclose(scaled, step * factor, rtol=1e-9, atol=1e-9 * factor * rate * 1e6)


@given(histories, rates, st.floats(0, 0.9), st.floats(0, 0.9))
def test_a_step_of_corrected_adam_is_bounded(updates: np.ndarray, rate: float, beta1: float, beta2: float) -> None:
    """By Cauchy and Schwarz, if β1² < β2, the mean is at most √(square) (1 - β1) / √((1 - β2) (1 - β1² / β2))."""
    if beta1 * beta1 >= 0.99 * beta2:
        beta1 = 0.0
    chosen = pipeline_for(spec_with(), Pipeline(optimizer=Adam(rate=rate, beta1=beta1, beta2=beta2, epsilon=1e-12)))
    state = chosen.init(spec_with())
    ratio = beta1 * beta1 / beta2 if beta2 else 0.0
    for update in updates:
        step, state = chosen.update(update, state, np.zeros(M))
        bound = rate * (1 - beta1) / np.sqrt((1 - beta2) * (1 - ratio)) / (1 - beta1)
        assert (np.abs(step) <= bound * (1 + 1e-9)).all()


def test_a_round_ago_is_forgotten_after_a_rollback() -> None:
    """The step number is part of the state, so a rollback to a version also rolls back the decay."""
    optimizer = GradientDescent(rate=1.0, decay="1/t")
    ones = np.ones((1, M))
    _, after_one = played(optimizer, ones, spec_with())
    path, _ = played(optimizer, ones, spec_with(), start=after_one)
    assert path[0][0] == spec_with().start[0] + 0.5


@pytest.mark.parametrize("kind", [Adam, Yogi])
def test_correcting_the_bias_of_a_mean_that_had_a_start_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidSettings, match="set initial = 0 or bias_correction = false"):
        kind(bias_correction=True, initial=0.1)


def test_every_optimizer_of_the_reference_is_one() -> None:
    """The presets and defaults in the reference are read as by an experimenter."""
    text = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    lines = re.findall(r"^(?:# or )?optimizer = (\{.*\})", text, flags=re.MULTILINE)
    lines = [line for line in lines if "keep =" not in line]  # a client's
    found = [msgspec.convert(tomllib.loads(f"o = {line}")["o"], Optimizer) for line in lines]
    assert {type(one) for one in found} == {kind for kind in OPTIMIZERS if not issubclass(kind, Own)}
    tau = {"epsilon": 1e-3, "initial": 1e-6}
    assert Adam(rate=0.1, beta2=0.99, bias_correction=False, **tau) in found
    assert Yogi(rate=0.1, beta2=0.99, **tau) in found
    assert Adagrad(rate=0.1, **tau) in found
