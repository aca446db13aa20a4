"""The client algorithms SCAFFOLD, FedDyn and APFL, which keep a state; rate decay; the aggregation FedNova.

They are extensions like those of any other package: this module uses only the public API, and an entry point in
pyproject.toml names it. docs/researchers.md compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

import fedping

if TYPE_CHECKING:
    from fedping.client_sim.learning.batch import Batch, FloatArray, Floats
    from fedping.client_sim.learning.model import Model
    from fedping.protocol.draws import Keys
    from fedping.protocol.spec import Block

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
Part = Annotated[float, msgspec.Meta(gt=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Steps of gradient descent on a client's own examples, as of `fedping.protocol.training.LocalSteps`.

    Attributes:
        rate: the size of a step, η.
        steps: number of gradient steps; give either ``steps`` or ``epochs``.
        epochs: how often a client goes through its examples.
        batch: the examples of a step, drawn without replacement in each epoch; all if None.
    """

    rate: Positive
    steps: Count | None = None
    epochs: Count | None = None
    batch: Count | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("it needs either 'steps' or 'epochs'; give one of them")

    def parts(self, batch: Batch, keys: Keys) -> Iterator[tuple[Batch, NDArray[np.bool_]]]:
        """Yield the examples of each step, and whether each of the k clients takes it, shape (k,)."""
        return fedping.local_steps(batch, keys, steps=self.steps, epochs=self.epochs, size=self.batch)


@fedping.client_algorithm("scaffold")
@dataclass(frozen=True, kw_only=True)
class Scaffold(LocalTraining):
    """SCAFFOLD (Karimireddy et al. 2020): local steps, corrected by a client's difference from the mean gradient.

    Client i keeps a control variate c_i, and the mean c of all N of them is published behind the weights x. A step is
    y ← y - η (g_i(y) - c_i + c). After K steps the new c_i is, by ``option``

    - II: c_i - c + (x - y) / (K η), the mean gradient of these steps, at no further cost;
    - I: g_i(x), the gradient on all own examples, which costs one more gradient.

    A client sends y - x and s (new c_i - c_i), where s is ``participation``: the share |S| / N of clients in a round.
    Where the server adds the mean of what it gets, x moves by the mean movement, and c by s times the mean change,
    which is how the mean over all N changes: the server's step of the paper, with η_g = 1.
    """

    adds_mean: ClassVar[bool] = True
    option: Literal["I", "II"] = "II"
    participation: Part = 1.0

    def init_state(self, model: Model[Any]) -> Mapping[str, NDArray[Any]]:
        """Return a control variate of zeros."""
        return {"control": np.zeros(len(model.weight_names), _precision(model))}

    def beside(self, model: Model[Any]) -> tuple[Block, ...]:
        """Return the server's control variate."""
        return (fedping.array("control", (len(model.weight_names),)),)

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: Mapping[str, NDArray[Any]]
    ) -> tuple[Floats, Mapping[str, NDArray[Any]]]:
        """Return movements and changes of the control variates, shape (k, 2m), and the new control variates."""
        fetched, common = np.split(weights.astype(_precision(model), copy=False), 2, axis=-1)
        own = state["control"]
        moved = np.zeros_like(own)
        steps = np.zeros((len(own), 1))
        for part, there in self.parts(batch, keys):
            slope = model.gradients(fetched + moved, part) - own + common
            moved -= np.where(there[:, None], self.rate * slope, 0)
            steps += there[:, None]
        if self.option == "I":
            new = model.gradients(fetched, batch)
        else:
            new = own - common - moved / np.maximum(steps * self.rate, np.finfo(float).tiny)
        new = np.where(steps > 0, new, own).astype(own.dtype, copy=False)
        return np.hstack([moved, self.participation * (new - own)]), {"control": new}


@fedping.client_algorithm("feddyn")
@dataclass(frozen=True, kw_only=True)
class FedDyn(LocalTraining):
    """FedDyn (Acar et al. 2021): local steps with a penalty for each client that leads all to the common minimum.

    Client i keeps g_i, its gradient where it ended last, and h is published behind the weights w. It takes local steps
    towards the minimum of L_i(θ) - <g_i, θ> + alpha/2 |θ - w|², and ends at θ = w + d_i; then g_i ← g_i - alpha d_i.
    The paper's server, with D the mean of d_i over the clients S of a round and s = |S| / N, goes on to

        h' = h - alpha/N Σ d_i = h - alpha s D,
        w' = mean(θ) - h' / alpha = w + D - h / alpha + s D = w + (1 + s) D - h / alpha.

    So a client sends (1 + s) d_i - h / alpha for w and -alpha s d_i for h, and a server that adds the mean comes to
    just that. s is ``participation``.
    """

    adds_mean: ClassVar[bool] = True
    alpha: Positive = 0.1
    participation: Part = 1.0

    def init_state(self, model: Model[Any]) -> Mapping[str, NDArray[Any]]:
        """Return a gradient of zeros."""
        return {"gradient": np.zeros(len(model.weight_names), _precision(model))}

    def beside(self, model: Model[Any]) -> tuple[Block, ...]:
        """Return the vector h, published after the weights."""
        return (fedping.array("h", (len(model.weight_names),)),)

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: Mapping[str, NDArray[Any]]
    ) -> tuple[Floats, Mapping[str, NDArray[Any]]]:
        """Return the movements of w and h, shape (k, 2m), and the new g_i; d_i is 0 for clients without examples."""
        fetched, h = np.split(weights.astype(_precision(model), copy=False), 2, axis=-1)
        last = state["gradient"]
        moved = np.zeros_like(last)
        for part, there in self.parts(batch, keys):
            slope = model.gradients(fetched + moved, part) - last + self.alpha * moved
            moved -= np.where(there[:, None], self.rate * slope, 0)
        share = self.participation
        sent = np.hstack([(1 + share) * moved - h / self.alpha, -self.alpha * share * moved])
        return sent, {"gradient": last - self.alpha * moved}


@fedping.client_algorithm("apfl")
@dataclass(frozen=True, kw_only=True)
class APFL(LocalTraining):
    """APFL (Deng et al. 2020): each client predicts with a mixture of its own weights v and the common weights w.

    Its personal weights are P = a v + (1 - a) w. Every local step moves w by its own gradient and v by a times the
    gradient at P, both at once: v ← v - η a g(P). Of w the movement is sent, which v and a have no part in; v and a
    stay with the client. With the first step of a training, a ← a - η_a <v - w, g(P)>, within 0 and 1. v begins as the
    w that a client first fetches.

    Attributes:
        share: a at the beginning.
        share_rate: η_a; ``rate`` if None. With 0, a stays as it is.
    """

    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    share_rate: Annotated[float, msgspec.Meta(ge=0, le=1e30)] | None = None

    def init_state(self, model: Model[Any]) -> Mapping[str, NDArray[Any]]:
        """Return the state of a client that has not begun; its own weights are not used before it has."""
        own = np.zeros(len(model.weight_names), _precision(model))
        return {"own": own, "share": np.array(self.share), "begun": np.array(0, np.int8)}

    def update(
        self, model: Model[Any], weights: FloatArray, batch: Batch, keys: Keys, state: Mapping[str, NDArray[Any]]
    ) -> tuple[Floats, Mapping[str, NDArray[Any]]]:
        """Return the movements of the common weights, shape (k, m), and the new own weights and shares."""
        fetched = weights.astype(_precision(model), copy=False)
        own, share = self._own(fetched, state), state["share"].copy()
        moved = np.zeros_like(own)
        begun = state["begun"] > 0
        for step, (part, there) in enumerate(self.parts(batch, keys)):
            common: Any = fetched + moved
            uphill = model.gradients(self._mixed(common, own, share), part)
            moved -= np.where(there[:, None], self.rate * model.gradients(common, part), 0)
            turn = np.einsum("km,km->k", own - common, uphill) if step == 0 else 0.0
            own = own - np.where(there[:, None], self.rate * share[:, None] * uphill, 0).astype(own.dtype, copy=False)
            rate = self.rate if self.share_rate is None else self.share_rate
            share = np.where(there, np.clip(share - rate * turn, 0.0, 1.0), share)
            begun = begun | there
        return moved, {"own": own, "share": share, "begun": begun.astype(np.int8)}

    def personal_weights(
        self, model: Model[Any], weights: FloatArray, batch: Batch, state: Mapping[str, NDArray[Any]]
    ) -> Floats:
        """Return each client's P, shape (k, m); the common weights for a client that has never trained."""
        fetched = weights.astype(_precision(model), copy=False)
        mixed: Floats = self._mixed(fetched, self._own(fetched, state), state["share"])
        return mixed

    def _own(self, fetched: Floats, state: Mapping[str, NDArray[Any]]) -> Floats:
        return np.where(state["begun"][:, None] > 0, state["own"], fetched).astype(fetched.dtype, copy=False)

    def _mixed(self, common: Floats, own: Floats, share: NDArray[Any]) -> Any:
        return common + share[:, None].astype(own.dtype, copy=False) * (own - common)


@fedping.client_algorithm("decaying")
@dataclass(frozen=True, kw_only=True)
class Decaying(LocalTraining):
    """FedAvg with local steps that become smaller from version to version (Li et al. 2020).

    With a fixed rate and several local steps, FedAvg ends at a distance from the common minimum that is proportional
    to the rate; with rates that fall as 1/t it converges to it.

    Attributes:
        decay: how fast the rate falls, by ``schedule``.
        schedule: of version t, ``inverse`` is rate / (1 + decay t), and ``exponential`` is rate × decay^(t // every).
        every: versions after which the rate of ``exponential`` falls.
    """

    decay: Annotated[float, msgspec.Meta(ge=0, le=1e30)]
    schedule: Literal["inverse", "exponential"] = "inverse"
    every: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule == "exponential" and not 0 < self.decay <= 1:
            raise ValueError(f"decay = {self.decay:g} with schedule = 'exponential'; set it above 0 and to 1 at most")

    def rate_at(self, version: int) -> float:
        """Return the size of a local step for clients that have fetched this version."""
        if self.schedule == "inverse":
            return self.rate / (1.0 + self.decay * version)
        return float(self.rate * self.decay ** (version // self.every))

    def update(
        self,
        model: Model[Any],
        weights: FloatArray,
        batch: Batch,
        keys: Keys,
        state: Mapping[str, NDArray[Any]],
        version: int,
    ) -> tuple[Floats, Mapping[str, NDArray[Any]]]:
        """Return movements of shape (k, m), and no state."""
        fetched = weights.astype(_precision(model), copy=False)
        moved = np.zeros((len(batch), fetched.shape[-1]), fetched.dtype)
        rate = self.rate_at(max(version, 0))
        for part, there in self.parts(batch, keys):
            moved -= np.where(there[:, None], rate * model.gradients(fetched + moved, part), 0)
        return moved, {}

    def steps_taken(self, sizes: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Return each client's number of local steps, shape (k,)."""
        each: Any = self.steps
        if self.epochs is not None:
            each = self.epochs * (np.ceil(sizes / self.batch) if self.batch else 1)
        return np.where(sizes > 0, each, 0)


@fedping.aggregation("fednova")
class FedNova:
    """FedNova (Wang et al. 2020): the mean of updates by step, times the mean number of steps.

    An update is -η Σ_j a_j g_j, its gradients g_j weighted by what the client's optimizer makes of them, and |a| is
    the sum of these weights: the number of steps τ of plain descent. With p_i, a client's share of the votes, the
    direction is τ_eff Σ p_i Δ_i / |a_i|, where τ_eff = Σ p_i |a_i|. So clients that take more steps do not pull the
    model towards their own minimum. If all take equally many, it is the mean of the updates.

    A partial has the sums of votes, of votes times |a|, and of votes times updates by step.
    """

    def init(self, line: Any) -> tuple[Any, float, float, Any]:
        """Return empty sums, together with the training that determines clients' steps."""
        reason = _unknown_steps(line.training)
        if reason:
            raise fedping.InvalidSettings(
                f"the aggregation 'fednova' needs the weights of a client's gradients in its update, and {reason}; "
                "set the algorithm 'gradient', or 'local' with plain descent or momentum"
            )
        return line.training, 0.0, 0.0, np.zeros(line.spec.m)

    def add(self, total: Any, updates: Any, votes: Any, senders: Any) -> Any:
        """Add updates of shape (k, m) with their votes and senders."""
        training, weight, lengths, by_step = total
        if np.isnan(senders.steps).any():
            raise fedping.InvalidSettings(
                "the aggregation 'fednova' needs the number of local steps, and this client algorithm does not say it; "
                "add the method steps_taken(sizes) to its class"
            )
        length = gradient_weights(training, senders.steps)
        moved = (updates * (votes / length)[:, None]).sum(axis=0)
        return training, weight + votes.sum(), lengths + (votes * length).sum(), by_step + moved

    def merge(self, one: Any, other: Any) -> Any:
        """Return the sums of both partials."""
        return one[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]

    def finish(self, total: Any, line: Any, weights: Any, state: Any, key: bytes) -> Any:
        """Return τ_eff times the mean update by step; zeros without updates."""
        _, weight, lengths, by_step = total
        return by_step * (lengths / weight**2) if weight else by_step


def gradient_weights(training: Any, steps: FloatArray) -> FloatArray:
    """Return |a|, the sum of the gradients' weights in an update of ``steps`` local steps, shape (k,).

    Source: Wang et al. 2020, section 4. Here the proximal term is implicit: a step divides by 1 + η μ.
    """
    pull = getattr(training, "rate", 0.0) * getattr(training, "proximal", 0.0)
    beta = getattr(getattr(training, "optimizer", None), "beta", 0.0)
    if pull:
        return np.asarray((1 - (1 + pull) ** -steps) / pull)
    if not beta:
        return steps
    by_velocity = (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)
    return np.asarray(beta * by_velocity + steps if training.optimizer.nesterov else by_velocity)


def _unknown_steps(training: Any) -> str | None:
    """Return the reason why the weights of a training's gradients are unknown; None if they are known."""
    optimizer: Any = getattr(training, "optimizer", None)
    kind = type(optimizer).__name__
    if getattr(training, "sign", False):
        return "'sign' sends no more than signs"
    if getattr(training, "personal", None) is not None:
        return "[training.personal] trains in more than one way"
    if optimizer is not None and kind not in ("LocalDescent", "LocalMomentum"):
        return "this client optimizer divides gradients by their size"
    if kind == "LocalMomentum" and (optimizer.keep or training.proximal):
        return "momentum has no such weights with 'keep' or 'proximal'"
    return None


def _precision(model: Model[Any]) -> np.dtype[Any]:
    return np.dtype(getattr(model, "dtype", np.float64))
