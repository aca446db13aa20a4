"""Modules of Equinox as networks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fedping.client_sim.learning.models.own_loss import Predicts
from fedping.client_sim.learning.networks.network import (
    Losses,
    Network,
    Tree,
    jax_for,
    package_for,
    refuse_buffers,
    running,
    with_modes,
)
from fedping.protocol.errors import InvalidSettings


def equinox_network(
    make: Callable[..., Any],
    shape: int | tuple[int, ...],
    *,
    loss: Losses | Callable[..., Any] = "cross_entropy",
    predict: Callable[[Any], Any] | None = None,
    predicts: Predicts | None = None,
) -> Network:
    """Return a module of Equinox as a network.

    The module is called with one example at a time, of shape ``shape``, and with a ``key`` if its ``__call__`` has
    this parameter. Outside training the module is in inference mode, and the key is None.

    Args:
        make: a function of a random key, or a class, that returns a module; its parameter may be named ``key``.
        shape: the shape of an example.
        loss: see :class:`Network`.
        predict: see :class:`Network`.
        predicts: see :class:`Network`.

    Raises:
        InvalidSettings: Equinox is not installed, or the module has state, such as the statistics of batch norm.
    """
    equinox, jax = package_for("equinox", "a module of Equinox"), jax_for("a module of Equinox")
    module = _made(equinox, make, jax.random.key(0))
    index = equinox.nn.StateIndex
    for path, each in jax.tree_util.tree_flatten_with_path(module, is_leaf=lambda each: isinstance(each, index))[0]:
        if isinstance(each, index):
            refuse_buffers(jax.tree_util.keystr(path, simple=True, separator="."), "equinox.nn.GroupNorm")
    static = equinox.partition(module, equinox.is_inexact_array)[1]
    draws = "key" in inspect.signature(type(module).__call__).parameters
    modes = any(hasattr(each, "inference") for each in jax.tree_util.tree_leaves(module, is_leaf=_is_mode))

    def init(key: Any) -> Tree:
        return equinox.partition(_made(equinox, make, key), equinox.is_inexact_array)[0]

    def apply(weights: Tree, x: Any, key: Any) -> Any:
        module = equinox.nn.inference_mode(equinox.combine(weights, static), value=key is None)
        more = {"key": key} if draws else {}
        return jax.vmap(lambda one: module(one, **more))(x)

    sides = (shape,) if isinstance(shape, int) else tuple(shape)
    return Network(init, with_modes(apply, draws or modes), sides, loss=loss, predict=predict, predicts=predicts)


def _is_mode(each: Any) -> bool:
    return hasattr(each, "inference")


def _made(equinox: Any, make: Callable[..., Any], key: Any) -> Any:
    if not callable(make) or isinstance(make, equinox.Module):
        raise InvalidSettings(
            "equinox_network is given a module; give a function of a key that returns one, so that each seed has "
            "its start"
        )
    with running("the module's function", "a key"):
        try:
            named = "key" in inspect.signature(make).parameters
        except (TypeError, ValueError):
            named = False
        module = make(key=key) if named else make(key)
    if isinstance(module, tuple) and any(isinstance(each, equinox.nn.State) for each in module):
        refuse_buffers("State", "equinox.nn.GroupNorm")
    if not isinstance(module, equinox.Module):
        raise InvalidSettings(
            f"the function given to equinox_network returned a {type(module).__name__}; return an equinox.Module"
        )
    return module
