"""The thesis' explanatory figures 7 to 11 (Hartmann 2018), drawn with the laboratory's own code.

Figures 7 to 10 of the thesis show one weight. Here they are a path on a loss of two weights, one of which is 25 times
as steep, and the sizes of RProp's steps. Figure 11 shows the probability of each level to which a weight is rounded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import numpy as np
from numpy.typing import NDArray

from fedping.analysis.figures import LIGHT, save_figure, titled
from fedping.analysis.figures.canvas import TEXT_SIZE, grid_across, panels
from fedping.client_sim.learning import model_spec
from fedping.client_sim.learning.local_optimizers import stepper_for
from fedping.experiments.papers.scripts.curves import legend
from fedping.protocol.links import Levels
from fedping.protocol.local_optimizers import LocalDescent, LocalOptimizer, LocalRProp
from fedping.protocol.upload import ends_of
from fedping.protocol.weights import Step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEEPNESS = np.array([1.0, 25.0])
START = np.array([-4.0, 1.4])
STEPS = 25
RATES = {"gradient descent, rate 0.004": 0.004, "gradient descent, rate 0.076": 0.076}
RPROP = LocalRProp(step=Step(start=0.1, min=1e-6, max=50.0))
DRAWS = 20_000
"""Number of updates encoded for each probability in figure 11."""


def descent(rate: float, optimizer: LocalOptimizer) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weights of a descent, shape (steps + 1, 2), and the size of each step in each weight.

    The loss is half the sum of steepness times w².
    """
    path, stepper = [START], stepper_for(optimizer)
    memory = stepper.init(1, 2, np.dtype(np.float64)) if stepper else {}
    for _ in range(STEPS):
        gradient = STEEPNESS * path[-1]
        if stepper:
            step, memory = stepper.step(gradient[None], memory)
            path.append(path[-1] + rate * step[0])
        else:
            path.append(path[-1] - rate * gradient)
    return np.array(path), np.abs(np.diff(path, axis=0))


def draw_step_sizes() -> Figure:
    """Draw the paths of gradient descent with two rates and of RProp, and the sizes of RProp's steps."""
    figure, axes = panels(LIGHT, 4, width=15.0, height=3.6, one_scale=False)
    x1, x2 = np.meshgrid(np.linspace(-5, 5, 121), np.linspace(-2, 2, 121))
    loss = (STEEPNESS[0] * x1**2 + STEEPNESS[1] * x2**2) / 2
    paths = {name: descent(rate, LocalDescent())[0] for name, rate in RATES.items()}
    paths["RProp"], moved = descent(1.0, RPROP)
    for one, (name, path) in zip(axes, paths.items(), strict=False):
        one.contour(x1, x2, loss, levels=[0.2, 1, 3, 8, 16, 30, 50], colors=LIGHT.faint, linewidths=0.9)
        one.plot(path[:, 0], path[:, 1], "o-", color=LIGHT.of_arm(0), markersize=3, linewidth=1.2)
        one.plot(0, 0, "+", color=LIGHT.ink, markersize=10)
        one.set(title=name, xlabel="first weight", xlim=(-5, 5), ylim=(-2, 2))
        one.title.set_fontsize(TEXT_SIZE)
    axes[0].set_ylabel("second weight, 25 times as steep")
    for place, name in enumerate(("first weight", "second weight")):
        sizes = moved[:, place].tolist()
        axes[3].plot(range(1, STEPS + 1), sizes, "o-", color=LIGHT.of_arm(place), markersize=3, label=name)
    axes[3].set(title="sizes of RProp's steps", xlabel="step", yscale="log")
    axes[3].title.set_fontsize(TEXT_SIZE)
    grid_across(axes[3], LIGHT)
    legend(axes[3], "lower left", 1)
    return titled(figure, f"{STEPS} steps from the same start (after figures 7 to 10)", theme=LIGHT)


def chances(bits: Literal[1, 2], values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the levels to which a weight between 0 and 1 is rounded, and their frequencies, shape (values, levels).

    Every value is encoded and decoded :data:`DRAWS` times with the link ``levels``, next to a weight of 0 and one of 1.
    """
    spec = model_spec("linear-regression", {"features": 2})
    client, server = ends_of(Levels(bits=bits), spec)
    assert client.encode is not None
    assert server.decode is not None
    levels = np.linspace(0, 1, 2**bits)
    counts = np.empty((len(values), len(levels)))
    for number, value in enumerate(values.tolist()):
        keys = np.random.default_rng(number).integers(0, 2**63, DRAWS, dtype=np.uint64)
        updates, _ = server.decode(client.encode(np.tile([0.0, value, 1.0], (DRAWS, 1)), keys), 3)
        counts[number] = np.bincount(np.abs(updates[:, 1, None] - levels).argmin(axis=1), minlength=len(levels))
    return levels, counts / DRAWS


def draw_levels() -> Figure:
    """Draw the probability of each level by a weight's value, with 1 bit and with 2 bits, and the decoded mean."""
    figure, axes = panels(LIGHT, 2, width=11.0)
    values = np.linspace(0, 1, 31)
    tried: tuple[Literal[1, 2], ...] = (1, 2)
    for one, bits in zip(axes, tried, strict=True):
        levels, share = chances(bits, values)
        _draw_chances(one, values, levels, share)
        one.set(title=f"{bits} bit{'s' * (bits > 1)}: {len(levels)} levels", xlabel="(h - h_min) / (h_max - h_min)")
        one.title.set_fontsize(TEXT_SIZE)
    axes[0].set_ylabel("chance of the level; mean that arrives")
    return titled(figure, "The level that a weight is rounded to (as figure 11)", theme=LIGHT)


def _draw_chances(
    axes: Axes, values: NDArray[np.float64], levels: NDArray[np.float64], share: NDArray[np.float64]
) -> None:
    for place, level in enumerate(levels.tolist()):
        axes.plot(values, share[:, place], color=LIGHT.of_arm(place), linewidth=1.8, label=f"level {level:.2g}")
    axes.plot(values, share @ levels, ":", color=LIGHT.ink, linewidth=1.6, label="mean")
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.4), yticks=[0, 0.25, 0.5, 0.75, 1])
    grid_across(axes, LIGHT)
    legend(axes, "upper center", 3)


@click.command()
@click.option("--figures", required=True, type=click.Path(path_type=Path), help="Folder to draw the pictures into.")
@click.option("--kind", type=click.Choice(["svg", "png"]), default="svg", show_default=True)
def main(figures: Path, kind: str) -> None:
    """Draw the thesis' illustrations; they need no results."""
    figures.mkdir(parents=True, exist_ok=True)
    for name, draw in {"hartmann_2018_step_sizes": draw_step_sizes, "hartmann_2018_levels": draw_levels}.items():
        click.echo(save_figure(draw(), figures / f"{name}.{kind}"))


if __name__ == "__main__":
    main()
