"""A network with convolutions for images, with the layers of published experiments."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from fedping.client_sim.learning.models.arrays import Precision
from fedping.client_sim.learning.networks.layers import convolution, dropout, max_pool
from fedping.client_sim.learning.networks.network import Network, jax_for
from fedping.client_sim.learning.networks.shipped import Arrays, StartOf, dense, glorot, init_of, shipped, zeros
from fedping.client_sim.learning.networks.tree_model import TreeModel
from fedping.client_sim.learning.settings import Settings
from fedping.protocol.errors import InvalidSettings

NAME = "cnn"

Layout: TypeAlias = Literal["mcmahan-2017", "rodriguez-barroso-2020", "reddi-2021"]


class Layers(NamedTuple):
    """The layers of a network: convolutions one after another, then hidden layers, each with a rectifier.

    Attributes:
        side: the side of the convolutions' kernels.
        channels: the outputs of each convolution.
        pools: whether 2 by 2 max pooling follows each convolution.
        drops: the share that is dropped after each convolution, in training.
        hidden: the units of each hidden layer.
        drops_hidden: the share that is dropped after each hidden layer.
        padding: the padding of the convolutions.
    """

    side: int
    channels: tuple[int, ...]
    pools: tuple[bool, ...]
    drops: tuple[float, ...]
    hidden: tuple[int, ...]
    drops_hidden: tuple[float, ...]
    padding: Literal["SAME", "VALID"] = "SAME"


LAYOUTS: dict[Layout, Layers] = {
    "mcmahan-2017": Layers(5, (32, 64), (True, True), (0.0, 0.0), (512,), (0.0,)),
    "rodriguez-barroso-2020": Layers(3, (32, 32), (True, True), (0.4, 0.3), (128, 64), (0.1, 0.0)),
    "reddi-2021": Layers(3, (32, 64), (False, True), (0.0, 0.25), (128,), (0.5,), "VALID"),
}
"""The networks of McMahan et al. 2017 for MNIST, Rodríguez-Barroso et al. 2020, and Reddi et al. 2021 for EMNIST."""


def cnn(settings: Settings) -> TreeModel:
    """Return a network of two convolutions for square images, with the pooling and dropout of a paper.

    ``features`` are the pixels, row by row, each with its ``channels`` (1); ``classes``; ``layout`` is
    ``mcmahan-2017``, ``rodriguez-barroso-2020`` or ``reddi-2021``; ``seed`` (0), and ``precision`` (``float32`` or
    ``float64``).
    """
    features, classes = settings.whole("features"), settings.whole("classes", least=2)
    channels, seed = settings.whole("channels", 1), settings.whole("seed", 0, least=0)
    layout = cast("Layout", settings.choice("layout", tuple(LAYOUTS)))
    precision = cast("Precision", settings.choice("precision", ("float32", "float64")))
    side = math.isqrt(features // channels)
    if side * side * channels != features:
        raise InvalidSettings(
            f"the model '{NAME}' has features = {features} and channels = {channels}, which is not a square image. "
            "Set 'channels', or choose other data"
        )
    arrays = _arrays(layout, side, channels, classes)
    return shipped(NAME, _network(layout, side, channels, classes), arrays, seed, precision)


def _arrays(layout: Layout, side: int, channels: int, classes: int) -> Arrays:
    layers, arrays, inputs, now = LAYOUTS[layout], dict[str, tuple[tuple[int, ...], StartOf]](), channels, side
    for number, (outputs, pools) in enumerate(zip(layers.channels, layers.pools, strict=True), 1):
        shape, area = (layers.side, layers.side, inputs, outputs), layers.side**2
        arrays[f"conv{number}.kernel"] = (shape, glorot(area * inputs, area * outputs))
        arrays[f"conv{number}.bias"] = ((outputs,), zeros)
        now -= layers.side - 1 if layers.padding == "VALID" else 0
        inputs, now = outputs, now // 2 if pools else now
    if now < 1:
        raise InvalidSettings(
            f"an image of {side} by {side} pixels is too small for the layers '{layout}' of the model '{NAME}'; choose "
            "another 'layout', or larger images"
        )
    width = now * now * inputs
    for number, units in enumerate(layers.hidden, 1):
        arrays |= dense(f"hidden{number}", width, units)
        width = units
    return arrays | dense("head", width, classes)


@lru_cache(maxsize=32)
def _network(layout: Layout, side: int, channels: int, classes: int) -> Network:
    layers = LAYOUTS[layout]
    draws = any((*layers.drops, *layers.drops_hidden))

    def outputs(weights: Any, x: Any, key: Any) -> Any:
        jax = jax_for(f"the model '{NAME}'")
        keys = iter(jax.random.split(key, 2 + len(layers.hidden)) if key is not None else [None] * 9)
        for number, (pools, drops) in enumerate(zip(layers.pools, layers.drops, strict=True), 1):
            x = convolution(x, weights[f"conv{number}.kernel"], padding=layers.padding)
            x = jax.nn.relu(x + weights[f"conv{number}.bias"])
            x = dropout(max_pool(x) if pools else x, drops, next(keys))
        x = x.reshape(len(x), -1)
        for number, drops in enumerate(layers.drops_hidden, 1):
            x = jax.nn.relu(x @ weights[f"hidden{number}.kernel"] + weights[f"hidden{number}.bias"])
            x = dropout(x, drops, next(keys))
        return x @ weights["head.kernel"] + weights["head.bias"]

    def without_keys(weights: Any, x: Any) -> Any:
        return outputs(weights, x, None)

    init = init_of(_arrays(layout, side, channels, classes))
    return Network(init, outputs if draws else without_keys, (side, side, channels))
