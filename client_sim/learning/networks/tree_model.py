"""A network as a model that many clients train at once; its consecutive arrays are the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.learning.batch import Examples, FloatArray, Floats, finite, padded, shares
from fedping.client_sim.learning.models.arrays import InPrecision, Precision, array
from fedping.client_sim.learning.models.own_loss import predictions_of, scores_of
from fedping.client_sim.learning.networks.network import Network, jax_for, running
from fedping.protocol.draws import Keys
from fedping.protocol.errors import FedpingError, InvalidSettings
from fedping.protocol.spec import Block
from fedping.protocol.weights import SingleNumbers

_NUMBERS = 2**24
"""Approximate number of values that a call computes, for several clients or many examples."""

_FEW, _MANY, _CLIENTS = 16, 128, 8
"""Numbers of examples and of clients in a call; only a few sizes, because each size is compiled separately."""


class Functions(NamedTuple):
    """A network as functions of its weights, shape (m,), in its own precision, regardless of JAX's settings.

    Attributes:
        loss: returns an example's loss, given weights, its features, shape (d,), its target, and a key, None outside
            training.
        predictions: returns predictions, shape (n,) or (n, c), given weights and features, shape (n, d).
    """

    loss: Callable[[Any, Any, Any, Any], Any]
    predictions: Callable[[Any, Any], Any]


@lru_cache(maxsize=64)
def functions_of(network: Network, precision: Precision) -> Functions:
    """Return the functions of a network, the same objects each time, so that compilations are shared."""
    jax, structure = jax_for("a network"), network.structure

    def loss(weights: Any, x: Any, y: Any, key: Any) -> Any:
        with jax.enable_x64(precision == "float64"):
            outputs = network.outputs(structure.tree(weights), x[None], key)
            return network.losses(outputs, x[None], y[None])[0]

    def predictions(weights: Any, x: Any) -> Any:
        with jax.enable_x64(precision == "float64"):
            return network.predictions(network.outputs(structure.tree(weights), x, None))

    return Functions(loss, predictions)


def words_of(keys: Keys) -> NDArray[np.uint32]:
    """Return keys in JAX's format, shape (k, 2)."""
    high, low = keys >> np.uint64(32), keys & np.uint64(2**32 - 1)
    return np.stack([high, low], axis=-1).astype(np.uint32)


def key_of(words: Any, place: Any) -> Any:
    """Return the random key of an example of a step.

    Args:
        words: the step's key, shape (2,), from :func:`words_of`.
        place: the example's position in the step.
    """
    random = jax_for("a network").random
    return random.fold_in(random.wrap_key_data(words, impl="threefry2x32"), place)


@dataclass(frozen=True)
class TreeModel(InPrecision):
    """A network as a model; see :class:`fedping.client_sim.learning.networks.network.Network`.

    The loss of a client is the mean over its examples, each computed alone. Losses and predictions are computed as in
    evaluation, and gradients as in training if the examples have keys (:attr:`Examples.keys`).

    Attributes:
        name: the model's name.
        network: the network.
        blocks: its arrays with their start values.
        precision: the precision of its arithmetic.
    """

    name: str
    network: Network
    blocks: tuple[Block, ...]
    precision: Precision = "float32"

    @property
    def arrays(self) -> tuple[Block, ...]:
        """See :attr:`fedping.client_sim.learning.models.arrays.OfArrays.arrays`."""
        return self.blocks

    @property
    def features(self) -> int:
        """The number of features of an example."""
        return self.network.features

    @property
    def classes(self) -> int | None:
        """The number of classes that the model predicts; None if it predicts numbers."""
        if self.network.of_log_odds != "log_odds":
            return None
        outputs = outputs_of(self.network)[1:]
        return outputs[0] if outputs else 2

    @property
    def has_modes(self) -> bool:
        """See :func:`fedping.client_sim.learning.model.has_modes`."""
        return self.network.has_modes

    @cached_property
    def buffers(self) -> NDArray[np.bool_] | None:
        """Whether each weight is untrained, shape (m,); None if all are trained."""
        names = self.network.buffer_names
        sizes = [math.prod(block.shape) for block in self.blocks]
        return np.repeat([block.name in names for block in self.blocks], sizes) if names else None

    @property
    def functions(self) -> Functions:
        """The network as functions of its weights."""
        return functions_of(self.network, self.precision)

    @cached_property
    def floats_per_example(self) -> int:
        """See :class:`fedping.client_sim.learning.model.HasPrecision`; the values of all operations in both passes."""
        return 2 * numbers_of_an_example(self.network)

    def losses(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.losses`.

        Raises:
            FedpingError: a loss is not a finite number, or the examples do not fit the network.
        """
        self.check_examples(batch.x, batch.largest)
        each = self._of_examples(_compiled(self.network, self.precision).losses, weights, batch)
        at, found = np.nonzero(batch.weight > 0)[0], np.zeros(len(batch))
        np.add.at(found, at, shares(batch)[batch.weight > 0] * each)
        return finite(found, self._loss_in_words)

    def gradients(self, weights: FloatArray, batch: Examples) -> Floats:
        """See :meth:`fedping.client_sim.learning.model.Model.gradients`; raises as :meth:`losses`."""
        return self._both(weights, batch)[1]

    def losses_and_gradients(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """See :class:`fedping.client_sim.learning.model.GivesBoth`; the losses are computed as in evaluation."""
        losses, gradients = self._both(weights, batch)
        return (self.losses(weights, batch) if self.network.has_modes and batch.keys is not None else losses), gradients

    def predict(self, weights: FloatArray, batch: Examples) -> FloatArray:
        """See :meth:`fedping.client_sim.learning.model.Model.predict`; log-odds are turned into probabilities.

        Raises:
            FedpingError: a prediction is not finite, or the examples do not fit the network.
        """
        return self.predictions_and_scores(weights, batch)[0]

    def predictions_and_scores(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, FloatArray | None]:
        """See :class:`fedping.client_sim.learning.model.GivesScores`; raises as :meth:`predict`."""
        self.check_examples(batch.x, batch.largest)
        there, predicts = batch.weight > 0, self.network.of_log_odds
        said = np.zeros((*there.shape, *outputs_of(self.network)[1:]))
        said[there] = self._of_examples(_compiled(self.network, self.precision).predictions, weights, batch)
        return predictions_of(self.network.apply, said, there, predicts), scores_of(said, predicts)

    def check_examples(self, x: Floats, largest: float) -> None:
        """Raise :class:`FedpingError` unless examples have this network's shape, and their classes its outputs.

        Args:
            x: features, shape (..., d).
            largest: the largest target.
        """
        features, symbols = x.shape[-1], self.network.vocabulary
        if features != self.features:
            raise FedpingError(
                f"the model '{self.name}' takes examples of shape {list(self.network.sides)}, {self.features:,} "
                f"numbers, but the examples have {features:,} features; choose other data, or another shape"
            )
        if symbols is not None and x.size and not (x.min() >= 0 and max(x.max(), largest) < symbols):
            raise FedpingError(
                f"the model '{self.name}' knows {symbols:,} symbols, and examples have numbers from {x.min():g} to "
                f"{max(x.max(), largest):g}; number symbols from 0, or give the network more"
            )
        classes = outputs_of(self.network)[1:]
        if self.network.loss == "cross_entropy" and largest >= (max(classes[-1], 2) if classes else 2):
            raise FedpingError(
                f"the model '{self.name}' distinguishes {classes[-1] if classes else 2} classes, but an example has "
                f"the class {largest:g}, from 0; give the network an output for each class"
            )

    def _both(self, weights: FloatArray, batch: Examples) -> tuple[FloatArray, Floats]:
        """Return each client's loss and gradient: those of training if the examples have keys."""
        k, n = batch.weight.shape
        self.check_examples(batch.x, batch.largest)
        if self.buffers is not None and batch.keys is not None:
            return self._of_whole_batches(weights, batch, batch.keys)
        words = words_of(batch.keys) if batch.keys is not None and self.network.has_modes else None
        own, share = np.broadcast_to(self.own(weights), (k, self.m)), shares(batch, self.dtype)
        losses, gradients = np.zeros(k), np.zeros((k, self.m), self.dtype)
        width = _FEW if n <= 3 * _FEW or _MANY * self.floats_per_example > _NUMBERS else _MANY
        rows = 1 if k == 1 or _CLIENTS * (width * self.floats_per_example + 3 * self.m) > _NUMBERS else _CLIENTS
        run = _compiled(self.network, self.precision).gradients
        for low in range(0, n, width):
            for first in range(0, k, rows):
                at = slice(first, min(first + rows, k))
                part = share[at, low : low + width]
                if not part.any():
                    continue
                columns = [padded(each[at, low : low + width], rows, width) for each in (batch.x, batch.y, share)]
                some_words = None if words is None else padded(words[at], rows)
                found = self._run(run, padded(own[at], rows), *columns, some_words, np.int32(low))
                losses[at] += np.asarray(found[0], np.float64)[: len(part)]
                gradients[at] += np.asarray(found[1])[: len(part)]
        if self.buffers is not None:
            gradients[:, self.buffers] = 0.0
        return finite(losses, self._loss_in_words), gradients

    def _of_whole_batches(self, weights: FloatArray, batch: Examples, keys: Keys) -> tuple[FloatArray, Floats]:
        """Return losses and gradients of training where examples depend on each other, as in batch norm.

        Padding would change the results, so clients with equal numbers of examples are computed together. A buffer's
        gradient leads to its new value in a step of rate 1.
        """
        k, there, words = len(batch), batch.weight > 0, words_of(keys)
        own, share = np.broadcast_to(self.own(weights), (k, self.m)), shares(batch, self.dtype)
        losses, gradients = np.zeros(k), np.zeros((k, self.m), self.dtype)
        numbers, first = there.sum(axis=1), np.argsort(~there, axis=1, kind="stable")
        run = _of_whole_batch(self.network, self.precision)
        for count in np.unique(numbers[numbers > 0]):
            clients = np.flatnonzero(numbers == count)
            for some in np.array_split(clients, -(-len(clients) // _CLIENTS)):
                at = np.resize(some, _CLIENTS if len(clients) > 1 else 1)  # repeats clients in place of padding
                rows = (at[:, None], first[at, :count])
                found = self._run(run, own[at], batch.x[rows], batch.y[rows], share[rows], words[at])
                losses[some] = np.asarray(found[0], np.float64)[: len(some)]
                gradients[some] = np.asarray(found[1])[: len(some)]
        return finite(losses, self._loss_in_words), gradients

    def _of_examples(self, run: Callable[..., Any], weights: FloatArray, batch: Examples) -> FloatArray:
        """Return the result for each existing example, client by client, shape (examples, ...)."""
        there, own = batch.weight > 0, self.own(weights)
        found = []
        for client in range(len(batch) if own.ndim == 2 else 1):
            some = there if own.ndim == 1 else there & (np.arange(len(batch)) == client)[:, None]
            x, y = batch.x[some], batch.y[some]
            at = own if own.ndim == 1 else own[client]
            width = _FEW if len(x) <= 3 * _FEW or _MANY * self.floats_per_example > _NUMBERS else _MANY
            for low in range(0, len(x), width):
                part = x[low : low + width]
                each = self._run(run, at, padded(part, width), padded(y[low : low + width], width))
                found.append(np.asarray(each, np.float64)[: len(part)])
        return np.concatenate(found) if found else np.zeros((0, *outputs_of(self.network)[1:]))

    @property
    def _loss_in_words(self) -> str:
        return f"the loss of the model '{self.name}'"

    def _run(self, run: Callable[..., Any], weights: Floats, x: Floats, *more: Any) -> Any:
        """Return the result of a compiled function in the model's precision."""
        with jax_for("a network").enable_x64(self.precision == "float64"):
            return run(weights, x.astype(self.precision, copy=False), *more)


class _Compiled(NamedTuple):
    """Compiled functions.

    Attributes:
        losses: returns the losses of evaluation, (n,), given weights (m,), x (n, d) and y (n,).
        predictions: returns predictions, (n,) or (n, c), given weights (m,) and x (n, d).
        gradients: returns losses (k,) and gradients (k, m), given weights (k, m), x, y, shares (k, n), words of keys
            (k, 2) or None for evaluation, and the position of the first example.
    """

    losses: Callable[..., Any]
    predictions: Callable[..., Any]
    gradients: Callable[..., Any]


@lru_cache(maxsize=64)
def _compiled(network: Network, precision: Precision) -> _Compiled:
    jax = jax_for("a network")
    jnp, functions = jax.numpy, functions_of(network, precision)

    def losses(weights: Any, x: Any, y: Any) -> Any:
        return jax.vmap(lambda one, target: functions.loss(weights, one, target, None))(x, y)

    def of_client(weights: Any, x: Any, y: Any, share: Any, words: Any, first: Any) -> Any:
        def one(example: Any, target: Any, place: Any) -> Any:
            key = None if words is None else key_of(words, place)
            return functions.loss(weights, example, target, key)

        each = jax.vmap(one)(x, y, first + jnp.arange(len(x), dtype=jnp.int32))
        # Padding must not make the sum NaN.
        return jnp.sum(jnp.where(share > 0, share * each, 0))

    def gradients(weights: Any, x: Any, y: Any, share: Any, words: Any, first: Any) -> Any:
        axes = (0, 0, 0, 0, None if words is None else 0, None)
        return jax.vmap(jax.value_and_grad(of_client), in_axes=axes)(weights, x, y, share, words, first)

    return _Compiled(jax.jit(losses), jax.jit(lambda w, x, y: functions.predictions(w, x)), jax.jit(gradients))


@lru_cache(maxsize=64)
def _of_whole_batch(network: Network, precision: Precision) -> Callable[..., Any]:
    """Return the compiled function from weights (k, m), x, y, shares and keys' words (k, 2) to losses and gradients."""
    jax, structure = jax_for("a network"), network.structure
    sizes = [math.prod(shape) for shape in structure.shapes]
    held = np.repeat([name in network.buffer_names for name in structure.names], sizes)

    def loss(weights: Any, x: Any, y: Any, share: Any, words: Any) -> Any:
        outputs, after = network.outputs(structure.tree(weights), x, key_of(words, 0))
        return jax.numpy.sum(share * network.losses(outputs, x, y)), structure.flat(after)

    def both(weights: Any, x: Any, y: Any, share: Any, words: Any) -> Any:
        (found, after), slopes = jax.value_and_grad(loss, has_aux=True)(weights, x, y, share, words)
        return found, jax.numpy.where(held, weights - after, slopes)

    compiled: Callable[..., Any] = jax.jit(jax.vmap(both))
    return compiled


@lru_cache(maxsize=64)
def outputs_of(network: Network) -> tuple[int, ...]:
    """Return the shape of the predictions of one example, (1,) or (1, c), after checking the functions' results.

    Raises:
        InvalidSettings: a function fails or returns something else.
    """
    jax = jax_for("a network")
    jnp, structure = jax.numpy, network.structure
    given = f"weights and x of shape {(1, *network.sides)}"
    for key in (None, jax.random.key(0)):
        with jax.enable_x64(False):
            weights, x = jnp.zeros(structure.m), jnp.zeros((1, network.features))
            with running("apply", given):
                outputs = jax.eval_shape(lambda w, x, key=key: network.outputs(structure.tree(w), x, key), weights, x)
        if network.buffer_names and key is not None:
            if not isinstance(outputs, tuple) or jax.tree_util.tree_structure(outputs[1]) != structure.treedef:
                raise InvalidSettings(
                    "'apply' of the network, which has 'buffers', returned no outputs and tree like the weights in "
                    "training; return both"
                )
            outputs = outputs[0]
        if not getattr(outputs, "shape", ()) or outputs.shape[0] != 1:
            raise InvalidSettings(
                f"'apply' of the network returned {_shown(outputs)}, given {given}; return an array with a row for "
                "each example"
            )
    if network.loss == "squared_error" and outputs.size != 1:
        raise InvalidSettings(
            f"'apply' of the network returned {_shown(outputs)} for one example, and a squared error is of one number; "
            "return one, or give another 'loss'"
        )
    if network.loss == "cross_entropy" and len(outputs.shape) > 2:
        raise InvalidSettings(
            f"'apply' of the network returned {_shown(outputs)} for one example; return log-odds of shape (n, c), or "
            "give your own 'loss'"
        )
    with jax.enable_x64(False), running("loss", f"outputs of shape {outputs.shape} and y of shape (1,)"):
        loss = jax.eval_shape(lambda o, x, y: network.losses(o, x, y), outputs, x, jnp.zeros(1))
    if getattr(loss, "shape", None) != (1,):
        raise InvalidSettings(
            f"'loss' of the network returned {_shown(loss)} for one example; return a number for each example, of "
            "shape (n,)"
        )
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise InvalidSettings(
            f"'loss' of the network returned an array of {loss.dtype}, which has no gradient; return floating-point "
            "numbers"
        )
    with jax.enable_x64(False), running("predict", f"outputs of shape {outputs.shape}"):
        found = jax.eval_shape(network.predictions, outputs)
    shape = tuple(getattr(found, "shape", ()))
    if len(shape) not in (1, 2) or shape[0] != 1:
        raise InvalidSettings(
            f"the network predicts {_shown(found)} for one example; give a function 'predict' of the outputs that "
            "returns shape (n,), or (n, c) for c classes"
        )
    return shape


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"an array of shape {tuple(shape)}"


@lru_cache(maxsize=64)
def numbers_of_an_example(network: Network) -> int:
    """Return the number of values that the network computes per additional example."""
    jax = jax_for("a network")
    structure = network.structure

    def computed(examples: int) -> int:
        with jax.enable_x64(False):
            made = jax.make_jaxpr(lambda w, x: network.outputs(structure.tree(w), x, None))(
                jax.ShapeDtypeStruct((structure.m,), "float32"),
                jax.ShapeDtypeStruct((examples, network.features), "float32"),
            )
        return _numbers_in(made.jaxpr)

    return max(computed(2) - computed(1), network.features)


def _numbers_in(jaxpr: Any) -> int:
    """Return the number of values that a program's operations compute; a loop counts once per iteration."""
    total = 0
    for step in jaxpr.eqns:
        inner = [_numbers_in(each) for each in programs_in(step.params)]
        turns = step.params.get("length", 1)
        own = sum(math.prod(made.aval.shape) for made in step.outvars if hasattr(made.aval, "shape"))
        total += turns * sum(inner) if inner else own
    return total


@lru_cache(maxsize=64)
def has_convolutions(network: Network) -> bool:
    """Return whether a network uses JAX's convolutions, which are slow if each client has its own weights."""
    jax, structure = jax_for("a network"), network.structure
    with jax.enable_x64(False):
        made = jax.make_jaxpr(lambda w, x: network.outputs(structure.tree(w), x, None))(
            jax.ShapeDtypeStruct((structure.m,), "float32"), jax.ShapeDtypeStruct((1, network.features), "float32")
        )
    return _has_convolutions(made.jaxpr)


def _has_convolutions(jaxpr: Any) -> bool:
    return any(
        step.primitive.name == "conv_general_dilated" or any(map(_has_convolutions, programs_in(step.params)))
        for step in jaxpr.eqns
    )


def programs_in(params: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the programs nested in an operation of a JAX program."""
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            found = getattr(each, "jaxpr", each)
            if hasattr(found, "eqns"):
                yield found


@lru_cache(maxsize=16)
def start_of(network: Network, seed: int) -> FloatArray:
    """Return a network's start weights for a seed, shape (m,).

    Raises:
        InvalidSettings: ``init`` fails, or returns numbers that are not finite.
    """
    jax = jax_for("a network")
    structure = network.structure
    with jax.enable_x64(False), running("init", "a key"):
        drawn = jax.jit(lambda key: structure.flat(network.init(key)))(jax.random.key(seed))
        found = np.asarray(drawn, np.float64)
    if not np.isfinite(found).all():
        raise InvalidSettings("'init' of the network returned numbers that are not finite; fix it")
    found.flags.writeable = False
    return found


def blocks_of(network: Network, seed: int) -> tuple[Block, ...]:
    """Return the arrays of a network as blocks of a spec, with the start values of ``init`` for this seed."""
    structure, start, at, found = network.structure, start_of(network, seed), 0, []
    for name, shape in zip(structure.names, structure.shapes, strict=True):
        size = math.prod(shape)
        found.append(array(name, shape or (1,), SingleNumbers.of(start[at : at + size])))
        at += size
    return tuple(found)


def tree_model(name: str, network: Network, seed: int, precision: Precision = "float32") -> TreeModel:
    """Return a network as a model.

    Args:
        name: the model's name.
        network: the network.
        seed: seed of the start values.
        precision: the precision of its arithmetic.

    Raises:
        InvalidSettings: JAX is missing, or a function of the network fails or returns an unsuitable value.
    """
    jax_for(f"the model '{name}'")
    outputs_of(network)
    return TreeModel(name, network, blocks_of(network, seed), precision)
