"""Networks as a user's package has them: of functions, and of modules of Flax and Equinox."""

import jax
from jax import numpy as jnp

import fedping


@fedping.model("of-functions")
def of_functions(*, features: int, classes: int, width: int = 7, dropout: float = 0.5):
    """A hidden layer with dropout."""

    def init(key):
        one, two = jax.random.split(key)
        return {
            "hidden": {"kernel": 0.3 * jax.random.normal(one, (features, width)), "bias": jnp.zeros(width)},
            "head": {"kernel": 0.3 * jax.random.normal(two, (width, classes)), "bias": jnp.zeros(classes)},
        }

    def apply(weights, x, key):
        x = jnp.tanh(x @ weights["hidden"]["kernel"] + weights["hidden"]["bias"])
        if key is not None:
            x = x * jax.random.bernoulli(key, 1 - dropout, x.shape) / (1 - dropout)
        return x @ weights["head"]["kernel"] + weights["head"]["bias"]

    return fedping.Network(init, apply, features)
