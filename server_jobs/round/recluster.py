"""Federated k-means: the clients' centroids, clustered again instead of averaged by their position.

A mean over clients assumes that centroids at the same position belong to the same cluster. Here all local centroids are
points, and a further k-means finds their centroids.

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

    The better of two k-means is used: one starts at the fetched centroids, one at local centroids far apart. Its
    centroids are matched with the fetched ones so that these move least. A cluster without local centroids stays.
    Counts have the direction 0.

    Args:
        settings: the maximum number of iterations.
        shape: the number of clusters K and the number of features d.
        weights: the fetched weights, shape (m,): K centroids, then K counts of examples or nothing.
        updates: local weights minus fetched ones, shape (k, m).
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
    """Return the weight of each local centroid, shape (k, K): its share of its update's vote, by its examples.

    Without counts, the centroids that have moved share equally, because one that has not moved has no examples.
    """
    size = shape[0] * shape[1]
    if len(weights) > size:
        counts = np.asarray(np.maximum(weights[size:] + updates[:, size:], 0.0))
    else:
        counts = np.asarray(updates.reshape(-1, *shape).any(axis=2), dtype=np.float64)
    total = counts.sum(axis=1, keepdims=True)
    return np.asarray(counts / np.where(total > 0, total, 1.0) * votes[:, None])


def _k_means(points: Vector, weights: Vector, start: Vector, iterations: int) -> Vector:
    """Return the centroids after Lloyd's iterations, shape (K, d); a centroid without nearest points stays."""
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
    """Return the nearest centroid of each point, the first of several, and the squared distance to it.

    It takes one centroid at a time, without a matrix product, whose last bits depend on the machine.
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
    """Return K points: the farthest from the mean, then each time the farthest from the chosen ones, shape (K, d).

    If there are fewer than K different points, the rest are fetched centroids.
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
    """Return centroids in the order of the fetched ones, with the smallest total distance."""
    from scipy.optimize import linear_sum_assignment

    cost = np.array([np.square(fetched - centroid).sum(axis=1) for centroid in centroids])
    rows, columns = linear_sum_assignment(cost)
    ordered = np.empty_like(centroids)
    ordered[columns] = centroids[rows]
    return ordered
