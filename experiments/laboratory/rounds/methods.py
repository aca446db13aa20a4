"""Methods of clients' training in compiled rounds: control variates, mixtures, and local blocks.

A method is written for one client, in JAX, and runs in all lanes at once. It defines the weights at which gradients are
taken, the step, the sent update, and the client's new state. The formulas are those of `fedping.algorithms` and
`fedping.client_sim.learning.personal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from fedping.client_sim.learning.algorithm import ModelAndMore, State, bare
from fedping.client_sim.learning.algorithms import algorithm_for
from fedping.client_sim.learning.model import Model, precision
from fedping.client_sim.learning.personal.method import OWN_DRAWS
from fedping.client_sim.learning.personal.partly_local import DIVISION
from fedping.client_sim.learning.stepwise import Stepwise, called
from fedping.client_sim.learning.submodel import Part
from fedping.experiments.laboratory.rounds.aggregating import Arrays
from fedping.experiments.laboratory.rounds.compiling import Method, client_optimizer
from fedping.experiments.laboratory.rounds.lanes import Phase
from fedping.protocol.extensions import ExtensionFailed, extension_of
from fedping.protocol.local_optimizers import LocalDescent, LocalOptimizer
from fedping.protocol.personalization import PartlyLocal, Reconstruct
from fedping.protocol.training import LocalSteps, OneGradient, OwnTraining, Training


class Prepared(NamedTuple):
    """A method with the parts of a problem that it needs.

    Attributes:
        method: the method; None for plain training.
        phases: the steps of a training in order, with the draw of their examples.
        model: the model whose gradients are taken.
        first: the state of a client that has never trained.
        constants: arrays that all clients share.
        at_fetched: whether the first step is at the fetched weights, so that it gives the loss there.
    """

    method: Method | None
    phases: tuple[Phase, ...]
    model: Model[Any]
    first: State
    constants: Mapping[str, Any]
    at_fetched: bool


def _local_steps(own: Any) -> LocalSteps:
    return LocalSteps(rate=1.0, steps=own.steps, epochs=own.epochs, batch=own.batch)


@dataclass(frozen=True)
class ScaffoldMethod:
    """See :class:`fedping.algorithms.Scaffold`; with option I, phase 1 is the gradient at the fetched weights."""

    settings: Any
    m: int

    def whole(self, weights: Any, constants: Arrays) -> Any:
        """See :meth:`Method.whole`."""
        return weights[: self.m]

    def begin(self, weights: Any, kept: Arrays, constants: Arrays) -> Arrays:
        """See :meth:`Method.begin`."""
        from jax import numpy as jnp

        own = kept["control"]
        found = {"moved": jnp.zeros_like(own), "own": own, "steps": jnp.zeros(())}
        return found | ({"new": own} if self.settings.option == "I" else {})

    def at(self, weights: Any, local: Arrays, phase: Any) -> tuple[Any, ...]:
        """See :meth:`Method.at`."""
        from jax import numpy as jnp

        moved = local["moved"]
        return (weights[: self.m] + jnp.where(phase == 0, moved, 0),)

    def step(self, weights: Any, local: Arrays, slopes: tuple[Any, ...], phase: Any) -> Arrays:
        """See :meth:`Method.step`."""
        from jax import numpy as jnp

        [slope] = slopes
        trains = phase == 0
        corrected = slope - local["own"] + weights[self.m :]
        moved = jnp.where(trains, local["moved"] - self.settings.rate * corrected, local["moved"])
        after = {**local, "moved": moved, "steps": local["steps"] + trains}
        return after | ({"new": jnp.where(trains, local["new"], slope)} if "new" in local else {})

    def end(self, weights: Any, local: Arrays, kept: Arrays) -> tuple[Any, Arrays]:
        """See :meth:`Method.end`."""
        from jax import numpy as jnp

        own, moved = local["own"], local["moved"]
        if "new" in local:
            new = local["new"]
        else:
            new = (own - weights[self.m :] - moved / (local["steps"] * self.settings.rate)).astype(own.dtype)
        return jnp.concatenate([moved, self.settings.participation * (new - own)]), {"control": new}


@dataclass(frozen=True)
class FedDynMethod:
    """See :class:`fedping.algorithms.FedDyn`."""

    settings: Any
    m: int

    def whole(self, weights: Any, constants: Arrays) -> Any:
        """See :meth:`Method.whole`."""
        return weights[: self.m]

    def begin(self, weights: Any, kept: Arrays, constants: Arrays) -> Arrays:
        """See :meth:`Method.begin`."""
        from jax import numpy as jnp

        return {"moved": jnp.zeros_like(kept["gradient"]), "last": kept["gradient"]}

    def at(self, weights: Any, local: Arrays, phase: Any) -> tuple[Any, ...]:
        """See :meth:`Method.at`."""
        return (weights[: self.m] + local["moved"],)

    def step(self, weights: Any, local: Arrays, slopes: tuple[Any, ...], phase: Any) -> Arrays:
        """See :meth:`Method.step`."""
        moved = local["moved"]
        slope = slopes[0] - local["last"] + self.settings.alpha * moved
        return {**local, "moved": moved - self.settings.rate * slope}

    def end(self, weights: Any, local: Arrays, kept: Arrays) -> tuple[Any, Arrays]:
        """See :meth:`Method.end`."""
        from jax import numpy as jnp

        moved, share, alpha = local["moved"], self.settings.participation, self.settings.alpha
        sent = jnp.concatenate([(1 + share) * moved - weights[self.m :] / alpha, -alpha * share * moved])
        return sent, {"gradient": local["last"] - alpha * moved}


@dataclass(frozen=True)
class ApflMethod:
    """See :class:`fedping.algorithms.APFL`."""

    settings: Any
    m: int

    def whole(self, weights: Any, constants: Arrays) -> Any:
        """See :meth:`Method.whole`."""
        return weights

    def begin(self, weights: Any, kept: Arrays, constants: Arrays) -> Arrays:
        """See :meth:`Method.begin`."""
        from jax import numpy as jnp

        own = jnp.where(kept["begun"] > 0, kept["own"], weights)
        return {"moved": jnp.zeros_like(own), "own": own, "share": kept["share"], "first": jnp.ones((), bool)}

    def at(self, weights: Any, local: Arrays, phase: Any) -> tuple[Any, ...]:
        """See :meth:`Method.at`."""
        common, own = weights + local["moved"], local["own"]
        return common, common + local["share"].astype(own.dtype) * (own - common)

    def step(self, weights: Any, local: Arrays, slopes: tuple[Any, ...], phase: Any) -> Arrays:
        """See :meth:`Method.step`."""
        from jax import numpy as jnp

        rate, own, share = self.settings.rate, local["own"], local["share"]
        downhill, uphill = slopes
        common = weights + local["moved"]
        turn = jnp.where(local["first"], jnp.sum((own - common) * uphill), 0)
        of_share = rate if self.settings.share_rate is None else self.settings.share_rate
        return {
            "moved": local["moved"] - rate * downhill,
            "own": own - (rate * share * uphill).astype(own.dtype),
            "share": jnp.clip(share - of_share * turn, 0.0, 1.0),
            "first": jnp.zeros((), bool),
        }

    def end(self, weights: Any, local: Arrays, kept: Arrays) -> tuple[Any, Arrays]:
        """See :meth:`Method.end`."""
        from jax import numpy as jnp

        return local["moved"], {"own": local["own"], "share": local["share"], "begun": jnp.ones((), jnp.int8)}


@dataclass(frozen=True)
class OwnMethod:
    """An algorithm of an extension; see :class:`fedping.client_sim.learning.stepwise.Stepwise`.

    Attributes:
        code: digest of its source; together with ``settings``, as JSON, it identifies a compilation.
        instance: the algorithm.
        m: the number of the model's weights.
    """

    code: str
    settings: bytes
    instance: Stepwise = field(compare=False)
    m: int

    def whole(self, weights: Any, constants: Arrays) -> Any:
        """See :meth:`Method.whole`."""
        return weights[: self.m]

    def begin(self, weights: Any, kept: Arrays, constants: Arrays) -> Arrays:
        """See :meth:`Method.begin`."""
        from jax import numpy as jnp

        return {name: jnp.asarray(value) for name, value in called(self.instance, "begin", weights, kept).items()}

    def at(self, weights: Any, local: Arrays, phase: Any) -> tuple[Any, ...]:
        """See :meth:`Method.at`."""
        return (called(self.instance, "at", weights, local),)

    def step(self, weights: Any, local: Arrays, slopes: tuple[Any, ...], phase: Any) -> Arrays:
        """See :meth:`Method.step`."""
        from jax import numpy as jnp

        after = called(self.instance, "step", weights, local, slopes[0])
        return {name: jnp.asarray(after[name], value.dtype) for name, value in local.items()}

    def end(self, weights: Any, local: Arrays, kept: Arrays) -> tuple[Any, Arrays]:
        """See :meth:`Method.end`."""
        from jax import numpy as jnp

        sent, after = called(self.instance, "end", weights, local, kept)
        return sent, {name: jnp.asarray(after[name], value.dtype) for name, value in kept.items()}


def _traced(method: OwnMethod, training: OwnTraining, first: State, published: int, dtype: Any) -> None:
    """Raise unless JAX can compile an extension's algorithm, and its shapes match.

    Raises:
        ExtensionFailed: JAX cannot compile it, or shapes don't match.
    """
    import jax

    def once(weights: Any, kept: Arrays, slope: Any) -> Any:
        local = method.begin(weights, kept, {})
        [at] = method.at(weights, local, 0)
        return at, *method.end(weights, method.step(weights, local, (slope,), 0), kept)

    extension = extension_of(training)
    with jax.enable_x64(True):
        abstract: Any = jax.ShapeDtypeStruct
        numbers = [abstract((count,), dtype) for count in (published, method.m)]
        kept = {name: abstract(np.shape(value), np.asarray(value).dtype) for name, value in first.items()}
        with extension.guarded():
            at, sent, after = jax.eval_shape(once, numbers[0], kept, numbers[1])
    expected = {"at": (at.shape, (method.m,)), "the update of end": (sent.shape, (published,))}
    expected |= {f"the state '{name}' of end": (after[name].shape, value.shape) for name, value in kept.items()}
    for what, (found, wanted) in expected.items():
        if found != wanted:
            raise ExtensionFailed(
                f"{extension}, an extension, has the shape {list(found)} for {what}; return the shape {list(wanted)}"
            )


class Runs(NamedTuple):
    """Stretches of shared and of local weights in a whole model: whether each stretch is shared, and its length."""

    stretches: tuple[tuple[bool, int], ...]

    @classmethod
    def of(cls, mine: Any) -> Runs:
        """Return the stretches given by a mask that marks the shared weights, shape (M,)."""
        edges = np.flatnonzero(np.diff(mine)) + 1
        bounds = [0, *edges.tolist(), len(mine)]
        return cls(tuple((bool(mine[low]), high - low) for low, high in zip(bounds, bounds[1:], strict=False)))

    def joined(self, shared: Any, local: Any) -> Any:
        """Return the weights of the whole model."""
        from jax import numpy as jnp

        parts, done = [], {True: 0, False: 0}
        for is_shared, length in self.stretches:
            source, low = shared if is_shared else local, done[is_shared]
            parts.append(source[low : low + length])
            done[is_shared] += length
        return jnp.concatenate(parts)

    def part(self, whole: Any, *, shared: bool) -> Any:
        """Return the shared weights of a whole model, or the local ones."""
        from jax import numpy as jnp

        parts, low = [], 0
        for is_shared, length in self.stretches:
            if is_shared == shared:
                parts.append(whole[low : low + length])
            low += length
        return jnp.concatenate(parts)


@dataclass(frozen=True)
class Descent:
    """A step of plain training on some weights; see :class:`fedping.client_sim.learning.descent.LocalAlgorithm`.

    Attributes:
        rate: the size of a step; None for one gradient.
        proximal: μ of FedProx.
        optimizer: the client optimizer.
    """

    rate: float | None
    proximal: float
    optimizer: LocalOptimizer

    @classmethod
    def of(cls, training: OneGradient | LocalSteps) -> Descent:
        """Return the descent of a training."""
        if isinstance(training, OneGradient):
            return cls(None, 0.0, LocalDescent())
        return cls(training.rate, training.proximal, training.optimizer)

    def memory(self, like: Any) -> Arrays:
        """Return the optimizer's initial state, by its own names."""
        from jax import numpy as jnp

        return {
            f"memory_{name}": jnp.full(1 if name.startswith("powers") else like.shape, value, jnp.float64)
            if name.startswith("powers")
            else jnp.full(like.shape, value, like.dtype)
            for name, value in client_optimizer(self.optimizer)[0].items()
        }

    def moved(self, moved: Any, slope: Any, local: Arrays, rates: Any = None) -> tuple[Any, Arrays]:
        """Return the movement after a step, and the optimizer's new state; ``rates`` has a rate for each weight."""
        if self.rate is None:
            return -slope, {}
        rate = self.rate if rates is None else rates
        if isinstance(self.optimizer, LocalDescent):
            return (moved - rate * slope) / (1 + rate * self.proximal), {}
        memory = {name.removeprefix("memory_"): value for name, value in local.items() if name.startswith("memory_")}
        step, after = client_optimizer(self.optimizer)[1](slope + self.proximal * moved, memory)
        return moved + rate * step, {f"memory_{name}": value for name, value in after.items()}


def _unspoilt(sent: Any, local: Arrays) -> Any:
    """Return the update, or NaN if an optimizer's state is not finite, which would silently stop all steps."""
    from jax import numpy as jnp

    for name, value in local.items():
        if name.startswith("memory_"):
            sent = jnp.where(jnp.isfinite(value).all(), sent, jnp.nan)
    return sent


def _others(weights: Any, constants: Arrays) -> Any:
    """Return the start values of the blocks that stay with clients."""
    return constants["others"].astype(weights.dtype)


def _own(weights: Any, kept: Arrays, constants: Arrays) -> Any:
    """Return a client's own blocks; before its first training, their start values."""
    from jax import numpy as jnp

    return jnp.where(kept["own_trained"] > 0, kept["own_weights"].astype(weights.dtype), _others(weights, constants))


@dataclass(frozen=True)
class TogetherMethod:
    """Training of a client's local blocks together with the shared ones (FedPer).

    See :class:`fedping.client_sim.learning.personal.partly_local.PartlyLocalModel`.
    """

    runs: Runs
    descent: Descent
    rate: float

    def whole(self, weights: Any, constants: Arrays) -> Any:
        """See :meth:`Method.whole`."""
        return self.runs.joined(weights, _others(weights, constants))

    def begin(self, weights: Any, kept: Arrays, constants: Arrays) -> Arrays:
        """See :meth:`Method.begin`."""
        from jax import numpy as jnp

        whole = self.runs.joined(weights, _own(weights, kept, constants))
        return {"begun": whole, "moved": jnp.zeros_like(whole), **self.descent.memory(whole)}

    def at(self, weights: Any, local: Arrays, phase: Any) -> tuple[Any, ...]:
        """See :meth:`Method.at`."""
        return (local["begun"] + local["moved"],)

    def step(self, weights: Any, local: Arrays, slopes: tuple[Any, ...], phase: Any) -> Arrays:
        """See :meth:`Method.step`."""
        rates = None
        if self.descent.rate is not None:
            of = {True: self.descent.rate, False: self.rate}
            rates = np.concatenate([np.full(length, of[shared]) for shared, length in self.runs.stretches])
            rates = rates.astype(local["moved"].dtype)
        moved, memory = self.descent.moved(local["moved"], slopes[0], local, rates)
        return {**local, "moved": moved, **memory}

    def end(self, weights: Any, local: Arrays, kept: Arrays) -> tuple[Any, Arrays]:
        """See :meth:`Method.end`."""
        from jax import numpy as jnp

        moved = local["moved"]
        own = self.runs.part(local["begun"], shared=False)
        own = own + (self.rate if self.descent.rate is None else 1.0) * self.runs.part(moved, shared=False)
        after = {"own_weights": own.astype(jnp.float32), "own_trained": kept["own_trained"] + 1}
        return _unspoilt(self.runs.part(moved, shared=True), local), after


@dataclass(frozen=True)
class LocalFirstMethod:
    """Training of local blocks in phase 0, then of shared blocks with the local ones fixed, in phase 1.

    FedRep keeps the local blocks (``keeps``); FedRecon fits them again each time, from the model's start weights.
    """

    runs: Runs
    descent: Descent
    rate: float
    keeps: bool

    def whole(self, weights: Any, constants: Arrays) -> Any:
        """See :meth:`Method.whole`."""
        return self.runs.joined(weights, _others(weights, constants))

    def begin(self, weights: Any, kept: Arrays, constants: Arrays) -> Arrays:
        """See :meth:`Method.begin`."""
        from jax import numpy as jnp

        local = _own(weights, kept, constants) if self.keeps else _others(weights, constants)
        return {
            "local": local,
            "moved_local": jnp.zeros_like(local),
            "moved": jnp.zeros_like(weights),
            **self.descent.memory(weights),
        }

    def at(self, weights: Any, local: Arrays, phase: Any) -> tuple[Any, ...]:
        """See :meth:`Method.at`."""
        return (self.runs.joined(weights + local["moved"], local["local"] + local["moved_local"]),)

    def step(self, weights: Any, local: Arrays, slopes: tuple[Any, ...], phase: Any) -> Arrays:
        """See :meth:`Method.step`."""
        from jax import numpy as jnp

        first = phase == 0
        of_local, of_shared = (self.runs.part(slopes[0], shared=shared) for shared in (False, True))
        moved, memory = self.descent.moved(local["moved"], of_shared, local)
        after = {**local, "moved": moved, **memory}
        after = {name: jnp.where(first, local[name], value) for name, value in after.items()}
        fitted = local["moved_local"] - self.rate * of_local
        return after | {"moved_local": jnp.where(first, fitted, local["moved_local"])}

    def end(self, weights: Any, local: Arrays, kept: Arrays) -> tuple[Any, Arrays]:
        """See :meth:`Method.end`."""
        from jax import numpy as jnp

        sent = _unspoilt(local["moved"], local)
        if not self.keeps:
            return sent, kept
        own = (local["local"] + local["moved_local"]).astype(jnp.float32)
        return sent, {"own_weights": own, "own_trained": kept["own_trained"] + 1}


def prepared(training: Training, model: Model[Any]) -> Prepared:
    """Return the clients' training, prepared to run in lanes. `inside.py` lists the trainings that can.

    Args:
        training: the training.
        model: the model as published for this training.
    """
    first: State = {}
    if isinstance(training, OwnTraining):
        own: Any = algorithm_for(training).instance  # type: ignore[attr-defined]
        first, steps = algorithm_for(training).init_state(bare(model)), _local_steps(own)
        phases: tuple[Phase, ...] = (Phase(steps),)
        inner = model.model if isinstance(model, ModelAndMore) else model
        m = len(inner.weight_names)
        if isinstance(own, Stepwise):
            method: Method = OwnMethod(training.code, msgspec.json.encode(training.settings, order="sorted"), own, m)
            assert isinstance(method, OwnMethod)
            _traced(method, training, first, len(model.weight_names), precision(inner))
            return Prepared(method, phases, inner, first, {}, False)
        makers: dict[str, Callable[[Any, int], Method]]
        makers = {"scaffold": ScaffoldMethod, "feddyn": FedDynMethod, "apfl": ApflMethod}
        method = makers[training.name](own, m)
        if training.name == "scaffold" and own.option == "I":
            phases = (*phases, Phase(LocalSteps(rate=1.0, steps=1)))
        return Prepared(method, phases, inner, first, {}, True)
    if training.personal is None:
        return Prepared(None, (Phase(training),), model, first, {}, True)
    personal, shared = training.personal, replace(training, personal=None)
    assert isinstance(model, Part)
    assert isinstance(personal, PartlyLocal | Reconstruct)
    runs, constants = Runs.of(model.mine), {"others": np.asarray(model.others, np.float64)}
    descent = Descent.of(shared)
    first = algorithm_for(training).init_state(model)
    if isinstance(personal, Reconstruct):
        fit = LocalSteps(rate=personal.rate, steps=personal.steps)
        method = LocalFirstMethod(runs, descent, personal.rate, keeps=False)
        phases = (
            Phase(fit, support=personal.support, division=DIVISION, is_fixed=True),
            Phase(shared, support=-personal.support, division=DIVISION),
        )
        return Prepared(method, phases, model.whole, first, constants, False)
    if personal.order == "together":
        together = TogetherMethod(runs, descent, personal.rate)
        return Prepared(together, (Phase(shared),), model.whole, first, constants, False)
    fit = LocalSteps(rate=personal.rate, steps=personal.steps, batch=shared.batch)
    method = LocalFirstMethod(runs, descent, personal.rate, keeps=True)
    return Prepared(method, (Phase(fit, OWN_DRAWS), Phase(shared)), model.whole, first, constants, False)
