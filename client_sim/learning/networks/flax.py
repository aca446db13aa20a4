"""Modules of Flax as networks: of linen and of nnx."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from fedping.client_sim.learning.models.own_loss import Predicts
from fedping.client_sim.learning.networks.network import (
    Keeps,
    Losses,
    Network,
    Tree,
    jax_for,
    merged,
    package_for,
    part_of,
    refuse_buffers,
    running,
    structure_of,
    with_modes,
)
from fedping.protocol.errors import InvalidSettings

_MODES = {"train": True, "training": True, "is_training": True, "deterministic": False, "inference": False}
"""Names of the mode argument of a linen module's ``__call__``, with the argument's value in training."""


def flax_network(
    module: Any,
    shape: int | tuple[int, ...],
    *,
    loss: Losses | Callable[..., Any] = "cross_entropy",
    predict: Callable[[Any], Any] | None = None,
    predicts: Predicts | None = None,
    buffers: Keeps | None = None,
) -> Network:
    """Return a module of Flax as a network.

    A linen module gets a key for all its draws, and the mode if its ``__call__`` has a parameter ``train``,
    ``training``, ``is_training``, ``deterministic`` or ``inference``. A module of nnx is set to training or evaluation,
    and all its random streams are seeded for each step.

    Args:
        module: a linen module; or, for nnx, a function of ``rngs``, or a class, that returns a module.
        shape: the shape of an example; the module is called with x of shape (n, *shape).
        loss: see :class:`Network`.
        predict: see :class:`Network`.
        predicts: see :class:`Network`.
        buffers: the destination of buffers such as batch norm's statistics, see ``keeps`` of :class:`Network`; None to
            reject a module with buffers.

    Raises:
        InvalidSettings: Flax is not installed, or the module has buffers and ``buffers`` is None.
    """
    linen = package_for("flax.linen", "a module of Flax")
    sides = (shape,) if isinstance(shape, int) else tuple(shape)
    made = _linen(module, sides, buffers) if isinstance(module, linen.Module) else _nnx(module, buffers)
    more: dict[str, Any] = {"loss": loss, "predict": predict, "predicts": predicts, "keeps": buffers or "average"}
    return Network(made.init, made.apply, sides, buffers=made.buffers, **more)


class _Made(NamedTuple):
    """The functions of a network, and the names of its buffers."""

    init: Callable[[Any], Tree]
    apply: Callable[..., Any]
    buffers: tuple[str, ...]


_OR_KEEP = ', or say buffers = "average" or "local"'


def _linen(module: Any, shape: tuple[int, ...], keeps: Keeps | None) -> _Made:
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
    for each in others:
        if keeps is None or each != "batch_stats":
            or_keep = _OR_KEEP if each == "batch_stats" else ""
            refuse_buffers(_names(found[each])[0], "flax.linen.GroupNorm", or_keep)
    draws = _draws(module, found, shape, told(True))

    def apply(weights: Tree, x: Any, key: Any) -> Any:
        given = told(key is not None) | {"rngs": key if draws and key is not None else None}
        parts = {each: part_of(weights, found[each]) for each in found}
        if key is None or not others:
            return module.apply(parts, x, **given)
        outputs, after = module.apply(parts, x, mutable=others, **given)
        return outputs, merged(parts["params"], *after.values())

    def init(key: Any) -> Tree:
        return merged(*variables(key).values())

    names = tuple(name for each in others for name in _names(found[each]))
    return _Made(init, with_modes(apply, bool(modes) or draws or bool(others)), names)


def _draws(module: Any, variables: Any, shape: tuple[int, ...], told: dict[str, bool]) -> bool:
    """Return whether a linen module uses random keys in training."""
    jax, errors = jax_for("a module of Flax"), import_module("flax.errors")
    x = jax.ShapeDtypeStruct((1, *shape), "float32")
    try:
        with jax.enable_x64(False), running("__call__", f"x of shape {(1, *shape)}"):
            jax.eval_shape(lambda v, x: module.apply(v, x, mutable=list(v), **told), variables, x)
    except InvalidSettings as error:
        if isinstance(error.__cause__, errors.InvalidRngError):
            return True
        raise
    return False


def _nnx(make: Any, keeps: Keeps | None) -> _Made:
    nnx, jax = package_for("flax.nnx", "a module of Flax"), jax_for("a module of Flax")
    if isinstance(make, nnx.Module) or not callable(make):
        raise InvalidSettings(
            f"flax_network is given a {type(make).__name__}; give a module of linen, or, for nnx, a function of 'rngs' "
            "that returns a module, so that each seed has its start"
        )
    module = _made(nnx, make, nnx.Rngs(0))
    kinds = (nnx.Param, nnx.BatchStat)
    graph, *arrays, others = nnx.split(module, *kinds, ...)
    pure = [nnx.to_pure_dict(each) for each in arrays]
    treedefs = [jax.tree_util.tree_structure(each) for each in arrays]
    flat = nnx.to_flat_state(others)
    odd = [".".join(map(str, path)) for path, each in flat if not issubclass(_kind(each), nnx.RngState)]
    if odd:
        refuse_buffers(odd[0], "flax.nnx.GroupNorm")
    buffers = _names(pure[1])
    if buffers and keeps is None:
        refuse_buffers(buffers[0], "flax.nnx.GroupNorm", _OR_KEEP)
    draws = any(issubclass(_kind(each), nnx.RngKey) for _, each in flat)
    has_modes = draws or any(hasattr(each, "deterministic") for _, each in nnx.iter_graph(module))

    def seeded(key: Any) -> Any:
        """Return the state of the random streams, each with its own key."""
        found, at = [], 0
        for path, each in nnx.to_flat_state(others):
            if key is not None and issubclass(_kind(each), nnx.RngKey):
                each = each.replace(jax.random.fold_in(key, at))
                at += 1
            found.append((path, each))
        return nnx.from_flat_state(found)

    def apply(weights: Tree, x: Any, key: Any) -> Any:
        leaves = (jax.tree_util.tree_leaves(part_of(weights, each)) for each in pure)
        states = (treedef.unflatten(each) for treedef, each in zip(treedefs, leaves, strict=True))
        now = nnx.merge(graph, *states, seeded(key), copy=True)
        if key is None:
            now.eval()
            return now(x)
        now.train()
        outputs = now(x)
        return (outputs, pure_of(now)) if buffers else outputs

    def pure_of(module: Any) -> Tree:
        return merged(*map(nnx.to_pure_dict, nnx.split(module, *kinds, ...)[1:-1]))

    def init(key: Any) -> Tree:
        return pure_of(_made(nnx, make, nnx.Rngs(key)))

    return _Made(init, with_modes(apply, has_modes or bool(buffers)), buffers)


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


def _names(tree: Any) -> tuple[str, ...]:
    return structure_of(tree).names if jax_for("a module of Flax").tree_util.tree_leaves(tree) else ()
