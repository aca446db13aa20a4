"""Metrics computed from counts that clients could send; only the AUC needs the scores themselves.

Every client yields a row of numbers that may be added up (a :class:`Tally`): the cells of its confusion matrix, its
squared errors. The metrics are a function of such a row, so the same function computes the metrics of the whole fleet
(from the sum of the rows) and each client's metrics (from its own row). Accuracy, precision, recall and F1 are exact.

The AUC is a statistic of ranks and no function of bounded counts; :func:`areas_under_curve` computes it exactly from
all scores, on any scale; only the laboratory has these. Metrics of extensions add their counts to the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.errors import FedpingError
from fedping.protocol.extensions import OWN, Extension, ExtensionFailed, Own, extension_of, registered

FloatArray: TypeAlias = NDArray[np.float64]
Metrics: TypeAlias = dict[str, FloatArray]

RECOVERED = {
    "recovered_gain": "gain",
    "recovered_cosine": "cosine",
    "recovered_mrr": "mrr",
    "recovered_ndcg": "ndcg",
    "recovered_clicks": "clicks",
}
"""Maps the metrics of a rehearsal to attributes of :class:`fedping.client_sim.rehearsal.recovered.Recovered`."""

HIGHER_IS_BETTER = frozenset({"accuracy", "precision", "recall", "f1", "auc", "r2", "top_choice", *RECOVERED})
"""Metrics that are better if higher; a metric of one class, such as ``recall_of_3``, is looked up by its first part."""

LOWER_IS_BETTER = frozenset({"loss", "mse", "rmse", "mae", "mean_rank", "empty_clusters", "largest_cluster"})
"""Metrics that are better if lower; an extension's metric is in neither set and declares its direction."""


class Tally(Protocol):
    """Counts and metrics for one kind of prediction."""

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics that a table shows, the most informative first."""
        ...

    def counts(self, predictions: FloatArray, y: NDArray[Any], there: NDArray[np.bool_]) -> FloatArray:
        """Return each client's counts, shape (k, width); counts of several clients may be added.

        Args:
            predictions: as the model's ``predict`` returns them, shape (k, n) or (k, n, c).
            y: the targets, shape (k, n).
            there: whether each example exists or is padding, shape (k, n). Each example counts once, whatever its
                weight.
        """
        ...

    @property
    def by_rank(self) -> bool:
        """Whether the metrics include the AUC, which depends on the order of scores."""
        ...

    def metrics(self, counts: FloatArray, areas: FloatArray | None = None) -> Metrics:
        """Return the metrics of each row of counts by name; undefined ones are NaN.

        Args:
            counts: shape (..., width).
            areas: each row's AUC, shape (...), if :attr:`by_rank`; NaN without it.
        """
        ...


def higher_is_better(metric: str) -> bool:
    """Return whether a higher value of this metric is the better one."""
    of_all = metric.partition("_of_")[0]
    if of_all in HIGHER_IS_BETTER or of_all in LOWER_IS_BETTER:
        return of_all in HIGHER_IS_BETTER
    extension = registered("metric", metric)
    return extension is not None and bool(getattr(extension.make, "higher_is_better", False))


def bounds(metric: str) -> tuple[float, float]:
    """Return the least and the greatest value that a metric can have; infinite where there is no bound."""
    of_all = metric.partition("_of_")[0]
    if of_all in ("r2", "recovered_gain"):
        return -np.inf, 1.0
    if of_all == "recovered_cosine":
        return -1.0, 1.0
    if of_all in HIGHER_IS_BETTER:
        return 0.0, 1.0
    return (0.0 if of_all in LOWER_IS_BETTER - {"loss"} else -np.inf), np.inf  # a user's loss may be negative


def better(metric: str, a: float, b: float) -> bool:
    """Return whether ``a`` is strictly better than ``b``; NaN is never better, and anything is better than NaN."""
    if np.isnan(a) or np.isnan(b):
        return bool(np.isnan(b) and not np.isnan(a))
    return a > b if higher_is_better(metric) else a < b


def ratio(part: FloatArray, whole: FloatArray, undefined: float = np.nan) -> FloatArray:
    """Return part / whole, and ``undefined`` where the whole is 0."""
    safe = np.where(whole == 0, 1.0, whole)
    return np.where(whole == 0, undefined, part / safe)


_ROUNDING = 1e-6
"""Allowed excess of a probability beyond 0 or 1, from sums in single precision."""

_MOST_LISTED = 20
"""Maximum number of classes for which metrics of each class are given."""


@dataclass(frozen=True)
class Classification:
    """Tally for classes 0 to c - 1.

    Predictions are probabilities, shape (k, n, c); with two classes also the probability of class 1 alone, shape (k,
    n); with more also any scores whose largest is the choice. Precision, recall and F1 are class 1's for two classes,
    and the means over the classes for more; a class that was never chosen or does not occur has 0, as in scikit-learn.
    """

    classes: int

    @property
    def headline(self) -> tuple[str, ...]:
        """See :attr:`Tally.headline`."""
        return ("accuracy", "auc") if self.classes == 2 else ("accuracy", "f1")

    def counts(self, predictions: FloatArray, y: NDArray[Any], there: NDArray[np.bool_]) -> FloatArray:
        """See :meth:`Tally.counts`: a confusion matrix by rows (truth, choice).

        Raises:
            FedpingError: predictions have another shape, or for two classes are not probabilities.
        """
        self._refuse_odd(predictions, there)
        truth = y.astype(np.intp)
        chosen = predictions.argmax(axis=2) if predictions.ndim == 3 else (predictions > 0.5).astype(np.intp)
        return _per_client(truth * self.classes + chosen, there, self.classes**2)

    @property
    def by_rank(self) -> bool:
        """See :attr:`Tally.by_rank`."""
        return self.classes == 2

    def _refuse_odd(self, predictions: FloatArray, there: NDArray[np.bool_]) -> None:
        if (predictions.ndim == 2 and self.classes != 2) or predictions.shape[2:] not in ((), (self.classes,)):
            raise FedpingError(
                f"the model predicts {predictions.shape[2] if predictions.ndim == 3 else 1} numbers for an example, "
                f"but the target has {self.classes} classes; have it return a number for each class, shape "
                f"(n, {self.classes}), or set task in [evaluation]"
            )
        some = predictions[there]
        if self.classes == 2 and some.size and not (some.min() >= -_ROUNDING and some.max() <= 1 + _ROUNDING):
            odd = some[~((some >= -_ROUNDING) & (some <= 1 + _ROUNDING))].flat[0]
            raise FedpingError(
                f"the model predicts {odd:.6g} for one of two classes, which is not a probability. Return the "
                'probability of class 1, from 0 to 1, or set predicts = "log_odds" in [model] if it returns logits'
            )

    def metrics(self, counts: FloatArray, areas: FloatArray | None = None) -> Metrics:
        """See :meth:`Tally.metrics`."""
        c = self.classes
        matrix = counts.reshape(*counts.shape[:-1], c, c)
        right = np.diagonal(matrix, axis1=-2, axis2=-1)
        chosen, truth = matrix.sum(axis=-2), matrix.sum(axis=-1)
        there = chosen + truth > 0
        precision, recall = ratio(right, chosen, 0.0), ratio(right, truth, 0.0)
        f1 = ratio(2 * precision * recall, precision + recall, 0.0)
        metrics_by_name: Metrics = {"accuracy": ratio(right.sum(axis=-1), matrix.sum(axis=(-2, -1)))}
        for name, of in (("precision", precision), ("recall", recall), ("f1", f1)):
            of_class = np.where(there, of, np.nan)
            mean = ratio(np.where(there, of, 0.0).sum(axis=-1), there.sum(axis=-1).astype(np.float64))
            metrics_by_name[name] = of_class[..., 1] if c == 2 else mean
            if 2 < c <= _MOST_LISTED:
                metrics_by_name |= {f"{name}_of_{label}": of_class[..., label] for label in range(c)}
        if c == 2:
            metrics_by_name["auc"] = np.full(counts.shape[:-1], np.nan) if areas is None else areas
        return metrics_by_name


def areas_under_curve(
    scores: FloatArray, positive: NDArray[np.bool_], client: NDArray[np.intp] | None = None, clients: int = 1
) -> FloatArray:
    """Return the area under the ROC curve of each client's examples, shape (clients,); equal scores count half.

    Pairs are counted as integers, so that only the last division rounds. NaN if either class has no examples.

    Args:
        scores: any numbers that increase with the expectation of class 1, shape (n,).
        positive: whether each example is of class 1, shape (n,).
        client: the client of each example, shape (n,); None if all belong to one.
        clients: the number of clients.
    """
    client = np.zeros(len(scores), np.intp) if client is None else client
    order = np.lexsort((scores, client))
    scores, positive, client = scores[order], positive[order], client[order]
    first = np.ones(len(scores), np.bool_)  # of examples with one score
    first[1:] = (scores[1:] != scores[:-1]) | (client[1:] != client[:-1])
    at = np.flatnonzero(first)
    owner, size = client[at], np.diff(at, append=len(scores))
    positives = np.diff(np.cumsum(positive, dtype=np.int64)[at + size - 1], prepend=0)
    negatives = size - positives
    before = np.cumsum(negatives) - negatives  # including earlier clients'
    start = np.searchsorted(owner, np.arange(clients))
    below = before - np.append(before, 0)[start][owner]
    twice_won, of_class_1, of_class_0 = (np.zeros(clients, np.int64) for _ in range(3))
    np.add.at(twice_won, owner, positives * (2 * below + negatives))
    np.add.at(of_class_1, owner, positives)
    np.add.at(of_class_0, owner, negatives)
    return ratio(twice_won.astype(np.float64), (2 * of_class_1 * of_class_0).astype(np.float64))


def scores_in(predictions: FloatArray) -> FloatArray:
    """Return the scores of class 1 for an AUC: predictions of shape (k, n), or the log-odds of shape (k, n, 2)."""
    if predictions.ndim == 2:
        return predictions
    with np.errstate(divide="ignore", invalid="ignore"):
        odds: FloatArray = np.diff(np.log(predictions.clip(0.0, 1.0)), axis=2)[..., 0]
    return np.where(np.isnan(odds), 0.0, odds)


def _per_client(cells: NDArray[np.intp], there: NDArray[np.bool_], width: int) -> FloatArray:
    k = len(cells)
    flat = (np.arange(k)[:, None] * width + cells)[there]
    return np.bincount(flat, minlength=k * width).reshape(k, width).astype(np.float64)


@dataclass(frozen=True)
class Clustering:
    """Tally for the number of the nearest centre, shape (k, n), or the nearness to each of c centres, (k, n, c).

    ``empty_clusters`` is the number of centres nearest to no example, ``largest_cluster`` the share of the largest.
    """

    clusters: int

    @property
    def headline(self) -> tuple[str, ...]:
        """See :attr:`Tally.headline`."""
        return ("loss", "empty_clusters")

    def counts(self, predictions: FloatArray, y: NDArray[Any], there: NDArray[np.bool_]) -> FloatArray:
        """See :meth:`Tally.counts`: the examples of each cluster."""
        nearest = predictions.argmax(axis=2) if predictions.ndim == 3 else predictions.astype(np.intp)
        return np.stack([(there & (nearest == c)).sum(axis=1) for c in range(self.clusters)], axis=1).astype(np.float64)

    @property
    def by_rank(self) -> bool:
        """See :attr:`Tally.by_rank`."""
        return False

    def metrics(self, counts: FloatArray, areas: FloatArray | None = None) -> Metrics:
        """See :meth:`Tally.metrics`."""
        return {
            "empty_clusters": (counts == 0).sum(axis=-1).astype(np.float64),
            "largest_cluster": ratio(counts.max(axis=-1), counts.sum(axis=-1)),
        }


@dataclass(frozen=True)
class Ranking:
    """Tally for scores of the candidates of a search, shape (k, n, c); -inf or NaN where there is no candidate.

    The target is the position of the chosen candidate. If it is -1, nothing was chosen, and the search does not count.
    The rank of the choice is the number of candidates that score higher, plus half of those that score the same, so a
    model with equal scores for all is no better than chance. A choice is on top only if all other candidates score
    lower.
    """

    @property
    def headline(self) -> tuple[str, ...]:
        """See :attr:`Tally.headline`."""
        return ("top_choice", "mean_rank")

    def counts(self, predictions: FloatArray, y: NDArray[Any], there: NDArray[np.bool_]) -> FloatArray:
        """See :meth:`Tally.counts`: searches, choices on top, and the sum of ranks (0 is the top).

        Raises:
            FedpingError: predictions are not scores of candidates.
        """
        if predictions.ndim != 3:
            raise FedpingError(
                "the model predicts one number for an example, but a ranking is of a score for each candidate; have it "
                "return shape (n, c), or set another task in [evaluation]"
            )
        there = there & (y >= 0)
        scores = np.where(np.isnan(predictions), -np.inf, predictions)
        chosen = np.take_along_axis(scores, np.maximum(y, 0).astype(np.intp)[..., None], axis=2)
        above = (scores > chosen).sum(axis=2)
        tied = (scores == chosen).sum(axis=2) - 1
        rows = (there, there & (above + tied == 0), np.where(there, above + 0.5 * tied, 0.0))
        return np.stack([row.sum(axis=1, dtype=np.float64) for row in rows], axis=1)

    @property
    def by_rank(self) -> bool:
        """See :attr:`Tally.by_rank`."""
        return False

    def metrics(self, counts: FloatArray, areas: FloatArray | None = None) -> Metrics:
        """See :meth:`Tally.metrics`."""
        searches, on_top, ranks = np.moveaxis(counts, -1, 0)
        return {"top_choice": ratio(on_top, searches), "mean_rank": ratio(ranks, searches)}


@dataclass(frozen=True)
class Rehearsed(Ranking):
    """Tally for a rehearsal, where versions are also evaluated by the users' true wishes (:data:`RECOVERED`)."""

    @property
    def headline(self) -> tuple[str, ...]:
        """See :attr:`Tally.headline`."""
        return ("recovered_gain", "recovered_ndcg", *super().headline)


@dataclass(frozen=True)
class Regression:
    """Tally for predictions of a number, shape (k, n).

    A client's row has its number of examples, and the sums of its squared errors, absolute errors, targets and squared
    targets, the latter two minus ``centre``: a number near the targets, known to all, which keeps R² exact if they are
    large. R² is NaN if all targets are the same.
    """

    centre: float = 0.0

    @property
    def headline(self) -> tuple[str, ...]:
        """See :attr:`Tally.headline`."""
        return ("rmse", "r2", "mae")

    def counts(self, predictions: FloatArray, y: NDArray[Any], there: NDArray[np.bool_]) -> FloatArray:
        """See :meth:`Tally.counts`; raises :class:`FedpingError` if predictions are not one number per example."""
        if predictions.shape != y.shape:
            raise FedpingError(
                f"the model predicts {predictions.shape[2]} numbers for an example, but the target is a number; have "
                "it return one, shape (n,), or set task in [evaluation]"
            )
        error = np.where(there, predictions - y, 0.0)
        target = np.where(there, y - self.centre, 0.0)
        rows = (there, error**2, np.abs(error), target, target**2)
        return np.stack([row.sum(axis=1, dtype=np.float64) for row in rows], axis=1)

    @property
    def by_rank(self) -> bool:
        """See :attr:`Tally.by_rank`."""
        return False

    def metrics(self, counts: FloatArray, areas: FloatArray | None = None) -> Metrics:
        """See :meth:`Tally.metrics`."""
        n, squares, absolute, total, total_squares = np.moveaxis(counts, -1, 0)
        mse = ratio(squares, n)
        spread = total_squares - ratio(total**2, n, 0.0)
        spread = np.where(spread <= 1e-12 * total_squares, 0.0, spread)
        return {"mse": mse, "rmse": np.sqrt(mse), "mae": ratio(absolute, n), "r2": 1.0 - ratio(squares, spread)}


class OwnMetric(Own, frozen=True, tag_field="metric", tag=OWN):
    """A metric defined in a user's own package (:mod:`fedping.protocol.extensions`)."""

    kind = "metric"


@dataclass(frozen=True)
class WithOwn:
    """A tally with further metrics from extensions; their counts follow the tally's own.

    A metric is either a function from (predictions, y) to a number for each example, averaged over the examples, with
    predictions of shape (n,) or (n, c) and y of shape (n,). Or it is a class with ``width``, ``counts(predictions, y,
    there)`` like a tally's, shape (k, width), which are added up over clients, and ``metric(counts)``, shape (...).
    """

    tally: Tally
    own: tuple[OwnMetric, ...]

    @property
    def headline(self) -> tuple[str, ...]:
        """See :attr:`Tally.headline`."""
        return (*self.tally.headline, *(each.name for each in self.own))

    def counts(self, predictions: FloatArray, y: NDArray[Any], there: NDArray[np.bool_]) -> FloatArray:
        """See :meth:`Tally.counts`."""
        return np.concatenate(
            [self.tally.counts(predictions, y, there), *(_counts(each, predictions, y, there) for each in self.own)],
            axis=1,
        )

    @property
    def by_rank(self) -> bool:
        """See :attr:`Tally.by_rank`."""
        return self.tally.by_rank

    def metrics(self, counts: FloatArray, areas: FloatArray | None = None) -> Metrics:
        """See :meth:`Tally.metrics`."""
        metrics_by_name: Metrics = {}
        for each in reversed(self.own):
            width = _width(each)
            metrics_by_name = {each.name: _metric(each, counts[..., -width:])} | metrics_by_name
            counts = counts[..., :-width]
        return self.tally.metrics(counts, areas) | metrics_by_name


def _made(own: OwnMetric) -> tuple[Extension, Any]:
    """Return a metric's extension, and its instance if the extension is a class."""
    extension = extension_of(own)
    return extension, extension.made(own.settings) if isinstance(extension.make, type) else None


def _width(own: OwnMetric) -> int:
    extension, instance = _made(own)
    with extension.guarded():
        return 2 if instance is None else int(instance.width)


def _counts(own: OwnMetric, predictions: FloatArray, y: NDArray[Any], there: NDArray[np.bool_]) -> FloatArray:
    extension, instance = _made(own)
    if instance is None:
        client = np.nonzero(there)[0]
        values = np.asarray(extension.made(own.settings, predictions[there], y[there]), dtype=np.float64)
        _refuse_odd(extension, values, client.shape)
        total = np.bincount(client, values, minlength=len(there))
        return np.stack([total, np.bincount(client, minlength=len(there))], axis=1)
    with extension.guarded():
        counts = np.asarray(instance.counts(predictions, y, there), dtype=np.float64)
        shape = (len(there), int(instance.width))
    _refuse_odd(extension, counts, shape)
    return counts


def _metric(own: OwnMetric, counts: FloatArray) -> FloatArray:
    extension, instance = _made(own)
    if instance is None:
        return ratio(counts[..., 0], counts[..., 1])
    with extension.guarded(), np.errstate(divide="ignore", invalid="ignore"):
        values = np.asarray(instance.metric(counts), dtype=np.float64)
    if values.shape != counts.shape[:-1]:
        raise ExtensionFailed(
            f"{extension}, an extension, returned an array of shape {values.shape} for counts of shape {counts.shape}; "
            "return a number for each row"
        )
    return values


def _refuse_odd(extension: Extension, values: FloatArray, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise ExtensionFailed(
            f"{extension}, an extension, returned an array of shape {values.shape} where {shape} is wanted; return "
            "a number for each example"
        )
    if not np.isfinite(values).all():
        raise ExtensionFailed(f"{extension}, an extension, returned numbers that are not finite")


_OF_CLASS = ("precision_of_", "recall_of_", "f1_of_")


def is_of_class(metric: str) -> bool:
    """Return whether a metric is of a single class, such as "precision_of_3", so that a table may leave it out."""
    return metric.startswith(_OF_CLASS)
