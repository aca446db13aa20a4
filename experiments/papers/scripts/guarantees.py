"""Figure 12 of Fritsch et al. 2018: (ε, δ) of clients with noise on a number of answers, the paper's and ours.

Every answer is a gradient clipped to C with N(0, σ²) noise on each weight; here C = 0.2 and σ = 0.5, as in the paper.
The picture and the table show the ε of the paper's two theorems, as the paper uses them, and the exact one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np

from fedping.analysis.figures import LIGHT, save_figure, titled
from fedping.analysis.figures.canvas import TEXT_SIZE, grid_across, panels
from fedping.experiments.papers.scripts.curves import curves, legend
from fedping.server_jobs.privacy.gaussian import by_theorems, epsilon_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SIGMA, C, CLIENTS = 0.5, 0.2, 10
THEIRS = {"a": (112, 187, 512), "b": (132, 314, 989)}
"""The paper's numbers of answers for three levels of the AUC and two models; the text names neither."""

LEVELS = (0.95, 0.98, 0.99)
"""The levels of the AUC for our models."""

VARIANT = f"C = {C:g}"
OURS = {"logistic regression": "fritsch_2018_figure_10", "network": "fritsch_2018_figure_11"}
"""The folder of each model's runs."""


class Spent(NamedTuple):
    """The ε of a number of answers at one δ, computed in three ways."""

    by_the_paper: float
    """ε by the paper's theorems 1 and 2, with C as the sensitivity. The theorems hold only for answers of ε < 1."""
    by_the_theorems: float
    """ε by the same theorems with 2 C, the true sensitivity."""
    exact: float
    """The least ε that holds, with 2 C."""


def spent(answers: int, delta: float) -> Spent:
    """Return the ε of ``answers`` answers at δ = ``delta``, by each of the three ways."""
    return Spent(
        by_theorems(SIGMA / C, answers, delta).epsilon,
        by_theorems(SIGMA / (2 * C), answers, delta).epsilon,
        epsilon_of(np.sqrt(answers) * 2 * C / SIGMA, delta),
    )


def answers_to(folder: Path, levels: tuple[float, ...] = LEVELS) -> dict[float, int]:
    """Return the number of answers until a finished experiment's mean AUC is above each level, with C = 0.2.

    Levels that the AUC does not reach are left out. The AUC is measured only every few rounds.

    Raises:
        FedpingError: the folder has no results.
    """
    curve = curves(folder, "test", "auc")[VARIANT]
    first = {level: curve.mean_first_above(level) for level in levels}
    return {level: number for level, number in first.items() if number is not None}


def draw_guarantees(ours: dict[float, int]) -> Figure:
    """Draw ε by δ, for the paper's answers up to three levels of the AUC and for ours (`answers_to`)."""
    figure, axes = panels(LIGHT, 2, width=11.0)
    _draw(axes[0], {f"{answers:,} answers": answers for answers in THEIRS["a"]})
    _draw(axes[1], {f"AUC {level:g}: {answers:,} answers": answers for level, answers in ours.items()})
    for one, title in zip(axes, ("their logistic regression", "ours, on biopsies"), strict=True):
        one.set(title=title, xlabel="δ", xscale="log", yscale="log", ylim=(2, 2e5))
        one.title.set_fontsize(TEXT_SIZE)
        grid_across(one, LIGHT)
        legend(one, "upper right")
    axes[0].set_ylabel("ε of all answers")
    caption = (
        "Solid: exact. Dashed: by the formulas of the paper's theorems, which do not hold here. "
        f"Grey: a δ that lets one of {CLIENTS} clients be given away."
    )
    figure.supxlabel(caption, x=0.99, ha="right", fontsize=8.5, color=LIGHT.soft)
    return titled(figure, f"What σ = {SIGMA:g} and C = {C:g} guarantee (as figure 12)", theme=LIGHT)


def _draw(axes: Axes, answers: dict[str, int]) -> None:
    deltas = np.geomspace(1e-8, 0.5, 60)
    axes.axvspan(1 / CLIENTS, 0.5, color=LIGHT.faint, alpha=0.5, linewidth=0)
    for place, (label, number) in enumerate(answers.items()):
        colour = LIGHT.of_arm(place)
        costs = [spent(number, float(delta)) for delta in deltas]
        axes.plot(deltas, [each.exact for each in costs], color=colour, linewidth=1.8, label=label)
        axes.plot(deltas, [each.by_the_paper for each in costs], "--", color=colour, linewidth=1.2)
    axes.set_xlim(deltas[0], deltas[-1])


@click.command()
@click.argument("results", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--figures", type=click.Path(path_type=Path), help="Folder to draw the picture into.")
@click.option("--kind", type=click.Choice(["svg", "png"]), default="svg", show_default=True)
def main(results: Path, figures: Path | None, kind: str) -> None:
    """Print the table of the guarantees in Markdown, and draw figure 12; RESULTS has figures 10 and 11, finished."""
    click.echo(
        "| answers | as the paper | its theorems, 2 C | exact, δ = 0.1 | exact, δ = 1e-5 |\n|---|---|---|---|---|"
    )
    ours = {model: answers_to(results / folder) for model, folder in OURS.items()}
    rows = [(f"theirs ({part}), {number}", number) for part, numbers in THEIRS.items() for number in numbers]
    rows += [
        (f"ours, {model}, AUC {level:g}: {number}", number)
        for model, by_level in ours.items()
        for level, number in by_level.items()
    ]
    for label, number in rows:
        much, little = spent(number, 0.1), spent(number, 1e-5)
        cells = (much.by_the_paper, much.by_the_theorems, much.exact, little.exact)
        click.echo(f"| {label} | " + " | ".join(f"{cell:,.4g}" for cell in cells) + " |")
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        drawn = draw_guarantees(ours["logistic regression"])
        click.echo(save_figure(drawn, figures / f"fritsch_2018_figure_12.{kind}"))


if __name__ == "__main__":
    main()
