"""Computes clients' updates from a line's training, a model, fetched weights and examples.

The laboratory, a fleet and a simulated study all get their updates from :func:`updates_of_fleet`, which processes many
clients in blocks of bounded memory; :func:`cohort_updates` processes one block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.algorithm import (
    NO_STATE,
    Diverged,
    GivesLosses,
    MaySendNothing,
    Personalizes,
    State,
    bare,
)
from fedping.client_sim.learning.algorithms import algorithm_for, algorithm_name
from fedping.client_sim.learning.batch import Batch, ClientData, Clients, FloatArray, Floats, counts, naming
from fedping.client_sim.learning.blas import one_thread
from fedping.client_sim.learning.model import (
    Factored,
    Model,
    Projected,
    Projections,
    has_modes,
    has_precision,
    precision,
)
from fedping.client_sim.learning.states import Kept
from fedping.client_sim.learning.submodel import Part
from fedping.protocol.draws import Keys
from fedping.protocol.errors import FedpingError
from fedping.protocol.link_ends import Factors, Projection
from fedping.protocol.local_optimizers import LocalDescent
from fedping.protocol.training import LocalSteps, OneGradient, Training

MOST_BYTES = 8 * 2**20
"""Default size of a block in bytes. Measured: NumPy's overhead is negligible, and a block fits a processor's cache."""


class CohortUpdates(NamedTuple):
    """The results of k clients.

    Attributes:
        updates: directions that the server adds, shape (k, m).
        losses: losses at the fetched weights, on all of a client's examples, shape (k,); NaN if not requested.
        state: the clients' new state, arrays of shape (k, ...).
    """

    updates: Floats
    losses: FloatArray
    state: State


class UpdateBlock(NamedTuple):
    """The updates of some of the requested clients.

    Attributes:
        at: the clients' positions in ``clients``, shape (b,).
        updates: directions that the server adds, shape (b, m).
        losses: losses at the fetched weights, shape (b,); NaN if not requested.
        sends: whether each client sends its update, shape (b,); None if all do.
    """

    at: NDArray[np.intp]
    updates: Floats
    losses: FloatArray
    sends: NDArray[np.bool_] | None = None

    def sent(self) -> UpdateBlock:
        """Return the updates of only the clients that send them."""
        if self.sends is None:
            return self
        return UpdateBlock(self.at[self.sends], self.updates[self.sends], self.losses[self.sends])


def cohort_updates(
    model: Model[Any],
    training: Training,
    weights: FloatArray,
    batch: Batch,
    keys: Keys,
    state: State = NO_STATE,
    *,
    version: int = 0,
    now: FloatArray | None = None,
    projection: Projection | Factors | None = None,
    losses: bool = True,
) -> CohortUpdates:
    """Return the updates and losses of k clients.

    Up to rounding, each client's update depends only on its own examples, key and state.

    Args:
        model: the model to train.
        training: the clients' training.
        weights: the fetched weights, shape (m,); or each client's initial weights, shape (k, m).
        batch: all the examples of the clients.
        keys: a random key for each client, shape (k,).
        state: the clients' state, arrays of shape (k, ...).
        version: the number of the fetched version.
        now: each client's simulated time of invitation, in seconds, shape (k,); None without a clock.
        projection: for structured training, the projection of the clients' gradients, or the factors that they train.
        losses: whether to compute losses.

    Returns:
        Updates, losses and state; a client without examples has an update of zeros and loss 0.

    Raises:
        Diverged: an update is not finite.
        FedpingError: the examples or the updates don't fit the model, or a structured training has no projection.
    """
    weights = np.asarray(weights, np.float64)
    whole, model, algorithm = model, bare(model), algorithm_for(training, version, now)
    begin, factors = weights, None
    if isinstance(projection, Factors):
        factors = projection
        model, begin = Factored(model, weights, factors), factors.start
    elif projection is not None:
        model = Projected(model, projection)
    elif isinstance(training, LocalSteps) and training.structured:
        raise FedpingError(
            "the training has structured = true, which trains within what an upload link sends, and there is none; set "
            "upload to the link 'mask' or 'low-rank', or leave out 'structured'"
        )
    found = np.full(len(batch), np.nan)
    with one_thread(), np.errstate(over="ignore", invalid="ignore"):
        if losses and isinstance(algorithm, GivesLosses):
            updates, state, found = algorithm.update_and_losses(model, begin, batch, keys, state)
        else:
            updates, state = algorithm.update(model, begin, batch, keys, state)
            if losses:
                found = whole.losses(weights, batch)
        if factors is not None:
            updates = factors.movement(begin.astype(updates.dtype, copy=False) + updates)
    _refuse_misshapen(updates, (len(batch), weights.shape[-1]), training)
    _refuse_infinite(updates, training)
    if isinstance(training, OneGradient | LocalSteps) and training.sign:
        updates = np.sign(updates)
    return CohortUpdates(updates, found, state)


def personal_losses(
    model: Model[Any],
    training: Training,
    weights: FloatArray,
    batch: Batch,
    state: State,
    version: int = 0,
    *,
    held_out: Batch | None = None,
) -> FloatArray:
    """Return each client's loss with its model for predictions, its own model if it has one, shape (k,).

    The loss is computed on ``held_out``, examples that the clients never learn from; a client without any reports the
    fetched weights' loss on its training examples. If ``held_out`` is None, losses are computed on ``batch``, which is
    new to the clients. The other arguments are those of :func:`cohort_updates`, before it runs.
    """
    algorithm = algorithm_for(training, version)
    if not isinstance(algorithm, Personalizes):
        return model.losses(weights, batch)
    measured = batch if held_out is None else held_out
    found: FloatArray = np.zeros(len(batch))
    there = np.full(len(batch), True) if held_out is None else counts(held_out) > 0
    if there.any():
        own: Any = algorithm.personal_weights(model, weights, batch, state)
        found = algorithm.personal_model(model).losses(own, measured)
    return found if there.all() else np.where(there, found, model.losses(weights, batch))


def draws(training: Training, model: Model[Any] | None = None) -> bool:
    """Return whether clients may draw random numbers in this training of a model.

    Built-in trainings do so only for mini-batches, and for a client's own part.
    """
    if not isinstance(training, OneGradient | LocalSteps) or has_modes(model):
        return True
    return training.batch is not None or training.personal is not None


def updates_of_fleet(
    model: Model[Any],
    training: Training,
    weights: FloatArray,
    data: ClientData[Any],
    clients: Clients,
    keys: Keys,
    most_bytes: int = MOST_BYTES,
    threads: int = 1,
    *,
    version: int = 0,
    now: FloatArray | None = None,
    kept: Kept | None = None,
    projections: Projections | None = None,
    losses: bool = True,
) -> Iterator[UpdateBlock]:
    """Yield the updates of clients, in blocks with similar numbers of examples, each client exactly once.

    Args:
        model: the model to train.
        training: the clients' training.
        weights: the fetched weights, shape (m,); or the initial weights of each of ``clients``, shape (k, m).
        data: the data of the whole fleet.
        clients: positions in the data, shape (k,); a client that occurs twice trains twice.
        keys: a random key for each of ``clients``, shape (k,).
        most_bytes: approximate memory limit of a block, including examples and local weights; a block has at least one
            client.
        threads: number of blocks processed at a time, each up to ``most_bytes``.
        version: the number of the fetched version.
        now: as for :func:`cohort_updates`, for each of ``clients``.
        kept: the clients' state, if the algorithm has any. The state of a block is saved before the block is yielded:
            if the process is stopped, a client may lose an update, but never sends an update twice.
        projections: for structured training, by positions in ``clients``
            (:func:`fedping.client_sim.upload.projections`).
        losses: whether to compute losses.

    Raises:
        FedpingError: the reasons of :func:`cohort_updates`; or the algorithm has state but there is no store for it.
    """
    algorithm = algorithm_for(training, version)
    first = algorithm.init_state(bare(model))
    if first and kept is None:
        raise FedpingError(f"the training '{algorithm_name(training)}' keeps state with its clients, and has no place")
    clients = np.asarray(clients, np.intp)
    sizes = data.sizes[clients]
    if not len(clients):
        return
    longest = np.argsort(sizes, kind="stable")[-1:]
    per_example = data.batch(clients[longest]).nbytes / max(int(sizes[longest[0]]), 1)
    memory = _Memory.of(bare(model), training, weights.shape[-1], per_example, first)

    def work(at: NDArray[np.intp]) -> tuple[UpdateBlock, State]:
        state = kept.states.load(kept.clients[at]) if first and kept else NO_STATE
        if not isinstance(algorithm, MaySendNothing):
            done = trained(at, state)
            return UpdateBlock(at, done.updates, done.losses), done.state
        # Clients that send are trained first and separately, so that updates that aren't sent needn't be computed.
        sends = algorithm.sends(keys[at], state)
        groups = [group for group in (np.flatnonzero(sends), np.flatnonzero(~sends)) if len(group)]
        each = [trained(at[group], {name: value[group] for name, value in state.items()}) for group in groups]
        order = np.concatenate(groups)
        updates, found = (np.concatenate(parts) for parts in zip(*(done[:2] for done in each), strict=True))
        after = {name: np.concatenate([done.state[name] for done in each]) for name in each[0].state}
        return UpdateBlock(at[order], updates, found, sends[order]), after

    def trained(at: NDArray[np.intp], state: State) -> CohortUpdates:
        with naming(clients[at]):
            return cohort_updates(
                model,
                training,
                weights if weights.ndim == 1 else weights[at],
                data.batch(clients[at]),
                keys[at],
                state,
                version=version,
                now=None if now is None else now[at],
                projection=projections(at) if projections else None,
                losses=losses,
            )

    # Once here rather than per block: changing the number of threads takes as long as a block.
    with one_thread():
        for group in _one_training_each(kept.clients) if first and kept else [np.arange(len(clients))]:
            order = group[np.argsort(sizes[group], kind="stable")]
            parts = _blocks(sizes, order, memory, most_bytes)
            for block, state in map(work, parts) if threads == 1 else _side_by_side(work, parts, threads):
                if first and kept:
                    kept.states.save(kept.clients[block.at], state)
                yield block


def _one_training_each(clients: NDArray[np.integer[Any]]) -> Iterator[NDArray[np.intp]]:
    """Yield the positions of all clients' first trainings, then of their second trainings, and so on."""
    order = np.argsort(clients, kind="stable")
    ordered = clients[order]
    number = np.arange(len(ordered)) - np.searchsorted(ordered, ordered, side="left")
    for training in range(int(number.max(initial=-1)) + 1):
        yield np.sort(order[number == training])


def _side_by_side(
    work: Callable[[NDArray[np.intp]], tuple[UpdateBlock, State]], parts: Iterator[NDArray[np.intp]], threads: int
) -> Iterator[tuple[UpdateBlock, State]]:
    """Yield the blocks in order, processing several at a time; the next one starts when the caller takes one."""
    with ThreadPoolExecutor(threads) as pool:
        waiting = deque(pool.submit(work, at) for at in islice(parts, threads))
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(work, at) for at in islice(parts, 1))
            yield done


class _Memory(NamedTuple):
    """Approximate bytes per client and per example."""

    client: float
    example: float

    @classmethod
    def of(cls, model: Model[Any], training: Training, m: int, per_example: float, first: State) -> _Memory:
        if isinstance(model, Part):
            m = model.whole.m
        arrays = 1 if isinstance(training, OneGradient) else 4
        if isinstance(training, LocalSteps) and not isinstance(training.optimizer, LocalDescent):
            arrays += 5  # the optimizer's means before and after a step, and the step
        if isinstance(training, LocalSteps) and training.structured:
            arrays += 2  # the projected gradients, and the mask of kept weights
        held = model.floats_per_example if has_precision(model) else 4
        itemsize = precision(model).itemsize
        if getattr(training, "personal", None) is not None:
            arrays *= 2
        state = 2 * sum(np.asarray(value).nbytes for value in first.values())
        return cls(arrays * m * itemsize + state, (2 if draws(training) else 1) * per_example + held * itemsize)


def _blocks(
    sizes: NDArray[np.int64], order: NDArray[np.intp], memory: _Memory, most_bytes: int
) -> Iterator[NDArray[np.intp]]:
    """Yield blocks of positions in ascending order of size; sizes in a block differ by at most a factor of two.

    So at most half of a rectangle is padding.
    """
    ascending = sizes[order]
    first = 0
    while first < len(order):
        end = int(np.searchsorted(ascending, 2 * max(ascending[first], 1), side="right"))
        most = int(most_bytes / (memory.client + ascending[first] * memory.example)) + 1
        # Bytes of a block that ends at each position: all its clients are padded to the last one's size.
        width = ascending[first : min(end, first + most)]
        bytes_ = np.arange(1, len(width) + 1) * (memory.client + width * memory.example)
        count = max(1, int(np.searchsorted(bytes_, most_bytes, side="right")))
        yield order[first : first + count]
        first += count


def _refuse_misshapen(updates: Floats, shape: tuple[int, int], training: Training) -> None:
    if np.shape(updates) != shape:
        raise FedpingError(
            f"the training '{algorithm_name(training)}' made updates of shape {np.shape(updates)} for {shape[0]} "
            f"clients and {shape[1]} weights; return one row for each client, of a number for each weight"
        )


def _refuse_infinite(updates: Floats, training: Training) -> None:
    # A sum of squares is quick, but it may overflow although all values are finite.
    if updates.size and not np.isfinite(np.vdot(updates, updates)) and not np.isfinite(updates).all():
        rate = f"its rate of {training.rate:g} is too large; lower it, " if isinstance(training, LocalSteps) else ""
        raise Diverged(
            f"training on the clients with '{algorithm_name(training)}' has diverged: an update is no longer finite; "
            f"{rate or 'lower the rate, '}or standardise the features"
        )
