"""Metrics from your own package in addition to those of the task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedping.experiments.laboratory.evaluation.tallies import FloatArray, Metrics, Tally, ratio
from fedping.protocol.extensions import OWN, Extension, ExtensionFailed, Own, extension_of


class OwnMetric(Own, frozen=True, tag_field="metric", tag=OWN):
    """A metric from your own package (:mod:`fedping.protocol.extensions`)."""

    kind = "metric"


@dataclass(frozen=True)
class WithOwn:
    """A tally with further metrics, whose counts come after its own.

    A metric is either a function from (predictions, y) to a number for each example, of which it is the mean, with
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
        found: Metrics = {}
        for each in reversed(self.own):
            width = _width(each)
            found = {each.name: _metric(each, counts[..., -width:])} | found
            counts = counts[..., :-width]
        return self.tally.metrics(counts, areas) | found


def _made(own: OwnMetric) -> tuple[Extension, Any]:
    """Return the extension, and the instance if it is a class."""
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
        found = np.asarray(instance.metric(counts), dtype=np.float64)
    if found.shape != counts.shape[:-1]:
        raise ExtensionFailed(
            f"{extension}, an extension, returned an array of shape {found.shape} for counts of shape {counts.shape}; "
            "return a number for each row"
        )
    return found


def _refuse_odd(extension: Extension, values: FloatArray, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise ExtensionFailed(
            f"{extension}, an extension, returned an array of shape {values.shape} where {shape} is wanted; return "
            "a number for each example"
        )
    if not np.isfinite(values).all():
        raise ExtensionFailed(f"{extension}, an extension, returned numbers that are not finite")
