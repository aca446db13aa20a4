"""All clients' examples as one rectangle, for clients of similar sizes that always train on all examples.

The rectangle is laid out once, because fetching examples by number would copy all of them in each round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedping.experiments.laboratory.rounds.compiling import NOBODY

MUCH = 0.25
"""Maximum share of unneeded examples in a rectangle; with more, clients train in lanes, which compute fewer."""


@dataclass(frozen=True)
class Rectangle:
    """The places of clients and of their examples, device after device.

    Attributes:
        at_once: number of clients that a device computes at a time.
        client: the client in each place, shape (k,), or :data:`NOBODY`.
        rows: the example in each place of the client, shape (k, width); arbitrary if there is none.
        there: whether there is an example in each place, shape (k, width).
    """

    at_once: int
    client: NDArray[np.int32]
    rows: NDArray[np.int64]
    there: NDArray[np.bool_]


def width_if_even(sizes: NDArray[np.int64]) -> int | None:
    """Return the largest client's number of examples; None if a rectangle of that width would be too empty."""
    longest = int(sizes.max(initial=0))
    return longest if 0 < longest * np.count_nonzero(sizes) <= (1 + MUCH) * sizes.sum() else None


def rectangle_of(
    first: NDArray[np.int64], sizes: NDArray[np.int64], width: int, most: int, devices: int = 1
) -> Rectangle:
    """Return the places of clients with examples.

    Args:
        first: the first example of each client, shape (clients,).
        sizes: each client's number of examples, shape (clients,).
        width: the largest client's number of examples.
        most: maximum number of clients that a device computes at a time.
        devices: the number of devices.
    """
    clients = np.flatnonzero(sizes > 0)
    each = -(-len(clients) // devices)
    many = -(-each // -(-each // most))
    places = -(-each // many) * many * devices
    client = np.full(places, NOBODY)
    client[: len(clients)] = clients
    whose = np.append(clients, np.full(places - len(clients), clients[0]))  # copies, so that losses are numbers
    nth = np.arange(width)
    there = (nth < sizes[whose, None]) & (client != NOBODY)[:, None]
    return Rectangle(many, client, first[whose, None] + np.where(there, nth, 0), there)
