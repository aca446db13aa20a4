"""Modules of Flax as networks: of linen and of nnx."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
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

_MODES = {"train": True, "training": True, "is_training": True, "deterministic": False, "inference": False}
"""What a linen module calls the mode in its ``__call__``, and the value in training."""


def flax_network(
    module: Any,
    shape: int | tuple[int, ...],
    *,
    loss: Losses | Callable[..., Any] = "cross_entropy",
    predict: Callable[[Any], Any] | None = None,
    predicts: Predicts | None = None,
) -> Network:
    """Return a module of Flax as a network.

    A linen module gets a key for whatever it draws, and the mode if its ``__call__`` has a parameter ``train``,
    ``training``, ``is_training``, ``deterministic`` or ``inference``. A module of nnx is set to training or evaluation,
    and all its random streams are seeded for each step.

    Args:
        module: a linen module; or, for nnx, a function of ``rngs``, or a class, that returns a module.
        shape: the shape of an example; the module is called with x of shape (n, *shape).
        loss: see :class:`Network`, as for the others.
        predict: see :class:`Network`.
        predicts: see :class:`Network`.

    Raises:
        InvalidSettings: Flax is not installed, or the module has buffers, such as the statistics of batch norm.
    """
    linen = package_for("flax.linen", "a module of Flax")
    sides = (shape,) if isinstance(shape, int) else tuple(shape)
    init, apply = (_linen if isinstance(module, linen.Module) else _nnx)(module, sides)
    return Network(init, apply, sides, loss=loss, predict=predict, predicts=predicts)


def _linen(module: Any, shape: tuple[int, ...]) -> tuple[Callable[[Any], Tree], Callable[..., Any]]:
    jax = jax_for("a module of Flax")
    asked = inspect.signature(type(module).__call__).parameters
    modes = [name for name in _MODES if name in asked]

    def told(training: bool) -> dict[str, bool]:
        return {name: _MODES[name] == training for name in modes}

    def variables(key: Any) -> Any:
        return module.init(key, jax.numpy.zeros((1, *shape)), **told(False))

    with jax.enable_x64(False), running("__call__", f"x of shape {(1, *shape)}"):
        found = jax.eval_shape(variables, jax.random.key(0))
    others = [each for each in found if each != "params"]
    if others:
        refuse_buffers(_first_name(found[others[0]]), "flax.linen.GroupNorm")
    draws = _draws(module, found, shape, told(True))

    def apply(weights: Tree, x: Any, key: Any) -> Any:
        given = told(key is not None)
        return module.apply({"params": weights}, x, rngs=key if draws and key is not None else None, **given)

    return lambda key: variables(key)["params"], with_modes(apply, bool(modes) or draws)


def _draws(module: Any, variables: Any, shape: tuple[int, ...], told: dict[str, bool]) -> bool:
    """Return whether a linen module asks for random keys in training."""
    jax, errors = jax_for("a module of Flax"), import_module("flax.errors")
    x = jax.ShapeDtypeStruct((1, *shape), "float32")
    try:
        with jax.enable_x64(False), running("__call__", f"x of shape {(1, *shape)}"):
            jax.eval_shape(lambda v, x: module.apply(v, x, **told), variables, x)
    except InvalidSettings as error:
        if isinstance(error.__cause__, errors.InvalidRngError):
            return True
        raise
    return False


def _nnx(make: Any, shape: tuple[int, ...]) -> tuple[Callable[[Any], Tree], Callable[..., Any]]:
    nnx, jax = package_for("flax.nnx", "a module of Flax"), jax_for("a module of Flax")
    if isinstance(make, nnx.Module) or not callable(make):
        raise InvalidSettings(
            f"flax_network is given a {type(make).__name__}; give a module of linen, or, for nnx, a function of 'rngs' "
            "that returns a module, so that each seed has its start"
        )
    module = _made(nnx, make, nnx.Rngs(0))
    graph, weights, others = nnx.split(module, nnx.Param, ...)
    treedef = jax.tree_util.tree_structure(weights)
    flat = nnx.to_flat_state(others)
    buffers = [path for path, each in flat if not issubclass(_kind(each), nnx.RngState)]
    if buffers:
        refuse_buffers(".".join(map(str, buffers[0])), "flax.nnx.GroupNorm")
    draws = any(issubclass(_kind(each), nnx.RngKey) for _, each in flat)
    has_modes = draws or any(hasattr(each, "deterministic") for _, each in nnx.iter_graph(module))

    def seeded(key: Any) -> Any:
        """Return the state of the random streams, each with a key of its own."""
        found, at = [], 0
        for path, each in nnx.to_flat_state(others):
            if key is not None and issubclass(_kind(each), nnx.RngKey):
                each = each.replace(jax.random.fold_in(key, at))
                at += 1
            found.append((path, each))
        return nnx.from_flat_state(found)

    def apply(weights: Tree, x: Any, key: Any) -> Any:
        of_weights = treedef.unflatten(jax.tree_util.tree_leaves(weights))
        merged = nnx.merge(graph, of_weights, seeded(key), copy=True)
        if key is None:
            merged.eval()
        else:
            merged.train()
        return merged(x)

    def init(key: Any) -> Tree:
        return nnx.to_pure_dict(nnx.split(_made(nnx, make, nnx.Rngs(key)), nnx.Param, ...)[1])

    return init, with_modes(apply, has_modes)


def _made(nnx: Any, make: Callable[..., Any], rngs: Any) -> Any:
    with running("the module's function", "rngs"):
        try:
            named = "rngs" in inspect.signature(make).parameters
        except (TypeError, ValueError):
            named = False
        module = make(rngs=rngs) if named else make(rngs)
    if not isinstance(module, nnx.Module):
        raise InvalidSettings(
            f"the function given to flax_network returned a {type(module).__name__}; return a module of flax.nnx"
        )
    return module


def _kind(variable: Any) -> type:
    return getattr(variable, "type", type(variable)) if not isinstance(variable, type) else variable


def _first_name(tree: Any) -> str:
    paths, _ = jax_for("a module of Flax").tree_util.tree_flatten_with_path(tree)
    return ".".join(str(getattr(key, "key", key)) for key in paths[0][0]) if paths else "variables"
