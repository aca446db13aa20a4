"""A model's weights as consecutive arrays: their names, start values and positions.

The arrays are the blocks of a model spec (`fedping.protocol.weights`), so that the spec of a model stays short.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from fedping.client_sim.learning.batch import FloatArray, Floats
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.errors import InvalidSettings
from fedping.protocol.spec import Block, Start, Step, Zeros
from fedping.protocol.weights import WeightNames, start_values

Precision: TypeAlias = Literal["float64", "float32"]

DEFAULT_STEP = Step(start=0.1, min=1e-6, max=50.0)
"""The step sizes of resilient propagation as published (Riedmiller and Braun 1993)."""


def array(name: str, shape: tuple[int, ...], start: Start | None = None) -> Block:
    """Return an array of weights that start at 0 by default."""
    return Block(name=name, shape=shape, start=start or Zeros(), step=DEFAULT_STEP)


class OfArrays(ABC):
    """A model whose weights are consecutive arrays."""

    @property
    @abstractmethod
    def arrays(self) -> tuple[Block, ...]:
        """The arrays in wire order."""

    @cached_property
    def m(self) -> int:
        """The number of weights."""
        return sum(math.prod(block.shape) for block in self.arrays)

    @cached_property
    def weight_names(self) -> Sequence[str]:
        """See :attr:`client_sim.learning.model.Model.weight_names`: an array's name and indices, as ``W1[3,5]``."""
        return WeightNames((), self.arrays)

    @cached_property
    def start(self) -> FloatArray:
        """See :attr:`fedping.client_sim.learning.model.Model.start`."""
        start = np.concatenate([start_values(block) for block in self.arrays])
        start.flags.writeable = False
        return start


class InPrecision(OfArrays):
    """A model of arrays that computes in double precision, or in single precision, which is about twice as fast.

    Losses are in double precision either way. In single precision, gradients, clients' own weights and their updates
    are float32, with about seven digits.
    """

    precision: Precision

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`fedping.client_sim.learning.model.HasPrecision`."""
        return np.dtype(self.precision)

    @property
    def floats_per_example(self) -> int:
        """See :class:`fedping.client_sim.learning.model.HasPrecision`."""
        return 4

    def own(self, values: Floats) -> Floats:
        """Return numbers in the model's precision."""
        return values.astype(self.dtype, copy=False)


def precision_of(settings: Settings) -> Precision:
    """Return the setting ``precision``: ``float64`` (the default) or ``float32``."""
    return cast("Precision", settings.choice("precision", ("float64", "float32")))


def check_width(given: int, m: int, model: str) -> None:
    """Raise unless the given number of weights equals the model's."""
    if given != m:
        raise InvalidSettings(
            f"the model '{model}' has {m:,} weights with these settings, but {given:,} were given; "
            "check the settings of the model spec against its weights"
        )
