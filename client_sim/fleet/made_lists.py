"""Synthetic lists of items for a model of features: random values of every feature, and choices by random weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.features import numbers, vectors
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.learning.lists import ListBatch
from fedping.protocol.draws import Keys, child_keys, normals, uniforms
from fedping.protocol.features import (
    Bucket,
    Category,
    Counts,
    Cross,
    Equal,
    Feature,
    Flag,
    Hashed,
    Spline,
    of_query,
    width,
)
from fedping.protocol.spec import ModelSpec

ITEMS = 5
"""Number of items of a synthetic list."""

_CHOICE = 2**20  # beyond all features


def list_maker(spec: ModelSpec, truth: Keys) -> Callable[[Keys, FloatArray], ListBatch]:
    """Return a maker of lists, chosen from by weights that a key determines; the top items are seen as all others are.

    Args:
        spec: the spec.
        truth: the key of the weights that clients choose by, shape (1,).
    """
    weights = normals(truth, spec.m)[0]
    places = spec.layout.places
    weights[places : places + spec.layout.offsets] = 0.0

    def make(keys: Keys, weight: FloatArray) -> ListBatch:
        k, n = keys.shape
        at, value = _values(spec, keys.ravel())
        batch = ListBatch(
            at.reshape(k, n, ITEMS, -1).astype(np.int32),
            value.reshape(k, n, ITEMS, -1),
            np.zeros((k, n), np.intp),
            weight,
            np.full((k, n), ITEMS),
            np.full((k, n), ITEMS),
            np.zeros((k, n, ITEMS), np.bool_),
        )
        scores = vectors.scores(spec, weights, batch.lists).T
        noise = uniforms(child_keys(keys.ravel(), _CHOICE), ITEMS)
        chosen = (scores - np.log(-np.log(noise * (1 - 2e-9) + 1e-9))).argmax(axis=1)
        return ListBatch(batch.at, batch.value, chosen.reshape(k, n), weight, batch.shown, batch.seen, batch.pinned)

    return make


def _values(spec: ModelSpec, keys: Keys) -> tuple[NDArray[np.intp], FloatArray]:
    """Return positions and values of the items of a list for each key, shape (N, ITEMS, S)."""
    by_name = {feature.name: feature for feature in spec.features}
    own = {
        feature.name: _of_feature(feature, child_keys(keys, number))
        for number, feature in enumerate(spec.features)
        if not isinstance(feature, Cross)
    }
    found = []
    for span in spec.layout.spans:
        if isinstance(span.feature, Cross):
            (rows, one), (columns, other) = (own[name] for name in span.feature.of)
            at = rows[..., :, None] * width(by_name[span.feature.of[1]], by_name) + columns[..., None, :]
            value = numbers.single(one[..., :, None] * other[..., None, :])
            found.append((span.at + at.reshape(*at.shape[:2], -1), value.reshape(*at.shape[:2], -1)))
        else:
            at, value = own[span.feature.name]
            found.append((span.at + at, value))
    return np.concatenate([at for at, _ in found], axis=2), np.concatenate([value for _, value in found], axis=2)


def _of_feature(feature: Feature, keys: Keys) -> tuple[NDArray[np.intp], FloatArray]:
    """Return random values of a feature, shape (N, ITEMS, S); those of a query are equal for all items."""
    count = len(feature.values) if isinstance(feature, Counts) else 1
    items = 1 if of_query(feature) else ITEMS
    shape = (len(keys), items, count)
    match feature:
        case Category() | Hashed() | Bucket() | Spline():
            at = np.floor(uniforms(keys, items * count) * width(feature, {})).astype(np.intp).reshape(shape)
            value = np.ones(shape)
        case Counts():
            at = np.broadcast_to(np.arange(count), shape)
            value = numbers.single(np.abs(normals(keys, items * count)).reshape(shape))
        case Flag() | Equal():
            at = np.zeros(shape, np.intp)
            value = np.floor(2 * uniforms(keys, items)).reshape(shape)
        case _:
            at = np.zeros(shape, np.intp)
            value = numbers.single(normals(keys, items).reshape(shape))
    return np.broadcast_to(at, (len(keys), ITEMS, count)), np.broadcast_to(value, (len(keys), ITEMS, count))
