"""The number of users needed to train a model: the final loss by cohort size, as a curve, a figure and a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedping.analysis.figures.canvas import LIGHT, TEXT_SIZE, Theme, grid_across, group_thousands, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class TrainingRun(Struct, frozen=True, kw_only=True):
    """A simulated training.

    Attributes:
        cohort: the intended number of clients per round.
        repetition: number of the repetition, from 1 on; each has its own users.
        seed: the seed of the users.
        clients: the number of clients, in the study or not.
        rounds: the number of rounds that published a version.
        clients_a_round: the mean number of clients per round.
        pings: the number of usable pings in all rounds.
        version: the version that was validated.
        loss: the mean loss of this version over searches of users who did not train.
    """

    cohort: int
    repetition: int
    seed: int
    clients: int
    rounds: int
    clients_a_round: float
    pings: int
    version: int
    loss: float


class TrainingPoint(Struct, frozen=True, kw_only=True):
    """A cohort size with its effort and the final loss of its runs (mean, lowest, highest).

    ``enrolled`` is the number of users in all arms of the study, ``searches_a_day`` the total of the arms that train.
    """

    cohort: int
    clients_a_round: float
    enrolled: int
    searches_a_day: float
    runs: int
    loss: float
    low: float
    high: float


class TrainingCurve(Struct, frozen=True, kw_only=True):
    """The final loss by cohort size.

    Attributes:
        study: the study's name.
        line: the line trained.
        iterations: iterations of the experiment; early stopping may end a run sooner.
        validation_searches: the number of searches that the loss averages, the same for every run.
        start_loss: loss of version 0 over the same searches.
        within: accepted distance from the best loss, in percent of it.
        enough: the smallest cohort from which on all mean losses are close enough; None if the curve doesn't show one
            (:func:`smallest_enough`).
        headline: a sentence about that cohort.
        points: a point per cohort, ascending.
        runs: the simulated trainings, by cohort and repetition.
    """

    study: str
    line: str
    iterations: int
    validation_searches: int
    start_loss: float
    within: float
    enough: int | None
    headline: str
    points: tuple[TrainingPoint, ...]
    runs: tuple[TrainingRun, ...]


def smallest_enough(points: Sequence[TrainingPoint], within: float, start_loss: float) -> TrainingPoint | None:
    """Return the smallest cohort from which on every mean loss is within a percentage of the lowest.

    None if even the largest cohort doesn't qualify, or if no mean loss is below the loss of version 0.
    """
    best = min(point.loss for point in points)
    smallest = None
    for point in reversed(points):
        if point.loss > best * (1 + within / 100) or best >= start_loss:
            break
        smallest = point
    return smallest


def headline(points: Sequence[TrainingPoint], within: float, start_loss: float) -> str:
    """Return a sentence that names the smallest cohort that is enough, or states that the curve doesn't show one."""
    best, smallest = min(points, key=lambda point: point.loss), smallest_enough(points, within, start_loss)
    if best.loss >= start_loss:
        return (
            f"No cohort learned anything: the lowest final loss, {best.loss:.4g}, is not below the {start_loss:.4g} "
            "of version 0, so this curve gives no number of users."
        )
    if smallest is None:
        above = 100 * (points[-1].loss / best.loss - 1)
        return (
            f"This curve gives no sufficient number of clients a round: its lowest final loss is {best.loss:.4g}, "
            f"with {best.cohort:,}, and the largest cohort, {points[-1].cohort:,}, ends {above:.3g} % above it, as it "
            "can by chance. Try more --seeds, or larger --cohorts."
        )
    text = (
        f"{smallest.cohort:,} clients a round are enough: the final loss is {smallest.loss:.4g}, within {within:g} % "
        f"of the best ({best.loss:.4g}, with {best.cohort:,}), where that of version 0 is {start_loss:.4g}; this "
        f"takes about {smallest.enrolled:,} enrolled users and {smallest.searches_a_day:,.0f} searches a day in the "
        "arms that train."
    )
    if len(points) == 1:
        return f"{text} Only one cohort was tried, so that nothing is known of others."
    if smallest.cohort == points[-1].cohort:
        return f"{text} It is the largest that was tried: a larger one may do better, so try more --cohorts."
    if smallest.cohort == points[0].cohort:
        return f"{text} It is the smallest that was tried: fewer may do as well, so try smaller --cohorts."
    return text


def runs_as_csv(runs: Sequence[TrainingRun]) -> str:
    """Return runs as CSV, with a heading and a row per run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TrainingRun.__struct_fields__)
    for run in runs:
        writer.writerow([getattr(run, field) for field in TrainingRun.__struct_fields__])
    return text.getvalue()


def draw_training(curve: TrainingCurve, *, theme: Theme = LIGHT) -> Figure:
    """Draw the mean final loss over the cohort size.

    The band extends from the lowest to the highest repetition, each dot is a repetition, and a ring marks the cohort
    that is enough.
    """
    figure, (axes,) = panels(theme)
    colour, points = theme.of_arm(0), curve.points
    cohorts = [point.cohort for point in points]
    axes.fill_between(
        cohorts,
        [point.low for point in points],
        [point.high for point in points],
        color=colour,
        alpha=0.15,
        linewidth=0,
    )
    axes.plot([run.cohort for run in curve.runs], [run.loss for run in curve.runs], "o", color=colour, alpha=0.35, ms=4)
    axes.plot(cohorts, [point.loss for point in points], color=colour, linewidth=2)
    _mark_enough(axes, curve, colour)
    axes.margins(x=0.06, y=0.16)
    _rule_losses(axes, curve, theme)
    axes.set_xscale("log")
    axes.set_xticks(cohorts, [f"{cohort:,}" for cohort in cohorts])
    axes.minorticks_off()
    axes.set(xlabel="clients a round", ylabel=f"loss after {curve.iterations} iterations")
    group_thousands(axes)
    grid_across(axes, theme)
    return figure


def _mark_enough(axes: Axes, curve: TrainingCurve, colour: str) -> None:
    enough = next((point for point in curve.points if point.cohort == curve.enough), None)
    if enough is None:
        return
    axes.plot(enough.cohort, enough.loss, "o", ms=11, markerfacecolor="none", markeredgecolor=colour, markeredgewidth=2)
    axes.annotate(
        f"{enough.cohort:,} are enough",
        (enough.cohort, enough.loss),
        xytext=(0, -12),
        textcoords="offset points",
        ha="center",
        va="top",
        color=colour,
        fontsize=TEXT_SIZE,
        fontweight="bold",
    )


def _rule_losses(axes: Axes, curve: TrainingCurve, theme: Theme) -> None:
    """Draw a line at the loss that is close enough to the best, and one at the loss of version 0.

    If the loss of version 0 is far above, it is only stated, to keep the curve from looking flat.
    """
    near = min(point.loss for point in curve.points) * (1 + curve.within / 100)
    _rule(axes, near, f"{curve.within:g} % above the best: {near:.4g}", theme)
    low, high = axes.get_ylim()
    label = f"loss of version 0: {curve.start_loss:.4g}"
    if low <= curve.start_loss <= high + (high - low):
        _rule(axes, curve.start_loss, label, theme)
    else:
        axes.set_title(label, loc="right", fontsize=TEXT_SIZE, color=theme.soft)


def _rule(axes: Axes, height: float, text: str, theme: Theme) -> None:
    axes.axhline(height, color=theme.soft, linewidth=1, linestyle="--")
    axes.annotate(
        text,
        (1, height),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=theme.soft,
        fontsize=9,
        bbox={"facecolor": theme.paper, "edgecolor": "none", "pad": 1},
    )


def print_training(curve: TrainingCurve, console: Console) -> None:
    """Print a curve."""
    console.print(Text(curve.headline, style="bold"))
    console.print()
    title = f"Loss of {curve.study}, line {curve.line}, after {curve.iterations} iterations"
    title = f"{title}; of version 0: {curve.start_loss:.4g}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for head in ("cohort", "a round got", "enrolled", "searches a day", "runs", "final loss", "lowest to highest"):
        table.add_column(head, justify="right")
    for point in curve.points:
        table.add_row(*_training_cells(point), style="bold" if point.cohort == curve.enough else "")
    console.print(table)
    console.print()
    for note in (
        "A cohort is the clients whose usable pings a round gets, as a mean over the iterations.",
        f"The final loss is the mean over {curve.validation_searches:,} searches of users who never train, the same "
        "for every run.",
    ):
        console.print(Text(f"- {note}", style="dim"))


def _training_cells(point: TrainingPoint) -> tuple[str, ...]:
    return (
        f"{point.cohort:,}",
        f"{point.clients_a_round:,.1f}",
        f"{point.enrolled:,}",
        f"{point.searches_a_day:,.0f}",
        f"{point.runs}",
        f"{point.loss:.4g}",
        f"{point.low:.4g} to {point.high:.4g}",
    )
