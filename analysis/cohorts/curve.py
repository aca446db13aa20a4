"""How many users train a model: final loss against cohort size, over repetitions with other users."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from msgspec import Struct


class TrainingRun(Struct, frozen=True, kw_only=True):
    """One simulated training.

    Attributes:
        cohort: how many clients a round was to get.
        repetition: from 1 on; each has users of its own.
        seed: which users.
        clients: how many there were, in the study or not.
        rounds: how many published a version.
        clients_a_round: how many a round got, on average.
        pings: how many usable ones all rounds got.
        version: the one that was validated.
        loss: the mean loss of that version, over searches of users who never trained.
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
    """One cohort size: what it takes, and the final loss of its runs (mean, lowest, highest).

    ``enrolled`` are users in all arms of the study; ``searches_a_day`` are those of the arms that train, all together.
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
    """The final loss against the cohort size.

    Attributes:
        study: its name.
        line: which was trained.
        iterations: of the experiment; early stopping may end a run before.
        validation_searches: over how many the loss is the mean; they are the same for every run.
        start_loss: of version 0, over the same searches.
        within: how far above the best loss is near enough, in percent of it.
        enough: the smallest cohort whose mean loss, and that of all larger ones, is near enough; None where the curve
            does not tell (:func:`smallest_enough`).
        headline: that in a sentence.
        points: by cohort, ascending.
        runs: by cohort and repetition.
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
    """Return the smallest cohort from which on every mean loss is within so many percent of the lowest.

    None where the curve does not tell: not even the largest cohort is, or none ended below the loss of version 0.
    """
    best = min(point.loss for point in points)
    found = None
    for point in reversed(points):
        if point.loss > best * (1 + within / 100) or best >= start_loss:
            break
        found = point
    return found


def headline(points: Sequence[TrainingPoint], within: float, start_loss: float) -> str:
    """Say how large a cohort is large enough, and where the cohorts tried cannot tell."""
    best, found = min(points, key=lambda point: point.loss), smallest_enough(points, within, start_loss)
    if best.loss >= start_loss:
        return (
            f"No cohort learned anything: the lowest final loss, {best.loss:.4g}, is not below the {start_loss:.4g} of "
            "version 0, so this curve says nothing about how many users are needed."
        )
    if found is None:
        above = 100 * (points[-1].loss / best.loss - 1)
        return (
            f"This curve does not say how many clients a round are enough: its lowest final loss is {best.loss:.4g}, "
            f"with {best.cohort:,}, and the largest cohort, {points[-1].cohort:,}, ends "
            f"{above:.3g} % above it, as it can by chance; try more --seeds, or larger --cohorts."
        )
    said = (
        f"{found.cohort:,} clients a round are enough: the final loss is {found.loss:.4g}, within {within:g} % of the "
        f"best ({best.loss:.4g}, with {best.cohort:,}), where version 0 has {start_loss:.4g}; that takes about "
        f"{found.enrolled:,} enrolled users and {found.searches_a_day:,.0f} searches a day in the arms that train."
    )
    if len(points) == 1:
        return f"{said} Only one cohort was tried, so that nothing is known of others."
    if found.cohort == points[-1].cohort:
        return f"{said} It is the largest that was tried: a larger one may do better, so try more --cohorts."
    if found.cohort == points[0].cohort:
        return f"{said} It is the smallest that was tried: fewer may do as well, so try smaller --cohorts."
    return said


def runs_as_csv(runs: Sequence[TrainingRun]) -> str:
    """Return a row a run, under a heading."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TrainingRun.__struct_fields__)
    for run in runs:
        writer.writerow([getattr(run, field) for field in TrainingRun.__struct_fields__])
    return text.getvalue()
