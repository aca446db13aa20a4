"""SCAFFOLD, FedDyn and APFL: their results compared with an independent computation, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedping.algorithms import APFL, FedDyn, LocalTraining, Scaffold
from fedping.client_sim.learning import Examples
from fedping.protocol.draws import child_keys, root_key

RATE, STEPS = 0.05, 7
HEIGHT = np.array([2.0, 0.5, 1.0])
BOTTOM = np.array([[3.0, -1.0], [-4.0, 0.5], [1.0, 6.0]])
MINIMUM = HEIGHT @ BOTTOM / HEIGHT.sum()
"""The minimum of the mean of three clients' losses h/2 |w - b|²."""


@dataclass(frozen=True)
class Quadratic:
    """A loss: the mean over a client's examples of h/2 |w - b|², with h an example's target and b its features."""

    weight_names: tuple[str, ...] = ("a", "b")

    def gradients(self, weights: Any, batch: Examples) -> Any:
        each = batch.y[..., None] * (np.atleast_2d(weights)[:, None] - batch.x)
        return (each * batch.weight[..., None]).sum(1) / np.maximum(batch.weight.sum(1), 1)[:, None]


MODEL: Any = Quadratic()


def clients(*which: int) -> Examples:
    """Return clients of one example each."""
    return Examples(BOTTOM[list(which), None], HEIGHT[list(which), None], np.ones((len(which), 1)))


def first_states(algorithm: Any, count: int) -> dict[str, Any]:
    return {name: np.repeat(value[None], count, axis=0) for name, value in algorithm.init_state(MODEL).items()}


def chosen(state: Mapping[str, Any], who: Any) -> dict[str, Any]:
    return {name: value[who] for name, value in state.items()}


def keys(round_: int, who: Any) -> Any:
    return child_keys(child_keys(root_key(5), round_), np.asarray(who))


class Rounds:
    """Rounds of clients, and a server that adds the mean of their updates to its published arrays."""

    def __init__(self, algorithm: Any, start: Any = (0.5, -0.25), count: int = 3) -> None:
        more = sum(int(np.prod(each.shape)) for each in algorithm.beside(MODEL)) if hasattr(algorithm, "beside") else 0
        self.algorithm, self.state = algorithm, first_states(algorithm, count)
        self.published, self.number = np.concatenate([start, np.zeros(more)]), 0

    def run(self, *who: int) -> Any:
        """Run a round with clients, by default all, and return the weights."""
        taking_part = list(who) or list(range(len(next(iter(self.state.values())))))
        updates, after = self.algorithm.update(
            MODEL,
            self.published,
            clients(*taking_part),
            keys(self.number, taking_part),
            chosen(self.state, taking_part),
        )
        for name, value in after.items():
            self.state[name][taking_part] = value
        self.published = self.published + updates.mean(axis=0)
        self.number += 1
        return self.weights

    @property
    def weights(self) -> Any:
        return self.published[:2]

    @property
    def beside(self) -> Any:
        return self.published[2:]


def after_steps(fetched: Any, height: Any, rest: Any, steps: int = STEPS) -> Any:
    """Return the point after steps along height (y - rest); each shrinks the distance to rest by the same factor."""
    return rest + (1 - RATE * height) ** steps * (fetched - rest)


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("rounds", [((0, 1, 2), (0, 1, 2), (0, 1, 2)), ((0, 1), (1, 2), (0, 2), (2, 1))])
def test_scaffold_is_the_papers_in_closed_form(option: Any, rounds: tuple[tuple[int, ...], ...]) -> None:
    """A step along h (y - b) - c_i + c leads towards b + (c_i - c) / h."""
    share = len(rounds[0]) / 3
    found = Rounds(Scaffold(rate=RATE, steps=STEPS, option=option, participation=share))
    x, c, own = np.array([0.5, -0.25]), np.zeros(2), np.zeros((3, 2))
    for who in rounds:
        ends, changes = [], []
        for i in who:
            y = after_steps(x, HEIGHT[i], BOTTOM[i] + (own[i] - c) / HEIGHT[i])
            new = HEIGHT[i] * (x - BOTTOM[i]) if option == "I" else own[i] - c + (x - y) / (STEPS * RATE)
            ends.append(y)
            changes.append(new - own[i])
            own[i] = new
        x, c = np.mean(ends, axis=0), c + np.sum(changes, axis=0) / 3
        close(found.run(*who), x)
        close(found.beside, c)
        close(found.state["control"], own)
        close(found.state["control"].mean(axis=0), found.beside)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_with_one_client_is_gradient_descent(option: Any) -> None:
    found = Rounds(Scaffold(rate=RATE, steps=STEPS, option=option), count=1)
    for rounds in (1, 2, 3, 4):
        close(found.run(), after_steps(np.array([0.5, -0.25]), HEIGHT[0], BOTTOM[0], rounds * STEPS))
        assert np.abs(found.beside).max() > 0.01


@pytest.mark.parametrize("rounds", [((0, 1, 2), (0, 1, 2), (0, 1, 2)), ((0, 1), (1, 2), (0, 2), (2, 1))])
def test_feddyn_is_the_papers_in_closed_form(rounds: tuple[tuple[int, ...], ...]) -> None:
    """The paper's server: h falls by alpha/N times the sum, and the weights are mean(theta) - h / alpha."""
    alpha, share = 0.7, len(rounds[0]) / 3
    found = Rounds(FedDyn(rate=RATE, steps=STEPS, alpha=alpha, participation=share))
    w, h, slope = np.array([0.5, -0.25]), np.zeros(2), np.zeros((3, 2))
    for who in rounds:
        ends = []
        for i in who:
            height = HEIGHT[i] + alpha
            rest = (HEIGHT[i] * BOTTOM[i] + slope[i] + alpha * w) / height
            ends.append(after_steps(w, height, rest))
            slope[i] -= alpha * (ends[-1] - w)
        h = h - alpha / 3 * sum(end - w for end in ends)
        w = np.mean(ends, axis=0) - h / alpha
        close(found.run(*who), w)
        close(found.beside, h)
        close(found.state["gradient"], slope)
        close(found.state["gradient"].mean(axis=0), found.beside)


def test_both_end_at_the_common_minimum_where_averaging_alone_does_not() -> None:
    """With many local steps FedAvg moves to the mean of the minima, regardless of the clients' curvatures."""
    drifted, ends = np.zeros(2), {}
    for _ in range(400):
        drifted = np.mean([after_steps(drifted, HEIGHT[i], BOTTOM[i], 20) for i in range(3)], axis=0)
    for name, algorithm in (
        ("scaffold", Scaffold(rate=RATE, steps=40)),
        ("option I", Scaffold(rate=RATE, steps=40, option="I")),
        ("feddyn", FedDyn(rate=RATE, steps=20, alpha=0.5)),
    ):
        rounds = Rounds(algorithm)
        for _ in range(150):
            ends[name] = rounds.run()
    assert np.linalg.norm(drifted - MINIMUM) > 0.3
    for end in ends.values():
        np.testing.assert_allclose(end, MINIMUM, atol=1e-9)


@pytest.mark.parametrize(
    "algorithm", [Scaffold(rate=0.2, steps=5, participation=2 / 3), FedDyn(rate=0.2, steps=5, alpha=1)]
)
def test_a_sample_of_the_clients_gets_there_too(algorithm: Any) -> None:
    rounds = Rounds(algorithm)
    draw = np.random.default_rng(2)
    for _ in range(400):
        rounds.run(*draw.choice(3, 2, replace=False).tolist())
    np.testing.assert_allclose(rounds.weights, MINIMUM, atol=1e-6)


def test_apfl_is_the_papers_and_its_share_descends_the_loss_of_the_mixture() -> None:
    algorithm = APFL(rate=RATE, steps=1, share=0.3, share_rate=0.02)
    w, v, a = np.array([0.5, -0.25]), None, 0.3
    state = first_states(algorithm, 1)
    for round_ in range(4):
        updates, state = algorithm.update(MODEL, w, clients(0), keys(round_, [0]), state)
        v = w if v is None else v

        def loss(share: float, own: Any = v, common: Any = w) -> float:
            return float(HEIGHT[0] / 2 * np.sum((share * own + (1 - share) * common - BOTTOM[0]) ** 2))

        slope = (loss(a + 1e-4) - loss(a - 1e-4)) / 2e-4  # exact for a quadratic, but for rounding
        mixed = a * v + (1 - a) * w
        v, a = v - RATE * a * HEIGHT[0] * (mixed - BOTTOM[0]), a - 0.02 * slope
        close(updates[0], -RATE * HEIGHT[0] * (w - BOTTOM[0]))
        close(state["own"][0], v)
        np.testing.assert_allclose(state["share"], [a], atol=1e-10)
        w = w + np.array([0.1, -0.2])  # changed by other clients
        close(algorithm.personal_weights(MODEL, w, clients(0), state)[0], state["share"] * v + (1 - state["share"]) * w)
    assert abs(a - 0.3) > 1e-3


def test_apfl_sends_the_same_whatever_is_the_clients_own() -> None:
    algorithm, w = APFL(rate=RATE, steps=STEPS), np.array([0.5, -0.25])
    sent = set()
    for seed in range(50):
        draw = np.random.default_rng(seed)
        state = {"own": draw.normal(size=(3, 2)), "share": draw.random(3), "begun": np.array([1, 1, seed % 2], np.int8)}
        sent.add(algorithm.update(MODEL, w, clients(0, 1, 2), keys(0, [0, 1, 2]), state)[0].tobytes())
    assert len(sent) == 1


def test_apfl_predicts_with_the_common_weights_until_it_has_trained_and_with_its_own_at_a_share_of_1() -> None:
    algorithm, w = APFL(rate=RATE, steps=STEPS, share=1.0, share_rate=0.0), np.array([0.1, -0.7])
    state = first_states(algorithm, 3)
    np.testing.assert_array_equal(algorithm.personal_weights(MODEL, w, clients(0, 1, 2), state), np.tile(w, (3, 1)))
    _, state = algorithm.update(MODEL, w, clients(0, 1, 2), keys(0, [0, 1, 2]), state)
    alone = [after_steps(w, HEIGHT[i], BOTTOM[i]) for i in range(3)]
    close(algorithm.personal_weights(MODEL, w + 1, clients(0, 1, 2), state), alone)


@pytest.mark.parametrize(
    "algorithm",
    [
        Scaffold(rate=RATE, epochs=2, batch=2),
        Scaffold(rate=RATE, epochs=2, batch=2, option="I"),
        FedDyn(rate=RATE, epochs=2, batch=2),
        APFL(rate=RATE, epochs=2, batch=2),
    ],
)
def test_a_client_trains_as_if_it_were_alone_and_one_without_examples_stays(algorithm: LocalTraining) -> None:
    """With 5, 0 and 2 examples in batches of 2, clients take 6, 0 and 2 steps."""
    draw = np.random.default_rng(1)
    weight = (np.arange(5) < np.array([[5], [0], [2]])).astype(float)
    many = Examples(draw.normal(size=(3, 5, 2)), draw.random((3, 5)) + 0.5, weight)
    more = 2 if hasattr(algorithm, "beside") else 0
    published: Any = draw.normal(size=2 + more)
    state = {
        name: draw.normal(size=value.shape).astype(value.dtype) if value.dtype.kind == "f" else value
        for name, value in first_states(algorithm, 3).items()
    }
    update: Any = algorithm.update  # type: ignore[attr-defined]
    together, after = update(MODEL, published, many, keys(0, [0, 1, 2]), state)
    for i, count in enumerate((5, 0, 2)):
        one = Examples(many.x[i : i + 1, :count], many.y[i : i + 1, :count], weight[i : i + 1, :count])
        alone, left = update(MODEL, published, one, keys(0, [i]), chosen(state, [i]))
        close(together[i], alone[0])
        for name in left:
            close(after[name][i], left[name][0])
    for name in after:
        if name != "own":  # it isn't read before a client has started
            np.testing.assert_array_equal(after[name][1], state[name][1])
    if not isinstance(algorithm, FedDyn):  # a client without a loss ends where it began, by the paper: at -h / alpha
        np.testing.assert_array_equal(together[1], 0)


@pytest.mark.parametrize("given", [{}, {"steps": 1, "epochs": 1}])
def test_steps_or_epochs(given: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="either 'steps' or 'epochs'"):
        Scaffold(rate=0.1, **given)
