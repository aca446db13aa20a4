"""The weights that the page shows: all of a small model; of a large one those that changed most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedping.protocol.spec import ModelSpec

MOST_SHOWN = 60
"""The most weights on the page; a heat map with more rows would be unreadable."""


class Shown(Struct, frozen=True, kw_only=True):
    """The shown weights, in wire order.

    Attributes:
        positions: their positions in the model, from 0.
        names: their names in the spec.
        start: their values in version 0, as published.
        of: the number of weights in the model.
        chosen_at: the version whose change from version 0 they were chosen by; None if all are shown.
    """

    positions: tuple[int, ...]
    names: tuple[str, ...]
    start: tuple[float, ...]
    of: int
    chosen_at: int | None

    def pick(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return the shown weights' values from one value per weight, shape (shown,)."""
        return np.array([values[i] for i in self.positions], dtype=np.float64)


def chosen_at(m: int, newest: int) -> int | None:
    """Return the version by which to choose weights of a model of m: the last power of two up to the newest version.

    So the choice depends only on the number of versions, and changes only when that number doubles. Each time, the
    whole history must be read again, which doubles the total amount of reading.
    """
    if m <= MOST_SHOWN:
        return None
    return 1 << (newest.bit_length() - 1) if newest > 0 else 0


def choose(spec: ModelSpec, start: Sequence[float], by: Sequence[float] | None, version: int | None) -> Shown:
    """Return the weights to show.

    Args:
        spec: the line's spec; a weight's change is measured in its first step sizes, because weights have different
            units.
        start: version 0 as published, shape (m,).
        by: the version to choose by, as published, shape (m,); None to show all.
        version: the number of that version.
    """
    positions: Sequence[int] = range(spec.m)
    if by is not None:
        change = np.abs(np.array(by) - np.array(start)) / spec.steps.start
        positions = sorted(np.argsort(-change, kind="stable")[:MOST_SHOWN].tolist())
    names = spec.names
    return Shown(
        positions=tuple(positions),
        names=tuple(names[i] for i in positions),
        start=tuple(start[i] for i in positions),
        of=spec.m,
        chosen_at=version if by is not None else None,
    )
