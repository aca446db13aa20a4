"""Rounds in memory, compiled by JAX: all the rounds up to the next evaluation are one call.

The host draws who trains and on which examples, by the same draws as the NumPy engine, and makes a plan of whole
numbers. The compiled part gathers the examples, trains, and steps. It has lanes, each of which trains one client after
another: the longest first, and a lane that is free takes the next client. So clients of any size share one compilation,
and little is computed for nothing. A step with many examples is cut into pieces, whose gradients are added up.

Results agree with those of the NumPy engine up to rounding. A seed gives the same bits on one machine with one version
of JAX; other processors and versions may round differently.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.data import ExampleData
from fedping.client_sim.learning import Diverged
from fedping.client_sim.learning.batch import NO_EXAMPLE, Clients, FloatArray
from fedping.client_sim.learning.mini_batches import mini_batches, some
from fedping.client_sim.learning.models.layer import Layer
from fedping.client_sim.learning.models.linear_regression import LinearRegression
from fedping.client_sim.learning.models.logistic_regression import LogisticRegression
from fedping.client_sim.learning.models.network import Network
from fedping.client_sim.sampling import sampler_for
from fedping.experiments.laboratory.preparing import Problem
from fedping.experiments.laboratory.resuming import Arrays, Part
from fedping.experiments.laboratory.rounds.inside import check_inside
from fedping.experiments.laboratory.rounds.server import RoundReport, diverged
from fedping.experiments.laboratory.rounds.updates import Updates, fetched_bytes, posted_bytes, repetitions
from fedping.experiments.laboratory.settings import Setup
from fedping.protocol.draws import child_keys
from fedping.protocol.model import out_of_range
from fedping.protocol.pipeline import GradientDescent
from fedping.protocol.training import LocalSteps, OneGradient
from fedping.protocol.weights import LARGEST
from fedping.server_jobs.optimize.optimizers import rate_at
from fedping.server_jobs.round import votes_of

MOST_ROWS = 64
"""Maximum examples of a lane at a time; a larger step is several pieces."""

_NUMBERS = 2**18
"""About how many numbers all lanes work on at a time, which fit a processor's cache."""

_VERSIONS = 2**22
"""Maximum numbers of all versions of a call, which are kept until they are asked for."""


class Shape(NamedTuple):
    """What is compiled: one compilation for each, and for each rounded size of a plan.

    Attributes:
        kind: ``numbers``, ``two classes`` or ``classes``, which the model predicts.
        layers: its layers.
        l2: the strength of its penalty.
        precision: its numbers.
        rate: the size of a local step; None for one gradient.
        proximal: μ of FedProx.
        sign: whether only signs are sent.
    """

    kind: str
    layers: tuple[Layer, ...]
    l2: float
    precision: str
    rate: float | None
    proximal: float
    sign: bool


@dataclass(frozen=True)
class Plan:
    """What the lanes do in a round: T pieces one after another in each of L lanes, of at most B examples.

    Attributes:
        rows: the examples of a piece, shape (T, L, B), or NO_EXAMPLE.
        share: one by the number of examples of the piece's step, shape (T, L).
        begin: whether the piece is the first of its client, shape (T, L).
        apply: whether it is the last of its step.
        votes: the client's votes at its last piece, else 0.
    """

    rows: NDArray[np.int32]
    share: FloatArray
    begin: NDArray[np.bool_]
    apply: NDArray[np.bool_]
    votes: FloatArray


def shape_of(setup: Setup, problem: Problem) -> Shape:
    """Return what is to be compiled for a setup whose parts all run inside (:func:`check_inside`)."""
    model, training = problem.model, setup.training
    assert isinstance(model, LinearRegression | LogisticRegression | Network)
    kind = "numbers" if isinstance(model, LinearRegression) else "classes"
    if isinstance(model, LogisticRegression) and model.classes == 2:
        kind = "two classes"
    assert isinstance(training, OneGradient | LocalSteps)
    local = training if isinstance(training, LocalSteps) else None
    return Shape(
        kind,
        model.penalised_layers,
        model.l2,
        model.precision,
        local.rate if local else None,
        local.proximal if local else 0.0,
        training.sign,
    )


def pieces_of_steps(
    training: OneGradient | LocalSteps, keys: NDArray[np.uint64], weight: FloatArray, width: int
) -> list[tuple[NDArray[np.intp], NDArray[np.bool_], FloatArray]]:
    """Return what k clients do, piece by piece: examples (k, width), if it ends a step (k,), and 1 / its examples (k,).

    A client without examples in a piece has no such piece. Examples are drawn as by the NumPy engine.
    """
    everything = np.where(weight > 0, np.arange(weight.shape[1]), NO_EXAMPLE)
    taken: Iterable[NDArray[np.intp] | None]
    if isinstance(training, LocalSteps):
        taken = mini_batches(training, keys, weight)
    else:
        all_ = training.batch is None or training.batch >= weight.shape[1]
        taken = [None if all_ else some(keys, weight, training.batch or 0)]
    found = []
    for each in taken:
        step = everything if each is None else each
        there = step != NO_EXAMPLE
        count = np.maximum(there.sum(axis=1), 1)
        last = there.shape[1] - 1 - there[:, ::-1].argmax(axis=1) if there.shape[1] else np.zeros(len(step), int)
        for low in range(0, step.shape[1], width):
            part = np.full((len(step), width), NO_EXAMPLE)
            part[:, : step.shape[1] - low] = step[:, low : low + width]
            found.append((part, last < low + width, 1.0 / count))
    return found


def planned(pieces: Sequence[tuple[Any, Any, Any]], first: NDArray[np.int64], votes: FloatArray, lanes: int) -> Plan:
    """Return the plan of a round; client k's examples begin at row ``first[k]`` of all."""
    rows, apply, share = (np.stack(parts) for parts in zip(*pieces, strict=True))
    there = (rows != NO_EXAMPLE).any(axis=2)
    lengths = there.sum(axis=0)
    free = [(0, lane) for lane in range(lanes)]
    lane_of, begins = np.zeros(len(first), np.intp), np.zeros(len(first), np.intp)
    for longest in np.argsort(-lengths, kind="stable").tolist():
        if lengths[longest]:
            begin, lane = heapq.heappop(free)
            lane_of[longest], begins[longest] = lane, begin
            heapq.heappush(free, (begin + int(lengths[longest]), lane))
    trips = max(end for end, _ in free)
    piece, client = np.nonzero(there)
    nth = (np.cumsum(there, axis=0) - 1)[piece, client]
    at = (begins[client] + nth, lane_of[client])
    made = Plan(
        np.full((trips, lanes, rows.shape[2]), NO_EXAMPLE, np.int32),
        np.zeros((trips, lanes)),
        np.zeros((trips, lanes), np.bool_),
        np.zeros((trips, lanes), np.bool_),
        np.zeros((trips, lanes)),
    )
    global_rows = np.where(rows == NO_EXAMPLE, NO_EXAMPLE, rows + first[:, None])
    made.rows[at] = global_rows[piece, client]
    made.share[at] = share[piece, client]
    made.begin[at] = nth == 0
    made.apply[at] = apply[piece, client]
    made.votes[at] = np.where(nth == lengths[client] - 1, votes[client], 0.0)
    return made


@cache
def compiled(shape: Shape) -> Callable[..., Any]:
    """Return the compiled rounds of a shape: from weights, examples and plans to the versions and what rounds tell."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    dtype = jnp.dtype(shape.precision)

    def each_loss(weights: Any, x: Any, y: Any) -> Any:
        for number, layer in enumerate(shape.layers):
            x = jnp.matmul(x, layer.matrix(weights), precision="highest")
            if layer.intercept:
                x = x + layer.offsets(weights)
            if number < len(shape.layers) - 1:
                x = jax.nn.relu(x)
        if shape.kind == "numbers":
            return jnp.square(x[..., 0] - y)
        if shape.kind == "two classes":
            return jax.nn.softplus(x[..., 0]) - y * x[..., 0]
        of = jnp.take_along_axis(x, y.astype(jnp.int32)[..., None], axis=-1)[..., 0]
        return jax.nn.logsumexp(x, axis=-1) - of

    def penalty(weights: Any) -> Any:
        return 0.5 * shape.l2 * sum(jnp.sum(jnp.square(layer.matrix(weights))) for layer in shape.layers)

    def objective(weights: Any, x: Any, y: Any, share: Any, ends: Any) -> Any:
        found = jnp.sum(jnp.where(share > 0, each_loss(weights, x, y), 0) * share)
        return found + jnp.where(ends, penalty(weights), 0) if shape.l2 else found

    gradients = jax.vmap(jax.grad(objective))

    def trained(weights: Any, data: Any, plan: Any) -> Any:
        x, y, weight = data
        rows, inverse, begin, apply, votes, trips = plan
        lanes, m = rows.shape[1], len(weights)
        fetched = weights.astype(dtype)

        def piece(t: Any, carry: Any) -> Any:
            moved, uphill, total, largest, last = carry
            at = jnp.maximum(rows[t], 0)
            share = jnp.where(rows[t] >= 0, weight[at] * inverse[t][:, None], 0).astype(dtype)
            moved = jnp.where(begin[t][:, None], 0, moved)
            uphill = uphill + gradients(fetched + moved, x[at], y[at], share, apply[t])
            if shape.rate is None:
                stepped = -uphill
            else:
                stepped = (moved - shape.rate * uphill) / (1 + shape.rate * shape.proximal)
            ends = apply[t][:, None]
            moved, uphill = jnp.where(ends, stepped, moved), jnp.where(ends, 0, uphill)
            sent = (jnp.sign(moved) if shape.sign else moved).astype(jnp.float32)
            done = votes[t][:, None] > 0
            total = total + jnp.sum(jnp.where(done, votes[t][:, None] * sent, 0), axis=0)
            largest = jnp.maximum(largest, jnp.max(jnp.where(done, jnp.abs(sent), 0), initial=0))
            return moved, uphill, total, largest, jnp.where(done[0], sent[0], last)

        none = jnp.zeros((lanes, m), dtype)
        first = (none, none, jnp.zeros(m), jnp.zeros((), jnp.float32), jnp.zeros(m, jnp.float32))
        return lax.fori_loop(0, trips, piece, first)[2:]

    def loss_of(weights: Any, data: Any, rows: Any, counts: Any, trips: Any) -> Any:
        x, y, weight = data
        fetched = weights.astype(dtype)

        def some_rows(t: Any, total: Any) -> Any:
            at = jnp.maximum(rows[t], 0)
            share = jnp.where(rows[t] >= 0, weight[at] * counts[t], 0)
            return total + jnp.sum(jnp.where(share > 0, each_loss(fetched, x[at], y[at]), 0) * share)

        return lax.fori_loop(0, trips, some_rows, jnp.zeros(())), penalty(fetched) if shape.l2 else jnp.zeros(())

    def one(weights: Any, data: Any, per: Any) -> Any:
        plan, seen, rate = per
        loss, penalised = loss_of(weights, data, *seen)
        total, largest, last = trained(weights, data, plan)
        after = weights + rate * total
        return after, (after, loss, penalised, largest, last)

    def rounds(weights: Any, data: Any, per: Any) -> Any:
        return lax.scan(lambda state, each: one(state, data, each), weights, per)[1]

    return jax.jit(rounds)


def rounded_up(count: int) -> int:
    """Return a size that is at most a quarter larger, so that few sizes occur."""
    count = max(count, 1)
    unit = max(1, (1 << (count - 1).bit_length()) // 8)
    return -(-count // unit) * unit


_SEEN = 1024
"""Examples whose losses are computed at a time."""


class _Drawn(NamedTuple):
    """A round as it is drawn: the plan, the examples for the loss and their shares, the rate, and counts."""

    plan: Plan
    seen: NDArray[np.int32]
    counts: FloatArray
    rate: float
    clients: int
    pings: int
    sent: int
    fetches: int
    examples: int


class _Made(NamedTuple):
    weights: FloatArray
    largest: float
    report: RoundReport


class CompiledRounds:
    """The rounds of a server in memory, compiled up to the next evaluation; see :class:`Rounds`.

    Raises:
        InvalidSettings: a part of the setup cannot run inside a compiled round, or JAX is missing.
    """

    def __init__(self, setup: Setup, problem: Problem) -> None:
        check_inside(setup)
        import jax

        self._shape, self._setup, self._problem, self._jax = shape_of(setup, problem), setup, problem, jax
        data = problem.train
        assert isinstance(data, ExampleData)
        learners = problem.learners
        groups = None if data.natural_keys is None else data.natural_keys[learners]
        self._sampler = sampler_for(setup.sampling, data.sizes[learners], problem.seed, groups)
        self._data, self._weights = data, problem.spec.start_array
        self._number, self._ready = 0, 0
        self._made: list[_Made] = []
        self._steps = self._done = 0
        self._sizes = {"trips": 1, "seen": 1}
        batch = getattr(setup.training, "batch", None)
        longest = int(data.sizes.max(initial=1))
        self._width = max(1, min(batch or longest, longest, MOST_ROWS))
        numbers = problem.spec.m + self._width * (data.x.shape[1] + 1)
        drawn = max(1, len(self._sampler.draw(0)))
        self._lanes = 1 << max(0, min(_NUMBERS // numbers, drawn).bit_length() - 1)
        count = rounded_up(len(data.y)) - len(data.y)
        padded = (
            np.concatenate([each, np.zeros((count, *each.shape[1:]), each.dtype)])
            for each in (data.x.astype(self._shape.precision), data.y.astype(self._shape.precision), data.weight)
        )
        with jax.enable_x64(True):
            self._arrays = tuple(map(jax.numpy.asarray, padded))

    @property
    def weights(self) -> FloatArray:
        """See :attr:`Rounds.weights`."""
        return self._weights

    @property
    def checkpoint(self) -> Part | None:
        """The rounds themselves."""
        return self

    def snapshot(self) -> Arrays:
        """Return the state to resume from: the number of rounds, and the weights."""
        return {"number": np.array(self._number), "steps": np.array(self._done), "weights": self._weights}

    def restore(self, saved: Arrays) -> None:
        """Resume from a snapshot."""
        self._number, self._done, self._weights = int(saved["number"]), int(saved["steps"]), saved["weights"]
        self._made = []

    def start_weights(self, versions: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Return the versions."""
        return versions

    def measured(self) -> Mapping[str, Mapping[str, float]]:
        """Return no metrics."""
        return {}

    def run(self, sent: Iterable[Updates]) -> RoundReport:
        """See :meth:`Rounds.run`; clients train inside, so that ``sent`` is not used.

        Raises:
            Diverged: an update or a weight is too large.
        """
        if not self._made:
            self._steps = self._done
            self._made = self._computed()
        weights, largest, report = self._made.pop(0)
        self._number += 1
        if not largest <= LARGEST:
            raise Diverged(
                "training on the clients has diverged: an update is larger than 1e30 or no longer finite; lower the "
                "rate, or standardise the features"
            )
        if report.stepped:
            self._done += 1
            if beyond := out_of_range(weights, self._problem.spec):
                raise diverged(beyond)
            self._weights = weights
        return report

    def _computed(self) -> list[_Made]:
        """Return the versions and the reports of the rounds up to the next evaluation."""
        every = self._setup.evaluation.every
        most = max(1, min(every, _VERSIONS // self._problem.spec.m))
        end = min(self._setup.most_rounds, (self._number // every + 1) * every, self._number + most)
        drawn = [self._drawn(number) for number in range(self._number, end)]
        for name, size in (
            ("trips", max(len(each.plan.rows) for each in drawn)),
            ("seen", max(len(each.seen) for each in drawn)),
        ):
            self._sizes[name] = max(self._sizes[name], rounded_up(size))
        per = tuple(np.stack(column) for column in zip(*map(self._padded, drawn), strict=True))
        if len(drawn) < most:  # rounds in which nobody trains, so that the number of rounds is always the same
            per = tuple(
                np.concatenate([each, np.zeros((most - len(drawn), *each.shape[1:]), each.dtype)]) for each in per
            )
        *plan, rows, counts, blocks, rate = per
        with self._jax.enable_x64(True):
            made = compiled(self._shape)(self._weights, self._arrays, (tuple(plan), (rows, counts, blocks), rate))
        versions, losses, penalties, largest, last = map(np.asarray, made)
        return [
            _Made(
                versions[at], float(largest[at]), self._report(each, losses[at], penalties[at], last[at], versions, at)
            )
            for at, each in enumerate(drawn)
        ]

    def _report(
        self, drawn: _Drawn, loss: float, penalty: float, last: NDArray[np.float32], versions: FloatArray, at: int
    ) -> RoundReport:
        one, m = np.zeros(1, np.int64), self._problem.spec.m
        total = float(loss + penalty * drawn.examples)
        told = np.array([total / max(drawn.examples, 1)])
        posted = posted_bytes(
            Updates(one, one, one + 1, last[None], told, np.array([drawn.examples // max(drawn.pings, 1)]))
        )
        fetched = self._weights if at == 0 else versions[at - 1]
        return RoundReport(
            clients=drawn.clients,
            pings=drawn.pings,
            loss=total / drawn.examples if drawn.examples else float("nan"),
            stepped=drawn.rate > 0,
            update_bytes=4 * m * drawn.pings,
            posted_bytes=posted * drawn.sent,
            fetched_bytes=drawn.fetches * fetched_bytes(self._problem.spec.document_names, fetched),
        )

    def _drawn(self, number: int) -> _Drawn:
        """Return who takes part in a round and what they do, by the draws of the NumPy engine."""
        problem, data, training = self._problem, self._data, self._setup.training
        assert isinstance(training, OneGradient | LocalSteps)
        clients: Clients = problem.learners[self._sampler.draw(number)]
        repeats, pings = repetitions(clients)
        keys = child_keys(problem.keys(number)[clients], repeats)
        sizes = data.sizes[clients]
        votes = np.zeros(len(clients))
        used = sizes > 0
        votes[used] = votes_of(
            self._setup.pipeline, pings=pings[used], examples=sizes[used], ages=np.zeros(int(used.sum()), np.int64)
        )
        first, place = data.offsets[:-1][clients], np.arange(int(sizes.max(initial=0)))
        there = place < sizes[:, None]
        rows = np.where(there, first[:, None] + place, 0)
        weight = np.where(there, data.weight[rows], 0.0)
        pieces = pieces_of_steps(training, keys, weight, self._width)
        plan = planned(pieces, first, votes, self._lanes)
        seen = rows[there]
        counts = np.repeat(sizes / np.maximum(np.count_nonzero(weight, axis=1), 1), sizes)
        blocks = -(-len(seen) // _SEEN)
        held = np.full(blocks * _SEEN, NO_EXAMPLE, np.int32)
        held[: len(seen)] = seen
        shared = np.zeros(blocks * _SEEN)
        shared[: len(seen)] = counts
        took = int((used & (repeats == 0)).sum())
        stepped = took >= max(self._setup.pipeline.min_clients, 1)
        self._steps += stepped
        optimizer = self._setup.pipeline.optimizer
        assert isinstance(optimizer, GradientDescent)
        rate = rate_at(optimizer, self._steps) / votes.sum() if stepped else 0.0
        counted = int(sizes.sum())
        return _Drawn(
            plan,
            held.reshape(blocks, _SEEN),
            shared.reshape(blocks, _SEEN),
            rate,
            took,
            int(used.sum()),
            len(clients),
            int((repeats == 0).sum()),
            counted,
        )

    def _padded(self, drawn: _Drawn) -> tuple[NDArray[Any], ...]:
        def longer(values: NDArray[Any], size: int) -> NDArray[Any]:
            return np.concatenate([values, np.zeros((size - len(values), *values.shape[1:]), values.dtype)])

        plan, trips, seen = drawn.plan, self._sizes["trips"], self._sizes["seen"]
        columns = (plan.rows, plan.share, plan.begin, plan.apply, plan.votes)
        return (
            *(longer(each, trips) for each in columns),
            np.array(len(plan.rows)),
            longer(drawn.seen, seen),
            longer(drawn.counts, seen),
            np.array(len(drawn.seen)),
            np.array(drawn.rate),
        )
