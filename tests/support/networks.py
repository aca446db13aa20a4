"""Networks as in a user's package: of functions, and of Flax and Equinox modules."""

from typing import Literal

import equinox
import jax
from flax import linen, nnx
from jax import numpy as jnp

import fedping


@fedping.model("of-functions")
def of_functions(*, features: int, classes: int, width: int = 7, dropout: float = 0.5):
    """A network of functions with a hidden layer, with dropout unless it is 0."""

    def init(key):
        one, two = jax.random.split(key)
        return {
            "hidden": {"kernel": 0.3 * jax.random.normal(one, (features, width)), "bias": jnp.zeros(width)},
            "head": {"kernel": 0.3 * jax.random.normal(two, (width, classes)), "bias": jnp.zeros(classes)},
        }

    def dropping(weights, x, key):
        x = jax.nn.relu(x @ weights["hidden"]["kernel"] + weights["hidden"]["bias"])
        if key is not None and dropout:
            x = x * jax.random.bernoulli(key, 1 - dropout, x.shape) / (1 - dropout)
        return x @ weights["head"]["kernel"] + weights["head"]["bias"]

    def apply(weights, x):
        return dropping(weights, x, None)

    return fedping.Network(init, dropping if dropout else apply, features)


class OfLinen(linen.Module):
    """A convolution, dropout and a head; one number for each class."""

    classes: int
    quick: bool = True

    @linen.compact
    def __call__(self, x, train=False):
        convolution = fedping.convolution if self.quick else None
        x = linen.Conv(3, (3, 3), strides=2, name="body", conv_general_dilated=convolution)(x)
        x = linen.Dropout(0.4, deterministic=not train)(linen.gelu(x).reshape(len(x), -1))
        return linen.Dense(self.classes, name="head")(x)


class OfNnx(nnx.Module):
    """The same network in NNX; its random number streams have no stream ``default``."""

    def __init__(self, classes, rngs):
        self.body = nnx.Conv(1, 3, (3, 3), strides=2, rngs=rngs)
        self.dropout = nnx.Dropout(0.4, rngs=nnx.Rngs(dropout=3))
        self.head = nnx.Linear(48, classes, rngs=rngs)

    def __call__(self, x):
        return self.head(self.dropout(nnx.gelu(self.body(x)).reshape(len(x), -1)))


class OfEquinox(equinox.Module):
    """The same network in Equinox, for one example."""

    body: equinox.nn.Conv2d
    dropout: equinox.nn.Dropout
    head: equinox.nn.Linear

    def __init__(self, classes, key):
        one, two = jax.random.split(key)
        self.body = equinox.nn.Conv2d(1, 3, 3, stride=2, padding=1, key=one)
        self.dropout = equinox.nn.Dropout(0.4)
        self.head = equinox.nn.Linear(48, classes, key=two)

    def __call__(self, x, key):
        x = jax.nn.gelu(self.body(x.reshape(1, 8, 8))).reshape(-1)
        return self.head(self.dropout(x, key=key))


@fedping.model("of-linen")
def of_linen(*, classes: int):
    """A network by Flax's older interface."""
    return fedping.flax_network(OfLinen(classes), (8, 8, 1))


@fedping.model("of-nnx")
def of_nnx(*, classes: int):
    """A network by Flax's newer interface."""
    return fedping.flax_network(lambda rngs: OfNnx(classes, rngs), (8, 8, 1))


@fedping.model("of-equinox")
def of_equinox(*, classes: int):
    """A network by Equinox."""
    return fedping.equinox_network(lambda key: OfEquinox(classes, key), 64)


class WithNorm(linen.Module):
    """Batch norm and a head."""

    classes: int

    @linen.compact
    def __call__(self, x, train=False):
        return linen.Dense(self.classes, name="head")(linen.BatchNorm(not train, name="norm", momentum=0.8)(x))


@fedping.model("with-norm")
def with_norm(*, features: int, classes: int, keeps: Literal["average", "local"] = "local"):
    """A network with batch norm, whose statistics are averaged or local."""
    return fedping.flax_network(WithNorm(classes), features, buffers=keeps)


@fedping.model("sometimes-nan")
def sometimes_nan(*, features: int, classes: int):
    """A network whose training loss is NaN for the example with the largest number in the tests."""

    def apply(weights, x, train):
        outputs = x @ weights["head"]
        return jnp.where(train & (x.max() > 11.4), jnp.nan, 1.0) * outputs

    return fedping.Network(lambda key: {"head": jnp.zeros((features, classes))}, apply, features)
