"""What the vectors of a private line come to: exact sums by arm, before there is noise; and a step from released ones.

Whole numbers have the same sum in any order, so every engine and partitioning comes to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedping.protocol.privacy import bounded_vectors, frame_of
from fedping.protocol.study import Line
from fedping.server_jobs.optimize.transformation import Arrays, Vector
from fedping.server_jobs.round.accumulator import Accumulator, Finished, Updates, no_moments

Sums: TypeAlias = Mapping[int, NDArray[np.int64]]
"""By arm, its number among those that follow the line, the sum of its clients' vectors, shape (m + 3,).

Exact, so they are neither written nor told. An arm without a client has none.
"""


@dataclass(frozen=True, slots=True)
class Released:
    """What a step of a private line is made of: what anybody may know.

    Attributes:
        weights: the released sum of the arms that submit, without the metrics, shape (m,).
        sigma: the standard deviation of its noise, in the same whole numbers; 0 without noise.
        clients: by how many it is divided: a constant where it has noise.
    """

    weights: NDArray[np.int64]
    sigma: float
    clients: float


def private_sums(line: Line) -> Accumulator[Sums]:
    """Return the accumulator of a private line; it ends with :class:`Released`, and never with sums themselves.

    ``add`` takes vectors of shape (k, m + 3), which it takes within their bound, each once: votes mean nothing here.
    """
    assert line.privacy is not None
    privacy, frame = line.privacy, frame_of(line.privacy, line.spec)
    zone = 0.0 if line.privacy.central is None else line.privacy.central.dead_zone

    def add(sums: Sums, vectors: Updates, votes: Vector, arms: NDArray[np.int16]) -> Sums:
        whole = bounded_vectors(privacy, frame, vectors)
        return merge(sums, {int(arm): whole[arms == arm].sum(axis=0) for arm in np.unique(arms)})

    def merge(a: Sums, b: Sums) -> Sums:
        return {**a, **{arm: each + a[arm] if arm in a else each for arm, each in b.items()}}

    def finish(total: object, line: Line, weights: Vector, state: Arrays, key: bytes) -> Finished:
        if not isinstance(total, Released):
            _refuse(line)
        kept = np.where(np.abs(total.weights) < zone * total.sigma, 0, total.weights)
        return Finished(kept * frame.units / total.clients)

    return Accumulator(
        init=lambda line: {},
        add=add,
        merge=merge,
        finish=finish,
        moments=lambda total: no_moments(line.spec.m),
        asks=("arms",),
    )


def _refuse(line: Line) -> NoReturn:
    raise TypeError(f"a step of the private line '{line.name}' is made of released sums, not of exact ones")
