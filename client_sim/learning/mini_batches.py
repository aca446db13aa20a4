"""Draws the examples that each client uses at each step, by the client's own key.

A client's draws depend only on its key and its number of examples, not on other clients in the rectangle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import NO_EXAMPLE, Batch, FloatArray, counts, with_keys_of_step
from fedping.protocol.draws import Keys, bits, child_keys
from fedping.protocol.training import LocalSteps

Positions = NDArray[np.intp]

B = TypeVar("B", bound=Batch)


def shuffled(keys: Keys, weight: FloatArray) -> Positions:
    """Return each client's examples in random order, padding (weight 0) last, shape (k, n)."""
    drawn = bits(keys, weight.shape[1]) >> np.uint64(1)
    drawn[weight == 0] = np.iinfo(np.uint64).max
    return np.argsort(drawn, axis=1, kind="stable")


def some(keys: Keys, weight: FloatArray, size: int) -> Positions:
    """Return ``size`` examples of each client, drawn without replacement, or all if it has fewer, shape (k, size)."""
    order = shuffled(child_keys(keys, 0), weight)
    return _taken(order, np.zeros(len(keys), np.int64), np.count_nonzero(weight, axis=1), size)


def divided(batch: B, keys: Keys, share: float) -> tuple[B, B]:
    """Return a share of each client's examples, drawn by its key, and the others (:func:`share_of`)."""
    order, sizes = shuffled(keys, batch.weight), counts(batch).astype(np.int64)
    first = share_of(sizes, share)
    return (
        batch.only(_stretch(order, np.zeros_like(first), first)),
        batch.only(_stretch(order, first, sizes - first)),
    )


def share_of(sizes: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Return the number of examples in a share of each client's examples, shape (k,).

    The number is rounded, but leaves at least one example in either part; a client's only example is outside the share.
    """
    rounded = np.floor(share * sizes + 0.5).astype(np.int64)
    found: NDArray[np.int64] = np.minimum(np.maximum(rounded, 1), np.maximum(sizes - 1, 0))
    return found


def _stretch(order: Positions, first: NDArray[np.int64], sizes: NDArray[np.int64]) -> Positions:
    """Return ``sizes`` of each client's examples, beginning at ``first``, padded with NO_EXAMPLE."""
    place = np.arange(int(sizes.max(initial=0)))
    taken = np.take_along_axis(order, np.minimum(first[:, None] + place, max(order.shape[1] - 1, 0)), axis=1)
    return np.where(place < sizes[:, None], taken, NO_EXAMPLE)


def steps_of(training: LocalSteps, sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return each client's number of steps, given its number of examples, shape (k,); 0 without examples."""
    epoch = _batches(training.batch, sizes)
    steps = epoch * training.epochs if training.epochs is not None else np.full(len(sizes), training.steps)
    return np.where(sizes > 0, steps, 0)


def mini_batches(training: LocalSteps, keys: Keys, weight: FloatArray) -> Iterator[Positions | None]:
    """Yield the examples of each step, shape (k, b), padded with NO_EXAMPLE; None means all examples of all clients.

    An epoch visits a client's examples in its own order; its last batch may be smaller, and the next epoch follows
    immediately. A client that has taken all its steps has no more examples.
    """
    sizes = np.count_nonzero(weight, axis=1)
    steps = steps_of(training, sizes)
    last = int(steps.max(initial=0))
    if training.batch is None or training.batch >= sizes.max(initial=0):
        yield from (None for _ in range(last))  # an epoch is one batch: all clients take the same number of steps
        return
    epoch = np.maximum(_batches(training.batch, sizes), 1)
    order = np.empty(weight.shape, np.intp)
    for step in range(last):
        begins = np.flatnonzero((step % epoch == 0) & (step < steps))
        if len(begins):
            order[begins] = shuffled(child_keys(keys[begins], step // epoch[begins]), weight[begins])
        there = np.where(step < steps, sizes, 0)
        yield _taken(order, step % epoch * training.batch, there, training.batch)


def local_steps(
    batch: B, keys: Keys, *, steps: int | None = None, epochs: int | None = None, size: int | None = None
) -> Iterator[tuple[B, NDArray[np.bool_]]]:
    """Yield the batch of k clients for each of their local steps, drawn as in built-in local training.

    Args:
        batch: all the examples of the clients.
        keys: a random key for each client, shape (k,).
        steps: the number of steps of every client with examples; give either this or ``epochs``.
        epochs: number of passes over a client's examples; a client with more examples takes more steps.
        size: the number of examples of a step; all if None.

    Yields:
        The examples of the step, and whether each client takes it, shape (k,); other clients have no examples in it.

    Raises:
        UnfitTable: both or none of steps and epochs are given.
    """
    training = LocalSteps(rate=1.0, steps=steps, epochs=epochs, batch=size)
    for step, taken in enumerate(mini_batches(training, keys, batch.weight)):
        part = batch if taken is None else batch.only(taken)
        yield with_keys_of_step(part, keys, step), counts(part) > 0


def _batches(size: int | None, sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the number of batches per epoch."""
    return np.ceil(sizes / size).astype(np.int64) if size is not None else (sizes > 0).astype(np.int64)


def _taken(order: Positions, first: NDArray[np.integer], sizes: NDArray[np.integer], size: int) -> Positions:
    """Return the examples at positions first, first + 1, ... of each client's order, as far as they exist."""
    width = int(np.clip(sizes - first, 0, size).max(initial=0))
    places = first[:, None] + np.arange(width)
    taken = np.take_along_axis(order, np.minimum(places, max(order.shape[1] - 1, 0)), axis=1)
    return np.where(places < sizes[:, None], taken, NO_EXAMPLE)
