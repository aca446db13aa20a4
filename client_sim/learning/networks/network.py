"""Your own network: a tree of named arrays, and functions of this tree, written with JAX.

    import jax
    import fedping

    def init(key):
        return {"layer": {"kernel": 0.1 * jax.random.normal(key, (64, 10)), "bias": jax.numpy.zeros(10)}}

    def apply(weights, x):
        return x @ weights["layer"]["kernel"] + weights["layer"]["bias"]

    network = fedping.Network(init, apply, shape=(64,))

The arrays are the blocks of a spec, named by their place in the tree: ``layer.bias`` and ``layer.kernel``.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

from fedping.client_sim.learning.models.own_loss import Predicts
from fedping.protocol.errors import FedpingError, InvalidSettings, as_raised
from fedping.protocol.weights import NAME_PATTERN

Tree: TypeAlias = Any
"""Arrays in dicts, lists, tuples, or any other container that JAX supports."""

Losses: TypeAlias = Literal["cross_entropy", "squared_error"]

Keeps: TypeAlias = Literal["average", "local"]
"""Destination of buffers: averaged over clients, or kept by each client."""

Apply: TypeAlias = Callable[..., Any]
"""Function from a tree and examples, shape (n, ...), to outputs with a row for each example."""


@dataclass(frozen=True, eq=False)
class Network:
    """A network, as a tree of arrays and functions written with ``jax.numpy``.

    Clients train on each example alone, so ``apply`` then sees ``x`` with n = 1, and no example can depend on another.

    Attributes:
        init: returns the tree of arrays that training starts from, given a JAX random key.
        apply: returns the outputs of examples: ``apply(weights, x)``, with x of shape (n, *shape). A parameter ``key``
            gets a random key in training, for dropout or augmentation, and else None; a parameter ``train`` gets
            whether it is training.
        shape: the shape of an example, filled with its features row by row.
        loss: the loss of outputs and targets: ``cross_entropy`` for outputs that are log-odds of classes,
            ``squared_error``, or a function ``loss(outputs, y)`` that returns a number for each example, shape (n,). A
            third parameter ``x`` gets the examples.
        predict: returns predictions, shape (n,) or (n, c), given outputs; None if the outputs are the predictions.
        predicts: whether predictions of classes are ``values``, which are probabilities, or ``log_odds``; if None,
            log-odds for the loss ``cross_entropy``, and values for other losses.
        buffers: the names of arrays that are not trained, or of their layers, such as the statistics of batch norm.
            With buffers, ``apply`` in training sees all examples of a step, and returns outputs and a tree like
            ``weights``, from which the client takes the buffers.
        keeps: the destination of the buffers: their ``average`` is part of each version, or they are ``local``, and
            'local' of a personal training has to name them.
        vocabulary: the number of symbols, if an example is a sequence of symbols' numbers, such as words of a text;
            None if its features are quantities.
    """

    init: Callable[[Any], Tree]
    apply: Apply
    shape: int | tuple[int, ...]
    loss: Losses | Callable[..., Any] = "cross_entropy"
    predict: Callable[[Any], Any] | None = None
    predicts: Predicts | None = None
    buffers: tuple[str, ...] = ()
    keeps: Keeps = "average"
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        if not shape or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in shape):
            raise InvalidSettings(f"the shape of a network's examples is {self.shape}; give whole numbers, as (28, 28)")
        object.__setattr__(self, "shape", shape)  # always a tuple from here on: `sides`
        for what in ("init", "apply"):
            if not callable(getattr(self, what)):
                raise InvalidSettings(f"'{what}' of a network is not a function. Give one")
        if not callable(self.loss) and self.loss not in ("cross_entropy", "squared_error"):
            raise InvalidSettings(
                f"the loss of a network is {self.loss!r}; give 'cross_entropy', 'squared_error', or a function of "
                "outputs and targets"
            )

    @property
    def sides(self) -> tuple[int, ...]:
        """The shape of an example as a tuple, even if it was given as a number."""
        return (self.shape,) if isinstance(self.shape, int) else self.shape

    @property
    def features(self) -> int:
        """The number of features of an example."""
        return math.prod(self.sides)

    @cached_property
    def draws(self) -> bool:
        """Whether the network draws random numbers in training."""
        return "key" in _parameters(self.apply)

    @cached_property
    def has_modes(self) -> bool:
        """Whether training differs from evaluation."""
        return self.draws or "train" in _parameters(self.apply)

    @cached_property
    def structure(self) -> Structure:
        """The arrays' names and shapes.

        Raises:
            InvalidSettings: ``init`` fails, or returns anything but a tree of floating-point arrays.
        """
        jax = jax_for("a network")
        with jax.enable_x64(False), running("init", "a key"):
            tree = jax.eval_shape(self.init, jax.random.key(0))
        return structure_of(tree)

    @cached_property
    def buffer_names(self) -> frozenset[str]:
        """The names of the arrays that are not trained.

        Raises:
            InvalidSettings: a name doesn't belong to an array or a layer.
        """
        found = set[str]()
        for name in self.buffers:
            named = {each for each in self.structure.names if each == name or each.startswith(f"{name}.")}
            if not named:
                raise InvalidSettings(
                    f"'buffers' of the network names an unknown array '{name}'. Arrays: "
                    f"{', '.join(self.structure.names)}"
                )
            found |= named
        return frozenset(found)

    def outputs(self, tree: Tree, x: Any, key: Any) -> Any:
        """Return the outputs of examples, shape (n, ...), given features, shape (n, d); with a key, those of training.

        In training, a network with buffers returns outputs and a tree.
        """
        given: dict[str, Any] = {}
        if self.draws:
            given["key"] = key
        if "train" in _parameters(self.apply):
            given["train"] = key is not None
        return self.apply(tree, x.reshape((len(x), *self.sides)), **given)

    def losses(self, outputs: Any, x: Any, y: Any) -> Any:
        """Return the loss of each example, shape (n,)."""
        if callable(self.loss):
            more = {"x": x.reshape((len(x), *self.sides))} if "x" in _parameters(self.loss) else {}
            return self.loss(outputs, y, **more)
        return (cross_entropy if self.loss == "cross_entropy" else squared_error)(outputs, y)

    def predictions(self, outputs: Any) -> Any:
        """Return predictions of outputs, shape (n,) or (n, c)."""
        found = outputs if self.predict is None else self.predict(outputs)
        return found[:, 0] if getattr(found, "ndim", 0) == 2 and found.shape[1] == 1 else found

    @property
    def of_log_odds(self) -> Predicts:
        """The kind of the predictions of classes: values or log-odds."""
        return self.predicts or ("log_odds" if self.loss == "cross_entropy" else "values")


def cross_entropy(outputs: Any, y: Any) -> Any:
    """Return the cross-entropy of each class y, shape (n,), given log-odds, shape (n,), (n, 1) or (n, c)."""
    jax = jax_for("a network")
    if outputs.ndim == 1 or outputs.shape[1:] == (1,):
        score = outputs.reshape(len(outputs))
        return jax.nn.softplus(score) - y.astype(score.dtype) * score
    at = y.astype("int32")[:, None]
    return jax.nn.logsumexp(outputs, axis=-1) - jax.numpy.take_along_axis(outputs, at, axis=-1)[:, 0]


def squared_error(outputs: Any, y: Any) -> Any:
    """Return the squared error of each prediction, shape (n,), given outputs of shape (n,) or (n, 1)."""
    error = outputs.reshape(len(outputs)) - y.astype(outputs.dtype)
    return error * error


class Structure(NamedTuple):
    """The arrays of a tree, in the order of the tree.

    Attributes:
        names: each array's name, its path in the tree.
        shapes: each array's shape; () for a single number.
        treedef: JAX's description of the tree.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    treedef: Any

    def tree(self, weights: Any) -> Tree:
        """Return the tree of weights, shape (m,), as views."""
        leaves, at = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            leaves.append(weights[at : at + size].reshape(shape))
            at += size
        return self.treedef.unflatten(leaves)

    def flat(self, tree: Tree) -> Any:
        """Return the weights of a tree with this structure, shape (m,)."""
        jax = jax_for("a network")
        return jax.numpy.concatenate([leaf.reshape(-1) for leaf in jax.tree_util.tree_leaves(tree)])

    @property
    def m(self) -> int:
        """The number of weights."""
        return sum(map(math.prod, self.shapes))


def structure_of(tree: Tree) -> Structure:
    """Return the structure of a tree of arrays, or of their shapes.

    Raises:
        InvalidSettings: the tree has no array, an empty array, or an array of other than floating-point numbers; or
            two arrays have the same name.
    """
    jax = jax_for("a network")
    paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
    names, shapes = [], []
    for path, leaf in paths:
        name = _name(path)
        if not re.match(NAME_PATTERN, name) or len(name) > 64:
            raise InvalidSettings(
                f"an array of the network is named '{name}'; name arrays by at most 64 letters, digits, '_', '.' and "
                "'-', and begin with a letter or digit"
            )
        if name in names:
            raise InvalidSettings(f"two arrays of the network are named '{name}'; rename one of them")
        kind = getattr(leaf, "dtype", None)
        if kind is None or not jax.numpy.issubdtype(kind, jax.numpy.floating):
            raise InvalidSettings(
                f"'{name}' of the network is {f'an array of {kind}' if kind is not None else type(leaf).__name__}, and "
                "weights are floating-point arrays; keep it outside the tree"
            )
        if not math.prod(leaf.shape) or len(leaf.shape) > 8:
            raise InvalidSettings(
                f"the array '{name}' of the network has the shape {list(leaf.shape)}; give it at least one number, and "
                "at most eight axes"
            )
        names.append(name)
        shapes.append(tuple(map(int, leaf.shape)))
    if not names:
        raise InvalidSettings("the network has no arrays; return at least one from 'init'")
    return Structure(tuple(names), tuple(shapes), treedef)


def _name(path: Any) -> str:
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return re.sub(r"[^A-Za-z0-9_.-]", "_", ".".join(parts)).lstrip("_.-") or "weights"


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


@contextmanager
def running(function: str, given: str) -> Iterator[None]:
    """Turn the error of a user's function into a sentence that names the function.

    Args:
        function: the function's name in :class:`Network`.
        given: its arguments, in words.
    """
    try:
        yield
    except FedpingError:
        raise
    except Exception as error:
        raise InvalidSettings(
            f"'{function}' of the network failed, given {given}: {as_raised(error)}. Fix it, or the 'shape' "
            "of an example"
        ) from error


def with_modes(apply: Callable[[Tree, Any, Any], Any], modes: bool) -> Apply:
    """Return a function of (tree, x, key) as a network's ``apply``; without ``key`` if training equals evaluation."""
    return apply if modes else lambda weights, x: apply(weights, x, None)


def merged(*trees: Any) -> Any:
    """Return nested dicts merged into one."""
    found: dict[Any, Any] = {}
    for tree in trees:
        for name, value in tree.items():
            found[name] = merged(found[name], value) if name in found and isinstance(value, Mapping) else value
    return found


def part_of(tree: Any, like: Any) -> Any:
    """Return the entries of nested dicts whose keys also exist in ``like``."""
    return {name: part_of(tree[name], each) for name, each in like.items()} if isinstance(like, Mapping) else tree


def refuse_buffers(name: str, instead: str, or_keep: str = "") -> NoReturn:
    """Raise :class:`InvalidSettings` for a module with untrained arrays, one of which has this name."""
    raise InvalidSettings(
        f"the network has buffers, such as '{name}': arrays that are not trained, like the statistics of batch norm, "
        f"which differ between clients. Use group norm ({instead}), which has none{or_keep}"
    )


def package_for(module: str, what: str) -> Any:
    """Return a module of an optional package.

    Raises:
        InvalidSettings: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InvalidSettings(f"{what} needs {package}, which isn't installed. Run: pip install {package}") from error


def jax_for(what: str) -> Any:
    """Return JAX's module.

    Raises:
        InvalidSettings: it is not installed.
    """
    try:
        return import_module("jax")
    except ImportError as error:
        raise InvalidSettings(f'{what} needs JAX, which isn\'t installed. Run: pip install "fedping[jax]"') from error
