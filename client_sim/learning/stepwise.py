"""A user's own client algorithms, written step by step for one client, in JAX.

Compiled rounds include such an algorithm in their program. Elsewhere its functions run for all clients of a batch at
once, with the model's gradients, so that the same source serves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from fedping.client_sim.learning.algorithm import State
from fedping.client_sim.learning.batch import Batch, FloatArray, Floats, counts
from fedping.client_sim.learning.mini_batches import local_steps
from fedping.client_sim.learning.model import Model, precision
from fedping.protocol.draws import Keys
from fedping.protocol.errors import FedpingError, InvalidSettings, as_raised

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


@dataclass(frozen=True, kw_only=True)
class Stepwise:
    """A client algorithm as functions of one client's arrays, written with ``jax.numpy``.

    A subclass has four methods, and ``init_state(model)`` if clients keep a state:

    - ``begin(weights, state)`` returns ``local``, a dict of arrays that a client changes during a training;
    - ``at(weights, local)`` returns the weights at which the gradient is taken, shape (m,);
    - ``step(weights, local, gradient)`` returns the next ``local``;
    - ``end(weights, local, state)`` returns the update, which the server adds, and the next state.

    ``weights`` are the fetched weights, in the model's precision. A client without examples sends zeros, and its state
    is unchanged.

    Attributes:
        steps: the number of steps; give either this or ``epochs``.
        epochs: number of passes over a client's examples.
        batch: the examples of a step, drawn without replacement in each epoch; all if None.
    """

    steps: Count | None = None
    epochs: Count | None = None
    batch: Count | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("it needs either 'steps' or 'epochs'; give one of them")

    def begin(self, weights: Any, state: dict[str, Any]) -> dict[str, Any]:
        """Return the initial state of a training."""
        raise NotImplementedError

    def at(self, weights: Any, local: dict[str, Any]) -> Any:
        """Return the weights at which the gradient is computed."""
        raise NotImplementedError

    def step(self, weights: Any, local: dict[str, Any], gradient: Any) -> dict[str, Any]:
        """Return the state after a step with a gradient."""
        raise NotImplementedError

    def end(self, weights: Any, local: dict[str, Any], state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the update and the next state."""
        raise NotImplementedError

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: State
    ) -> tuple[Floats, State]:
        """See :meth:`fedping.client_sim.learning.algorithm.Algorithm.update`; not used in compiled rounds."""
        import jax
        from jax import numpy as jnp

        own = 0 if weights.ndim > 1 else None

        def of_all(method: str, arguments: int) -> Any:
            return jax.vmap(partial(called, self, method), in_axes=(own, *[0] * arguments), axis_size=len(batch))

        def chosen(there: Any, one: Any, other: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(there.reshape(-1, *[1] * (jnp.ndim(a) - 1)), a, b), one, other)

        with jax.enable_x64(True):
            fetched = jnp.asarray(weights.astype(precision(model)))
            kept = {name: jnp.asarray(value) for name, value in state.items()}
            local = of_all("begin", 1)(fetched, kept)
            parts = local_steps(batch, keys, steps=self.steps, epochs=self.epochs, size=self.batch)
            for part, there in parts:
                at = np.asarray(of_all("at", 1)(fetched, local))
                gradient = jnp.asarray(model.gradients(at, part))
                local = chosen(there, of_all("step", 2)(fetched, local, gradient), local)
            sent, after = of_all("end", 2)(fetched, local, kept)
            present = counts(batch) > 0
            sent = np.where(present[:, None], np.asarray(sent), 0)
            after = chosen(present, {name: after[name].astype(kept[name].dtype) for name in kept}, kept)
        return sent, {name: np.array(value) for name, value in after.items()}

    def steps_taken(self, sizes: Any) -> Any:
        """Return the number of local steps of clients with these numbers of examples, shape (k,)."""
        each: Any = self.steps
        if self.epochs is not None:
            each = self.epochs * (np.ceil(sizes / self.batch) if self.batch else 1)
        return np.where(sizes > 0, each, 0)


def called(algorithm: Stepwise, method: str, weights: Any, *arguments: Any) -> Any:
    """Return the result of an algorithm's method for one client, while JAX traces it.

    Raises:
        InvalidSettings: JAX can't compile the method, or it returns arrays of other names or shapes than expected.
    """
    try:
        found = getattr(algorithm, method)(weights, *arguments)
        if method == "begin":
            _check_names(method, "arrays", found)
        elif method == "step":
            _check_names(method, "arrays", found, arguments[0])
            _check_shapes(found, arguments[0])
        elif method == "end":
            _, after = found
            _check_names(method, "state", after, arguments[1])
    except FedpingError:
        raise
    except Exception as error:
        raise InvalidSettings(
            f"JAX cannot compile its {method} ({as_raised(error)}); write begin, at, step and end with jax.numpy, for "
            "one client"
        ) from error
    return found


def _check_names(method: str, what: str, given: Any, expected: Mapping[str, Any] | None = None) -> None:
    """Raise unless a method returned a dict with the names of ``expected``, if any are expected."""
    if not isinstance(given, Mapping):
        raise InvalidSettings(f"{method} returned {type(given).__name__} as {what}; return a dict of arrays by name")
    if expected is not None and given.keys() != expected.keys():
        source = "init_state" if what == "state" else "begin"
        raise InvalidSettings(
            f"{method} returned {what} with the keys {_listed(given)}; return those of {source}: {_listed(expected)}"
        )


def _check_shapes(given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, before in expected.items():
        if (shape := np.shape(given[name])) != np.shape(before):
            raise InvalidSettings(
                f"step returned '{name}' of shape {list(shape)}; return the shape of begin: {list(np.shape(before))}"
            )


def _listed(keys: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, keys))) or "none"
