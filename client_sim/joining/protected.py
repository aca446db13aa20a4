"""A model whose sums over a table's rows are protected: each row's part is clipped, and noise is added.

Training follows the gradients of a model, or the steps of k-means. Here each gradient or step is one protected sum over
all rows (:mod:`fedping.protocol.row_privacy`), so that further computations reveal nothing more about a row. Each row
is treated as a client with one example, because every model computes such a client's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Examples, FloatArray, Floats
from fedping.client_sim.learning.model import Model
from fedping.client_sim.learning.models.k_means import KMeans
from fedping.client_sim.learning.models.layer import Penalised
from fedping.client_sim.learning.models.linear_regression import LinearRegression
from fedping.client_sim.learning.networks.tree_model import TreeModel
from fedping.protocol.discrete_gaussian import Bits
from fedping.protocol.ping import MOST_CLASSES
from fedping.protocol.row_privacy import LOSS, UNIT, noisy, shortened, whole_numbers

MOST_BYTES = 2**25
"""Approximate bytes of the rows' parts that are computed at a time."""

COUNT = 0.5
"""Share of a row's norm for its membership in a cluster; the rest is for its distance."""

FARTHEST = 2.0
"""Maximum counted squared distance of a row from its centroid, per feature; scaled features have variance 1."""

LARGEST_ERROR = 4.0
"""Maximum counted loss of a row in a regression on a scaled target."""

Parts = Callable[[FloatArray, Examples], FloatArray]
"""Function from weights, shape (m,), and n rows as clients with one example to the rows' parts, shape (n, d)."""


class Uncharged(AssertionError):
    """A sum that was not charged to the ledger; a defect of the program."""


class ProtectedRows:
    """A :class:`fedping.client_sim.learning.model.Model` of one client, whose losses and gradients are protected.

    A gradient is the sum of the rows' gradients, each clipped to norm 1, with noise, divided by their number, plus the
    model's own penalty, which doesn't depend on rows. Losses are bounded. A local step of k-means has one sum: of the
    rows' clipped distances from their centroids, and of each centroid's number of rows.

    Args:
        model: a model of tables, without its own guard of rows.
        z: noise multiplier of each sum.
        steps: whether k-means takes its own steps, as in local training, instead of gradients.
        persons: person of each row, numbered from 0, if persons are protected instead of rows.
        largest_loss: maximum counted loss of a row; None for the model's default.
        largest_weight: the largest weight of a row, as agreed by all institutions: a row's gradient is clipped first
            and weighted then. Losses are unweighted.

    Attributes:
        cells: confusion counts of the last evaluation, which sum to the number of rows; None for a model without
            classes, or with too many.
    """

    def __init__(
        self,
        model: Model[Any],
        z: float,
        *,
        steps: bool = True,
        persons: NDArray[np.intp] | None = None,
        largest_loss: float | None = None,
        largest_weight: float = 1.0,
    ) -> None:
        self._whole = model
        unpenalised: Any = model
        self._rowwise: Any = replace(unpenalised, l2=0.0) if isinstance(model, Penalised) else model
        self._z, self._persons, self._most = z, persons, largest_loss
        self._noisy, self._largest_weight = np.zeros(0, np.int64), largest_weight
        self._clusters = model if steps and isinstance(model, KMeans) else None
        self._bits: Bits | None = None
        self._left = 0
        self.cells: tuple[int, ...] | None = None

    @property
    def weight_names(self) -> Sequence[str]:
        """See :attr:`Model.weight_names`."""
        return self._whole.weight_names

    @property
    def start(self) -> FloatArray:
        """See :attr:`Model.start`."""
        return self._whole.start

    def begin(self, bits: Bits, sums: int) -> None:
        """Begin a release that the ledger was charged for.

        Args:
            bits: random bytes of the noise.
            sums: maximum number of sums in the release.
        """
        self._bits, self._left, self.cells = bits, sums, None

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`Model.predict`. Predictions are only for the institution itself, and must not be sent."""
        return self._whole.predict(weights, batch)

    def gradients(self, weights: FloatArray, batch: Examples) -> Floats:
        """See :meth:`Model.gradients`."""
        return self.losses_and_gradients(weights, batch)[1]

    def losses_and_gradients(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """See :class:`fedping.client_sim.learning.model.GivesBoth`; both come from one sum."""
        if self._clusters is not None:
            return self._step(self._clusters, weights, batch)
        length = float(np.hypot(1.0, LOSS))

        def parts(own: FloatArray, rows: Examples) -> FloatArray:
            gradients = np.asarray(self._rowwise.gradients(own, _weighted_1(rows)), np.float64)
            if self._persons is None:  # clip before weighting, or a long gradient would lose its weight
                gradients = shortened(gradients)
            gradients = gradients * (rows.weight / self._largest_weight)
            return np.hstack([shortened(self._of_units(gradients, rows)), LOSS * self._centred(own, rows)]) / length

        own, units = _flat(weights), self._units(batch)
        total = length * self._sum(own, batch, parts, len(own) + 1)
        losses = self._bounded(total[-1] / (LOSS * units))
        gradients = self._largest_weight * total[None, :-1] / units
        if isinstance(self._whole, Penalised):
            penalty, uphill = self._whole.penalty(own, batch)
            losses, gradients = losses + penalty, gradients + uphill
        return losses, gradients

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`Model.losses`; the confusion counts of the same sum are then in :attr:`cells`."""
        own, classes, length = _flat(weights), self._classes, float(np.sqrt(0.5))

        def parts(own: FloatArray, rows: Examples) -> FloatArray:
            centred = self._centred(own, rows)
            if not classes:
                return centred
            places = np.eye(classes**2)[self._places(own, rows, classes)]
            return length * np.hstack([centred, self._of_units(places, rows)])

        total, units = self._sum(own, batch, parts, 1 + classes**2) / (length if classes else 1.0), self._units(batch)
        if classes:
            self.cells = _counts(total[1:] * self._mean_rows, batch.weight.shape[1])
        losses = self._bounded(total[0] / units)
        return losses + self._whole.penalty(own, batch)[0] if isinstance(self._whole, Penalised) else losses

    def _step(self, model: KMeans, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """Return the loss and the opposite of Lloyd's step; a cluster whose count may be only noise doesn't move."""
        own, units = _flat(weights), self._units(batch)
        clusters, features = model.clusters, model.features
        centroids = own[: clusters * features].reshape(clusters, features)
        radius, length = float(np.sqrt(FARTHEST * features)), float(np.sqrt(1 + COUNT**2 + LOSS**2))

        def parts(own: FloatArray, rows: Examples) -> FloatArray:
            nearest = model.predict(own, rows)[:, 0].astype(np.intp)
            away = np.zeros((len(rows), clusters, features))
            away[np.arange(len(rows)), nearest] = rows.x[:, 0] - centroids[nearest]
            short = shortened(self._of_units(away.reshape(len(rows), -1), rows) / radius)
            places = self._of_units(np.eye(clusters)[nearest], rows)
            return np.hstack([short, COUNT * places, LOSS * self._centred(own, rows)]) / length

        size = clusters * features
        total = length * self._sum(own, batch, parts, size + clusters + 1)
        count = np.maximum(total[size : size + clusters] / COUNT, 0.0)
        there = count > 2 * self._z * length / COUNT
        means = radius * total[:size].reshape(clusters, features) / np.where(there, count, 1.0)[:, None]
        uphill = np.zeros((1, model.m))
        uphill[0, :size] = -(radius * shortened(means / radius) * there[:, None]).ravel()
        if model.counts:
            uphill[0, size:] = own[size:] - count * self._mean_rows
        return self._bounded(total[-1] / (LOSS * units)), uphill

    # sums over rows

    def _sum(self, own: FloatArray, batch: Examples, parts: Parts, width: int) -> FloatArray:
        """Return the noisy sum of the units' parts, each clipped to norm 1, shape (width,)."""
        if self._bits is None or self._left < 1:
            raise Uncharged("a sum over rows was asked for that the ledger does not have")
        self._left -= 1
        total = np.zeros(width, np.int64)
        for rows in self._pieces(batch, width):
            total += whole_numbers(shortened(parts(own, rows))).sum(axis=0)
        self._noisy = noisy(total, self._z, self._bits)
        return self._noisy / UNIT

    def _pieces(self, batch: Examples, width: int) -> Iterator[Examples]:
        """Yield the rows as clients with one example each, in blocks that keep a person's rows together."""
        n = batch.weight.shape[1]
        at_a_time = max(1, MOST_BYTES // (8 * width))
        if self._persons is None:
            places = [np.arange(low, min(low + at_a_time, n)) for low in range(0, n, at_a_time)]
        else:
            order = np.argsort(self._persons, kind="stable")
            ends = np.append(np.flatnonzero(np.diff(self._persons[order])) + 1, n)
            cuts: list[int] = []
            for end in ends.tolist():
                if not cuts or end - (cuts[-2] if len(cuts) > 1 else 0) > at_a_time:
                    cuts.append(end)
                else:
                    cuts[-1] = end
            places = [order[low:high] for low, high in zip([0, *cuts[:-1]], cuts, strict=True)]
        for some in places:
            yield _Rows(batch.x[0][some, None], batch.y[0][some, None], batch.weight[0][some, None], some)

    def _of_units(self, values: FloatArray, rows: Examples) -> FloatArray:
        """Return rows' values, shape (n, d), or each person's sum over the mean number of a person's rows."""
        if self._persons is None or not isinstance(rows, _Rows):
            return values
        persons = self._persons[rows.places]
        starts = np.flatnonzero(np.diff(persons, prepend=-1))
        found: FloatArray = np.add.reduceat(values, starts, axis=0) / self._mean_rows
        return found

    @property
    def _mean_rows(self) -> float:
        return 1.0 if self._persons is None else len(self._persons) / (int(self._persons.max(initial=0)) + 1)

    def _units(self, batch: Examples) -> float:
        return float(batch.weight.shape[1]) / self._mean_rows

    def _centred(self, own: FloatArray, rows: Examples) -> FloatArray:
        """Return the units' losses, scaled to [-1, 1], shape (n, 1)."""
        losses = np.nan_to_num(np.asarray(self._rowwise.losses(own, _weighted_1(rows)), np.float64), nan=np.inf)
        centred = 2 * np.clip(losses / self._largest_loss, 0.0, 1.0) - 1
        return np.clip(self._of_units(centred[:, None], rows), -1.0, 1.0)

    def _bounded(self, centred: float) -> FloatArray:
        """Return a client's loss from a noisy mean of centred losses, shape (1,)."""
        return np.array([(float(np.clip(centred, -1.0, 1.0)) + 1) / 2 * self._largest_loss])

    @property
    def _largest_loss(self) -> float:
        if self._most is not None:
            return self._most
        match self._whole:
            case KMeans(features=features):
                return 2 * FARTHEST * features
            case LinearRegression() | TreeModel(classes=None):
                return LARGEST_ERROR
            case _:
                return float(2 * np.log(max(2, self._all_classes)))

    @property
    def _all_classes(self) -> int:
        return int(getattr(self._whole, "classes", None) or 0)

    @property
    def _classes(self) -> int:
        return self._all_classes if self._all_classes <= MOST_CLASSES else 0

    def _places(self, own: FloatArray, rows: Examples, classes: int) -> NDArray[np.intp]:
        """Return each row's cell in the confusion matrix, shape (n,)."""
        predicted = self._whole.predict(own, rows)[:, 0]
        labels = predicted.argmax(axis=-1) if predicted.ndim > 1 else (predicted > 0.5).astype(np.intp)
        found: NDArray[np.intp] = rows.y[:, 0].astype(np.intp) * classes + labels
        return found


class _Rows(Examples):
    """Rows as clients, with their places in the table."""

    def __init__(self, x: Floats, y: NDArray[Any], weight: FloatArray, places: NDArray[np.intp]) -> None:
        super().__init__(x, y, weight)
        object.__setattr__(self, "places", places)

    places: NDArray[np.intp]


def _weighted_1(rows: Examples) -> Examples:
    """Return the rows, each with weight 1."""
    return Examples(rows.x, rows.y, np.ones_like(rows.weight)) if (rows.weight != 1).any() else rows


def _flat(weights: FloatArray) -> FloatArray:
    return np.asarray(weights, np.float64).reshape(-1)


def _counts(noisy_counts: FloatArray, rows: int) -> tuple[int, ...]:
    """Return the whole counts of at least 0 that are nearest to the noisy ones and sum to the number of rows."""
    ordered = np.sort(noisy_counts)[::-1]
    above = (np.cumsum(ordered) - rows) / np.arange(1, len(ordered) + 1)
    last = int(np.flatnonzero(ordered - above > 0).max(initial=0))
    exact = np.maximum(noisy_counts - above[last], 0.0)
    found = np.floor(exact).astype(np.int64)
    for place in np.argsort(-(exact - found), kind="stable")[: max(0, rows - int(found.sum()))]:
        found[place] += 1
    found[int(found.argmax())] += rows - int(found.sum())
    return tuple(found.tolist())
