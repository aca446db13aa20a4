"""The arithmetic of compiled rounds in JAX: local training in lanes, the mean, the clip and the server's optimizer.

The formulas are the same as in the NumPy engine (`fedping.client_sim.learning`,
`fedping.server_jobs.optimize.optimizers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedping.client_sim.learning.models.layer import Layer
from fedping.client_sim.learning.networks.tree_model import key_of
from fedping.experiments.laboratory.rounds.aggregating import Arrays, needs_all, rule_of
from fedping.protocol.local_optimizers import (
    LocalAdam,
    LocalDescent,
    LocalMomentum,
    LocalOptimizer,
    LocalRMSProp,
    LocalRProp,
)
from fedping.protocol.model import LARGEST_WEIGHT
from fedping.protocol.pipeline import (
    Adagrad,
    Adam,
    Combination,
    GradientDescent,
    Mean,
    MeanOfSigns,
    Momentum,
    Optimizer,
    Yogi,
)
from fedping.protocol.weights import LARGEST

NOBODY = np.int32(2**31 - 1)
"""Placeholder for the client's position in all pieces of a client but the last."""

SEEN = 1024
"""Examples whose losses are computed at a time."""


class Objective(NamedTuple):
    """The loss of an example as a function of the weights, shape (m,).

    Attributes:
        kind: ``numbers``, ``two classes`` or ``classes``, predicted by ``layers``; ``choices`` among candidates, which
            these score; or ``own`` or ``network`` for ``function``.
        layers: the model's layers.
        l2: the strength of the L2 penalty on the layers.
        precision: the precision of clients' weights.
        function: for ``own``, the loss as a function of weights, examples (1, d) and targets (1,); for a ``network``,
            the function of :class:`fedping.client_sim.learning.networks.tree_model.Functions`.
        draws: whether the function gets random keys in training.
        margin: Δ of the ranking loss.
        candidates: for choices, the number c of candidates: an example has the features of c candidates one after
            another, and its target is :func:`told_choice`.
    """

    kind: str
    layers: tuple[Layer, ...]
    l2: float
    precision: str
    function: Callable[..., Any] | None = None
    draws: bool = False
    margin: float = 0.0
    candidates: int = 1


def told_choice(chosen: Any, shown: Any, candidates: int) -> Any:
    """Return a choice as one number: ``chosen``, the candidate's position or -1 for none, of ``shown`` candidates."""
    return (candidates + 1) * shown + chosen + 1


class Local(NamedTuple):
    """A client's training.

    Attributes:
        rate: the size of a step; None for one gradient.
        proximal: μ of FedProx.
        sign: whether only signs are sent.
        optimizer: the client optimizer.
        whole: whether the first step gives the loss at the fetched weights: it uses all examples and has no random
            draws.
        in_one: whether each step is one piece of a plan, so that gradients need no adding up.
        single: whether a client takes only one such step, so that all gradients are at the fetched weights.
        steps: number of a client's steps, if clients train side by side (`rectangle.py`).
    """

    rate: float | None
    proximal: float
    sign: bool
    optimizer: LocalOptimizer
    whole: bool
    in_one: bool = False
    single: bool = False
    steps: int = 1


class Server(NamedTuple):
    """The server's step: the maximum norm of an update (None for no clip), the optimizer, and the aggregation."""

    clip: float | None
    optimizer: Optimizer
    aggregate: Combination = Mean()


class Method(Protocol):
    """One client's training by a method other than plain local steps, as functions of JAX arrays (`methods.py`).

    ``weights`` are the fetched weights in the model's precision, shape (m,); ``kept`` is the client's state, by name;
    ``local`` are its variables during a training, by name. A method is hashable, because it identifies a compilation.
    """

    def whole(self, weights: Any, constants: Arrays) -> Any:
        """Return the weights of the whole model to measure the loss at."""
        ...

    def begin(self, weights: Any, kept: Arrays, constants: Arrays) -> Arrays:
        """Return the initial state of a training."""
        ...

    def at(self, weights: Any, local: Arrays, phase: Any) -> tuple[Any, ...]:
        """Return the weights of the whole model to take gradients at."""
        ...

    def step(self, weights: Any, local: Arrays, slopes: tuple[Any, ...], phase: Any) -> Arrays:
        """Return the state after a step with these gradients."""
        ...

    def end(self, weights: Any, local: Arrays, kept: Arrays) -> tuple[Any, Arrays]:
        """Return the sent update, shape (m,), and the client's new state."""
        ...


class Work(NamedTuple):
    """The input of a compilation. Equal inputs share one compilation for each size of the arrays.

    Attributes:
        objective: the loss.
        local: the clients' local work.
        server: the server's step; None for training only.
        at_once: number of clients that train side by side, if all train on all their examples in every round
            (`rectangle.py`); 0 if they train in lanes.
        method: the clients' method other than plain local steps; None for plain local steps.
        devices: the number of devices, each with some of the clients of a round.
    """

    objective: Objective
    local: Local
    server: Server | None
    at_once: int = 0
    method: Method | None = None
    devices: int = 1


def losses_by(objective: Objective) -> Callable[[Any, Any, Any], Any]:
    """Return a function that maps weights, examples and targets to each example's loss."""
    import jax
    from jax import numpy as jnp

    own = objective.function
    if objective.kind == "network":
        assert own is not None
        of_network = own
        return lambda weights, x, y: jax.vmap(lambda one, target: of_network(weights, one, target, None))(x, y)
    if own is not None:
        return lambda weights, x, y: jax.vmap(lambda one, target: own(weights, one[None], target[None]))(x, y)

    # Products with ones: on processors, XLA takes several times as long to add up short rows.
    def summed(values: Any) -> Any:
        """Return the sums of values (..., c), shape (..., 1)."""
        return jnp.matmul(values, jnp.ones((values.shape[-1], 1), values.dtype), precision="highest")

    def spread(sums: Any) -> Any:
        """Return sums (..., 1) for each candidate, shape (..., c)."""
        return jnp.matmul(sums, jnp.ones((1, objective.candidates), sums.dtype), precision="highest")

    def of_choices(weights: Any, x: Any, y: Any) -> Any:
        c = objective.candidates
        [layer] = objective.layers
        x = x.reshape(*x.shape[:-1], c, -1)
        scores = jnp.matmul(x, layer.matrix(weights), precision="highest")[..., 0]
        shown, chosen = jnp.divmod(y.astype(jnp.int32), c + 1)
        is_chosen = jnp.arange(c) == chosen[..., None] - 1
        best = spread(summed(jnp.where(is_chosen, scores, 0)))
        others = (jnp.arange(c) < shown[..., None]) & ~is_chosen & (chosen[..., None] > 0)
        return summed(jnp.where(others, jax.nn.relu(scores + objective.margin - best), 0))[..., 0]

    if objective.kind == "choices":
        return of_choices

    ends = [end for layer in objective.layers for end in (layer.end - layer.outputs * layer.intercept, layer.end)]

    def parts_of(weights: Any) -> Iterator[tuple[Any, Any]]:
        """Yield each layer's matrix and offsets; their gradients are joined once, instead of padded and added up."""
        parts = jnp.split(weights, ends[:-1])
        for layer, matrix, offsets in zip(objective.layers, parts[::2], parts[1::2], strict=True):
            yield matrix.reshape(layer.inputs, layer.outputs), offsets

    def losses(weights: Any, x: Any, y: Any) -> Any:
        for number, (matrix, offsets) in enumerate(parts_of(weights)):
            x = jnp.matmul(x, matrix, precision="highest")
            if len(offsets):
                x = x + offsets
            if number < len(objective.layers) - 1:
                x = jax.nn.relu(x)
        if objective.kind == "numbers":
            return jnp.square(x[..., 0] - y)
        if objective.kind == "two classes":
            return jax.nn.softplus(x[..., 0]) - y * x[..., 0]
        is_it = jnp.arange(x.shape[-1]) == y.astype(jnp.int32)[..., None]
        of_it = jnp.sum(jnp.where(is_it, x, 0), axis=-1)  # instead of an index, whose gradient is a slow scatter
        return jax.nn.logsumexp(x, axis=-1) - of_it

    return losses


def training_losses_by(objective: Objective) -> Callable[[Any, Any, Any, Any, Any], Any]:
    """Return a function that maps weights, examples, targets, a key's words and a position to losses in training."""
    import jax
    from jax import numpy as jnp

    losses, own = losses_by(objective), objective.function
    if not objective.draws or own is None:
        return lambda weights, x, y, words, place: losses(weights, x, y)

    def with_keys(weights: Any, x: Any, y: Any, words: Any, place: Any) -> Any:
        places = place + jnp.arange(len(x), dtype=jnp.int32)
        return jax.vmap(lambda one, target, at: own(weights, one, target, key_of(words, at)))(x, y, places)

    return with_keys


def client_optimizer(settings: LocalOptimizer) -> tuple[Arrays, Callable[[Any, Arrays], tuple[Any, Arrays]]]:
    """Return a client optimizer's initial state by name, and its step function for gradients (L, m) and rate 1."""
    from jax import numpy as jnp

    def least(dtype: Any) -> float:
        return max(settings.epsilon, float(np.finfo(dtype).tiny))  # type: ignore[union-attr]

    def momentum(uphill: Any, memory: Arrays) -> tuple[Any, Arrays]:
        assert isinstance(settings, LocalMomentum)
        velocity = settings.beta * memory["velocity"] - uphill
        return settings.beta * velocity - uphill if settings.nesterov else velocity, {"velocity": velocity}

    def rmsprop(uphill: Any, memory: Arrays) -> tuple[Any, Arrays]:
        assert isinstance(settings, LocalRMSProp)
        square = settings.beta * memory["square"] + (1 - settings.beta) * uphill**2
        return -uphill / (jnp.sqrt(square) + least(uphill.dtype)), {"square": square}

    def adam(uphill: Any, memory: Arrays) -> tuple[Any, Arrays]:
        assert isinstance(settings, LocalAdam)
        beta1, beta2 = settings.beta1, settings.beta2
        mean = beta1 * memory["mean"] + (1 - beta1) * uphill
        square = beta2 * memory["square"] + (1 - beta2) * uphill**2
        powers1, powers2 = beta1 * memory["powers1"], beta2 * memory["powers2"]
        left1, left2 = (1 - powers1).astype(uphill.dtype), (1 - powers2).astype(uphill.dtype)
        step = -mean / left1 / (jnp.sqrt(square / left2) + least(uphill.dtype))
        return step, {"mean": mean, "square": square, "powers1": powers1, "powers2": powers2}

    def rprop(uphill: Any, memory: Arrays) -> tuple[Any, Arrays]:
        assert isinstance(settings, LocalRProp)
        rate, sign = memory["rate"], jnp.sign(-uphill)
        agreement = sign * memory["sign"]
        factor = jnp.where(agreement > 0, settings.alpha, settings.beta).astype(rate.dtype)
        adapted = jnp.clip(rate * factor, settings.step.min, settings.step.max)
        rate = jnp.where(agreement == 0, rate, adapted)
        return rate * sign, {"rate": rate, "sign": sign}

    match settings:
        case LocalRProp():
            return {"rate": settings.step.start, "sign": 0.0}, rprop
        case LocalMomentum():
            return {"velocity": 0.0}, momentum
        case LocalRMSProp():
            return {"square": 0.0}, rmsprop
        case LocalAdam():
            return {"mean": 0.0, "square": 0.0, "powers1": 1.0, "powers2": 1.0}, adam
        case _:
            return {}, lambda uphill, memory: (-uphill, memory)


def server_step(settings: Optimizer) -> Callable[[Any, Arrays, Any], tuple[Any, Arrays]]:
    """Return a function that maps a direction, the state and a rate to the server's step and next state."""
    from jax import numpy as jnp

    def momentum(direction: Any, state: Arrays, rate: Any) -> tuple[Any, Arrays]:
        assert isinstance(settings, Momentum)
        push = rate * direction
        velocity = settings.beta * state["velocity"] + push
        return settings.beta * velocity + push if settings.nesterov else velocity, {"velocity": velocity}

    def gathered(square: Any, new: Any) -> Any:
        match settings:
            case Adam():
                return settings.beta2 * square + (1 - settings.beta2) * new
            case Yogi():
                return square - (1 - settings.beta2) * jnp.sign(square - new) * new
            case _:
                return square + new

    def adaptive(direction: Any, state: Arrays, rate: Any) -> tuple[Any, Arrays]:
        assert isinstance(settings, Adagrad | Adam | Yogi)
        mean = settings.beta1 * state["mean"] + (1 - settings.beta1) * direction
        square = gathered(state["square"], direction * direction)
        after = {"mean": mean, "square": square}
        if isinstance(settings, Adam | Yogi) and settings.bias_correction:
            powers = state["powers"] * jnp.array([settings.beta1, settings.beta2])
            after["powers"] = powers
            mean, square = mean / (1 - powers[0]), square / (1 - powers[1])
        return rate * mean / (jnp.sqrt(square) + settings.epsilon), after

    match settings:
        case GradientDescent():
            return lambda direction, state, rate: (rate * direction, state)
        case Momentum():
            return momentum
        case _:
            return adaptive


@cache
def compiled(work: Work) -> Callable[..., Any]:
    """Return the compiled function of weights, data and plans.

    With a server it computes rounds. It takes ``(state, data, plan, seen, rounds, kept, constants)`` and returns the
    last state; one update of the last round; for each round the loss, the penalty, and the largest numbers of an update
    and of the version; a refused version; and the clients' states. A round that diverges changes nothing, nor do later
    rounds. Without a server, it trains the clients of one round. It takes ``(weights, data, plan, seen, round, kept,
    constants, clients)`` and returns each client's update and loss, the penalty, and the clients' states. ``kept`` is
    empty without a method.
    """
    import jax
    from jax import lax
    from jax import numpy as jnp

    objective, local, server, method = work.objective, work.local, work.server, work.method
    dtype = jnp.dtype(objective.precision)
    each_loss, loss_in_training = losses_by(objective), training_losses_by(objective)
    initial, client_step = client_optimizer(local.optimizer)
    plain = isinstance(local.optimizer, LocalDescent)

    def penalty(weights: Any) -> Any:
        return 0.5 * objective.l2 * sum(jnp.sum(jnp.square(layer.matrix(weights))) for layer in objective.layers)

    def goal(weights: Any, x: Any, y: Any, share: Any, ends: Any, words: Any, place: Any) -> tuple[Any, Any]:
        # The choice comes last, because on processors XLA is slow at sums of products.
        found = jnp.sum(jnp.where(share > 0, loss_in_training(weights, x, y, words, place) * share, 0))
        return found + jnp.where(ends, penalty(weights), 0) if objective.l2 else found, found

    # If all clients share the weights, a layer is one product for all of them, instead of one for each.
    slopes = jax.vmap(jax.grad(goal, has_aux=True), in_axes=(None if local.single else 0, *[0] * 6))

    def after_step(moved: Any, uphill: Any, memory: Arrays) -> tuple[Any, Arrays]:
        """Return the clients' movements after a step, and the memory of their optimizers."""
        if local.rate is None:
            return -uphill, memory
        if plain:
            return (moved - local.rate * uphill) / (1 + local.rate * local.proximal), memory
        step, memory = client_step(uphill + local.proximal * moved, memory)
        return moved + local.rate * step, memory

    def sent_of(moved: Any, memory: Arrays) -> Any:
        for value in memory.values():  # an infinite mean of squares would silently stop all steps
            moved = jnp.where(jnp.isfinite(value).all(axis=1, keepdims=True), moved, jnp.nan)
        return (jnp.sign(moved) if local.sign else moved).astype(jnp.float32)

    def first_memory(clients: int, m: int) -> Arrays:
        def of(name: str) -> tuple[tuple[int, int], Any]:
            return ((clients, 1), jnp.float64) if name.startswith("powers") else ((clients, m), dtype)

        return {name: jnp.full(of(name)[0], value, of(name)[1]) for name, value in initial.items()}

    def trained(weights: Any, data: Any, plan: Any, low: Any, high: Any, gathered: Any, take: Any) -> Any:
        """Train clients from piece ``low`` to ``high``; ``take`` adds the clients' updates to the gathered sums."""
        x, y, weight, _ = data
        rows, inverse, begin, apply, client, votes, loss_of, words, place, _ = plan
        lanes, m = rows.shape[1], len(weights)
        fetched = weights.astype(dtype)

        def piece(t: Any, carry: Any) -> Any:
            moved, uphill, loss, memory, gathered = carry
            own, begins, ends = rows[t], begin[t][:, None], apply[t][:, None]
            at = jnp.where(own >= 0, own, jnp.maximum(own[:, :1], 0))
            share = jnp.where(own >= 0, weight[at] * inverse[t][:, None], 0).astype(dtype)
            moved = zeros if local.single else jnp.where(begins, 0, moved)
            memory = {name: jnp.where(begins, initial[name], value) for name, value in memory.items()}
            weights = fetched if local.single else fetched + moved
            slope, found = slopes(weights, x[at], y[at], share, apply[t], words[t], place[t])
            uphill = slope if local.in_one else jnp.where(begins, 0, uphill) + slope
            loss = jnp.where(begin[t], 0, loss) + found * loss_of[t]
            after, remembered = after_step(moved, uphill, memory)
            memory = {name: jnp.where(ends, remembered[name], value) for name, value in memory.items()}
            moved = jnp.where(ends, after, moved)
            uphill = none if local.in_one else jnp.where(ends, 0, uphill)

            def taken(gathered: Any) -> Any:
                return take(gathered, sent_of(moved, memory), loss, client[t], votes[t])

            # Adding up clients' updates costs as much as a step, and in most pieces all clients have steps left.
            gathered = lax.cond(jnp.any(client[t] != NOBODY), taken, lambda gathered: gathered, gathered)
            return none if local.single else moved, uphill, loss, memory, gathered

        zeros = jnp.zeros((lanes, m), dtype)
        none = jnp.zeros((), dtype) if local.in_one else zeros
        first = (none if local.single else zeros, none, jnp.zeros(lanes), first_memory(lanes, m), gathered)
        return lax.fori_loop(low, high, piece, first)[4]

    def trained_by(
        method: Method,
        weights: Any,
        data: Any,
        plan: Any,
        bounds: Any,
        gathered: Any,
        take: Any,
        kept: Arrays,
        also: Arrays,
    ) -> tuple[Any, Arrays]:
        """Train clients by a method, otherwise as :func:`trained`; return the gathered sums and the clients' states.

        ``kept`` has a row for each client of the round; ``also`` has the arrays that all clients share.
        """
        x, y, weight, _ = data
        rows, inverse, begin, apply, client, votes, loss_of, words, place, of = plan
        low, high = bounds
        lanes, fetched = rows.shape[1], weights.astype(dtype)
        begun: Any = jax.vmap(lambda mine: method.begin(fetched, mine, also), axis_size=lanes)
        places: Any = jax.vmap(lambda local, phase: method.at(fetched, local, phase))
        stepped: Any = jax.vmap(lambda local, slopes, phase: method.step(fetched, local, slopes, phase))
        ended: Any = jax.vmap(lambda local, mine: method.end(fetched, local, mine))

        def chosen(these: Any, one: Any, other: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(these.reshape(-1, *[1] * (a.ndim - 1)), a, b), one, other)

        def piece(t: Any, carry: Any) -> Any:
            local, uphill, loss, kept, gathered = carry
            own, whose, phase = rows[t], of[t, :, 0], of[t, :, 1]
            at = jnp.where(own >= 0, own, jnp.maximum(own[:, :1], 0))
            share = jnp.where(own >= 0, weight[at] * inverse[t][:, None], 0).astype(dtype)
            mine = {name: value[whose] for name, value in kept.items()}
            local = chosen(begin[t], begun(mine), local)
            found = [slopes(each, x[at], y[at], share, apply[t], words[t], place[t]) for each in places(local, phase)]
            uphill = tuple(before + slope for before, (slope, _) in zip(uphill, found, strict=True))
            loss = jnp.where(begin[t], 0, loss) + found[0][1] * loss_of[t]
            local = chosen(apply[t], stepped(local, uphill, phase), local)
            uphill = chosen(apply[t], jax.tree.map(jnp.zeros_like, uphill), uphill)

            def taken(kept: Arrays, gathered: Any) -> Any:
                sent, after = ended(local, mine)
                for value in after.values():
                    if jnp.issubdtype(value.dtype, jnp.floating):
                        finite = jnp.isfinite(value).reshape(lanes, -1).all(axis=1, keepdims=True)
                        sent = jnp.where(finite, sent, jnp.nan)
                sent = (jnp.sign(sent) if local_sign else sent).astype(jnp.float32)
                row = jnp.where(client[t] != NOBODY, whose, NOBODY)
                kept = {name: value.at[row].set(after[name], mode="drop") for name, value in kept.items()}
                return kept, take(gathered, sent, loss, client[t], votes[t])

            does = jnp.any(client[t] != NOBODY)
            kept, gathered = lax.cond(does, taken, lambda *unchanged: unchanged, kept, gathered)
            return local, uphill, loss, kept, gathered

        local_sign = local.sign
        nothing = {name: jnp.zeros((lanes, *value.shape[1:]), value.dtype) for name, value in kept.items()}
        first = jax.tree.map(jnp.zeros_like, begun(nothing))
        uphill = tuple(jnp.zeros_like(each) for each in places(first, of[0, :, 1]))
        carry = lax.fori_loop(low, high, piece, (first, uphill, jnp.zeros(lanes), kept, gathered))
        return carry[4], carry[3]

    def trained_side_by_side(weights: Any, data: Any, gathered: Any, take: Any) -> Any:
        """Train all clients on all their examples side by side, with the results of :func:`trained`."""
        many, m, fetched = work.at_once, len(weights), weights.astype(dtype)
        nothing = jnp.ones(many, bool), jnp.zeros((many, 0), jnp.uint32), jnp.zeros(many, jnp.int32)

        def some(gathered: Any, part: Any) -> Any:
            x, y, share, client, votes, number = part

            def step(t: Any, carry: Any) -> Any:
                moved, loss, memory = carry
                slope, found = slopes(fetched if local.single else fetched + moved, x, y, share, *nothing)
                moved, memory = after_step(moved, slope, memory)
                return moved, jnp.where(t == 0, found, loss), memory

            carry = jnp.zeros((many, m), dtype), jnp.zeros(many, dtype), first_memory(many, m)
            moved, loss, memory = step(0, carry) if local.steps == 1 else lax.fori_loop(0, local.steps, step, carry)
            return take(gathered, sent_of(moved, memory), loss * number, client, votes), None

        parts = tuple(each.reshape(-1, many, *each.shape[1:]) for each in data)
        if len(parts[0]) == 1:  # a loop would copy the examples
            return some(gathered, tuple(each[0] for each in parts))[0]
        return lax.scan(some, gathered, parts)[0]

    def losses_of(weights: Any, data: Any, seen: Any, low: Any, high: Any, first: Any, take: Any) -> Any:
        """Return the losses at the fetched weights for blocks ``low`` to ``high`` of examples, added up by ``take``."""
        x, y, _, share = data
        rows, owner = seen
        fetched = weights.astype(dtype)

        def block(t: Any, total: Any) -> Any:
            at = jnp.maximum(rows[t], 0)
            part = jnp.where(rows[t] >= 0, share[at], 0)
            return take(total, jnp.where(part > 0, each_loss(fetched, x[at], y[at]), 0) * part, owner[t])

        return lax.fori_loop(low, high, block, first)

    def of_penalty(weights: Any) -> Any:
        return penalty(weights.astype(dtype)).astype(jnp.float64) if objective.l2 else jnp.zeros(())

    def shortened(sent: Any) -> Any:
        assert server is not None
        if server.clip is None:
            return sent
        norms = jnp.sqrt(jnp.sum(jnp.square(sent.astype(jnp.float64)), axis=1))
        factors = jnp.where(norms > server.clip, server.clip / jnp.where(norms > 0, norms, 1), 1)
        return (sent * factors[:, None]).astype(sent.dtype)

    def trained_and_kept(
        weights: Any, data: Any, plan: Any, bounds: Any, gathered: Any, take: Any, kept: Arrays, also: Arrays
    ) -> tuple[Any, Arrays]:
        if method is None:
            return trained(weights, data, plan, bounds[0], bounds[1], gathered, take), kept
        return trained_by(method, weights, data, plan, bounds, gathered, take, kept, also)

    def measured_at(weights: Any, also: Arrays) -> Any:
        """Return the weights to measure losses at."""
        return weights if method is None else method.whole(weights, also)

    def of_all(value: Any, merged: Any = lax.psum) -> Any:
        """Return the sums over all devices, or their maxima."""
        return merged(value, _AXIS) if work.devices > 1 else value

    def rounds(state: Arrays, data: Any, plan: Any, seen: Any, per: Any, kept: Arrays, also: Arrays) -> Any:
        assert server is not None
        optimized = server_step(server.optimizer)
        rule = rule_of(server.aggregate) if needs_all(server.aggregate) else None
        on_cpu = jax.default_backend() == "cpu"

        def contribution(sent: Any) -> Any:
            if not isinstance(server.aggregate, MeanOfSigns):
                return shortened(sent)
            return jnp.where(sent < 0, -1, 1) if server.aggregate.zero == "up" else jnp.sign(shortened(sent))

        def take(gathered: Any, sent: Any, loss: Any, client: Any, votes: Any) -> Any:
            total, told, largest, last = gathered
            done = votes > 0
            told = told + jnp.sum(jnp.where(done, loss, 0))
            largest = jnp.maximum(largest, jnp.max(jnp.where(done[:, None], jnp.abs(sent), 0)))
            last = jnp.where(done[0], sent[0], last)
            if rule is not None:
                updates, all_votes = total
                total = (
                    updates.at[client].set(shortened(sent), mode="drop"),
                    all_votes.at[client].set(votes, mode="drop"),
                )
                return total, told, largest, last
            if on_cpu and len(sent) <= sent.shape[1]:  # a product is faster than the sum of so few long rows
                taken = jnp.where(done[:, None], contribution(sent), 0).astype(jnp.float64)
                return total + jnp.matmul(votes, taken), told, largest, last
            taken = jnp.where(done[:, None], votes[:, None] * contribution(sent), 0)
            return total + jnp.sum(taken, axis=0), told, largest, last

        def one(carry: tuple[Any, ...], each: Any) -> tuple[tuple[Any, ...], Any]:
            low, high, first, end, all_votes, rate, stepped, slots = each
            state, last, going, refused, kept = carry
            weights = state["weights"]
            measured = measured_at(weights, also)
            total: Any = jnp.zeros(len(weights))
            if rule is not None:
                total = jnp.zeros((len(slots), len(weights)), jnp.float32), jnp.zeros(len(slots))
            nothing = (total, jnp.zeros(()), jnp.zeros((), jnp.float32), last)
            mine = {name: value.at[slots].get(mode="clip") for name, value in kept.items()}
            if work.at_once:
                gathered = trained_side_by_side(weights, data, nothing, take)
            else:
                gathered, mine = trained_and_kept(weights, data, plan, (low, high), nothing, take, mine, also)
            total, told, largest, last = gathered
            if not local.whole:
                none = jnp.zeros(())
                told = losses_of(measured, data, seen, first, end, none, lambda total, each, _: total + jnp.sum(each))
            total, told = of_all((total, told))
            largest = of_all(jnp.where(jnp.isnan(largest), jnp.inf, largest), lax.pmax)
            direction, of_rule = (total / all_votes, {}) if rule is None else rule(total[0], total[1], state)
            step, after = optimized(direction, state, rate)
            made = weights + step
            largest_weight = jnp.max(jnp.abs(jnp.where(stepped, made, weights)))
            fine = (largest <= LARGEST) & (largest_weight <= LARGEST_WEIGHT)
            if objective.function is not None:  # whose losses the NumPy engine checks, too
                fine &= jnp.isfinite(told)
            refused = jnp.where(going & ~fine, made, refused)
            going = going & fine
            after = {**state, **after, **of_rule, "weights": made}
            after = {name: jnp.where(stepped & going, value, state[name]) for name, value in after.items()}
            rows = jnp.where(going, slots, NOBODY)
            kept = {name: value.at[rows].set(mine[name], mode="drop") for name, value in kept.items()}
            return (after, last, going, refused, kept), (told, of_penalty(measured), largest, largest_weight)

        m = len(state["weights"])
        begun = state, jnp.zeros(m, jnp.float32), jnp.array(True), jnp.zeros(m), kept
        (state, last, _, refused, kept), of_rounds = lax.scan(one, begun, per)
        if work.devices > 1:
            last = of_all(jnp.where(lax.axis_index(_AXIS) == 0, last, 0))
        return state, last, of_rounds, refused, kept

    def training(
        weights: Any, data: Any, plan: Any, seen: Any, per: Any, kept: Arrays, also: Arrays, clients: int
    ) -> Any:
        low, high, first, end = per
        m = len(weights)

        def take(gathered: Any, sent: Any, loss: Any, client: Any, votes: Any) -> Any:
            updates, losses = gathered
            return updates.at[client].set(sent, mode="drop"), losses.at[client].set(loss, mode="drop")

        nothing = (jnp.zeros((clients, m), jnp.float32), jnp.zeros(clients))
        (updates, losses), kept = trained_and_kept(weights, data, plan, (low, high), nothing, take, kept, also)
        measured = measured_at(weights, also)
        if not local.whole:
            none = jnp.zeros(clients)
            losses = losses_of(
                measured, data, seen, first, end, none, lambda total, each, at: total.at[at].add(each, mode="drop")
            )
        updates, losses = of_all((updates, losses))
        return updates, losses, of_penalty(measured), kept

    def on_devices(
        weights: Any, data: Any, plan: Any, seen: Any, per: Any, kept: Arrays, also: Arrays, *clients: int
    ) -> Any:
        mesh, spec = mesh_of(work.devices), jax.sharding.PartitionSpec
        each, lanes, all_ = spec(_AXIS), spec(None, _AXIS), spec()  # type: ignore[no-untyped-call]
        specs = (all_, each if work.at_once else all_, lanes, lanes, all_, all_, all_)
        function = rounds if server is not None else partial(training, clients=clients[0])
        shared = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=all_, check_vma=False)
        return shared(weights, data, plan, seen, per, kept, also)

    # The clients' states may be most of the memory, so a call updates them in place.
    how: dict[str, Any] = {"donate_argnums": 5} if server is not None else {"static_argnums": 7}
    if work.devices > 1:
        return jax.jit(on_devices, **how)
    return jax.jit(rounds if server is not None else training, **how)


_AXIS = "clients"
"""Name of the axis of devices, over which the clients of a round are divided."""


def mesh_of(devices: int) -> Any:
    """Return JAX's mesh of the first ``devices`` devices."""
    import jax

    return jax.sharding.Mesh(np.array(jax.devices()[:devices]), (_AXIS,))


def placed(values: Any, devices: int, axis: int | None) -> Any:
    """Place arrays on devices and return them: divided along ``axis``, or whole on each device if it is None."""
    import jax

    if devices == 1:
        return jax.device_put(values)
    names = () if axis is None else (*[None] * axis, _AXIS)
    spec = jax.sharding.PartitionSpec(*names)  # type: ignore[no-untyped-call]
    return jax.device_put(values, jax.sharding.NamedSharding(mesh_of(devices), spec))
