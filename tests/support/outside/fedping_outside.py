"""A user's package of extensions, one of each kind. Tests install this file outside the checkout."""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
import pyarrow as pa

import fedping

SMALLEST = 1e-12

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]


def direction(numbers):
    return np.where(np.abs(numbers) < SMALLEST, 0.0, np.sign(numbers))


@fedping.client_algorithm("control-variates")
@dataclass(frozen=True)
class ControlVariates:
    """SCAFFOLD (Karimireddy et al. 2020), option II, in ``steps`` steps of ``rate``."""

    rate: float
    steps: int = 3

    def init_state(self, model):
        return {"control": np.zeros(len(model.weight_names))}

    def beside(self, model):
        return (fedping.array("control", (len(model.weight_names),)),)

    def update(self, model, weights, batch, keys, state):
        fetched, common = np.split(weights, 2)
        own = state["control"]
        local = np.tile(fetched, (len(own), 1))
        for _ in range(self.steps):
            local -= self.rate * (model.gradients(local, batch) - own + common)
        new = own - common + (fetched - local) / (self.rate * self.steps)
        return np.hstack([local - fetched, new - own]), {"control": new}


@fedping.client_algorithm("own-start")
@dataclass(frozen=True)
class OwnStart:
    """Local steps; a client predicts with its last local weights, shifted by later changes of the shared weights."""

    rate: float
    epochs: int = 1
    batch: int | None = None
    breaks: Literal["", "personal"] = ""
    adds_mean = True

    def init_state(self, model):
        return {"moved": np.zeros(len(model.weight_names))}

    def update(self, model, weights, batch, keys, state):
        moved = np.zeros((len(batch), len(weights)))
        for part, there in fedping.local_steps(batch, keys, epochs=self.epochs, size=self.batch):
            moved -= np.where(there, self.rate, 0)[:, None] * model.gradients(weights + moved, part)
        return moved, {"moved": moved}

    def personal_weights(self, model, weights, batch, state):
        own = weights + state["moved"]
        return own[:, :-1] if self.breaks else own


@fedping.client_algorithm("double-gradient")
def double_gradient(model, weights, batch, keys, *, times: float = 2.0, breaks: Literal["", "raises", "shape"] = ""):
    """The gradient, multiplied by ``times``."""
    if breaks == "raises":
        raise KeyError("no such thing")
    updates = -times * model.gradients(weights, batch)
    return updates[:, :-1] if breaks == "shape" else updates


@fedping.upload_link("fixed-point")
def fixed_point(*, bits: Annotated[int, msgspec.Meta(ge=2, le=30)] = 16, most: Positive = 100.0):
    """Whole numbers of ``bits`` bits, in 4 bytes. ``most`` is the largest number that is sent without clipping."""
    steps = 2 ** (bits - 1) - 1

    def encode(updates, keys):
        numbers = np.rint(np.clip(updates / most, -1, 1) * steps).astype("<i4")
        return pa.array([row.tobytes() for row in numbers], pa.binary())

    def decode(payloads, m):
        rows = payloads.to_pylist()
        whole = np.array([row is not None and len(row) == 4 * m for row in rows], bool)
        numbers = b"".join(row if good else bytes(4 * m) for row, good in zip(rows, whole, strict=True))
        return np.frombuffer(numbers, "<i4").reshape(-1, m) * (most / steps), whole

    return fedping.ClientEnd(encode=encode), fedping.ServerEnd(decode=decode, lengths=lambda m: (4 * m, 4 * m))


@fedping.upload_link("doubled")
@dataclass(frozen=True)
class Doubled:
    """Updates times ``by``, undone once if possible."""

    by: float = 2.0
    breaks: Literal["", "transform", "undo"] = ""

    def transform(self, updates, keys):
        return updates * (None if self.breaks == "transform" else self.by)

    def undo(self, updates):
        return updates / self.by

    def undo_sum(self, spec, direction):
        return direction[:-1] if self.breaks == "undo" else direction / self.by


@fedping.optimizer("lion")
def lion(spec, *, rate: Positive = 0.1, beta: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9):
    """Lion (Chen et al. 2023): steps of the size ``rate``. ``beta`` is the part of the mean that is kept."""

    def update(step, state, weights):
        mean = beta * state["mean"] + (1 - beta) * step
        return rate * direction(mean), {"mean": mean}

    return fedping.Transformation(lambda spec: {"mean": np.zeros(spec.m)}, update)


@fedping.optimizer("halving")
@dataclass(frozen=True)
class Halving:
    """Steps whose size halves every time."""

    rate: float = 1.0

    def init(self, spec):
        return {"t": np.zeros(1)}

    def update(self, step, state, weights):
        return step * self.rate / 2 ** state["t"][0], {"t": state["t"] + 1}


@fedping.optimizer("broken")
def broken(spec, *, how: Literal["raises", "shape", "nan", "state", "longer", "other", "nothing"], after: int = 1):
    """Breaks in the round after ``after`` rounds."""

    def update(step, state, weights):
        t = state["t"] + 1
        if t[0] > after:
            match how:
                case "raises":
                    return step / None, {}
                case "shape":
                    return step[1:], {"t": t}
                case "nan":
                    return step * np.nan, {"t": t}
                case "state":
                    return step, {"t": t * np.inf}
                case "longer":
                    return step, {"t": np.append(t, 0.0)}
                case "other":
                    return step, {"u": t}
                case "nothing":
                    return None
        return step, {"t": t}

    return fedping.Transformation(lambda spec: {"t": np.zeros(1)}, update)


@fedping.aggregation("trimmed")
def trimmed(*, share: Annotated[float, msgspec.Meta(ge=0, lt=0.5)] = 0.1):
    """The mean without this share of the updates at each end, weight by weight."""

    def finish(kept, line, weights, state, key):
        values, (count, _) = np.sort(kept.updates.astype(float), axis=0), kept.updates.shape
        out = int(share * count)
        return fedping.Finished(values[out : count - out].mean(axis=0))

    return fedping.of_all(finish)


@fedping.aggregation("heavy")
class Heavy(msgspec.Struct, frozen=True):
    """The sum of votes times updates over the largest vote so far, which is remembered."""

    least: float = 1.0

    def init(self, line):
        return np.zeros(line.spec.m), self.least

    def add(self, total, updates, votes):
        return total[0] + (updates * votes[:, None]).sum(axis=0), max(total[1], votes.max())

    def merge(self, one, other):
        return one[0] + other[0], max(one[1], other[1])

    def finish(self, total, line, weights, state, key):
        most = max(total[1], *state.get("most", [0.0]))
        return fedping.Finished(total[0] / most, {"most": np.array([most])})


@fedping.sampling("largest")
def largest(sizes, groups, random, *, clients: int):
    """The largest clients, ties at random."""
    return np.lexsort((random.random(len(sizes)), -sizes))[:clients]


@fedping.sampling("nobody-knows")
def nobody_knows(sizes, groups, random):
    return [len(sizes)]


@fedping.partition("stripes")
def stripes(table, random, *, clients: Annotated[int, msgspec.Meta(ge=1)] = 4, leave_out: int = 0):
    """Deals rows to clients in turn; the first rows can be left out."""
    owner = np.arange(len(table)) % clients
    owner[:leave_out] = -1
    return owner


@fedping.data_set("plane")
def plane(*, rows: int = 200, noise: float = 0.1, seed: int = 1):
    """Points near a plane through the origin."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3))
    return fedping.table(x, x @ np.array([1.0, -2.0, 3.0]) + noise * random.normal(size=rows))


@fedping.metric("near", higher_is_better=True)
def near(predictions, y, *, within: Positive = 1.0):
    """The share of examples whose prediction error is within a bound."""
    return np.abs(predictions - y) < within


@fedping.metric("spread")
class Spread(msgspec.Struct, frozen=True):
    """The standard deviation of the errors, a metric that is not a mean over examples."""

    ddof: int = 0
    width = 3

    def counts(self, predictions, y, there):
        error = np.where(there, predictions - y, 0.0)
        return np.stack([there.sum(axis=1), error.sum(axis=1), (error**2).sum(axis=1)], axis=1)

    def metric(self, counts):
        if self.ddof < 0 and counts.any():
            raise ValueError("negative")
        n, total, squares = np.moveaxis(counts, -1, 0)
        return np.sqrt((squares - total**2 / n) / (n - self.ddof))


@fedping.ranking_model("by-visits")
@dataclass(frozen=True)
class ByVisits:
    """Scores pages by their number of visits, and whether they are bookmarked."""

    scale: float = 10.0
    weight_names = ("visits", "bookmark")
    start = (1.0, 1.0)

    def gradients(self, weights, pages):
        return self.scale * np.stack([np.log1p(pages.visit_count), pages.bookmarked], axis=1).astype(float)

    def scores(self, weights, pages):
        return self.gradients(weights, pages) @ weights
