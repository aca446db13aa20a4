"""Optimizers: gradient descent and momentum, Adagrad, Adam and Yogi, RProp, and optimizers of users' packages.

The adaptive optimizers divide a mean of the updates, weight by weight, by a root of the squared updates (Reddi et al.
2021, algorithm 2). Δ is the mean update, of gradients or of weight differences:

    m_t = β1 m_(t-1) + (1 - β1) Δ_t
    v_t = accumulated squares Δ_t², by each optimizer's own rule
    step = η_t m_t / (√v_t + ε)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.extensions import extension_of
from fedping.protocol.makers import Makers
from fedping.protocol.pipeline import Adagrad, Adam, Decay, GradientDescent, Momentum, OwnOptimizer, RProp, Yogi
from fedping.protocol.spec import ModelSpec
from fedping.server_jobs.optimize.transformation import (
    Arrays,
    BrokenLink,
    Display,
    LinkMaker,
    Transformation,
    Vector,
    as_vectors,
    broken_if_failed,
    stateless,
)

OPTIMIZERS: Makers[LinkMaker] = Makers()
"""Functions that create optimizers' links, by the type of their settings (`fedping.protocol.pipeline.Optimizer`)."""


class Rated(Protocol):
    """Settings with a learning rate."""

    @property
    def rate(self) -> float:
        """The rate of the first round."""
        ...

    @property
    def decay(self) -> Decay:
        """The decay of the rate."""
        ...


def rate_at(settings: Rated, t: float) -> float:
    """Return the rate of the t-th step, t = 1, 2, ..."""
    match settings.decay:
        case "none":
            return settings.rate
        case "1/sqrt(t)":
            return settings.rate / math.sqrt(t)
        case "1/t":
            return settings.rate / t


def last_rate(settings: Rated, state: Arrays) -> Vector:
    """Return the rate of the last step, shape (1,), from the ``round`` in a state; NaN if unknown."""
    if settings.decay == "none":
        return np.array([settings.rate])
    step = float(state["round"][0])
    return np.array([rate_at(settings, step) if step >= 1 else math.nan])


def rate_display(settings: Rated, words: str) -> Display:
    """Return the displayed values of a link with one rate for all weights."""
    return Display(words, lambda state: last_rate(settings, state))


@OPTIMIZERS.of(GradientDescent)
def gradient_descent(settings: GradientDescent, _: ModelSpec) -> Transformation[Arrays]:
    """Return the link that multiplies the direction by the rate (thesis 2.2), as in FedAvg with a server rate.

    State: ``round``, the number of steps so far, length 1; empty if the rate is constant.
    """
    displays = {"rate": rate_display(settings, "Factor of the mean update")}
    if settings.decay == "none":
        return stateless(lambda step, _: settings.rate * step)._replace(displays=displays)

    def update(step: Vector, state: Arrays, _: Vector) -> tuple[Vector, Arrays]:
        t = state["round"] + 1.0
        return rate_at(settings, float(t[0])) * step, {"round": t}

    return Transformation(lambda _: {"round": np.zeros(1)}, update, displays)


@OPTIMIZERS.of(Momentum)
def momentum(settings: Momentum, _: ModelSpec) -> Transformation[Arrays]:
    """Return the link v ← β v + η_t Δ (Polyak 1964), whose step is v, or β v + η_t Δ once more (Nesterov 1983).

    The velocity includes the rate: unless a constraint changes the step, v is the last movement of the weights, even
    if the rate has changed. State: ``velocity``, shape (m,); ``round``, the number of steps so far, length 1.
    """

    def init(spec: ModelSpec) -> Arrays:
        return {"velocity": np.zeros(spec.m), "round": np.zeros(1)}

    def update(step: Vector, state: Arrays, _: Vector) -> tuple[Vector, Arrays]:
        t = state["round"] + 1.0
        push = rate_at(settings, float(t[0])) * step
        velocity = settings.beta * state["velocity"] + push
        moved = settings.beta * velocity + push if settings.nesterov else velocity
        return moved, {"velocity": velocity, "round": t}

    rate = rate_display(settings, "Factor of the mean update in the velocity")
    return Transformation(init, update, {"rate": rate})


class Adaptive(Rated, Protocol):
    """The common settings of Adagrad, Adam and Yogi."""

    @property
    def beta1(self) -> float:
        """The factor of the previous mean in the new mean update."""
        ...

    @property
    def epsilon(self) -> float:
        """The constant added to the root; τ in Reddi et al."""
        ...

    @property
    def initial(self) -> float:
        """The initial value of the squares."""
        ...


def adaptive(
    settings: Adaptive,
    gathered: Callable[[Vector, Vector], Vector],
    words: str,
    unbiased: tuple[float, float] | None = None,
) -> Transformation[Arrays]:
    """Return the link of an adaptive optimizer.

    State: ``mean`` and ``square``, m and v, shape (m,); ``round``, the number of steps so far, length 1. With bias
    correction also ``powers``, β1^t and β2^t, length 2. They are updated by multiplication in each round, because
    products are the same on all machines, unlike powers.

    Args:
        settings: rate, decay, β1, ε and the first v.
        gathered: function from v and the new squares to the next v.
        words: a description of each weight's rate, for a page.
        unbiased: β1 and β2, to divide m by 1 - β1^t and v by 1 - β2^t; None for no correction.
    """

    def init(spec: ModelSpec) -> Arrays:
        state = {"mean": np.zeros(spec.m), "square": np.full(spec.m, settings.initial), "round": np.zeros(1)}
        return state if unbiased is None else {**state, "powers": np.ones(2)}

    def update(step: Vector, state: Arrays, _: Vector) -> tuple[Vector, Arrays]:
        t = state["round"] + 1.0
        mean = settings.beta1 * state["mean"] + (1 - settings.beta1) * step
        square = gathered(state["square"], step * step)
        after = {"mean": mean, "square": square, "round": t}
        if unbiased is not None:
            powers = state["powers"] * np.array(unbiased)
            after["powers"] = powers
            mean, square = mean / (1 - powers[0]), square / (1 - powers[1])
        return rate_at(settings, float(t[0])) * mean / (np.sqrt(square) + settings.epsilon), after

    def rates(state: Arrays) -> Vector:
        square = state["square"]
        if unbiased is not None:
            power = float(state["powers"][1])
            square = square / (1 - power) if power < 1 else np.full(len(square), np.nan)
        return np.asarray(last_rate(settings, state) / (np.sqrt(square) + settings.epsilon))

    return Transformation(init, update, {"rate": Display(words, rates)})


@OPTIMIZERS.of(Adagrad)
def adagrad(settings: Adagrad, _: ModelSpec) -> Transformation[Arrays]:
    """Return the link of Adagrad (Duchi et al. 2011): v ← v + Δ², with the state of :func:`adaptive`."""
    return adaptive(settings, np.add, "Adagrad's rate of each weight: η over the root of its sum of squares")


@OPTIMIZERS.of(Adam)
def adam(settings: Adam, _: ModelSpec) -> Transformation[Arrays]:
    """Return the link of Adam (Kingma and Ba 2015): v ← β2 v + (1 - β2) Δ², with the state of :func:`adaptive`."""

    def gathered(square: Vector, new: Vector) -> Vector:
        return settings.beta2 * square + (1 - settings.beta2) * new

    words = "Adam's rate of each weight: η over the root of its mean square"
    return adaptive(settings, gathered, words, (settings.beta1, settings.beta2) if settings.bias_correction else None)


@OPTIMIZERS.of(Yogi)
def yogi(settings: Yogi, _: ModelSpec) -> Transformation[Arrays]:
    """Return the link of Yogi (Zaheer et al. 2018): v ← v - (1 - β2) sign(v - Δ²) Δ².

    So a v far above the squares decreases by at most the square, while Adam's v would decrease by a fraction of
    itself. The state is that of :func:`adaptive`.
    """

    def gathered(square: Vector, new: Vector) -> Vector:
        return square - (1 - settings.beta2) * np.sign(square - new) * new

    words = "Yogi's rate of each weight: η over the root of its mean square"
    return adaptive(settings, gathered, words, (settings.beta1, settings.beta2) if settings.bias_correction else None)


ROUNDING = 1e-6
"""Relative tolerance in comparisons of votes with a share: clipped updates are float32 numbers and may exceed a
bound."""


@OPTIMIZERS.of(RProp)
def rprop(settings: RProp, spec: ModelSpec) -> Transformation[Arrays]:
    """Return RProp with each weight's first, smallest and largest step size from the spec.

    State: ``rate``, the step sizes η; ``sign``, the signs of the previous update. The first signs are zeros, so that
    the first step has the start size, because eq. 4 leaves η unchanged if the product is zero. Only signs are kept,
    because the product of two tiny updates would underflow to zero.

    There is no weight backtracking: after a change of sign, the step is still taken, with the smaller size. A zero
    update leaves its weight unchanged.

    With a quorum, an update is a share of the votes between -1 and 1, not a length
    (`fedping.server_jobs.round.clipping.in_votes`). A share below the quorum counts as zero.
    """
    first, least, largest = spec.steps
    quorum = settings.quorum

    def init(_: ModelSpec) -> Arrays:
        return {"rate": first, "sign": np.zeros(spec.m)}

    def update(step: Vector, state: Arrays, _: Vector) -> tuple[Vector, Arrays]:
        sign = np.sign(step if quorum is None else np.where(_above(step, quorum.decides), step, 0.0))
        grown = (
            settings.alpha if quorum is None else np.where(_above(step, quorum.hastens), settings.alpha, quorum.slows)
        )
        rate = _adapted(settings, grown, state["rate"], sign * state["sign"], least, largest)
        return rate * sign, {"rate": rate, "sign": sign}

    size = Display("RProp's step size of each weight, in the weight's own unit", lambda state: state["rate"])
    return Transformation(init, update, {"rate": size})


def _above(votes: Vector, share: float) -> NDArray[np.bool_]:
    """Return a mask, shape (m,), of the weights whose votes exceed a share by more than rounding."""
    return np.abs(votes) > share * (1 + ROUNDING)


def _adapted(
    settings: RProp, grown: float | Vector, rate: Vector, agreement: Vector, least: Vector, largest: Vector
) -> Vector:
    """Return the step sizes by thesis eq. 4.

    ``agreement`` is the product of the last two signs, -1, 0 or 1. ``grown`` is the factor where it is 1.
    """
    factor = np.where(agreement > 0, grown, settings.beta)
    adapted = np.clip(_rounded(settings, rate * factor), least, largest)
    return np.where(agreement == 0, rate, adapted)


def _rounded(settings: RProp, rate: Vector) -> Vector:
    match settings.rate_rounding:
        case "half_even":
            return np.rint(rate)
        case "half_up":
            return np.floor(rate + 0.5)
        case "none":
            return rate


@OPTIMIZERS.of(OwnOptimizer)
def own(settings: OwnOptimizer, spec: ModelSpec) -> Transformation[Arrays]:
    """Return the link of a user's optimizer: a function's result for the model spec, or an instance of a class.

    The optimizer has ``init(spec)`` and ``update(step, state, weights)``, like :class:`Transformation`, and gets
    copies of its arguments.

    Raises:
        InvalidSettings: the extension isn't installed, or its code isn't the code that the settings name.
        BrokenLink: the extension raises an error, or a state isn't finite.
    """
    extension = extension_of(settings)
    with broken_if_failed():
        link = extension.made(settings.settings, spec)
    if not (hasattr(link, "init") and hasattr(link, "update")):
        raise BrokenLink(
            f"{extension} returned a {type(link).__name__}; return a fedping.Transformation, which has init and update"
        )

    def as_state(found: Any) -> Arrays:
        if not isinstance(found, Mapping):
            raise BrokenLink(
                f"{extension} has a {type(found).__name__} as its state; return a dict of vectors, which may be empty"
            )
        return dict(found)

    def init(of: ModelSpec) -> Arrays:
        return as_state(link.init(of))

    def update(step: Vector, state: Arrays, weights: Vector) -> tuple[Vector, Arrays]:
        copies = {name: each.copy() for name, each in state.items()}
        found = link.update(step.copy(), copies, weights.copy())
        if not isinstance(found, tuple) or len(found) != 2:
            raise BrokenLink(
                f"{extension} returned a {type(found).__name__} from update; return the step and the next state"
            )
        made, after = found[0], as_state(found[1])
        for name, each in as_vectors(after).items():
            if not np.isfinite(each).all():
                raise ValueError(f"its state '{name}' is not finite")
        return made, after

    return Transformation(init, update)
