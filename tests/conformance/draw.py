"""Random draws from which the conformance vectors are made."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID


class Draw:
    """Draws from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def fraction(self) -> float:
        """Return a number from [0, 1)."""
        return self._random.random()

    def whole(self, least: int, largest: int) -> int:
        """Return a whole number between bounds, both included."""
        return least + int(self._random.random() * (largest - least + 1))

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self._random.random() < probability

    def some(self, things: Sequence[Any], count: int) -> list[Any]:
        """Return a number of different things, in any order."""
        left = list(things)
        return [left.pop(self.whole(0, len(left) - 1)) for _ in range(count)]

    def uuid(self) -> str:
        """Return a version 4 UUID."""
        return str(UUID(bytes=bytes(self.whole(0, 255) for _ in range(16)), version=4))
