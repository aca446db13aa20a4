"""The error of estimating the mean of an iteration's pings by a subsample (thesis 7.5, figures 25, 26 and 27)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedping.analysis.rounds.inputs import TrainingPings, still_landed, training_pings
from fedping.model_store.store import ModelStore
from fedping.protocol.location import Place

SIZE = 2_000
"""Number of pings in a subsample, as in the thesis."""

DRAWS = 50
"""Number of subsamples per iteration, as in the thesis."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SubsampleErrors:
    """The distances between subsamples of an iteration and all its pings, shape (draws,) each.

    Attributes:
        update: L1 distance of the mean updates: loss per unit of weight, summed over the m weights.
        signs: L1 distance of their signs: 2 for every opposite sign, 1 if only one of the two is 0.
        loss: absolute difference of the mean losses, in points of the score.
    """

    update: Floats
    signs: Floats
    loss: Floats


@dataclass(frozen=True, eq=False)
class SubsampleQuality:
    """The errors of subsamples over the iterations of a line.

    Attributes:
        size: pings in a subsample.
        iterations: the iterations that have more pings than a subsample, shape (n,).
        pings: the number of pings in each of these iterations, shape (n,).
        update, signs, loss: the errors (see :class:`SubsampleErrors`), shape (n, draws).
        skipped: numbers of pings in the other iterations, which have too few pings to draw from.
    """

    size: int
    iterations: tuple[int, ...]
    pings: tuple[int, ...]
    update: Floats
    signs: Floats
    loss: Floats
    skipped: dict[int, int]


def subsample_errors(
    pings: TrainingPings,
    rng: np.random.Generator,
    *,
    size: int = SIZE,
    draws: int = DRAWS,
    replacement: bool = False,
) -> SubsampleErrors:
    """Draw subsamples of an iteration's pings, and compare each with all pings.

    Updates are averaged by the line's votes (one per client, ping or example), losses with one vote per example. Drawn
    without replacement, as in the thesis, a subsample with a large share of the pings is close to all pings for this
    reason alone. Drawn with replacement, the pings represent the larger population behind them.

    Args:
        pings: the pings that the round used.
        rng: the generator of the draws.
        size: pings in a subsample.
        draws: the number of subsamples.
        replacement: whether a ping may be drawn several times.

    Raises:
        ValueError: there are fewer pings than a subsample needs.
    """
    drawn = np.stack([rng.choice(len(pings), size, replace=replacement, shuffle=False) for _ in range(draws)])
    everything = np.arange(len(pings))[None]
    update, estimates = mean_update(pings, everything)[0], mean_update(pings, drawn)
    losses = _mean_loss(pings, drawn) - _mean_loss(pings, everything)
    return SubsampleErrors(
        update=np.abs(estimates - update).sum(axis=1),
        signs=np.abs(np.sign(estimates) - np.sign(update)).sum(axis=1),
        loss=np.abs(losses),
    )


def subsample_quality(
    store: ModelStore,
    landing: Place,
    study: str,
    line: str,
    *,
    size: int = SIZE,
    draws: int = DRAWS,
    seed: int = 0,
    replacement: bool = False,
) -> SubsampleQuality:
    """Draw subsamples of every iteration of a line, from the pings that its rounds used.

    An iteration's draws depend only on the seed and the iteration's number. One iteration's updates are in memory at a
    time.

    Raises:
        StoreError: there is no such study or line, or a version cannot be read.
        FedpingError: a file that a round read is missing or damaged.
    """
    errors_by_iteration, skipped = [], {}
    for pings in _iterations(store, landing, study, line):
        if len(pings) <= size:
            skipped[pings.iteration] = len(pings)
            continue
        rng = np.random.default_rng([seed, pings.iteration])
        errors_by_iteration.append(
            (pings.iteration, len(pings), subsample_errors(pings, rng, size=size, draws=draws, replacement=replacement))
        )
    errors = [one for _, _, one in errors_by_iteration]
    return SubsampleQuality(
        size=size,
        iterations=tuple(iteration for iteration, _, _ in errors_by_iteration),
        pings=tuple(count for _, count, _ in errors_by_iteration),
        update=_stacked([one.update for one in errors], draws),
        signs=_stacked([one.signs for one in errors], draws),
        loss=_stacked([one.loss for one in errors], draws),
        skipped=skipped,
    )


def vote_weights(pings: TrainingPings, drawn: NDArray[np.intp]) -> Floats:
    """Return the weight of each drawn ping in its subsample's mean update, shape (draws, size); each row sums to 1.

    With one vote per client, a ping's weight is proportional to 1 / n, where n is its client's number of pings in the
    subsample. If the votes of a client are bounded by b, a ping counts at most b / n votes.
    """
    weights = pings.examples[drawn].astype(np.float64) if pings.vote == "examples" else np.ones(drawn.shape)
    most = 1 if pings.vote == "client" else pings.most_votes
    if most is not None:
        for row, clients in zip(weights, pings.clients[drawn], strict=True):
            np.minimum(row, most / np.bincount(clients)[clients], out=row)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def mean_update(pings: TrainingPings, drawn: NDArray[np.intp]) -> Floats:
    """Return the mean update of each subsample, shape (draws, m); ``drawn`` are positions, shape (draws, size)."""
    weights = vote_weights(pings, drawn)
    return np.stack([row @ pings.updates[which] for row, which in zip(weights, drawn, strict=True)])


def _mean_loss(pings: TrainingPings, drawn: NDArray[np.intp]) -> Floats:
    """Return the mean loss of each subsample over its examples, shape (draws,)."""
    examples = pings.examples[drawn]
    return np.asarray((pings.losses[drawn] * examples).sum(axis=1) / examples.sum(axis=1))


def _iterations(store: ModelStore, landing: Place, study: str, line: str) -> Iterator[TrainingPings]:
    the_study = store.study(study)
    for version in still_landed(store, study, line):
        yield training_pings(landing, the_study, version)


def _stacked(rows: list[Floats], draws: int) -> Floats:
    return np.stack(rows) if rows else np.zeros((0, draws))
