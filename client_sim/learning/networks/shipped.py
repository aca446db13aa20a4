"""Shared code of fedping's built-in networks: arrays whose start values need no JAX, and the model of a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fedping.client_sim.learning.models.arrays import Precision, array
from fedping.client_sim.learning.networks.network import Network, jax_for
from fedping.client_sim.learning.networks.tree_model import TreeModel
from fedping.protocol.spec import Start
from fedping.protocol.weights import Normal, Numbers, Uniform, Zeros

StartOf: TypeAlias = Callable[[int], Start]
"""Function from a seed to the start values of an array."""

Arrays: TypeAlias = Mapping[str, tuple[tuple[int, ...], StartOf]]
"""Each array's shape and start, by its name."""


def zeros(seed: int) -> Zeros:
    """Return a start at 0."""
    return Zeros()


def ones(seed: int) -> Numbers:
    """Return a start at 1."""
    return Numbers(numbers=(1.0,))


def glorot(inputs: int, outputs: int) -> StartOf:
    """Return the start of a kernel, given the numbers of inputs and outputs of a unit (Glorot and Bengio 2010)."""
    return lambda seed: Uniform(seed=seed, scale=math.sqrt(6 / (inputs + outputs)))


def normal(scale: float) -> StartOf:
    """Return a start at normal numbers of this standard deviation."""
    return lambda seed: Normal(seed=seed, scale=scale)


def dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[tuple[int, ...], StartOf]]:
    """Return the arrays of a layer, x · kernel + bias."""
    return {f"{name}.kernel": ((inputs, outputs), glorot(inputs, outputs)), f"{name}.bias": ((outputs,), zeros)}


def init_of(arrays: Arrays) -> Callable[[Any], dict[str, Any]]:
    """Return a function that returns the arrays by name, only for their shapes; the start values come from a spec."""
    shapes = {name: shape for name, (shape, _) in arrays.items()}
    return lambda key: {name: jax_for("a network").numpy.zeros(shape) for name, shape in shapes.items()}


def shipped(name: str, network: Network, arrays: Arrays, seed: int, precision: Precision) -> TreeModel:
    """Return a network as a model; JAX is imported at the first use."""
    blocks = tuple(array(each, arrays[each][0], arrays[each][1](seed)) for each in sorted(arrays))
    return TreeModel(name, network, blocks, precision)
