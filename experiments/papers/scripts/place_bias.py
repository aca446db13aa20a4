"""Share of the possible gain that a model of features learns from lists in production's order, by loss and offsets.

    python -m fedping.experiments.papers.scripts.place_bias

Items have six normal features. Lists have ten items in the order of a worse model, whose weights are at 60 degrees to
the true ones. Users look at a list in one of three ways, and choose once:

- ``place``: by an item's appeal times a factor that falls with its place: 1 / place^1.35;
- ``consider``: the best, with noise, of the items that they consider, each with chance 1 / place^0.82;
- ``cascade``: from the top down, the first item that is good enough, with more noise.

The gain is measured in the true utility of the item on top: 0 for production's order, 1 for the true order. A second
table is about a flag, "sponsored", of a fifth of the items, which puts the first such item on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fedping.client_sim.features import numbers, vectors
from fedping.client_sim.features.vectors import Lists
from fedping.client_sim.learning.batch import FloatArray
from fedping.client_sim.rehearsal.settings import Look
from fedping.client_sim.rehearsal.users import chosen
from fedping.protocol.features import Number
from fedping.protocol.pipeline import Pipeline, RProp
from fedping.protocol.spec import ModelSpec
from fedping.protocol.study import Line
from fedping.server_jobs.optimize import first_state, step_arrays

LOOKS: tuple[Look, ...] = ("place", "consider", "cascade")

ITEMS, NUMBERS = 10, 6
SHARPNESS = 2.5
"""Utility of one standard deviation in the direction of the true weights, in units of a choice's noise."""

LEARNERS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "hinge": {"loss": "hinge", "margin": 1.0},
    "pairwise": {"loss": "pairwise"},
    "softmax with places": {"places": ITEMS},
}


def spec_of(count: int, **settings: Any) -> ModelSpec:
    """Return a model spec with ``count`` weights."""
    features = tuple(Number(name=f"n{number}") for number in range(count))
    return ModelSpec(name="bias", model="features", features=features, **settings)


def weights_of(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return the true weights and production's weights, each of length 1."""
    truth, other = rng.normal(size=(2, NUMBERS))
    truth /= np.linalg.norm(truth)
    other -= truth * (other @ truth)
    return truth, 0.5 * truth + np.sqrt(0.75) * other / np.linalg.norm(other)


def choices(rng: np.random.Generator, utility: FloatArray, look: Look) -> NDArray[np.intp]:
    """Return the place of the chosen item in each list, -1 for none; ``utility`` has shape (N, items)."""
    noise = rng.gumbel(size=utility.shape)
    considered = rng.random(utility.shape) if look == "consider" else np.zeros(utility.shape)
    return chosen(look, utility, noise, considered)


def lists_from(x: FloatArray, y: NDArray[np.intp]) -> Lists:
    """Return lists of items with the features ``x``, shape (N, items, features)."""
    n, items, count = x.shape
    at = np.broadcast_to(np.arange(count)[:, None, None], (count, items, n))
    return Lists(at, numbers.single(np.ascontiguousarray(x.transpose(2, 1, 0))), np.full(n, items), y)


def learned(spec: ModelSpec, lists: Lists, rounds: int) -> FloatArray:
    """Return the weights after rounds of the usual RProp, each on the mean update of all lists."""
    line = Line(name="main", spec=spec, pipeline=Pipeline(optimizer=RProp()))
    weights, state = spec.start_array, first_state(line)
    for _ in range(rounds):
        direction = vectors.updates(spec, weights, lists).mean(axis=1)
        weights, state = step_arrays(line, weights, state, direction)
    return weights


def gain(weights: FloatArray, truth: FloatArray, production: FloatArray) -> float:
    """Return the share of the possible gain in the top item's true utility, over lists from a fixed seed."""
    x = np.random.default_rng(99).normal(size=(20_000, ITEMS, NUMBERS))
    on_top = [
        np.take_along_axis(x @ truth, np.argmax(x @ by, axis=1)[:, None], axis=1).mean()
        for by in (production, weights, truth)
    ]
    return float((on_top[1] - on_top[0]) / (on_top[2] - on_top[0]))


def share_learned(look: Look, learner: str, seed: int, lists: int = 20_000, rounds: int = 90) -> float:
    """Return the share of the possible gain that a learner of :data:`LEARNERS` learns."""
    rng = np.random.default_rng(seed)
    truth, production = weights_of(rng)
    x = rng.normal(size=(lists, ITEMS, NUMBERS))
    order = np.argsort(-(x @ production), axis=1, kind="stable")
    x = np.take_along_axis(x, order[..., None], axis=1)
    y = choices(rng, SHARPNESS * (x @ truth), look)
    spec = spec_of(NUMBERS, **LEARNERS[learner])
    return gain(learned(spec, lists_from(x, y), rounds)[:NUMBERS], truth, production)


def sponsored_weight(places: int, seed: int, lists: int = 20_000, rounds: int = 60, pinned: bool = True) -> float:
    """Return the learned weight of "sponsored" divided by the norm of all weights; the true value is -0.25.

    Args:
        places: the spec's ``places``.
        seed: the seed of the lists.
        lists: the number of lists.
        rounds: the number of rounds.
        pinned: whether the clients report which item is pinned to the top.
    """
    rng = np.random.default_rng(seed)
    truth = np.append(np.sqrt(1 - 0.25**2) * weights_of(rng)[0], -0.25)
    x = np.concatenate([rng.normal(size=(lists, ITEMS, NUMBERS)), rng.random((lists, ITEMS, 1)) < 0.2], axis=2)
    pinned_at = np.argmax(x[..., -1], axis=1)  # the first sponsored item, or the item on top
    order = np.argsort(np.arange(ITEMS) != pinned_at[:, None], axis=1, kind="stable")
    x = np.take_along_axis(x, order[..., None], axis=1)
    y = choices(rng, SHARPNESS * (x @ truth), "place")
    found = lists_from(x, y)
    if pinned:
        is_pinned = np.zeros((ITEMS, lists), np.bool_)
        is_pinned[0] = x[:, 0, -1] == 1
        found = Lists(found.at, found.value, found.shown, found.chosen, pinned=is_pinned)
    weights = learned(spec_of(NUMBERS + 1, places=places), found, rounds)[: NUMBERS + 1]
    return float(weights[-1] / np.linalg.norm(weights))


def table(seeds: Sequence[int]) -> dict[str, list[float]]:
    """Return each learner's mean shares, one for each way of looking."""
    return {
        learner: [float(np.mean([share_learned(look, learner, seed) for seed in seeds])) for look in LOOKS]
        for learner in LEARNERS
    }


@click.command()
@click.option("--seeds", default=5, show_default=True, help="Number of repetitions.")
def main(seeds: int) -> None:
    """Print both tables."""
    click.echo(f"{'':22}" + "".join(f"{look:>15}" for look in LOOKS))
    for learner, shares in table(range(seeds)).items():
        click.echo(f"{learner:22}" + "".join(f"{share:15.3f}" for share in shares))
    for what, places, pinned in (("not said", 0, False), ("left out", 0, True), ("with places", ITEMS, True)):
        found = [sponsored_weight(places, seed, pinned=pinned) for seed in range(seeds)]
        click.echo(f"sponsored, pins {what:14} {np.mean(found):+.2f}")


if __name__ == "__main__":
    main()
