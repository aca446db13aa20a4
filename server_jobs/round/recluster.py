"""Federated k-means, which clusters the clients' centroids again instead of averaging them by position.

A mean over clients assumes that centroids at the same position belong to the same cluster. Here, all local centroids
are points, and a second k-means computes their centroids.

Source: Rodríguez-Barroso et al. 2020, 5.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.pipeline import Recluster
from fedping.server_jobs.optimize.transformation import Vector


def reclustered(
    settings: Recluster, shape: tuple[int, int], weights: Vector, updates: NDArray[np.float32], votes: Vector
) -> Vector:
    """Return the direction from the fetched centroids to the centroids of the clients' centroids.

    The better of two k-means runs is used: one starts at the fetched centroids, the other at distant local centroids.
    Its centroids are matched with the fetched centroids so that the total distance is minimal. A cluster without
    local centroids doesn't move. Counts have the direction 0.

    Args:
        settings: the maximum number of iterations.
        shape: the number of clusters K and the number of features d.
        weights: the fetched weights, shape (m,): K centroids, then K counts of examples or nothing.
        updates: local weights minus fetched weights, shape (k, m).
        votes: the vote of each update, shape (k,).
    """
    size = shape[0] * shape[1]
    fetched = weights[:size].reshape(shape)
    of_each = _votes_of_centroids(shape, weights, updates, votes)
    who, which = np.nonzero(of_each)
    direction = np.zeros_like(weights)
    if len(who) == 0:
        return direction
    points = fetched[which] + updates[:, :size].reshape(-1, *shape)[who, which]
    at_points = of_each[who, which]
    near = _k_means(points, at_points, fetched, settings.iterations)
    far = _k_means(points, at_points, _far_apart(points, at_points, fetched), settings.iterations)
    best = far if _spread(points, at_points, far) < _spread(points, at_points, near) else near
    direction[:size] = (_matched(best, fetched) - fetched).ravel()
    return direction


def _votes_of_centroids(
    shape: tuple[int, int], weights: Vector, updates: NDArray[np.float32], votes: Vector
) -> NDArray[np.float64]:
    """Return the weight of each local centroid, shape (k, K): a share of the update's vote, by examples.

    Without counts, all centroids that have moved get equal shares; a centroid that hasn't moved has no examples.
    """
    size = shape[0] * shape[1]
    if len(weights) > size:
        counts = np.asarray(np.maximum(weights[size:] + updates[:, size:], 0.0))
    else:
        counts = np.asarray(updates.reshape(-1, *shape).any(axis=2), dtype=np.float64)
    total = counts.sum(axis=1, keepdims=True)
    return np.asarray(counts / np.where(total > 0, total, 1.0) * votes[:, None])


def _k_means(points: Vector, weights: Vector, start: Vector, iterations: int) -> Vector:
    """Return the centroids after Lloyd's iterations, shape (K, d). A centroid without nearest points doesn't move."""
    centroids, nearest = start.copy(), np.full(len(points), -1)
    for _ in range(iterations):
        before, (nearest, _) = nearest, _nearest(points, centroids)
        if (nearest == before).all():
            break
        for number in np.unique(nearest):
            mine = nearest == number
            share = weights[mine, None] / weights[mine].sum()
            centroids[number] = (points[mine] * share).sum(axis=0)
    return centroids


def _nearest(points: Vector, centroids: Vector) -> tuple[NDArray[np.intp], Vector]:
    """Return each point's nearest centroid, the first if there are several, and the squared distance to it.

    It processes one centroid at a time, without matrix products, whose last bits depend on the machine.
    """
    nearest, least = np.zeros(len(points), dtype=np.intp), np.full(len(points), np.inf)
    for number, centroid in enumerate(centroids):
        distance = np.square(points - centroid).sum(axis=1)
        closer = distance < least
        nearest[closer], least[closer] = number, distance[closer]
    return nearest, least


def _spread(points: Vector, weights: Vector, centroids: Vector) -> float:
    """Return the weighted sum of squared distances to the nearest centroid, which k-means minimises."""
    return float((weights * _nearest(points, centroids)[1]).sum())


def _far_apart(points: Vector, weights: Vector, fetched: Vector) -> Vector:
    """Return K points, shape (K, d): the farthest from the mean, then repeatedly the farthest from those chosen.

    If there are fewer than K different points, fetched centroids are added.
    """
    chosen = fetched.copy()
    middle = (points * (weights / weights.sum())[:, None]).sum(axis=0)
    chosen[0] = points[int(np.argmax(np.square(points - middle).sum(axis=1)))]
    least = np.square(points - chosen[0]).sum(axis=1)
    for number in range(1, len(fetched)):
        farthest = int(np.argmax(least))
        if least[farthest] == 0:
            break
        chosen[number] = points[farthest]
        least = np.minimum(least, np.square(points - chosen[number]).sum(axis=1))
    return chosen


def _matched(centroids: Vector, fetched: Vector) -> Vector:
    """Return centroids in the order of the fetched centroids that minimises the total distance."""
    from scipy.optimize import linear_sum_assignment

    cost = np.array([np.square(fetched - centroid).sum(axis=1) for centroid in centroids])
    rows, columns = linear_sum_assignment(cost)
    ordered = np.empty_like(centroids)
    ordered[columns] = centroids[rows]
    return ordered
