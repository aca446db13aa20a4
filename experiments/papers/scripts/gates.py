"""The picture of two users' gates: figure 1 of Peterson, Kanani and Marathe 2019.

Runs don't store the clients' own weights. So this script trains the users of the experiment's first seed again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedping.analysis.figures import LIGHT, titled
from fedping.analysis.figures.canvas import TEXT_SIZE, panels
from fedping.client_sim.learning import MemoryStates, algorithm_for, cohort_updates
from fedping.client_sim.learning.algorithm import Personalizes
from fedping.client_sim.learning.batch import Examples, FloatArray
from fedping.client_sim.learning.models.mixture import Mixture
from fedping.experiments.laboratory.preparing import prepare
from fedping.experiments.laboratory.settings import Setup, experiment_from_toml
from fedping.protocol.draws import child_keys, root_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FILE = Path(__file__).parents[1] / "peterson_2019_regression.toml"
VARIANT = "FL+DE, sigma 0"
REACH = 9.0
"""Half the width and height of the maps."""


class Users(NamedTuple):
    """Trained users.

    Attributes:
        test: the users' test examples.
        mixture: the model that the users predict with.
        weights: each user's weights of the model, shape (users, m).
    """

    test: Examples
    mixture: Mixture
    weights: FloatArray


def trained(setup: Setup, seed: int) -> Users:
    """Train users by gradients with steps of rate / √t on the server, as in the experiment's file."""
    problem, training = prepare(setup, seed, None), setup.training
    model, algorithm = problem.model, algorithm_for(training)
    clients = np.arange(len(problem.train.sizes))
    states, batch, w = MemoryStates(algorithm.init_state(model)), problem.train.batch(clients), model.start.copy()
    rate = getattr(setup.pipeline.optimizer, "rate", 1.0)
    for number in range(setup.most_rounds):
        keys = child_keys(child_keys(root_key(seed), number), clients)
        done = cohort_updates(model, training, w, batch, keys, states.load(clients), version=number, losses=False)
        states.save(clients, done.state)
        w = w + rate / np.sqrt(number + 1) * done.updates.mean(axis=0)
    assert isinstance(algorithm, Personalizes)
    mixture = algorithm.personal_model(model)
    assert isinstance(mixture, Mixture)
    own = algorithm.personal_weights(model, w, batch, states.load(clients))
    return Users(problem.test.batch(clients), mixture, np.asarray(own, np.float64))


def draw_gates(results: Path) -> Figure:
    """Draw test inputs, the target, and each user's gate: figure 1 (a) to (d). No results are read."""
    experiment = experiment_from_toml(FILE)
    users = trained(experiment.variants[VARIANT], experiment.seeds[0])
    along = np.linspace(-REACH, REACH, 181)
    x1, x2 = np.meshgrid(along, along)
    figure, axes = panels(LIGHT, 4, width=15.0, one_scale=False)
    for user, x in enumerate(users.test.x):
        axes[0].plot(x[:, 0], x[:, 1], ".", markersize=3, color=LIGHT.of_arm(user), label=f"user {user + 1}")
    axes[0].legend(loc="upper left", fontsize=9, markerscale=3, labelcolor=LIGHT.ink, edgecolor="none")
    target = 5 * x1 - 2 * x2 + 0.5 * x2**3
    extent = (-REACH, REACH, -REACH, REACH)
    maps = [(axes[1], target, "RdBu_r", -200.0, 200.0)]
    points = np.stack([x1.ravel(), x2.ravel()], axis=1)[None].repeat(len(users.weights), axis=0)
    grid = Examples(points, np.zeros(points.shape[:2]), np.ones(points.shape[:2]))
    shares = users.mixture.mixed(users.mixture.parts(users.weights), grid).share
    maps += [(one, of.reshape(x1.shape), "gray", 0.0, 1.0) for one, of in zip(axes[2:], shares, strict=True)]
    for one, values, colours, least, most in maps:
        image = one.imshow(values, colours, vmin=least, vmax=most, extent=extent, origin="lower", aspect="auto")
        figure.colorbar(image, ax=one, fraction=0.046)
    titles = ("(a) test inputs", "(b) f(x1, x2)", "(c) a(x) of user 1", "(d) a(x) of user 2")
    for one, title in zip(axes, titles, strict=True):
        one.set(title=title, xlabel="x1", xlim=(-REACH, REACH), ylim=(-REACH, REACH))
        one.title.set_fontsize(TEXT_SIZE)
    axes[0].set_ylabel("x2")
    return titled(figure, "Where two users trust the shared model: light (as figure 1)", theme=LIGHT)
